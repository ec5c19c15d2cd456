//! An open pool's vdevs, and how a block is read and written through them.
//!
//! The vdevs are an arena of nodes, which is replaced as a whole when the pool gets other ones: [`topology`] has the theory; they are changed by the holder of their [`control`]. Reading
//! goes by the kind of the top-level vdev:
//!
//! ```text
//!   read(VdevId, offset, size, verify)
//!     leaf      one read                                             no allocation but the buffer, no task
//!     mirror    [`mirror`]    one child, then the next until one verifies
//!     raidz     [`stripe`]    data columns; parity when one is missing or wrong; combinations when none is known bad
//!     draid     [`stripe`]    the same over draid's columns, a distributed spare standing for the child it is made of
//!     indirect  [`indirect`]  where the mapping says, split by split
//! ```
//!
//! A mirror's child may itself be a raidz or draid. It sees the same offset and size as the mirror: the 4 MiB of labels and boot area are
//! added once, at the leaf, however many interior vdevs are above it.
//!
//! Writing goes the same ways ([`mod@write`]): every child of a mirror, every column with its parity.
//!
//! Every wrong answer is reported where it is detected, to the fault log (with leaf, offset and kind of error) and to the leaf's error
//! counts, whether or not the read as a whole succeeds. What was wrong is written again by [`mend`].

mod build;
mod control;
mod copies;
mod current;
mod deadman;
mod detached;
mod evacuate;
mod free;
mod gate;
mod hangs;
mod hurry;
mod indirect;
mod kstat;
mod leaf;
mod mend;
mod mirror;
mod node;
mod outage;
mod passed_over;
mod pieces;
mod rebuild;
mod reflow;
mod set;
mod sit_out;
mod status;
mod stripe;
mod suspend;
mod topology;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::label::{VDEV_PHYS_BYTES, VDEV_PHYS_OFFSET};
use cenote_taskq::buf::Buf;
use cenote_taskq::{Group, Handle};

pub use control::TreeControl;
pub use copies::CopiesReport;
pub use current::Retired;
pub use deadman::HangStatus;
pub use free::FreeWrite;
pub use hangs::Hang;
pub use indirect::{IndirectMap, Segment};
pub use kstat::LeafIo;
pub use mend::{Damage, Mend, Mended, MendedLeaf, MendsPaused};
pub use node::{CoarseSectors, LeafState};
pub use rebuild::{RebuildRange, Rebuilt};
pub use set::VdevSet;
pub use sit_out::SitOutError;
pub use status::{VdevState, VdevStatus};
pub use suspend::Suspension;
pub use write::{WriteContext, Written};

use crate::config::VdevConfig;
use crate::disk::Disk;
use crate::error::VdevError;
use crate::fault::{ErrorCounts, Fault, FaultKind, FaultLog};
use crate::queue::QueueClass;
use crate::tunables::Tunables;
use current::Current;
use leaf::Patience;
use node::Kind;
use topology::{Common, Topology};

/// Says whether bytes are the block that was asked for; given exactly the size asked for.
pub type Verify<'a> = &'a (dyn Fn(&[u8]) -> bool + Sync);

/// The attributes of a read beyond its place.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReadContext<'a> {
    /// The block's physical birth. It decides which leaves have missed the block, and the stripe width of a raidz vdev
    /// that was expanded.
    pub birth: Txg,
    /// Failure is expected (a probe, the end of an intent log chain): nothing is reported or counted.
    pub speculative: bool,
    /// The block has another copy on another vdev: a device that hangs is given up on early.
    pub elsewhere: bool,
    /// Its purpose: the requests that it waits behind, and those that it goes before.
    pub class: QueueClass,
    /// Where leaves are noted that gave wrong bytes or none, if that is wanted.
    damage: Option<&'a Damage>,
    /// Leaves that have missed the block are not read.
    is_past_lacking: bool,
}

impl<'a> ReadContext<'a> {
    /// For a block of this physical birth.
    #[must_use]
    pub const fn new(birth: Txg) -> Self {
        Self {
            birth,
            speculative: false,
            elsewhere: false,
            class: QueueClass::SyncRead,
            damage: None,
            is_past_lacking: false,
        }
    }

    /// The same, with failure expected.
    #[must_use]
    pub const fn speculative(self) -> Self {
        Self { speculative: true, ..self }
    }

    /// The same, for another purpose than a reader that waits.
    #[must_use]
    pub const fn of_class(self, class: QueueClass) -> Self {
        Self { class, ..self }
    }

    /// The same, when another copy of the block is on another vdev.
    #[must_use]
    pub const fn elsewhere(self) -> Self {
        Self { elsewhere: true, ..self }
    }

