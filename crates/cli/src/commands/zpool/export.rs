//! `zpool export`: forget imported pools.

use cenote_host::CacheFile;

use crate::prelude::*;

/// Forget imported pools.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// All of them.
    #[arg(short = 'a')]
    all: bool,
    /// Also a pool that is in use, whose users get errors, and a server's pool whose devices fail: what is not on disk is lost.
    #[arg(short = 'f')]
    force: bool,
    /// The pools.
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.all && !args.pools.is_empty() {
        return Err(usage("too many arguments: -a means all pools"));
    }
    if !args.all && args.pools.is_empty() {
        return Err(usage("missing pool argument"));
    }
    for name in &args.pools {
        if context.served().is_some() {
            context.check_served(name)?;
            if let Some(pool) = context.served()
                && pool.suspended().is_some()
            {
                anyhow::ensure!(
                    args.force,
                    "cannot export '{name}': pool I/O is currently suspended; 'zpool clear {name}' once its devices are back, or -f \
                     to lose what is not on disk"
                );
                pool.abandon();
            } else if !args.force {
                context.check_unused().await?;
            }
            context.ask_to_end();
        } else if let Ok((found, _)) = context.locate(name).await {
            context.check_server(&found)?;
        }
    }
    let mut failed = false;
    CacheFile::of_user()?.update(|pools| {
        if args.all {
            pools.clear();
        }
        for name in &args.pools {
            if pools.remove(name).is_none() && context.served().is_none() {
                context.err(format!("cannot open '{name}': no such pool"));
                failed = true;
            }
        }
        anyhow::Ok(())
    })?;
    Ok(Outcome::unless(failed))
}
