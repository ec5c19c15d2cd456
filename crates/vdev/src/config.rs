//! The tree of vdevs as the pool's configuration describes it: typed, checked, bounded.
//!
//! The configuration is an nvlist. The MOS holds the whole pool's (`vdev_tree` of type `root`); a label holds only the
//! tree of the top-level vdev that the leaf belongs to.
//!
//! ```text
//!   vdev_tree                                 every vdev: type, id (index in its parent), guid
//!     type 'root'                             top-level:  ashift, asize, metaslab_array, metaslab_shift, is_log, ...
//!     children[0]  type 'raidz', nparity 1    raidz/draid: nparity, expansion or group parameters
//!       children[0]  type 'disk'              leaf:       path, devid, DTL, offline, ...
//!       children[1]  type 'replacing'
//!         children[0]  ...
//!     children[1]  type 'indirect'            removed:    the objects that hold its mapping
//! ```
//!
//! A mirror's children are devices as a rule, but may be stripes: a mirror of raidz or draid vdevs, which `zpool` does not
//! offer and OpenZFS's stress test makes all the time. A stripe below a stripe exists nowhere.
//!
//! A node whose children are of a kind that cannot stand there (a root below a root, a mirror without children) is
//! refused here, so that what walks the tree later meets only sound shapes. Depth and count are bounded.

use std::sync::Arc;

use cenote_format::ids::{Guid, ObjectId, Txg, VdevId};
use cenote_format::nvlist::NvList;

use crate::error::VdevError;
use crate::layout::{ASHIFT_MAX, ASHIFT_MIN};

/// root, mirror, raidz, spare, replacing, leaf are six levels; a few more do no harm.
const DEPTH_MAX: usize = 8;
/// More vdevs than any pool has (a root of 4096 raidz of 16 leaves).
const VDEVS_MAX: usize = 1 << 16;

/// The kind of a vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VdevKind {
    /// The root of the whole tree; never in a label.
    Root,
    /// A leaf that is a block device.
    Disk,
    /// A leaf that is a regular file.
    File,
    /// Every child has everything.
    Mirror,
    /// A child being replaced by another.
    Replacing,
    /// A child whose place a spare has taken.
    Spare,
    /// Parity stripes of variable width.
    Raidz {
        /// Parity columns.
        parity: u64,
        /// An expansion is running.
        expanding: bool,
        /// Txgs at which expansions finished.
        expand_txgs: Vec<Txg>,
    },
    /// Parity groups of fixed width with distributed spares.
    Draid {
        /// Parity columns in a group.
        parity: u64,
        /// Data columns in a group.
        data: u64,
        /// Distributed spares.
        spares: u64,
        /// Groups in a slice.
        groups: u64,
    },
    /// A leaf made of a draid's spare space.
    DraidSpare {
        /// The draid that it is made of.
        top_guid: Guid,
        /// Which of its spares.
        spare_id: u64,
    },
    /// A removed top-level vdev, whose blocks now lie elsewhere.
    Indirect(IndirectConfig),
    /// The place of a removed log device.
    Hole,
    /// The place of a top-level vdev that the configuration at hand does not describe.
    Missing,
}

/// The objects that describe where a removed vdev's blocks went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndirectConfig {
    /// The mapping; 0 until a removal has copied its first block.
    pub mapping: ObjectId,
    /// The birth times of the mapping's entries.
    pub births: ObjectId,
    /// The vdev removed before this one.
    pub previous: Option<VdevId>,
}

impl VdevKind {
    /// Whether it is a device or stands for one: it has no children.
    #[must_use]
    pub const fn is_leaf(&self) -> bool {
        matches!(self, Self::Disk | Self::File | Self::DraidSpare { .. })
    }

    /// Whether its blocks are spread over its children in parity stripes.
    #[must_use]
    const fn is_stripe(&self) -> bool {
        matches!(self, Self::Raidz { .. } | Self::Draid { .. })
    }

    /// The type's name in the configuration.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Disk => "disk",
            Self::File => "file",
            Self::Mirror => "mirror",
            Self::Replacing => "replacing",
            Self::Spare => "spare",
            Self::Raidz { .. } => "raidz",
            Self::Draid { .. } => "draid",
            Self::DraidSpare { .. } => "dspare",
            Self::Indirect(_) => "indirect",
            Self::Hole => "hole",
            Self::Missing => "missing",
        }
    }
}

/// Which allocations a top-level vdev takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AllocationClass {
    /// Everything.
    #[default]
    Normal,
    /// The intent log.
    Log,
    /// Metadata, and small blocks where asked.
    Special,
    /// The dedup table.
    Dedup,
}

