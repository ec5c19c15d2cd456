//! `zpool sync`.

use crate::prelude::*;

/// Have everything of pools on disk: of all that are imported, or of those named.
///
/// Changes that a server or a mount has in memory are written: all that was changed before this began is on disk when it ends. Changes
/// that commands make by themselves are on disk when they end, so of other pools this only finds out that they are there.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Accepted for the sake of scripts: what is in memory is written in any case.
    #[arg(short = 'f')]
    force: bool,
    /// The pools.
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if let Some(pool) = context.served() {
        args.pools.iter().try_for_each(|name| context.check_served(name))?;
        pool.sync().await?;
        return Ok(Outcome::Good);
    }
    if args.pools.is_empty() {
        context.check_any_server()?;
    }
    for name in &args.pools {
        context.check_reachable(name).await?;
    }
    Ok(Outcome::Good)
}
