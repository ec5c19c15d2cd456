//! `zfs destroy` of snapshots: names, lists and ranges of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, bail};
use cenote_admin::{
    Destroy, DestroySnapshots, NamedSnapshots, Reach, clones_of, destroy_snapshots, still_there, tree_names,
};

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
    let NamedSnapshots { names, reclaimed_bytes } =
        NamedSnapshots::found(pool.pool(), datasets.clone(), spec.to_owned(), args.verbose).await?;
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
        true => still_there(pool.pool(), names).await?,
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

/// Destroys them. The error says so if some are destroyed and others are not.
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

/// Clones go first, with all that depends on them.
async fn destroy_clones(context: &Context, args: &Args, pool: &Writing, names: &[String]) -> Result<()> {
    for clone in clones_of(pool.pool(), names.to_vec()).await? {
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
