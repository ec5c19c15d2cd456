//! The datasets of a pool that are mounted for writing, by the process that has the pool.
//!
//! # Theory
//!
//! **Need.** Only one process has a pool, but any number of commands mount its datasets: the one that began the process, and later ones whose
//! requests the process carries out. Each mount can end alone (`umount`); all end with the process. If the process serves nothing else, it ends
//! with the last of them.
//!
//! **In memory.** The mounts in the order of mounting, each with its tree and its requested options; the number of mounts in preparation; and a
//! flag that mounting is over. A task for each mount waits for its end and removes it from the list.
//!
//! **Life.** [`LiveMounts::mount`] counts itself before it opens anything, so a process does not end during the preparation of a mount.
//! [`LiveMounts::last_ended`] ends mounting as soon as nothing is mounted or in preparation. [`LiveMounts::close`] ends it in any case, waits
//! for mounts in preparation, and closes the rest.
//!
//! **Invariants.** 1. The pool may change a listed mount. A mount that has ended is not listed, since a later mount at its place may be someone
//! else's. 2. After [`LiveMounts::close`] no request of a client reaches the pool. 3. A dataset is in one mount: the pool refuses to open it
//! twice (`cenote_spa::Pool::is_used`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_format::ids::ObjectId;
use cenote_fuse::{MountHandle, MountOptions, Report, SuspendedFs, Tree, TreeOptions, Unmount, mount_tree, remount};
use cenote_host::{Mounts, Renamed};
use cenote_spa::Pool;
use cenote_spa::tunables::MountTunables;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Notify, boxed};
use cenote_zpl::Forbidden;

use crate::error::{Result, ServerError};

/// Properties that move datasets into or out of a mount.
const OF_PLACE: [&str; 2] = ["canmount", "mountpoint"];
/// Properties of which a mount uses the value at the time of mounting.
const OBEYED_WHEN_MOUNTED: [&str; 1] = ["acltype"];

/// The longest wait, before another mount begins, for the end of one that has left the table of mounts.
const ENDED_TIME_MAX: Duration = Duration::from_secs(2);

/// The number of the next mount of this process, for all pools.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A dataset that is mounted for writing.
#[derive(Clone)]
pub(crate) struct LiveMount {
    /// Its number among the mounts of this process: later ones have higher ones.
    pub id: u64,
    /// Its name in the mount table.
    pub dataset: String,
    /// The mount.
    pub mount: Arc<MountHandle>,
    tree: Tree,
    /// The requested options.
    options: MountOptions,
    forbidden: Forbidden,
}

impl LiveMount {
    /// Its mount point.
    pub(crate) fn at(&self) -> &Path {
        self.mount.mountpoint()
    }
}

#[derive(Default)]
struct State {
    mounts: Vec<LiveMount>,
    /// The number of mounts in preparation.
    coming: usize,
    /// Mounting is over.
    is_closed: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.mounts.is_empty() && self.coming == 0
    }
}

/// The datasets of a pool that are mounted for writing.
pub struct LiveMounts {
    report: Report,
    tunables: MountTunables,
    state: Mutex<State>,
    /// A mount was made, failed, or ended.
    changed: Notify,
}

/// A mount in preparation.
struct Coming<'a>(&'a LiveMounts);

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.state.lock().coming -= 1;
        self.0.changed.all();
    }
}

impl LiveMounts {
    /// Without mounts yet. `report` gets the causes of errors that users of the mounts see as an errno.
    pub fn new(report: Report, tunables: MountTunables) -> Arc<Self> {
        Arc::new(Self { report, tunables, state: Mutex::default(), changed: Notify::new() })
    }

