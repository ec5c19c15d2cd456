//! Objects: a dnode and its data, as of one root or with the changes that are on their way to disk.
//!
//! ```text
//!   Object ─┬─ frozen: the tree on disk                 of a snapshot, a view, a pool opened read-only: no lock
//!           └─ open:   layers over the tree on disk     of an objset that is changed: one short lock for each look
//! ```
//! Both are read by the same functions. Only an open object can be changed; a frozen one is never given to code that does, since
//! changing takes a txg and a frozen objset has none: the functions assert it.

mod change;
mod dirty_cost;
pub(crate) mod layer;
mod logged;
mod range_lock;
mod read;
mod ready;
mod seek;
mod single;
mod spec;
mod stream;

use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::dnode::DnodePhys;
use cenote_format::ids::{BlockId, ObjectId, ObjsetId, Txg};
use cenote_format::{Endian, FormatError};
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;
use cenote_taskq::sync::Mutex;
use cenote_zio::{ReadContext, ReadyBlock};

pub(crate) use self::dirty_cost::SYNC_TREE_BYTES;
pub use self::logged::{LogBlock, LogStore};
pub use self::range_lock::RangeGuard;
pub use self::read::Extent;
pub use self::spec::ObjectSpec;
pub use self::stream::{DataStream, Run};

use self::layer::{Layer, State};
use self::range_lock::RangeLocks;
use crate::changes::Changes;
use crate::reader::Reader;
use crate::tree::BlockTree;
use crate::{Dmu, DmuError, DmuErrorKind};

/// An object of an objset. Cheap to clone.
#[derive(Clone)]
pub struct Object {
    form: Form,
}

#[derive(Clone)]
enum Form {
    Frozen(BlockTree),
    Open(Arc<Shared>),
}

struct Shared {
    changes: Arc<Changes>,
    id: ObjectId,
    state: Mutex<State>,
    range_locks: RangeLocks,
}

impl Object {
    /// An object as of its objset's root.
    pub(crate) fn frozen(reader: &Reader, id: ObjectId, phys: DnodePhys) -> Self {
        Self::of_tree(BlockTree::new(reader.clone(), id, Arc::new(phys)))
    }

    /// The object of a tree on disk.
    pub(crate) fn of_tree(tree: BlockTree) -> Self {
        Self { form: Form::Frozen(tree) }
    }

    /// An object of an objset's open state. `synced` is its dnode on disk.
    pub(crate) fn open(changes: &Arc<Changes>, id: ObjectId, head: DnodePhys, synced: Option<DnodePhys>) -> Self {
        let synced = synced.map(|phys| BlockTree::new(changes.reader().clone(), id, Arc::new(phys)));
        let state =
            Mutex::new(State { head: Arc::new(head), synced, txgs: Vec::new(), is_gone: false, written: Txg(0) });
        let shared = Shared { changes: Arc::clone(changes), id, state, range_locks: RangeLocks::default() };
        Self { form: Form::Open(Arc::new(shared)) }
    }

    /// The part that can be changed.
    fn shared(&self) -> &Shared {
        match &self.form {
            Form::Open(shared) => shared,
            Form::Frozen(tree) => {
                let objset = tree.reader().id().0;
                panic!("objset {objset}, object {}: an objset that is opened as of a root is not changed", tree.id().0)
            }
        }
    }

    fn range_locks(&self) -> &RangeLocks {
        &self.shared().range_locks
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        match &self.form {
            Form::Frozen(tree) => tree.id(),
            Form::Open(shared) => shared.id,
        }
    }

