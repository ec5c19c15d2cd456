//! The datasets of a pool that are mounted to be changed, by the process that has the pool.
//!
//! # Theory
//!
//! **Need.** A pool has one process, and its datasets are mounted by any number of commands: the one that began the process, and later
//! ones whose requests the process carries out. Each mount ends by itself (`umount`), all of them with the process, and the process
//! with the last of them where it serves nothing else.
//!
//! **In memory.** The mounts in the order of mounting, each with its tree and the options that were asked for; how many are being
//! mounted; and whether mounting is over. A task for each mount waits for its end and takes it off the list.
//!
//! **Life.** [`LiveMounts::mount`] counts itself before it opens anything, so a process does not end under a mount that is on its way.
//! [`LiveMounts::last_ended`] ends mounting in the moment in which nothing is mounted nor being mounted. [`LiveMounts::close`] does
//! so in any case, waits for those on their way, and closes what is left.
//!
//! **Invariants.** 1. A mount that is listed is the pool's to change; when it has ended it is not listed, for a later mount at its place
//! is somebody else's. 2. After [`LiveMounts::close`] no request of a client reaches the pool. 3. A dataset is in one mount: the
//! pool refuses to open it twice (`cenote_spa::Pool::is_used`).

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

/// Properties that move datasets in a mount, and out of it.
const OF_PLACE: [&str; 2] = ["canmount", "mountpoint"];
/// Properties that a mount obeys as they were when it was mounted.
const OBEYED_WHEN_MOUNTED: [&str; 1] = ["acltype"];

/// The longest wait, before another mount begins, for the end of one that has left the table of mounts.
const ENDED_TIME_MAX: Duration = Duration::from_secs(2);

/// The number of the next mount of this process, of whichever pool.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A dataset that is mounted to be changed.
#[derive(Clone)]
pub struct LiveMount {
    /// Its number among the mounts of this process: later ones have higher ones.
    pub id: u64,
    /// As the mount table has it.
    pub dataset: String,
    /// The mount.
    pub mount: Arc<MountHandle>,
    tree: Tree,
    /// As they were asked for.
    options: MountOptions,
    forbidden: Forbidden,
}

impl LiveMount {
    /// Its mount point.
    pub fn at(&self) -> &Path {
        self.mount.mountpoint()
    }
}

#[derive(Default)]
struct State {
    mounts: Vec<LiveMount>,
    /// Datasets that are being mounted.
    coming: usize,
    /// Nothing is mounted any more.
    is_closed: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.mounts.is_empty() && self.coming == 0
    }
}

/// The datasets of a pool that are mounted to be changed.
pub struct LiveMounts {
    report: Report,
    tunables: MountTunables,
    state: Mutex<State>,
    /// One is mounted, or was not, or has ended.
    changed: Notify,
}

/// A mount on its way.
struct Coming<'a>(&'a LiveMounts);

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.state.lock().coming -= 1;
        self.0.changed.all();
    }
}

impl LiveMounts {
    /// None yet. `report` is told the causes of errors that users of the mounts see as an errno.
    pub fn new(report: Report, tunables: MountTunables) -> Arc<Self> {
        Arc::new(Self { report, tunables, state: Mutex::default(), changed: Notify::new() })
    }

    /// Mounts a dataset of the pool, with those nested in it.
    ///
    /// # Errors
    /// It cannot be mounted there, is mounted already, or the process is about to end.
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
        // Of a mount that has just left the table of mounts the last requests are being finished.
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
            // Its dataset may be mounted again when it is not listed.
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
    pub fn all(&self) -> Vec<LiveMount> {
        self.state.lock().mounts.clone()
    }

    /// Datasets and where they are mounted, in the order of mounting.
    pub fn places(&self) -> Vec<(String, PathBuf)> {
        self.state.lock().mounts.iter().map(|mount| (mount.dataset.clone(), mount.at().to_owned())).collect()
    }

    /// As [`Self::places`], with the names that the datasets have now: a mount keeps the name in the system's table that its dataset had
    /// when it was mounted.
    pub fn names(&self) -> Vec<Renamed> {
        let of = |mount: &LiveMount| Renamed {
            before: mount.dataset.clone(),
            now: mount.tree.dataset(),
            at: mount.at().to_owned(),
        };
        self.state.lock().mounts.iter().map(of).collect()
    }

