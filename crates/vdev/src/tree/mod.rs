//! An open pool's vdevs, and how a block is read and written through them.
//!
//! The tree is an arena of nodes, fixed while the pool is open. Reading goes by the kind of the top-level vdev:
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
//! A mirror's child may itself be a raidz or draid. It sees the same offset and size as the mirror: the label area that
//! addresses count stands in front of each leaf's data once, however many vdevs are above the leaf.
//!
//! Writing goes the same ways ([`mod@write`]): every child of a mirror, every column with its parity.
//!
//! Every answer that turns out wrong is reported where it is noticed: with the leaf's identity, place and kind to the fault
//! log and the leaf's counts, whether or not the read as a whole succeeded.

mod build;
mod copies;
mod deadman;
mod detached;
mod hurry;
mod indirect;
mod leaf;
mod mirror;
mod node;
mod outage;
mod status;
mod stripe;
mod suspend;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::label::START_BYTES;
use cenote_taskq::buf::Buf;
use cenote_taskq::sync::RwLock;
use cenote_taskq::{BoxFuture, Group, Handle};

pub use copies::CopiesReport;
pub use deadman::{Hang, HangStatus};
pub use indirect::{IndirectMap, Segment};
pub use node::{CoarseSectors, LeafState};
pub use status::{VdevState, VdevStatus};
pub use suspend::Suspension;
pub use write::Written;

use crate::config::{VdevConfig, VdevKind};
use crate::disk::Disk;
use crate::error::VdevError;
use crate::fault::{ErrorCounts, Fault, FaultKind, FaultLog, IoCause};
use crate::layout::raidz::Reflow;
use crate::layout::{ASHIFT_MIN, LayoutError, MAX_BLOCK_BYTES};
use crate::mirror::{ReadPolicy, Spread, policy};
use crate::queue::QueueClass;
use crate::tunables::Tunables;
use crate::txgs::TxgSet;
use build::{Builder, bad, new_node};
use leaf::Patience;
use node::{Kind, Node, NodeIndex};

/// Says whether bytes are the block that was asked for; given exactly the size asked for.
pub type Verify<'a> = &'a (dyn Fn(&[u8]) -> bool + Sync);

/// What a read knows beyond its place.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReadContext {
    /// The block's physical birth. It decides which leaves have missed the block, and the stripe width of a raidz vdev
    /// that was expanded.
    pub birth: Txg,
    /// Failure is expected (a probe, the end of an intent log chain): nothing is reported or counted.
    pub speculative: bool,
    /// The block has another copy on another vdev: a device that hangs is given up on early.
    pub elsewhere: bool,
    /// What it is for: whom it waits behind, and whom it goes before.
    pub class: QueueClass,
}

impl ReadContext {
    /// For a block of this physical birth.
    #[must_use]
    pub const fn new(birth: Txg) -> Self {
        Self { birth, speculative: false, elsewhere: false, class: QueueClass::SyncRead }
    }

    /// The same, with failure expected.
    #[must_use]
    pub const fn speculative(self) -> Self {
        Self { speculative: true, ..self }
    }

    /// The same, for another purpose than someone's waiting.
    #[must_use]
    pub const fn of_class(self, class: QueueClass) -> Self {
        Self { class, ..self }
    }

