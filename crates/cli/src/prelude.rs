//! The names that commands begin with.

pub(crate) use anyhow::Result;
pub(crate) use cenote_admin::values::pool_of;
pub(crate) use serde::{Deserialize, Serialize};

pub(crate) use crate::args::Search;
pub(crate) use crate::context::Context;
pub(crate) use crate::outcome::{Outcome, causes, usage};
