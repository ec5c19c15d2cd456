//! Nodes: files and directories as the file system has them in memory.
//!
//! ```text
//!   Node ─┬─ frozen: object and attributes        made for each use, immutable: no lock
//!         └─ in use: attributes under a lock,     once in memory (NodeTable), of a file system that is changed
//!                    locks for changes, handles
//! ```
//! Both are read by the same functions. The values of a node in use that a read of a file needs (kind, size, whether it is being written,
//! when the read is to be noted) are in atomics, so that it takes no lock here where nobody writes.

mod bytes;
mod gate;
mod table;

pub(crate) use bytes::Writing;
pub(crate) use table::NodeTable;

use cenote_dmu::Object;
use cenote_dmu::sa::{SaForm, SaHandle, SaRecord, SaTables};
use cenote_dmu::tx::Cost;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::sa::ZplAttribute;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use cenote_taskq::{AsyncMutex, AsyncReadGuard, AsyncRwLock};
use cenote_zil::Log;

use bytes::Bytes;
use gate::{Gate, SharedTxg};

use crate::acl;
use crate::attributes::{device_numbers, posix_id};
use crate::filesystem::options::AccessTimes;
use crate::record::{Plan, put_time, time};
use crate::{Attributes, FileKind, Flags, Time, ZplError};

/// Seconds after which reading is noted whatever else has happened (`relatime`).
const RELATIVE_S: i64 = 24 * 3600;

/// A file or directory.
pub(crate) struct Node {
    pub(crate) id: ObjectId,
    pub(crate) object: Object,
    /// Its kind, for good; none where its mode names none.
    kind: Option<FileKind>,
    form: Form,
}

enum Form {
    Frozen(SaRecord),
    InUse(Box<NodeInUse>),
}

/// The state of a node that may be changed.
pub(crate) struct NodeInUse {
    /// Held exclusively to change names, attributes or sizes; shared by writers of data.
    pub(crate) lock: AsyncRwLock<()>,
    /// Held exclusively while a directory's blocks are replaced, shared by look-ups of names.
    pub(crate) entries: AsyncRwLock<()>,
    /// Range locks on the file's bytes.
    pub(crate) bytes: Bytes,
    /// Writers that share `lock` are assigned their txgs one after the other, so in order.
    turns: AsyncMutex<()>,
    gate: Gate,
    /// The size in the attributes.
    size_bytes: AtomicU64,
    /// Reading is not noted before this time, in seconds; 0 if that is to be found out.
    unnoted_until: AtomicU64,
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

impl Node {
    /// The node of an object of a file system that is not changed.
    pub(crate) async fn frozen(object: Object, tables: &SaTables) -> Result<Self, ZplError> {
        let record = tables.record(&object).await?;
        Ok(Self { id: object.id(), object, kind: kind_of(&record), form: Form::Frozen(record) })
    }

    /// The node of an object of a file system that is changed.
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

    /// A node in use with these attributes.
    fn new(object: Object, attributes: SaHandle) -> Self {
        let record = attributes.record();
        let (kind, size_bytes) = (kind_of(record), AtomicU64::new(record.u64(ZplAttribute::Size)));
        let in_use = NodeInUse {
            lock: AsyncRwLock::new(()),
            entries: AsyncRwLock::new(()),
            bytes: Bytes::default(),
            turns: AsyncMutex::new(()),
            gate: Gate::default(),
            size_bytes,
            unnoted_until: AtomicU64::new(0),
            state: Mutex::new(State { attributes, opens: 0, accessed: None, is_gone: false }),
        };
        Self { id: object.id(), object, kind, form: Form::InUse(Box::new(in_use)) }
    }

    /// The state that changes need.
    ///
    /// # Errors
    /// The file system is open to be read only.
    pub(crate) fn in_use(&self) -> Result<&NodeInUse, ZplError> {
        match &self.form {
            Form::Frozen(_) => Err(ZplError::ReadOnly),
            Form::InUse(in_use) => Ok(in_use),
        }
    }

    /// A copy of its attributes.
    pub(crate) fn record(&self) -> SaRecord {
        self.with(SaRecord::clone)
    }

    /// Looks at its attributes.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&SaRecord) -> T) -> T {
        match &self.form {
            Form::Frozen(record) => look(record),
            Form::InUse(in_use) => look(in_use.state.lock().attributes.record()),
        }
    }

    /// An attribute that is a word; 0 if it is not there.
    pub(crate) fn word(&self, attribute: ZplAttribute) -> u64 {
        self.with(|record| record.u64(attribute))
    }

    /// Its form, if a record fits it.
    pub(crate) fn form_if_same_shape(&self, record: &SaRecord) -> Option<SaForm> {
        self.in_use().ok()?.state.lock().attributes.form_of(record).cloned()
    }

