//! Allocation, writes and shared flushes for the intent logs of a pool.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::Dmu;
use cenote_dmu::tx::Transactions;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{Guid, ObjsetId, Txg, VdevId};
use cenote_format::zil::LogBlock;
use cenote_taskq::buf::Buf;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use cenote_taskq::{AsyncMutex, Notify, Rng, Semaphore, race, wait_here};
use cenote_vdev::tree::{Suspension, VdevSet};
use cenote_zio::{Allocator, Bookmark, ZioError};

use crate::clients::Clients;
use crate::data::{Data, STORING_MAX_BYTES};
use crate::kstat::{Event, ZilCounts};
use crate::tunables::ZilTunables;

/// The failure of a device that has nothing but logs.
#[derive(Debug, thiserror::Error)]
enum LogDeviceError {
    /// A block could not be written.
    #[error(transparent)]
    Write(#[from] ZioError),
    /// A block was written, and its device could not be flushed.
    #[error("it could not be flushed")]
    Unflushed,
}

/// The way from the logs of a pool to its devices.
pub(crate) struct LogIo {
    pub(crate) dmu: Dmu,
    pub(crate) allocator: Arc<dyn Allocator>,
    flushes: Mutex<Flushes>,
    /// The number of the last flush that was good, and the leaves on which it was not. Held while devices are flushed.
    flushed: AsyncMutex<(u64, Arc<BTreeSet<Guid>>)>,
    /// Blocks that are being written, and those that are written and whose flush has not begun.
    writing: AtomicU64,
    unflushed: AtomicU64,
    /// Signalled when one of these counts decreases.
    moved: Notify,
    /// Room for what is stored for logs.
    pub(crate) storing: Arc<Semaphore>,
    /// Failures of log devices.
    failures: AtomicU64,
    /// Leaves that lack blocks of these txgs, first and last.
    missed: Mutex<BTreeMap<Guid, (Txg, Txg)>>,
    /// Blocks of claimed logs that replays have passed, by the txg that frees them.
    passed: Mutex<BTreeMap<Txg, Vec<Blkptr>>>,
    rng: Mutex<Rng>,
    pub(crate) tunables: ZilTunables,
    /// Of all logs.
    pub(crate) counts: ZilCounts,
}

/// Flushes that were begun, and those to come.
#[derive(Debug, Default)]
struct Flushes {
    /// So many were begun.
    begun: u64,
    /// Vdevs that the next one is for: they have been written since they were flushed last.
    wanted: VdevSet,
}

/// The vdevs of a flush that is under way. Where it does not succeed, the next one is for them too: clients that wait for that rely on it.
struct Flushing<'a> {
    io: &'a LogIo,
    vdevs: VdevSet,
}

impl Flushing<'_> {
    /// It has succeeded.
    fn done(mut self) {
        self.vdevs = VdevSet::default();
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.io.flushes.lock().wanted.absorb(self.vdevs);
    }
}

/// A block that is being written.
struct Ahead<'a>(&'a LogIo);

impl<'a> Ahead<'a> {
    fn begin(io: &'a LogIo) -> Self {
        io.writing.fetch_add(1, Ordering::AcqRel);
        Self(io)
    }

    /// It is; its flush comes next.
    fn written(self) {
        self.0.unflushed.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        self.0.writing.fetch_sub(1, Ordering::AcqRel);
        self.0.moved.all();
    }
}

impl LogIo {
    pub(crate) fn new(dmu: Dmu, allocator: Arc<dyn Allocator>, tunables: ZilTunables, seed: u64) -> Self {
        Self {
            dmu,
            allocator,
            flushes: Mutex::default(),
            flushed: AsyncMutex::default(),
            writing: AtomicU64::new(0),
            unflushed: AtomicU64::new(0),
            moved: Notify::new(),
            storing: Arc::new(Semaphore::new(STORING_MAX_BYTES)),
            failures: AtomicU64::new(0),
            missed: Mutex::default(),
            passed: Mutex::default(),
            rng: Mutex::new(Rng::new(seed)),
            tunables,
            counts: ZilCounts::default(),
        }
    }

    /// Bytes of the largest block, unless a record needs more.
    pub(crate) const fn block_max_bytes(&self) -> usize {
        self.tunables.zil_maxblocksize as usize / LogBlock::SIZE_MIN * LogBlock::SIZE_MIN
    }

    pub(crate) fn random_guid(&self, objset: ObjsetId) -> [u64; 2] {
        let mut rng = self.rng.lock();
        [rng.next_u64() ^ objset.0, rng.next_u64()]
    }

    pub(crate) fn missed(&self, leaves: impl IntoIterator<Item = Guid>, txg: Txg) {
        self.missed_between(leaves, txg, txg);
    }

