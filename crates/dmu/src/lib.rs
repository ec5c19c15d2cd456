//! Objects: objsets, dnodes, their block trees, ZAP directories and system attributes.
//!
//! # Theory
//!
//! **Need.** A pool is a set of *objsets* (the MOS, a file system, a volume, a snapshot of either); an objset is an array
//! of *objects*; an object is a *dnode* (512 bytes to 16 KiB) with a tree of block pointers for its data and a *bonus*
//! for small attributes. Directories, properties and tables of the pool are ZAP objects: hashed name-value maps in an
//! object's data. This crate turns block pointers into objects and objects into bytes, entries and attributes.
//!
//! **On disk.**
//! ```text
//! block pointer ─► objset_phys: meta-dnode ─► blocks of dnodes ─► dnode: bonus, spill, 1-3 block pointers
//!                                                                   └─► indirect blocks (levels) ─► data blocks
//! ```
//! A tree of `n` levels has its pointers in the dnode at level `n-1`; each indirect block holds `2^(indblkshift-7)`.
//! A hole anywhere stands for zeros below it.
//!
//! **In memory.** [`Dmu`] joins the I/O pipeline and the block cache: [`Dmu::read`] is the one way to a block. An [`Objset`] is either
//! *frozen* (read-only, as of one root block) or *open* for changes, and so is an [`Object`]: it is a tree on disk ([`BlockTree`](tree::BlockTree)) under
//! zero or more *layers*, one for each txg with changes that are not on disk yet (OpenZFS's dirty records). The same functions read both
//! kinds. A frozen objset (of a snapshot, a view, a pool opened read-only) is immutable, and its reads take no lock; a read of an open
//! object briefly takes the object's own lock. There is no hash table of dbufs: a block is found by walking the tree, whose indirect
//! blocks are hits in the ARC. So reads do not contend for OpenZFS's per-dnode mutex.
//! ```text
//!   sync ─► zap ─► object ◄─► objset     upper use lower
//!                    │   ╲
//!                    ▼    ▼
//!                  tree  prefetch        tree: what is on disk; below it the reader of an objset's blocks
//! ```
//!
//! **Life of a read.** offset -> block id -> pointer (one cached indirect block per level, usually one look-up in all) ->
//! cached data block or device read -> slice. A range over several blocks reads them concurrently.
//!
//! **Reading ahead.** A reader that reads an object through a [`Zfetch`] has its access pattern detected (`prefetch/streams`), and the
//! next blocks are prefetched into the ARC.
//!
//! **Reading past the cache.** [`Object::read_direct`] goes from the block pointer straight to the zio pipeline: it looks up, inserts and
//! locks nothing in the ARC except for the indirect blocks above. The caller decides how many reads are in flight.
//!
//! **Invariants.**
//! 1. Levels strictly decrease on the way down a tree, and each indirect block must have the level and size that its
//!    place implies; so a cyclic or crossed pointer ends in an error, never in a loop.
//! 2. A reader sees no block of an object beyond `maxblkid`, even if a (corrupt) tree has one.
//! 3. Objects of an encrypted dataset whose key is not loaded give an error that says so; only their trees (not their
//!    contents) can be walked, through [`Objset::without_key`].
//! 4. A byte order belongs to a block: to the bonus of a dnode that of the dnode's block ([`Object::bonus`]), to data that of each data
//!    block. So no object has one. Arrays of integers are read in ours ([`Object::read`]), blocks with their own ([`Object::block`]).
//! 5. Every task that a reader starts is a member of the pool's group of detached work: once that is closed none runs and
//!    none starts.
//!
//! **Writing** has a theory of its own: [`sync`].
//!
//! **Crash.** Readers change nothing on disk. For writers see [`sync`].
//!
//! **Rejected.** A dbuf for each block (only writers need such state); a trait for objects (there is only one kind of object); separate
//! types for read-only and open objects (then ZAP, SA and every other format would need two implementations).

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod caching;
mod changes;
mod error;
mod geometry;
mod object;
mod objset;
mod prefetch;
mod reader;
pub mod sa;
pub mod sync;
mod tree;
pub mod tx;
mod window;
pub mod zap;

