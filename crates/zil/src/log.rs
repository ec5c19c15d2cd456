//! The changes of an open dataset: the txgs that they are assigned to, and the intent log that makes them stable earlier.
//!
//! `fsync`, `O_SYNC`, NBD's `FLUSH` and `FUA` and the property `sync` all end here; `crates/crash` checks that what is acknowledged here
//! survives power cuts. A change adds an itx for its replay while its txg is open ([`LoggedTx::log`]). A change that adds none makes
//! later commits wait for its txg, so forgetting to log costs time and loses no data.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use cenote_dmu::tx::{Cost, PendingFrees, SyncMode, Tx, TxError, TxgSource};
use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zil::{self as format, LogRecord, SetSaXattr};
use cenote_taskq::buf::Block;
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use cenote_taskq::{BoxFuture, boxed};
use cenote_zio::ORDER;

use crate::indirect::WriteShape;
use crate::itx::{Goal, ItxWrite};
use crate::logs::Logs;
use crate::writer::{LogData, LogWriter, WaitFor};

/// The txgs of a dataset and its log.
pub struct Log {
    pub(crate) source: Arc<dyn TxgSource>,
    mode: AtomicU64,
    /// None where the dataset has no log: then its txgs are waited for.
    pub(crate) writer: Option<Arc<LogWriter>>,
    /// The newest txg that the dataset may have been changed in.
    changed: AtomicU64,
}

impl Log {
    /// For a dataset whose changes are assigned to txgs of `source`, with its log from the pool's logs.
    #[must_use]
    pub fn new(source: Arc<dyn TxgSource>, mode: SyncMode, logs: &Logs, dataset: ObjectId) -> Self {
        let writer = Some(logs.writer(dataset));
        Self { source, mode: AtomicU64::new(mode.number()), writer, changed: AtomicU64::new(0) }
    }

    /// For a dataset without a log.
    #[must_use]
    pub const fn without(source: Arc<dyn TxgSource>, mode: SyncMode) -> Self {
        Self { source, mode: AtomicU64::new(mode.number()), writer: None, changed: AtomicU64::new(0) }
    }

    /// The present value of the property `sync`.
    #[must_use]
    pub fn mode(&self) -> SyncMode {
        SyncMode::of_number(self.mode.load(Ordering::Acquire))
    }

    /// Applies a new value of the property `sync`, from the next change and the next commit on. Changes made while it was
    /// `disabled` have no records, so the next client that syncs waits for their txgs.
    pub fn set_mode(&self, mode: SyncMode) {
        self.mode.store(mode.number(), Ordering::Release);
    }

    /// Applies the property `logbias` (`throughput` or `latency`) to writes from now on.
    pub fn set_for_throughput(&self, is_for_throughput: bool) {
        if let Some(writer) = &self.writer {
            writer.set_for_throughput(is_for_throughput);
        }
    }

    /// Sets the source from which the data of writes is read when their records are made (OpenZFS's `zl_get_data`).
    pub fn set_data(&self, data: Weak<dyn LogData>) {
        if let Some(writer) = &self.writer {
            writer.set_data(data);
        }
    }

    /// A txg for a change that says what is to be logged.
    ///
    /// # Errors
    /// As [`TxgSource::begin`].
    pub async fn begin_change(&self, cost: Cost) -> Result<LoggedTx, TxError> {
        let tx = self.begin_noted(cost).await?;
        // With `sync=disabled` no client waits for it, so it need not be logged; it is noted as a change without a record, since the
        // property may change.
        let makes_records = self.writer.is_some() && self.mode() != SyncMode::Disabled;
        Ok(LoggedTx { log: self.writer.clone(), makes_records, is_logged: false, tx })
    }

    async fn begin_noted(&self, cost: Cost) -> Result<Tx, TxError> {
        let tx = self.source.begin(cost).await?;
        self.note(&tx);
        Ok(tx)
    }

    /// Takes note of the dataset being changed.
    fn note(&self, tx: &Tx) {
        assert!(tx.txg() > Txg(0), "txg 0 says that nothing was changed");
        if self.changed.load(Ordering::Acquire) < tx.txg().0 {
            self.changed.fetch_max(tx.txg().0, Ordering::AcqRel);
        }
        if let Some(writer) = &self.writer
            && self.mode() != SyncMode::Disabled
            && writer.want()
        {
            // So that the first client that waits finds a block allocated.
            self.source.hurry();
        }
    }

    /// Whether blocks that a replay has passed can be freed: not where the log is not the pool's.
    pub(crate) const fn frees_passed(&self) -> bool {
        self.writer.is_some()
    }

