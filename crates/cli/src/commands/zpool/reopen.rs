//! `zpool reopen`.

use cenote_admin::ReopenRequest;
use cenote_server::protocol;

use super::only_pool;
use crate::prelude::*;

/// Look at the devices of pools again: those that were not there are opened, if they are at their recorded paths now; those that are gone are given up.
///
/// Without a pool: of all that a server or a mount has. A command that opens a pool itself opens all that are there in any case.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Do not begin a scan again that is under way: there is none.
    #[arg(short = 'n')]
    keeps_scan: bool,
    /// The pools.
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

impl Args {
    /// One for each pool.
    pub(crate) fn of_pools(&self) -> Vec<Self> {
        let named = match self.pools.is_empty() {
            true => protocol::servers().into_iter().map(|(_, who)| who.pool).collect(),
            false => self.pools.clone(),
        };
        named.into_iter().map(|pool| Self { pools: vec![pool], ..self.clone() }).collect()
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    for pool in args.pools {
        only_pool(&pool)?;
        context.carry_out(&ReopenRequest { pool, keeps_scan: args.keeps_scan }).await?;
    }
    Ok(Outcome::Good)
}
