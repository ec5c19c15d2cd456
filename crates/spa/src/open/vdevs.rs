//! New vdevs, of a new pool or of one that is extended: what was asked for, and the configuration that it makes.

use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_format::label::{DeviceLayout, END_BYTES, LABEL_BYTES, MIN_DEVICE_BYTES, START_BYTES};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_taskq::Rng;
use cenote_vdev::config::AllocationClass;
use cenote_vdev::disk::Disk;
use cenote_vdev::layout::draid::Draid;
use cenote_vdev::layout::{ASHIFT_MAX, ASHIFT_MIN};

use crate::{Refusal, SpaError};

/// Metaslabs that a vdev should have (`zfs_vdev_default_ms_count`).
const METASLABS_WANTED: u64 = 200;
/// And at least (`zfs_vdev_min_ms_count`).
pub(crate) const METASLABS_MIN: u64 = 16;
/// A metaslab's size where the number of them does not decide (`zfs_vdev_default_ms_shift`).
const METASLAB_SHIFT: u32 = 29;
/// A metaslab holds a block of the largest size.
const METASLAB_SHIFT_MIN: u32 = 24;
/// A metaslab's size at most, while their number allows it (`zfs_vdev_max_ms_shift`).
const METASLAB_SHIFT_MAX: u32 = 34;
/// Metaslabs at most (`zfs_vdev_ms_count_limit`).
pub(crate) const METASLABS_MAX: u64 = 1 << 17;

/// The largest ashift that a physical sector above the logical one gives (`zfs_vdev_max_auto_ashift`).
const AUTO_ASHIFT_MAX: u32 = 14;

/// A disk that a pool is to be made on.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// The disk, open for writing.
    pub disk: Disk,
    /// The path that labels are to name.
    pub path: String,
    /// Whether it is a file.
    pub is_file: bool,
}

/// The kind of a top-level vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopKind {
    /// One disk.
    Single,
    /// Every disk has everything.
    Mirror,
    /// Parity stripes over all disks.
    Raidz {
        /// Parity columns: 1 to 3.
        parity: u64,
    },
    /// Parity groups spread over all disks.
    Draid {
        /// Parity columns: 1 to 3.
        parity: u64,
        /// Data columns in a group; as many as there is room for, eight at most, if not said.
        data: Option<u64>,
        /// Distributed spares.
        spares: u64,
    },
}

/// A top-level vdev that is to be made.
#[derive(Clone, Debug)]
pub struct TopSpec {
    /// Its kind.
    pub kind: TopKind,
    /// Its allocation class.
    pub class: AllocationClass,
    /// Its disks.
    pub disks: Vec<DiskSpec>,
}

/// A leaf that is made.
#[derive(Clone, Debug)]
pub(crate) struct MadeLeaf {
    pub(crate) guid: Guid,
    pub(crate) spec: DiskSpec,
    pub(crate) zap: ObjectId,
}

/// A top-level vdev that is made.
#[derive(Clone, Debug)]
pub(crate) struct MadeTop {
    pub(crate) guid: Guid,
    pub(crate) kind: TopKind,
    pub(crate) class: AllocationClass,
    pub(crate) ashift: u32,
    pub(crate) asize_bytes: u64,
    pub(crate) metaslab_shift: u32,
    pub(crate) leaves: Vec<MadeLeaf>,
    pub(crate) create_txg: Txg,
    pub(crate) metaslab_array: ObjectId,
    pub(crate) zap: ObjectId,
}

/// The vdevs of a new pool, or those that an old one gets.
#[derive(Clone, Debug)]
pub(crate) struct MadeVdevs {
    pub(crate) tops: Vec<MadeTop>,
    pub(crate) root_zap: ObjectId,
    /// How many top-level vdevs there are before them.
    pub(crate) first_id: u64,
}

pub(crate) fn refuse(what: impl Into<String>) -> SpaError {
    SpaError::refused(Refusal::Invalid, what.into())
}

impl MadeVdevs {
    /// Checks what is asked for and gives it identities.
    pub(crate) fn new(
        specs: Vec<TopSpec>,
        ashift: Option<u32>,
        metaslabs_min: u64,
        txg: Txg,
        rng: &mut Rng,
    ) -> Result<Self, SpaError> {
        let tops = specs.into_iter().map(|spec| MadeTop::new(spec, ashift, metaslabs_min, txg, rng));
        let tops = tops.collect::<Result<_, _>>()?;
        Ok(Self { tops, root_zap: ObjectId(0), first_id: 0 })
    }

    /// How many are draids, and how many hold blocks of a class that needs a feature.
    pub(crate) fn uses(&self) -> Vec<(&'static str, i64)> {
        let count = |is: fn(&MadeTop) -> bool| self.tops.iter().filter(|top| is(top)).count() as i64;
        vec![
            ("draid", count(|top| matches!(top.kind, TopKind::Draid { .. }))),
            ("allocation_classes", count(|top| matches!(top.class, AllocationClass::Special | AllocationClass::Dedup))),
        ]
    }