use std::sync::Arc;

use cenote_arc::{BlockKey, Cache, Source};
use cenote_format::blkptr::Blkptr;
use cenote_format::enums::Compress;
use cenote_taskq::buf::{Block, memory_bytes_of};
use cenote_taskq::{Class, Group, GroupClosed, Handle, Join, boxed};
use cenote_zio::{ReadContext, Zio, ZioError};

pub use cenote_zio::ORDER;

pub use self::caching::{Caching, Kinds};
pub use self::error::{DmuError, DmuErrorKind};
pub use self::geometry::{GROUPUSED, INDIRECT_SHIFT, PROJECTUSED, USERUSED};
pub use self::object::{DataStream, Extent, LogBlock, LogStore, Object, ObjectSpec, RangeGuard, Run};
pub use self::objset::{NextObjects, Objset, ObjsetPolicy, ObjsetStats, RawRoot, RedundantMetadata};
pub use self::prefetch::Zfetch;
pub use self::reader::KeyAccess;
pub use self::sync::{Killed, SpaceDelta, Storing, Synced, Writer};
pub use self::zap::{Zap, ZapEntry, ZapListing};

/// Access to blocks: the zio pipeline and the ARC. Cheap to clone.
#[derive(Clone)]
pub struct Dmu {
    zio: Zio,
    cache: Arc<Cache<ZioError>>,
    handle: Handle,
    ahead: Arc<prefetch::Budget>,
    /// The group of detached tasks of the pool: they run on when nobody waits for them.
    detached: Group,
}

impl Dmu {
    /// Joins a pipeline with a cache.
    #[must_use]
    pub fn new(handle: Handle, zio: Zio, cache: Arc<Cache<ZioError>>) -> Self {
        let ahead = Arc::new(prefetch::Budget::of(cache.stats().limit_bytes));
        let detached = handle.group();
        Self { zio, cache, handle, ahead, detached }
    }

    /// The group of detached tasks: prefetches, and reads whose caller was dropped. Exporting the pool closes the group and waits for it.
    #[must_use]
    pub fn detached(&self) -> &Group {
        &self.detached
    }

