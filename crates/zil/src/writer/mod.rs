//! The log of one dataset, as it is written.
//!
//! ```text
//! commit ─► ask for the object ─► a burst (one at a time, a task): take the order, fill lwbs, place the next
//!    │                                 │ when the last block is full the next burst may begin
//!    └◄── all up to the goal stable ◄──┴── each block written so that it is stable
//!         or its txg on disk
//! ```

mod blocks;
mod commit;
mod issue;
mod prepared;
mod waiting;

use std::ops::Range;
use std::sync::{Arc, Weak};

use cenote_dmu::LogBlock;
use cenote_dmu::tx::Transactions;
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{ObjectId, ObjsetId, Txg, VdevId};
use cenote_kstat::Sheet;
use cenote_taskq::buf::Block;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_taskq::{AsyncMutex, Group, Handle, boxed};

use crate::clients::Clients;
use crate::indirect::LogTxg;
use crate::itx::{Itx, ItxWrite, Payload, Queue};
use crate::kstat::{BlockBytes, Event, Logged, ZilCounts};
use crate::log_io::LogIo;
pub use blocks::Retired;
use blocks::{Blocks, Phase};
use issue::Issuer;
use waiting::Waiting;

/// The reason why the data of a logged write cannot be read: an error of the file system or volume, of a layer above this one.
pub type LogDataError = Box<dyn std::error::Error + Send + Sync>;

/// The file system or volume of a log, as far as the log reads it.
pub trait LogData: Send + Sync {
    /// The block of an object that has these bytes, all of which it has, as a txg has it ([`LogTxg::block`]). `None` where it is not to be had:
    /// then the bytes are read.
    ///
    /// # Errors
    /// The object cannot be read.
    #[boxed]
    async fn block(
        &self,
        object: ObjectId,
        generation: u64,
        bytes: Range<u64>,
        at: LogTxg<'_>,
    ) -> Result<Option<LogBlock>, LogDataError>;

    /// Bytes of an object as they are now. `None` where the object of this generation is no more, or ends before: a later change has
    /// taken them away, which the caller cannot have logged yet.
    ///
    /// # Errors
    /// They cannot be read.
    #[boxed]
    async fn read(
        &self,
        object: ObjectId,
        generation: u64,
        offset_bytes: u64,
        len: usize,
    ) -> Result<Option<Block>, LogDataError>;
}

/// The log cannot make a change stable; the caller has to wait for this txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitFor(pub(crate) Txg);

/// The log of one dataset in use.
pub struct LogWriter {
    pub(crate) objset: ObjsetId,
    pub(crate) handle: Handle,
    pub(crate) txgs: Transactions,
    pub(crate) io: Arc<LogIo>,
    queue: Mutex<Queue>,
    /// Held by the burst that fills and issues blocks.
    issuer: AsyncMutex<Issuer>,
    blocks: Mutex<Blocks>,
    waiting: Waiting,
    clients: Clients,
    pub(crate) data: Mutex<Option<Weak<dyn LogData>>>,
    /// Time from the issue of a block to its being stable, lately; 0 before the first.
    latency_ns: AtomicU64,
    has_xattrs: AtomicBool,
    is_wanted: AtomicBool,
    /// The property `logbias` is `throughput`.
    pub(crate) is_for_throughput: AtomicBool,
    counts: ZilCounts,
}

impl LogWriter {
    pub(crate) fn new(objset: ObjsetId, handle: Handle, txgs: Transactions, io: Arc<LogIo>) -> Self {
        let synced = txgs.synced_txg();
        Self {
            objset,
            handle,
            txgs,
            io,
            queue: Mutex::new(Queue::new(synced)),
            issuer: AsyncMutex::new(Issuer::default()),
            blocks: Mutex::new(Blocks::default()),
            waiting: Waiting::default(),
            clients: Clients::default(),
            data: Mutex::new(None),
            latency_ns: AtomicU64::new(0),
            has_xattrs: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            is_for_throughput: AtomicBool::new(false),
            counts: ZilCounts::default(),
        }
    }

    /// Sets the source from which the data of writes is read when their records are made.
    pub(crate) fn set_data(&self, data: Weak<dyn LogData>) {
        *self.data.lock() = Some(data);
    }

    /// Notes that the dataset is being changed, so that a chain is begun. Returns whether this is its first change.
    pub(crate) fn want(&self) -> bool {
        // Every change asks.
        let is_news = !self.is_wanted.load(Ordering::Relaxed) && !self.is_wanted.swap(true, Ordering::Relaxed);
        if is_news {
            let mut blocks = self.blocks.lock();
            assert_eq!(blocks.phase, Phase::Idle, "a log is wanted once");
            blocks.phase = Phase::Wanted;
        }
        is_news
    }

    pub(crate) fn push(&self, txg: Txg, record: Vec<u8>) {
        self.queue.lock().push(Itx { txg, payload: Payload::Record(record) });
    }