impl AllocationClass {
    /// From the name in `alloc_bias` or in the top-level vdev's ZAP.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "log" => Some(Self::Log),
            "special" => Some(Self::Special),
            "dedup" => Some(Self::Dedup),
            _ => None,
        }
    }

    /// That name, where it has one.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Normal => None,
            Self::Log => Some("log"),
            Self::Special => Some("special"),
            Self::Dedup => Some("dedup"),
        }
    }
}

/// The state of a leaf that the configuration records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedState {
    /// Taken offline by the administrator: not to be used.
    pub offline: bool,
    /// Forced to faulted by the administrator (`zpool offline -f`): not to be used. A fault that another system merely
    /// diagnosed does not set this, since the diagnosis need not hold here.
    pub faulted: bool,
    /// Diagnosed as degraded: used, but shown as such.
    pub degraded: bool,
    /// Was pulled out when last seen: used if it is back.
    pub removed: bool,
    /// Was not found at the last import.
    pub not_present: bool,
    /// Was in use, and is gone: not used until it is opened again. No configuration records it.
    pub lost: bool,
}

/// One vdev of the configuration, with its children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VdevConfig {
    /// Its kind.
    pub kind: VdevKind,
    /// Its index in its parent; a top-level vdev's [`VdevId`].
    pub id: u64,
    /// Its identity.
    pub guid: Guid,
    /// Its children, in order.
    pub children: Vec<VdevConfig>,

    /// Where the leaf was last seen.
    pub path: Option<Arc<str>>,
    /// The leaf's device id.
    pub devid: Option<Arc<str>>,
    /// The leaf's place in the machine.
    pub phys_path: Option<Arc<str>>,
    /// The slot of its enclosure, in `/sys` (`vdev_enc_sysfs_path`).
    pub enclosure_path: Option<Arc<str>>,
    /// The unit in the field that is replaced with it.
    pub fru: Option<Arc<str>>,
    /// Whether ZFS partitioned the leaf's whole disk.
    pub whole_disk: bool,
    /// Whether it is a hot spare (in the list of spares, or in use as one).
    pub is_spare: bool,
    /// The leaf's recorded state.
    pub state: RecordedState,
    /// The leaf's dirty time log, a space map in the MOS.
    pub dtl: ObjectId,
    /// A resilver onto this leaf began at this txg.
    pub resilver_txg: Option<Txg>,
    /// The leaf waits for the end of a resilver that began before it was there (`com.datto:resilver_defer`).
    pub resilver_deferred: bool,
    /// A sequential rebuild onto this leaf began at this txg.
    pub rebuild_txg: Option<Txg>,

    /// Sector size as a power of two; 0 where the vdev has none (root, hole, missing, inner vdevs).
    pub ashift: u32,
    /// Allocatable size of a top-level vdev.
    pub asize_bytes: u64,
    /// The object that lists the space maps of a top-level vdev's metaslabs.
    pub metaslab_array: ObjectId,
    /// Size of a metaslab as a power of two.
    pub metaslab_shift: u32,
    /// A log device (`is_log`), or the class that `alloc_bias` names.
    pub class: AllocationClass,
    /// The txg in which it was added.
    pub create_txg: Txg,
    /// No new allocations are made on it.
    pub non_allocating: bool,
    /// It is being removed.
    pub removing: bool,
    /// The ZAP of the root, if there is one.
    pub root_zap: ObjectId,
    /// The ZAP of a top-level vdev.
    pub top_zap: ObjectId,
    /// The ZAP of a leaf.
    pub leaf_zap: ObjectId,
}

impl VdevConfig {
    /// Reads a vdev tree.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] or [`VdevError::Unsupported`], naming the vdev.
    pub fn parse(list: &NvList) -> Result<Self, VdevError> {
        let mut count = 0;
        parse_vdev(list, 0, &mut count)
    }

    /// Whether it, or a vdev below it, is a raidz or draid.
    #[must_use]
    pub(crate) fn has_stripe(&self) -> bool {
        self.kind.is_stripe() || self.children.iter().any(Self::has_stripe)
    }

    /// All leaves below this vdev (or itself), in order.
    #[must_use]
    pub fn leaves(&self) -> Vec<&Self> {
        let mut found = Vec::new();
        self.walk(&mut |vdev| {
            if vdev.kind.is_leaf() {
                found.push(vdev);
            }
        });
        found
    }

