//! The load: tasks that change the pool until the power is cut. Each works on files or ranges of its own, and records its changes with
//! their txgs.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cenote_dmu::ObjectSpec;
use cenote_dmu::tx::{Committing, Cost, PendingFrees, SyncMode, Tx, TxError, TxgSource};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_spa::{LiveHead, Pool, PropertyValue, Refusal, SpaError, Syncer};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{BoxFuture, Handle, Rng, join_all};
use cenote_zpl::bulk::{BulkWriter, NodeSpec};
use cenote_zpl::{File, FileSystem, NewNode, RenameMode, XattrSet, ZplError};
use cenote_zvol::live::{Clear, LiveVolume, LiveVolumeError};

use crate::machine::Growth;
use crate::model::{
    Datasets, FileChange, Files, Grown, Log, Name, PoolChange, Range, RangeChange, State, VdevChange, content,
};

/// Something that is changed, with whoever changes it and whoever judges that.
pub type Shared<S> = Arc<Mutex<Log<S>>>;

/// How long a client that waits for nothing takes between two requests, at most: without it no time would pass.
const THINKING_NS_MAX: u64 = 40_000;
/// How long a client waits that was refused for want of space.
const REFUSED_PAUSE: Duration = Duration::from_micros(300);
/// Names in each of a writer's two directories.
const NAMES: u64 = 7;
/// How long after the load began a vdev is added at latest.
const GROWN_AFTER_MAX: Duration = Duration::from_millis(25);
/// Bytes of a file at most.
const FILE_BYTES_MAX: u64 = 90_000;
/// Names of datasets that come and go.
const DATASETS: u64 = 5;
/// Properties that are set, with how many values each has.
const PROPERTIES: [(&str, u64); 4] = [("copies", 3), ("atime", 2), ("quota", 4), ("compression", 4)];

fn thinking(rng: &mut Rng, slowness: u64) -> Duration {
    Duration::from_nanos(rng.below(THINKING_NS_MAX * slowness))
}

/// The log of the actor that asks a file system for a txg at present; several actors change the same file system.
#[derive(Clone, Default)]
pub struct Turn(Arc<Mutex<Option<Shared<Files>>>>);

/// A dataset that notes for whom it gives which txg.
pub struct Noting {
    head: LiveHead,
    turn: Turn,
}

impl Noting {
    /// Over a dataset.
    #[must_use]
    pub const fn new(head: LiveHead, turn: Turn) -> Self {
        Self { head, turn }
    }
}

impl TxgSource for Noting {
    fn begin(&self, cost: Cost) -> BoxFuture<'_, Result<Tx, TxError>> {
        // Asked for while its task is polled.
        let whose = self.turn.0.lock().clone();
        Box::pin(async move {
            let tx = self.head.begin(cost).await?;
            if let Some(log) = whose {
                log.lock().entered(tx.txg());
            }
            Ok(tx)
        })
    }

    fn begin_replayed(&self, cost: Cost) -> BoxFuture<'_, Result<Tx, TxError>> {
        TxgSource::begin_replayed(&self.head, cost)
    }

    fn wait_synced(&self, txg: Txg) -> BoxFuture<'_, Result<(), TxError>> {
        TxgSource::wait_synced(&self.head, txg)
    }

    fn hurry(&self) {
        self.head.hurry();
    }

    fn unless_refused<'a>(&'a self, work: Committing<'a>) -> Committing<'a> {
        self.head.unless_refused(work)
    }

    fn log_replayed(&self, until: Txg) -> BoxFuture<'_, Result<(), TxError>> {
        self.head.log_replayed(until)
    }

    fn frees_begin(&self) -> Option<Box<dyn PendingFrees>> {
        TxgSource::frees_begin(&self.head)
    }
}

/// Has it be someone's turn while a future is polled.
struct InTurn<'a, T> {
    turn: Turn,
    log: Shared<Files>,
    work: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
}

impl<T> Future for InTurn<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        *self.turn.0.lock() = Some(self.log.clone());
        let done = self.work.as_mut().poll(context);
        *self.turn.0.lock() = None;
        done
    }
}

