//! Options that many commands share.

pub(crate) mod globals;
mod goeson;
mod sort;

pub(crate) use cenote_admin::values::parse_size;
pub(crate) use globals::{Globals, Search};
pub(crate) use goeson::{GoesOn, Repeats};
pub(crate) use sort::SortKeys;