    /// Calls `visit` for this vdev and every one below it, parents first.
    pub fn walk<'a>(&'a self, visit: &mut impl FnMut(&'a Self)) {
        visit(self);
        // As deep as `parse` let it become.
        self.children.iter().for_each(|child| child.walk(visit));
    }

    /// How `zpool status` names it: `mirror-0`, `raidz2-1`, `draid1:4d:6c:1s-0`, or the leaf's path.
    #[must_use]
    pub fn display_name(&self) -> String {
        match &self.kind {
            VdevKind::Raidz { parity, .. } => format!("raidz{parity}-{}", self.id),
            VdevKind::Draid { parity, data, spares, .. } => {
                format!("draid{parity}:{data}d:{}c:{spares}s-{}", self.children.len(), self.id)
            }
            VdevKind::Disk | VdevKind::File | VdevKind::DraidSpare { .. } => {
                self.path.as_deref().map_or_else(|| self.guid.to_string(), str::to_owned)
            }
            kind => format!("{}-{}", kind.name(), self.id),
        }
    }
}

fn bad(guid: Option<Guid>, reason: impl Into<String>) -> VdevError {
    VdevError::BadConfig { guid, reason: reason.into() }
}

fn parse_vdev(list: &NvList, depth: usize, count: &mut usize) -> Result<VdevConfig, VdevError> {
    let guid = list.u64("guid").map(Guid);
    if depth >= DEPTH_MAX {
        return Err(bad(guid, "vdevs are nested too deeply"));
    }
    *count += 1;
    if *count > VDEVS_MAX {
        return Err(bad(guid, "too many vdevs"));
    }
    let kind_name = list.str("type").ok_or_else(|| bad(guid, "no type"))?;
    let kind = parse_kind(list, kind_name, guid)?;
    let guid = match guid {
        Some(guid) => guid,
        // Placeholders have no identity.
        None if matches!(kind, VdevKind::Hole | VdevKind::Missing) => Guid(0),
        None => return Err(bad(None, format!("{kind_name} without guid"))),
    };
    let mut children = Vec::new();
    for child in list.lists("children").unwrap_or_default() {
        children.push(parse_vdev(child, depth + 1, count)?);
    }
    check_children(&kind, guid, depth, &children)?;

    let number = |name: &str| list.u64(name).unwrap_or(0);
    let flag = |name: &str| number(name) != 0;
    let object = |name: &str| ObjectId(number(name));
    let text = |name: &str| list.str(name).map(Arc::from);
    let shift = |name: &str, range: std::ops::RangeInclusive<u64>| match number(name) {
        0 => Ok(0),
        value if range.contains(&value) => Ok(value as u32),
        value => Err(bad(Some(guid), format!("{name} {value} out of range"))),
    };
    let class = if flag("is_log") {
        AllocationClass::Log
    } else {
        list.str("alloc_bias").and_then(AllocationClass::from_name).unwrap_or_default()
    };
    // One that was forced on the only device with some data made it degraded instead.
    let forced_fault = flag("faulted") && list.str("aux_state") == Some("external");
    Ok(VdevConfig {
        id: number("id"),
        guid,
        children,
        path: text("path"),
        devid: text("devid"),
        phys_path: text("phys_path"),
        enclosure_path: text("vdev_enc_sysfs_path"),
        fru: text("fru"),
        whole_disk: flag("whole_disk"),
        is_spare: flag("is_spare"),
        state: RecordedState {
            offline: flag("offline"),
            faulted: forced_fault,
            degraded: flag("degraded"),
            removed: flag("removed"),
            not_present: flag("not_present"),
            lost: false,
        },
        dtl: object("DTL"),
        resilver_txg: list.u64("resilver_txg").map(Txg),
        resilver_deferred: list.has("com.datto:resilver_defer"),
        rebuild_txg: list.u64("rebuild_txg").map(Txg),
        ashift: shift("ashift", u64::from(ASHIFT_MIN)..=u64::from(ASHIFT_MAX))?,
        asize_bytes: number("asize"),
        metaslab_array: object("metaslab_array"),
        metaslab_shift: shift("metaslab_shift", 1..=62)?,
        class,
        create_txg: Txg(number("create_txg")),
        non_allocating: flag("non_allocating"),
        removing: flag("removing"),
        root_zap: object("com.klarasystems:vdev_zap_root"),
        top_zap: object("com.delphix:vdev_zap_top"),
        leaf_zap: object("com.delphix:vdev_zap_leaf"),
        kind,
    })
}