/// An actor that writes files in two directories of its own.
pub struct FileWriter {
    /// The file system, which others change too.
    pub fs: FileSystem,
    /// Of the file system.
    pub turn: Turn,
    /// The two directories.
    pub dirs: [ObjectId; 2],
    /// The log of its changes.
    pub log: Shared<Files>,
    /// Random numbers for its decisions.
    pub rng: Rng,
    /// Its txgs and its log, which answers its `fsync`.
    pub zil: Arc<cenote_zil::Log>,
    /// The pool.
    pub pool: Pool,
    /// So many times the usual time passes between two requests.
    pub slowness: u64,
}

/// A name as it stands in a directory.
#[must_use]
pub fn name_bytes(name: Name) -> Vec<u8> {
    // One is too long for a micro ZAP.
    if name.1 == 6 { vec![b'l'; 60] } else { format!("n{}", name.1).into_bytes() }
}

/// A key as it stands with a file.
#[must_use]
pub fn key_bytes(key: u8) -> Vec<u8> {
    format!("user.k{key}").into_bytes()
}

impl FileWriter {
    /// Works until something fails.
    pub async fn run(mut self) -> Result<(), String> {
        let mut state = self.log.lock().newest();
        // A file that is open while it loses its name is freed later, by way of the delete queue.
        let mut held: Option<File> = None;
        loop {
            self.pool.handle().sleep(thinking(&mut self.rng, self.slowness)).await;
            if self.rng.chance(1, 10) {
                let other = self.open_any(&state).await;
                drop(std::mem::replace(&mut held, other));
            }
            if self.rng.chance(1, 80) {
                self.pool.sync().await.map_err(|error| error.to_string())?;
                self.pool.audit().await.map_err(|error| format!("audit: {error}"))?;
            }
            if self.rng.chance(1, 40) {
                self.zil.sync(None).await.map_err(|error| format!("fsync: {error}"))?;
                if self.zil.mode() != SyncMode::Disabled {
                    self.log.lock().promise_all();
                }
            }
            let Some(change) = self.draw(&state) else { continue };
            if !self.make_noted(&change).await? {
                self.pool.handle().sleep(REFUSED_PAUSE).await;
                continue;
            }
            state.apply(&change);
            let is_asked = self.rng.chance(1, 40);
            self.zil.commit_if_sync(is_asked, None).await.map_err(|error| format!("O_SYNC: {error}"))?;
            if self.zil.mode() == SyncMode::Always || is_asked && self.zil.mode() == SyncMode::Standard {
                // With it all that came before.
                self.log.lock().promise_all();
            }
        }
    }

    /// Makes a change, and notes it. False if it was refused for want of space.
    pub(crate) async fn make_noted(&self, change: &FileChange) -> Result<bool, String> {
        self.log.lock().begin(change.clone());
        let work = Box::pin(self.make(change));
        match (InTurn { turn: self.turn.clone(), log: self.log.clone(), work }).await {
            Ok(()) => {
                self.log.lock().done();
                Ok(true)
            }
            Err(ZplError::NoSpace | ZplError::Quota(_)) => {
                self.log.lock().refused();
                Ok(false)
            }
            Err(error) => Err(format!("{change:?}: {error}")),
        }
    }

    /// The object that a name leads to.
    pub(crate) async fn object(&self, name: Name) -> Result<ObjectId, ZplError> {
        self.fs.lookup(self.dirs[usize::from(name.0)], &name_bytes(name)).await
    }

    async fn open_any(&mut self, state: &Files) -> Option<File> {
        let count = state.names.len().max(1) as u64;
        let name = *state.names.keys().nth(self.rng.below(count) as usize)?;
        let id = self.fs.lookup(self.dirs[usize::from(name.0)], &name_bytes(name)).await.ok()?;
        self.fs.open_file(id).await.ok()
    }

    fn any_name(&mut self) -> Name {
        (self.rng.below(2) as u8, self.rng.below(NAMES) as u8)
    }

