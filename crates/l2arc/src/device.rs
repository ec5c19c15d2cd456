//! One cache device: its ring, and the I/O.

use std::io;
use std::time::Duration;

use cenote_arc::BlockKey;
use cenote_format::ids::Guid;
use cenote_format::l2arc::{CacheHeader, CachedBlock, FIRST_SWEEP, LOG_ENTRIES_MAX, LogBlock, VERSION};
use cenote_format::label::START_BYTES;
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_taskq::{AsyncMutex, Handle, boxed, for_each_concurrent};
use cenote_vdev::disk::Disk;
use cenote_vdev::fault::ErrorTotals;
use cenote_vdev::tree::LeafIo;

use crate::CacheSpec;
use crate::counts::{Counts, more, up};
use crate::log::{LogFault, header_of, header_sector, opened, stored};
use crate::ring::{Geometry, Place, Ring};
use crate::tunables::Tunables;

/// Bytes of a leaf that are no part of its space, at both ends.
const LABELS_BYTES: u64 = (4 << 20) + (512 << 10);
/// A leaf's size is a multiple of a label's.
const LABEL_BYTES: u64 = 256 << 10;
/// The longest write.
const WRITE_MAX_BYTES: usize = 1 << 20;
/// Writes that a device is given at once.
const WRITES_AT_ONCE: usize = 4;
/// A write, which nobody waits for, may take so many times as long as a read.
const WRITE_PATIENCE: u32 = 10;
/// A device that fails this many requests in a row is given up.
const FAILURES_MAX: u64 = 3;
/// The trouble at which a device that gives wrong bytes is given up: each wrong block counts 8, each right one takes 1 away.
const TROUBLE_MAX: u64 = 80;
const TROUBLE_EACH: u64 = 8;

/// The pool's and the device's identities, in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) pool: Guid,
    pub(crate) device: Guid,
}

/// A block that waits to be written.
pub(crate) struct Candidate {
    pub(crate) block: CachedBlock,
    pub(crate) physical: Block,
}

/// Says whether bytes are those of a block.
pub(crate) type Verify<'a> = dyn Fn(&[u8]) -> bool + Send + Sync + 'a;
/// Gives the next block to be written, if it is not longer than so many bytes.
pub(crate) type Next<'a> = dyn Fn(u64) -> Option<Candidate> + Send + Sync + 'a;

/// Blocks that are written as one: where, how long, and each with the bytes that it takes.
type Run = (u64, u64, Vec<(Block, u64)>);

#[derive(Default)]
struct Totals {
    read_ops: AtomicU64,
    read_bytes: AtomicU64,
    write_ops: AtomicU64,
    write_bytes: AtomicU64,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    checksum_errors: AtomicU64,
}

pub(crate) struct Device {
    pub(crate) ids: Ids,
    handle: Handle,
    disk: Disk,
    ashift: u32,
    geometry: Geometry,
    tunables: Tunables,
    ring: Mutex<Ring>,
    /// One batch, or the rebuilding, at a time.
    writing: AsyncMutex<()>,
    /// The blocks that the device had are known, and it can be written.
    is_ready: AtomicBool,
    /// It is not used any more.
    is_gone: AtomicBool,
    is_faulted: AtomicBool,
    failures: AtomicU64,
    trouble: AtomicU64,
    totals: Totals,
}

/// The fixed measures of a device of this size; none if it is too small.
fn geometry_of(size_bytes: u64, ashift: u32, tunables: &Tunables) -> Option<Geometry> {
    let sector_bytes = 1_u64 << ashift.clamp(9, 16);
    let start_bytes = START_BYTES + sector_bytes;
    let space = (size_bytes / LABEL_BYTES * LABEL_BYTES).checked_sub(LABELS_BYTES)?;
    let end_bytes = START_BYTES + space / sector_bytes * sector_bytes;
    // Four of the largest blocks.
    if end_bytes < start_bytes + (8 << 20) {
        return None;
    }
    let entries = match end_bytes < tunables.l2arc_rebuild_blocks_min_l2size {
        true => 0,
        false => ((end_bytes - start_bytes) >> 24).min(LOG_ENTRIES_MAX as u64),
    };
    Some(Geometry { start_bytes, end_bytes, sector_bytes, log_entries: entries as usize })
}

