//! The copies of a sequential rebuild are verified before the device goes whose place it takes.
//!
//! # Theory
//!
//! **Need.** A rebuild copies bytes that nobody verified. Where its source has rotted, the only good copy may be on the side of a `replacing` or `spare`
//! that goes next. So that side is *held* until the scrub that follows the rebuild has read all copies, its own too, and has written the bad ones again.
//!
//! **On disk.** A leaf below a `replacing` or a `spare` that a rebuild has made whole keeps `rebuild_txg` in its configuration, with an empty dirty time log,
//! until it is verified. The txg that ends the rebuild begins the scrub, too. So a pool that is opened again, after an export or a power cut, holds the
//! same sides as before, and its scrub goes on or is begun. OpenZFS takes the field away from a leaf that lacks nothing, and detaches the old side when it
//! next looks: then the pool is as OpenZFS would have left it.
//!
//! **The end.** A scrub of all blocks ends the hold. What it could not write again to the leaf gets into the leaf's log: that is the work of a resilver, and the
//! old side stays. A block that no side has a good copy of holds nothing. A leaf that was away for a part of the scrub is verified by another one. A scrub that
//! gives way to a resilver, or to another rebuild, is begun anew after it. One that a *person* gives up ends the hold, as does `detach` of either side.
//!
//! **Nothing is held** where no other side is there, and not with the tunable `zfs_rebuild_scrub_enabled=0`.
//!
//! **Invariant.** While a leaf is unverified, its scrub is under way or paused, or another scan or rebuild is, whose end begins it: so no side is held for
//! ever, unless a person has the scrub wait.

use cenote_format::dsl::ScanFunction;
use cenote_format::ids::{Guid, Txg};
use cenote_taskq::mutant::{self, Mutant};
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::dtl::Dtl;

use crate::SpaError;
use crate::jobs::scan::EndedScan;
use crate::sync::Syncer;

/// The field of a leaf that is rebuilt, or was and is not verified.
const REBUILD_TXG: &str = "rebuild_txg";

impl Syncer {
    /// True if a leaf has only what a rebuild has copied to it, which no scrub has verified, and something is there that may have better copies.
    pub(crate) fn is_unverified(&self, guid: Guid) -> bool {
        if !self.jobs.scan.tunables.zfs_rebuild_scrub_enabled || mutant::is(Mutant::RebuildUnverified) {
            return false;
        }
        let Some((ancestors, leaf)) = self.devices.root_vdev.vdev(guid) else { return false };
        if leaf.rebuild_txg.is_none() || !self.has_all(guid) {
            return false;
        }
        let is_there =
            |other: &VdevConfig| self.devices.tree.is_leaf_online(other.guid) || self.is_distributed_spare(other.guid);
        let joints = ancestors.iter().filter(|above| matches!(above.kind, VdevKind::Replacing | VdevKind::Spare));
        joints.flat_map(|joint| joint.leaves()).any(|other| other.guid != guid && is_there(other))
    }

    /// True if what takes the place of another vdev is unverified.
    pub(crate) fn holds_other_side(&self, new: &VdevConfig) -> bool {
        new.leaves().into_iter().any(|leaf| self.is_unverified(leaf.guid))
    }

    fn unverified(&self) -> Vec<Guid> {
        let leaves = self.devices.root_vdev.config.leaves().into_iter();
        leaves.map(|leaf| leaf.guid).filter(|guid| self.is_unverified(*guid)).collect()
    }

    /// A device is kept that was replaced, until the one that was rebuilt in its place is verified.
    #[must_use]
    pub fn is_verifying(&self) -> bool {
        !self.unverified().is_empty()
    }

    /// Begins the scrub that verifies, in the open txg, if there is to be one and nothing else is under way. So it does where an evacuation has found
    /// that legs differ.
    pub(crate) async fn begin_verification(&mut self) -> Result<(), SpaError> {
        let has_difference = self.jobs.evacuation.wants_scrub();
        let is_busy = self.jobs.scan.is_running()
            || self.jobs.scan.is_resilver_wanted
            || self.jobs.error_scrub.is_running()
            || self.jobs.rebuild.is_active();
        if is_busy || !has_difference && self.unverified().is_empty() {
            return Ok(());
        }
        self.start_scan(ScanFunction::SCRUB, (Txg(0), self.txg)).await?;
        self.jobs.evacuation.scrub_is(true, false);
        Ok(())
    }

    /// A scan has ended: what it has verified is not held any more.
    pub(super) async fn end_verification(&mut self, ended: &EndedScan) -> Result<(), SpaError> {
        let EndedScan { phys, is_complete, unrepaired, back, .. } = ended;
        let is_whole = *is_complete && phys.function == ScanFunction::SCRUB && phys.min_txg.0 == 0;
        if !self.jobs.evacuation.wants_scrub() {
            self.jobs.evacuation.scrub_is(false, is_whole);
        }
        if !is_complete || phys.function != ScanFunction::SCRUB || phys.min_txg.0 > 0 {
            return Ok(());
        }
        for guid in self.unverified().into_iter().filter(|guid| !back.contains(guid)) {
            let mut left = Dtl::new();
            for holder in self.holders_of(guid) {
                if let Some(unrepaired) = unrepaired {
                    left.absorb(&unrepaired.of(holder, &Dtl::new()));
                }
            }
            if !left.is_empty() {
                self.note_dtls(self.txg, 1, [(guid, left)].into()).await?;
            }
            self.verified(guid)?;
        }
        Ok(())
    }

    /// Holds nothing any more: a person has given the scrub up.
    pub(crate) fn give_verification_up(&mut self) -> Result<(), SpaError> {
        self.jobs.evacuation.scrub_is(false, true);
        self.unverified().into_iter().try_for_each(|guid| self.verified(guid))
    }

    fn verified(&mut self, guid: Guid) -> Result<(), SpaError> {
        self.devices.root_vdev.clear_field(guid, REBUILD_TXG)?;
        self.devices.config_changed = true;
        assert!(!self.is_unverified(guid), "a leaf that is verified holds nothing");
        Ok(())
    }
}
