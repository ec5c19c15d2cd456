//! The health of a pool, as `zpool status` judges it.

use std::collections::BTreeSet;

use cenote_format::dsl::{RebuildState, ScanFunction, ScanState};
use cenote_format::ids::Guid;
use cenote_taskq::boxed;
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::tree::{VdevState, VdevStatus};

use crate::features::FeatureState;
use crate::{FeatureName, SpaError, View};

/// The version of pools whose format features describe.
const FEATURES_VERSION: u64 = 5000;

/// The conditions that need attention, the most urgent first. Only one is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// A resilver, or a sequential rebuild, is under way.
    Resilvering,
    /// Devices were rebuilt sequentially, and those whose places they take are kept until a scrub has verified what was copied.
    Verifying,
    /// Devices were rebuilt sequentially, and the pool was not scrubbed since: their checksums were not verified.
    Rebuilt,
    /// Devices with sectors larger than their vdevs', which can be read and not be written.
    CoarseSectors,
    /// Faulted devices that the pool cannot do without.
    LostToFaults,
    /// Missing devices that the pool cannot do without.
    LostDevices,
    /// The devices that are present have all missed some txgs: their blocks may be on a missing device alone.
    LostTxgs,
    /// Blocks that could not be read, in the error log.
    DataErrors,
    /// Faulted devices that the pool can do without.
    FaultedDevice,
    /// Missing devices that the pool can do without.
    MissingDevice,
    /// A log that is not mirrored, or has lost all of its devices.
    MissingLog,
    /// Devices that the pool can do without are there, and have no label of it.
    MissingLabel,
    /// Devices have missed txgs and not made up for them.
    MissedTxgs,
    /// Devices that gave errors, which were put right.
    DeviceErrors,
    /// Devices that were taken offline.
    OfflineDevice,
    /// An incompatibility that an earlier OpenZFS has left, by its number.
    Errata(u8),
    /// A version before features.
    OldVersion,
    /// Features that are known here and not enabled there.
    FeaturesDisabled,
}

impl Condition {
    /// Whether it is a remark on a pool that is well.
    #[must_use]
    pub const fn is_remark(self) -> bool {
        matches!(self, Self::OldVersion | Self::FeaturesDisabled)
    }

    /// The number of the message in OpenZFS's documentation, if there is one.
    #[must_use]
    pub const fn message(self) -> Option<&'static str> {
        match self {
            Self::MissingDevice | Self::MissingLog => Some("ZFS-8000-2Q"),
            Self::MissingLabel => Some("ZFS-8000-4J"),
            Self::LostDevices => Some("ZFS-8000-3C"),
            Self::DataErrors => Some("ZFS-8000-8A"),
            Self::DeviceErrors => Some("ZFS-8000-9P"),
            Self::Errata(_) => Some("ZFS-8000-ER"),
            _ => None,
        }
    }
}

/// The most urgent condition of an open pool; `None` when all is well.
#[boxed]
pub async fn condition(pool: &View) -> Result<Option<Condition>, SpaError> {
    condition_with(pool, &pool.tree().status()).await
}

/// [`condition`] with a status of the devices that is newer than the pool's: the one of a pool that is being written.
#[boxed]
pub async fn condition_with(pool: &View, devices: &VdevStatus) -> Result<Option<Condition>, SpaError> {
    let scan = pool.scan().await?;
    if scan.is_some_and(|scan| scan.function == ScanFunction::RESILVER && scan.state == ScanState::SCANNING) {
        return Ok(Some(Condition::Resilvering));
    }
    let rebuilds = pool.rebuilds().await;
    if rebuilds.iter().any(|(_, rebuild)| rebuild.state == RebuildState::ACTIVE) {
        return Ok(Some(Condition::Resilvering));
    }
    let joints = |vdev: &&VdevConfig| matches!(vdev.kind, VdevKind::Replacing | VdevKind::Spare);
    let has_all = |guid| devices.leaves().iter().any(|leaf| leaf.guid == guid && leaf.missed.is_empty());
    let mut is_verifying = false;
    pool.vdevs().walk(&mut |vdev| {
        let leaves = Some(vdev).filter(joints).map(VdevConfig::leaves).unwrap_or_default();
        is_verifying |= leaves.iter().any(|leaf| leaf.rebuild_txg.is_some() && has_all(leaf.guid));
    });
    if is_verifying {
        return Ok(Some(Condition::Verifying));
    }
    let ends = rebuilds.iter().filter(|(_, rebuild)| rebuild.state == RebuildState::COMPLETE);
    let is_unverified = ends.map(|(_, rebuild)| rebuild.end_time).max().is_some_and(|end| match scan {
        Some(scan) if scan.function == ScanFunction::SCRUB => scan.state == ScanState::FINISHED && end > scan.end_time,
        Some(scan) => scan.state == ScanState::NONE,
        None => true,
    });
    if is_unverified {
        return Ok(Some(Condition::Rebuilt));
    }
    let mut replacing = BTreeSet::new();
    pool.vdevs().walk(&mut |vdev| {
        if vdev.kind == VdevKind::Replacing {
            replacing.insert(vdev.guid);
        }
    });
    let of_devices = condition_of(devices, &replacing);
    if of_devices.is_some_and(|condition| condition < Condition::DataErrors) {
        return Ok(of_devices);
    }
    if pool.error_count().await? > 0 {
        return Ok(Some(Condition::DataErrors));
    }
    if of_devices.is_some() {
        return Ok(of_devices);
    }
    if let Some(number) = errata(pool).await? {
        return Ok(Some(Condition::Errata(number)));
    }
    let config = pool.config();
    if config.u64("version") != Some(FEATURES_VERSION) {
        return Ok(Some(Condition::OldVersion));
    }
    // Where a list of features was asked for, those that are not in it are disabled on purpose; the list itself is a file
    // of another system.
    if config.str("compatibility").is_some_and(|set| set != "off") {
        return Ok(None);
    }
    let features = pool.features().await?;
    let is_disabled = |(name, state): &(FeatureName, FeatureState)| {
        matches!(name, FeatureName::Known(feature) if !feature.is_newer()) && *state == FeatureState::Disabled
    };
    Ok(features.iter().any(is_disabled).then_some(Condition::FeaturesDisabled))
}

