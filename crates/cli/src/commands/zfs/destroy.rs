//! `zfs destroy`.

use anyhow::{Result, bail};
use cenote_spa::{Pool, Syncer};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::Outcome;
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
    /// Say what is destroyed.
    #[arg(short = 'v')]
    verbose: bool,
    /// The dataset.
    dataset: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let name = &args.dataset;
    let pool = Writing::open(context, pool_of(name)).await?;
    if let (Some(live), Some(volumes)) = (pool.served(), context.served_volumes()) {
        // What clients that have gone have left is not to be written after its dataset.
        volumes.lock().await.close_unused();
        live.sync().await?;
    }
    let mut names = vec![name.clone()];
    if args.recursive {
        let name = name.clone();
        let tree = async move |writer: &mut Syncer| {
            let view = writer.dsl().clone();
            Ok(view.tree(view.dir(&name).await?, false).await?)
        };
        let tree = pool.look(move |writer| Box::pin(async move { tree(writer).await })).await?;
        // Those below first; the pool's own goes with the pool alone.
        names = tree.into_iter().rev().map(|dir| dir.name).filter(|name| name.contains('/')).collect();
    }
    let is_recursive = args.recursive;
    for name in names {
        if args.dry_run {
            let name = name.clone();
            let check =
                async move |writer: &mut Syncer| Ok(writer.check_destroy(&name, is_recursive).await.map(drop)?);
            pool.look(move |writer| Box::pin(async move { check(writer).await })).await?;
        }
        if args.verbose || args.dry_run {
            context.out(format!("{} destroy {name}\n", if args.dry_run { "would" } else { "will" }))?;
        }
        if args.dry_run {
            continue;
        }
        let live = pool.served();
        pool.step(move |writer| Box::pin(async move { destroy(writer, live, &name).await })).await?;
    }
    if !args.dry_run {
        pool.work_off(context, "freeing").await?;
        pool.finish(line(["zfs", "destroy", if args.recursive { "-r" } else { "" }, name])).await?;
    }
    Ok(Outcome::Good)
}

async fn destroy(pool: &mut Syncer, live: Option<Pool>, name: &str) -> Result<()> {
    if let Some(live) = live
        && live.is_used(pool.dsl().clone().dataset(name).await?.object)
    {
        bail!("cannot destroy '{name}': dataset is busy");
    }
    Ok(pool.destroy_dataset(name).await?)
}
