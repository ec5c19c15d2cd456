//! `zpool checkpoint`.

use cenote_admin::CheckpointRequest;

use super::only_pool;
use crate::prelude::*;

/// Keep the state of a pool as it is now, to go back to all of it: datasets, properties and features.
///
/// 'zpool import --rewind-to-checkpoint' goes back; with -o readonly=on it shows the kept state and changes nothing. While there is a checkpoint what is
/// destroyed gives no space free, and devices are neither attached, detached, replaced nor removed.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Give the checkpoint up.
    #[arg(short = 'd', long = "discard")]
    discard: bool,
    /// Wait until all that only the checkpoint had is free.
    #[arg(short = 'w', long = "wait", requires = "discard")]
    wait: bool,
    /// The pool.
    pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    only_pool(&args.pool)?;
    let request = CheckpointRequest { pool: args.pool, is_discard: args.discard, waits: args.wait };
    context.carry_out(&request).await?;
    Ok(Outcome::Good)
}