    /// Refuses what the pool's features do not allow. As in OpenZFS a log device that is added needs the feature of allocation classes, since
    /// it says what it is for, and one of a new pool does not.
    pub(crate) fn check_features(&self, has: impl Fn(&str) -> bool, is_addition: bool) -> Result<(), SpaError> {
        let mut needed = self.uses();
        let has_log = self.tops.iter().any(|top| top.class == AllocationClass::Log);
        needed.push(("allocation_classes", i64::from(has_log && is_addition)));
        match needed.into_iter().find(|(name, count)| *count > 0 && !has(name)) {
            Some((name, _)) => Err(SpaError::refused(
                Refusal::NeedsFeature,
                format!("these vdevs need feature@{name}, which is not enabled"),
            )),
            None => Ok(()),
        }
    }

    pub(crate) fn leaves(&self) -> impl Iterator<Item = &MadeLeaf> {
        self.tops.iter().flat_map(|top| &top.leaves)
    }

    /// The disks of all leaves.
    pub(crate) fn disks(&self) -> impl Iterator<Item = (Guid, Disk)> {
        self.leaves().map(|leaf| (leaf.guid, leaf.spec.disk.clone()))
    }

    /// The configurations of the top-level vdevs, as the MOS has them.
    pub(crate) fn configs(&self) -> Vec<NvList> {
        (self.first_id..).zip(&self.tops).map(|(id, top)| top.config(id)).collect()
    }

    /// The allocation class of each top-level vdev.
    pub(crate) fn classes(&self) -> impl Iterator<Item = (Guid, AllocationClass)> {
        self.tops.iter().map(|top| (top.guid, top.class))
    }

    /// The whole tree, as the MOS has it.
    pub(crate) fn tree(&self, pool: Guid) -> NvList {
        let mut root = NvList::new();
        root.push("type", "root");
        root.push("id", 0_u64);
        root.push("guid", pool.0);
        root.push("create_txg", Txg::INITIAL.0);
        if self.root_zap.0 != 0 {
            root.push("com.klarasystems:vdev_zap_root", self.root_zap.0);
        }
        root.push("children", NvValue::NvlistArray(self.configs()));
        root
    }
}

impl DiskSpec {
    /// Bytes between its labels.
    pub(crate) fn allocatable_bytes(&self) -> Result<u64, SpaError> {
        let size = self.disk.size_bytes();
        let layout = DeviceLayout::new(size).filter(|_| size >= MIN_DEVICE_BYTES);
        let layout = layout
            .ok_or_else(|| refuse(format!("'{}': device is too small: less than the minimum size (64M)", self.path)))?;
        Ok(layout.allocatable_bytes())
    }
}

/// The ashift of a vdev of these disks: `wanted`, or else the largest physical sector up to OpenZFS's `zfs_vdev_max_auto_ashift`;
/// never less than the largest logical sector.
pub(crate) fn ashift_of(disks: &[DiskSpec], wanted: Option<u32>) -> Result<u32, SpaError> {
    let shift = |bytes: u32| bytes.clamp(1 << ASHIFT_MIN, 1 << (ASHIFT_MAX + 1)).next_power_of_two().ilog2();
    let logical = |disk: &DiskSpec| shift(disk.disk.device().sector_bytes());
    let physical = |disk: &DiskSpec| shift(disk.disk.device().physical_sector_bytes());
    let coarsest = disks.iter().max_by_key(|disk| logical(disk));
    let least = coarsest.map_or(ASHIFT_MIN, logical);
    let natural = disks.iter().map(physical).filter(|shift| *shift <= AUTO_ASHIFT_MAX).fold(least, u32::max);
    let ashift = wanted.unwrap_or(natural);
    if !(ASHIFT_MIN..=ASHIFT_MAX).contains(&ashift) {
        return Err(refuse(format!("invalid 'ashift={ashift}' property: only values between 9 and 16 are allowed.")));
    }
    match coarsest {
        Some(disk) if ashift < least => Err(refuse(format!(
            "cannot use '{}': its sectors have {} bytes, and ashift {ashift} would have it written in less: 'ashift={least}' \
             is the least",
            disk.path,
            disk.disk.device().sector_bytes()
        ))),
        _ => Ok(ashift),
    }
}

