//! Cache devices: the second level of the block cache (OpenZFS's L2ARC).
//!
//! # Theory
//!
//! **Need.** Memory holds a part of what is read often; a solid-state disk holds more, and answers sooner than disks with heads. It may fail, lie or
//! go at any time, and nobody must notice but by the speed.
//!
//! **On disk.** [`cenote_format::l2arc`]: a header, and a ring of blocks with log blocks between them. OpenZFS reads what is written here, and the
//! reverse.
//!
//! **Life of a block.**
//! ```text
//! read from the pool ─► offered: physical bytes, verified ─► waits (bounded) ─► a batch each second ─► found in the index
//!                                                                                                  │
//! not in the cache ─► found? ─► device ─► verified? ─ yes ─► used          forgotten before its place is written over
//!                                             └─ no ─► forgotten, counted; the pool is read
//! ```
//! A block is written as the pool has it: compressed, encrypted, with the bytes that its pointer's checksum is of. The cache in memory has logical
//! blocks, and to make the same bytes of these again is not always possible (another encoder); so a block is taken when it is read, not when it
//! leaves. While the devices are slower than the readers, blocks are left out: readers never wait for a cache device to be written.
//!
//! **Identity.** As in memory: place and birth of the first copy. A place that was freed and reused has a later birth, so an old block is never
//! found for it; it stays in the ring until it is written over. After a crash the log blocks may tell of blocks that were written over since; these
//! do not verify. Blocks without a checksum are never taken, and neither are those of the pool's own objects, which are
//! written again at their places until their txg is on disk.
//!
//! **In memory.** 32 bytes for each block and 8 to 26 for the index, in a part of the cache's memory ([`Tunables`]: `l2arc_meta_percent`). Beyond it
//! the oldest blocks are forgotten.
//!
//! **Opening.** In the background the log blocks are walked from the newest on, one at a time; each must lie further behind the hand than the one
//! before, so a hostile chain ends. Nothing is written to the device before that is done.
//!
//! **Invariants.**
//! 1. What is given out passed the checksum of the block pointer that was asked for.
//! 2. A block is forgotten before its place is written over, and found only once it is written.
//! 3. An error of a cache device is never an error of a read.
//! 4. The memory of waiting blocks, and that of the index, have bounds.
//!
//! **Crash.** Blocks and log blocks are written before the header that names them. Nothing is flushed: what was lost does not verify.
//!
//! **Rejected.** *Writing blocks as they leave the cache*: a logical block would have to be encoded again, and the pool read again where that gives
//! other bytes. *An index on the device*: a read for each look-up, of blocks that mostly are not there.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod counts;
mod device;
mod log;
mod ring;
#[cfg(test)]
mod tests;
mod tunables;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_arc::BlockKey;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::Guid;
use cenote_format::l2arc::CachedBlock;
use cenote_kstat::Snapshot;
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicBool, Ordering};
use cenote_taskq::{BoxFuture, Class, Either, Event, Group, Handle, Notify, boxed, race};
use cenote_vdev::disk::Disk;
use cenote_vdev::fault::ErrorTotals;
use cenote_vdev::tree::{LeafIo, VdevState};
use cenote_zio::{ShelfState, Shelves};

use counts::{Counts, up};
use device::{Candidate, Device, Ids};
pub use tunables::Tunables;

/// Waiting blocks take one part in so many of the cache's memory at most.
const QUEUE_SHARE: usize = 16;

/// A cache device that is to be used.
#[derive(Clone)]
pub struct CacheSpec {
    /// The pool.
    pub pool: Guid,
    /// The device.
    pub guid: Guid,
    /// Its disk, open for writing.
    pub disk: Disk,
    /// Its sectors, as a power of two.
    pub ashift: u32,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Candidate>,
    /// Vdev, offset and birth of each.
    keys: BTreeSet<(u32, u64, u64)>,
    bytes: usize,
}

impl Queue {
    fn pop(&mut self) -> Option<Candidate> {
        let next = self.waiting.pop_front()?;
        assert!(self.bytes >= next.physical.memory_bytes(), "what waits is counted");
        self.bytes -= next.physical.memory_bytes();
        self.keys.remove(&place_of(key_in(&next.block)));
        Some(next)
    }
}

/// The events that tasks wait for.
#[derive(Default)]
struct Signals {
    offered: Notify,
    closed: Event,
}

/// Told of a device that is not used any more: its guid and a sentence.
type Tell = Box<dyn Fn(Guid, String) + Send + Sync>;
/// Told how much memory the index takes.
type Charge = Box<dyn Fn(usize) + Send + Sync>;

