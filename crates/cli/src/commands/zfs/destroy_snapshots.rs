//! `zfs destroy` of snapshots: names, lists and ranges of them.

use anyhow::{Result, bail};
use cenote_admin::{Destroy, DestroySnapshots, Reach, tree_names};
use cenote_dsl::{Dataset, Dsl};

use super::destroy::Args;
use crate::context::Context;
use crate::outcome::Outcome;
use crate::output::nicebytes;
use crate::writing::{Writing, line};

pub(super) async fn run(context: &Context, args: Args, pool: Writing) -> Result<Outcome> {
    let dsl = pool.pool().dsl()?;
    let (of, spec) = args.dataset.split_once('@').expect("the caller has seen an '@'");
    let datasets = match args.recursive || args.with_clones {
        true => tree_names(pool.pool(), of).await?,
        false => vec![of.to_owned()],
    };
    let mut names = Vec::new();
    let mut reclaimed_bytes = 0;
    for name in &datasets {
        let Some(head) = dsl.head(&dsl.dir(name).await?).await? else { continue };
        let snapshots = dsl.snapshots(&head).await?;
        let is_chosen = chosen(&snapshots, spec)?;
        let mut at = 0;
        for run in is_chosen.chunk_by(|before, after| before == after) {
            let some = &snapshots[at..at + run.len()];
            at += run.len();
            if let (true, Some(first), Some(last)) = (run[0], some.first(), some.last()) {
                reclaimed_bytes += dsl.would_free_bytes(first, last).await?;
                names.extend(some.iter().map(Dataset::name));
            }
        }
    }
    if names.is_empty() {
        bail!("could not find any snapshots to destroy; check snapshot names.");
    }
    if args.with_clones {
        destroy_clones(context, &args, &pool, &dsl, &names).await?;
    }
    for name in &names {
        args.say(context, name)?;
    }
    if args.verbose || args.dry_run {
        match (args.parsable, args.dry_run) {
            (true, _) => context.out(format!("reclaim\t{reclaimed_bytes}\n"))?,
            (false, true) => context.out(format!("would reclaim {}\n", nicebytes(reclaimed_bytes)))?,
            (false, false) => context.out(format!("will reclaim {}\n", nicebytes(reclaimed_bytes)))?,
        }
    }
    let task = DestroySnapshots::new(names, args.deferred);
    if args.dry_run {
        if !args.with_clones {
            pool.pool().check_task(task).await?;
        }
        return Ok(Outcome::Good);
    }
    pool.pool().sync_task(task).await?;
    context.datasets_changed(&datasets).await;
    pool.work_off(context, "freeing").await?;
    let flags = [(args.deferred, "-d"), (args.recursive, "-r"), (args.with_clones, "-R")];
    let flags = flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag));
    pool.finish(line(["zfs", "destroy"].into_iter().chain(flags).chain([args.dataset.as_str()]))).await?;
    Ok(Outcome::Good)
}

/// Clones go first, with all that depends on them.
async fn destroy_clones(context: &Context, args: &Args, pool: &Writing, dsl: &Dsl, names: &[String]) -> Result<()> {
    for name in names {
        for clone in dsl.clones(&dsl.dataset(name).await?).await? {
            // One that another clone's destruction has taken along.
            if dsl.find_dir(&clone).await?.is_none() {
                continue;
            }
            context.release(std::slice::from_ref(&clone)).await?;
            pool.pool().settle_logs().await?;
            let task = Destroy::new(pool.pool(), &clone, Reach { recursive: true, clones: true });
            let task = pool.pool().check_task(task).await?;
            for name in task.names() {
                args.say(context, name)?;
            }
            if !args.dry_run {
                pool.pool().sync_task(task).await?;
            }
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
