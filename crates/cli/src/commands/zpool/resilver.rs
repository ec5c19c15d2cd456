//! `zpool resilver`.

use cenote_admin::ResilverRequest;

use crate::prelude::*;

/// Write to devices what they have missed while they were away.
///
/// This begins by itself when a mount or a server opens the pool. In a pool that nobody has this command does it.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The pools.
    #[arg(value_name = "POOL", required = true)]
    pools: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let mut failed = false;
    for pool in args.pools {
        if let Err(error) = context.carry_out(&ResilverRequest(pool.clone())).await {
            context.err(format!("cannot resilver {pool}: {error}"));
            failed = true;
        }
    }
    Ok(Outcome::unless(failed))
}
