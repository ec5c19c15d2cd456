//! Dirty time logs: which txgs a leaf has missed, kept in the MOS for as long as the leaf has not made up for them.
//!
//! A leaf misses a txg when a block of that txg was to be written to it and was not: it is not there, or it failed. Its log
//! is written in the same txg, which takes a pass more, so that the next import does not rely on the leaf for that txg.
//! The log is written anew each time: it has a range for each time that the leaf was away.
//!
//! A leaf also misses a txg if it took all blocks and did not take the labels or the uberblock. That is known only after the commit,
//! so it waits in memory (`RootVdev::unnoted`) for the next txg's log. After a crash in between, or where it was the export's txg
//! (another host may have the pool by then, so nothing more is written), the leaf is one commit behind. The next import sees that
//! (`crate::behind`), and the next commit writes its labels again, or fails and is noted. An entry for a txg whose blocks the leaf has
//! costs a resilver little. A log device's leaf has nothing to make up for once all that was on the device when it missed something is freed
//! ([`Syncer::mend_log_dtls`]): blocks of intent logs are gone a few txgs later, and there is no resilver for them (`pool/log_leaves.rs`). A missing entry may cost the pool: if only that leaf is there, the import opens an older txg, whose blocks were
//! reused since.

use std::collections::BTreeMap;

use cenote_format::ids::{Guid, ObjectId, Txg, VdevId};
use cenote_format::spacemap::{HISTOGRAM_BUCKETS, SPACE_MAP_SIZE_V0_BYTES, SpaceMapType};
use cenote_metaslab::{Batch, SpaceMap};
use cenote_taskq::mutant::{self, Mutant};
use cenote_vdev::config::{AllocationClass, VdevConfig};
use cenote_vdev::dtl::Dtl;

use crate::SpaError;
use crate::sync::Syncer;

/// Blocks of a dirty time log (`zfs_vdev_dtl_sm_blksz`).
const DTL_BLOCK_BYTES: u64 = 4 << 10;
/// The field of a leaf's configuration that names its log.
const DTL: &str = "DTL";

impl Syncer {
    /// Notes that leaves have missed the txg that syncs.
    pub(crate) async fn note_missed(
        &mut self,
        txg: Txg,
        pass: u32,
        leaves: impl IntoIterator<Item = Guid>,
    ) -> Result<(), SpaError> {
        let set = Dtl::of(txg.0..txg.0.saturating_add(1));
        self.note_dtls(txg, pass, leaves.into_iter().map(|guid| (guid, set.clone())).collect()).await
    }

    /// Notes in the txg that syncs which txgs leaves have missed. The configuration changes where a leaf has no log yet.
    pub(crate) async fn note_dtls(&mut self, txg: Txg, pass: u32, leaves: BTreeMap<Guid, Dtl>) -> Result<(), SpaError> {
        if mutant::is(Mutant::DtlUnwritten) {
            return Ok(());
        }
        for (guid, txgs) in leaves {
            assert!(
                txgs.ranges().last().is_none_or(|last| last.end <= txg.0 + 1),
                "a leaf has missed no txg that is to come"
            );
            let leaf = self.devices.root_vdev.config.leaves().into_iter().find(|leaf| leaf.guid == guid);
            // A leaf that was removed meanwhile misses nothing.
            let Some(dtl) = leaf.map(|leaf| leaf.dtl) else { continue };
            self.devices.tree.add_dtl(guid, &txgs);
            let missed = self.devices.root_vdev.missed.entry(guid).or_default();
            if !missed.absorb(&txgs) {
                continue;
            }
            self.write_dtl(txg, pass, guid, dtl).await?;
        }
        Ok(())
    }

    /// Notes what leaves lack that distributed spares were given in their places, once the reports of rebuilds and scans about that are taken.
    pub(super) async fn note_passed_over(&mut self, txg: Txg) -> Result<(), SpaError> {
        let passed_over = self.devices.tree.take_passed_over().into_iter();
        // Txgs to come, which a new spare lacks too, the leaf misses by itself.
        let upto_now = passed_over.map(|(guid, txgs)| (guid, txgs.before(Txg(txg.0.saturating_add(1)))));
        self.note_dtls(txg, 1, upto_now.collect()).await
    }

    /// Gives a leaf that is new a log with these txgs, of which some are to come.
    pub(crate) async fn set_dtl(&mut self, txg: Txg, guid: Guid, missed: Dtl) -> Result<(), SpaError> {
        let before = self.devices.root_vdev.missed.insert(guid, missed);
        assert!(before.is_none(), "a leaf that is new has no log");
        self.write_dtl(txg, 1, guid, ObjectId(0)).await
    }

