//! Files and directories in use: each once in memory, with its locks and its newest attributes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use cenote_dmu::sa::{SaForm, SaHandle, SaRecord, SaTables};
use cenote_dmu::tx::{Cost, Tx, TxgSource};
use cenote_dmu::{Object, Objset};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::sa::ZplAttribute;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{AsyncMutex, AsyncRwLock, Notify, RangeLock};

use super::AccessTimes;
use crate::record::{Plan, put_time, time};
use crate::{FileKind, Time, ZplError};

/// Seconds after which reading is noted whatever else has happened (`relatime`).
const RELATIVE_S: i64 = 24 * 3600;

/// A file or directory in use.
pub(super) struct Node {
    pub(super) id: ObjectId,
    pub(super) object: Object,
    /// Held alone by whoever changes names, attributes or sizes; shared by those who write data.
    pub(super) lock: AsyncRwLock<()>,
    /// Held alone while a directory's blocks are replaced, shared by those who look names up.
    pub(super) entries: AsyncRwLock<()>,
    /// Of a file's bytes.
    pub(super) ranges: RangeLock,
    /// Writers who share `lock` get their txgs one after the other, so in order.
    turns: AsyncMutex<()>,
    gate: Gate,
    state: Mutex<State>,
}

struct State {
    attributes: SaHandle,
    /// Handles that keep it from being freed.
    opens: u64,
    /// When it was last read, where the attributes do not say so yet.
    accessed: Option<Time>,
    /// It is no more, or about to be no more.
    is_gone: bool,
}

/// Lets those through who have the same txg; one of a later txg waits until they are through.
struct Gate {
    state: Mutex<(Txg, u64)>,
    emptied: Notify,
}

struct Through<'a>(&'a Gate);

impl Gate {
    async fn enter(&self, txg: Txg) -> Through<'_> {
        loop {
            let emptied = self.emptied.wait();
            {
                let mut state = self.state.lock();
                if state.1 == 0 || state.0 == txg {
                    *state = (txg, state.1 + 1);
                    return Through(self);
                }
            }
            emptied.await;
        }
    }
}

impl Drop for Through<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.1 -= 1;
        if state.1 == 0 {
            drop(state);
            self.0.emptied.all();
        }
    }
}

/// A writer's txg.
pub(super) struct SharedTxg<'a> {
    tx: Tx,
    _through: Through<'a>,
}

impl SharedTxg<'_> {
    pub(super) fn txg(&self) -> Txg {
        self.tx.txg()
    }
}

impl Node {
    /// The node of an object, its attributes read.
    async fn load(object: Object, tables: &SaTables) -> Result<Self, ZplError> {
        let head = object.phys();
        if head.bonus_type != DmuType::SA {
            let what = "not supported yet: changing files from before system attributes";
            let is_file = head.bonus_type == DmuType::ZNODE;
            return Err(if is_file { ZplError::Unsupported(what.into()) } else { ZplError::NoEntry });
        }
        let attributes = tables.open(&object).await?;
        if attributes.record().is_empty() {
            return Err(ZplError::Corrupt { object: object.id().0, what: "no attributes".into() });
        }
        Ok(Self::new(object, attributes))
    }

    fn new(object: Object, attributes: SaHandle) -> Self {
        Self {
            id: object.id(),
            object,
            lock: AsyncRwLock::new(()),
            entries: AsyncRwLock::new(()),
            ranges: RangeLock::default(),
            turns: AsyncMutex::new(()),
            gate: Gate { state: Mutex::new((Txg(0), 0)), emptied: Notify::new() },
            state: Mutex::new(State { attributes, opens: 0, accessed: None, is_gone: false }),
        }
    }

    /// A copy of its attributes.
    pub(super) fn record(&self) -> SaRecord {
        self.state.lock().attributes.record().clone()
    }

