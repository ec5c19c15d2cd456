//! A user's operations on a pool, in bounds: errors are good answers, and the walk goes on after them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use cenote_dmu::{DataStream, Objset};
use cenote_dsl::{Dataset, Secret};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{BlockId, ObjectId};
use cenote_scan::{VerifyOptions, verify};
use cenote_spa::{ImportOptions, View, condition, find, import};
use cenote_taskq::Handle;
use cenote_zpl::{Cursor, FileSystem, SpaceKind};
use cenote_zvol::Volume;

use crate::random::Random;

/// The operations on a pool once it is open.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How it is imported.
    pub options: ImportOptions,
    /// Verify, and account for space.
    pub verify: bool,
    /// Read the contents of these objsets; of all if `None`.
    pub objsets: Option<BTreeSet<u64>>,
    /// Keys to load.
    pub keys: Vec<(String, Vec<u8>)>,
    /// For what is chosen on the way.
    pub seed: u64,
}

/// The counts of a walk: a mutation that leaves nothing to read tests little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pools found.
    pub found: u64,
    /// Pools imported.
    pub imported: u64,
    /// Datasets opened.
    pub datasets: u64,
    /// Objects looked at.
    pub objects: u64,
    /// Errors met.
    pub errors: u64,
}

const FILE_BYTES_MAX: u64 = 256 << 10;
const RUNS_MAX: usize = 64;
const DATASETS_MAX: usize = 200;
const ENTRIES_MAX: usize = 3000;
const OBJECTS_MAX: usize = 3000;
const RECORDS_MAX: usize = 10_000;
const WINDOW_BYTES: u64 = 1 << 20;

struct Walk<'a> {
    handle: &'a Handle,
    plan: &'a Plan,
    random: Random,
    tally: Tally,
}

impl Walk<'_> {
    fn ok<T, E: std::fmt::Display>(&mut self, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                // Telling of an error is part of what must not fail.
                let _ = error.to_string();
                self.tally.errors += 1;
                None
            }
        }
    }
}

/// Finds, imports and walks.
pub async fn walk(handle: &Handle, paths: &[PathBuf], plan: &Plan) -> Tally {
    let mut walk = Walk { handle, plan, random: Random::new(plan.seed), tally: Tally::default() };
    let (pools, _) = find(handle, paths).await;
    for found in pools.into_iter().take(3) {
        walk.tally.found += 1;
        let _ = (found.name().len(), found.state());
        let pool = import(handle, found, &plan.options).await;
        if let Some(pool) = walk.ok(pool) {
            walk.tally.imported += 1;
            walk.pool(&pool).await;
        }
    }
    walk.tally
}