    /// Writes the log of a leaf anew, in this object, with what is known to be missed by now.
    pub(super) async fn write_dtl(&mut self, txg: Txg, pass: u32, guid: Guid, dtl: ObjectId) -> Result<(), SpaError> {
        let ranges =
            self.devices.root_vdev.missed.get(&guid).map(|missed| missed.ranges().to_vec()).unwrap_or_default();
        let mut changes = self.mos.space_changes(txg);
        let mut map = if dtl == ObjectId(0) {
            let made = SpaceMap::create(&mut changes, DTL_BLOCK_BYTES, 0, 0);
            made?
        } else {
            let object = self.mos.objset.object(dtl).await?;
            let mut map = SpaceMap {
                object: dtl,
                block_size_bytes: object.block_bytes(),
                start_bytes: 0,
                shift: 0,
                length_bytes: 0,
                allocated_bytes: 0,
                histogram: (object.phys().bonus.len() != SPACE_MAP_SIZE_V0_BYTES).then_some([0; HISTOGRAM_BUCKETS]),
            };
            let block_bytes = map.block_size_bytes;
            map.truncate(&mut changes, block_bytes)?;
            map
        };
        let two_words = self.mos.features.has("spacemap_v2");
        let batch = Batch { txg, pass: u16::try_from(pass).unwrap_or(u16::MAX), two_words };
        map.append(&mut changes, batch, SpaceMapType::Alloc, None, ranges.into_iter())
            .and_then(|()| map.put_header(&mut changes))?;
        self.in_txg().make_changes(changes).await?;
        if dtl != map.object {
            self.devices.root_vdev.set_field(guid, DTL, map.object.0)?;
            self.devices.config_changed = true;
            self.write_config(txg).await?;
        }
        Ok(())
    }

    /// Log devices that have failed, and those that have missed something.
    pub(crate) fn log_devices_behind(&self) -> Vec<VdevId> {
        let failed = self.blocks.space.failed_log_devices();
        let tops = self.devices.root_vdev.tops().filter(|(_, top)| top.class == AllocationClass::Log);
        let misses = |top: &VdevConfig| {
            let leaves = top.leaves().into_iter();
            leaves.filter_map(|leaf| self.devices.root_vdev.missed.get(&leaf.guid)).any(|missed| !missed.is_empty())
        };
        let is_off = |top: &VdevConfig| top.leaves().iter().all(|leaf| leaf.state.offline);
        let behind = tops.filter(|(vdev, top)| !is_off(top) && (failed.contains(vdev) || misses(top)));
        behind.map(|(vdev, _)| vdev).collect()
    }

    /// Takes out of the logs of log devices' leaves what no block is missing of any more: nothing that was on the device before this txg is
    /// still allocated. A leaf that is not there, or not written, goes on missing.
    pub(crate) async fn mend_log_dtls(&mut self, txg: Txg) -> Result<(), SpaError> {
        if self.devices.root_vdev.missed.values().all(Dtl::is_empty) {
            return Ok(());
        }
        let lost = self.devices.root_vdev.lost();
        let tops = self.devices.root_vdev.tops().filter(|(_, top)| top.class == AllocationClass::Log);
        let is_empty =
            |vdev: &VdevId| self.blocks.space.with(|allocator| allocator.evacuation(*vdev)).allocated_bytes == 0;
        let mut mended = Vec::new();
        for (_, top) in tops.filter(|(vdev, _)| is_empty(vdev)) {
            for leaf in top.leaves() {
                let is_there = !lost.contains(&leaf.guid) && self.devices.tree.is_leaf_online(leaf.guid);
                let misses =
                    self.devices.root_vdev.missed.get(&leaf.guid).is_some_and(|missed| !missed.before(txg).is_empty());
                if is_there && misses {
                    mended.push(leaf.guid);
                }
            }
        }
        for guid in mended {
            self.mend_dtl(txg, guid, txg).await?;
        }
        Ok(())
    }

    /// Takes the txgs before one out of a leaf's log: it has made up for them, or nothing needs them any more.
    pub(crate) async fn mend_dtl(&mut self, txg: Txg, guid: Guid, before: Txg) -> Result<(), SpaError> {
        let Some(missed) = self.devices.root_vdev.missed.get_mut(&guid) else { return Ok(()) };
        missed.remove(0..before.0);
        if missed.is_empty() {
            self.devices.root_vdev.missed.remove(&guid);
        }
        self.devices.tree.mend_dtl(guid, before);
        let leaf = self.devices.root_vdev.config.leaves().into_iter().find(|leaf| leaf.guid == guid);
        match leaf.map(|leaf| leaf.dtl) {
            Some(dtl) if dtl != ObjectId(0) => self.write_dtl(txg, 1, guid, dtl).await,
            _ => Ok(()),
        }
    }
}
