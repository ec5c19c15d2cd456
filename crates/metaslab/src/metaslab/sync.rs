//! Writing a metaslab's changes: to the log and into the unflushed sets, or to its own map; flushing; condensing.

use cenote_format::spacemap::SpaceMapType;

use super::{Keep, Metaslab, slot};
use crate::logs::LogSpace;
use crate::map::{Batch, entries_bytes};
use crate::work::Flushed;
use crate::{MetaslabFault, MetaslabWork, RangeTree, SpaceError, SpaceMap, SpaceStore, Tunables};
use cenote_format::ids::Txg;
use cenote_taskq::mutant::{self, Mutant};

/// A map of at most this many blocks is not worth rewriting (OpenZFS's number).
const CONDENSE_BLOCKS_MIN: u64 = 4;

/// Where a txg's changes go.
pub(crate) struct SyncTarget<'a> {
    /// The objects.
    pub store: &'a mut dyn SpaceStore,
    /// The txg and its pass.
    pub batch: Batch,
    /// The log space maps, unless the pool does without.
    pub logs: Option<&'a mut LogSpace>,
    /// The numbers.
    pub tunables: &'a Tunables,
    /// The sync adds its work here.
    pub work: MetaslabWork,
}

impl SyncTarget<'_> {
    fn block_size_bytes(&self) -> u64 {
        if self.logs.is_some() {
            self.tunables.zfs_metaslab_sm_blksz_with_log
        } else {
            self.tunables.zfs_metaslab_sm_blksz_no_log
        }
    }
}

impl Metaslab {
    /// Whether the map should be rewritten: there is nothing free, it is wanted, or it is much longer than it could be.
    #[must_use]
    pub(crate) fn should_condense(&self, two_words: bool, tunables: &Tunables) -> bool {
        let (Some(map), Some(loaded)) = (&self.map, &self.loaded) else { return false };
        if loaded.free.is_empty() || self.condense_wanted {
            return true;
        }
        let optimal = u128::from(entries_bytes(&loaded.free, two_words));
        let record = map.block_size_bytes.max(1 << self.ashift);
        u128::from(map.length_bytes) >= optimal * u128::from(tunables.zfs_metaslab_condense_pct.max(100)) / 100
            && map.length_bytes > CONDENSE_BLOCKS_MIN * record
    }

    /// Writes what this pass allocated and freed. Called in every pass in which the metaslab is dirty.
    pub(crate) fn sync(&mut self, target: &mut SyncTarget<'_>) -> Result<(), SpaceError> {
        let (txg, pass) = (target.batch.txg, target.batch.pass);
        let condense_only = self.loaded.is_some() && self.condense_wanted && pass == 1 && self.map.is_some();
        if self.is_new || (!self.is_dirty(txg) && !condense_only) {
            return Ok(());
        }
        if self.map.is_none() {
            let block_size = target.block_size_bytes();
            let map = SpaceMap::create(target.store, block_size, self.range.start, self.ashift)?;
            self.enter_object(target.store, &map)?;
            self.map = Some(map);
        }
        if pass == 1 && self.should_condense(target.batch.two_words, target.tunables) {
            self.condense(target)?;
        }
        let allocated = self.allocating[slot(txg)].take();
        let freeing = self.freeing.take();
        let (store, batch, work) = (&mut *target.store, target.batch, &mut target.work);
        work.allocated_bytes += allocated.total();
        work.freed_bytes += freeing.total();
        if let Some(logs) = target.logs.as_deref_mut() {
            logs.open(txg, store, target.tunables)?;
            if self.unflushed_txg == Txg(0) || !self.unflushed_dirty {
                logs.enter(self.id, self.unflushed_txg, self.unflushed_dirty, true)?;
                self.set_unflushed(store, txg, true)?;
            }
            if !mutant::is(Mutant::LogAllocsDropped) || txg.0 % 8 != 0 {
                work.log_bytes += logs.append(store, batch, SpaceMapType::Alloc, self.id.vdev, allocated.iter())?;
            }
            work.log_bytes += logs.append(store, batch, SpaceMapType::Free, self.id.vdev, freeing.iter())?;
            let before = self.unflushed_memory_bytes();
            allocated
                .cancel_or_add(&mut self.unflushed_frees, &mut self.unflushed_allocs)
                .map_err(SpaceError::tree(self.id, "unflushed allocations"))?;
            freeing
                .cancel_or_add(&mut self.unflushed_allocs, &mut self.unflushed_frees)
                .map_err(SpaceError::tree(self.id, "unflushed frees"))?;
            debug_assert!(
                freeing.iter().all(|range| self.unflushed_allocs.overlap(range).is_none()),
                "unflushed allocations and frees are disjoint (invariant 5)"
            );
            logs.account_memory(before, self.unflushed_memory_bytes());
        } else if let Some(map) = &mut self.map {
            let before = map.length_bytes;
            map.append(store, batch, SpaceMapType::Alloc, None, allocated.iter())?;
            map.append(store, batch, SpaceMapType::Free, None, freeing.iter())?;
            work.map_bytes += map.length_bytes - before;
        }
        self.allocated_bytes =
            (self.allocated_bytes + allocated.total()).checked_sub(freeing.total()).ok_or_else(|| {
                SpaceError::Figures {
                    metaslab: self.id,
                    fault: MetaslabFault::FreedMore { freed_bytes: freeing.total() },
                }
            })?;
        self.count_free(Some(&freeing));
        if let Some(map) = &self.map {
            map.put_header(store)?;
        }
        if self.freed.is_empty() {
            self.freed = freeing;
        } else {
            self.freed.add_all(&freeing).map_err(SpaceError::tree(self.id, "space freed in this txg"))?;
        }
        Ok(())
    }

