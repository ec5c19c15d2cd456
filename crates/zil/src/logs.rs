//! The open intent logs of a pool.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::Dmu;
use cenote_dmu::tx::Transactions;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{Guid, ObjectId, ObjsetId, Txg, VdevId};
use cenote_kstat::{Sheet, Snapshot};
use cenote_taskq::boxed;
use cenote_taskq::sync::Mutex;
use cenote_zio::Allocator;

use crate::log_io::LogIo;
use crate::tunables::ZilTunables;
use crate::writer::{LogWriter, Retired};

/// The logs of the datasets in use. Cheap to clone.
#[derive(Clone)]
pub struct Logs {
    shared: Arc<Shared>,
}

struct Shared {
    io: Arc<LogIo>,
    txgs: Transactions,
    writers: Mutex<BTreeMap<ObjectId, Arc<LogWriter>>>,
}

impl Logs {
    /// Those of a pool, of which none is in use. `seed`: another one each time.
    #[must_use]
    pub fn new(dmu: Dmu, allocator: Arc<dyn Allocator>, txgs: Transactions, tunables: ZilTunables, seed: u64) -> Self {
        let io = LogIo::new(dmu, allocator, tunables, seed);
        Self { shared: Arc::new(Shared { io: Arc::new(io), txgs, writers: Mutex::default() }) }
    }

    /// The log of a head dataset that is open for writing.
    pub(crate) fn writer(&self, dataset: ObjectId) -> Arc<LogWriter> {
        let shared = &self.shared;
        let handle = shared.io.dmu.handle().clone();
        let new = || LogWriter::new(ObjsetId(dataset.0), handle, shared.txgs.clone(), shared.io.clone());
        shared.writers.lock().entry(dataset).or_insert_with(|| Arc::new(new())).clone()
    }

    /// Called in the sync of a txg: retires the blocks of a dataset's log. A log without users is forgotten when it has no blocks left.
    #[must_use]
    pub fn retire(&self, dataset: ObjectId, txg: Txg) -> Option<(Arc<LogWriter>, Retired)> {
        let mut writers = self.shared.writers.lock();
        let writer = writers.get(&dataset)?;
        let retired = writer.retire(txg, Arc::strong_count(writer) > 1);
        assert!(
            !retired.is_over || retired.first.is_hole(),
            "a log that is over has no block in its header (invariant 8)"
        );
        let writer = writer.clone();
        if retired.is_over {
            writers.remove(&dataset);
        }
        Some((writer, retired))
    }

    /// Whether there are no logs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.writers.lock().is_empty()
    }

    /// Waits until all log writes in flight have ended. A log block in flight keeps its log in use even if its client was dropped.
    ///
    /// A task of the pool's [detached](Dmu::detached) work must not await this: it would wait for itself.
    pub async fn arrived(&self) {
        let detached = self.shared.io.dmu.detached();
        // Bursts; the blocks that they have sent on their way, and those that they make ready; and what of these is stored.
        for _ in 0..3 {
            detached.wait().await;
        }
    }

    /// Whether there are logs without users that still have blocks. Logs that have none are forgotten.
    #[must_use]
    pub fn has_unused(&self) -> bool {
        let mut writers = self.shared.writers.lock();
        writers.retain(|_, writer| Arc::strong_count(writer) > 1 || !writer.is_over());
        writers.values().any(|writer| Arc::strong_count(writer) == 1)
    }

    /// Whether the log of a dataset has blocks, or users that may write some.
    #[must_use]
    pub fn holds(&self, dataset: ObjectId) -> bool {
        let writers = self.shared.writers.lock();
        writers.get(&dataset).is_some_and(|writer| Arc::strong_count(writer) > 1 || !writer.is_over())
    }

    /// Waits until every log block is written that precedes a block allocated in this txg or earlier. Once the txg is on disk the later
    /// block counts as allocated; without the block before it, no claim would find it after a crash, and it would leak.
    pub async fn landed(&self, txg: Txg) {
        let writers: Vec<_> = self.shared.writers.lock().values().cloned().collect();
        for writer in writers {
            writer.landed(txg).await;
        }
    }

    /// Makes all logs leave a vdev that gets no more allocations: a log with a block there is marked as broken, and begins a new chain
    /// when the txgs of its records are on disk. Returns whether there was such a log.
    pub fn leave(&self, vdev: VdevId) -> bool {
        let writers: Vec<_> = self.shared.writers.lock().values().cloned().collect();
        writers.into_iter().filter(|writer| writer.leave(vdev)).count() > 0
    }

    /// Whether the header of a dataset names a chain that its log in use has begun, or none any more. One that a crash has left belongs to
    /// nobody, though the dataset be in use, until it is replayed or given up.
    #[must_use]
    pub fn own_chain(&self, dataset: ObjectId) -> bool {
        self.shared.writers.lock().get(&dataset).is_some_and(|writer| writer.owns_chain())
    }

    /// Whether a log in use has a block on a vdev.
    #[must_use]
    pub fn use_vdev(&self, vdev: VdevId) -> bool {
        self.shared.writers.lock().values().any(|writer| writer.uses_vdev(vdev))
    }

    /// Blocks of logs in use that are allocated, and on no device yet as far as is known: they may be written at any time.
    #[must_use]
    pub fn unwritten(&self) -> Vec<Blkptr> {
        self.shared.writers.lock().values().flat_map(|writer| writer.unwritten()).collect()
    }

    /// Called in the sync of a txg: begins a chain, and returns its first block; `None` if there is no space. `has_xattrs`: the log may
    /// have records of extended attributes.
    #[boxed]
    pub async fn begin_chain(&self, writer: &LogWriter, txg: Txg, has_xattrs: bool) -> Option<Blkptr> {
        let io = &self.shared.io;
        let size_bytes = cenote_format::zil::LogBlock::SIZE_MIN as u64;
        let placed = io.dmu.zio().place_log(io.allocator.as_ref(), size_bytes, txg, writer.new_identity()).await;
        let first = placed.ok()?;
        writer.begin_chain(txg, first, has_xattrs);
        Some(first)
    }

    /// A txg is on disk.
    pub fn synced(&self, txg: Txg) {
        let writers: Vec<_> = self.shared.writers.lock().values().cloned().collect();
        for writer in writers {
            writer.synced(txg);
        }
    }

    /// Adds the counters of all logs to a kstat group.
    pub fn kstat(&self, snapshot: &mut Snapshot) {
        self.shared.io.counts.kstat(snapshot.group("zil"));
    }

    /// Enters what the log of a dataset has done into the dataset's group.
    pub fn kstat_of(&self, dataset: ObjectId, sheet: &mut Sheet) {
        let writer = self.shared.writers.lock().get(&dataset).cloned();
        writer.inspect(|writer| writer.kstat(sheet));
    }

    /// Called in the sync of a txg: the blocks of claimed logs that replays have passed and that the txg frees.
    #[must_use]
    pub fn take_passed(&self, txg: Txg) -> Vec<Blkptr> {
        self.shared.io.take_passed(txg)
    }

    /// Leaves that lack blocks of logs of txgs up to this one, with the first and the last txg of those; each is given once.
    #[must_use]
    pub fn take_missed(&self, until: Txg) -> BTreeMap<Guid, (Txg, Txg)> {
        self.shared.io.take_missed(until)
    }
}
