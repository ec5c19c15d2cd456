//! `zfs destroy`: datasets, snapshots (by names, lists and ranges), and bookmarks.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use cenote_admin::{
    Destroy, DestroySnapshots, NamedSnapshots, Reach, check_goes_alone, clones_of, destroy_bookmarks,
    destroy_snapshots, still_there, tree_names,
};
use cenote_dsl::name::is_at_or_below;
use cenote_dsl::{Dataset, DslError};
use cenote_format::dsl::DatasetFlags;
use cenote_props::WrongUse;
use cenote_taskq::boxed;

use crate::error::{Context as _, Result, refused};
use crate::writing::{Writing, line};
use crate::{Session, shown};

/// The datasets, snapshots or bookmark to be destroyed.
#[derive(Clone, Debug, Default)]
pub struct DestroyRequest {
    /// A dataset, snapshots as `DATASET@NAMES`, or a bookmark.
    pub name: String,
    /// Snapshots with holds or clones are destroyed with the last of these.
    pub is_deferred: bool,
    /// Nothing is destroyed.
    pub is_dry: bool,
    /// Also snapshots and datasets below; for snapshots, those with the same name below.
    pub recursive: bool,
    /// Also clones of the snapshots.
    pub with_clones: bool,
    /// The caller is told the names of everything destroyed.
    pub tells_names: bool,
}

/// The caller of a destroy.
pub trait DestroyCaller: Sync {
    /// Reports something destroyed.
    ///
    /// # Errors
    /// It cannot be reported: nothing more is destroyed.
    fn goes(&self, name: &str) -> io::Result<()>;

    /// Reports the bytes that this frees.
    ///
    /// # Errors
    /// As [`Self::goes`].
    fn frees(&self, bytes: u64) -> io::Result<()>;

    /// Reports the number of snapshots about to be destroyed. The returned function gets the number destroyed since.
    fn begins(&self, count: u64) -> Box<dyn Fn(u64) + Send + Sync>;
}

impl DestroyRequest {
    /// The command for the history.
    fn line(&self) -> String {
        let flags = [(self.is_deferred, "-d"), (self.recursive, "-r"), (self.with_clones, "-R")];
        let flags = flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag));
        line(["zfs", "destroy"].into_iter().chain(flags).chain([self.name.as_str()]))
    }
}

/// Destroys everything that the request names. Mounts of this process release it first, and afterwards show the rest.
///
/// # Errors
/// It does not exist, is in use, or something depends on it; or as [`cenote_admin::destroy`]. The error says so if only some snapshots were
/// destroyed.
#[boxed]
pub async fn destroy(
    session: &Session,
    pool: Writing,
    request: &DestroyRequest,
    caller: &dyn DestroyCaller,
) -> Result<()> {
    let name = &request.name;
    if let Some((of, bookmark)) = name.split_once('#').filter(|(of, _)| !of.contains('@'))
        && pool.pool().dsl()?.find_dir(name).await?.is_none()
    {
        return destroy_bookmark(request, of, bookmark, pool).await;
    }
    if let Some((of, spec)) = name.split_once('@')
        && pool.pool().dsl()?.find_dir(name).await?.is_none()
    {
        return snapshots(session, request, caller, of, spec, pool).await;
    }
    if request.is_deferred {
        return Err(WrongUse::new("'-d' is for snapshots").into());
    }
    if !request.is_dry {
        shown::check_unshown(session, std::slice::from_ref(name), "destroy").await?;
    }
    if let (Some(live), Some(volumes)) = (pool.served(), session.served_volumes()) {
        // Writes of disconnected clients must be on disk before their dataset is destroyed.
        volumes.lock().await.close_unused();
        live.sync().await?;
    }
    let destroyed = dataset(session, request, caller, &pool).await;
    // Datasets that still exist are shown again.
    session.datasets_changed(std::slice::from_ref(name)).await;
    destroyed?;
    if !request.is_dry {
        pool.work_off(session, "freeing").await?;
        pool.finish(request.line()).await?;
    }
    Ok(())
}