    /// A replay has passed these blocks: they are freed in the sync of this txg, which the caller holds.
    pub(crate) fn free_passed(&self, txg: Txg, blocks: Vec<Blkptr>) {
        if let Some(writer) = &self.writer {
            writer.io.free_passed(txg, blocks);
        }
    }

    /// Waits until everything that was changed so far, of an object or of all, is stable, as a client has asked for (`fsync`, `FLUSH`);
    /// with `sync=disabled` it returns at once.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn sync(&self, object: Option<ObjectId>) -> Result<(), TxError> {
        if mutant::is(Mutant::FsyncEarly) {
            return Ok(());
        }
        let changed = Txg(self.changed.load(Ordering::Acquire));
        if self.mode() == SyncMode::Disabled || changed == Txg(0) {
            return Ok(());
        }
        let Some(writer) = &self.writer else { return self.source.wait_synced(changed).await };
        committed(self.source.as_ref(), writer, writer.ask(object)).await
    }

    /// Begins the same commit without waiting for it (an asynchronous `fsync`): the records are issued at once, and the ticket tells when
    /// all changes made before the call are stable. Several tickets share log blocks as several clients do.
    pub fn ticket(&self, object: Option<ObjectId>) -> Ticket {
        let changed = Txg(self.changed.load(Ordering::Acquire));
        let is_stable = mutant::is(Mutant::FsyncEarly) || self.mode() == SyncMode::Disabled || changed == Txg(0);
        let asked = match &self.writer {
            _ if is_stable => Asked::Nothing,
            None => Asked::Txg(changed),
            Some(writer) => {
                let goal = writer.ask(object);
                writer.begin(goal);
                Asked::Log(writer.clone(), goal)
            }
        };
        Ticket { source: self.source.clone(), asked }
    }

    /// Waits at the end of a change where the property `sync` says so, or where the client asked for this one change to be durable
    /// (`is_asked`: `FUA`, `O_SYNC`).
    ///
    /// # Errors
    /// It could not be written.
    pub async fn commit_if_sync(&self, is_asked: bool, object: Option<ObjectId>) -> Result<(), TxError> {
        if mutant::is(Mutant::FuaIgnored) {
            return Ok(());
        }
        match is_asked || self.mode() == SyncMode::Always {
            // Changes that others have made since are waited for too; their records are in the same block most of the time.
            true => self.sync(object).await,
            false => Ok(()),
        }
    }
}

/// Waits until a goal is stable by the log, or where the log cannot have it by a txg.
async fn committed(source: &dyn TxgSource, writer: &Arc<LogWriter>, goal: Goal) -> Result<(), TxError> {
    let committed = async move { Ok(writer.wait_for(goal).await.err().map(|WaitFor(txg)| txg)) };
    match source.unless_refused(Box::pin(committed)).await? {
        None => Ok(()),
        Some(txg) => source.wait_synced(txg).await,
    }
}

/// A commit that was asked for and need not be waited for yet ([`Log::ticket`]). One that is dropped takes nothing back.
#[must_use = "nothing is promised before the ticket was waited for"]
pub struct Ticket {
    source: Arc<dyn TxgSource>,
    asked: Asked,
}

enum Asked {
    /// All was stable, or is never waited for.
    Nothing,
    /// The dataset has no log.
    Txg(Txg),
    Log(Arc<LogWriter>, Goal),
}

impl Ticket {
    /// Waits until all that was changed before the ticket was taken is stable.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn wait(self) -> Result<(), TxError> {
        match &self.asked {
            Asked::Nothing => Ok(()),
            Asked::Txg(txg) => self.source.wait_synced(*txg).await,
            Asked::Log(writer, goal) => committed(self.source.as_ref(), writer, *goal).await,
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").finish_non_exhaustive()
    }
}

/// A txg that is assigned here counts as one with a change without a record.
impl TxgSource for Log {
    #[boxed]
    async fn begin(&self, cost: Cost) -> Result<Tx, TxError> {
        let tx = self.begin_noted(cost).await?;
        if let Some(writer) = &self.writer {
            writer.not_logged(tx.txg());
        }
        Ok(tx)
    }

    #[boxed]
    async fn begin_apart(&self, cost: Cost) -> Result<Tx, TxError> {
        let tx = self.source.begin_apart(cost).await?;
        self.changed.fetch_max(tx.txg().0, Ordering::AcqRel);
        Ok(tx)
    }

    #[boxed]
    async fn begin_replayed(&self, cost: Cost) -> Result<Tx, TxError> {
        self.wait_for_room(&cost).await?;
        let tx = self.source.begin_replayed(cost).await?;
        self.note(&tx);
        if let Some(writer) = &self.writer {
            writer.not_logged(tx.txg());
        }
        Ok(tx)
    }