    /// Mounts a dataset of the pool, including those nested in it.
    ///
    /// # Errors
    /// It cannot be mounted there, is already mounted, or the process is about to end.
    #[boxed]
    pub async fn mount(
        self: &Arc<Self>,
        pool: &Pool,
        dataset: &str,
        at: &Path,
        options: &MountOptions,
    ) -> Result<PathBuf> {
        let _coming = {
            let mut state = self.state.lock();
            if state.is_closed {
                return Err(ServerError::Closing(pool.name().to_owned()));
            }
            state.coming += 1;
            Coming(self)
        };
        // A mount that has just left the table of mounts may still be finishing its last requests.
        let _ = pool.handle().timeout(ENDED_TIME_MAX, self.ended_closed()).await;
        let admin_snapshots = self.tunables.zfs_admin_snapshot;
        let tree_options = TreeOptions { admin_snapshots, ..options.tree(self.report.clone()) };
        let tree = Tree::open_live(pool, dataset, tree_options).await?;
        let mount = Arc::new(mount_tree(pool.handle(), tree.clone(), at, options).await?);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (dataset, at, forbidden) = (tree.dataset(), mount.mountpoint().to_owned(), tree.forbidden());
        let listed = LiveMount { id, dataset, mount: mount.clone(), tree, options: options.clone(), forbidden };
        self.state.lock().mounts.push(listed);
        let this = self.clone();
        pool.handle().detach(Class::Issue, async move {
            if let Err(error) = mount.ended().await {
                (this.report)(&error.to_string());
            }
            // Once it is not listed, its dataset may be mounted again.
            drop(mount);
            this.forget(id);
        });
        Ok(at)
    }

    fn forget(&self, id: u64) {
        self.state.lock().mounts.retain(|mount| mount.id != id);
        self.changed.all();
    }

    /// The mounts, in the order of mounting.
    pub(crate) fn all(&self) -> Vec<LiveMount> {
        self.state.lock().mounts.clone()
    }

    /// Datasets and their mount points, in the order of mounting.
    pub(crate) fn places(&self) -> Vec<(String, PathBuf)> {
        self.state.lock().mounts.iter().map(|mount| (mount.dataset.clone(), mount.at().to_owned())).collect()
    }

    /// As [`Self::places`], with the present names of the datasets: the system's table keeps the name that a dataset had when it was mounted.
    pub fn names(&self) -> Vec<Renamed> {
        let of = |mount: &LiveMount| Renamed {
            before: mount.dataset.clone(),
            now: mount.tree.dataset(),
            at: mount.at().to_owned(),
        };
        self.state.lock().mounts.iter().map(of).collect()
    }

    /// True if mounts are in preparation.
    pub(crate) fn has_coming(&self) -> bool {
        self.state.lock().coming > 0
    }

    /// The datasets that are shown nested in others, and their paths.
    pub fn nested(&self) -> Vec<(String, PathBuf)> {
        let of = |mount: &LiveMount| {
            let at = mount.at().to_owned();
            mount.tree.nested_datasets().into_iter().map(move |(dataset, path)| (dataset, at.join(path)))
        };
        self.all().iter().flat_map(of).collect()
    }