async fn destroy_bookmark(request: &DestroyRequest, of: &str, bookmark: &str, pool: Writing) -> Result<()> {
    let is_recursive = request.recursive || request.with_clones;
    let flags = [(request.is_dry, "dryrun"), (request.is_deferred, "defer destroy"), (is_recursive, "recursive")];
    if let Some((_, flag)) = flags.iter().find(|(is_set, _)| *is_set) {
        return Err(refused(format!("{flag} is not supported with bookmark")));
    }
    let dsl = pool.pool().dsl()?;
    let found = match dsl.dataset(of).await {
        Ok(head) => dsl.bookmark(&head, bookmark).await?,
        Err(DslError::NoSuchDataset(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let Some(found) = found else { return Err(refused(format!("bookmark '{}' does not exist.", request.name))) };
    destroy_bookmarks(pool.pool(), vec![found.name]).await?;
    pool.finish(request.line()).await
}

/// Destroys a dataset, with as much below it as the request says.
async fn dataset(
    session: &Session,
    request: &DestroyRequest,
    caller: &dyn DestroyCaller,
    pool: &Writing,
) -> Result<()> {
    if !request.recursive && !request.with_clones {
        check_goes_alone(pool.pool(), &request.name).await?;
    }
    // OpenZFS unmounts them too: a mount that shows them nested uses them.
    session.release(&outermost(request, pool).await?, "destroy").await?;
    let is_going = |held: &Dataset| {
        let goes_with_clone = held.phys.flags.contains(DatasetFlags::DEFER_DESTROY);
        goes_with_clone || request.with_clones || is_at_or_below(&held.dir.name, &request.name)
    };
    session.let_go(is_going).await?;
    pool.pool().wait_logs_freed().await?;
    let reach = Reach { recursive: request.recursive, clones: request.with_clones };
    let mut task = Destroy::new(pool.pool(), &request.name, reach);
    if request.tells_names || request.is_dry {
        task = pool.pool().check_task(task).await?;
        tell(request, caller, task.names())?;
    }
    if !request.is_dry {
        pool.pool().sync_task(task).await?;
    }
    Ok(())
}

/// Reports names, if requested, without those of datasets that an interrupted receive has left.
fn tell(request: &DestroyRequest, caller: &dyn DestroyCaller, names: &[String]) -> io::Result<()> {
    let is_told = |name: &&String| request.tells_names && !name.contains("/%");
    names.iter().filter(is_told).try_for_each(|name| caller.goes(name))
}

/// The outermost datasets to be destroyed. The pool's own root dataset is destroyed only with the pool.
async fn outermost(request: &DestroyRequest, pool: &Writing) -> Result<Vec<String>> {
    let name = &request.name;
    if pool.served().is_none() {
        return Ok(Vec::new());
    }
    if name.contains('/') {
        return Ok(vec![name.clone()]);
    }
    let below = tree_names(pool.pool(), name).await?;
    let is_child = |below: &&String| request.recursive && below.matches('/').count() == 1;
    Ok(below.iter().filter(is_child).cloned().collect())
}

/// Destroys snapshots of a dataset that match `spec`.
async fn snapshots(
    session: &Session,
    request: &DestroyRequest,
    caller: &dyn DestroyCaller,
    of: &str,
    spec: &str,
    pool: Writing,
) -> Result<()> {
    let datasets = match request.recursive || request.with_clones {
        true => tree_names(pool.pool(), of).await?,
        false => vec![of.to_owned()],
    };
    let NamedSnapshots { names, reclaimed_bytes } =
        NamedSnapshots::found(pool.pool(), datasets.clone(), spec.to_owned(), request.tells_names).await?;
    if names.is_empty() {
        return Err(refused("could not find any snapshots to destroy; check snapshot names."));
    }
    if request.with_clones {
        destroy_clones(session, request, caller, &pool, &names).await?;
    }
    if request.tells_names {
        names.iter().try_for_each(|name| caller.goes(name))?;
        caller.frees(reclaimed_bytes)?;
    }
    let names = match request.with_clones && !request.is_dry {
        true => still_there(pool.pool(), names).await?,
        false => names,
    };
    if !request.is_dry {
        shown::check_unshown(session, &names, "destroy").await?;
    }
    session.let_go(|held| names.contains(&held.name())).await?;
    if request.is_dry {
        if !request.with_clones {
            pool.pool().check_task(DestroySnapshots::new(&names, request.is_deferred)).await?;
        }
        return Ok(());
    }
    destroy_all(caller, &pool, &names, request.is_deferred).await?;
    session.datasets_changed(&datasets).await;
    pool.work_off(session, "freeing").await?;
    pool.finish(request.line()).await
}

async fn destroy_all(caller: &dyn DestroyCaller, pool: &Writing, names: &[String], is_deferred: bool) -> Result<()> {
    let done = AtomicUsize::new(0);
    let advance = caller.begins(names.len() as u64);
    let told = |count: usize| {
        done.fetch_add(count, Ordering::Relaxed);
        advance(count as u64);
    };
    let destroyed = destroy_snapshots(pool.pool(), names, is_deferred, &told).await;
    drop(advance);
    match done.into_inner() {
        0 => Ok(destroyed?),
        done => destroyed.with_context(|| format!("{done} of {} snapshots are destroyed", names.len())),
    }
}

/// Destroys clones, with everything that depends on them.
async fn destroy_clones(
    session: &Session,
    request: &DestroyRequest,
    caller: &dyn DestroyCaller,
    pool: &Writing,
    names: &[String],
) -> Result<()> {
    for clone in clones_of(pool.pool(), names.to_vec()).await? {
        // It was destroyed together with another clone.
        if pool.pool().dsl()?.find_dir(&clone).await?.is_none() {
            continue;
        }
        session.release(std::slice::from_ref(&clone), "destroy").await?;
        session.let_go(|_| true).await?;
        pool.pool().wait_logs_freed().await?;
        let task = Destroy::new(pool.pool(), &clone, Reach { recursive: true, clones: true });
        let task = pool.pool().check_task(task).await?;
        tell(request, caller, task.names())?;
        if !request.is_dry {
            pool.pool().sync_task(task).await?;
        }
    }
    Ok(())
}