    fn missed_between(&self, leaves: impl IntoIterator<Item = Guid>, first: Txg, last: Txg) {
        let mut missed = self.missed.lock();
        for leaf in leaves {
            let txgs = missed.entry(leaf).or_insert((first, last));
            *txgs = (txgs.0.min(first), txgs.1.max(last));
        }
    }

    /// Blocks that are written by now need not be waited for: those that are written from now on miss this flush.
    fn flush_begins(&self) {
        self.unflushed.store(0, Ordering::Release);
        self.moved.all();
    }

    /// Whether a block with this data is made stable by its own write (`RWF_DSYNC`): one request instead of a write and a flush. Blocks
    /// in flight at the same time do so too. The kernel sends a device one flush at a time, and all writes that end meanwhile share the
    /// next flush. So the kernel merges flushes as we would, but without a wake-up of this process between a write and its flush, and
    /// only on the leaves that have the block.
    fn writes_stably(&self, data: &Data) -> bool {
        data.is_empty() && !self.tunables.zil_nocacheflush
    }

    /// All clients of a log wait, so its burst need not be delayed any longer.
    pub(crate) fn nobody_comes(&self) {
        self.moved.all();
    }

    /// Waits while blocks are being written or wait for their flush to begin, but not longer than the given time. The device is busy
    /// meanwhile, and one block with more records is less work for it than several.
    pub(crate) async fn while_others_are_ahead(&self, most: Duration, clients: &Clients) {
        let end = self.dmu.handle().now() + most;
        let flushes = self.flushes.lock().begun;
        loop {
            let moved = self.moved.wait();
            let ahead = self.writing.load(Ordering::Acquire) + self.unflushed.load(Ordering::Acquire);
            let left = end.since(self.dmu.handle().now());
            // Others, of other logs, may always be ahead: the next flush is the one that is missed.
            let is_in_vain = ahead == 0 || left.is_zero() || !clients.may_come();
            if is_in_vain || self.flushes.lock().begun != flushes {
                return;
            }
            race(moved, self.dmu.handle().sleep(left)).await;
        }
    }

    /// Flushes these vdevs, once for all callers that wait meanwhile. Returns the leaves whose flush failed, or `None` if too few leaves
    /// succeeded. The leaves of other vdevs are not flushed, so a log device does not wait for the pool's disks.
    pub(crate) async fn flush(&self, vdevs: VdevSet, txgs: &Transactions) -> Option<Arc<BTreeSet<Guid>>> {
        if self.tunables.zil_nocacheflush {
            self.flush_begins();
            return Some(Arc::default());
        }
        // A flush of a higher number begins after this, and is for these vdevs.
        let begun = {
            let mut flushes = self.flushes.lock();
            flushes.wanted.absorb(vdevs);
            flushes.begun
        };
        let mut flushed = self.flushed.lock().await;
        let is_after = flushed.0 > begun || (mutant::is(Mutant::LogFlushEarlier) && flushed.0 == begun && begun > 0);
        if is_after {
            return Some(flushed.1.clone());
        }
        let (number, flushing) = {
            let mut flushes = self.flushes.lock();
            flushes.begun += 1;
            (flushes.begun, Flushing { io: self, vdevs: std::mem::take(&mut flushes.wanted) })
        };
        self.counts.count(Event::Flush);
        self.flush_begins();
        let tree = self.dmu.zio().tree();
        let failed = match tree.flush_of(flushing.vdevs).await {
            Ok(failed) if failed.is_empty() => BTreeSet::new(),
            // Enough others have all, which only a tree that waits for devices makes sure of, and not for log devices.
            Ok(failed) if tree.suspension().is_some() => {
                self.missed_between(failed.iter().copied(), Txg(txgs.synced_txg().0 + 1), txgs.open_txg());
                failed.into_iter().collect()
            }
            _ => return None,
        };
        flushing.done();
        *flushed = (number, Arc::new(failed));
        Some(flushed.1.clone())
    }

    /// Writes a block of a log, and has its devices make it stable, with what its records point to, which is being stored. Whether all is, on
    /// as many leaves as it takes, and clients may be told: not where another host may have the pool by now. They wait for a txg then, which
    /// is not committed before the labels were looked at.
    pub(crate) async fn write(
        &self,
        bookmark: Bookmark,
        at: &Blkptr,
        bytes: Buf,
        data: Data,
        txgs: &Transactions,
    ) -> bool {
        let is_stable = self.write_stably(bookmark, at, bytes, data, txgs).await;
        is_stable && self.dmu.zio().tree().suspension().is_none_or(Suspension::may_acknowledge)
    }