fn parse_kind(list: &NvList, name: &str, guid: Option<Guid>) -> Result<VdevKind, VdevError> {
    let need = |field: &str| list.u64(field).ok_or_else(|| bad(guid, format!("{name} without {field}")));
    Ok(match name {
        "root" => VdevKind::Root,
        "disk" => VdevKind::Disk,
        "file" => VdevKind::File,
        "mirror" => VdevKind::Mirror,
        "replacing" => VdevKind::Replacing,
        "spare" => VdevKind::Spare,
        "hole" => VdevKind::Hole,
        "missing" => VdevKind::Missing,
        "raidz" => VdevKind::Raidz {
            // Pools older than double parity do not say how much they have.
            parity: list.u64("nparity").unwrap_or(1),
            expanding: list.has("raidz_expanding"),
            expand_txgs: list.u64s("raidz_expand_txgs").unwrap_or_default().iter().copied().map(Txg).collect(),
        },
        "draid" => {
            let children = list.lists("children").map_or(0, <[_]>::len) as u64;
            if list.u64("draid_nchildren").is_some_and(|each| each != children) {
                return Err(VdevError::Unsupported("draid with failure domains".into()));
            }
            VdevKind::Draid {
                parity: need("nparity")?,
                data: need("draid_ndata")?,
                spares: need("draid_nspares")?,
                groups: need("draid_ngroups")?,
            }
        }
        "dspare" => VdevKind::DraidSpare { top_guid: Guid(need("top_guid")?), spare_id: need("spareid")? },
        "indirect" => VdevKind::Indirect(IndirectConfig {
            mapping: ObjectId(list.u64("com.delphix:indirect_object").unwrap_or(0)),
            births: ObjectId(list.u64("com.delphix:indirect_births").unwrap_or(0)),
            previous: list.u64("com.delphix:prev_indirect_vdev").and_then(|id| u32::try_from(id).ok()).map(VdevId),
        }),
        "l2cache" | "log" => return Err(VdevError::Unsupported(format!("vdev type '{name}' in the tree"))),
        _ => return Err(VdevError::Unsupported(format!("vdev type '{}'", name.escape_debug()))),
    })
}

/// Refuses shapes that no pool has.
fn check_children(kind: &VdevKind, guid: Guid, depth: usize, children: &[VdevConfig]) -> Result<(), VdevError> {
    let allows: fn(&VdevKind) -> bool = match kind {
        VdevKind::Root => |child| !matches!(child, VdevKind::Root | VdevKind::DraidSpare { .. }),
        VdevKind::Disk
        | VdevKind::File
        | VdevKind::DraidSpare { .. }
        | VdevKind::Indirect(_)
        | VdevKind::Hole
        | VdevKind::Missing => {
            if children.is_empty() {
                return Ok(());
            }
            return Err(bad(Some(guid), format!("{} with children", kind.name())));
        }
        VdevKind::Raidz { .. } | VdevKind::Draid { .. } => {
            |child| child.is_leaf() || matches!(child, VdevKind::Replacing | VdevKind::Spare | VdevKind::Missing)
        }
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => {
            |child| !matches!(child, VdevKind::Root | VdevKind::Indirect(_) | VdevKind::Hole)
        }
    };
    if matches!(kind, VdevKind::Root) {
        if depth != 0 {
            return Err(bad(Some(guid), "a root below the root"));
        }
    } else if children.is_empty() {
        return Err(bad(Some(guid), format!("{} without children", kind.name())));
    }
    if let Some(child) = children.iter().find(|child| !allows(&child.kind)) {
        return Err(bad(Some(guid), format!("{} as a child of {}", child.kind.name(), kind.name())));
    }
    // As a stripe looks at no more than what is below it and does not stand below another, each vdev is looked at once.
    if kind.is_stripe() && children.iter().any(VdevConfig::has_stripe) {
        return Err(bad(Some(guid), format!("a stripe below a {}", kind.name())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found on a pool fresh from ztest: the field is written without an underscore (`ZPOOL_CONFIG_SPARE_ID`).
    #[test]
    fn a_distributed_spare_in_use_is_described_in_openzfs_words() {
        let mut list = NvList::new();
        list.push("type", "dspare");
        list.push("id", 1_u64);
        list.push("guid", 3_247_254_265_968_738_433_u64);
        list.push("path", "draid1-0-0");
        list.push("top_guid", 10_839_561_040_548_715_160_u64);
        list.push("spareid", 2_u64);
        list.push("is_spare", 1_u64);
        let kind = VdevKind::DraidSpare { top_guid: Guid(10_839_561_040_548_715_160), spare_id: 2 };
        assert_eq!(parse_kind(&list, "dspare", None).unwrap(), kind);
    }
}
