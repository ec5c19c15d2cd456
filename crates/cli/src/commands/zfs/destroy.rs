//! `zfs destroy`.

use anyhow::Result;
use cenote_admin::Destroy;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use crate::writing::{Writing, line};

/// Destroy a file system or volume that has no snapshots. What it holds is gone.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Accepted for the sake of scripts: nothing is mounted.
    #[arg(short = 'f')]
    force: bool,
    /// Only say what would be destroyed.
    #[arg(short = 'n')]
    dry_run: bool,
    /// Also the datasets below.
    #[arg(short = 'r')]
    recursive: bool,
    /// Not yet: also clones of the snapshots.
    #[arg(short = 'R', hide = true)]
    with_clones: bool,
    /// Say what is destroyed.
    #[arg(short = 'v')]
    verbose: bool,
    /// The dataset.
    dataset: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.with_clones {
        return Err(usage("not supported yet: -R; no snapshots are destroyed, and so no clones of them"));
    }
    let name = &args.dataset;
    let pool = Writing::open(context, pool_of(name)).await?;
    if let (Some(live), Some(volumes)) = (pool.served(), context.served_volumes()) {
        // What clients that have gone have left is not to be written after its dataset.
        volumes.lock().await.close_unused();
        live.sync().await?;
    }
    let destroyed = destroy(context, &args, &pool).await;
    // Those that are there still are shown again.
    context.datasets_changed(std::slice::from_ref(name)).await;
    destroyed?;
    if !args.dry_run {
        pool.work_off(context, "freeing").await?;
        pool.finish(line(["zfs", "destroy", if args.recursive { "-r" } else { "" }, name])).await?;
    }
    Ok(Outcome::Good)
}

async fn destroy(context: &Context, args: &Args, pool: &Writing) -> Result<()> {
    // As OpenZFS unmounts them: a mount that shows them nested in another has them in use.
    context.release(&outermost(args, pool).await?).await?;
    pool.pool().settle_logs().await?;
    let mut task = Destroy::new(pool.pool(), &args.dataset, args.recursive);
    if args.verbose || args.dry_run {
        task = pool.pool().check_task(task).await?;
        for name in task.names() {
            context.out(format!("{} destroy {name}\n", if args.dry_run { "would" } else { "will" }))?;
        }
    }
    if !args.dry_run {
        pool.pool().sync_task(task).await?;
    }
    Ok(())
}

/// The datasets that go and are not below others that go: the pool's own goes with the pool alone.
async fn outermost(args: &Args, pool: &Writing) -> Result<Vec<String>> {
    let name = &args.dataset;
    if pool.served().is_none() {
        return Ok(Vec::new());
    }
    if name.contains('/') {
        return Ok(vec![name.clone()]);
    }
    let dsl = pool.pool().dsl()?;
    let children = dsl.children(&dsl.root_dir().await?, false).await?;
    Ok(children.into_iter().filter(|_| args.recursive).map(|(child, _)| format!("{name}/{child}")).collect())
}
