//! `cenote inspect zil`.

use anyhow::Result;
use cenote_inspect::IntentLogs;
use serde::{Deserialize, Serialize};

use super::open;
use super::report::Common;
use crate::context::Context;
use crate::outcome::Outcome;

/// Intent logs: what was promised to be durable and is in no transaction group yet.
///
/// A log ends where the next block is not there: that is no damage. Only heads are shown: what a snapshot's header
/// says of a log is history.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The records of each log.
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// Logs that are empty too.
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// A pool (its name, guid, or a device of it), or one dataset.
    #[arg(value_name = "POOL|DATASET")]
    pub(crate) source: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.source).await?;
    let only = args.source.contains('/') && !open::is_file(&args.source);
    let wanted = IntentLogs { only: only.then_some(&args.source), records: args.verbose, empty: args.all };
    cenote_inspect::zil(&mut report, &pool, &wanted).await;
    report.finish(&context)
}
