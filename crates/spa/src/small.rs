//! Devices that are smaller than the pool's configuration says: cut off, or copied to something smaller. Part of what lies on them is
//! not there, and what is written there would fail, so they are taken for missing. Larger ones are used as far as the pool knows them.

use std::collections::BTreeMap;

use cenote_format::ids::Guid;
use cenote_format::label::DeviceLayout;
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::disk::Disk;
use cenote_vdev::layout::draid::Draid;

/// Bytes of labels and boot block beside what a pool has on a device.
const LABELS_BYTES: u64 = (4 << 20) + (512 << 10);

/// The leaves whose disks are too small, each with what is to be said of it.
pub(crate) fn too_small(root: &VdevConfig, disks: &BTreeMap<Guid, Disk>) -> BTreeMap<Guid, String> {
    let mut found = BTreeMap::new();
    for top in &root.children {
        // No block lies behind the last whole metaslab.
        let metaslab_bytes = 1_u64.checked_shl(top.metaslab_shift).unwrap_or(1);
        look(top, top.asize_bytes & !(metaslab_bytes - 1), disks, &mut found);
    }
    found
}

/// True if a draid cannot keep its size with this disk as a child. OpenZFS reckons the size from the smallest child, with whole rows and what it reserves,
/// and imports no pool whose draid has shrunk (#18380). What is there can be read all the same, so a pool with such a disk is opened.
pub(crate) fn shrinks_draid(top: &VdevConfig, disk: &Disk) -> bool {
    let VdevKind::Draid { parity, data, spares, groups } = top.kind else { return false };
    let metaslab_bytes = 1_u64.checked_shl(top.metaslab_shift).unwrap_or(1);
    let has_bytes = DeviceLayout::new(disk.size_bytes()).map_or(0, |layout| layout.allocatable_bytes());
    let draid = Draid::new(top.ashift, parity, data, spares, groups, top.children.len());
    draid.is_ok_and(|draid| draid.asize_bytes(has_bytes) < top.asize_bytes & !(metaslab_bytes - 1))
}

fn look(vdev: &VdevConfig, wanted_bytes: u64, disks: &BTreeMap<Guid, Disk>, found: &mut BTreeMap<Guid, String>) {
    let children = vdev.children.len() as u64;
    let child_bytes = match vdev.kind {
        VdevKind::Disk | VdevKind::File => {
            let Some(disk) = disks.get(&vdev.guid) else { return };
            let has_bytes = DeviceLayout::new(disk.size_bytes()).map_or(0, |layout| layout.allocatable_bytes());
            if has_bytes < wanted_bytes {
                // Where its end was cut off, the rest is read once there is room again.
                let (path, device_bytes) = (disk.path(), wanted_bytes.saturating_add(LABELS_BYTES));
                let advice = match vdev.kind {
                    VdevKind::File => format!("'truncate -s {device_bytes} {path}' enlarges it"),
                    _ => format!("copy it to a device of {device_bytes} bytes"),
                };
                let what = format!(
                    "{path} is too small: the pool has {wanted_bytes} bytes on it, and there is room for {has_bytes}; if its end was cut \
                     off, {advice}, and what is left can be read"
                );
                found.insert(vdev.guid, what);
            }
            return;
        }
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => wanted_bytes,
        // One that is being expanded has its size by the children that it had.
        VdevKind::Raidz { expanding, .. } => wanted_bytes / children.saturating_sub(u64::from(expanding)).max(1),
        VdevKind::Draid { spares, .. } => wanted_bytes / children.saturating_sub(spares).max(1),
        VdevKind::Root | VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect(_) | VdevKind::DraidSpare { .. } => {
            return;
        }
    };
    vdev.children.iter().for_each(|child| look(child, child_bytes, disks, found));
}