    /// True if this is the same object in memory, and not only one of the same number.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.form, &other.form) {
            (Form::Open(shared), Form::Open(other)) => Arc::ptr_eq(shared, other),
            _ => false,
        }
    }

    fn reader(&self) -> &Reader {
        match &self.form {
            Form::Frozen(tree) => tree.reader(),
            Form::Open(shared) => shared.changes.reader(),
        }
    }

    /// The number of its objset.
    #[must_use]
    pub fn objset_id(&self) -> ObjsetId {
        self.reader().id()
    }

    /// The way to blocks.
    #[must_use]
    pub fn dmu(&self) -> &Dmu {
        self.reader().dmu()
    }

    /// The context for reading one of its blocks.
    #[must_use]
    pub fn context(&self, level: u8, block: BlockId) -> ReadContext<'_> {
        self.reader().context(self.id(), level, block)
    }

    /// Its tree with this dnode.
    pub(crate) fn tree_of(&self, phys: Arc<DnodePhys>) -> BlockTree {
        BlockTree::new(self.reader().clone(), self.id(), phys)
    }

    /// The object as it would be with another dnode on disk.
    #[must_use]
    pub fn with_phys(&self, phys: DnodePhys) -> Self {
        Self::frozen(self.reader(), self.id(), phys)
    }

    /// Its dnode as of the newest change. In an open objset the pointers mean nothing: they are those of
    /// [`Object::on_disk`].
    #[must_use]
    pub fn phys(&self) -> Arc<DnodePhys> {
        match &self.form {
            Form::Frozen(tree) => tree.phys().clone(),
            Form::Open(shared) => shared.state.lock().head.clone(),
        }
    }

    /// The result of `parse` for the bonus: it gets the bytes and their byte order, which is that of the block that holds the dnode. Blocks
    /// of the object's data have orders of their own.
    ///
    /// # Errors
    /// Those of `parse`.
    pub fn bonus<T>(&self, parse: impl FnOnce(&[u8], Endian) -> Result<T, FormatError>) -> Result<T, FormatError> {
        let phys = self.phys();
        parse(&phys.bonus, phys.endian)
    }

    /// The 64-bit integer that the bonus begins with; `None` if it is shorter.
    #[must_use]
    pub fn bonus_word(&self) -> Option<u64> {
        let phys = self.phys();
        phys.bonus.first_chunk().map(|word| phys.endian.u64(*word))
    }

    /// Bytes of a data block.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        match &self.form {
            Form::Frozen(tree) => tree.block_bytes(),
            Form::Open(shared) => u64::from(shared.state.lock().head.data_block_bytes()),
        }
    }

    /// The id of the last data block; the object has `last_block + 1` of them (a fresh object: one, a hole).
    #[must_use]
    pub fn last_block(&self) -> BlockId {
        match &self.form {
            Form::Frozen(tree) => tree.last_block(),
            Form::Open(shared) => BlockId(shared.state.lock().head.max_block_id),
        }
    }

    /// Its tree on disk, once there is one.
    #[must_use]
    pub(crate) fn on_disk(&self) -> Option<BlockTree> {
        match &self.form {
            Form::Frozen(tree) => Some(tree.clone()),
            Form::Open(shared) => shared.state.lock().synced.clone(),
        }
    }

    /// The dnode on disk, once there is one.
    #[must_use]
    pub fn synced(&self) -> Option<Arc<DnodePhys>> {
        self.on_disk().map(|tree| tree.phys().clone())
    }

    /// The pointer on disk to block `block` of level `level`: a hole's if it, or anything above it, is a hole or outside the
    /// tree. Blocks that were changed and are not on disk have no pointers yet.
    ///
    /// # Errors
    /// A block on the way cannot be read, or contradicts the dnode.
    pub async fn pointer(&self, level: u8, block: BlockId) -> Result<Blkptr, DmuError> {
        match self.on_disk() {
            Some(tree) => tree.pointer(level, block).await,
            None => Ok(Blkptr::HOLE),
        }
    }

    /// An error about this object.
    pub fn error(&self, kind: impl Into<DmuErrorKind>) -> DmuError {
        DmuError::new(self.objset_id(), self.id(), kind)
    }

    /// True if nothing hangs on it: no change that is not on disk, no user but the table.
    pub(crate) fn is_idle(&self) -> bool {
        match &self.form {
            Form::Frozen(_) => true,
            Form::Open(shared) => Arc::strong_count(shared) == 1 && shared.state.lock().txgs.is_empty(),
        }
    }

    /// True if it has changes that are not on disk yet: its space will be another figure then.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        match &self.form {
            Form::Frozen(_) => false,
            Form::Open(shared) => !shared.state.lock().txgs.is_empty(),
        }
    }

    /// True if txgs that are not on disk have written data of it.
    #[must_use]
    pub fn has_written(&self) -> bool {
        match &self.form {
            Form::Frozen(_) => false,
            Form::Open(shared) => shared.state.lock().txgs.iter().any(|(_, layer)| !layer.blocks.is_empty()),
        }
    }

    /// True if a txg has changed it, and that is not on disk.
    pub(crate) fn is_changed_in(&self, txg: Txg) -> bool {
        match &self.form {
            Form::Frozen(_) => false,
            Form::Open(shared) => shared.state.lock().txgs.iter().any(|(other, _)| *other == txg),
        }
    }

    pub(crate) fn is_freed(&self) -> bool {
        match &self.form {
            Form::Frozen(_) => false,
            Form::Open(shared) => shared.state.lock().txgs.iter().any(|(_, layer)| layer.is_freed),
        }
    }

    /// True if it was freed, whether that is on disk or not: another object may have its number.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        match &self.form {
            Form::Frozen(_) => false,
            Form::Open(shared) => {
                let state = shared.state.lock();
                state.is_gone || state.txgs.iter().any(|(_, layer)| layer.is_freed)
            }
        }
    }

    /// True if it was freed, and that is on disk.
    pub(crate) fn is_gone(&self) -> bool {
        match &self.form {
            Form::Frozen(_) => false,
            Form::Open(shared) => {
                let state = shared.state.lock();
                state.is_gone && state.txgs.is_empty()
            }
        }
    }

    /// True if a tree is not the one on disk any more: what it leads to may have been freed, and written over.
    fn is_replaced(&self, tree: &BlockTree) -> bool {
        match &self.form {
            Form::Frozen(_) => false,
            Form::Open(shared) => shared.state.lock().synced.as_ref().is_none_or(|synced| !synced.is_same(tree)),
        }
    }

    /// A txg's changes, with the dnode on disk that they are to be applied to.
    pub(crate) fn take(&self, txg: Txg) -> Option<(Layer, Option<Arc<DnodePhys>>)> {
        let state = self.shared().state.lock();
        let at = state.txgs.iter().position(|(other, _)| *other == txg)?;
        assert_eq!(at, 0, "the changes of the oldest txg are written first");
        // Readers go on asking this layer until the new tree is there.
        Some((state.txgs[at].1.clone(), state.synced.as_ref().map(|tree| tree.phys().clone())))
    }

    /// A txg's changes are on disk (as far as its passes have come): `synced` is what they made of the dnode.
    #[must_use]
    pub(crate) fn put_synced(&self, txg: Txg, synced: Option<DnodePhys>) -> Option<Layer> {
        let synced = synced.map(|phys| BlockTree::new(self.reader().clone(), self.id(), Arc::new(phys)));
        let mut state = self.shared().state.lock();
        assert!(txg >= state.written, "an object's txgs are written in order");
        state.written = txg;
        let at = state.txgs.iter().position(|(other, _)| *other == txg);
        assert!(at.is_none_or(|at| at == 0), "the changes of the oldest txg are written first");
        let layer = at.map(|at| state.txgs.remove(at).1);
        assert!(!(state.is_gone && synced.is_some()), "an object that is gone does not come back");
        state.is_gone |= synced.is_none();
        state.synced = synced;
        layer
    }

    /// The spill block as of the newest change, and the byte order of its fields; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    #[boxed]
    pub async fn spill(&self) -> Result<Option<(Block, Endian)>, DmuError> {
        loop {
            let tree = match &self.form {
                Form::Frozen(tree) => return tree.spill().await,
                Form::Open(shared) => {
                    let state = shared.state.lock();
                    let found =
                        state.txgs.iter().rev().find_map(|(_, layer)| Some((layer.spill.clone()?, layer.spill_form)));
                    if let Some((spill, form)) = found {
                        let Some(bytes) = spill else { return Ok(None) };
                        return match form {
                            None => Ok(Some((bytes, cenote_zio::ORDER))),
                            Some(form) => self.unpacked(BlockId(0), &ReadyBlock { bytes, form }).map(Some),
                        };
                    }
                    state.synced.clone()
                }
            };
            let Some(tree) = tree else { return Ok(None) };
            match tree.spill().await {
                // As for other blocks.
                Err(_) if self.is_replaced(&tree) => {}
                result => return result,
            }
        }
    }
}