    /// Whether some are being mounted.
    pub fn has_coming(&self) -> bool {
        self.state.lock().coming > 0
    }

    /// The datasets that are shown nested in others, and where.
    pub fn nested(&self) -> Vec<(String, PathBuf)> {
        let of = |mount: &LiveMount| {
            let at = mount.at().to_owned();
            mount.tree.nested_datasets().into_iter().map(move |(dataset, path)| (dataset, at.join(path)))
        };
        self.all().iter().flat_map(of).collect()
    }

    /// Waits until a look at the state finds what is looked for.
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

    /// Waits until all mounts that are listed are in the system's table. One that another mount namespace has never is again.
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
    pub async fn some_mounted(&self) {
        self.until(|state| (!state.mounts.is_empty()).then_some(())).await;
    }

    /// Waits until nothing is mounted.
    #[boxed]
    pub async fn none_mounted(&self) {
        self.until(|state| state.is_idle().then_some(())).await;
    }

    /// Waits until nothing is mounted, and ends mounting in that moment.
    #[boxed]
    pub async fn last_ended(&self) {
        self.until(|state| {
            state.is_closed |= state.is_idle();
            state.is_closed.then_some(())
        })
        .await;
    }

    /// Ends mounting, and the mounts that are left: requests that were made are finished, and then no users are answered any more.
    #[boxed]
    pub async fn close(&self) {
        let left = self.until(|state| {
            state.is_closed = true;
            (state.coming == 0).then(|| state.mounts.clone())
        });
        for mount in left.await.into_iter().rev() {
            self.detach(&mount).await;
        }
    }

    /// Ends a mount, also where it is in use.
    async fn detach(&self, mount: &LiveMount) {
        // One that cannot be unmounted from here is not served all the same.
        if let Err(error) = mount.mount.unmount(Unmount::Detach).await {
            (self.report)(&error.to_string());
        }
        mount.mount.close().await;
        self.forget(mount.id);
    }

    /// Ends the mount at a place, also where it is in use. False if there is none.
    #[boxed]
    pub async fn detach_at(&self, at: &Path) -> bool {
        let Some(mount) = self.all().into_iter().rev().find(|mount| mount.at() == at) else { return false };
        self.detach(&mount).await;
        true
    }

    /// Has datasets and those below them leave the mounts that show them nested in others. One that somebody uses there, or that is
    /// mounted by itself, comes back. [`Self::refresh`] brings back those that are there still.
    #[boxed]
    pub async fn release(&self, datasets: &[String]) -> Result<Option<String>> {
        for mount in self.all() {
            if let Some(busy) = mount.tree.release_datasets(datasets).await? {
                return Ok(Some(busy));
            }
        }
        Ok(None)
    }

    /// Suspends the file system of a dataset in the mounts that show it, until what comes back is dropped.
    #[boxed]
    pub async fn suspend(&self, dataset: &str) -> Vec<SuspendedFs> {
        let mut suspended = Vec::new();
        for mount in self.all() {
            suspended.extend(mount.tree.suspend(dataset).await);
        }
        suspended
    }

    /// Has the mounts show the space of files anew: all that was changed until now is on disk.
    #[boxed]
    pub async fn synced(&self) {
        for mount in self.all() {
            mount.tree.synced().await;
        }
    }

    /// Has mounts let go of snapshots of which nobody uses anything. The kernel may take a moment to forget them.
    #[boxed]
    pub async fn let_go(&self, snapshots: &BTreeSet<ObjectId>) {
        for mount in self.all() {
            mount.tree.let_go(snapshots).await;
        }
    }

    /// Has mounts show datasets as they are now, which were just made, destroyed, renamed or set, and obey their properties, of which those
    /// called `changed` were just changed. Returns a sentence for each property that a mount obeys only later.
    #[boxed]
    pub async fn refresh(&self, datasets: &[String], changed: &[String]) -> Vec<String> {
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
            // The mount may have ended a moment ago, and another one be there.
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