/// The erratum of OpenZFS that a pool shows, if it does.
///
/// 1 and 2: OpenZFS 0.6.2's development versions had a word more in the record of scrubs, with an asynchronous destroy under way or not. 4:
/// encryption without the feature bookmark_v2, so that snapshots may lack the guid of their set of IVs. 3 is not looked for but taken from the
/// configuration, where OpenZFS notes it, as the others.
#[boxed]
pub(crate) async fn errata(pool: &View) -> Result<Option<u8>, SpaError> {
    /// Words of the record of scrubs.
    const SCAN_WORDS: usize = 24;
    /// Flags of a scrub that are known.
    const SCAN_FLAGS: u64 = 0b11;
    let words = pool.scan_words().await?;
    if let Some(overflow) = words.get(SCAN_WORDS) {
        return Ok(Some(if overflow & !SCAN_FLAGS == 0 { 1 } else { 2 }));
    }
    let features = pool.features().await?;
    let is_enabled = |wanted: &str| {
        let is_it = |name: &FeatureName| matches!(name, FeatureName::Known(feature) if feature.name == wanted);
        features.iter().any(|(name, state)| is_it(name) && *state != FeatureState::Disabled)
    };
    if is_enabled("encryption") && !is_enabled("bookmark_v2") {
        return Ok(Some(4));
    }
    let noted = pool.config().u64("errata").and_then(|number| u8::try_from(number).ok());
    Ok(noted.filter(|number| (1..=4).contains(number)))
}

/// The most urgent condition of the devices alone.
#[must_use]
pub fn device_condition(status: &VdevStatus) -> Option<Condition> {
    condition_of(status, &BTreeSet::new())
}

/// [`device_condition`] where some vdevs are replacing ones: what goes of them is not told of, as in OpenZFS, if another of their devices is there.
fn condition_of(status: &VdevStatus, replacing: &BTreeSet<Guid>) -> Option<Condition> {
    let has = |state| any_that_stays(status, replacing, state);
    let (is_faulted, is_missing) = (has(VdevState::Faulted), has(VdevState::Unavailable));
    let is_lost = status.state == VdevState::Unavailable;
    if any_leaf(status, &|vdev| vdev.coarse.is_some()) {
        return Some(Condition::CoarseSectors);
    }
    if is_lost && is_faulted {
        return Some(Condition::LostToFaults);
    }
    if is_lost {
        return Some(Condition::LostDevices);
    }
    if status.with_outage().next().is_some() {
        return Some(Condition::LostTxgs);
    }
    if is_faulted {
        return Some(Condition::FaultedDevice);
    }
    if status.children.iter().any(|top| top.is_log && top.state == VdevState::Unavailable) {
        return Some(Condition::MissingLog);
    }
    if is_missing {
        return Some(Condition::MissingDevice);
    }
    if !status.behind().is_empty() {
        return Some(Condition::MissedTxgs);
    }
    let is_ailing = |vdev: &VdevStatus| {
        vdev.state == VdevState::Degraded || vdev.errors.checksum + vdev.errors.read + vdev.errors.write > 0
    };
    if any_leaf(status, &is_ailing) {
        return Some(Condition::DeviceErrors);
    }
    has(VdevState::Offline).then_some(Condition::OfflineDevice)
}

/// Whether a leaf is in a state, without those that another one has the place of.
fn any_that_stays(vdev: &VdevStatus, replacing: &BTreeSet<Guid>, state: VdevState) -> bool {
    if vdev.children.is_empty() {
        return vdev.state == state;
    }
    if replacing.contains(&vdev.guid) && vdev.state.is_readable() {
        return false;
    }
    vdev.children.iter().any(|child| any_that_stays(child, replacing, state))
}

fn any_leaf(status: &VdevStatus, test: &dyn Fn(&VdevStatus) -> bool) -> bool {
    if status.children.is_empty() { test(status) } else { status.children.iter().any(|child| any_leaf(child, test)) }
}