    /// The same, when another copy of the block is on another vdev.
    #[must_use]
    pub const fn elsewhere(self) -> Self {
        Self { elsewhere: true, ..self }
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

    /// Makes the padding behind a verified block what it was written as: zeros up to a whole sector. No checksum covers
    /// it, but parity does; whoever compares with parity must not take a device's word for it.
    fn clear_padding(self, block: &mut [u8]) {
        // A size of zero is no check at all: nothing is known of where the block ends.
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
/// stands for another child, which may have another spare: this ends loops that a hostile configuration could lay. That
/// the ways are few as well as short is seen to when the tree is made ([`Builder::spare_is_in_place`]).
#[derive(Clone, Copy)]
struct Depth(u8);

impl Depth {
    const START: Self = Self(16);

    fn below(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }
}

/// When and for how long a slow child of a parity stripe is left out.
#[derive(Debug)]
struct SitOut {
    duration: Duration,
    interval_ns: u64,
    times: u64,
}

/// A top-level vdev.
#[derive(Debug)]
struct Top {
    node: NodeIndex,
    ashift: u32,
}

/// An open pool's vdevs. See the module comment.
#[derive(Debug)]
pub struct VdevTree {
    nodes: Vec<Node>,
    tops: Vec<Top>,
    by_guid: BTreeMap<Guid, NodeIndex>,
    root: Node,
    faults: FaultLog,
    reflow: RwLock<Reflow>,
    policy: Box<dyn ReadPolicy>,
    /// Where the time comes from; without one there are no limits on time.
    clock: Option<Handle>,
    /// Devices' reads that nobody waits for any more; there if the clock is.
    left: Option<Group>,
    reroute_after: Duration,
    deadman_after: Duration,
    deadman: deadman::Deadman,
    hedge_percent: u32,
    sit_out: SitOut,
    indirect: OnceLock<Arc<dyn IndirectMap>>,
    /// There if writes wait for devices that fail.
    suspension: OnceLock<Arc<Suspension>>,
}

impl VdevTree {
    /// Opens the vdevs that a configuration of type `root` describes, on the disks that were found for its leaves.
    ///
    /// Leaves without a disk are unavailable; whether the pool can be used without them is for the caller to judge by
    /// [`Self::status`]. Leaves that the configuration says are offline or forced to faulted are not used.
    ///
    /// # Errors
    /// [`VdevError::BadConfig`] for parameters that contradict each other.
    pub fn open(config: &VdevConfig, disks: impl IntoIterator<Item = (Guid, Disk)>) -> Result<Self, VdevError> {
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
    ) -> Result<Self, VdevError> {
        if config.kind != VdevKind::Root {
            return Err(bad(config.guid, "the vdev tree does not start with a root"));
        }
        let mut builder = Builder {
            nodes: Vec::new(),
            by_guid: BTreeMap::new(),
            disks: disks.into_iter().collect(),
            spares: Vec::new(),
            spares_seen: BTreeSet::new(),
            tunables,
        };
        let mut tops = Vec::with_capacity(config.children.len());
        for (position, top) in config.children.iter().enumerate() {
            let id = u32::try_from(position).map_err(|_| bad(config.guid, "too many top-level vdevs"))?;
            let is_placeholder = matches!(top.kind, VdevKind::Hole | VdevKind::Missing);
            if top.id != u64::from(id) && !is_placeholder {
                return Err(bad(top.guid, format!("top-level vdev {id} says that it is {}", top.id)));
            }
            let ashift = top.ashift.max(ASHIFT_MIN);
            tops.push(Top { node: builder.add(top, VdevId(id), ashift, None)?, ashift });
        }
        let mut root = new_node(config, Kind::Mirror, VdevId(u32::MAX), "root".into());
        root.children = tops.iter().map(|top| top.node).collect();
        let Builder { mut nodes, by_guid, spares, .. } = builder;
        // Distributed spares name their draid by guid, which may come after them.
        for (spare, draid_guid) in spares {
            let is_draid = |target: &NodeIndex| matches!(nodes[target.0 as usize].kind, Kind::Draid(_));
            let target = by_guid.get(&draid_guid).copied().filter(is_draid);
            if let Kind::DraidSpare { draid, .. } = &mut nodes[spare.0 as usize].kind {
                *draid = target;
            }
        }
        Ok(Self {
            nodes,
            tops,
            by_guid,
            root,
            faults: FaultLog::default(),
            reflow: RwLock::new(Reflow::COMPLETE),
            policy: policy(tunables),
            left: clock.as_ref().map(Handle::group),
            clock,
            reroute_after: Duration::from_millis(tunables.number("zfs_vdev_mirror_reroute_ms")),
            deadman_after: Duration::from_millis(tunables.number("zfs_deadman_ziotime_ms")),
            deadman: deadman::Deadman::new(tunables),
            hedge_percent: tunables.number("zfs_vdev_mirror_hedge_percent") as u32,
            sit_out: SitOut {
                duration: Duration::from_secs(tunables.number("vdev_read_sit_out_secs")),
                interval_ns: tunables.number("vdev_raidz_outlier_check_interval_ms") * 1_000_000,
                times: tunables.number("vdev_raidz_outlier_times"),
            },
            indirect: OnceLock::new(),
            suspension: OnceLock::new(),
        })
    }

    /// The group of devices' reads that nobody waits for any more: another child was sooner, or whoever waited has gone. Closing it
    /// is part of closing the pool; from then on such reads are dropped instead. None where the tree has no clock.
    #[must_use]
    pub const fn left(&self) -> Option<&Group> {
        self.left.as_ref()
    }

    /// Gives the tree the mappings of removed vdevs, once they can be read. Until then reads of removed vdevs fail.
    pub fn set_indirect_map(&self, map: Arc<dyn IndirectMap>) {
        // The first one stays: there is one pool to a tree.
        let _ = self.indirect.set(map);
    }

    /// Tells the tree where a running raidz expansion stands, from the uberblock that the pool was opened at.
    pub fn set_reflow(&self, reflow: Reflow) {
        *self.reflow.write() = reflow;
    }

    /// Tells the tree which txgs a leaf has missed (its dirty time log). `false` if there is no such vdev.
    pub fn set_missed_txgs(&self, guid: Guid, txgs: TxgSet) -> bool {
        self.lookup(guid).map(|node| node.missed.set(txgs)).is_some()
    }

    /// Tells the tree of more txgs that a leaf has missed. `false` if there is no such vdev.
    pub fn add_missed_txgs(&self, guid: Guid, txgs: &TxgSet) -> bool {
        self.lookup(guid).map(|node| node.missed.absorb(txgs)).is_some()
    }

    /// Changes whether a leaf is used. `false` if there is no such leaf.
    pub fn set_leaf_state(&self, guid: Guid, state: LeafState) -> bool {
        match self.lookup(guid).map(|node| &node.kind) {
            Some(Kind::Leaf(leaf)) => {
                leaf.set_state(state);
                true
            }
            _ => false,
        }
    }

    /// Faults met since the log was last drained.
    #[must_use]
    pub const fn fault_log(&self) -> &FaultLog {
        &self.faults
    }

    /// The error counts of a vdev.
    #[must_use]
    pub fn error_counts(&self, guid: Guid) -> Option<&ErrorCounts> {
        self.lookup(guid).map(|node| &node.errors)
    }

    /// How a vdev below a mirror or a parity stripe is doing, as the read policy sees it.
    #[must_use]
    pub fn load(&self, guid: Guid) -> Option<Spread> {
        self.lookup(guid).map(|node| node.load.spread())
    }

    /// The word for the policy by which mirrors are read.
    #[must_use]
    pub fn policy_name(&self) -> &'static str {
        self.policy.name()
    }

    /// Sets all error counts to zero (`zpool clear`).
    pub fn clear_errors(&self) {
        self.nodes.iter().chain([&self.root]).for_each(|node| node.errors.clear());
    }

    /// The number of top-level vdevs, holes included.
    #[must_use]
    pub const fn top_count(&self) -> usize {
        self.tops.len()
    }

    /// The sector size of a top-level vdev, as a power of two.
    #[must_use]
    pub fn ashift(&self, vdev: VdevId) -> Option<u32> {
        self.tops.get(vdev.0 as usize).map(|top| top.ashift)
    }

    /// Whether blocks that are neighbours on a top-level vdev are neighbours on its devices, so that they can be written as one:
    /// a disk, or a mirror of disks.
    #[must_use]
    pub fn keeps_neighbours(&self, vdev: VdevId) -> bool {
        let is_leaf = |node: &Node| matches!(node.kind, Kind::Leaf(_));
        self.tops.get(vdev.0 as usize).map(|top| self.node(top.node)).is_some_and(|node| match &node.kind {
            Kind::Mirror => node.children.iter().all(|child| is_leaf(self.node(*child))),
            _ => is_leaf(node),
        })
    }

    /// Bytes that an allocation for `psize_bytes` takes on a top-level vdev at `birth`.
    #[must_use]
    pub fn psize_to_asize(&self, vdev: VdevId, psize_bytes: u64, birth: Txg) -> Option<u64> {
        if psize_bytes > MAX_BLOCK_BYTES {
            return None;
        }
        let top = self.tops.get(vdev.0 as usize)?;
        Some(self.node_asize(self.node(top.node), top.ashift, psize_bytes, birth))
    }

    /// What stripes take for parity and padding; above them, as much as the child that takes most.
    fn node_asize(&self, node: &Node, ashift: u32, psize_bytes: u64, birth: Txg) -> u64 {
        match &node.kind {
            Kind::Raidz(raidz) => raidz.psize_to_asize(psize_bytes, birth),
            Kind::Draid(draid) => draid.psize_to_asize(psize_bytes),
            _ => {
                let children = node.children.iter().map(|child| self.node(*child));
                children
                    .map(|child| self.node_asize(child, ashift, psize_bytes, birth))
                    .fold(psize_bytes.next_multiple_of(1 << ashift), u64::max)
            }
        }
    }

    /// Reads `size_bytes` at `offset_bytes` of a top-level vdev, as DVAs count, from whatever copies or reconstructions
    /// it takes until `verify` accepts them.
    ///
    /// # Errors
    /// [`VdevError::Unreadable`] when nothing was accepted; others as their names say.
    pub async fn read(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        size_bytes: u64,
        verify: Verify<'_>,
        context: &ReadContext,
    ) -> Result<Buf, VdevError> {
        let (node, extent) = self.locate(vdev, offset_bytes, size_bytes)?;
        let check = Check { verify, size: size_bytes as usize };
        let read = match &node.kind {
            Kind::Leaf(leaf) => {
                let stale = node.missed.contains(context.birth);
                if self.tops.len() > 1 {
                    // A copy elsewhere may be the better one: that wants to be known.
                    self.read_bounded_leaf(node, leaf, extent, Some(check), *context, Patience::Long).await
                } else {
                    let read = self.read_leaf(node, leaf, extent, Some(check), *context, stale);
                    self.bounded(node, extent, *context, Patience::Long, read).await
                }
            }
            Kind::Mirror => self.read_mirror(node, extent, Some(check), *context, Depth::START).await,
            Kind::Raidz(_) | Kind::Draid(_) => Box::pin(self.read_stripe(node, extent, check, *context)).await?,
            Kind::Indirect => {
                return Box::pin(self.read_indirect(vdev, offset_bytes, extent.len, check, *context)).await;
            }
            Kind::Missing => return Err(VdevError::Missing(vdev)),
            Kind::Hole | Kind::DraidSpare { .. } => return Err(VdevError::NoSuchVdev(vdev)),
        };
        match read {
            Ok(mut buf) => {
                buf.truncate(size_bytes as usize);
                Ok(buf)
            }
            Err(faults) => Err(self.unreadable(node, vdev, offset_bytes, size_bytes, faults, *context)),
        }
    }

    /// The error for a range that nothing could supply; counts it against the top-level vdev and the root.
    fn unreadable(
        &self,
        node: &Node,
        vdev: VdevId,
        offset_bytes: u64,
        size_bytes: u64,
        faults: Faults,
        context: ReadContext,
    ) -> VdevError {
        let error = VdevError::Unreadable { vdev, offset_bytes, size_bytes, faults: faults.0 };
        // What was given up on for another copy has not failed.
        let is_for_another = context.elsewhere && error.is_overdue();
        if !context.speculative && !is_for_another {
            let kind = if error.is_checksum() {
                FaultKind::Checksum
            } else {
                FaultKind::Read(IoCause { kind: std::io::ErrorKind::Other, errno: None })
            };
            // A leaf at the top has been counted already.
            if !matches!(node.kind, Kind::Leaf(_)) {
                node.errors.count(kind);
            }
            self.root.errors.count(kind);
        }
        error
    }

    fn node(&self, index: NodeIndex) -> &Node {
        &self.nodes[index.0 as usize]
    }

    fn lookup(&self, guid: Guid) -> Option<&Node> {
        self.by_guid.get(&guid).map(|index| self.node(*index))
    }

    /// The vdev, and the sectors of it that hold the range.
    fn locate(&self, vdev: VdevId, offset_bytes: u64, size_bytes: u64) -> Result<(&Node, Extent), VdevError> {
        let top = self.tops.get(vdev.0 as usize).ok_or(VdevError::NoSuchVdev(vdev))?;
        let sector = 1 << top.ashift;
        if size_bytes == 0 || size_bytes > MAX_BLOCK_BYTES || offset_bytes >= 1 << 62 {
            let source = LayoutError::BadRange { offset_bytes, size_bytes };
            return Err(VdevError::BadRange { vdev, source });
        }
        let extent = Extent { address: offset_bytes + START_BYTES, len: size_bytes.next_multiple_of(sector) };
        Ok((self.node(top.node), extent))
    }

    /// Which of a block's copies to read first: an index into `places`, of which there is at least one. The first, unless
    /// another may be expected in less than half its time.
    #[must_use]
    pub fn best_copy(&self, places: &[(VdevId, u64)], size_bytes: u64) -> usize {
        let mut best = (0, u64::MAX);
        for (index, (vdev, offset_bytes)) in places.iter().enumerate() {
            let Ok((node, extent)) = self.locate(*vdev, *offset_bytes, size_bytes) else { continue };
            let expected = self.expected_ns(node, extent, Depth::START);
            if index == 0 {
                best = (0, expected / 2);
            } else if expected < best.1 {
                best = (index, expected);
            }
        }
        best.0
    }

    /// When an answer may be expected from a vdev; as long as there is, where nothing can be read.
    fn expected_ns(&self, node: &Node, extent: Extent, depth: Depth) -> u64 {
        let Some(depth) = depth.below().filter(|depth| self.is_readable(node, extent.address, *depth)) else {
            return u64::MAX;
        };
        let children = || node.children.iter().map(|child| self.expected_ns(self.node(*child), extent, depth));
        match &node.kind {
            Kind::Leaf(_) => self.policy.expected_ns(&self.ask(extent), &node.load).unwrap_or(0),
            Kind::Mirror => children().min().unwrap_or(u64::MAX),
            // As long as the slowest column takes, of those that are read.
            Kind::Raidz(_) | Kind::Draid(_) => children().filter(|ns| *ns != u64::MAX).max().unwrap_or(u64::MAX),
            _ => 0,
        }
    }

    /// Reads a vdev that is not top-level.
    fn read_nested<'a>(
        &'a self,
        node: &'a Node,
        extent: Extent,
        check: Option<Check<'a>>,
        context: ReadContext,
        depth: Depth,
    ) -> BoxFuture<'a, Result<Buf, Faults>> {
        Box::pin(async move {
            let Some(depth) = depth.below() else {
                return Err(self.fault(node, extent, FaultKind::Unavailable).into());
            };
            match &node.kind {
                Kind::Leaf(leaf) => {
                    let stale = node.missed.contains(context.birth);
                    self.read_leaf(node, leaf, extent, check, context, stale).await
                }
                Kind::Mirror => self.read_mirror(node, extent, check, context, depth).await,
                Kind::DraidSpare { .. } => match self.spare_target(node, extent.address) {
                    Some(target) => self.read_nested(target, extent, check, context, depth).await,
                    None => Err(self.fault(node, extent, FaultKind::Unavailable).into()),
                },
                Kind::Raidz(_) | Kind::Draid(_) => self.read_nested_stripe(node, extent, check, context).await,
                Kind::Indirect | Kind::Hole | Kind::Missing => {
                    Err(self.fault(node, extent, FaultKind::Unavailable).into())
                }
            }
        })
    }