    /// The same, with no read of leaves that have missed the block: they are stale, whatever they have.
    #[must_use]
    pub const fn past_lacking(self) -> Self {
        Self { is_past_lacking: true, ..self }
    }

    /// The same, for a block of another birth.
    #[must_use]
    pub const fn of_birth(self, birth: Txg) -> Self {
        Self { birth, ..self }
    }

    /// The same, with no leaf noted.
    #[must_use]
    pub const fn unnoted(self) -> Self {
        Self { damage: None, ..self }
    }

    /// The same, with the leaves noted that give wrong bytes or none.
    #[must_use]
    pub const fn noting(self, damage: &'a Damage) -> Self {
        Self { damage: Some(damage), ..self }
    }
}

/// A range of a child, label area included.
#[derive(Clone, Copy, Debug)]
struct Extent {
    address: u64,
    len: u64,
}

impl Extent {
    const fn range(&self) -> std::ops::Range<u64> {
        self.address..self.address.saturating_add(self.len)
    }
}

/// Verification of bytes that may be followed by the rest of a sector.
#[derive(Clone, Copy)]
struct Check<'a> {
    verify: Verify<'a>,
    size: usize,
}

impl Check<'_> {
    fn passes(self, bytes: &[u8]) -> bool {
        bytes.get(..self.size).is_some_and(|block| (self.verify)(block))
    }

    /// Sets the padding after a verified block to zeros up to a whole sector, as it was written. No checksum covers it, but parity does, so
    /// a comparison with parity must not use the padding that a device returned.
    fn clear_padding(self, block: &mut [u8]) {
        // A size of zero is no check at all: nothing is known of where the block ends.
        debug_assert!(self.size <= block.len(), "padding follows a block that was verified");
        if self.size > 0
            && let Some(padding) = block.get_mut(self.size..)
        {
            padding.fill(0);
        }
    }
}

