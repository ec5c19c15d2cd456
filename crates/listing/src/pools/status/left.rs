//! The work that is left of each activity of a pool, as `zpool wait` shows it at an interval.

use std::collections::{BTreeMap, BTreeSet};

use cenote_format::dsl::{RebuildState, ScanFlags, ScanFunction, ScanState};
use cenote_format::ids::Guid;
use cenote_spa::LeafWorkKind;
use cenote_taskq::boxed;
use cenote_vdev::config::VdevKind;
use cenote_vdev::tree::VdevStatus;

use super::activity::Activity;
use super::scan::{self, Scanned};
use crate::Facts;
use crate::error::Result;

/// Bytes that are left of each activity.
#[derive(Clone, Debug, Default)]
pub struct Left {
    bytes: BTreeMap<&'static str, u64>,
    begun: BTreeSet<&'static str>,
}

impl Left {
    /// Reads the state of every activity of a pool.
    ///
    /// # Errors
    /// The pool cannot be read.
    #[boxed]
    pub async fn read(facts: &Facts) -> Result<Self> {
        let scanned = scan::read(facts).await?;
        let (mut is_replacing, mut is_replaced) = (false, false);
        facts.pool.vdevs().walk(&mut |vdev| {
            is_replacing |= matches!(vdev.kind, VdevKind::Replacing | VdevKind::Spare | VdevKind::DraidSpare { .. });
            is_replaced |= vdev.kind == VdevKind::Replacing;
        });
        let freeing_bytes = facts.freeing_bytes().await?;
        let devices = facts.devices();
        let mut leaves = devices.children.iter().filter(|top| !top.is_log).flat_map(VdevStatus::leaves);
        let is_lacking = leaves.any(|leaf| leaf.state.is_readable() && !leaf.missed.is_empty());
        let is_resilvered = is_lacking || scanned.is_resilvering();
        // A device that was rebuilt is verified before the other one goes.
        let mut is_verified = false;
        facts.pool.vdevs().walk(&mut |vdev| {
            is_verified |=
                vdev.kind == VdevKind::Replacing && vdev.leaves().iter().any(|leaf| leaf.rebuild_txg.is_some());
        });
        let is_verified = is_verified && scanned.is_scrubbing();
        let begun = [
            ("discard", scanned.discarding.is_some()),
            ("free", freeing_bytes > 0),
            ("replace", is_replaced && (is_resilvered || is_verified)),
            ("remove", scanned.removal.as_ref().is_some_and(scan::Copying::is_begun)),
            ("resilver", is_resilvered),
            ("scrub", scanned.is_scrubbing()),
            ("raidz_expand", scanned.expansions.iter().any(scan::Copying::is_begun)),
        ];
        let mut begun: BTreeSet<_> =
            begun.into_iter().filter(|(_, is_begun)| *is_begun).map(|(word, _)| word).collect();
        let resilver = scanned.left_of(ScanFunction::RESILVER) + scanned.left_of_rebuilds();
        let verified = if is_verified { scanned.left_of(ScanFunction::SCRUB) } else { 0 };
        let mut bytes = BTreeMap::from([
            ("discard", scanned.discarding.unwrap_or(0)),
            ("free", freeing_bytes),
            ("replace", if is_replacing { resilver + verified } else { 0 }),
            ("remove", scanned.removal.as_ref().map_or(0, scan::Copying::left_bytes)),
            ("resilver", resilver),
            ("scrub", scanned.left_of(ScanFunction::SCRUB)),
            ("raidz_expand", scanned.expansions.iter().map(scan::Copying::left_bytes).sum()),
        ]);
        for (kind, leaves) in super::requested(facts).await? {
            let word = match kind {
                LeafWorkKind::Initialize => "initialize",
                LeafWorkKind::Trim => "trim",
            };
            if leaves.values().any(|activity| activity.is_active()) {
                begun.insert(word);
            }
            bytes.insert(word, of_leaves(&leaves));
        }
        Ok(Self { bytes, begun })
    }

    /// Whether an activity, by its word, was begun and has not ended, whether or not a process works on it; of a resilver, whether a device
    /// that is there lacks something, too. Not one that a person has paused.
    #[must_use]
    pub fn is_begun(&self, activity: &str) -> bool {
        self.begun.contains(activity)
    }

    /// Of an activity by its word, such as `scrub`; 0 for one that nothing does.
    #[must_use]
    pub fn of(&self, activity: &str) -> u64 {
        self.bytes.get(activity).copied().unwrap_or(0)
    }
}

fn of_leaves(leaves: &BTreeMap<Guid, Activity>) -> u64 {
    leaves.values().map(|activity| activity.left_bytes()).sum()
}

impl Scanned {
    /// Of a scrub or a resilver that is not paused.
    fn left_of(&self, function: ScanFunction) -> u64 {
        let is_active = |state| state == ScanState::SCANNING;
        let scan = self.scan.as_ref().filter(|scan| scan.function == function && is_active(scan.state));
        let scan = scan.filter(|scan| !scan.flags.contains(ScanFlags::SCRUB_PAUSED));
        scan.map_or(0, |scan| scan.to_examine_bytes.saturating_sub(scan::issued_bytes(scan, self.unreported)))
    }

    fn left_of_rebuilds(&self) -> u64 {
        let active = self.rebuilds.iter().filter(|rebuild| rebuild.phys.state == RebuildState::ACTIVE);
        active.map(|rebuild| rebuild.phys.estimated_bytes.saturating_sub(rebuild.phys.rebuilt_bytes)).sum()
    }
}