    async fn write_stably(&self, bookmark: Bookmark, at: &Blkptr, bytes: Buf, data: Data, txgs: &Transactions) -> bool {
        let device = at.dvas().map(|dva| dva.vdev).find(|vdev| self.allocator.is_log_device(*vdev));
        let Some(device) = device else {
            let wants_stable = self.writes_stably(&data);
            let vdevs = data.vdevs_with(at);
            let ahead = Ahead::begin(self);
            let is_stable = wants_stable && !mutant::is(Mutant::LogUnflushed);
            let written = self.write_block(bookmark, at, bytes, is_stable, true).await;
            let Ok(missed) = written else { return false };
            if wants_stable && missed.is_empty() {
                self.counts.count(Event::Stable);
                return true;
            }
            self.missed(missed, at.birth());
            if !data.stored().await {
                return false;
            }
            ahead.written();
            return mutant::is(Mutant::LogUnflushed) || self.flush(vdevs, txgs).await.is_some();
        };
        // A failure of another block counts: between a write and its flush the device may have come back without it.
        let failures = self.failures.load(Ordering::Acquire);
        match self.write_to_device(device, bookmark, at, bytes, data, txgs).await {
            Ok(is_stored) => is_stored && self.failures.load(Ordering::Acquire) == failures,
            Err(why) => {
                self.failures.fetch_add(1, Ordering::AcqRel);
                self.allocator.log_device_failed(device, &why.to_string());
                false
            }
        }
    }

    /// Whether a block is one request to one device.
    pub(crate) fn is_on_one_leaf(&self, at: &Blkptr) -> bool {
        let mut places = at.dvas();
        match (places.next(), places.next()) {
            (Some(dva), None) => self.dmu.zio().tree().is_leaf(dva.vdev),
            _ => false,
        }
    }

    /// Writes a block to its DVA and returns the leaves that missed it. If the block is on a single leaf, the thread of the front end
    /// itself waits for the write.
    async fn write_block(
        &self,
        bookmark: Bookmark,
        at: &Blkptr,
        bytes: Buf,
        is_stable: bool,
        waits: bool,
    ) -> Result<Vec<Guid>, ZioError> {
        let write = self.dmu.zio().write_log(self.allocator.as_ref(), bookmark, at, bytes, is_stable, waits);
        if self.is_on_one_leaf(at) { wait_here(write).await } else { write.await }
    }

    /// The same on a device that has nothing but logs, and for which nobody waits. Whether what the records point to is stored.
    async fn write_to_device(
        &self,
        device: VdevId,
        bookmark: Bookmark,
        at: &Blkptr,
        bytes: Buf,
        data: Data,
        txgs: &Transactions,
    ) -> Result<bool, LogDeviceError> {
        let is_stable = self.writes_stably(&data);
        let vdevs = data.vdevs_with(at);
        let tree = self.dmu.zio().tree();
        let before = tree.flush_failures_of(device);
        let ahead = Ahead::begin(self);
        let written = self.write_block(bookmark, at, bytes, is_stable, false).await;
        let missed = match written {
            Ok(missed) => missed,
            // No failure of the device: nothing is written while the pool is suspended.
            Err(_) if tree.suspension().is_some_and(|suspension| suspension.reason().is_some()) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if is_stable && missed.is_empty() {
            self.counts.count(Event::Stable);
            return Ok(true);
        }
        self.missed(missed.iter().copied(), at.birth());
        if !data.stored().await {
            return Ok(false);
        }
        ahead.written();
        let failed = self.flush(vdevs, txgs).await.ok_or(LogDeviceError::Unflushed)?;
        // The flush of somebody else may have failed between the write and this one's flush.
        let after: BTreeMap<Guid, u64> = tree.flush_failures_of(device).into_iter().collect();
        let mut leaves = before.iter().filter(|(leaf, failures)| after.get(leaf) == Some(failures));
        match leaves.any(|(leaf, _)| !failed.contains(leaf) && !missed.contains(leaf)) {
            true => Ok(true),
            false => Err(LogDeviceError::Unflushed),
        }
    }

    pub(crate) fn free_passed(&self, txg: Txg, blocks: Vec<Blkptr>) {
        self.passed.lock().entry(txg).or_default().extend(blocks);
    }

    /// Blocks that replays have passed in txgs up to this one; each is given once.
    pub(crate) fn take_passed(&self, until: Txg) -> Vec<Blkptr> {
        let mut passed = self.passed.lock();
        let later = passed.split_off(&Txg(until.0 + 1));
        std::mem::replace(&mut *passed, later).into_values().flatten().collect()
    }

    /// Leaves that lack blocks of logs of txgs up to this one, with the first and the last txg of those; each is given once.
    pub(crate) fn take_missed(&self, until: Txg) -> BTreeMap<Guid, (Txg, Txg)> {
        let mut missed = self.missed.lock();
        let all = std::mem::take(&mut *missed);
        missed.extend(
            all.iter()
                .filter(|(_, (_, last))| *last > until)
                .map(|(leaf, (first, last))| (*leaf, ((*first).max(Txg(until.0 + 1)), *last))),
        );
        let now = all.into_iter().filter(|(_, (first, _))| *first <= until);
        now.map(|(leaf, (first, last))| (leaf, (first, last.min(until)))).collect()
    }
}
