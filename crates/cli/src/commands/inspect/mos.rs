//! `cenote inspect mos`.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::open;
use super::report::Common;
use crate::context::Context;
use crate::outcome::Outcome;

/// The meta objset: its directory of objects, and the type and size of every object in it.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The pool's name or guid, or a device of it.
    pub(crate) pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.pool).await?;
    cenote_inspect::mos(&mut report, &pool).await;
    report.finish(&context)
}
