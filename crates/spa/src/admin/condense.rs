//! How the condensing of a mapping begins and ends: [`crate::jobs::condensing`] has the theory.

use cenote_dmu::Zap;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{ObjectId, VdevId};
use cenote_format::indirect::{CondensingIndirect, IndirectMappingEntry, IndirectMappingPhys};
use cenote_format::zap::ZapValue;
use cenote_vdev::config::VdevKind;
use cenote_zio::ORDER;

use super::evacuate::MAPPING;
use crate::SpaError;
use crate::jobs::condensing::Running;
use crate::sync::Syncer;
use crate::sync::obsolete::OBSOLETE_MAP;

impl Syncer {
    /// Goes on with the condensing that the pool has, at its opening. One that makes no sense is left alone.
    pub(crate) async fn open_condensing(&mut self) -> Result<(), SpaError> {
        self.jobs.condensing.is_unopened = false;
        let directory = Zap::open(self.mos.directory.clone()).await?;
        let value = directory.lookup(pool_directory::CONDENSING_INDIRECT.as_bytes()).await?;
        let words: Option<Vec<u64>> = value.map(|value| value.integers().collect());
        let Some(words) = words else { return Ok(()) };
        let Ok(words) = <[u64; CondensingIndirect::WORDS]>::try_from(words) else {
            self.blocks.space.troubles.tell("what is condensed of removed vdevs' mappings cannot be read".to_owned());
            return Ok(());
        };
        let opened = self.condensing_of(CondensingIndirect::from_words(words)).await;
        match opened {
            Ok(running) => self.jobs.condensing.begin(running),
            Err(error) => {
                let (rooms, jobs) = self.in_txg_with_jobs();
                jobs.condensing.stall(&rooms, &error);
            }
        }
        Ok(())
    }

    async fn condensing_of(&mut self, state: CondensingIndirect) -> Result<Running, SpaError> {
        let vdev = VdevId(u32::try_from(state.vdev).unwrap_or(u32::MAX));
        let top = self.devices.root_vdev.top(vdev).map(|top| top.kind.clone());
        let Some(VdevKind::Indirect(indirect)) = top else {
            return Err(SpaError::contradiction(format!("vdev {vdev}, which was not removed, is condensed")));
        };
        let mapping = self.blocks.space.removed.mappings.mapping(vdev).map_err(SpaError::contradiction)?;
        let rooms = self.in_txg();
        let old = rooms.mos.objset.object(indirect.mapping).await?.bonus(IndirectMappingPhys::parse)?;
        Running::open(&rooms, state, mapping, old).await
    }

    /// Begins to condense a mapping where one is worth it, and ends what is done. At the beginning of a txg's sync, after the slices of jobs.
    pub(crate) async fn settle_condensing(&mut self) -> Result<(), SpaError> {
        if self.jobs.condensing.running.as_ref().is_some_and(Running::is_done) {
            return self.end_condensing().await;
        }
        let condensing = &self.jobs.condensing;
        let is_possible =
            !condensing.is_unopened && condensing.running.is_none() && self.mos.features.has("obsolete_counts");
        if !is_possible || !self.blocks.space.removed.take_has_more() {
            return Ok(());
        }
        let tops = (0..).map(VdevId).zip(&self.devices.root_vdev.config.children);
        let removed = tops.filter_map(|(vdev, top)| match top.kind {
            VdevKind::Indirect(indirect) => Some((vdev, indirect.mapping)),
            _ => None,
        });
        for (vdev, mapping) in removed.collect::<Vec<_>>() {
            match self.is_worth_condensing(vdev, mapping).await {
                Ok(true) => return self.begin_condensing(vdev).await,
                Ok(false) => {}
                // The pool is written all the same.
                Err(error) => {
                    let what = format!("the mapping of the removed vdev {vdev} is not condensed: {error}");
                    self.blocks.space.troubles.tell(what);
                }
            }
        }
        Ok(())
    }