    fn wait_synced(&self, txg: Txg) -> BoxFuture<'_, Result<(), TxError>> {
        self.source.wait_synced(txg)
    }

    fn log_replayed(&self, until: Txg) -> BoxFuture<'_, Result<(), TxError>> {
        self.source.log_replayed(until)
    }

    fn frees_begin(&self) -> Option<Box<dyn PendingFrees>> {
        self.source.frees_begin()
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("mode", &self.mode()).field("changed", &self.changed).finish_non_exhaustive()
    }
}

/// A change in progress: its txg, and the itxs that it adds to the log.
#[must_use]
pub struct LoggedTx {
    log: Option<Arc<LogWriter>>,
    makes_records: bool,
    is_logged: bool,
    // Dropped last: what is not logged is noted before the txg can be written, and before the change's locks go.
    tx: Tx,
}

impl LoggedTx {
    /// The txg that the change goes to.
    #[must_use]
    pub const fn txg(&self) -> Txg {
        self.tx.txg()
    }

    fn record(&mut self, push: impl FnOnce(&LogWriter, Txg)) {
        if let Some(log) = self.log.as_ref().filter(|_| self.makes_records) {
            push(log, self.tx.txg());
            self.is_logged = true;
        }
    }

    fn emit(&self, tx: format::Tx<'_>) -> Vec<u8> {
        LogRecord { txg: self.txg(), sequence: 0, ignore_case: false, tx }.emit(ORDER)
    }

    /// Whether the change has to be logged; if not, the caller need not make records.
    #[must_use]
    pub(crate) const fn is_logging(&self) -> bool {
        self.makes_records
    }

    /// Whether an extended attribute's value can be logged. Replay would take an empty value for a removal of the attribute.
    #[must_use]
    pub fn may_log_xattr(&self, value: Option<&[u8]>) -> bool {
        self.log.as_ref().is_none_or(|log| !self.makes_records || log.has_xattrs())
            && value.is_none_or(|value| !value.is_empty())
    }

    /// Logs a change of an object that is part of a change of names.
    pub fn log_with_names(&mut self, tx: format::Tx<'_>) {
        if self.is_logging() {
            let record = self.emit(tx);
            self.record(|log, txg| log.push(txg, record));
        }
    }

    /// Logs the change. All that it does has to be logged.
    pub fn log(&mut self, tx: format::Tx<'_>) {
        if !self.is_logging() {
            return;
        }
        let object = match &tx {
            format::Tx::Write(write) => Some(write.object),
            format::Tx::Truncate { object, .. }
            | format::Tx::AclV0 { object, .. }
            | format::Tx::SetSaXattr(SetSaXattr { object, .. }) => Some(*object),
            format::Tx::SetAttr(set) => Some(set.object),
            format::Tx::Acl(acl) => Some(acl.object),
            format::Tx::CloneRange(clone) => Some(clone.object),
            _ => None,
        };
        let record = self.emit(tx);
        self.record(|log, txg| match object {
            Some(object) => log.push_of(txg, object, record),
            None => log.push(txg, record),
        });
    }

    /// Logs a rename of an object.
    pub fn log_rename(&mut self, object: ObjectId, tx: format::Tx<'_>) {
        if self.is_logging() {
            let record = self.emit(tx);
            self.record(|log, txg| log.push_rename(txg, object, record));
        }
    }

    /// Logs a write. `data` is what was written, where the client waits for it; else it is read when it is asked for.
    pub fn log_write(
        &mut self,
        object: ObjectId,
        generation: u64,
        bytes: Range<u64>,
        shape: WriteShape,
        data: Option<Block>,
    ) {
        self.record(|log, txg| {
            let indirect = log.is_indirect(bytes.end - bytes.start, &shape).then_some(shape.block_bytes);
            let data = data.filter(|_| indirect.is_none());
            if indirect.is_none() {
                log.txgs.dirty().wrote_for_log(txg, bytes.end - bytes.start);
            }
            log.push_write(txg, ItxWrite { object, generation, bytes, data, indirect });
        });
    }

    /// An object has lost its last name: its itxs are no longer needed.
    pub fn forget(&self, object: ObjectId) {
        if let Some(log) = &self.log {
            log.forget(object);
        }
    }

    /// Marks the change as one that no sync has to cover.
    pub const fn needs_no_record(&mut self) {
        self.is_logged = true;
    }
}

impl Drop for LoggedTx {
    fn drop(&mut self) {
        if let Some(log) = &self.log
            && !self.is_logged
        {
            log.not_logged(self.tx.txg());
        }
    }
}
