//! `zfs destroy` of snapshots: names, lists and ranges of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, bail};
use cenote_admin::{Destroy, DestroySnapshots, Reach, destroy_snapshots, tree_names};
use cenote_dsl::{Dataset, Dsl, DslError};

use super::destroy::Args;
use crate::context::Context;
use crate::outcome::Outcome;
use crate::output::nicebytes;
use cenote_server::writing::{Writing, line};

pub(super) async fn run(context: &Context, args: Args, pool: Writing) -> Result<Outcome> {
    let (of, spec) = args.dataset.split_once('@').expect("the caller has seen an '@'");
    let datasets = match args.recursive || args.with_clones {
        true => tree_names(pool.pool(), of).await?,
        false => vec![of.to_owned()],
    };
    let (wanted, asked, counts) = (datasets.clone(), spec.to_owned(), args.verbose);
    // Between two changes of the pool: others may destroy snapshots too.
    let look = pool
        .pool()
        .look(move |syncer| Box::pin(async move { Going::found(syncer.dsl(), &wanted, &asked, counts).await }));
    let Going { names, reclaimed_bytes } = look.await?;
    if names.is_empty() {
        bail!("could not find any snapshots to destroy; check snapshot names.");
    }
    if args.with_clones {
        destroy_clones(context, &args, &pool, &names).await?;
    }
    for name in &names {
        args.say(context, name)?;
    }
    if args.verbose {
        match (args.parsable, args.dry_run) {
            (true, _) => context.out(format!("reclaim\t{reclaimed_bytes}\n"))?,
            (false, true) => context.out(format!("would reclaim {}\n", nicebytes(reclaimed_bytes)))?,
            (false, false) => context.out(format!("will reclaim {}\n", nicebytes(reclaimed_bytes)))?,
        }
    }
    let names = match args.with_clones && !args.dry_run {
        true => still_there(&pool, names).await?,
        false => names,
    };
    context.let_go(|held| names.contains(&held.name())).await?;
    if args.dry_run {
        if !args.with_clones {
            pool.pool().check_task(DestroySnapshots::new(&names, args.deferred)).await?;
        }
        return Ok(Outcome::Good);
    }
    destroy_all(context, &pool, &names, args.deferred).await?;
    context.datasets_changed(&datasets).await;
    pool.work_off(context, "freeing").await?;
    let flags = [(args.deferred, "-d"), (args.recursive, "-r"), (args.with_clones, "-R")];
    let flags = flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag));
    pool.finish(line(["zfs", "destroy"].into_iter().chain(flags).chain([args.dataset.as_str()]))).await?;
    Ok(Outcome::Good)
}

/// Where some are destroyed and others are not, the error says so.
async fn destroy_all(context: &Context, pool: &Writing, names: &[String], is_deferred: bool) -> Result<()> {
    let done = AtomicUsize::new(0);
    let progress = context.items("destroying", names.len() as u64);
    let told = |count: usize| {
        done.fetch_add(count, Ordering::Relaxed);
        progress.advance(count as u64);
    };
    let destroyed = destroy_snapshots(pool.pool(), names, is_deferred, &told).await;
    drop(progress);
    match done.into_inner() {
        0 => Ok(destroyed?),
        done => destroyed.with_context(|| format!("{done} of {} snapshots are destroyed", names.len())),
    }
}

/// The snapshots that a command means.
struct Going {
    names: Vec<String>,
    /// The bytes that they alone have, where that was asked for.
    reclaimed_bytes: u64,
}

impl Going {
    async fn found(dsl: &Dsl, datasets: &[String], spec: &str, counts: bool) -> Result<Self> {
        let mut going = Self { names: Vec::new(), reclaimed_bytes: 0 };
        for name in datasets {
            let dir = match dsl.dir(name).await {
                // Destroyed since the tree was looked at.
                Err(DslError::NoSuchDataset(_)) if datasets.len() > 1 => continue,
                dir => dir?,
            };
            let Some(head) = dsl.head(&dir).await? else { continue };
            let snapshots = dsl.snapshots(&head).await?;
            let is_chosen = chosen(&snapshots, spec)?;
            let mut at = 0;
            for run in is_chosen.chunk_by(|before, after| before == after) {
                let some = &snapshots[at..at + run.len()];
                at += run.len();
                let (true, Some(first), Some(last)) = (run[0], some.first(), some.last()) else { continue };
                if counts {
                    going.reclaimed_bytes += dsl.would_free_bytes(first, last).await?;
                }
                going.names.extend(some.iter().map(Dataset::name));
            }
        }
        Ok(going)
    }
}

/// Those snapshots that are there: one that was to be destroyed with the last of its clones has gone with that.
async fn still_there(pool: &Writing, names: Vec<String>) -> Result<Vec<String>> {
    let look = pool.pool().look(move |syncer| {
        Box::pin(async move {
            let mut left = Vec::new();
            for name in names {
                match syncer.dsl().dataset(&name).await {
                    Err(DslError::NoSuchDataset(_)) => {}
                    found => {
                        found?;
                        left.push(name);
                    }
                }
            }
            Ok::<_, anyhow::Error>(left)
        })
    });
    look.await
}

/// Clones go first, with all that depends on them.
async fn destroy_clones(context: &Context, args: &Args, pool: &Writing, names: &[String]) -> Result<()> {
    let wanted = names.to_vec();
    let look = pool.pool().look(move |syncer| {
        Box::pin(async move {
            let (dsl, mut clones) = (syncer.dsl(), Vec::new());
            for name in &wanted {
                clones.extend(dsl.clones(&dsl.dataset(name).await?).await?);
            }
            Ok::<_, anyhow::Error>(clones)
        })
    });
    for clone in look.await? {
        // One that another clone's destruction has taken along.
        if pool.pool().dsl()?.find_dir(&clone).await?.is_none() {
            continue;
        }
        context.release(std::slice::from_ref(&clone), "destroy").await?;
        context.let_go(|_| true).await?;
        pool.pool().settle_logs().await?;
        let task = Destroy::new(pool.pool(), &clone, Reach { recursive: true, clones: true });
        let task = pool.pool().check_task(task).await?;
        for name in task.names().iter().filter(|name| !name.contains("/%")) {
            args.say(context, name)?;
        }
        if !args.dry_run {
            pool.pool().sync_task(task).await?;
        }
    }
    Ok(())
}

/// Of a dataset's snapshots in the order of their creation, true for those that a list of names and ranges means.
fn chosen(snapshots: &[Dataset], spec: &str) -> Result<Vec<bool>> {
    let place = |name: &str| snapshots.iter().position(|snapshot| snapshot.snapshot.as_deref() == Some(name));
    let mut is_chosen = vec![false; snapshots.len()];
    for part in spec.split(',') {
        let Some((first, last)) = part.split_once('%') else {
            place(part).into_iter().for_each(|at| is_chosen[at] = true);
            continue;
        };
        if last.contains('%') {
            bail!("cannot destroy '{spec}': a range has one '%'");
        }
        let (from, to) = (place(first), place(last));
        let (from, to) = match (first.is_empty(), from, last.is_empty(), to) {
            (true, _, true, _) => (0, snapshots.len()),
            (true, _, false, Some(to)) => (0, to + 1),
            (false, Some(from), true, _) => (from, snapshots.len()),
            (false, Some(from), false, Some(to)) => (from, to + 1),
            // A dataset below need not have both.
            _ => continue,
        };
        is_chosen.iter_mut().take(to).skip(from).for_each(|is_chosen| *is_chosen = true);
    }
    Ok(is_chosen)
}