/// The cache devices of a pool.
pub struct L2arc {
    handle: Handle,
    tasks: Group,
    tunables: Tunables,
    /// The memory of the cache above, in bytes.
    cache_bytes: usize,
    devices: Mutex<Arc<[Arc<Device>]>>,
    /// Devices that are known, and not to be used.
    offline: Mutex<BTreeMap<Guid, CacheSpec>>,
    queue: Mutex<Queue>,
    signals: Arc<Signals>,
    counts: Counts,
    tell: Tell,
    charge: Charge,
    /// The task that writes has begun.
    is_fed: AtomicBool,
}

impl Drop for L2arc {
    fn drop(&mut self) {
        self.signals.closed.set();
    }
}

/// The identity of a block.
fn key_of(bp: &Blkptr) -> Option<BlockKey> {
    let first = bp.dva(0)?;
    Some(BlockKey { vdev: first.vdev.0, offset_bytes: first.offset_bytes, birth_txg: bp.physical_birth().0 })
}

impl L2arc {
    /// Of a pool whose cache may take `cache_bytes`.
    #[must_use]
    pub fn new(handle: &Handle, cache_bytes: usize, tunables: Tunables, tell: Tell, charge: Charge) -> Arc<Self> {
        Arc::new(Self {
            handle: handle.clone(),
            tasks: handle.group(),
            tunables,
            cache_bytes,
            devices: Mutex::new(Arc::new([])),
            offline: Mutex::default(),
            queue: Mutex::default(),
            signals: Arc::default(),
            counts: Counts::default(),
            tell,
            charge,
            is_fed: AtomicBool::new(false),
        })
    }

    /// Begins to write what is offered, once there is a device.
    fn begin_feeding(self: &Arc<Self>) {
        if !self.is_fed.swap(true, Ordering::AcqRel) {
            let (weak, signals, handle) = (Arc::downgrade(self), self.signals.clone(), self.handle.clone());
            // A pool that is being closed needs no cache.
            let _ = self.tasks.detach(Class::Background, feed_all(weak, signals, handle));
        }
    }

    fn all(&self) -> Arc<[Arc<Device>]> {
        self.devices.lock().clone()
    }

    /// Has a device be used. What it has is looked for in the background. False if it is too small.
    pub fn add(self: &Arc<Self>, spec: CacheSpec) -> bool {
        let ids = Ids { pool: spec.pool, device: spec.guid };
        let Some(device) = Device::new(self.handle.clone(), ids, spec.clone(), self.tunables) else {
            return false;
        };
        let device = Arc::new(device);
        {
            let mut all = self.devices.lock();
            assert!(all.iter().all(|other| other.ids.device != spec.guid), "a device is used once");
            *all = all.iter().cloned().chain([device.clone()]).collect();
        }
        self.begin_feeding();
        let this = Arc::downgrade(self);
        // A pool that is being closed needs no cache.
        let _ = self.tasks.detach(Class::Background, async move {
            let Some(this) = this.upgrade() else { return };
            let memory = this.memory_max_bytes() / this.all().len().max(1);
            if device.rebuild(memory, &this.counts).await {
                this.gave_up(&device);
            }
            this.bound_memory();
            // Blocks may wait that nobody could write before.
            this.signals.offered.one();
        });
        true
    }

    /// Uses a device no more. Resolves when nothing is being written to it.
    #[boxed]
    pub async fn remove(&self, guid: Guid) {
        self.offline.lock().remove(&guid);
        self.remove_used(guid).await;
    }

    async fn remove_used(&self, guid: Guid) {
        let found = {
            let mut all = self.devices.lock();
            let found = all.iter().find(|device| device.ids.device == guid).cloned();
            *all = all.iter().filter(|device| device.ids.device != guid).cloned().collect();
            found
        };
        if let Some(device) = found {
            device.leave().await;
        }
        self.bound_memory();
    }

    /// Uses none any more, whatever is being written.
    pub fn shut(&self) {
        self.signals.closed.set();
        *self.devices.lock() = Arc::new([]);
        self.offline.lock().clear();
    }

    /// Uses none any more. Resolves when nothing is being written.
    #[boxed]
    pub async fn close(&self) {
        self.signals.closed.set();
        for device in self.all().iter() {
            self.remove(device.ids.device).await;
        }
        self.tasks.close().await;
    }

