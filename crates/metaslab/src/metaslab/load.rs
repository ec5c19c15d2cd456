//! Loading: what is free, from the own map and what is known to have changed since.
//!
//! Reading takes time, and txgs sync meanwhile. A map is only ever appended to while it is not loaded (condensing needs it
//! loaded), so a load that comes to the end of what it began with reads the rest, and is complete when there is none.

use cenote_format::ids::ObjectId;
use cenote_format::spacemap::{SpaceMapRecord, SpaceMapRecords, SpaceMapType};

use super::{Loaded, Metaslab};
use crate::{MetaslabFault, MetaslabId, ORDER, RangeTree, SpaceError};

/// A load under way. It belongs to no metaslab's lock: bytes can be fed to it while others use the metaslab.
#[derive(Clone, Debug)]
pub struct Loading {
    metaslab: MetaslabId,
    /// The map; 0 if there is none.
    object: ObjectId,
    /// Which writing of the map.
    rewrites: u64,
    /// Bytes of the map that were fed.
    position_bytes: u64,
    free: RangeTree,
    start_bytes: u64,
    size_bytes: u64,
    ashift: u32,
}

/// The outcome of an attempt to end a load.
#[derive(Debug)]
pub enum LoadStep {
    /// The metaslab is loaded.
    Done,
    /// These bytes of the map are to be fed first.
    More {
        /// The load, to go on with.
        loading: Box<Loading>,
        /// The map.
        object: ObjectId,
        /// From where.
        offset_bytes: u64,
        /// How many.
        len_bytes: u64,
    },
}

impl Loading {
    /// Applies the next bytes of the map, in [`ORDER`]: whole entries.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), SpaceError> {
        for record in SpaceMapRecords::new(bytes, ORDER) {
            let unreadable = |error| SpaceError::Entry { object: self.object, error };
            let SpaceMapRecord::Entry(entry) = record.map_err(unreadable)? else { continue };
            let (start, end) = entry.range_bytes(self.start_bytes, self.size_bytes, self.ashift).map_err(unreadable)?;
            match entry.kind {
                SpaceMapType::Alloc => self.free.remove(start..end),
                SpaceMapType::Free => self.free.add(start..end),
            }
            .map_err(SpaceError::tree(self.metaslab, "free space by its map"))?;
        }
        self.position_bytes += bytes.len() as u64;
        Ok(())
    }
}

impl Metaslab {
    /// Begins to load. [`Self::end_load`] says what to read.
    pub fn begin_load(&self) -> Result<Loading, SpaceError> {
        let mut free = self.freeing.emptied();
        free.add(self.range.clone()).map_err(SpaceError::tree(self.id, "free space"))?;
        Ok(Loading {
            metaslab: self.id,
            object: self.map.as_ref().map_or(ObjectId(0), |map| map.object),
            rewrites: self.rewrites,
            position_bytes: 0,
            free,
            start_bytes: self.range.start,
            size_bytes: self.size_bytes(),
            ashift: self.ashift,
        })
    }

    /// Ends a load, or says what else it needs. Nothing happens if it is loaded already.
    pub fn end_load(&mut self, mut loading: Loading) -> Result<LoadStep, SpaceError> {
        assert_eq!(loading.metaslab, self.id, "a load ends in the metaslab that it began in");
        if self.loaded.is_some() {
            return Ok(LoadStep::Done);
        }
        if let Some(map) = &self.map {
            if loading.object != map.object || loading.rewrites != self.rewrites {
                // Made since, or (after another load came and went) rewritten.
                loading = self.begin_load()?;
            }
            debug_assert!(
                loading.position_bytes <= map.length_bytes,
                "a map only grows while it is read (invariant 7)"
            );
            if loading.position_bytes < map.length_bytes {
                let (object, offset_bytes) = (map.object, loading.position_bytes);
                let len_bytes = map.length_bytes - offset_bytes;
                return Ok(LoadStep::More { loading: Box::new(loading), object, offset_bytes, len_bytes });
            }
        }
        let mut free = loading.free;
        let name = SpaceError::tree(self.id, "free space while loading");
        free.remove_all(&self.unflushed_allocs).map_err(&name)?;
        free.add_all(&self.unflushed_frees).map_err(&name)?;
        for tree in std::iter::once(&self.freed).chain(self.deferred.trees()).chain(&self.allocating) {
            free.remove_all(tree).map_err(&name)?;
        }
        // The header says apart from the entries how much is allocated. Weights and shares of vdevs take that for true.
        let moving = std::iter::once(&self.freed).chain(self.deferred.trees()).chain(&self.allocating);
        let sum_bytes = free.total() + moving.map(|tree| tree.total()).sum::<u64>() + self.allocated_bytes;
        if sum_bytes != self.size_bytes() {
            let fault = MetaslabFault::Sum { sum_bytes, size_bytes: self.size_bytes() };
            return Err(SpaceError::Figures { metaslab: self.id, fault });
        }
        self.loaded = Some(Loaded { free, cursors: Box::new([0; 64]) });
        Ok(LoadStep::Done)
    }

    /// Forgets what is free, if nothing hangs on it. Whether it did.
    pub fn unload(&mut self) -> bool {
        if self.loaded.is_none() || self.is_allocating() || self.is_new || !self.held.is_empty() {
            return false;
        }
        self.loaded = None;
        self.activation = None;
        true
    }
}
