//! One vdev of an open pool: what it is, whether it can be asked, what it has missed, what went wrong with it.

use std::fmt;
use std::sync::Arc;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::label::{BOOT_AREA_OFFSET, DeviceLayout};
use cenote_taskq::sync::RwLock;
use cenote_taskq::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::disk::Disk;
use crate::dtl::Dtl;
use crate::fault::ErrorCounts;
use crate::iostat::IoStats;
use crate::layout::draid::Draid;
use crate::layout::raidz::Raidz;
use crate::mirror::Load;
use crate::queue::{LeafQueue, SharedQueue};

/// Index of a node in the tree's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct NodeIndex(pub(super) u32);

/// The kind of a node.
#[derive(Debug)]
pub(super) enum Kind {
    /// A disk or file.
    Leaf(Arc<Leaf>),
    /// mirror, replacing or spare: every child has everything.
    Mirror,
    Raidz(Raidz),
    Draid(Draid),
    /// Spare space of a draid; absent when the draid is not in the pool.
    DraidSpare {
        draid: Option<NodeIndex>,
        spare_id: u64,
    },
    /// Removed; its blocks are elsewhere.
    Indirect,
    /// Where a log device was.
    Hole,
    /// Known to exist, but not described by the configuration at hand.
    Missing,
}

/// One vdev of a topology. The fields behind an `Arc` are the vdev's state, shared by all topologies that have the vdev.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) guid: Guid,
    /// Its place or name, for messages.
    pub(super) path: Arc<str>,
    /// The top-level vdev that it belongs to.
    pub(super) top: VdevId,
    pub(super) children: Vec<NodeIndex>,
    pub(super) errors: Arc<ErrorCounts>,
    pub(super) missed: Arc<Missed>,
    /// It is a replacing or a spare: a mirror for as long as its first child is being replaced.
    pub(super) is_replacing: bool,
    /// How busy it is and how it answers, where it is one of several.
    pub(super) load: Arc<Load>,
    /// Of a mirror whose children take the reads that any of them could serve as they have room for them.
    pub(super) shared: Option<Arc<SharedQueue>>,
}

impl Node {
    /// A sequential rebuild onto it has not finished: it may lack any block.
    pub(super) fn is_rebuilding(&self) -> bool {
        self.missed.is_rebuilding.load(Ordering::Acquire)
    }

    /// The counts of its device, if it is a leaf that has one.
    pub(super) fn stats(&self) -> Option<&IoStats> {
        match &self.kind {
            Kind::Leaf(leaf) => leaf.disk.as_ref()?.stats(),
            _ => None,
        }
    }

    /// How many of its children it can do without, wherever a block lies.
    pub(super) fn dispensable_children(&self) -> usize {
        let count = match &self.kind {
            Kind::Mirror => self.children.len().saturating_sub(1),
            Kind::Raidz(raidz) => raidz.parity() as usize,
            Kind::Draid(draid) => draid.parity() as usize,
            _ => 0,
        };
        debug_assert!(count == 0 || count < self.children.len(), "no vdev can do without all of its children");
        count
    }
}

/// The txgs that a leaf has missed.
///
/// Nearly always there are none, so readers look at a flag before they take the lock.
#[derive(Debug, Default)]
pub(super) struct Missed {
    any: AtomicBool,
    txgs: RwLock<Dtl>,
    /// A sequential rebuild onto the leaf has not finished.
    is_rebuilding: AtomicBool,
}

impl Missed {
    pub(super) fn set_rebuilding(&self, is_rebuilding: bool) {
        self.is_rebuilding.store(is_rebuilding, Ordering::Release);
    }

    pub(super) fn set(&self, txgs: Dtl) {
        let any = !txgs.is_empty();
        *self.txgs.write() = txgs;
        self.any.store(any, Ordering::Release);
    }

    /// One txg more.
    pub(super) fn insert(&self, txg: Txg) {
        let mut missed = self.txgs.write();
        missed.insert(txg.0..txg.0.saturating_add(1));
        self.any.store(true, Ordering::Release);
    }

