//! `zpool reopen`.

use cenote_admin::ReopenRequest;

use crate::prelude::*;

/// Open the devices of a pool that were not there, if they are at their recorded paths now.
///
/// A command that opens a pool itself opens all that are there in any case.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Do not begin a scan again that is under way: there is none.
    #[arg(short = 'n')]
    keeps_scan: bool,
    /// The pool.
    pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    context.carry_out(&ReopenRequest { pool: args.pool, keeps_scan: args.keeps_scan }).await?;
    Ok(Outcome::Good)
}
