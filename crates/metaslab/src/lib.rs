//! Space: range sets, space maps, log space maps, allocation classes; reading and writing them.
//!
//! # Theory
//!
//! **Need.** A pool must know which bytes of each top-level vdev are taken: to report space, to find leaks and double
//! references, and to find room for the next block. The knowledge is kept as logs of changes, since rewriting a map of a
//! large vdev for each change would cost more than the change. On an old, fragmented pool even appending is expensive: each txg frees a
//! little in every metaslab, so each space map grows by a block, and its indirect blocks are rewritten too. Hence log space maps: one log
//! for all metaslabs, from which a few metaslabs at a time are flushed to their own space maps.
//!
//! **On disk.**
//! ```text
//! top-level vdev ── metaslab_array ─► object number of each metaslab's space map      (0: nothing was ever allocated)
//!                                       space map: log of allocations and frees within the metaslab
//!                                       its bonus: length, bytes allocated, counts of free runs by power of two
//!                ── top ZAP: ms_unflushed_phys_txgs ─► for each metaslab, the first txg that its own map lacks
//!                            pool_checkpoint_sm     ─► what was freed since the checkpoint, and is still kept for it
//! MOS directory  ── log_spacemap_zap ─► txg ─► log space map: that txg's changes of all metaslabs of all vdevs
//! ```
//! The allocated ranges of a metaslab are those of its own space map, changed by the entries for it in every log space map from its
//! unflushed txg on.
//!
//! **In memory, for reading.** [`RangeSet`]: disjoint ranges in order, merged where they touch; adding a range that is present, or
//! removing one that is absent, is an error; so double allocations and double frees are detected. [`VdevSpace`] is a vdev's set with its
//! classes and figures; [`PoolSpace`] all of them. Space maps are read and replayed a metaslab a task, all vdevs at once;
//! then the logs in the order of their txgs. A map that contradicts itself is reported with its vdev, metaslab and place, and the other
//! maps are used.
//!
//! **In memory, for writing.**
//! ```text
//! Allocator ── classes: normal, log, special, dedup, embedded log ── ring of groups, a rotor for each allocator
//!   │
//!   ├─ vdevs ── group(s): metaslabs by weight, the active ones of each allocator
//!   │    └─ metaslabs, each:   free (if loaded)   allocating[4]   freeing   freed   deferred[2]   kept
//!   │                          unflushed allocs and frees; its SpaceMap
//!   ├─ LogSpace: logs by txg, metaslabs by when they were flushed, the summary
//!   └─ ExtentCheck: a second record of extents in use, in tests and debug builds
//! ```
//! All of it is plain data, without clock, threads or I/O; the same calls give the same DVAs. Sets of a metaslab are
//! [`RangeTree`]s, whose memory is bounded by a bitmap's at any fragmentation.
//!
//! **Life of an allocation.**
//! 1. [`Allocator::allocate`] takes the group whose turn it is, in it the allocator's active metaslab or the best one, and
//!    in that the next free range after the last allocation of the same alignment (or, when little is left, one by size). The
//!    range moves from *free* to *allocating* of its txg. If the metaslab is not loaded, the result is [`AllocError::NeedsLoad`]: the
//!    caller reads its space map ([`Loading`]) and asks again. If no free range is large enough, the error has the size of the largest
//!    one, and the caller makes a gang block. [`Allocator::allocate_run`] allocates several blocks of equal size, in one search.
//! 2. [`Allocator::sync`] in the txg's passes writes *allocating* and *freeing*: to the txg's log and into the unflushed
//!    sets, or with `log_spacemap` off to the metaslab's own map. The header's counts are brought up to date.
//! 3. [`Allocator::free`], in a later txg's sync: the range stands in *freeing*, then (written) in *freed*.
//! 4. [`Allocator::sync_done`]: the txg is on disk. *Freed* becomes *deferred*, what was deferred two txgs ago becomes *free*.
//!    So an import can rewind to any of the last three txgs and find its blocks intact. Freed ranges that a pinned txg still references
//!    ([`Keep`]) are *kept* until no pin needs them.
//! 5. Meanwhile, at the start of each txg, the metaslabs flushed longest ago append their unflushed sets to their own map,
//!    or, if the space map is more than twice as long as necessary, *condense* it: write it anew as one allocation of the whole metaslab
//!    and the frees in it. [`LogSpace::flushes_wanted`] plans the number of flushes so that the blocks of the logs stay within their
//!    limit; more metaslabs are flushed while memory is short. Logs that no metaslab needs any more are freed.
//! 6. [`Allocator::work`] gives the counts of these steps for the last txg, for the pool's history.
//!
//! **At import** ([`open()`]) headers are read, and the logs are replayed: their entries are dealt out to shards of metaslabs, one for
//! each core, and come out as unflushed sets (`replay`).
//!
//! **Invariants.**
//! 1. A range set never holds overlapping or touching ranges.
//! 2. No entry reaches outside its metaslab (space map) or its vdev (log): one that does is an error, not a panic.
//! 3. Memory is proportional to the number of segments, never to the length of the logs; and for what is loaded at most
//!    32 MiB for each TB of the pool ([`Tunables::cenote_metaslab_mem_per_tb`]) whatever the fragmentation.
//! 4. The sets free, allocating, freed, deferred and (synced) allocated are disjoint, and together cover the metaslab.
//! 5. Own map, plus unflushed allocations, less unflushed frees, is what is allocated as of the last sync. Unflushed
//!    allocations and frees are disjoint.
//! 6. A log is kept while any metaslab's unflushed txg is not past it. Blocks and metaslabs of logs and summary agree.
//! 7. Only a loaded metaslab is condensed. So a space map that is being loaded can only grow at its end.
//! 8. Space that a txg has freed is not allocated again before the second txg after it is on disk, unless the caller says that space is
//!    short, and never while an earlier txg is pinned.
//!
//! [`Allocator::verify`] checks 4 to 6, [`ExtentCheck`](check::ExtentCheck) checks 8 and that every write is within an allocated extent.
//!
//! **Layering.** Space maps are objects, and objects are above this crate: it reads them through [`SpaceObjects`] and writes
//! them through [`SpaceStore`], which the pool implements. How a block becomes larger on raidz or draid is a
//! [`SizeRule`] of the vdev.
//!
//! **Crash.** Changes of space maps become part of the pool with the uberblock of their txg. An import starts with the space maps and
//! logs of the last synced txg. Allocations of lost txgs were never recorded, so the space is free again; deferred frees were written
//! down as freed, and can be used at once, since the states that needed them are older than the one imported. No crash can come between a
//! flush and the retirement of a log: both are in one txg.
//!
//! **Rejected.** *A B-tree of segments with a second one by size* (as OpenZFS): both grow with fragmentation, to gigabytes a
//! TB at worst. *One bitmap*: bounded, but as large for an empty pool, and slow to search where space is whole. *Exact best
//! fit*: needs the second tree; a fit within the same power of two does. *Logs encoded by each metaslab on its own*: the
//! order of entries between metaslabs is free, so it could be parallel, but encoding is 16 bytes an entry and was not worth a
//! merge. *Waiting inside `allocate` for a load*: would make the allocator a task with locks; an answer is simpler to test.
//!
//! **Not here yet.** Trim, removal and expansion of vdevs, the `cursor` and `new-dynamic`
//! selectors.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod allocator;
mod check;
mod class;
mod error;
mod fragmentation;
mod group;
mod kept;
mod load;
mod logs;
mod map;
mod metaslab;
mod open;
mod ranges;
mod replay;
mod store;
mod tree;
mod tunables;
mod weight;
mod work;