    /// More of them.
    pub(super) fn absorb(&self, txgs: &Dtl) {
        if !txgs.is_empty() {
            let mut missed = self.txgs.write();
            missed.absorb(txgs);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Those of a range are missed no more.
    pub(super) fn remove(&self, range: std::ops::Range<u64>) {
        let mut txgs = self.txgs.write();
        txgs.remove(range);
        // Under the lock, so that no txg which comes at the same time is overlooked.
        self.any.store(!txgs.is_empty(), Ordering::Release);
    }

    pub(super) fn contains(&self, txg: Txg) -> bool {
        self.any.load(Ordering::Acquire) && self.txgs.read().contains(txg)
    }

    /// All of them.
    pub(super) fn get(&self) -> Dtl {
        if self.any.load(Ordering::Acquire) { self.txgs.read().clone() } else { Dtl::new() }
    }
}

/// Whether a leaf can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LeafState {
    /// Found and in use.
    Online = 0,
    /// In use; diagnosed as ailing.
    Degraded = 1,
    /// Not found.
    Unavailable = 2,
    /// Taken offline by the administrator.
    Offline = 3,
    /// Not used any more because of its errors, or by force.
    Faulted = 4,
}

impl LeafState {
    const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Online,
            1 => Self::Degraded,
            3 => Self::Offline,
            4 => Self::Faulted,
            _ => Self::Unavailable,
        }
    }

    /// Whether it is read.
    #[must_use]
    pub(crate) const fn is_readable(self) -> bool {
        matches!(self, Self::Online | Self::Degraded)
    }
}

/// A disk or file.
#[derive(Debug)]
pub(super) struct Leaf {
    /// Absent when it was not found.
    pub(super) disk: Option<Disk>,
    /// The queue of the requests that wait for it; there if the disk is.
    pub(super) queue: Option<Arc<LeafQueue>>,
    /// End of the data area, as an address.
    data_end: u64,
    state: AtomicU8,
    /// Its disk's sectors are larger than its vdev's: it is read, and not written.
    pub(super) coarse: Option<CoarseSectors>,
}

/// A device whose logical sectors are larger than the sectors of its vdev. Blocks of the vdev share sectors of the device: writing
/// one would have the device's driver read another, which is committed, and write it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoarseSectors {
    /// The device's, in bytes.
    pub sector_bytes: u32,
    /// The vdev's, as a power of two.
    pub ashift: u32,
}

impl CoarseSectors {
    /// Of a disk in a vdev, if that is so.
    #[must_use]
    pub fn of(disk: &Disk, ashift: u32) -> Option<Self> {
        let sector_bytes = disk.device().sector_bytes();
        (u64::from(sector_bytes) > 1_u64.checked_shl(ashift).unwrap_or(u64::MAX))
            .then_some(Self { sector_bytes, ashift })
    }
}

impl fmt::Display for CoarseSectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the device's required alignment ({} bytes) is larger than the vdev's ashift {}",
            self.sector_bytes, self.ashift
        )
    }
}

impl Leaf {
    pub(super) fn new(disk: Option<Disk>, queue: Option<Arc<LeafQueue>>, state: LeafState, ashift: u32) -> Self {
        let state = if disk.is_none() && state.is_readable() { LeafState::Unavailable } else { state };
        let data_end = disk
            .as_ref()
            .and_then(|disk| DeviceLayout::new(disk.size_bytes()))
            .map_or(0, |layout| layout.allocatable().end);
        let coarse = disk.as_ref().and_then(|disk| CoarseSectors::of(disk, ashift));
        assert_eq!(disk.is_some(), queue.is_some(), "requests to a disk go through its queue");
        Self { disk, queue, data_end, state: AtomicU8::new(state as u8), coarse }
    }

    pub(super) fn state(&self) -> LeafState {
        LeafState::from_number(self.state.load(Ordering::Relaxed))
    }

    pub(super) fn set_state(&self, state: LeafState) {
        let state = if self.disk.is_none() && state.is_readable() { LeafState::Unavailable } else { state };
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// The disk and its queue, if it may be read.
    pub(super) fn readable_disk(&self) -> Option<(&Disk, &Arc<LeafQueue>)> {
        if self.state().is_readable() { self.disk.as_ref().zip(self.queue.as_ref()) } else { None }
    }

    /// The same, if it may be written.
    pub(super) fn writable_disk(&self) -> Option<(&Disk, &Arc<LeafQueue>)> {
        self.readable_disk().filter(|_| self.coarse.is_none())
    }

    /// Whether a block or column may lie here: within the data area, or in the scratch area in front of it.
    pub(super) const fn holds(&self, address: u64, len: u64) -> bool {
        match address.checked_add(len) {
            Some(end) => address >= BOOT_AREA_OFFSET && end <= self.data_end,
            None => false,
        }
    }
}