    pub(crate) fn mode(&self) -> u32 {
        self.word(ZplAttribute::Mode) as u32
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        match &self.form {
            Form::Frozen(record) => record.u64(ZplAttribute::Size),
            Form::InUse(in_use) => in_use.size_bytes.load(Ordering::SeqCst),
        }
    }

    /// Its kind, if its mode names one.
    pub(crate) fn kind(&self) -> Option<FileKind> {
        self.kind
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind == Some(FileKind::Directory)
    }

    /// # Errors
    /// It is something else.
    pub(crate) fn check_kind(&self, kind: FileKind) -> Result<(), ZplError> {
        match (kind, self.kind) {
            (kind, Some(found)) if kind == found => Ok(()),
            (FileKind::Directory, _) => Err(ZplError::NotDirectory),
            (_, Some(FileKind::Directory)) => Err(ZplError::IsDirectory),
            (FileKind::Symlink, _) => Err(ZplError::NotSymlink),
            _ => Err(ZplError::Invalid("not a regular file")),
        }
    }

    /// Its attributes as of the newest change.
    ///
    /// # Errors
    /// Its mode names no kind of file, or what all files have is not there.
    pub(crate) fn attributes(&self) -> Result<Attributes, ZplError> {
        let corrupt = |what: String| ZplError::Corrupt { object: self.id.0, what };
        let unwritten_access = self.unwritten_access();
        let head = self.object.phys();
        // Before its space: if a txg ends in between, the client asks once more.
        let is_changed = self.object.is_changed();
        // An object that is not on disk yet has no space yet.
        let used = self.object.synced().map_or(0, |synced| synced.used_bytes());
        self.with(|record| {
            let needed =
                |what: ZplAttribute| record.find_u64(what).ok_or_else(|| corrupt(format!("no {}", what.name())));
            let mode = needed(ZplAttribute::Mode)?;
            let flags = Flags(record.flags().bits());
            let (uid, gid) = (record.u64(ZplAttribute::Uid), record.u64(ZplAttribute::Gid));
            Ok(Attributes {
                object: self.id,
                kind: self.kind.ok_or_else(|| corrupt(format!("mode {mode:o} names no kind of file")))?,
                permissions: (mode & 0o7777) as u32,
                uid: posix_id(uid),
                gid: posix_id(gid),
                fuid_owner: uid,
                fuid_group: gid,
                link_count: record.u64(ZplAttribute::Links),
                size_bytes: needed(ZplAttribute::Size)?,
                // As in `stat`: the space of the blocks, rounded, and the dnode's own slots.
                blocks: used.saturating_add(256) / 512 + head.slots() as u64,
                is_changed,
                block_size_bytes: u64::from(head.data_block_bytes()),
                accessed: unwritten_access.unwrap_or_else(|| time(record, ZplAttribute::Atime)),
                modified: time(record, ZplAttribute::Mtime),
                changed: time(record, ZplAttribute::Ctime),
                created: time(record, ZplAttribute::Crtime),
                generation: record.u64(ZplAttribute::Gen),
                parent: ObjectId(record.u64(ZplAttribute::Parent)),
                device: device_numbers(record.u64(ZplAttribute::Rdev)),
                project: flags.has_project().then(|| record.u64(ZplAttribute::Projid)),
                flags,
                has_acl: acl::is_there(record),
                xattr_directory: Some(ObjectId(record.u64(ZplAttribute::Xattr))).filter(|id| id.0 != 0),
            })
        })
    }

