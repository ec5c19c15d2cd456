//! Goal: file systems whose files change keep what POSIX promises, and their pools stay whole, whatever is done in whatever
//! order, with txgs synced meanwhile. Method: the same operations on a tree in plain memory (`cenote_sim::tree`), results and contents
//! compared; then the pool is read by the path that reads OpenZFS's, and judged by `verify` and OpenZFS's `zdb`.

mod cases;
mod concurrent;
mod many;
mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use cenote_dmu::tx::{Transactions, TxTunables};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_spa::{ImportOptions, Pool, find, import};
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{Class, Handle, Join, Runtime};
use cenote_zpl::{FileSystem, FileSystemOptions, SpaceKind};

use cenote_sim::Machine;

use cenote_sim::written::files::make_file_system;
use cenote_sim::written::{SINGLE, assert_clean, check, machine_of};

/// Syncs txgs until all is closed.
async fn run(txgs: Transactions, pool: Pool) -> Pool {
    while let Some(txg) = txgs.next().await {
        assert_eq!(pool.sync().await.unwrap(), txg);
        txgs.done(txg, Ok(()));
    }
    pool
}

/// A pool whose file system is in use.
pub(super) struct Live {
    pub(super) fs: FileSystem,
    handle: Handle,
    txgs: Transactions,
    syncing: Join<Pool>,
}

impl Live {
    pub(super) async fn start(handle: &Handle, pool: Pool, options: FileSystemOptions) -> Self {
        let head = pool.open_head("written").await.unwrap();
        let txgs = Transactions::new(handle, pool.txg(), TxTunables::default());
        let fs = FileSystem::open_head(&head.objset, Arc::new(txgs.clone()), options).await.unwrap();
        let quiescing = txgs.clone();
        handle.detach(Class::Sync, async move { quiescing.quiesce().await });
        let syncing = handle.spawn(Class::Sync, run(txgs.clone(), pool));
        Self { fs, handle: handle.clone(), txgs, syncing }
    }

    /// Makes what was done so far durable.
    pub(super) async fn sync(&self) {
        self.txgs.sync().await.unwrap();
    }

    /// Begins to make it durable.
    pub(super) fn want_sync(&self) {
        let txgs = self.txgs.clone();
        self.handle.detach(Class::Issue, async move { drop(txgs.sync().await) });
    }

    pub(super) fn open_txg(&self) -> Txg {
        self.txgs.open_txg()
    }

    /// Ends the use of the file system; the pool is not exported.
    pub(super) async fn stop(self) -> Pool {
        self.txgs.close();
        drop(self.fs);
        self.syncing.await.unwrap()
    }
}

pub(super) async fn reopen(handle: &Handle, paths: &[PathBuf]) -> Pool {
    cenote_sim::written::reopen(handle, paths).await.unwrap()
}

/// A new pool on a simulated disk, its file system in use.
pub(super) async fn fresh(runtime: &Runtime, handle: &Handle, options: FileSystemOptions) -> (Machine, Live) {
    let machine = machine_of(runtime, 1, Latency::default());
    let pool =
        make_file_system(handle, cenote_sim::written::options(machine.tops(handle, SINGLE).await.unwrap(), 12)).await;
    let live = Live::start(handle, pool, options).await;
    (machine, live)
}

/// Checks a pool through the read path: it is clean, every file is reached by a name or in the delete queue, and the space
/// accounts of owners are the sums over their objects. Returns the file system and the view that it hangs on.
pub(super) async fn judged(handle: &Handle, paths: &[PathBuf]) -> (cenote_spa::View, FileSystem) {
    let (_, report) = check(handle, paths).await;
    assert_clean(&report, "live");
    let (mut pools, _) = find(handle, paths).await;
    let options = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    let pool = import(handle, pools.remove(0), &options).await.unwrap();
    let dataset = pool.dsl().dataset("written").await.unwrap();
    let fs = FileSystem::open(pool.dsl().open(&dataset).await.unwrap().unwrap()).await.unwrap();
    let mut reached = BTreeSet::new();
    let queue = cenote_dmu::Zap::open(fs.dnode(fs.unlinked_set().unwrap()).await.unwrap()).await.unwrap();
    let queued = queue.entries(1 << 20).await.unwrap();
    let mut open: Vec<ObjectId> = queued.iter().map(|entry| ObjectId(entry.value.as_u64().unwrap())).collect();
    let queued: BTreeSet<ObjectId> = open.iter().copied().collect();
    open.push(fs.root());
    let mut links: BTreeMap<ObjectId, u64> = BTreeMap::new();
    while let Some(id) = open.pop() {
        if !reached.insert(id) {
            continue;
        }
        let attributes = fs.attributes(id).await.unwrap();
        open.extend(attributes.xattr_directory);
        if attributes.kind == cenote_zpl::FileKind::Directory {
            let start = cenote_zpl::Cursor::START;
            let entries = match attributes.flags.is_xattr() {
                true => fs.list_xattrs(id, start, usize::MAX).await.unwrap(),
                false => fs.list(id, start, usize::MAX).await.unwrap(),
            };
            assert_eq!(attributes.size_bytes, entries.len() as u64 + 2, "size of directory {id}");
            let mut below = 0;
            for entry in entries {
                *links.entry(entry.object).or_default() += 1;
                let child = fs.attributes(entry.object).await.unwrap();
                assert_eq!(entry.kind, Some(child.kind));
                if child.kind == cenote_zpl::FileKind::Directory {
                    below += 1;
                    assert_eq!(child.parent, id);
                }
                open.push(entry.object);
            }
            if !queued.contains(&id) {
                assert_eq!(attributes.link_count, below + 2, "links of directory {id}");
            }
        }
    }
    let mut used: BTreeMap<(u8, u64), (u64, u64)> = BTreeMap::new();
    let mut from = ObjectId(1);
    while let Some(batch) = fs.objset().next_objects(from).await.unwrap() {
        for (id, dnode) in batch.objects {
            let dnode = dnode.unwrap();
            let kind = dnode.phys().object_type;
            if ![DmuType::PLAIN_FILE_CONTENTS, DmuType::DIRECTORY_CONTENTS].contains(&kind) {
                continue;
            }
            assert!(reached.contains(&id), "object {id} has no name");
            let attributes = fs.attributes(id).await.unwrap();
            if attributes.kind != cenote_zpl::FileKind::Directory && !queued.contains(&id) {
                assert_eq!(Some(&attributes.link_count), links.get(&id), "links of {id}");
            }
            let bytes = dnode.phys().used_bytes() + 512;
            let owners = [(0, attributes.fuid_owner), (1, attributes.fuid_group), (2, attributes.project.unwrap_or(0))];
            for key in owners {
                let sum = used.entry(key).or_default();
                *sum = (sum.0 + bytes, sum.1 + 1);
            }
        }
        from = batch.next;
    }
    for (number, kind) in [(0, SpaceKind::User), (1, SpaceKind::Group), (2, SpaceKind::Project)] {
        let told = fs.space(kind).await.unwrap();
        let told = told.iter().map(|(id, space)| ((number, *id), (space.used_bytes, space.used_objects.unwrap_or(0))));
        let told: BTreeMap<_, _> = told.filter(|(_, sums)| *sums != (0, 0)).collect();
        let counted: BTreeMap<_, _> =
            used.iter().filter(|((kind, _), _)| *kind == number).map(|(key, sums)| (*key, *sums)).collect();
        assert_eq!(told, counted, "{kind:?}");
    }
    (pool, fs)
}