    fn draw(&mut self, state: &Files) -> Option<FileChange> {
        let names: Vec<Name> = state.names.keys().copied().collect();
        let fresh = self.any_name();
        let is_free = !state.names.contains_key(&fresh);
        let at = self.rng.below(names.len().max(1) as u64) as usize;
        let Some(name) = names.get(at).copied() else { return Some(FileChange::Create(fresh)) };
        let size = state.at(&name).map_or(0, |file| file.bytes.len() as u64);
        let (key, seed) = (self.rng.below(4) as u8, self.rng.next_u64());
        let has_key = state.at(&name).is_some_and(|file| file.xattrs.contains_key(&key));
        match self.rng.below(20) {
            0..=2 if is_free => Some(FileChange::Create(fresh)),
            3..=10 => {
                let end = if self.rng.chance(2, 3) { size.min(FILE_BYTES_MAX) } else { FILE_BYTES_MAX / 2 };
                let offset = self.rng.below(end + 1);
                let len = if self.rng.chance(1, 2) { 1 + self.rng.below(3000) } else { 1 + self.rng.below(40_000) };
                let len = len.min(FILE_BYTES_MAX - offset);
                (len > 0).then_some(FileChange::Write { name, offset: offset as usize, len: len as usize, seed })
            }
            11 => Some(FileChange::Truncate { name, size: self.rng.below(size + 4000) as usize }),
            12 | 13 => Some(FileChange::Rename { from: name, to: fresh }),
            14 if !is_free && fresh != name => Some(FileChange::Exchange { from: name, to: fresh }),
            15 if is_free => Some(FileChange::Link { from: name, to: fresh }),
            16 | 17 => Some(FileChange::Unlink(name)),
            18 if has_key => Some(FileChange::RemoveXattr { name, key }),
            18 => {
                let len = if self.rng.chance(1, 4) { self.rng.below(9000) } else { self.rng.below(120) };
                Some(FileChange::SetXattr { name, key, len: len as usize, seed })
            }
            19 => Some(FileChange::Reap),
            _ => None,
        }
    }

    async fn make(&self, change: &FileChange) -> Result<(), ZplError> {
        let fs = &self.fs;
        let dir = |name: &Name| self.dirs[usize::from(name.0)];
        let open = async |name: &Name| fs.open_file(fs.lookup(dir(name), &name_bytes(*name)).await?).await;
        match change {
            FileChange::Create(name) => {
                let new = NewNode { mode: 0o100_644, ..NewNode::default() };
                fs.create(dir(name), &name_bytes(*name), &new).await.map(drop)
            }
            FileChange::Write { name, offset, len, seed } => {
                open(name).await?.write(*offset as u64, &content(*seed, *len)).await
            }
            FileChange::Truncate { name, size } => open(name).await?.truncate(*size as u64).await,
            FileChange::Rename { from, to } => {
                let mode = RenameMode::Replace;
                fs.rename(dir(from), &name_bytes(*from), dir(to), &name_bytes(*to), mode).await
            }
            FileChange::Exchange { from, to } => {
                let mode = RenameMode::Exchange;
                fs.rename(dir(from), &name_bytes(*from), dir(to), &name_bytes(*to), mode).await
            }
            FileChange::Link { from, to } => {
                let id = fs.lookup(dir(from), &name_bytes(*from)).await?;
                fs.link(id, dir(to), &name_bytes(*to)).await.map(drop)
            }
            FileChange::Unlink(name) => fs.unlink(dir(name), &name_bytes(*name)).await,
            FileChange::SetXattr { name, key, len, seed } => {
                let id = fs.lookup(dir(name), &name_bytes(*name)).await?;
                fs.set_xattr(id, &key_bytes(*key), &content(*seed, *len), XattrSet::Any).await
            }
            FileChange::RemoveXattr { name, key } => {
                let id = fs.lookup(dir(name), &name_bytes(*name)).await?;
                fs.remove_xattr(id, &key_bytes(*key)).await
            }
            FileChange::Reap => fs.reap().await.map(drop),
        }
    }
}