/// The faults met in one read, bounded.
#[derive(Debug, Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, fault: Fault) {
        if self.0.len() < VdevError::FAULTS_MAX {
            self.0.push(fault);
        }
    }

    fn extend(&mut self, other: Self) {
        other.0.into_iter().for_each(|fault| self.add(fault));
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

/// How many vdevs a read may still pass through. Configurations are no deeper than a few levels, but a distributed spare
/// stands for another child, which may have another spare: this limit ends loops in a hostile configuration.
/// The builder ensures that the number of paths is small too.
#[derive(Clone, Copy)]
struct Depth(u8);

impl Depth {
    const START: Self = Self(16);

    fn below(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }
}

/// An open pool's vdevs. See the module comment.
#[derive(Debug)]
pub struct VdevTree {
    common: Arc<Common>,
    current: Current,
    /// Somebody controls it.
    is_controlled: AtomicBool,
}

impl VdevTree {
    /// Opens the vdevs that a configuration of type `root` describes, on the disks that were found for its leaves.
    ///
    /// Leaves without a disk are unavailable; whether the pool can be used without them is for the caller to judge by
    /// [`Self::status`]. Leaves that the configuration says are offline or forced to faulted are not used.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] for parameters that contradict each other.
    pub fn open(config: &VdevConfig, disks: impl IntoIterator<Item = (Guid, Disk)>) -> Result<Arc<Self>, VdevError> {
        Self::open_with(config, disks, &Tunables::default(), Handle::current())
    }

    /// As [`Self::open`], with tunables and a clock, which is otherwise that of the calling thread's runtime if it has one.
    /// Without a clock nothing is measured, and a device that hangs is waited for.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(
        config: &VdevConfig,
        disks: impl IntoIterator<Item = (Guid, Disk)>,
        tunables: &Tunables,
        clock: Option<Handle>,
    ) -> Result<Arc<Self>, VdevError> {
        let common = Arc::new(Common::new(config.guid, tunables, clock));
        let topology = Topology::new(config, disks, &common, None)?;
        Ok(Arc::new(Self { current: Current::new(&topology), common, is_controlled: AtomicBool::new(false) }))
    }

    /// The current topology.
    fn topology(&self) -> Arc<Topology> {
        self.current.any()
    }

    /// The group of device reads without a waiter: another child answered first, or the reader was dropped. Closing the pool closes this
    /// group; from then on such reads are dropped. `None` where the tree has no clock.
    #[must_use]
    pub fn left(&self) -> Option<&Group> {
        self.common.left.as_ref()
    }

    /// Gives the tree the mappings of removed vdevs, once they can be read. Until then reads of removed vdevs fail.
    pub fn set_indirect_map(&self, map: Arc<dyn IndirectMap>) {
        // The first one stays: there is one pool to a tree.
        let _ = self.common.indirect.set(map);
    }

    /// Whether a leaf is used.
    #[must_use]
    pub fn is_leaf_online(&self, guid: Guid) -> bool {
        let topology = self.topology();
        let node = topology.lookup(guid);
        node.is_some_and(|node| matches!(&node.kind, Kind::Leaf(leaf) if leaf.writable_disk().is_some()))
    }

    /// The states of all leaves.
    #[must_use]
    pub fn leaf_states(&self) -> Vec<(Guid, LeafState)> {
        let state = |node: &node::Node| match &node.kind {
            Kind::Leaf(leaf) => Some((node.guid, leaf.state())),
            _ => None,
        };
        self.topology().nodes.iter().filter_map(state).collect()
    }

    /// Faults met since the log was last drained.
    #[must_use]
    pub fn fault_log(&self) -> &FaultLog {
        &self.common.faults
    }

    /// Faults that speculative reads met so far. They are counted against no vdev; a reader that saw this rise reads again what it needs,
    /// so that they are.
    #[must_use]
    pub fn speculative_faults(&self) -> u64 {
        self.common.speculative_faults.load(Ordering::Relaxed)
    }

    /// The error counts of a vdev.
    #[must_use]
    pub fn error_counts(&self, guid: Guid) -> Option<Arc<ErrorCounts>> {
        self.topology().lookup(guid).map(|node| node.errors.clone())
    }

    /// Counts bytes of a leaf that were damaged and were written again, other than blocks: labels.
    pub fn count_healed(&self, guid: Guid, bytes: u64) {
        self.topology().lookup(guid).inspect(|node| node.errors.count_healed(bytes));
    }

    /// Counts and reports a label of a leaf that is damaged. `address_bytes`: where the label begins on its device.
    pub fn report_damaged_label(&self, guid: Guid, address_bytes: u64) {
        let topology = self.topology();
        let Some(node) = topology.lookup(guid) else { return };
        let extent = Extent { address: address_bytes + VDEV_PHYS_OFFSET as u64, len: VDEV_PHYS_BYTES as u64 };
        let context = ReadContext::new(Txg(0)).of_class(QueueClass::Scrub);
        drop(topology.report(node, extent, FaultKind::Checksum, context));
    }

    /// The word for the policy by which mirrors are read.
    #[must_use]
    pub fn policy_name(&self) -> &'static str {
        self.common.policy.name()
    }

    /// The number of top-level vdevs, holes included.
    #[must_use]
    pub fn top_count(&self) -> usize {
        self.current.look(VdevId(0), |topology| topology.tops.len())
    }

    /// The sector size of a top-level vdev, as a power of two.
    #[must_use]
    pub fn ashift(&self, vdev: VdevId) -> Option<u32> {
        self.current.look(vdev, |topology| topology.ashift(vdev))
    }

    /// Whether blocks that are neighbours on a top-level vdev are neighbours on its devices, so that they can be written as one:
    /// a disk, or a mirror of disks.
    #[must_use]
    pub fn keeps_neighbours(&self, vdev: VdevId) -> bool {
        self.current.look(vdev, |topology| topology.keeps_neighbours(vdev))
    }

    /// Whether a top-level vdev is a single disk or file, so that each of its blocks is one request.
    #[must_use]
    pub fn is_leaf(&self, vdev: VdevId) -> bool {
        self.current.look(vdev, |topology| topology.is_leaf(vdev))
    }

    /// Bytes that an allocation for `psize_bytes` takes on a top-level vdev at `birth`.
    #[must_use]
    pub fn psize_to_asize(&self, vdev: VdevId, psize_bytes: u64, birth: Txg) -> Option<u64> {
        self.current.look(vdev, |topology| topology.psize_to_asize(vdev, psize_bytes, birth))
    }

    /// Reads `size_bytes` at `offset_bytes` of a top-level vdev, as DVAs count, from whatever copies or reconstructions
    /// it takes until `verify` accepts them.
    ///
    /// # Errors
    /// [`VdevError::Unreadable`] when nothing was accepted; others as their names say.
    pub fn read<'a>(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        size_bytes: u64,
        verify: Verify<'a>,
        context: &'a ReadContext<'a>,
    ) -> impl Future<Output = Result<Buf, VdevError>> + Send + use<'a> {
        // One future, not one in another: callers nest deep enough.
        self.current.of(vdev).read(vdev, offset_bytes, size_bytes, verify, context)
    }

    /// Which of a block's copies to read first: an index into `places`, of which there is at least one. The first, unless
    /// another may be expected in less than half its time.
    #[must_use]
    pub fn best_copy(&self, places: &[(VdevId, u64)], size_bytes: u64) -> usize {
        let first = places.first().map_or(VdevId(0), |(vdev, _)| *vdev);
        self.current.of(first).best_copy(places, size_bytes)
    }
}
