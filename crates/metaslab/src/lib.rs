//! Space: range sets, space maps, log space maps, allocation classes.
//!
//! # Theory
//!
//! **Need.** A pool must know which bytes of each top-level vdev are taken: to report space, to find leaks and double
//! references, and (with the write path) to allocate. The knowledge is kept as logs of changes, since rewriting a map of
//! a large vdev for each change would cost more than the change.
//!
//! **On disk.**
//! ```text
//! top-level vdev ── metaslab_array ─► object number of each metaslab's space map      (0: nothing was ever allocated)
//!                                       space map: log of allocations and frees within the metaslab
//!                ── top ZAP: ms_unflushed_phys_txgs ─► for each metaslab, the first txg that its own map lacks
//!                            pool_checkpoint_sm     ─► what was freed since the checkpoint, and is still kept for it
//! MOS directory  ── log_spacemap_zap ─► txg ─► log space map: that txg's changes of all metaslabs of all vdevs
//! ```
//! What is allocated in a metaslab is its own map, then the entries about it of every log from its unflushed txg on.
//!
//! **In memory.** [`RangeSet`]: disjoint ranges in order, merged where they touch; adding what is there and removing what
//! is not are errors, which is how a double allocation or free shows. [`VdevSpace`] is a vdev's set with its classes and
//! figures; [`PoolSpace`] all of them.
//!
//! **Life of a load.** Space maps are read and replayed a metaslab a task, all vdevs at once; then the logs in the order
//! of their txgs. A map that contradicts itself is reported with its vdev, metaslab and place, and the rest goes on.
//!
//! **Invariants.**
//! 1. A range set never holds overlapping or touching ranges.
//! 2. No entry reaches outside its metaslab (space map) or its vdev (log): one that does is an error, not a panic.
//! 3. Memory is proportional to the number of segments, never to the length of the logs.
//!
//! **Layering.** Space maps are objects, and objects are above this crate: it reads them through [`SpaceObjects`], which
//! the pool implements.
//!
//! **Crash.** Nothing to leave behind: reading only, so far.
//!
//! **Rejected.** Bitmaps (32 MiB a TB whether fragmented or not) for reading; they may serve as the bound under the
//! allocator.

mod fragmentation;
mod load;
mod ranges;

use std::fmt;
use std::ops::Range;

use cenote_format::Endian;
use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_taskq::BoxFuture;
use cenote_taskq::buf::Block;
use cenote_vdev::config::AllocationClass;

pub use fragmentation::class_fragmentation;
pub use load::load;
pub use ranges::{RangeError, RangeSet};

/// The objects that hold space maps, as the pool gives access to them. Errors are text for a person.
pub trait SpaceObjects: Send + Sync + 'static {
    /// The bonus of an object and its byte order.
    fn bonus(&self, object: ObjectId) -> BoxFuture<'_, Result<(Vec<u8>, Endian), String>>;
    /// `len` bytes of an object's data at `offset_bytes`.
    fn read(&self, object: ObjectId, offset_bytes: u64, len: usize) -> BoxFuture<'_, Result<Block, String>>;
}

/// A top-level vdev's place among the space maps.
#[derive(Clone, Debug)]
pub struct VdevMaps {
    /// Which vdev.
    pub vdev: VdevId,
    /// What it is used for.
    pub class: AllocationClass,
    /// Sector size as a power of two: the unit of its space maps.
    pub ashift: u32,
    /// Size of a metaslab as a power of two.
    pub metaslab_shift: u32,
    /// A metaslab begins and ends at multiples of this many bytes: a group's row on draid, else 1.
    pub granule_bytes: u64,
    /// Allocatable size in bytes.
    pub asize_bytes: u64,
    /// The object that lists its space maps; 0 if it has none.
    pub metaslab_array: ObjectId,
    /// The object with each metaslab's unflushed txg.
    pub unflushed_txgs: Option<ObjectId>,
    /// The space map of what the checkpoint keeps.
    pub checkpoint_map: Option<ObjectId>,
}

impl VdevMaps {
    /// Number of metaslabs: whole ones only; the rest of the vdev is not used.
    #[must_use]
    pub fn metaslab_count(&self) -> u64 {
        self.asize_bytes.checked_shr(self.metaslab_shift).unwrap_or(0)
    }

    /// The range of a metaslab: its share of the vdev, cut to whole granules.
    #[must_use]
    pub fn metaslab_range(&self, index: u64) -> Range<u64> {
        let granule = self.granule_bytes.max(1);
        let from = index.checked_shl(self.metaslab_shift).unwrap_or(u64::MAX);
        let end = from.saturating_add(1_u64.checked_shl(self.metaslab_shift).unwrap_or(0));
        let start = from.checked_next_multiple_of(granule).unwrap_or(end).min(end);
        start..start + (end - start) / granule * granule
    }

