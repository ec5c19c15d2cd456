//! Hot spares and cache devices, as the labels of their disks show them.
//!
//! Such a label names no pool: the pools' MOS name the guid. A spare that a pool has taken has the labels of a leaf of that pool, with the guid that it has
//! in every list. The labels of a disk are written two by two, so a power cut leaves labels of both kinds.
//! ```text
//! labels of the guid                        a pool that lists the spare, and has no such leaf, sees
//! those of a spare alone                    a free spare
//! some of a leaf of that pool itself        a free spare: it was about to be taken, or was given back. The pool labels it anew
//! some of a leaf of another pool            a spare that the other has: its last txg may have it, and nobody else can know
//! ```

use std::path::Path;
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_format::label::LABEL_COUNT;
use cenote_taskq::{Handle, OpenOptions};
use cenote_vdev::disk::Disk;
use cenote_vdev::leaf::{DeviceReport, LabelReport, probe_device};

use crate::config::PoolState;

/// A spare or cache device, found on a device. Its label names no pool: the pool's MOS names the guid.
#[derive(Clone, Debug)]
pub struct FoundAuxiliary {
    /// Its guid.
    pub guid: Guid,
    /// The device or partition.
    pub disk: Disk,
    /// [`PoolState::Spare`] or [`PoolState::L2Cache`].
    pub state: PoolState,
}

/// The use of a hot spare, as the labels of its device show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpareUse {
    /// No pool has taken it.
    Free,
    /// The pool of this name has.
    UsedBy(String),
    /// Its device is not there, or is another one.
    Gone,
}

/// A hot spare, as its labels show it to a pool that lists it and has no such leaf.
pub(crate) struct SeenSpare {
    pub(crate) found: FoundAuxiliary,
    /// The other pool that has it.
    pub(crate) user: Option<String>,
    /// It has labels of a leaf of this pool.
    pub(crate) is_mislabelled: bool,
}

/// The spare or cache device that a disk is by its labels.
pub(crate) fn auxiliary_of(report: &LabelReport) -> Option<FoundAuxiliary> {
    // A spare that was about to be used when the power went has labels of both kinds.
    let configs = report.labels.iter().filter_map(|label| label.config.as_ref().ok());
    let mut found = configs.filter_map(|config| {
        let state = PoolState::from_number(config.u64("state")?);
        let is_auxiliary = matches!(state, PoolState::Spare | PoolState::L2Cache);
        is_auxiliary.then_some((Guid(config.u64("guid")?), state))
    });
    let (guid, state) = found.next()?;
    (report.guid() == Some(guid)).then(|| FoundAuxiliary { guid, disk: report.disk.clone(), state })
}

/// The hot spare of this guid on a device, as the pool `own` sees it.
pub(crate) fn spare_on(device: &DeviceReport, guid: Guid, own: Guid) -> Option<SeenSpare> {
    device.labelled().find_map(|report| seen_spare(report, guid, own))
}

fn seen_spare(report: &LabelReport, guid: Guid, own: Guid) -> Option<SeenSpare> {
    // Labels of another guid are of an earlier life of the disk, unless they are the newer ones.
    if report.guid() != Some(guid) {
        return None;
    }
    let found = FoundAuxiliary { guid, disk: report.disk.clone(), state: PoolState::Spare };
    let (mut is_free, mut seen) = (false, SeenSpare { found, user: None, is_mislabelled: false });
    let configs = report.labels.iter().filter_map(|label| label.config.as_ref().ok());
    for config in configs.filter(|config| config.u64("guid") == Some(guid.0)) {
        let state = PoolState::from_number(config.u64("state").unwrap_or(u64::MAX));
        let is_leaf = config.list("vdev_tree").is_some() && config.u64("txg").is_some_and(|txg| txg != 0);
        match config.u64("pool_guid") {
            _ if state == PoolState::Spare => is_free = true,
            Some(of) if is_leaf && of == own.0 => seen.is_mislabelled = true,
            Some(_) if is_leaf && state != PoolState::Destroyed => {
                seen.user = Some(config.str("name").unwrap_or("?").to_owned());
            }
            _ => {}
        }
    }
    (is_free || seen.is_mislabelled || seen.user.is_some()).then_some(seen)
}