    fn enter_object(&self, store: &mut dyn SpaceStore, map: &SpaceMap) -> Result<(), SpaceError> {
        store
            .set_metaslab_object(self.id, map.object)
            .map_err(SpaceError::store(map.object, "enter the space map into the metaslab array"))
    }

    fn set_unflushed(&mut self, store: &mut dyn SpaceStore, txg: Txg, dirty: bool) -> Result<(), SpaceError> {
        self.unflushed_dirty = dirty;
        if self.unflushed_txg != txg {
            self.unflushed_txg = txg;
            let object = self.map.as_ref().map_or(cenote_format::ids::ObjectId(0), |map| map.object);
            store
                .set_unflushed_txg(self.id, txg)
                .map_err(SpaceError::store(object, "enter the metaslab's unflushed txg"))?;
        }
        Ok(())
    }

    /// Brings the map's counts of free runs up to date. Exact where it is loaded; else what is freed is added, until the
    /// next time that it is loaded.
    fn count_free(&mut self, freeing: Option<&RangeTree>) {
        let Some(map) = &mut self.map else { return };
        if let Some(loaded) = &self.loaded {
            map.clear_histogram();
            for tree in [&loaded.free, &self.held, &self.freed].into_iter().chain(self.deferred.trees()) {
                map.count_free(tree);
            }
        }
        if let Some(freeing) = freeing {
            map.count_free(freeing);
        }
    }

    /// Rewrites the map as of the txgs before this one: everything allocated, then what is free.
    fn condense(&mut self, target: &mut SyncTarget<'_>) -> Result<(), SpaceError> {
        debug_assert!(self.freed.is_empty(), "only the first pass condenses");
        assert!(self.loaded.is_some() && self.map.is_some(), "only a loaded metaslab is condensed (invariant 7)");
        let block_size = target.block_size_bytes();
        let (store, batch) = (&mut *target.store, target.batch);
        let (Some(map), Some(loaded)) = (&mut self.map, &self.loaded) else { return Ok(()) };
        // Ranges that are being allocated are free as of the txgs before; deferred frees are free for good.
        let mut rest = loaded.free.emptied();
        for tree in self.deferred.trees().chain(&self.allocating).chain([&self.held]) {
            rest.add_all(tree).map_err(SpaceError::tree(self.id, "free space to be written"))?;
        }
        let moved = map.truncate(store, block_size)?;
        map.append(store, batch, SpaceMapType::Alloc, None, std::iter::once(self.range.clone()))?;
        map.append(store, batch, SpaceMapType::Free, None, loaded.free.iter())?;
        map.append(store, batch, SpaceMapType::Free, None, rest.iter())?;
        target.work.map_bytes += map.length_bytes;
        target.work.flushed = Some(Flushed::Condensed);
        if moved {
            let map = map.clone();
            self.enter_object(store, &map)?;
        }
        self.condense_wanted = false;
        self.rewrites += 1;
        self.count_free(None);
        self.flushed(target)
    }

