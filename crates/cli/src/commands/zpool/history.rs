//! `zpool history`: the commands that changed pools.

use cenote_listing::history_line;
use cenote_server::View;

use crate::prelude::*;
use crate::time;

/// Show the commands that changed pools.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also what happened inside.
    #[arg(short = 'i')]
    internal: bool,
    /// Also who did it, and where.
    #[arg(short = 'l')]
    long: bool,
    /// The pools.
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (pools, mut failed) = context.open_pools(&args.pools).await?;
    for pool in &pools {
        if let Err(error) = show(context, &args, pool).await {
            context.err(causes(&error));
            failed = true;
        }
    }
    if pools.is_empty() && args.pools.is_empty() && !failed {
        context.err("no pools available");
    }
    Ok(Outcome::unless(failed))
}

async fn show(context: &Context, args: &Args, pool: &View) -> Result<()> {
    context.out(format!("History for '{}':\n", pool.name()))?;
    let mut written = Ok(());
    pool.history(|record| {
        if written.is_ok()
            && let Some(line) = history_line(&record, args.internal, args.long, time::format)
        {
            written = context.out(line);
        }
    })
    .await?;
    written?;
    context.out("\n")
}