    /// Keeps changes of a directory's blocks out while they are looked at.
    pub(crate) async fn look_at_entries(&self) -> Option<AsyncReadGuard<'_, ()>> {
        match &self.form {
            Form::Frozen(_) => None,
            Form::InUse(in_use) => Some(in_use.entries.read().await),
        }
    }

    /// Keeps changes of its attributes out while they are looked at.
    pub(crate) async fn look(&self) -> Option<AsyncReadGuard<'_, ()>> {
        match &self.form {
            Form::Frozen(_) => None,
            Form::InUse(in_use) => Some(in_use.lock.read().await),
        }
    }

    /// # Errors
    /// It was removed.
    pub(crate) fn check_there(&self) -> Result<(), ZplError> {
        let is_gone = self.in_use().is_ok_and(|in_use| in_use.state.lock().is_gone);
        if is_gone { Err(ZplError::Stale) } else { Ok(()) }
    }

    pub(crate) fn set_gone(&self) {
        if let Ok(in_use) = self.in_use() {
            let was_gone = std::mem::replace(&mut in_use.state.lock().is_gone, true);
            debug_assert!(!was_gone, "a node goes once");
        }
    }

    pub(crate) fn opens(&self) -> u64 {
        self.in_use().map_or(0, |in_use| in_use.state.lock().opens)
    }

    /// One handle more; or one less, and whether that was the last.
    pub(crate) fn count_open(&self, more: bool) -> bool {
        let Ok(in_use) = self.in_use() else { return false };
        let mut state = in_use.state.lock();
        debug_assert!(more || state.opens > 0, "a handle that is let go was counted");
        state.opens = if more { state.opens + 1 } else { state.opens.saturating_sub(1) };
        state.opens == 0
    }

    /// Notes that it was read now, if that is to be noted. Nothing is written: that comes with the next change, or when nobody
    /// has it open any more ([`Node::unwritten_access`]). True if it was noted.
    pub(crate) fn note_access(&self, rule: AccessTimes, now: Time) -> bool {
        let Ok(in_use) = self.in_use() else { return false };
        let is_unnoted = match rule {
            AccessTimes::Never => true,
            AccessTimes::Relative => now.seconds < in_use.unnoted_until.load(Ordering::Relaxed).cast_signed(),
            AccessTimes::Always => false,
        };
        !is_unnoted && in_use.note_access(rule, now)
    }

    /// Forgets when it was read: someone says what is to stand there.
    pub(crate) fn forget_access(&self) {
        if let Ok(in_use) = self.in_use() {
            in_use.state.lock().accessed = None;
        }
    }

    /// When it was last read, if its attributes on disk do not say so.
    pub(crate) fn unwritten_access(&self) -> Option<Time> {
        self.in_use().ok()?.state.lock().accessed
    }

    /// A txg for a writer that shares `lock` with others, never later than the txg of a writer that comes after.
    pub(crate) async fn begin_shared(&self, log: &Log, cost: Cost) -> Result<SharedTxg<'_>, ZplError> {
        let in_use = self.in_use()?;
        let _turn = in_use.turns.lock().await;
        let tx = log.begin_change(cost).await?;
        let through = in_use.gate.enter(tx.txg()).await;
        Ok(SharedTxg { tx, _through: through })
    }

    /// Changes attributes in their places.
    ///
    /// # Errors
    /// One of them is not there (so that there would be no place), or cannot be packed.
    pub(crate) fn update(
        &self,
        txg: Txg,
        change: impl FnOnce(&mut SaRecord) -> Result<(), ZplError>,
    ) -> Result<(), ZplError> {
        let in_use = self.in_use()?;
        let mut state = in_use.state.lock();
        let mut record = state.attributes.record().clone();
        change(&mut record)?;
        let Some(form) = state.attributes.form_of(&record).cloned() else {
            let what =
                "not supported yet: a file without the attributes that all files have, or from a big-endian machine";
            return Err(ZplError::Unsupported(what.into()));
        };
        assert_eq!(kind_of(&record), self.kind, "a node stays what it is");
        in_use.put(&mut state, &self.object, txg, Plan { record, form })
    }

    /// Replaces all attributes.
    ///
    /// # Errors
    /// They cannot be packed as planned.
    pub(crate) fn store(&self, txg: Txg, plan: Plan) -> Result<(), ZplError> {
        let in_use = self.in_use()?;
        assert_eq!(kind_of(&plan.record), self.kind, "a node stays what it is");
        in_use.put(&mut in_use.state.lock(), &self.object, txg, plan)
    }
}

impl NodeInUse {
    fn note_access(&self, rule: AccessTimes, now: Time) -> bool {
        let mut state = self.state.lock();
        let time = |attribute| time(state.attributes.record(), attribute);
        let before = state.accessed.unwrap_or_else(|| time(ZplAttribute::Atime));
        let changed = time(ZplAttribute::Mtime).max(time(ZplAttribute::Ctime));
        let is_old = before <= changed || now.seconds.saturating_sub(before.seconds) >= RELATIVE_S;
        let is_noted = (rule == AccessTimes::Always || is_old) && !state.is_gone;
        if is_noted {
            state.accessed = Some(now);
        }
        let last = if is_noted { now } else { before };
        if last > changed {
            let until = u64::try_from(last.seconds.saturating_add(RELATIVE_S)).unwrap_or(0);
            self.unnoted_until.store(until, Ordering::Relaxed);
        }
        is_noted
    }

    fn put(&self, state: &mut State, object: &Object, txg: Txg, mut plan: Plan) -> Result<(), ZplError> {
        debug_assert!(!state.is_gone, "what is no more is not changed");
        let before = time(state.attributes.record(), ZplAttribute::Atime);
        if let Some(accessed) = state.accessed.take()
            && time(&plan.record, ZplAttribute::Atime) == before
        {
            put_time(&mut plan.record, ZplAttribute::Atime, accessed)?;
        }
        self.unnoted_until.store(0, Ordering::Relaxed);
        state.attributes.store(object, txg, plan.record, plan.form)?;
        debug_assert!(state.accessed.is_none(), "a change brings the last access along");
        self.size_bytes.store(state.attributes.record().u64(ZplAttribute::Size), Ordering::SeqCst);
        Ok(())
    }
}

fn kind_of(record: &SaRecord) -> Option<FileKind> {
    FileKind::of_mode(record.u64(ZplAttribute::Mode))
}
