//! `zfs rollback`.

use anyhow::{Result, bail};
use cenote_admin::{Destroy, Reach, clones_of_newer, rollback};
use cenote_dsl::Dataset;
use cenote_dsl::name::is_at_or_below;
use cenote_spa::Pool;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use cenote_server::writing::{Writing, line};

/// Have a file system or volume be as it was when its last snapshot was taken. What it has had since is gone.
///
/// If Cenote has the dataset mounted or serves it, its users wait for a moment and then see the state of the snapshot. Operations on open
/// files that the snapshot does not have fail.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Destroy snapshots that are newer.
    #[arg(short = 'r')]
    destroys_newer: bool,
    /// Destroy clones of those too, with all that is below them and depends on them.
    #[arg(short = 'R')]
    destroys_clones: bool,
    /// Accepted for the sake of scripts: nothing is unmounted.
    #[arg(short = 'f')]
    force: bool,
    /// The snapshot.
    snapshot: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Some((dataset, _)) = args.snapshot.split_once('@') else {
        return Err(usage(format!("'{}' is no snapshot", args.snapshot)));
    };
    let dataset = dataset.to_owned();
    let pool = Writing::open(context, pool_of(&args.snapshot)).await?;
    let destroys_newer = args.destroys_newer || args.destroys_clones;
    let clones = match args.destroys_clones {
        true => clones_of_newer(pool.pool(), &args.snapshot).await?,
        false => Vec::new(),
    };
    context.release(&clones, "destroy").await?;
    if destroys_newer {
        let is_going = |held: &Dataset| {
            held.dir.name == dataset || clones.iter().any(|clone| is_at_or_below(&held.dir.name, clone))
        };
        context.let_go(is_going).await?;
    }
    // A snapshot that does not exist is refused before anybody has to wait.
    pool.pool().dsl()?.dataset(&args.snapshot).await?;
    let mut still = context.stand_still(&dataset).await?;
    let went = async {
        pool.pool().settle_logs().await?;
        still.note_changes(pool.pool(), &dataset, &args.snapshot).await?;
        destroy_clones(pool.pool(), &clones, &dataset).await?;
        anyhow::Ok(rollback(pool.pool(), &args.snapshot, destroys_newer).await?)
    };
    let went = went.await;
    let went_on = still.go_on().await;
    context.datasets_changed(&clones).await;
    context.datasets_changed(std::slice::from_ref(&dataset)).await;
    went?;
    went_on?;
    pool.work_off(context, "freeing").await?;
    let flag = if args.destroys_clones { Some("-R") } else { args.destroys_newer.then_some("-r") };
    let words = ["zfs", "rollback"].into_iter().chain(flag).chain([args.snapshot.as_str()]);
    pool.finish(line(words)).await?;
    Ok(Outcome::Good)
}

/// Destroys clones with all that depends on them. One may have gone with another. Nothing is destroyed where the dataset that goes back
/// would go with them: it may lie below a clone.
async fn destroy_clones(pool: &Pool, clones: &[String], dataset: &str) -> Result<()> {
    let task = |name: &str| Destroy::new(pool, name, Reach { recursive: true, clones: true });
    for name in clones {
        let goes_along = match is_at_or_below(dataset, name) {
            true => true,
            false => pool.check_task(task(name)).await?.names().iter().any(|going| going == dataset),
        };
        if goes_along {
            bail!(
                "cannot rollback '{dataset}': it is below '{name}', which would have to be destroyed; rename one of them"
            );
        }
    }
    for name in clones {
        if pool.dsl()?.find_dir(name).await?.is_some() {
            pool.sync_task(task(name)).await?;
        }
    }
    Ok(())
}
