//! `zpool resilver`.

use cenote_admin::ResilverRequest;
use cenote_server::ServerError;

use super::only_pool;
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

impl Args {
    /// One for each pool.
    pub(crate) fn of_pools(&self) -> Vec<Self> {
        self.pools.iter().map(|pool| Self { pools: vec![pool.clone()] }).collect()
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let mut failed = false;
    args.pools.iter().try_for_each(|pool| only_pool(pool))?;
    for pool in args.pools {
        if let Err(error) = context.carry_out(&ResilverRequest(pool.clone())).await {
            // The process that has the pool does it.
            if matches!(error, ServerError::Owned(_)) {
                return Err(error.into());
            }
            context.err(match error {
                ServerError::NoSuchPool(_) => error.to_string(),
                error => format!("cannot resilver {pool}: {error}"),
            });
            failed = true;
        }
    }
    Ok(Outcome::unless(failed))
}