    /// The own map has everything of the txgs before this one.
    fn flushed(&mut self, target: &mut SyncTarget<'_>) -> Result<(), SpaceError> {
        let before = self.unflushed_memory_bytes();
        drop((self.unflushed_allocs.take(), self.unflushed_frees.take()));
        assert_eq!(self.unflushed_memory_bytes(), 0, "the own map has all that was not flushed (invariant 5)");
        let Some(logs) = target.logs.as_deref_mut() else { return Ok(()) };
        logs.account_memory(before, 0);
        if self.unflushed_txg == Txg(0) {
            return Ok(());
        }
        logs.open(target.batch.txg, target.store, target.tunables)?;
        logs.enter(self.id, self.unflushed_txg, self.unflushed_dirty, false)?;
        self.set_unflushed(target.store, target.batch.txg, false)?;
        logs.retire(target.store)
    }

    /// Appends the unflushed changes to the own map, or rewrites it. In the first pass, before the txg's own changes.
    pub(crate) fn flush(&mut self, target: &mut SyncTarget<'_>) -> Result<(), SpaceError> {
        debug_assert_eq!(target.batch.pass, 1);
        assert!(!self.is_unreadable(), "nothing is appended to a map that cannot be read");
        if self.should_condense(target.batch.two_words, target.tunables) {
            self.condense(target)?;
        } else {
            if let Some(map) = &mut self.map {
                let (store, batch, before) = (&mut *target.store, target.batch, map.length_bytes);
                map.append(store, batch, SpaceMapType::Alloc, None, self.unflushed_allocs.iter())?;
                if !mutant::is(Mutant::MapFreesDropped) {
                    map.append(store, batch, SpaceMapType::Free, None, self.unflushed_frees.iter())?;
                }
                target.work.map_bytes += map.length_bytes - before;
            }
            target.work.flushed = Some(Flushed::Appended);
            self.flushed(target)?;
        }
        if let Some(map) = &self.map {
            map.put_header(target.store)?;
        }
        Ok(())
    }

    /// Moves a metaslab without unflushed changes to this txg: no log has anything that it needs.
    pub(crate) fn skip_flush(&mut self, target: &mut SyncTarget<'_>) -> Result<(), SpaceError> {
        debug_assert!(!self.unflushed_dirty);
        assert!(
            self.unflushed_allocs.is_empty() && self.unflushed_frees.is_empty(),
            "a metaslab whose changes are not flushed is dirty (invariant 5)"
        );
        self.flushed(target)
    }

    /// The txg is on disk: what was freed two txgs ago can be used, unless a pinned txg has it. Whether something is still deferred, so
    /// that the metaslab is to be synced in the next txg too. What can be used goes into `noted` too.
    pub(crate) fn sync_done(
        &mut self,
        txg: Txg,
        keep: &Keep<'_>,
        noted: Option<&mut Vec<std::ops::Range<u64>>>,
    ) -> Result<bool, SpaceError> {
        self.is_new = false;
        let early: Vec<_> = if mutant::is(Mutant::AutotrimEarly) { self.freed.iter().collect() } else { Vec::new() };
        let usable = self.deferred.sync_done(txg, self.freed.take(), keep);
        let usable = usable.map_err(SpaceError::tree(self.id, "frees kept for a view"))?;
        if let Some(noted) = noted {
            noted.extend(usable.iter().flat_map(|tree| tree.iter()));
            noted.extend(early);
        }
        if let Some(loaded) = &mut self.loaded {
            for tree in &usable {
                loaded.free.add_all(tree).map_err(SpaceError::tree(self.id, "free space"))?;
            }
        }
        Ok(!self.deferred.is_empty())
    }
}
