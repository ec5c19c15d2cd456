//! `zpool sync`.

use cenote_server::{Session, protocol};

use crate::prelude::*;

/// Have everything of pools on disk: of all that are imported, or of those named.
///
/// Changes that a server or a mount has in memory are written: all that was changed before this began is on disk when it ends. Changes
/// that commands make by themselves are on disk when they end, so of other pools this only finds out that they are there.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Accepted for the sake of scripts: a txg is written in any case.
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
    if let [name] = &args.pools[..] {
        context.check_reachable(name).await?;
        return Ok(Outcome::Good);
    }
    let mut failed = false;
    let mut served = protocol::servers();
    for name in &args.pools {
        if !served.iter().any(|(_, who)| who.is_called(name))
            && let Err(error) = context.without_sending().check_reachable(name).await
        {
            context.err(error.chain());
            failed = true;
        }
    }
    served.retain(|(_, who)| args.pools.is_empty() || args.pools.iter().any(|name| who.is_called(name)));
    for (socket, who) in served {
        if !Session::sync_server(&socket) {
            context.err(format!("cannot sync '{}': process {} did not say that all is written", who.pool, who.pid));
            failed = true;
        }
    }
    Ok(Outcome::unless(failed))
}