/// An actor that writes a range of a volume. The range begins and ends within blocks that other ranges share.
pub struct RangeWriter {
    /// The volume.
    pub volume: Arc<LiveVolume>,
    /// The clock.
    pub handle: Handle,
    /// The property `sync`, as the volume obeys it.
    pub sync: SyncMode,
    /// The log of its changes.
    pub log: Shared<Range>,
    /// Random numbers for its decisions.
    pub rng: Rng,
    /// So many times the usual time passes between two requests.
    pub slowness: u64,
}

impl RangeWriter {
    /// Works until something fails.
    pub async fn run(mut self) -> Result<(), String> {
        let range = self.log.lock().newest();
        loop {
            self.handle.sleep(thinking(&mut self.rng, self.slowness)).await;
            if self.rng.chance(1, 40) {
                self.volume.flush().await.map_err(|error| format!("flush: {error}"))?;
                if self.sync != SyncMode::Disabled {
                    self.log.lock().promise_all();
                }
            }
            let size = range.bytes.len() as u64;
            let offset = self.rng.below(size);
            let most = if self.rng.chance(1, 3) { 40_000 } else { 6000 };
            let len = (1 + self.rng.below(most)).min(size - offset);
            let (offset, len, seed) = (offset as usize, len as usize, self.rng.next_u64());
            let change = match self.rng.below(8) {
                0 => RangeChange::Clear { offset, len },
                1 => RangeChange::Zeros { offset, len },
                2 => RangeChange::Discard { offset, len },
                _ => RangeChange::Write { offset, len, seed },
            };
            if !self.make_noted(&change, range.offset_bytes).await? {
                self.handle.sleep(REFUSED_PAUSE).await;
                continue;
            }
            let fua = self.rng.chance(1, 40);
            self.volume.commit_if_sync(fua).await.map_err(|error| format!("FUA: {error}"))?;
            match self.sync {
                SyncMode::Always => self.log.lock().promise_all(),
                SyncMode::Standard if fua => self.log.lock().promise_last(),
                SyncMode::Standard | SyncMode::Disabled => {}
            }
        }
    }

    /// Makes a change of the range that begins there, and notes it. False if it was refused for want of space, or changes nothing.
    pub(crate) async fn make_noted(&self, change: &RangeChange, from_bytes: u64) -> Result<bool, String> {
        self.log.lock().begin(change.clone());
        // The txg comes back in the step in which it is let go, so none is synced that the log does not know of.
        match self.make(change, from_bytes).await {
            Ok(Some(txg)) => {
                let mut log = self.log.lock();
                log.entered(txg);
                log.done();
                Ok(true)
            }
            Ok(None) | Err(LiveVolumeError::Tx(TxError::NoSpace | TxError::Quota(_))) => {
                self.log.lock().refused();
                Ok(false)
            }
            Err(error) => Err(format!("{change:?}: {error}")),
        }
    }

    async fn make(&self, change: &RangeChange, from_bytes: u64) -> Result<Option<Txg>, LiveVolumeError> {
        let (offset, len) = change.place();
        let (at, len_bytes) = (from_bytes + offset as u64, len as u64);
        match change {
            RangeChange::Write { seed, .. } => self.volume.write(at, &content(*seed, len)).await,
            RangeChange::Clear { .. } => self.volume.clear(at, len_bytes, Clear::Freed).await,
            RangeChange::Zeros { .. } => self.volume.clear(at, len_bytes, Clear::Written).await,
            RangeChange::Discard { .. } => self.volume.clear(at, len_bytes, Clear::Discarded).await,
        }
    }
}

/// An actor that makes and destroys datasets and sets properties.
pub struct Administrator {
    /// The pool.
    pub pool: Pool,
    /// Datasets in use, whose properties are changed too: how they are written.
    pub heads: Vec<LiveHead>,
    /// The log of its changes.
    pub log: Shared<Datasets>,
    /// Random numbers for its decisions.
    pub rng: Rng,
}

/// Adds a vdev and removes the log device, each once in a life.
pub struct Grower {
    /// The pool.
    pub pool: Pool,
    /// The vdev.
    pub growth: Growth,
    /// The place of the log device that the pool was made with.
    pub log_device: Option<usize>,
    /// The log of its changes.
    pub log: Shared<Grown>,
    /// Random numbers for its decisions.
    pub rng: Rng,
}