    /// Spawns a part of a read as a task of its own, which runs on if the caller is dropped.
    pub(crate) fn spawn<F>(&self, future: F) -> Result<Join<F::Output>, GroupClosed>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.detached.spawn(Class::Issue, future)
    }

    /// The pipeline.
    #[must_use]
    pub fn zio(&self) -> &Zio {
        &self.zio
    }

    /// The block cache, for another `Dmu` over the same blocks.
    #[must_use]
    pub fn shared_cache(&self) -> Arc<Cache<ZioError>> {
        Arc::clone(&self.cache)
    }

    /// The block cache.
    #[must_use]
    pub fn cache(&self) -> &Cache<ZioError> {
        &self.cache
    }

    /// The runtime.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The logical bytes of the block at `bp`, from the cache or from the devices. See [`Zio::read`].
    ///
    /// # Errors
    /// The block cannot be read.
    pub async fn read(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Block, ZioError> {
        match self.cached(bp, context) {
            Some(block) => Ok(block),
            None => self.load(bp, context).await,
        }
    }

    #[boxed]
    async fn load(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Block, ZioError> {
        Ok(self.find(bp, context, || ()).await?.0)
    }

    /// Like [`Dmu::read`], and also returns where the block came from. `on_miss` is called before the block is read from the devices.
    pub(crate) async fn find(
        &self,
        bp: &Blkptr,
        context: ReadContext<'_>,
        on_miss: impl FnOnce(),
    ) -> Result<(Block, Source), ZioError> {
        let Some(key) = Self::cache_key_with(bp, context) else {
            return Ok((self.zio.read(bp, context).await?, Source::Resident));
        };
        let load = || {
            on_miss();
            self.zio.read_shelved(bp, context)
        };
        self.cache.find_or_load(key, Self::memory_bytes(bp), || self.zio.hurry(bp), load).await
    }

    /// The block at `bp`, and where it came from, if it is in the cache now. A block that needs a key is given only to a reader
    /// that has one.
    pub(crate) fn resident(&self, bp: &Blkptr, has_key: bool) -> Option<(Block, Source)> {
        self.cache.find(Self::cache_key_for(bp, has_key)?)
    }

    /// Prefetches the block at `bp` into the cache. An error is ignored: the later reader gets it.
    #[boxed]
    pub async fn prefetch(&self, bp: &Blkptr, context: ReadContext<'_>) {
        if let Some(key) = Self::cache_key_with(bp, context) {
            // The reader that asks for the block reads it again, and gets the error.
            let context = context.ahead();
            let _ = self.cache.prefetch(key, Self::memory_bytes(bp), || self.zio.read_shelved(bp, context)).await;
        }
    }

    /// The logical bytes of a block of pointers or dnodes. Of an encrypted dataset's dnodes only bonuses are encrypted: without the key the
    /// block comes as it is stored.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn read_structure(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Block, ZioError> {
        let is_opened = context.key.is_some() || !bp.is_encrypted();
        if is_opened { self.read(bp, context).await } else { self.zio.read_physical(bp, context).await }
    }

    /// Like [`Dmu::read`], past the cache: for data that will not be read again.
    #[boxed]
    pub async fn read_uncached(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Block, ZioError> {
        match self.cached(bp, context) {
            Some(block) => Ok(block),
            None => self.zio.read(bp, context).await,
        }
    }

    /// The logical bytes of the block at `bp`, if they are in the cache.
    #[must_use]
    pub fn cached(&self, bp: &Blkptr, context: ReadContext<'_>) -> Option<Block> {
        Self::cache_key_with(bp, context).and_then(|key| self.cache.get(key))
    }

    /// Keeps a block that is being written in the cache, so that its readers need not wait for a device.
    pub(crate) fn keep(&self, bp: &Blkptr, block: &Block) {
        if let Some(key) = Self::cache_key(bp) {
            assert_eq!(block.len() as u64, bp.lsize_bytes(), "a block is kept under its own pointer");
            self.cache.put(key, block);
        }
    }

    /// Forgets a cached block whose place is written again, that nothing points to (it was freed), or whose dataset keeps no data.
    pub fn forget(&self, bp: &Blkptr) {
        if let Some(key) = Self::cache_key(bp) {
            self.cache.remove(key);
        }
    }

    /// The memory that reading the block takes: its logical bytes, and its physical bytes where they differ.
    fn memory_bytes(bp: &Blkptr) -> usize {
        let of = |len: u64| memory_bytes_of(usize::try_from(len).unwrap_or(usize::MAX));
        let transformed = bp.compress() != Some(Compress::Off) || bp.uses_crypt();
        of(bp.lsize_bytes()).saturating_add(if transformed { of(bp.psize_bytes()) } else { 0 })
    }

    fn cache_key_with(bp: &Blkptr, context: ReadContext<'_>) -> Option<BlockKey> {
        Self::cache_key_for(bp, context.key.is_some())
    }

    /// A block that needs a key is in the cache in the clear; a reader without the key must not find it there.
    fn cache_key_for(bp: &Blkptr, has_key: bool) -> Option<BlockKey> {
        Self::cache_key(bp).filter(|_| has_key || !bp.is_encrypted())
    }

    fn cache_key(bp: &Blkptr) -> Option<BlockKey> {
        if bp.is_embedded() {
            return None;
        }
        let first = bp.dvas().next()?;
        Some(BlockKey { vdev: first.vdev.0, offset_bytes: first.offset_bytes, birth_txg: bp.physical_birth().0 })
    }
}