impl MadeTop {
    fn new(spec: TopSpec, ashift: Option<u32>, metaslabs_min: u64, txg: Txg, rng: &mut Rng) -> Result<Self, SpaError> {
        let TopSpec { kind, class, disks } = spec;
        let (least, what) = match kind {
            TopKind::Single => (1, "a vdev of its own"),
            TopKind::Mirror => (2, "mirror"),
            TopKind::Raidz { parity } => (parity as usize + 1, "raidz"),
            TopKind::Draid { parity, .. } => (parity as usize + 1, "draid"),
        };
        if disks.len() < least || (kind == TopKind::Single && disks.len() > 1) || disks.len() > 255 {
            return Err(refuse(format!("invalid vdev specification: {what} requires at least {least} devices")));
        }
        if class == AllocationClass::Log && matches!(kind, TopKind::Raidz { .. } | TopKind::Draid { .. }) {
            return Err(refuse(format!("invalid vdev specification: unsupported 'log' device: {what}")));
        }
        let kind = settle(kind, disks.len() as u64)?;
        let mut child_bytes = u64::MAX;
        for disk in &disks {
            child_bytes = child_bytes.min(disk.allocatable_bytes()?);
        }
        let ashift = ashift_of(&disks, ashift)?;
        let asize_bytes = match kind {
            TopKind::Single | TopKind::Mirror => child_bytes,
            TopKind::Raidz { .. } => child_bytes * disks.len() as u64,
            TopKind::Draid { parity, data, spares } => {
                let data = data.unwrap_or(1);
                let groups = draid_groups(data + parity, disks.len() as u64 - spares);
                let draid = Draid::new(ashift, parity, data, spares, groups, disks.len());
                draid.map_err(|error| refuse(error.to_string()))?.asize_bytes(child_bytes)
            }
        };
        let asize_bytes = asize_bytes / LABEL_BYTES as u64 * LABEL_BYTES as u64;
        if asize_bytes < MIN_DEVICE_BYTES - START_BYTES - END_BYTES {
            return Err(refuse(format!(
                "one or more devices is too small for {what}: less than the minimum size (64M)"
            )));
        }
        let metaslab_shift = metaslab_shift(asize_bytes, metaslabs_min);
        assert!(asize_bytes >> metaslab_shift > 0, "a vdev has a metaslab");
        assert!(metaslab_shift >= METASLAB_SHIFT_MIN, "a metaslab holds a block of the largest size");
        let mut guid = || Guid(rng.next_u64() | 1);
        let leaves: Vec<MadeLeaf> =
            disks.into_iter().map(|spec| MadeLeaf { guid: guid(), spec, zap: ObjectId(0) }).collect();
        let guid = if kind == TopKind::Single { leaves[0].guid } else { guid() };
        let none = ObjectId(0);
        Ok(Self {
            guid,
            kind,
            class,
            ashift,
            asize_bytes,
            metaslab_shift,
            leaves,
            create_txg: txg,
            metaslab_array: none,
            zap: none,
        })
    }

    /// Whether one of its devices has a head.
    pub(crate) fn is_rotational(&self) -> bool {
        self.leaves.iter().any(|leaf| leaf.spec.disk.device().is_rotational())
    }

    fn is_leaf(&self) -> bool {
        self.kind == TopKind::Single
    }

    /// The vdev's configuration, as the MOS has it.
    fn config(&self, id: u64) -> NvList {
        assert!(!matches!(self.kind, TopKind::Draid { data: None, .. }), "a draid that is made knows its width");
        let leaf_config = |leaf: &MadeLeaf, id: u64| {
            let mut list = NvList::new();
            list.push("type", if leaf.spec.is_file { "file" } else { "disk" });
            list.push("id", id);
            list.push("guid", leaf.guid.0);
            list.push("path", leaf.spec.path.as_str());
            if !leaf.spec.is_file {
                list.push("whole_disk", 0_u64);
            }
            list
        };
        let mut list = NvList::new();
        match self.kind {
            TopKind::Single => list = leaf_config(&self.leaves[0], id),
            TopKind::Mirror => list.push("type", "mirror"),
            TopKind::Raidz { .. } => list.push("type", "raidz"),
            TopKind::Draid { .. } => list.push("type", "draid"),
        }
        if !self.is_leaf() {
            list.push("id", id);
            list.push("guid", self.guid.0);
        }
        match self.kind {
            TopKind::Raidz { parity } => list.push("nparity", parity),
            TopKind::Draid { parity, data, spares } => {
                let data = data.unwrap_or(1);
                list.push("nparity", parity);
                list.push("draid_ndata", data);
                list.push("draid_nspares", spares);
                list.push("draid_ngroups", draid_groups(data + parity, self.leaves.len() as u64 - spares));
            }
            TopKind::Single | TopKind::Mirror => {}
        }
        list.push("metaslab_array", self.metaslab_array.0);
        list.push("metaslab_shift", u64::from(self.metaslab_shift));
        list.push("ashift", u64::from(self.ashift));
        list.push("asize", self.asize_bytes);
        list.push("is_log", u64::from(self.class == AllocationClass::Log));
        list.push("create_txg", self.create_txg.0);
        let zap = |list: &mut NvList, name: &str, object: ObjectId| {
            if object.0 != 0 {
                list.push(name, object.0);
            }
        };
        // Before the children, as OpenZFS has it: scripts read what `zdb` prints of it.
        if self.is_leaf() {
            zap(&mut list, "com.delphix:vdev_zap_leaf", self.leaves[0].zap);
        }
        zap(&mut list, "com.delphix:vdev_zap_top", self.zap);
        if !self.is_leaf() {
            let children = self.leaves.iter().enumerate().map(|(id, leaf)| {
                let mut child = leaf_config(leaf, id as u64);
                child.push("create_txg", self.create_txg.0);
                zap(&mut child, "com.delphix:vdev_zap_leaf", leaf.zap);
                child
            });
            list.push("children", NvValue::NvlistArray(children.collect()));
        }
        list
    }
}