impl Grower {
    /// Makes what was not made yet, each after a while.
    pub async fn run(mut self) -> Result<(), String> {
        let handle = self.pool.handle().clone();
        let mut left = Vec::new();
        let state = self.log.lock().newest();
        if state.tops == 0 {
            left.push(VdevChange::Add);
        }
        if self.log_device.is_some() && !state.is_log_gone {
            left.push(VdevChange::RemoveLog);
        }
        while !left.is_empty() {
            let change = left.swap_remove(self.rng.below(left.len() as u64) as usize);
            handle.sleep(Duration::from_nanos(self.rng.below(GROWN_AFTER_MAX.as_nanos() as u64))).await;
            let made = match change {
                VdevChange::Add => {
                    let options = self.growth.options(&handle).await?;
                    self.begin(change);
                    self.pool.add_vdevs(options).await
                }
                VdevChange::RemoveLog => {
                    let vdevs = self.pool.devices();
                    let place = self.log_device.unwrap_or_default();
                    let guid = vdevs.and_then(|root| root.children.get(place).map(|log| log.guid));
                    let guid = guid.ok_or("the log device is not there")?;
                    self.begin(change);
                    self.pool.remove_vdev(guid).await
                }
            };
            match made {
                Ok(txg) => {
                    let mut log = self.log.lock();
                    log.entered(txg);
                    log.done();
                    log.promise_all();
                }
                // Its devices failed before they were the pool's.
                Err(SpaError::Refused { what, .. }) if what.contains("/disk") => self.log.lock().refused(),
                // Logs did not get off it: a txg fails while devices do.
                Err(SpaError::Refused { why: Refusal::Busy, .. }) => self.log.lock().refused(),
                Err(error) => return Err(format!("{change:?}: {error}")),
            }
        }
        Ok(())
    }

    fn begin(&self, change: VdevChange) {
        let mut log = self.log.lock();
        log.begin(change);
        // In which one it comes is not known before it is done; until then a pool of any of these may have it or not.
        log.entered(Txg(self.pool.txgs().synced_txg().0 + 1));
    }
}

/// The dataset with this number.
#[must_use]
pub fn dataset_name(number: u8) -> String {
    format!("written/n{number}")
}

impl Administrator {
    /// Works until something fails.
    pub async fn run(mut self) -> Result<(), String> {
        let mut state = self.log.lock().newest();
        loop {
            if self.rng.chance(1, 6) {
                self.change_policy().await.map_err(|error| error.to_string())?;
            }
            // Often several at once, of which each builds on those before it.
            let count = if self.rng.chance(1, 3) { 1 + self.rng.below(4) } else { 1 };
            let mut asked = Vec::new();
            while (asked.len() as u64) < count {
                let Some(change) = self.draw(&state) else { continue };
                state.apply(&change);
                asked.push(change);
            }
            for (made, change) in join_all(asked.iter().map(|change| self.make(change))).await.into_iter().zip(&asked) {
                made.map_err(|error| format!("{change:?} of {asked:?}: {error}"))?;
            }
            self.log.lock().promise_all();
        }
    }

    async fn make(&self, change: &PoolChange) -> Result<(), SpaError> {
        let (asked, log) = (change.clone(), self.log.clone());
        let made = self.pool.change(move |writer| {
            Box::pin(async move {
                log.lock().begin(asked.clone());
                log.lock().entered(writer.txg());
                let made = make_change(writer, &asked).await;
                // Only other changes of the pool are between this and the txg's sync.
                log.lock().done();
                made
            })
        });
        made.await
    }

    /// A property and a value that it can have.
    fn draw_property(&mut self) -> (&'static str, u64) {
        let (property, count) = PROPERTIES[self.rng.below(PROPERTIES.len() as u64) as usize];
        let step = self.rng.below(count);
        let value = match property {
            "copies" => step + 1,
            "quota" => (step + 4) << 20,
            "compression" => [2, 3, 15, 16][step as usize],
            _ => step,
        };
        (property, value)
    }