    /// Looks at its attributes.
    pub(super) fn with<T>(&self, look: impl FnOnce(&SaRecord) -> T) -> T {
        look(self.state.lock().attributes.record())
    }

    /// Its form, if a record fits it.
    pub(super) fn form_if_same_shape(&self, record: &SaRecord) -> Option<SaForm> {
        self.state.lock().attributes.form_of(record).cloned()
    }

    pub(super) fn mode(&self) -> u32 {
        self.with(|record| record.u64(ZplAttribute::Mode) as u32)
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.with(|record| record.u64(ZplAttribute::Size))
    }

    pub(super) fn is_directory(&self) -> bool {
        FileKind::of_mode(u64::from(self.mode())) == Some(FileKind::Directory)
    }

    /// # Errors
    /// It is something else.
    pub(super) fn check_kind(&self, kind: FileKind) -> Result<(), ZplError> {
        let found = FileKind::of_mode(u64::from(self.mode()));
        match (kind, found) {
            (kind, Some(found)) if kind == found => Ok(()),
            (FileKind::Directory, _) => Err(ZplError::NotDirectory),
            (_, Some(FileKind::Directory)) => Err(ZplError::IsDirectory),
            _ => Err(ZplError::Invalid("not a regular file")),
        }
    }

    /// # Errors
    /// It was removed.
    pub(super) fn check_there(&self) -> Result<(), ZplError> {
        if self.state.lock().is_gone { Err(ZplError::Stale) } else { Ok(()) }
    }

    pub(super) fn set_gone(&self) {
        self.state.lock().is_gone = true;
    }

    pub(super) fn opens(&self) -> u64 {
        self.state.lock().opens
    }

    /// One handle more; or one less, and whether that was the last.
    pub(super) fn count_open(&self, more: bool) -> bool {
        let mut state = self.state.lock();
        state.opens = if more { state.opens + 1 } else { state.opens.saturating_sub(1) };
        state.opens == 0
    }

    /// A txg for someone who shares `lock` with other writers. Theirs are never later than those of who comes after.
    pub(super) async fn begin_shared(&self, source: &dyn TxgSource, cost: Cost) -> Result<SharedTxg<'_>, ZplError> {
        let _turn = self.turns.lock().await;
        let tx = source.begin(cost).await?;
        let through = self.gate.enter(tx.txg()).await;
        Ok(SharedTxg { tx, _through: through })
    }

    /// Changes attributes in their places.
    ///
    /// # Errors
    /// One of them is not there (so that there would be no place), or cannot be packed.
    pub(super) fn update(
        &self,
        txg: Txg,
        change: impl FnOnce(&mut SaRecord) -> Result<(), ZplError>,
    ) -> Result<(), ZplError> {
        let mut state = self.state.lock();
        let mut record = state.attributes.record().clone();
        change(&mut record)?;
        let Some(form) = state.attributes.form_of(&record).cloned() else {
            let what =
                "not supported yet: a file without the attributes that all files have, or from a big-endian machine";
            return Err(ZplError::Unsupported(what.into()));
        };
        self.put(&mut state, txg, Plan { record, form })
    }

    /// Replaces all attributes.
    ///
    /// # Errors
    /// They cannot be packed as planned.
    pub(super) fn store(&self, txg: Txg, plan: Plan) -> Result<(), ZplError> {
        self.put(&mut self.state.lock(), txg, plan)
    }

    /// Notes that it was read now, if that is to be noted. Nothing is written: that comes with the next change, or when nobody
    /// has it open any more ([`Node::unwritten_access`]).
    pub(super) fn note_access(&self, rule: AccessTimes, now: Time) {
        let mut state = self.state.lock();
        let time = |attribute| time(state.attributes.record(), attribute);
        let before = state.accessed.unwrap_or_else(|| time(ZplAttribute::Atime));
        let is_noted = match rule {
            AccessTimes::Never => false,
            AccessTimes::Always => true,
            AccessTimes::Relative => {
                before <= time(ZplAttribute::Mtime)
                    || before <= time(ZplAttribute::Ctime)
                    || now.seconds.saturating_sub(before.seconds) >= RELATIVE_S
            }
        };
        if is_noted && !state.is_gone {
            state.accessed = Some(now);
        }
    }

    /// Forgets when it was read: someone says what is to stand there.
    pub(super) fn forget_access(&self) {
        self.state.lock().accessed = None;
    }

    /// When it was last read, if its attributes on disk do not say so.
    pub(super) fn unwritten_access(&self) -> Option<Time> {
        self.state.lock().accessed
    }

    fn put(&self, state: &mut State, txg: Txg, mut plan: Plan) -> Result<(), ZplError> {
        let before = time(state.attributes.record(), ZplAttribute::Atime);
        if let Some(accessed) = state.accessed.take()
            && time(&plan.record, ZplAttribute::Atime) == before
        {
            put_time(&mut plan.record, ZplAttribute::Atime, accessed)?;
        }
        Ok(state.attributes.store(&self.object, txg, plan.record, plan.form)?)
    }
}