    /// The child of the draid that a distributed spare stands for at this address.
    fn spare_target(&self, spare: &Node, address: u64) -> Option<&Node> {
        let Kind::DraidSpare { draid: Some(draid), spare_id } = &spare.kind else { return None };
        let draid = self.node(*draid);
        let Kind::Draid(layout) = &draid.kind else { return None };
        let child = layout.spare_child(*spare_id, address.checked_sub(START_BYTES)?)?;
        draid.children.get(child as usize).map(|child| self.node(*child))
    }

    /// Whether asking this vdev makes sense at all.
    fn is_readable(&self, node: &Node, address: u64, depth: Depth) -> bool {
        let Some(depth) = depth.below() else { return false };
        match &node.kind {
            Kind::Leaf(leaf) => leaf.readable_disk().is_some(),
            // A stripe that lacks more than its parity may still have a narrow block: it is asked, late.
            Kind::Mirror | Kind::Raidz(_) | Kind::Draid(_) => {
                node.children.iter().any(|child| self.is_readable(self.node(*child), address, depth))
            }
            Kind::DraidSpare { .. } => {
                self.spare_target(node, address).is_some_and(|target| self.is_readable(target, address, depth))
            }
            _ => false,
        }
    }

    /// Whether this vdev cannot have a block of this birth, by its dirty time log.
    fn has_missed(&self, node: &Node, address: u64, birth: Txg, depth: Depth) -> bool {
        let Some(depth) = depth.below() else { return true };
        match &node.kind {
            Kind::Leaf(_) => node.missed.contains(birth),
            Kind::Mirror | Kind::Raidz(_) | Kind::Draid(_) => {
                let lacks = |child: &&NodeIndex| {
                    let child = self.node(**child);
                    !self.is_readable(child, address, depth) || self.has_missed(child, address, birth, depth)
                };
                node.children.iter().filter(lacks).count() > node.dispensable_children()
            }
            Kind::DraidSpare { .. } => {
                node.rebuilding
                    || node.missed.contains(birth)
                    || self
                        .spare_target(node, address)
                        .is_none_or(|target| self.has_missed(target, address, birth, depth))
            }
            _ => true,
        }
    }

    /// A fault, unreported.
    fn fault(&self, node: &Node, extent: Extent, kind: FaultKind) -> Fault {
        Fault { guid: node.guid, path: node.path.clone(), address_bytes: extent.address, size_bytes: extent.len, kind }
    }

    /// A fault, counted and logged unless it was to be expected.
    fn report(&self, node: &Node, extent: Extent, kind: FaultKind, context: ReadContext) -> Fault {
        let fault = self.fault(node, extent, kind);
        let is_noted = !matches!(kind, FaultKind::Unavailable | FaultKind::Stale);
        if is_noted && !context.speculative {
            node.errors.count(kind);
            self.faults.push(fault.clone());
        }
        fault
    }
}