    /// The same for a rename of an object: what was done to it before comes before.
    pub(crate) fn push_rename(&self, txg: Txg, object: ObjectId, record: Vec<u8>) {
        let mut queue = self.queue.lock();
        queue.async_to_sync(Some(object));
        queue.push(Itx { txg, payload: Payload::Record(record) });
    }

    pub(crate) fn push_of(&self, txg: Txg, object: ObjectId, record: Vec<u8>) {
        self.queue.lock().push_of(object, Itx { txg, payload: Payload::Record(record) });
    }

    pub(crate) fn push_write(&self, txg: Txg, write: ItxWrite) {
        self.queue.lock().push_of(write.object, Itx { txg, payload: Payload::Write(write) });
    }

    pub(crate) fn forget(&self, object: ObjectId) {
        self.queue.lock().forget(object);
    }

    /// A change of this txg has no record.
    pub(crate) fn not_logged(&self, txg: Txg) {
        self.queue.lock().not_logged(txg);
    }

    /// A txg is on disk.
    pub(crate) fn synced(&self, txg: Txg) {
        let gone = self.queue.lock().synced(txg);
        self.blocks.lock().synced(txg);
        self.waiting.all();
        drop(gone);
    }

    /// Called in the sync of a txg: returns the log blocks that no replay can need once this txg is on disk, and the first block that
    /// stays.
    pub(crate) fn retire(&self, txg: Txg, is_used: bool) -> Retired {
        self.blocks.lock().retire(txg, is_used)
    }

    /// Waits until no block is on its way that leads to one which was allocated in this txg or before.
    pub(crate) async fn landed(&self, txg: Txg) {
        loop {
            // Each block that lands has those look again whose number is stable already.
            let last = self.blocks.lock().issued;
            let passed = self.waiting.until(last);
            if !self.blocks.lock().are_landing(txg) {
                return;
            }
            passed.wait().await;
        }
    }

    /// Marks the log as broken if it has a block on this vdev, and returns whether it had one.
    pub(crate) fn leave(&self, vdev: VdevId) -> bool {
        let is_there = {
            let mut blocks = self.blocks.lock();
            let is_there = blocks.are_on(vdev);
            if is_there {
                blocks.break_off();
            }
            is_there
        };
        if is_there {
            // Those that wait for a block that is not on its way have to wait for a txg instead.
            self.waiting.all();
        }
        is_there
    }

    /// Whether the dataset's header names a chain of this log, or none any more: not one that was there before.
    pub(crate) fn owns_chain(&self) -> bool {
        self.blocks.lock().is_ours()
    }

    /// Whether it has a block on a vdev.
    pub(crate) fn uses_vdev(&self, vdev: VdevId) -> bool {
        self.blocks.lock().are_on(vdev)
    }

    /// Blocks that are allocated, and on no device yet as far as is known.
    pub(crate) fn unwritten(&self) -> Vec<Blkptr> {
        self.blocks.lock().unwritten().collect()
    }

    /// Whether no block of the log is left.
    pub(crate) fn is_over(&self) -> bool {
        self.blocks.lock().is_over()
    }

    /// In the sync of a txg: a chain is begun with this block, which the header names from then on.
    pub(crate) fn begin_chain(&self, txg: Txg, first: Blkptr, has_xattrs: bool) {
        self.blocks.lock().begin(txg, first);
        self.has_xattrs.store(has_xattrs, Ordering::Relaxed);
    }

    /// Counts an event for this log and for the pool.
    fn count(&self, event: Event) {
        self.counts.count(event);
        self.io.counts.count(event);
    }

    fn count_all(&self, event: Event, count: usize) {
        self.counts.count_all(event, count);
        self.io.counts.count_all(event, count);
    }

    fn count_write(&self, how: Logged, bytes: u64) {
        self.counts.write(how, bytes);
        self.io.counts.write(how, bytes);
    }

    /// Work that goes on when nobody waits for it.
    pub(crate) fn detached(&self) -> &Group {
        self.io.dmu.detached()
    }

    pub(crate) fn set_for_throughput(&self, is_for_throughput: bool) {
        self.is_for_throughput.store(is_for_throughput, Ordering::Relaxed);
    }

    fn count_block(&self, at: &Blkptr, bytes: BlockBytes) {
        let is_slog = at.dvas().any(|dva| self.io.allocator.is_log_device(dva.vdev));
        self.counts.block(is_slog, bytes);
        self.io.counts.block(is_slog, bytes);
    }

    pub(crate) fn kstat(&self, sheet: &mut Sheet) {
        self.counts.kstat(sheet);
    }

    /// Whether the log may have records of extended attributes.
    pub(crate) fn has_xattrs(&self) -> bool {
        self.has_xattrs.load(Ordering::Relaxed)
    }

    /// A new log has this identity.
    #[must_use]
    pub(crate) fn new_identity(&self) -> [u64; 4] {
        let guid = self.io.random_guid(self.objset);
        [guid[0], guid[1], self.objset.0, 1]
    }
}

impl std::fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogWriter").field("objset", &self.objset).finish_non_exhaustive()
    }
}