    /// Bytes of all metaslabs.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        if self.granule_bytes <= 1 {
            return self.metaslab_count().checked_shl(self.metaslab_shift).unwrap_or(0);
        }
        (0..self.metaslab_count()).map(|index| self.metaslab_range(index)).map(|range| range.end - range.start).sum()
    }

    /// Where the last metaslab's share of the vdev ends.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.metaslab_count().checked_shl(self.metaslab_shift).unwrap_or(0)
    }
}

/// What a metaslab holds.
#[derive(Clone, Debug, Default)]
pub struct MetaslabSpace {
    /// Its space map; 0 if it never had one.
    pub object: ObjectId,
    /// Bytes of log.
    pub length_bytes: u64,
    /// Bytes allocated by its own map, as the map's header says.
    pub recorded_allocated_bytes: i64,
    /// Bytes allocated in truth: own map and logs replayed.
    pub allocated_bytes: u64,
    /// The first txg that its own map lacks.
    pub unflushed_txg: Txg,
    /// Counts of free runs, as the map's header has them.
    pub histogram: Option<[u64; cenote_format::spacemap::HISTOGRAM_BUCKETS]>,
}

/// The space of one top-level vdev.
#[derive(Clone, Debug)]
pub struct VdevSpace {
    /// Where its maps are.
    pub maps: VdevMaps,
    /// Everything allocated, as offsets of the vdev.
    pub allocated: RangeSet,
    /// What is allocated only because the checkpoint needs it.
    pub checkpoint: RangeSet,
    /// Each metaslab.
    pub metaslabs: Vec<MetaslabSpace>,
}

/// The space of a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolSpace {
    /// Each vdev that has metaslabs.
    pub vdevs: Vec<VdevSpace>,
    /// What could not be read or contradicts itself.
    pub problems: Vec<SpaceProblem>,
}

/// A space map that could not be used.
#[derive(Clone, Debug)]
pub struct SpaceProblem {
    /// The vdev, if it is one vdev's.
    pub vdev: Option<VdevId>,
    /// The metaslab, if it is one metaslab's.
    pub metaslab: Option<u64>,
    /// The space map's object.
    pub object: ObjectId,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for SpaceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(vdev) = self.vdev {
            write!(f, "vdev {vdev} ")?;
        }
        if let Some(metaslab) = self.metaslab {
            write!(f, "metaslab {metaslab} ")?;
        }
        write!(f, "space map object {}: {}", self.object, self.reason)
    }
}

/// Sizes of a class, or of all classes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceFigures {
    /// Bytes of all metaslabs.
    pub size_bytes: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Bytes kept for the checkpoint (part of those allocated).
    pub checkpoint_bytes: u64,
}

impl SpaceFigures {
    /// Bytes free.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        self.size_bytes.saturating_sub(self.allocated_bytes)
    }

    /// Per cent allocated, rounded down, as `zpool list` shows it.
    #[must_use]
    pub const fn capacity_percent(&self) -> u64 {
        if self.size_bytes == 0 { 0 } else { (self.allocated_bytes as u128 * 100 / self.size_bytes as u128) as u64 }
    }
}

impl VdevSpace {
    /// Its sizes.
    #[must_use]
    pub fn figures(&self) -> SpaceFigures {
        SpaceFigures {
            size_bytes: self.maps.size_bytes(),
            allocated_bytes: self.allocated.total(),
            checkpoint_bytes: self.checkpoint.total(),
        }
    }
}

impl PoolSpace {
    /// The pool's sizes as `zpool list` shows them: every class but the intent log's.
    #[must_use]
    pub fn figures(&self) -> SpaceFigures {
        self.sum(|class| class != AllocationClass::Log)
    }

    /// The sizes of the classes that `wanted` accepts.
    #[must_use]
    pub fn sum(&self, wanted: impl Fn(AllocationClass) -> bool) -> SpaceFigures {
        self.vdevs.iter().filter(|vdev| wanted(vdev.maps.class)).map(VdevSpace::figures).fold(
            SpaceFigures::default(),
            |sum, figures| SpaceFigures {
                size_bytes: sum.size_bytes + figures.size_bytes,
                allocated_bytes: sum.allocated_bytes + figures.allocated_bytes,
                checkpoint_bytes: sum.checkpoint_bytes + figures.checkpoint_bytes,
            },
        )
    }

    /// One vdev's space.
    #[must_use]
    pub fn vdev(&self, vdev: VdevId) -> Option<&VdevSpace> {
        self.vdevs.iter().find(|space| space.maps.vdev == vdev)
    }
}
