//! `zfs destroy`.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::Outcome;
use crate::writing::{finish, line, open_for_writing};

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
    let mut pool = open_for_writing(context, pool_of(name)).await?;
    let view = pool.view().await?;
    let mut names = vec![name.clone()];
    if args.recursive {
        // Those below first.
        names = view.tree(view.dir(name).await?, false).await?.into_iter().rev().map(|dir| dir.name).collect();
    }
    for (index, name) in names.iter().enumerate() {
        if args.verbose || args.dry_run {
            context.out(format!("{} destroy {name}\n", if args.dry_run { "would" } else { "will" }))?;
        }
        if args.dry_run {
            continue;
        }
        if index > 0 {
            pool.sync().await?;
        }
        pool.destroy_dataset(name).await?;
    }
    if !args.dry_run {
        finish(pool, &line(["zfs", "destroy", if args.recursive { "-r" } else { "" }, name])).await?;
    }
    Ok(Outcome::Good)
}