    fn draw(&mut self, state: &Datasets) -> Option<PoolChange> {
        let number = self.rng.below(DATASETS) as u8;
        let other = self.rng.below(DATASETS) as u8;
        let is_there = state.datasets.contains_key(&number);
        match self.rng.below(8) {
            _ if !is_there => {
                let object = |rng: &mut Rng| (512 << rng.below(8) as u32, rng.next_u64());
                let objects = (0..self.rng.below(4)).map(|_| object(&mut self.rng)).collect();
                let properties = (0..self.rng.below(4)).map(|_| self.draw_property()).collect();
                Some(PoolChange::Create { number, objects, properties })
            }
            0..=2 => Some(PoolChange::Destroy(number)),
            3 if !state.datasets.contains_key(&other) => Some(PoolChange::Rename { from: number, to: other }),
            4 | 5 => {
                let (property, value) = self.draw_property();
                Some(PoolChange::Set { number, property, value })
            }
            6 => {
                let has = state.datasets.get(&number)?.properties.keys().next().copied()?;
                Some(PoolChange::Inherit { number, property: has })
            }
            7 => Some(PoolChange::Comment(self.rng.below(1000))),
            _ => None,
        }
    }

    /// Has a dataset in use written in another way from now on.
    async fn change_policy(&mut self) -> Result<(), SpaError> {
        let at = self.rng.below(self.heads.len().max(1) as u64) as usize;
        let Some(dataset) = self.heads.get(at).map(LiveHead::dataset) else { return Ok(()) };
        let objset = self.heads[at].objset().clone();
        let (property, number) = match self.rng.below(3) {
            // Off, lz4, gzip-1, zle.
            0 => ("compression", [2, 15, 5, 14][self.rng.below(4) as usize]),
            1 => ("copies", 1 + self.rng.below(2)),
            // fletcher4, sha256.
            _ => ("checksum", [7, 8][self.rng.below(2) as usize]),
        };
        let change = self.pool.change(move |writer| {
            Box::pin(async move {
                let head = cenote_spa::Head { dataset, objset };
                writer.set_property(&head, property, &PropertyValue::Number(number)).await
            })
        });
        change.await
    }
}

async fn make_change(writer: &mut Syncer, change: &PoolChange) -> Result<(), SpaError> {
    match change {
        PoolChange::Create { number, objects, properties } => {
            let name = dataset_name(*number);
            let head = writer.create_dataset(&name, ObjsetType::Zfs).await?;
            let txg = writer.txg();
            let failed = |error: String| SpaError::Refused { why: Refusal::Invalid, what: error };
            let root = NodeSpec { mode: 0o755, ..NodeSpec::default() };
            let made = BulkWriter::create(&head.objset, txg, &root).await;
            made.map_err(|error| failed(error.to_string()))?;
            for (block_bytes, seed) in objects {
                let spec = ObjectSpec::new(DmuType::UINT8_DATA, *block_bytes);
                let object = head.objset.create_object(txg, &spec).map_err(|error| failed(error.to_string()))?;
                let written = object.write(txg, 0, &content(*seed, object_len(*seed))).await;
                written.map_err(|error| failed(error.to_string()))?;
            }
            for (property, value) in properties {
                writer.change_property(&name, property, Some(&PropertyValue::Number(*value))).await?;
            }
            Ok(())
        }
        PoolChange::Destroy(number) => writer.destroy_dataset(&dataset_name(*number)).await,
        PoolChange::Rename { from, to } => writer.rename_dataset(&dataset_name(*from), &dataset_name(*to)).await,
        PoolChange::Set { number, property, value } => {
            let value = PropertyValue::Number(*value);
            writer.change_property(&dataset_name(*number), property, Some(&value)).await
        }
        PoolChange::Inherit { number, property } => {
            writer.change_property(&dataset_name(*number), property, None).await
        }
        PoolChange::Comment(value) => {
            writer.set_pool_property("comment", Some(&PropertyValue::Text(value.to_string()))).await
        }
    }
}

/// Bytes of an object of a dataset that comes and goes.
#[must_use]
pub const fn object_len(seed: u64) -> usize {
    1 + (seed >> 8) as usize % 60_000
}
