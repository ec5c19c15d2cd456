//! Which metaslabs are in memory: loading, and unloading what is idle or has no room.

use cenote_format::ids::{ObjectId, Txg};

use super::Allocator;
use crate::group::Which;
use crate::{LoadStep, Loading, Metaslab, MetaslabId, SpaceError};

/// Metaslabs to look at beyond those whose flush is planned: a txg may flush more.
const FLUSHES_MORE: u64 = 8;

impl Allocator {
    /// Begins to load a metaslab; see [`Metaslab::begin_load`].
    pub fn begin_load(&self, id: MetaslabId) -> Result<Loading, SpaceError> {
        self.metaslab(id).ok_or(SpaceError::NoMetaslab(id))?.begin_load()
    }

    /// Ends a load, or says what else to read. Others are unloaded where memory has no room for one more.
    pub fn end_load(
        &mut self,
        id: MetaslabId,
        loading: Loading,
        txg: Txg,
        now_ms: u64,
    ) -> Result<LoadStep, SpaceError> {
        let vdev = self.vdevs.get_mut(&id.vdev).ok_or(SpaceError::NoMetaslab(id))?;
        let was_loaded = vdev.metaslab(id.index)?.is_loaded();
        let step = vdev.change(id.index, |metaslab| {
            metaslab.selected = (txg, now_ms);
            metaslab.end_load(loading)
        })??;
        if matches!(step, LoadStep::Done) {
            vdev.weigh(id.index, &self.tunables)?;
            if !was_loaded {
                self.gathered.of(id).is_loaded = true;
            }
            self.fit_memory(Some(txg))?;
        }
        Ok(step)
    }

    /// Gives up a metaslab whose map cannot be read: it is passed over, as if it were full, until [`Self::try_again`]. Frees in it
    /// are still counted and logged.
    ///
    /// # Errors
    /// There is no such metaslab.
    pub fn give_up_load(&mut self, id: MetaslabId, now_ms: u64) -> Result<(), SpaceError> {
        let vdev = self.vdevs.get_mut(&id.vdev).ok_or(SpaceError::NoMetaslab(id))?;
        vdev.metaslab(id.index)?.set_unreadable(Some(now_ms));
        Ok(())
    }

    /// Lets metaslabs be loaded again whose maps could not be read `after_ms` ago or earlier.
    pub fn try_again(&mut self, now_ms: u64, after_ms: u64) {
        for vdev in self.vdevs.values_mut() {
            for metaslab in &mut vdev.metaslabs {
                if metaslab.unreadable_since_ms().is_some_and(|since| now_ms.saturating_sub(since) >= after_ms) {
                    metaslab.set_unreadable(None);
                }
            }
        }
    }

    /// Metaslabs that are to be flushed next, with the object and the length in bytes of each map: at least as many as the next first
    /// pass plans to flush.
    #[must_use]
    pub fn flushed_next(&self) -> Vec<(MetaslabId, ObjectId, u64)> {
        let wanted = self.logs.flushes_wanted(&self.tunables).saturating_add(FLUSHES_MORE);
        let metaslabs =
            self.logs.dirty_in_order().filter_map(|id| self.vdevs.get(&id.vdev)?.metaslabs.get(id.index as usize));
        let maps =
            metaslabs.filter(|metaslab| !metaslab.is_unreadable() && !metaslab.is_loaded()).take(wanted as usize);
        maps.filter_map(|metaslab| Some((metaslab.id(), metaslab.map()?.object, metaslab.map()?.length_bytes)))
            .collect()
    }

    /// Memory of loaded metaslabs.
    #[must_use]
    pub fn loaded_memory_bytes(&self) -> u64 {
        self.metaslabs().map(Metaslab::loaded_memory_bytes).sum()
    }

    /// The limit of that memory.
    #[must_use]
    pub fn loaded_memory_bytes_max(&self) -> u64 {
        let size: u64 = self.metaslabs().map(Metaslab::size_bytes).sum();
        self.tunables.loaded_memory_bytes_max(size)
    }

    /// Unloads the metaslabs chosen longest ago until the loaded ones fit into memory. Those chosen in the txg `keep` stay, or three
    /// copies in three metaslabs could unload each other for ever; the end of the txg makes up for it.
    pub(super) fn fit_memory(&mut self, keep: Option<Txg>) -> Result<(), SpaceError> {
        let (mut memory, max) = (self.loaded_memory_bytes(), self.loaded_memory_bytes_max());
        if memory <= max || self.tunables.metaslab_debug_unload {
            return Ok(());
        }
        let mut oldest: Vec<_> = self
            .metaslabs()
            .filter(|metaslab| metaslab.is_loaded() && Some(metaslab.selected.0) != keep)
            .map(|metaslab| (metaslab.selected, metaslab.id(), metaslab.loaded_memory_bytes()))
            .collect();
        oldest.sort_unstable_by_key(|(selected, id, _)| (*selected, *id));
        for (_, id, bytes) in oldest {
            if memory <= max {
                break;
            }
            if self.unload(id)? {
                assert!(bytes <= memory, "memory of what was unloaded was counted (invariant 3)");
                memory -= bytes;
            }
        }
        Ok(())
    }

    /// Unloads a metaslab if nothing hangs on it. Whether it did.
    pub fn unload(&mut self, id: MetaslabId) -> Result<bool, SpaceError> {
        let vdev = self.vdevs.get_mut(&id.vdev).ok_or(SpaceError::NoMetaslab(id))?;
        let metaslab = vdev.metaslab(id.index)?;
        if !metaslab.is_loaded() || metaslab.is_allocating() || metaslab.is_new() {
            return Ok(false);
        }
        if metaslab.is_holding() {
            return Ok(false);
        }
        vdev.passivate(id.index, None)?;
        let is_unloaded = vdev.change(id.index, Metaslab::unload)?;
        if is_unloaded {
            self.gathered.of(id).is_unloaded = true;
        }
        Ok(is_unloaded)
    }

    pub(super) fn unload_idle(&mut self, txg: Txg, now_ms: u64) -> Result<(), SpaceError> {
        if self.tunables.metaslab_debug_unload {
            return Ok(());
        }
        let idle: Vec<MetaslabId> = self
            .metaslabs()
            .filter(|metaslab| metaslab.is_loaded())
            .filter(|metaslab| metaslab.activation.is_none() || !self.tunables.metaslab_preload_enabled)
            .filter(|metaslab| {
                let (at, at_ms) = metaslab.selected;
                txg.0 > at.0.saturating_add(self.tunables.metaslab_unload_delay)
                    && now_ms > at_ms.saturating_add(self.tunables.metaslab_unload_delay_ms)
            })
            .map(Metaslab::id)
            .collect();
        for id in idle {
            self.unload(id)?;
        }
        Ok(())
    }

    pub(super) fn preload(&self) -> Vec<MetaslabId> {
        if !self.tunables.metaslab_preload_enabled {
            return Vec::new();
        }
        let limit = self.tunables.metaslab_preload_limit;
        let groups = self.vdevs.values().flat_map(|vdev| [Which::Main, Which::Embedded].map(|which| (vdev, which)));
        groups.flat_map(|(vdev, which)| vdev.preload(which, limit)).collect()
    }
}
