//! Node numbers: one 64-bit number for every file of every dataset and snapshot of a mount.
//!
//! ```text
//!  63           48 47                                            0
//! ┌───────────────┬───────────────────────────────────────────────┐
//! │ slot          │ object number (at most 48 bits in ZFS)        │   a file, directory, link ...
//! │ slot, not 0   │ 0                                             │   the root of a nested dataset
//! │ slot          │ ffff ffff ffff                                │   .zfs of that dataset
//! │ slot          │ ffff ffff fffe                                │   .zfs/shares
//! │ slot          │ ffff ffff fffd                                │   .zfs/snapshot
//! │ slot          │ ffff ffff fffc - objset                       │   .zfs/snapshot/NAME, a snapshot's root
//! │ ffff          │ index                                         │   a directory that only leads to datasets
//! └───────────────┴───────────────────────────────────────────────┘
//! ```
//! Slot 0 is the dataset that was mounted, so its files have the inode numbers that OpenZFS shows, `.zfs` included. The
//! others have their slot above, because one mount has one device number: were two files of two snapshots to share
//! (device, inode), `tar`, `rsync -H`, `cp -a` and `du` would take them for links to one file, and a copy would have the
//! wrong content. The number is node id and inode number at once; the root alone has the node id 1, which FUSE fixes.

use cenote_format::ids::ObjectId;

use crate::server::NodeId;

const SLOT_SHIFT: u32 = 48;
const LOW_MASK: u64 = (1 << SLOT_SHIFT) - 1;
/// The slot of directories that no dataset has.
const VIRTUAL: u16 = 0xffff;
/// Slots for datasets.
pub(crate) const SLOTS_MAX: usize = 0xfff0;

/// Inode numbers of the control directory (`ZFSCTL_INO_*` of `include/sys/zfs_ctldir.h`).
const CONTROL: u64 = 0xffff_ffff_ffff;
const SHARES: u64 = 0xffff_ffff_fffe;
const SNAPSHOTS: u64 = 0xffff_ffff_fffd;
const SNAPSHOT_ROOTS: u64 = 0xffff_ffff_fffc;
/// Objset numbers up to here can have a snapshot root's number. The MOS never comes near.
const OBJSET_MAX: u64 = 1 << 40;

/// The place that a node number names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The root directory of the dataset in a slot.
    Root { slot: u16 },
    /// An object of the dataset in a slot.
    Object { slot: u16, object: ObjectId },
    /// `.zfs`.
    Control { slot: u16 },
    /// `.zfs/shares`.
    Shares { slot: u16 },
    /// `.zfs/snapshot`.
    Snapshots { slot: u16 },
    /// The root of a snapshot in `.zfs/snapshot`.
    SnapshotRoot { slot: u16, objset: u64 },
    /// A directory on the way to a dataset.
    Virtual { index: u32 },
}

impl Place {
    /// The place that `node` names. Total: every number names one, though nothing may be there.
    pub(crate) const fn of(node: NodeId) -> Self {
        if node.0 == NodeId::ROOT.0 {
            return Self::Root { slot: 0 };
        }
        let (slot, low) = ((node.0 >> SLOT_SHIFT) as u16, node.0 & LOW_MASK);
        if slot == VIRTUAL {
            return Self::Virtual { index: low as u32 };
        }
        match low {
            0 if slot != 0 => Self::Root { slot },
            CONTROL => Self::Control { slot },
            SHARES => Self::Shares { slot },
            SNAPSHOTS => Self::Snapshots { slot },
            low if is_special(low) => Self::SnapshotRoot { slot, objset: SNAPSHOT_ROOTS - low },
            low => Self::Object { slot, object: ObjectId(low) },
        }
    }

    /// The slot of a node that is neither in the mounted dataset nor in none: each entry of it that the client remembers keeps the slot.
    pub(crate) const fn nested_slot(node: NodeId) -> Option<u16> {
        match (node.0 >> SLOT_SHIFT) as u16 {
            0 | VIRTUAL => None,
            slot => Some(slot),
        }
    }

    /// The node number. `None` for an object that cannot have one: 0, those with the control directory's numbers, and
    /// object 1 of slot 0 (every dataset's master node, never a file).
    pub(crate) const fn node(self) -> Option<NodeId> {
        let (slot, low) = match self {
            Self::Root { slot: 0 } => return Some(NodeId::ROOT),
            Self::Root { slot } => (slot, 0),
            Self::Object { slot, object } => {
                if object.0 == 0 || object.0 > LOW_MASK || is_special(object.0) || (slot == 0 && object.0 == 1) {
                    return None;
                }
                (slot, object.0)
            }
            Self::Control { slot } => (slot, CONTROL),
            Self::Shares { slot } => (slot, SHARES),
            Self::Snapshots { slot } => (slot, SNAPSHOTS),
            Self::SnapshotRoot { slot, objset } if objset <= OBJSET_MAX => (slot, SNAPSHOT_ROOTS - objset),
            Self::SnapshotRoot { .. } => return None,
            Self::Virtual { index } => (VIRTUAL, index as u64),
        };
        Some(NodeId((slot as u64) << SLOT_SHIFT | low))
    }
}

const fn is_special(low: u64) -> bool {
    low >= SNAPSHOT_ROOTS - OBJSET_MAX
}

/// Whether an inode number of a mount is that of the root of a dataset that is nested in the mounted one.
#[must_use]
pub const fn is_nested_root(ino: u64) -> bool {
    matches!(Place::of(NodeId(ino)), Place::Root { slot } if slot != 0)
}

/// The inode number that OpenZFS shows for the root of a snapshot.
pub(crate) const fn snapshot_root_ino(objset: u64) -> u64 {
    SNAPSHOT_ROOTS.wrapping_sub(objset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_survives_the_trip_through_its_number() {
        for place in [
            Place::Root { slot: 0 },
            Place::Root { slot: 5 },
            Place::Object { slot: 0, object: ObjectId(34) },
            Place::Object { slot: 7, object: ObjectId(1) },
            Place::Object { slot: 0xffef, object: ObjectId((1 << 47) + 5) },
            Place::Control { slot: 3 },
            Place::Shares { slot: 0 },
            Place::Snapshots { slot: 0 },
            Place::SnapshotRoot { slot: 0, objset: 0 },
            Place::SnapshotRoot { slot: 9, objset: OBJSET_MAX },
            Place::Virtual { index: 0 },
            Place::Virtual { index: u32::MAX },
        ] {
            assert_eq!(Place::of(place.node().unwrap()), place, "{place:?}");
        }
    }

    #[test]
    fn the_mounted_dataset_has_the_numbers_of_openzfs() {
        assert_eq!(Place::Object { slot: 0, object: ObjectId(128) }.node(), Some(NodeId(128)));
        assert_eq!(Place::Control { slot: 0 }.node(), Some(NodeId(0x0000_ffff_ffff_ffff)));
        assert_eq!(Place::SnapshotRoot { slot: 0, objset: 127 }.node(), Some(NodeId(281_474_976_710_525)));
    }

    #[test]
    fn object_numbers_that_would_be_taken_for_something_else_have_no_node() {
        for object in [0, 1, LOW_MASK, LOW_MASK - 100, LOW_MASK + 1, u64::MAX] {
            assert_eq!(Place::Object { slot: 0, object: ObjectId(object) }.node(), None, "{object:x}");
        }
        assert_eq!(Place::SnapshotRoot { slot: 0, objset: u64::MAX }.node(), None);
        assert_eq!(Place::of(NodeId(0)), Place::Object { slot: 0, object: ObjectId(0) });
    }
}