/// Fills in what was not said.
fn settle(kind: TopKind, disks: u64) -> Result<TopKind, SpaError> {
    Ok(match kind {
        TopKind::Raidz { parity } if !(1..=3).contains(&parity) => return Err(refuse("raidz has 1 to 3 parity disks")),
        TopKind::Draid { parity, data, spares } => {
            let room = disks.checked_sub(parity + spares).filter(|room| *room > 0);
            let room = room.ok_or_else(|| refuse("draid: too few devices for its parity and spares"))?;
            let data = data.unwrap_or_else(|| room.min(8));
            if data == 0 || data > room {
                return Err(refuse(format!(
                    "requested number of dRAID data disks {data} per group is too high, at most {room} disks are available \
                     for data"
                )));
            }
            TopKind::Draid { parity, data: Some(data), spares }
        }
        kind => kind,
    })
}

/// Groups of a draid's slice: as many as fill whole rows.
fn draid_groups(width: u64, positions: u64) -> u64 {
    debug_assert!((1..=positions).contains(&width), "a group of a draid fits its disks");
    (1..=positions).find(|groups| (groups * width).is_multiple_of(positions.max(1))).unwrap_or(1)
}

/// The size of a vdev's metaslabs, as a power of two, as OpenZFS would choose it.
fn metaslab_shift(asize_bytes: u64, metaslabs_min: u64) -> u32 {
    let bits = |bytes: u64| bytes.max(1).ilog2() + 1;
    let count = asize_bytes >> METASLAB_SHIFT;
    let shift = if count < metaslabs_min {
        bits(asize_bytes / metaslabs_min.max(1))
    } else if count > METASLABS_WANTED {
        bits(asize_bytes / METASLABS_WANTED)
    } else {
        METASLAB_SHIFT
    };
    if shift < METASLAB_SHIFT_MIN {
        return METASLAB_SHIFT_MIN;
    }
    if shift <= METASLAB_SHIFT_MAX {
        // Of few that are wanted one is larger than the vdev.
        return shift.min(asize_bytes.max(1).ilog2());
    }
    if asize_bytes >> METASLAB_SHIFT_MAX > METASLABS_MAX {
        bits(asize_bytes / METASLABS_MAX)
    } else {
        METASLAB_SHIFT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metaslabs_are_as_large_as_openzfs_makes_them() {
        // The sizes of pools that OpenZFS made, and 10 TB.
        assert_eq!(metaslab_shift(69_730_304, METASLABS_MIN), 24);
        assert_eq!(metaslab_shift(79_167_488, METASLABS_MIN), 24);
        assert_eq!(metaslab_shift(4 << 30, METASLABS_MIN), 29);
        assert_eq!(metaslab_shift(64 << 30, METASLABS_MIN), 29);
        assert_eq!(metaslab_shift(10_000_000_000_000, METASLABS_MIN), 34);
        assert_eq!(metaslab_shift((4 << 30) - (5 << 20), 256), 24);
        // One that is asked for lies in the vdev.
        assert_eq!(metaslab_shift(69_730_304, 1), 26);
    }

    #[test]
    fn a_draid_with_spares_is_as_large_as_openzfs_makes_it() {
        // `draid1:3d:2s:7c` on files of 128 MiB, made by OpenZFS 2.3.2.
        let child_bytes = DeviceLayout::new(128 << 20).unwrap().allocatable_bytes();
        let draid = Draid::new(9, 1, 3, 2, draid_groups(4, 5), 7).unwrap();
        let asize_bytes = draid.asize_bytes(child_bytes) / LABEL_BYTES as u64 * LABEL_BYTES as u64;
        assert_eq!((asize_bytes, metaslab_shift(asize_bytes, METASLABS_MIN)), (402_653_184, 25));
    }

    #[test]
    fn draid_groups_fill_rows() {
        assert_eq!(draid_groups(5, 10), 2);
        assert_eq!(draid_groups(4, 6), 3);
        assert_eq!(draid_groups(3, 3), 1);
    }
}