impl Device {
    /// None if it is too small.
    pub(crate) fn new(handle: Handle, ids: Ids, spec: CacheSpec, tunables: Tunables) -> Option<Self> {
        let CacheSpec { disk, ashift, .. } = spec;
        let geometry = geometry_of(disk.size_bytes(), ashift, &tunables)?;
        Some(Self {
            ids,
            handle,
            disk,
            ashift,
            geometry,
            tunables,
            ring: Mutex::new(Ring::new(geometry)),
            writing: AsyncMutex::new(()),
            is_ready: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            is_faulted: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            trouble: AtomicU64::new(0),
            totals: Totals::default(),
        })
    }

    /// By which it can be opened again.
    pub(crate) fn spec(&self) -> CacheSpec {
        CacheSpec { pool: self.ids.pool, guid: self.ids.device, disk: self.disk.clone(), ashift: self.ashift }
    }

    pub(crate) fn path(&self) -> &str {
        self.disk.path()
    }

    pub(crate) fn is_used(&self) -> bool {
        !self.is_gone.load(Ordering::Acquire) && !self.is_faulted.load(Ordering::Acquire)
    }

    pub(crate) fn is_faulted(&self) -> bool {
        self.is_faulted.load(Ordering::Acquire)
    }

    /// It can be written now.
    pub(crate) fn takes(&self) -> bool {
        self.is_used() && self.is_ready.load(Ordering::Acquire)
    }