impl Walk<'_> {
    async fn pool(&mut self, pool: &View) {
        for (dataset, key) in &self.plan.keys {
            let loaded = pool.dsl().load_key(dataset, Secret::new(key.clone())).await;
            self.ok(loaded);
        }
        let result = condition(pool).await;
        self.ok(result);
        let result = pool.properties().await;
        self.ok(result);
        let result = pool.features().await;
        self.ok(result);
        let result = pool.error_count().await;
        self.ok(result);
        let mut records = 0;
        let result = pool.history(|_| records += 1).await;
        self.ok(result);
        self.datasets(pool).await;
        if self.plan.objsets.as_ref().is_none_or(|objsets| objsets.contains(&0)) {
            self.objects(pool.mos()).await;
        }
        if self.plan.verify {
            let mut calls = 0;
            let mut progress = |_| {
                calls += 1;
                calls < RECORDS_MAX
            };
            let report = verify(self.handle, pool, VerifyOptions::default(), &mut progress).await;
            if let Some(report) = self.ok(report) {
                let _ = report.is_clean();
                let _ = report.space.as_ref().map(|space| space.figures());
            }
        }
        // Faults are told of with what the configuration says.
        let _ = format!("{:?}", pool.tree().status());
    }

    async fn datasets(&mut self, pool: &View) {
        let dsl = pool.dsl();
        let root = dsl.root_dir().await;
        let Some(root) = self.ok(root) else { return };
        let dirs = match dsl.tree(root.clone(), true).await {
            Ok(dirs) => dirs,
            Err(_) => {
                self.tally.errors += 1;
                vec![root]
            }
        };
        for dir in dirs.into_iter().take(DATASETS_MAX) {
            let result = dsl.properties(&dir, |_| true).await;
            self.ok(result);
            let result = dsl.encryption(&dir).await;
            self.ok(result);
            let result = dsl.dir_name(dir.object).await;
            self.ok(result);
            let head = dsl.head(&dir).await;
            let Some(Some(head)) = self.ok(head) else { continue };
            let bookmarks = dsl.bookmarks(&head).await;
            self.ok(bookmarks);
            let snapshots = dsl.snapshots(&head).await;
            let mut all = self.ok(snapshots).unwrap_or_default();
            all.push(head);
            for dataset in all.iter().take(DATASETS_MAX) {
                self.dataset(pool, dataset).await;
            }
        }
    }

    async fn dataset(&mut self, pool: &View, dataset: &Dataset) {
        let dsl = pool.dsl();
        let result = dsl.snapshot_properties(dataset).await;
        self.ok(result);
        let result = dsl.holds(dataset).await;
        self.ok(result);
        let result = dsl.clones(dataset).await;
        self.ok(result);
        let result = dsl.dataset_name(dataset.object).await;
        self.ok(result);
        if self.plan.objsets.as_ref().is_some_and(|objsets| !objsets.contains(&dataset.object.0)) {
            return;
        }
        let objset = dsl.open_as_is(dataset).await;
        let Some(Some(objset)) = self.ok(objset) else { return };
        self.tally.datasets += 1;
        self.objects(&objset).await;
        match objset.phys().objset_type() {
            Some(ObjsetType::Zvol) => {
                let volume = Volume::open(&objset).await;
                if let Some(volume) = self.ok(volume) {
                    self.volume(&volume).await;
                }
            }
            _ => {
                let filesystem = FileSystem::open(objset).await;
                if let Some(filesystem) = self.ok(filesystem) {
                    self.filesystem(&filesystem).await;
                }
            }
        }
    }

    async fn volume(&mut self, volume: &Volume) {
        let size = volume.size_bytes();
        self.stream(volume.stream(WINDOW_BYTES)).await;
        for at in [0, size / 2, size.saturating_sub(1), self.random.word()] {
            let result = volume.read(at, 128 << 10).await;
            self.ok(result);
            let result = volume.extent(at, at.saturating_add(1 << 30)).await;
            self.ok(result);
        }
    }

    async fn stream(&mut self, mut stream: DataStream) {
        for _ in 0..RUNS_MAX {
            let run = stream.next().await;
            if !matches!(self.ok(run), Some(Some(_))) {
                break;
            }
        }
    }

    /// Every object of an objset, whatever it is for.
    async fn objects(&mut self, objset: &Objset) {
        let mut from = ObjectId(0);
        let mut seen = 0;
        while seen < OBJECTS_MAX {
            let batch = objset.next_objects(from).await;
            let Some(Some(batch)) = self.ok(batch) else { return };
            seen += batch.objects.len().max(1);
            if batch.next <= from {
                return;
            }
            from = batch.next;
            for (_, object) in batch.objects {
                self.tally.objects += 1;
                let Some(dnode) = self.ok(object) else { continue };
                let last = dnode.last_block();
                for level in 0..dnode.phys().levels.min(8) {
                    let pointer = dnode.pointer(level, BlockId(0)).await;
                    self.ok(pointer);
                }
                for block in [last, BlockId(last.0 / 2)] {
                    let read = dnode.block(block).await;
                    self.ok(read);
                }
                let hole = dnode.next_hole_block(BlockId(0)).await;
                self.ok(hole);
                if dnode.phys().object_type.is_zap() {
                    self.table(dnode).await;
                } else {
                    self.stream(dnode.stream(0..FILE_BYTES_MAX, WINDOW_BYTES)).await;
                }
            }
        }
    }

    async fn table(&mut self, dnode: cenote_dmu::Object) {
        let zap = cenote_dmu::Zap::open(dnode).await;
        let Some(zap) = self.ok(zap) else { return };
        let mut listing = zap.listing();
        for _ in 0..RUNS_MAX {
            let batch = listing.next().await;
            let Some(Some(batch)) = self.ok(batch) else { break };
            for entry in batch.iter().take(4) {
                let found = zap.lookup(entry.name()).await;
                self.ok(found);
            }
        }
    }

    async fn filesystem(&mut self, filesystem: &FileSystem) {
        for kind in [SpaceKind::User, SpaceKind::Group, SpaceKind::Project] {
            let result = filesystem.space(kind).await;
            self.ok(result);
        }
        let mut seen = BTreeSet::from([filesystem.root()]);
        let mut pending = vec![filesystem.root()];
        let mut left = ENTRIES_MAX;
        while let Some(id) = pending.pop() {
            if left == 0 {
                return;
            }
            left -= 1;
            self.file(filesystem, id).await;
            let mut cursor = Cursor::START;
            for _ in 0..RUNS_MAX {
                let batch = filesystem.list(id, cursor, 256).await;
                // Most objects are no directories; that is not an error of the pool.
                let Ok(batch) = batch else { break };
                let Some(last) = batch.last() else { break };
                cursor = last.next;
                if let Some(entry) = batch.first() {
                    let found = filesystem.lookup(id, &entry.name).await;
                    self.ok(found);
                }
                pending.extend(batch.iter().map(|entry| entry.object).filter(|object| seen.insert(*object)));
            }
        }
    }

    async fn file(&mut self, filesystem: &FileSystem, id: ObjectId) {
        self.tally.objects += 1;
        let attributes = filesystem.attributes(id).await;
        let Some(attributes) = self.ok(attributes) else { return };
        let xattrs = filesystem.xattrs(id).await;
        self.ok(xattrs);
        let _ = filesystem.read_link(id).await;
        let Ok(file) = filesystem.open_file(id).await else { return };
        self.stream(file.stream_range(0..FILE_BYTES_MAX, WINDOW_BYTES)).await;
        for at in [0, attributes.size_bytes / 2, attributes.size_bytes.saturating_sub(10), self.random.word()] {
            let read = file.read(at, 64 << 10).await;
            self.ok(read);
            let next = file.next_data(at).await;
            self.ok(next);
            let next = file.next_hole(at).await;
            self.ok(next);
        }
    }
}