    /// Waits until `look` finds something in the state.
    async fn until<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            // Changes from here on are noticed.
            let changed = self.changed.wait();
            if let Some(found) = look(&mut self.state.lock()) {
                return found;
            }
            changed.await;
        }
    }

    /// Waits until all listed mounts are in the system's table. A mount in another mount namespace never returns there.
    async fn ended_closed(&self) {
        self.until(|state| {
            let table = Mounts::read();
            let is_there = |mount: &LiveMount| table.has(&mount.dataset, mount.at());
            state.mounts.iter().all(is_there).then_some(())
        })
        .await;
    }

    /// Waits until something is mounted.
    #[boxed]
    pub(crate) async fn some_mounted(&self) {
        self.until(|state| (!state.mounts.is_empty()).then_some(())).await;
    }

    /// Waits until nothing is mounted.
    #[boxed]
    pub(crate) async fn none_mounted(&self) {
        self.until(|state| state.is_idle().then_some(())).await;
    }

    /// Waits until nothing is mounted, and at once ends mounting.
    #[boxed]
    pub(crate) async fn last_ended(&self) {
        self.until(|state| {
            state.is_closed |= state.is_idle();
            state.is_closed.then_some(())
        })
        .await;
    }

    /// Ends mounting and all remaining mounts: their pending requests are finished, later ones are not answered.
    #[boxed]
    pub(crate) async fn close(&self) {
        let left = self.until(|state| {
            state.is_closed = true;
            (state.coming == 0).then(|| state.mounts.clone())
        });
        for mount in left.await.into_iter().rev() {
            self.detach(&mount).await;
        }
    }

    /// Ends a mount, even if it is in use.
    async fn detach(&self, mount: &LiveMount) {
        // A mount that cannot be unmounted from here is still no longer served.
        if let Err(error) = mount.mount.unmount(Unmount::Detach).await {
            (self.report)(&error.to_string());
        }
        mount.mount.close().await;
        self.forget(mount.id);
    }

    /// Ends the mount at a path, even if it is in use. False if there is none.
    #[boxed]
    pub async fn detach_at(&self, at: &Path) -> bool {
        let Some(mount) = self.all().into_iter().rev().find(|mount| mount.at() == at) else { return false };
        self.detach(&mount).await;
        true
    }

    /// Removes datasets and those below them from the mounts that show them nested. Returns a dataset that is in use there or is itself mounted,
    /// if any. [`Self::refresh`] shows datasets again that still exist.
    #[boxed]
    pub(crate) async fn release(&self, datasets: &[String]) -> Result<Option<String>> {
        for mount in self.all() {
            if let Some(busy) = mount.tree.release_datasets(datasets).await? {
                return Ok(Some(busy));
            }
        }
        Ok(None)
    }

    /// Suspends the file system of a dataset in all mounts that show it, until the returned values are dropped.
    #[boxed]
    pub(crate) async fn suspend(&self, dataset: &str) -> Vec<SuspendedFs> {
        let mut suspended = Vec::new();
        for mount in self.all() {
            suspended.extend(mount.tree.suspend(dataset).await);
        }
        suspended
    }

    /// Makes the mounts report the space of files anew: all changes made so far are on disk.
    #[boxed]
    pub async fn synced(&self) {
        for mount in self.all() {
            mount.tree.synced().await;
        }
    }

    /// Makes mounts release snapshots that no one uses. The kernel may take a moment to forget them.
    #[boxed]
    pub(crate) async fn let_go(&self, snapshots: &BTreeSet<ObjectId>) {
        for mount in self.all() {
            mount.tree.let_go(snapshots).await;
        }
    }

    /// Makes mounts show the present state of datasets that were just created, destroyed, renamed or set, and obey their properties, of which
    /// `changed` were just set. Returns a sentence for each property that takes effect only later.
    #[boxed]
    pub(crate) async fn refresh(&self, datasets: &[String], changed: &[String]) -> Vec<String> {
        let mut later = Vec::new();
        for mount in self.all() {
            let at = mount.at().display();
            let shown =
                || mount.tree.nested_datasets().into_iter().map(|(dataset, _)| dataset).collect::<BTreeSet<_>>();
            let moves = changed.iter().any(|name| OF_PLACE.contains(&name.as_str()));
            let before = if moves { shown() } else { BTreeSet::new() };
            if let Err(error) = mount.tree.refresh(datasets).await {
                later.push(format!("'{}' is mounted at {at}, where all is as before: {error}", mount.dataset));
                continue;
            }
            let now = if moves { shown() } else { BTreeSet::new() };
            for gone in before.difference(&now) {
                later.push(format!(
                    "'{gone}' is not shown in the mount at {at} any more, by what was set: 'cenote mount --rw {gone} FOLDER' mounts it by \
                     itself"
                ));
            }
            let forbidden = mount.tree.forbidden();
            let dataset = &mount.dataset;
            for property in changed.iter().filter(|name| OBEYED_WHEN_MOUNTED.contains(&name.as_str())) {
                later
                    .push(format!("'{dataset}' is mounted at {at}: '{property}' takes effect there at the next mount"));
            }
            // The mount may just have ended, and another may be in its place.
            if forbidden == mount.forbidden || !Mounts::read().has(dataset, mount.at()) {
                continue;
            }
            match remount(mount.at(), &mount.options.without(forbidden), forbidden.write) {
                Ok(()) => {
                    let mut state = self.state.lock();
                    let same = state.mounts.iter_mut().find(|other| other.id == mount.id);
                    same.into_iter().for_each(|same| same.forbidden = forbidden);
                }
                Err(error) => later.push(format!(
                    "'{dataset}' is mounted at {at}: what was set takes effect there at the next mount: the kernel refuses it now \
                     ({error})"
                )),
            }
        }
        later
    }
}
