//! `cenote inspect blocks`.

use anyhow::Result;
use cenote_scan::VerifyOptions;
use serde::{Deserialize, Serialize};

use super::open;
use super::report::Common;
use crate::commands::verify::verify_with_progress;
use crate::context::Context;
use crate::outcome::Outcome;

/// Count all blocks by type, as `zdb -b` does, and account for every allocated byte.
///
/// Reads what leads to data, not the data; `cenote verify` reads all.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// By level too.
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// Do not load space maps: no account of leaks.
    #[arg(short = 'L', long)]
    pub(crate) no_space: bool,
    /// The pool's name or guid, or a device of it.
    pub(crate) pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.pool).await?;
    let options = VerifyOptions { data: false, space: !args.no_space };
    let (found, _) = verify_with_progress(&context, &pool, options).await?;
    cenote_inspect::blocks(&mut report, &pool, &found, args.verbose);
    report.finish(&context)
}
