//! `cenote inspect dedup`.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::open;
use super::report::Common;
use crate::context::Context;
use crate::outcome::Outcome;

/// Blocks that are shared: the dedup tables' statistics, and the block reference tables of cloned files.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The entries of the block reference tables.
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// The pool's name or guid, or a device of it.
    pub(crate) pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.pool).await?;
    cenote_inspect::dedup(&mut report, &pool, args.verbose).await;
    report.finish(&context)
}