    /// Uses a device no more until [`Self::online`]. False if it is not known.
    #[boxed]
    pub async fn offline(&self, guid: Guid) -> bool {
        let spec = self.all().iter().find(|device| device.ids.device == guid).map(|device| device.spec());
        let Some(spec) = spec else { return self.offline.lock().contains_key(&guid) };
        self.offline.lock().insert(guid, spec);
        self.remove_used(guid).await;
        true
    }

    /// Uses a device again that is offline, or was given up. False if it is not known.
    #[boxed]
    pub async fn online(self: &Arc<Self>, guid: Guid) -> bool {
        let back = self.offline.lock().remove(&guid);
        let known = self.all().iter().find(|device| device.ids.device == guid).cloned();
        match (back, known) {
            (Some(spec), _) => self.add(spec),
            (None, Some(_)) => {
                self.revive(guid).await;
                true
            }
            (None, None) => false,
        }
    }

    /// Forgets the errors of a device, and uses it again if it was given up.
    #[boxed]
    pub async fn revive(self: &Arc<Self>, guid: Guid) {
        let Some(device) = self.all().iter().find(|device| device.ids.device == guid).cloned() else { return };
        device.clear_errors();
        if device.is_faulted() {
            self.remove_used(guid).await;
            self.add(device.spec());
        }
    }

    /// Whether the device is known, in use or not.
    #[must_use]
    pub fn knows(&self, guid: Guid) -> bool {
        self.offline.lock().contains_key(&guid) || self.all().iter().any(|device| device.ids.device == guid)
    }

    /// The devices that are known.
    #[must_use]
    pub fn guids(&self) -> Vec<Guid> {
        let mut all: Vec<Guid> = self.offline.lock().keys().copied().collect();
        all.extend(self.all().iter().map(|device| device.ids.device));
        all
    }

    /// Enters what the devices have and have done into the statistics of the cache.
    pub fn kstat(&self, snapshot: &mut Snapshot) {
        self.counts.kstat(snapshot);
        let (mut sums, mut memory) = ([0; 4], 0);
        for device in self.all().iter() {
            let (sizes, of_device) = device.sizes();
            sums.iter_mut().zip(sizes).for_each(|(sum, size)| *sum += size);
            memory += of_device;
        }
        let sheet = snapshot.group("arcstats");
        let waiting = self.queue.lock().bytes as u64;
        for (name, level) in [
            ("l2_size", sums[0]),
            ("l2_asize", sums[1]),
            ("l2_hdr_size", memory as u64),
            ("l2_waiting_size", waiting),
            ("l2_log_blk_count", sums[2]),
            ("l2_log_blk_asize", sums[3]),
        ] {
            sheet.level(name, level);
        }
    }

    fn memory_max_bytes(&self) -> usize {
        self.cache_bytes / 100 * self.tunables.l2arc_meta_percent as usize
    }

    fn queue_max_bytes(&self) -> usize {
        let batches = self.tunables.l2arc_write_max.saturating_mul(self.tunables.l2arc_headroom);
        usize::try_from(batches).unwrap_or(usize::MAX).min(self.cache_bytes / QUEUE_SHARE)
    }

    /// Keeps the index within its memory, and says how much it takes.
    fn bound_memory(&self) {
        let all = self.all();
        let each = self.memory_max_bytes() / all.len().max(1);
        all.iter().for_each(|device| device.shrink_to(each));
        (self.charge)(all.iter().map(|device| device.sizes().1).sum());
    }

    fn gave_up(&self, device: &Device) {
        let path = device.path();
        let what = format!(
            "the cache device {path} gave too many errors and is not used any more; nothing is lost. \
             Replace it: 'zpool remove', 'zpool add POOL cache'"
        );
        (self.tell)(device.ids.device, what);
        self.bound_memory();
    }

    /// The next block to be written, if it is not longer than this.
    fn next(&self, max_bytes: u64) -> Option<Candidate> {
        let mut queue = self.queue.lock();
        queue.waiting.front().filter(|first| first.block.psize_bytes <= max_bytes)?;
        queue.pop()
    }

    /// Gives each device a batch. True if more is waiting.
    async fn feed(&self) -> bool {
        let before = self.queue.lock().waiting.len();
        for device in self.all().iter().filter(|device| device.takes()) {
            if device.feed(&|max_bytes| self.next(max_bytes), &self.counts).await {
                self.gave_up(device);
            }
        }
        self.bound_memory();
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= before {
            // The first one is larger than any batch, or nobody takes blocks.
            queue.pop();
        }
        !queue.waiting.is_empty()
    }
}

