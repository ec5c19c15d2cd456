//! `zfs destroy`.

use anyhow::{Result, bail};
use cenote_admin::{Destroy, Reach, destroy_bookmarks, tree_names};
use cenote_dsl::name::is_at_or_below;
use cenote_dsl::{Dataset, DslError};
use cenote_format::dsl::DatasetFlags;
use serde::{Deserialize, Serialize};

use super::destroy_snapshots;
use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use cenote_server::writing::{Writing, line};

/// Destroy a file system or volume, snapshots, or a bookmark. What they hold alone is gone.
///
/// Snapshots are named as DATASET@NAME, several with commas, a range as FIRST%LAST; a range may be open at either end.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Of snapshots: those with holds or clones go with the last of them.
    #[arg(short = 'd')]
    pub(super) deferred: bool,
    /// Accepted for the sake of scripts: nothing is mounted.
    #[arg(short = 'f')]
    force: bool,
    /// Only say what would be destroyed.
    #[arg(short = 'n')]
    pub(super) dry_run: bool,
    /// Say it for scripts.
    #[arg(short = 'p')]
    pub(super) parsable: bool,
    /// Also snapshots and datasets below; of snapshots, those of the same name below.
    #[arg(short = 'r')]
    pub(super) recursive: bool,
    /// Also clones of the snapshots.
    #[arg(short = 'R')]
    pub(super) with_clones: bool,
    /// Say what is destroyed.
    #[arg(short = 'v')]
    pub(super) verbose: bool,
    /// The dataset, the snapshots, or the bookmark.
    pub(super) dataset: String,
}

impl Args {
    const fn is_recursive(&self) -> bool {
        self.recursive || self.with_clones
    }

    /// Says what goes, as far as that is asked for.
    pub(super) fn say(&self, context: &Context, name: &str) -> Result<()> {
        if !self.verbose {
            return Ok(());
        }
        match (self.parsable, self.dry_run) {
            (true, _) => context.out(format!("destroy\t{name}\n")),
            (false, true) => context.out(format!("would destroy {name}\n")),
            (false, false) => context.out(format!("will destroy {name}\n")),
        }
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let pool = Writing::open(context, pool_of(&args.dataset)).await?;
    if let Some((of, bookmark)) = args.dataset.split_once('#').filter(|(of, _)| !of.contains('@'))
        && pool.pool().dsl()?.find_dir(&args.dataset).await?.is_none()
    {
        return destroy_bookmark(&args, of, bookmark, pool).await;
    }
    if args.dataset.contains('@') && pool.pool().dsl()?.find_dir(&args.dataset).await?.is_none() {
        return destroy_snapshots::run(context, args, pool).await;
    }
    if args.deferred {
        return Err(usage("'-d' is for snapshots"));
    }
    let name = &args.dataset;
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
        let reach = [(args.recursive, "-r"), (args.with_clones, "-R")];
        let flags = reach.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag));
        pool.finish(line(["zfs", "destroy"].into_iter().chain(flags).chain([name.as_str()]))).await?;
    }
    Ok(Outcome::Good)
}

async fn destroy_bookmark(args: &Args, of: &str, bookmark: &str, pool: Writing) -> Result<Outcome> {
    let flags = [(args.dry_run, "dryrun"), (args.deferred, "defer destroy"), (args.is_recursive(), "recursive")];
    if let Some((_, flag)) = flags.iter().find(|(is_set, _)| *is_set) {
        bail!("{flag} is not supported with bookmark");
    }
    let dsl = pool.pool().dsl()?;
    let found = match dsl.dataset(of).await {
        Ok(head) => dsl.bookmark(&head, bookmark).await?,
        Err(DslError::NoSuchDataset(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let Some(found) = found else { bail!("bookmark '{}' does not exist.", args.dataset) };
    destroy_bookmarks(pool.pool(), vec![found.name]).await?;
    pool.finish(line(["zfs", "destroy", &args.dataset])).await?;
    Ok(Outcome::Good)
}

async fn destroy(context: &Context, args: &Args, pool: &Writing) -> Result<()> {
    // As OpenZFS unmounts them: a mount that shows them nested in another has them in use.
    context.release(&outermost(args, pool).await?, "destroy").await?;
    let is_going = |held: &Dataset| {
        let goes_with_clone = held.phys.flags.contains(DatasetFlags::DEFER_DESTROY);
        goes_with_clone || args.with_clones || is_at_or_below(&held.dir.name, &args.dataset)
    };
    context.let_go(is_going).await?;
    pool.pool().settle_logs().await?;
    let reach = Reach { recursive: args.recursive, clones: args.with_clones };
    let mut task = Destroy::new(pool.pool(), &args.dataset, reach);
    if args.verbose || args.dry_run {
        task = pool.pool().check_task(task).await?;
        // Datasets that an interrupted receive has left are not named.
        for name in task.names().iter().filter(|name| !name.contains("/%")) {
            args.say(context, name)?;
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
    let below = tree_names(pool.pool(), name).await?;
    let is_child = |below: &&String| args.recursive && below.matches('/').count() == 1;
    Ok(below.iter().filter(is_child).cloned().collect())
}
