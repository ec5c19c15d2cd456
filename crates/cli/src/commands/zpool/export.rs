//! `zpool export`: imported pools are imported no more.

use cenote_server::exporting;

use crate::prelude::*;

/// Forget imported pools, and end what shows them.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// All of them, and all that servers and mounts have. One that is in use is told of and stays, with status 1.
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
    if args.all {
        return Ok(Outcome::unless(!exporting::export_all(context, args.force).await?));
    }
    if args.pools.len() > 1 && context.served().is_none() {
        let mut failed = false;
        for name in &args.pools {
            let exported = exporting::export_named(context, name, args.force).await;
            failed |= !exported.unwrap_or_else(|error| {
                context.err(error.chain());
                false
            });
        }
        return Ok(Outcome::unless(failed));
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
            exporting::end_readers(context, "export", name, found.guid, args.force).await?;
        }
    }
    let mut failed = false;
    for name in &args.pools {
        if !exporting::forget(name)? && context.served().is_none() {
            context.err(format!("cannot open '{name}': no such pool"));
            failed = true;
        }
    }
    Ok(Outcome::unless(failed))
}