const fn place_of(key: BlockKey) -> (u32, u64, u64) {
    (key.vdev, key.offset_bytes, key.birth_txg)
}

fn key_in(block: &CachedBlock) -> BlockKey {
    BlockKey { vdev: block.dva.vdev.0, offset_bytes: block.dva.offset_bytes, birth_txg: block.birth.0 }
}

/// Writes batches as long as there is something to write, and the pool is open.
async fn feed_all(l2arc: Weak<L2arc>, signals: Arc<Signals>, handle: Handle) {
    let mut is_more = false;
    loop {
        if !is_more && let Either::Right(()) = race(signals.offered.wait(), signals.closed.wait()).await {
            return;
        }
        let Some(pause) = l2arc.upgrade().map(|l2arc| match is_more && l2arc.tunables.l2arc_feed_again {
            true => Duration::from_millis(l2arc.tunables.l2arc_feed_min_ms),
            false => Duration::from_secs(l2arc.tunables.l2arc_feed_secs),
        }) else {
            return;
        };
        if let Either::Right(()) = race(handle.sleep(pause), signals.closed.wait()).await {
            return;
        }
        let Some(l2arc) = l2arc.upgrade() else { return };
        is_more = l2arc.feed().await && l2arc.all().iter().any(|device| device.takes());
    }
}

impl Shelves for L2arc {
    fn read<'a>(
        &'a self,
        bp: &'a Blkptr,
        verify: &'a (dyn Fn(&[u8]) -> bool + Send + Sync),
    ) -> Option<BoxFuture<'a, Option<Buf>>> {
        let devices = self.all();
        if devices.is_empty() {
            return None;
        }
        let key = key_of(bp)?;
        let found = devices.iter().find_map(|device| Some((device.clone(), device.find(key)?)));
        let Some((device, place)) = found else {
            up(&self.counts.misses);
            return None;
        };
        Some(Box::pin(async move {
            let (bytes, is_over) = device.read(key, place, verify, &self.counts).await;
            if is_over {
                self.gave_up(&device);
            }
            bytes
        }))
    }

    fn wants(&self, bp: &Blkptr, is_ahead: bool) -> bool {
        let devices = self.all();
        if !devices.iter().any(|device| device.takes()) || (is_ahead && self.tunables.l2arc_noprefetch) {
            return false;
        }
        let Some(key) = key_of(bp) else { return false };
        if devices.iter().any(|device| device.find(key).is_some()) {
            return false;
        }
        let psize_bytes = usize::try_from(bp.psize_bytes()).unwrap_or(usize::MAX);
        let (queue, max_bytes) = (self.queue.lock(), self.queue_max_bytes());
        let has_room = queue.bytes.saturating_add(psize_bytes) <= max_bytes;
        if !has_room {
            up(&self.counts.feed_left);
        }
        has_room && !queue.keys.contains(&place_of(key))
    }

    fn offer(&self, bp: &Blkptr, physical: Block) {
        let (Some(dva), Some(key)) = (bp.dva(0), key_of(bp)) else { return };
        let block = CachedBlock {
            dva,
            birth: bp.physical_birth(),
            lsize_bytes: bp.lsize_bytes(),
            psize_bytes: bp.psize_bytes(),
            compress: bp.compress_number(),
            is_metadata: bp.is_metadata(),
            is_protected: bp.uses_crypt(),
            offset_bytes: 0,
        };
        let mut queue = self.queue.lock();
        if !queue.keys.insert(place_of(key)) {
            return;
        }
        queue.bytes += physical.memory_bytes();
        queue.waiting.push_back(Candidate { block, physical });
        drop(queue);
        self.signals.offered.one();
    }

    fn states(&self) -> Vec<ShelfState> {
        let state = |device: &Arc<Device>| ShelfState {
            guid: device.ids.device,
            state: if device.is_faulted() { VdevState::Faulted } else { VdevState::Online },
            size_bytes: device.size_bytes(),
            allocated_bytes: device.allocated_bytes(),
            errors: device.errors(),
            io: device.io(),
        };
        let mut all: Vec<ShelfState> = self.all().iter().map(state).collect();
        all.extend(self.offline.lock().keys().map(|guid| ShelfState {
            guid: *guid,
            state: VdevState::Offline,
            size_bytes: 0,
            allocated_bytes: 0,
            errors: ErrorTotals::default(),
            io: LeafIo::default(),
        }));
        all
    }
}
