//! `cenote inspect deadlists`.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::open;
use super::report::Common;
use crate::context::Context;
use crate::outcome::Outcome;

/// Deadlists: for each dataset, the blocks that its previous snapshot has and it has no more; and the livelists of clones.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The ranges of births of each, with their lists.
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// A pool (its name, guid, or a device of it), or one dataset or snapshot.
    #[arg(value_name = "POOL|DATASET")]
    pub(crate) source: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.source).await?;
    let only = args.source.contains(['/', '@']) && !open::is_file(&args.source);
    let only = only.then_some(args.source.as_str());
    cenote_inspect::deadlists(&mut report, &pool, only, args.verbose).await;
    report.finish(&context)
}