/// Nodes in use, by object, and the last [`KEPT_MAX`] directories that were read or made, in use or not: every name is looked up in
/// one. Others are let go with their last user: to free much later what a walk over many files has read once costs more than to read
/// again what is used again.
#[derive(Default)]
pub(super) struct NodeTable {
    nodes: Mutex<Slots>,
    kept: Mutex<VecDeque<Arc<Node>>>,
}

/// Directories kept for a while: some 5 KiB each.
const KEPT_MAX: usize = 1024;

#[derive(Default)]
struct Slots {
    map: BTreeMap<ObjectId, Arc<Slot>>,
    /// Slots at which those without a user are looked for.
    full_at: usize,
}

/// The place of a node: whoever loads it is alone with it.
#[derive(Default)]
struct Slot {
    node: AsyncMutex<Weak<Node>>,
}

/// Slots that nobody cares to count.
const SLOTS_MIN: usize = 1024;

impl NodeTable {
    fn slot(&self, id: ObjectId) -> Arc<Slot> {
        let mut slots = self.nodes.lock();
        if slots.map.len() >= slots.full_at.max(SLOTS_MIN) {
            let is_used = |slot: &Arc<Slot>| {
                let is_alone = Arc::strong_count(slot) == 1;
                !is_alone || slot.node.try_lock().is_none_or(|node| node.strong_count() > 0)
            };
            slots.map.retain(|_, slot| is_used(slot));
            slots.full_at = slots.map.len() * 2;
        }
        slots.map.entry(id).or_default().clone()
    }

    /// The node of an object.
    pub(super) async fn node(&self, objset: &Objset, tables: &SaTables, id: ObjectId) -> Result<Arc<Node>, ZplError> {
        let slot = self.slot(id);
        let mut place = slot.node.lock().await;
        if let Some(node) = place.upgrade()
            && node.check_there().is_ok()
        {
            return Ok(node);
        }
        let object = objset.object(id).await?;
        let node = Arc::new(Node::load(object, tables).await?);
        *place = Arc::downgrade(&node);
        self.keep(&node);
        Ok(node)
    }

    fn keep(&self, node: &Arc<Node>) {
        if !node.is_directory() {
            return;
        }
        let mut kept = self.kept.lock();
        kept.push_back(Arc::clone(node));
        let oldest = if kept.len() > KEPT_MAX { kept.pop_front() } else { None };
        drop(kept);
        drop(oldest);
    }

    /// Takes a new object's node in.
    pub(super) async fn add(&self, object: Object, attributes: SaHandle) -> Arc<Node> {
        let slot = self.slot(object.id());
        let node = Arc::new(Node::new(object, attributes));
        *slot.node.lock().await = Arc::downgrade(&node);
        self.keep(&node);
        node
    }
}