/// The hot spare whose device is at a path, opened to be read: a pool that takes it opens it anew.
pub(crate) async fn look_at_spare(handle: &Handle, path: &Path, guid: Guid, own: Guid) -> Option<SeenSpare> {
    let device = handle.open(path, OpenOptions::default()).await.ok()?;
    spare_on(&probe_device(&device).await, guid, own)
}

/// The use of the spare whose device is at a path.
pub(crate) async fn spare_use(handle: &Handle, path: &Path, guid: Guid, own: Guid) -> SpareUse {
    match look_at_spare(handle, path, guid, own).await {
        Some(SeenSpare { user: Some(pool), .. }) => SpareUse::UsedBy(pool),
        Some(_) => SpareUse::Free,
        None => SpareUse::Gone,
    }
}

/// A cache device at a path, opened for this process alone.
pub(crate) async fn open_cache(handle: &Handle, path: &Path, guid: Guid, patience: Duration) -> Option<FoundAuxiliary> {
    let device = handle.open_alone(path, patience).await.ok()?;
    let report = probe_device(&device).await;
    let mut found = report.labelled().filter_map(auxiliary_of);
    found.find(|found| found.guid == guid && found.state == PoolState::L2Cache)
}

/// The guid of the free spare that a disk is by its labels, and whether each of them says so.
pub(crate) fn free_spare_of(report: &LabelReport) -> Option<(Guid, bool)> {
    let guid = auxiliary_of(report).filter(|found| found.state == PoolState::Spare)?.guid;
    let configs = report.labels.iter().filter_map(|label| label.config.as_ref().ok());
    let is_its = |config: &&std::sync::Arc<cenote_format::nvlist::NvList>| {
        (config.u64("guid"), config.u64("state")) == (Some(guid.0), Some(PoolState::Spare.number()))
    };
    Some((guid, configs.filter(is_its).count() == LABEL_COUNT))
}

#[cfg(test)]
mod tests {
    use cenote_format::nvlist::NvList;
    use cenote_taskq::Runtime;
    use cenote_taskq::sim::disk::SimDiskOptions;
    use cenote_vdev::commit::initialize;

    use super::*;

    const SPARE: Guid = Guid(7);
    const OWN: Guid = Guid(1);
    const LABEL_BYTES: u64 = 256 << 10;

    /// A spare's label, or that of a leaf of a pool.
    fn label(of: Option<Guid>) -> NvList {
        let mut list = NvList::new();
        let state = if of.is_some() { PoolState::Active } else { PoolState::Spare };
        list.push("state", state.number());
        list.push("guid", SPARE.0);
        if let Some(pool) = of {
            list.push("name", format!("pool{}", pool.0).as_str());
            list.push("txg", 5_u64);
            list.push("pool_guid", pool.0);
            list.push("vdev_tree", NvList::new());
        }
        list
    }

    /// A power cut between two pairs of labels leaves both kinds: the spare is a matter of the pool that they name, and of no other.
    #[test]
    fn a_spare_with_labels_of_both_kinds_is_free_to_the_pool_that_they_name_alone() {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let size_bytes = 80 << 20;
        let options = SimDiskOptions { size_bytes, ..SimDiskOptions::default() };
        let sim = runtime.sim().unwrap().add_disk(&handle, "/disk", options);
        runtime.block_on(async {
            let options = OpenOptions { write: true, ..OpenOptions::default() };
            let disk = Disk::whole(handle.open(Path::new("/disk"), options).await.unwrap());
            let seen = async || {
                let seen = look_at_spare(&handle, Path::new("/disk"), SPARE, OWN).await?;
                Some((seen.user, seen.is_mislabelled))
            };
            for (is_of, expected) in [(OWN, (None, true)), (Guid(2), (Some("pool2".to_owned()), false))] {
                initialize(&disk, &label(Some(is_of))).await.unwrap();
                assert_eq!(seen().await, Some(expected.clone()), "all labels are those of a leaf");
                let pair = [0, size_bytes - 2 * LABEL_BYTES];
                let leafs = pair.map(|at| sim.peek(at, LABEL_BYTES as usize));
                initialize(&disk, &label(None)).await.unwrap();
                assert_eq!(seen().await, Some((None, false)), "all labels are those of a spare");
                pair.iter().zip(&leafs).for_each(|(at, bytes)| sim.poke(*at, bytes));
                assert_eq!(seen().await, Some(expected), "some are those of a leaf");
            }
            assert!(look_at_spare(&handle, Path::new("/disk"), Guid(8), OWN).await.is_none(), "another device");
        });
    }
}