    /// OpenZFS's conditions (`vdev_indirect_should_condense`).
    async fn is_worth_condensing(&mut self, vdev: VdevId, mapping: ObjectId) -> Result<bool, SpaError> {
        let tunables = self.jobs.condensing.tunables;
        let rooms = self.in_txg();
        if !tunables.zfs_condense_indirect_vdevs_enable {
            return Ok(false);
        }
        let Some(map) = rooms.obsolete_map(vdev).await? else { return Ok(false) };
        let phys = rooms.mos.objset.object(mapping).await?.bonus(IndirectMappingPhys::parse)?;
        let obsolete_bytes = u128::from(map.allocated_bytes.unsigned_abs());
        let is_much = phys.bytes_mapped > 0
            && obsolete_bytes * 100
                >= u128::from(phys.bytes_mapped) * u128::from(tunables.zfs_condense_indirect_obsolete_pct);
        let mapping_bytes = phys.entry_count.saturating_mul(IndirectMappingEntry::SIZE as u64);
        let is_large = mapping_bytes > tunables.zfs_condense_min_mapping_bytes;
        let loaded = self.blocks.space.removed.mappings.mapping(vdev).map_err(SpaError::contradiction)?;
        if loaded.entries().len() as u64 != phys.entry_count {
            // Condensed on disk, and in memory when the pool is opened next.
            return Ok(false);
        }
        Ok(is_much && is_large || map.length_bytes >= tunables.zfs_condense_max_obsolete_bytes)
    }

    async fn begin_condensing(&mut self, vdev: VdevId) -> Result<(), SpaError> {
        let txg = self.txg;
        let map = self.in_txg().obsolete_map(vdev).await?.expect("what is condensed has become obsolete").object;
        let counts = self.number_object(DmuType::UINT32_METADATA, Vec::new())?.id();
        let phys = IndirectMappingPhys { counts_object: Some(counts), ..IndirectMappingPhys::default() };
        let next = self.number_object(DmuType::UINT64_METADATA, phys.emit(ORDER))?.id();
        // Of the new counts.
        self.mos.features.change("obsolete_counts", 1);
        let state = CondensingIndirect { vdev: vdev.0.into(), prev_obsolete_sm_object: map, next_mapping_object: next };
        // Nothing has changed yet that fails the txg if this does.
        let running = self.condensing_of(state).await?;
        let table = self.devices.root_vdev.top(vdev).expect("a removed vdev keeps its place").top_zap;
        let table = self.mos.objset.object(table).await?;
        Zap::put_entry(&table, txg, OBSOLETE_MAP, None).await?;
        let value = ZapValue::from_u64s(&state.words());
        Zap::put_entry(&self.mos.directory, txg, pool_directory::CONDENSING_INDIRECT, Some(&value)).await?;
        self.jobs.condensing.begin(running);
        Ok(())
    }

    /// The condensed mapping is the vdev's.
    async fn end_condensing(&mut self) -> Result<(), SpaError> {
        let txg = self.txg;
        let running = self.jobs.condensing.running.take().expect("what ends is under way");
        let vdev = running.vdev;
        let top = self.devices.root_vdev.top(vdev).expect("a removed vdev keeps its place");
        let VdevKind::Indirect(indirect) = top.kind else {
            return Err(SpaError::contradiction(format!("vdev {vdev}, which was not removed, is condensed")));
        };
        let (guid, (map, counts)) = (top.guid, running.old_objects());
        self.devices.root_vdev.set_field(guid, MAPPING, running.state.next_mapping_object.0)?;
        self.devices.config_changed = true;
        let paused = self.devices.tree.pause_mends().await;
        self.devices.tree.change(&self.devices.root_vdev.config, [])?;
        drop(paused);
        self.free_objects(txg, vec![map], Vec::new(), counts.into_iter().chain([indirect.mapping])).await?;
        // Of the map; and of the counts.
        self.mos.features.change("obsolete_counts", -1 - i64::from(counts.is_some()));
        Zap::put_entry(&self.mos.directory, txg, pool_directory::CONDENSING_INDIRECT, None).await?;
        if self.blocks.space.pins.txgs(false).is_empty()
            && let Ok(condensed) = running.condensed(&self.in_txg()).await
        {
            self.blocks.space.removed.mappings.put(vdev, std::sync::Arc::new(condensed));
        }
        Ok(())
    }
}