use std::fmt;
use std::ops::Range;

use cenote_format::Endian;
use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;
use cenote_vdev::config::AllocationClass;
use thiserror::Error;

pub use allocator::{Allocator, Evacuation, FlushMode, KeptTail, Request, SpaceFeatures};
pub use check::CheckError;
pub use class::ClassKind;
pub use error::{LogEntryFault, LogFigure, MetaslabFault, SpaceError, SpaceMapError, Violation};
pub use fragmentation::class_fragmentation;
pub use group::{AllocError, Extent, SizeRule, VdevSetup};
pub use load::load;
pub(crate) use logs::FoundLog;
pub use logs::{Log, LogSpace};
pub use map::{Batch, SpaceMap, map_histogram};
pub(crate) use metaslab::SyncTarget;
pub use metaslab::{Keep, LoadStep, Loading, Metaslab, SizeRange};
pub(crate) use metaslab::{TXG_DEFER_SIZE, TXG_SIZE};
pub use open::open;
pub use ranges::{RangeError, RangeSet};
pub use store::{MetaslabId, ObjectError, SpaceStore};
pub use tree::RangeTree;
pub use tunables::Tunables;
pub use weight::Weight;
pub use work::{Flushed, MetaslabWork, TxgWork};

/// The byte order of the integers that are read from objects, and written into them.
pub const ORDER: Endian = Endian::Little;

/// The objects that hold space maps, as the pool gives access to them. Errors are those of the layer that holds them.
pub trait SpaceObjects: Send + Sync + 'static {
    /// The bonus of an object and the byte order of that. Data have an order of their own: see [`SpaceObjects::read`].
    #[boxed]
    async fn bonus(&self, object: ObjectId) -> Result<(Vec<u8>, Endian), ObjectError>;
    /// The size of an object's data blocks.
    #[boxed]
    async fn block_bytes(&self, object: ObjectId) -> Result<u64, ObjectError>;
    /// `len` bytes of an object's data at `offset_bytes`. Their 64-bit integers are little-endian ([`ORDER`]): an implementation turns
    /// round those of blocks that are not.
    #[boxed]
    async fn read(&self, object: ObjectId, offset_bytes: u64, len: usize) -> Result<Block, ObjectError>;
}

/// A top-level vdev's place among the space maps.
#[derive(Clone, Debug)]
pub struct VdevMaps {
    /// Which vdev.
    pub vdev: VdevId,
    /// The allocation class that it serves.
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

/// A metaslab's space map, and its space as the map and the logs have it.
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
    /// Ranges that are allocated only because the checkpoint refers to them.
    pub checkpoint: RangeSet,
    /// Each metaslab.
    pub metaslabs: Vec<MetaslabSpace>,
}

/// The space of a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolSpace {
    /// Each vdev that has metaslabs.
    pub vdevs: Vec<VdevSpace>,
    /// Space maps that could not be read or contradict themselves.
    pub problems: Vec<SpaceProblem>,
}

/// A space map that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct SpaceProblem {
    /// The vdev, if it is one vdev's.
    pub vdev: Option<VdevId>,
    /// The metaslab, if it is one metaslab's.
    pub metaslab: Option<u64>,
    /// The space map's object.
    pub object: ObjectId,
    /// The fault.
    #[source]
    pub error: SpaceMapError,
}

impl fmt::Display for SpaceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(vdev) = self.vdev {
            write!(f, "vdev {vdev} ")?;
        }
        if let Some(metaslab) = self.metaslab {
            write!(f, "metaslab {metaslab} ")?;
        }
        write!(f, "space map object {}: {}", self.object, self.error)
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