    /// Where the block is.
    pub(crate) fn find(&self, key: BlockKey) -> Option<Place> {
        self.is_used().then(|| self.ring.lock().find(key)).flatten()
    }

    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.ring.lock().allocated_bytes()
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.geometry.len_bytes()
    }

    /// Bytes of physical blocks, and those that they take; log blocks and their bytes; memory.
    pub(crate) fn sizes(&self) -> ([u64; 4], usize) {
        let ring = self.ring.lock();
        let ((psize, asize), (logs, logs_bytes)) = (ring.blocks_bytes(), ring.logs());
        ([psize, asize, logs, logs_bytes], ring.memory_bytes())
    }

    pub(crate) fn shrink_to(&self, memory_max_bytes: usize) {
        self.ring.lock().shrink_to(memory_max_bytes);
    }

    pub(crate) fn errors(&self) -> ErrorTotals {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let totals = &self.totals;
        ErrorTotals {
            read: of(&totals.read_errors),
            write: of(&totals.write_errors),
            checksum: of(&totals.checksum_errors),
        }
    }

    /// Its errors are forgotten.
    pub(crate) fn clear_errors(&self) {
        let totals = &self.totals;
        for count in [&totals.read_errors, &totals.write_errors, &totals.checksum_errors, &self.trouble] {
            count.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn io(&self) -> LeafIo {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let totals = &self.totals;
        LeafIo {
            totals: [&totals.read_ops, &totals.read_bytes, &totals.write_ops, &totals.write_bytes].map(of),
            ..LeafIo::default()
        }
    }

    /// No more requests from now on; resolves when nothing is being written.
    pub(crate) async fn leave(&self) {
        self.is_gone.store(true, Ordering::Release);
        drop(self.writing.lock().await);
    }

    /// It answered, or did not. True if it is given up now.
    fn answered(&self, is_good: bool) -> bool {
        if is_good {
            self.failures.store(0, Ordering::Relaxed);
            return false;
        }
        let is_over = self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES_MAX;
        is_over && self.give_up()
    }

    /// Takes it out of use, with all that it has.
    fn give_up(&self) -> bool {
        let is_first = !self.is_faulted.swap(true, Ordering::AcqRel);
        if is_first {
            *self.ring.lock() = Ring::new(self.geometry);
        }
        is_first
    }

    async fn read_at(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<Buf> {
        let buf = Buf::unfilled(usize::try_from(len_bytes).unwrap_or(usize::MAX));
        let limit = Duration::from_millis(self.tunables.cenote_l2arc_read_timeout_ms);
        let read = self.handle.timeout(limit, self.disk.read(offset_bytes, buf)).await;
        let (result, buf) = read.unwrap_or_else(|| (Err(io::ErrorKind::TimedOut.into()), Buf::unfilled(0)));
        up(&self.totals.read_ops);
        more(&self.totals.read_bytes, len_bytes);
        if result.is_err() {
            up(&self.totals.read_errors);
        }
        result.map(|()| buf)
    }

    async fn write_at(&self, offset_bytes: u64, block: Block) -> io::Result<()> {
        up(&self.totals.write_ops);
        more(&self.totals.write_bytes, block.len() as u64);
        let limit = Duration::from_millis(self.tunables.cenote_l2arc_read_timeout_ms).saturating_mul(WRITE_PATIENCE);
        let written = self.handle.timeout(limit, self.disk.write(offset_bytes, block)).await;
        let written = written.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()));
        if written.is_err() {
            up(&self.totals.write_errors);
        }
        written
    }

    /// The physical bytes of a block that was found at `place`. The second value: the device is given up now.
    #[boxed]
    pub(crate) async fn read(
        &self,
        key: BlockKey,
        place: Place,
        verify: &Verify<'_>,
        counts: &Counts,
    ) -> (Option<Buf>, bool) {
        let read = self.read_at(place.offset_bytes, self.geometry.taken(place.psize_bytes)).await;
        let Ok(mut buf) = read else {
            up(&counts.io_error);
            return (None, self.answered(false));
        };
        self.answered(true);
        buf.truncate(place.psize_bytes as usize);
        if verify(&buf) || mutant::is(Mutant::L2arcStale) {
            let trouble = &self.trouble;
            let _ = trouble.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_sub(1)));
            up(&counts.hits);
            more(&counts.read_bytes, place.psize_bytes);
            return (Some(buf), false);
        }
        if self.find(key) != Some(place) {
            // It was written over meanwhile.
            up(&counts.evict_reading);
            return (None, false);
        }
        self.ring.lock().remove(key);
        up(&counts.cksum_bad);
        up(&self.totals.checksum_errors);
        let is_over = self.trouble.fetch_add(TROUBLE_EACH, Ordering::Relaxed) + TROUBLE_EACH >= TROUBLE_MAX;
        (None, is_over && self.give_up())
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        if !mutant::is(Mutant::L2arcKept) {
            self.ring.lock().check();
        }
    }

    /// Bytes of the next batch at most.
    fn batch_bytes(&self) -> u64 {
        let ring = self.ring.lock();
        let boost = if ring.is_first() { self.tunables.l2arc_write_boost } else { 0 };
        ring.batch_bytes(self.tunables.l2arc_write_max.saturating_add(boost))
    }

    /// Writes blocks from the front of the queue, as many as a batch takes. True if the device is given up now.
    #[boxed]
    pub(crate) async fn feed(&self, next: &Next<'_>, counts: &Counts) -> bool {
        let _writing = self.writing.lock().await;
        if !self.takes() {
            return false;
        }
        let room_bytes = self.batch_bytes();
        let mut pieces = Vec::new();
        let (from_bytes, before, mut is_header_old) = {
            let mut ring = self.ring.lock();
            let is_header_old = ring.make_room(room_bytes);
            (ring.hand_bytes(), ring.before(), is_header_old)
        };
        // A log block may be due behind each block.
        let reserve = if self.geometry.log_entries > 0 { cenote_format::l2arc::LOG_BYTES as u64 } else { 0 };
        let (mut taken, mut blocks) = (0, 0);
        while let Some(left) = room_bytes.checked_sub(taken + reserve)
            && let Some(Candidate { block, physical }) =
                next(left / self.geometry.sector_bytes * self.geometry.sector_bytes)
        {
            assert_eq!(block.psize_bytes, physical.len() as u64, "a block is written as it was read");
            let (offset_bytes, is_log_due) = self.ring.lock().place(block);
            assert_eq!(offset_bytes, from_bytes + taken, "a batch is one piece");
            taken += self.geometry.taken(block.psize_bytes);
            pieces.push((physical, self.geometry.taken(block.psize_bytes)));
            blocks += 1;
            if is_log_due {
                let (open, previous) = self.ring.lock().take_open();
                let (mut pointer, bytes) = stored(open, previous, &self.geometry);
                self.ring.lock().place_log(&mut pointer);
                assert_eq!(pointer.offset_bytes, from_bytes + taken, "a batch is one piece");
                taken += pointer.size_bytes();
                pieces.push((bytes.freeze(), pointer.size_bytes()));
                up(&counts.log_blk_writes);
                is_header_old = true;
            }
        }
        assert!(taken <= room_bytes, "no more is written than was forgotten");
        if blocks == 0 && !is_header_old {
            return false;
        }
        if blocks > 0 {
            up(&counts.feeds);
            up(&counts.writes_sent);
            let is_written = self.write_pieces(from_bytes, pieces).await;
            up(&counts.writes_done);
            if !is_written {
                up(&counts.writes_error);
                self.ring.lock().unplace(&before);
                return self.answered(false);
            }
            self.answered(true);
            more(&counts.write_bytes, taken);
            self.ring.lock().publish(&before);
        }
        is_header_old && self.write_header().await.is_err() && self.answered(false)
    }

    /// Writes a batch, in pieces of a good length.
    async fn write_pieces(&self, from_bytes: u64, pieces: Vec<(Block, u64)>) -> bool {
        let mut runs: Vec<Run> = Vec::new();
        let mut at = from_bytes;
        for (block, taken) in pieces {
            match runs.last_mut() {
                Some((_, len, run)) if *len + taken <= WRITE_MAX_BYTES as u64 => {
                    *len += taken;
                    run.push((block, taken));
                }
                _ => runs.push((at, taken, vec![(block, taken)])),
            }
            at += taken;
        }
        let is_good = AtomicBool::new(true);
        for_each_concurrent(WRITES_AT_ONCE, runs, async |(offset, len, run)| {
            let mut buf = Buf::zeroed(len as usize);
            let mut at = 0;
            for (block, taken) in run {
                buf[at..at + block.len()].copy_from_slice(&block);
                at += taken as usize;
            }
            if self.write_at(offset, buf.freeze()).await.is_err() {
                is_good.store(false, Ordering::Relaxed);
            }
        })
        .await;
        is_good.load(Ordering::Relaxed)
    }

    async fn write_header(&self) -> io::Result<()> {
        let header = {
            let ring = self.ring.lock();
            let (logs, logs_bytes) = ring.logs();
            CacheHeader {
                magic: 0,
                version: VERSION,
                pool_guid: self.ids.pool,
                device_guid: self.ids.device,
                log_entries: self.geometry.log_entries as u64,
                evict_bytes: ring.evict_bytes(),
                flags: if ring.is_first() { FIRST_SWEEP } else { 0 },
                start_bytes: self.geometry.start_bytes,
                end_bytes: self.geometry.end_bytes,
                newest: ring.newest_logs(),
                logs_bytes,
                logs,
                trim_time_s: 0,
                trim_state: 0,
            }
        };
        self.write_at(START_BYTES, header_sector(&header, self.geometry.sector_bytes).freeze()).await
    }

    /// Finds out what the device has, and has it be written from then on. `memory_max_bytes`: for all that it finds. True if it is given up now.
    #[boxed]
    pub(crate) async fn rebuild(&self, memory_max_bytes: usize, counts: &Counts) -> bool {
        let _writing = self.writing.lock().await;
        if !self.is_used() {
            return false;
        }
        let is_empty = match self.own_header(counts).await {
            Some(header) if self.geometry.log_entries > 0 => {
                self.resume(&header);
                let is_over = self.tunables.l2arc_rebuild_enabled && self.walk(&header, memory_max_bytes, counts).await;
                if is_over {
                    return self.give_up();
                }
                self.ring.lock().logs().0 == 0
            }
            _ => true,
        };
        // Without it, the next one that opens the device would find what is being written over.
        if is_empty && self.write_header().await.is_err() {
            return self.give_up();
        }
        self.is_ready.store(true, Ordering::Release);
        false
    }

    /// The header, if this device wrote it for this pool, and is as it was.
    async fn own_header(&self, counts: &Counts) -> Option<CacheHeader> {
        let Ok(sector) = self.read_at(START_BYTES, self.geometry.sector_bytes).await else {
            up(&counts.rebuild_dh_errors);
            return None;
        };
        let Some(header) = header_of(&sector) else {
            up(&counts.rebuild_dh_errors);
            return None;
        };
        let Geometry { start_bytes, end_bytes, log_entries, .. } = self.geometry;
        let is_own = header.pool_guid == self.ids.pool
            && header.device_guid == self.ids.device
            && header.version == VERSION
            && header.log_entries == log_entries as u64
            && (header.start_bytes, header.end_bytes) == (start_bytes, end_bytes)
            && (start_bytes..=end_bytes).contains(&header.evict_bytes);
        if !is_own {
            up(&counts.rebuild_unsupported);
        }
        is_own.then_some(header)
    }

    /// Goes on where the header says that the device was.
    fn resume(&self, header: &CacheHeader) {
        let Geometry { start_bytes, end_bytes, sector_bytes, .. } = self.geometry;
        let newest = &header.newest[0];
        let end = newest.offset_bytes.checked_add(newest.size_bytes());
        let hand = end.filter(|end| newest.offset_bytes >= start_bytes && *end <= end_bytes);
        let hand = hand.filter(|hand| hand.is_multiple_of(sector_bytes)).unwrap_or(start_bytes);
        let evict = header.evict_bytes / sector_bytes * sector_bytes;
        let is_first = header.flags & FIRST_SWEEP != 0;
        *self.ring.lock() = Ring::resumed(self.geometry, hand, evict.max(start_bytes), is_first);
    }

    /// Walks the log blocks from the newest on, until one is not what it should be. True if the device does not answer.
    async fn walk(&self, header: &CacheHeader, memory_max_bytes: usize, counts: &Counts) -> bool {
        let mut cursor = 0;
        let [mut log, mut next] = header.newest;
        while self.is_used() {
            let Some(from) = self.ring.lock().reaches(cursor, &log) else { break };
            let Ok(bytes) = self.read_at(log.offset_bytes, log.size_bytes()).await else {
                up(&counts.rebuild_io_errors);
                return self.answered(false);
            };
            let block = match opened(&log, &bytes, self.geometry.log_entries) {
                Ok(block) => block,
                Err(LogFault::Checksum | LogFault::Content) => {
                    up(&counts.rebuild_cksum_lb_errors);
                    break;
                }
            };
            let LogBlock { previous, blocks } = block;
            {
                let mut ring = self.ring.lock();
                if ring.memory_bytes() > memory_max_bytes {
                    up(&counts.rebuild_lowmem);
                    break;
                }
                let before = ring.blocks_bytes().1;
                let restored = ring.restore(&log, &blocks);
                more(&counts.rebuild_bufs, restored as u64);
                more(&counts.rebuild_asize, ring.blocks_bytes().1 - before);
            }
            up(&counts.rebuild_log_blks);
            cursor = from;
            (log, next) = (next, previous);
            cenote_taskq::give_way().await;
        }
        if self.ring.lock().logs().0 > 0 {
            up(&counts.rebuild_success);
        }
        false
    }
}
