//! The topology: an immutable value with a pool's vdevs, replaced by each change of the vdevs.
//!
//! # Theory
//!
//! **Need.** `zpool add` gives a pool in use another top-level vdev; `attach`, `replace`, `detach`, `offline` and `online` change those that it
//! has. Reads are under way
//! at any time, and no lock that they all take may stand in their way. The state of a device must survive the change: its queue, its
//! outstanding requests, its DTL, its error counts, and whether it was given up.
//!
//! **In memory.**
//! ```text
//! VdevTree ──► Common                 fault log, read policy, clock, reflow, suspension: one for the pool
//!          ──► Current ──► Topology   nodes with kind, layout and children; top-level vdevs; an index by guid
//!                            │ Arc
//!                            └► Leaf, ErrorCounts, Missed, Load: the state of a vdev, shared by the topologies that have it
//! ```
//!
//! **Life of a change** ([`crate::tree::TreeControl::change`]).
//! 1. The pool's sync calls it at the beginning of a txg, when no block is being written. A topology is built of the pool's new
//!    configuration. A vdev that the old topology has too, by its guid, keeps its state; a leaf that is new brings its disk.
//! 2. The new topology is swapped in (`current`). Each I/O takes the topology that is current when it begins, and has it until it ends:
//!    a read that is under way ends in the old one.
//! 3. The last I/O that has the old topology drops it. A leaf that the new one lacks goes with it, and its device is closed. So does that of a
//!    leaf that the configuration says is not to be used (offline or faulted): its guid, errors and DTL remain.
//!
//! **A leaf that gets a sibling** is below a new mirror (or `replacing`, or `spare`) in the new topology, with its own guid and so its own state.
//! Writes go to all children from the change on. Reads of a txg in the new leaf's DTL go to the others: the caller sets that DTL before the
//! change ([`crate::tree::TreeControl::change_with`]), since the first read may come right after it. A mirror with one child left becomes that
//! child, which may be a leaf.
//!
//! **Invariants.**
//! 1. A topology does not change, and one I/O uses one of them.
//! 2. A guid has one state, whichever topology leads to it.
//! 3. No write is under way at a change: all blocks of a txg, and the flush that makes them stable, go through one topology.
//! 4. A top-level vdev keeps its id and its sectors: new ones come after those that are there, and a log device that is removed leaves a hole. At
//!    its id is the same vdev, or one with a leaf of it: a mirror above a leaf has another guid than the leaf; or, where a vdev was evacuated, an
//!    indirect one with a mapping of all blocks in use. So a block
//!    pointer means the same place in all topologies that know it, and an older txg can be read through a newer topology: no tree has blocks
//!    on log devices. [`crate::tree::TreeControl::change`] refuses anything else.
//!
//! **A suspended pool.** Writes that are kept to be issued again name top-level vdevs by id, so they go through the topology that is
//! current then. That may be while the sync makes a change, if a failed read has suspended the pool: a change that adds vdevs does not
//! concern the kept writes, nor does one that takes a log device away: blocks of logs are not kept. One that takes another leaf away is made by
//! a caller that found no outage without it.
//!
//! **Writes of intent logs** come at any time (invariant 3 is about the blocks of a txg). One that began in the old topology may end after the
//! change, and be good by a leaf that the new one lacks. So who takes a leaf away waits for the old topology's end ([`Retired`](super::current::Retired)) and looks
//! at the outage once more.
//!
//! **Crash.** A topology exists in memory only. `cenote_spa`'s `admin::add` describes the order in which labels and uberblock are
//! written.
//!
//! **Rejected.** *An arena that grows in place*: enough for `add`, but a device that is detached has to be closed, and a mirror that
//! becomes a leaf is another kind of node. *One lock around the tree*: a read holds it for as long as a device takes. *Copying the
//! state*: what an I/O in the old topology learns would be lost.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_format::label::START_BYTES;
use cenote_taskq::buf::Buf;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Group, Handle, boxed};

use super::leaf::Patience;
use super::node::{Kind, Node, NodeIndex};
use super::{Check, Depth, Extent, Faults, IndirectMap, ReadContext, Seen, Suspension, Verify, deadman, gate, mend};
use crate::dtl::Dtl;
use crate::error::VdevError;
use crate::fault::{ErrorCounts, Fault, FaultKind, FaultLog, IoCause};
use crate::layout::{LayoutError, MAX_BLOCK_BYTES};
use crate::mirror::{ReadPolicy, policy};
use crate::tunables::Tunables;

/// The vdev above all top-level vdevs. No block is on it: it has an identity and counts errors.
#[derive(Debug)]
pub(super) struct Root {
    guid: AtomicU64,
    pub(super) errors: ErrorCounts,
}

impl Root {
    pub(super) fn guid(&self) -> Guid {
        Guid(self.guid.load(Ordering::Relaxed))
    }

    /// The pool has another guid.
    pub(super) fn set_guid(&self, guid: Guid) {
        self.guid.store(guid.0, Ordering::Relaxed);
    }
}

/// The rule by which a slow child of a parity stripe is left out.
#[derive(Debug)]
pub(super) struct SitOut {
    /// Zero: nothing sits out.
    pub(super) duration: Duration,
    pub(super) interval_ns: u64,
    pub(super) times: u64,
}

/// The part of an open pool's vdevs that no change of the topology concerns.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) root: Root,
    pub(super) faults: FaultLog,
    /// Faults of reads whose failure was expected.
    pub(super) speculative_faults: AtomicU64,
    pub(super) reflow: gate::Gate,
    pub(super) policy: Box<dyn ReadPolicy>,
    pub(super) tunables: Tunables,
    /// Where the time comes from; without one there are no limits on time.
    pub(super) clock: Option<Handle>,
    /// Device reads without a waiter; there if the clock is.
    pub(super) left: Option<Group>,
    pub(super) reroute_after: Duration,
    pub(super) deadman_after: Duration,
    pub(super) deadman: deadman::Deadman,
    pub(super) hedge_percent: u32,
    pub(super) sit_out: SitOut,
    pub(super) indirect: OnceLock<Arc<dyn IndirectMap>>,
    /// There if writes wait for devices that fail.
    pub(super) suspension: OnceLock<Arc<Suspension>>,
    /// Repairs that are under way.
    pub(super) mends: mend::Mends,
    /// Wrong bytes that are kept until the right ones are known.
    pub(super) held_bytes: AtomicU64,
    /// Txgs that leaves lack since spares were given something in their places, and that nobody has noted yet.
    pub(super) passed_over: Mutex<BTreeMap<Guid, Dtl>>,
}

impl Common {
    pub(super) fn new(root: Guid, tunables: &Tunables, clock: Option<Handle>) -> Self {
        Self {
            root: Root { guid: AtomicU64::new(root.0), errors: ErrorCounts::default() },
            faults: FaultLog::default(),
            speculative_faults: AtomicU64::new(0),
            reflow: gate::Gate::default(),
            policy: policy(tunables),
            left: clock.as_ref().map(Handle::group),
            clock,
            reroute_after: Duration::from_millis(tunables.zfs_vdev_mirror_reroute_ms),
            deadman_after: Duration::from_millis(tunables.zfs_deadman_ziotime_ms),
            deadman: deadman::Deadman::new(tunables),
            hedge_percent: tunables.zfs_vdev_mirror_hedge_percent as u32,
            sit_out: SitOut {
                duration: Duration::from_secs(tunables.vdev_read_sit_out_secs),
                interval_ns: tunables.vdev_raidz_outlier_check_interval_ms * 1_000_000,
                times: tunables.vdev_raidz_outlier_times,
            },
            tunables: tunables.clone(),
            indirect: OnceLock::new(),
            suspension: OnceLock::new(),
            mends: mend::Mends::default(),
            held_bytes: AtomicU64::new(0),
            passed_over: Mutex::default(),
        }
    }
}

/// A top-level vdev.
#[derive(Clone, Debug)]
pub(super) struct Top {
    pub(super) node: NodeIndex,
    pub(super) ashift: u32,
    /// It has blocks of intent logs alone.
    pub(super) is_log: bool,
}

/// See the module comment. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Topology {
    pub(super) common: Arc<Common>,
    pub(super) nodes: Arc<[Node]>,
    pub(super) tops: Arc<[Top]>,
    pub(super) by_guid: Arc<BTreeMap<Guid, NodeIndex>>,
}

impl Topology {
    /// Has debug builds look at what every topology is sure of.
    pub(super) fn check(&self, before: Option<&Self>) {
        let is_found = |(guid, index): (&Guid, &NodeIndex)| self.node(*index).guid == *guid;
        debug_assert!(self.by_guid.iter().all(is_found), "a vdev is found by its guid (invariant 2)");
        let is_top = |(id, top): (usize, &Top)| self.node(top.node).top.0 as usize == id;
        debug_assert!(self.tops.iter().enumerate().all(is_top), "a top-level vdev's id is its place (invariant 4)");
        let is_below = |node: &Node| node.children.iter().all(|child| self.node(*child).top == node.top);
        debug_assert!(self.nodes.iter().all(is_below), "a vdev is below one top-level vdev, with its children");
        let has_state_of = |before: &Self, guid: &Guid, now: &Node| {
            let then = before.lookup(*guid);
            then.is_none_or(|then| Arc::ptr_eq(&now.errors, &then.errors) && Arc::ptr_eq(&now.missed, &then.missed))
        };
        debug_assert!(
            before.is_none_or(|before| {
                self.by_guid.iter().all(|(guid, index)| has_state_of(before, guid, self.node(*index)))
            }),
            "a guid has one state in all topologies (invariant 2)"
        );
    }

    /// The sector size of a top-level vdev, as a power of two.
    pub(super) fn ashift(&self, vdev: VdevId) -> Option<u32> {
        self.tops.get(vdev.0 as usize).map(|top| top.ashift)
    }

    /// Whether blocks that are neighbours on a top-level vdev are neighbours on its devices, so that they can be written as one:
    /// a disk, or a mirror of disks.
    pub(super) fn keeps_neighbours(&self, vdev: VdevId) -> bool {
        let is_leaf = |node: &Node| matches!(node.kind, Kind::Leaf(_));
        self.tops.get(vdev.0 as usize).map(|top| self.node(top.node)).is_some_and(|node| match &node.kind {
            Kind::Mirror => node.children.iter().all(|child| is_leaf(self.node(*child))),
            _ => is_leaf(node),
        })
    }

    /// Whether a top-level vdev is a single disk or file.
    pub(super) fn is_leaf(&self, vdev: VdevId) -> bool {
        self.tops.get(vdev.0 as usize).is_some_and(|top| matches!(self.node(top.node).kind, Kind::Leaf(_)))
    }

    /// Bytes that an allocation for `psize_bytes` takes on a top-level vdev at `birth`.
    pub(super) fn psize_to_asize(&self, vdev: VdevId, psize_bytes: u64, birth: Txg) -> Option<u64> {
        if psize_bytes > MAX_BLOCK_BYTES {
            return None;
        }
        let top = self.tops.get(vdev.0 as usize)?;
        Some(self.node_asize(self.node(top.node), top.ashift, psize_bytes, birth))
    }

    /// The allocated size: for a stripe, with parity and padding; above stripes, that of the child that takes most.
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
    pub(super) async fn read(
        self: Arc<Self>,
        vdev: VdevId,
        offset_bytes: u64,
        size_bytes: u64,
        verify: Verify<'_>,
        context: &ReadContext<'_>,
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
                    let read = pin!(self.read_leaf(node, leaf, extent, Some(check), *context, stale));
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
                debug_assert!(
                    buf.len() as u64 >= size_bytes,
                    "what was verified is all of the block (vdev, invariant 1)"
                );
                buf.truncate(size_bytes as usize);
                Ok(buf)
            }
            Err(faults) => Err(self.unreadable(node, vdev, offset_bytes, size_bytes, faults, *context)),
        }
    }

    /// The error for a range that nothing could supply; counts it against the top-level vdev and the root.
    pub(super) fn unreadable(
        &self,
        node: &Node,
        vdev: VdevId,
        offset_bytes: u64,
        size_bytes: u64,
        faults: Faults,
        context: ReadContext<'_>,
    ) -> VdevError {
        debug_assert!(faults.0.len() <= VdevError::FAULTS_MAX, "faults that are kept are bounded (vdev, invariant 3)");
        let error = VdevError::Unreadable { vdev, offset_bytes, size_bytes, faults: faults.0 };
        // A read that was given up for another copy has not failed.
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
            self.common.root.errors.count(kind);
        }
        error
    }

    pub(super) fn node(&self, index: NodeIndex) -> &Node {
        &self.nodes[index.0 as usize]
    }

    pub(super) fn lookup(&self, guid: Guid) -> Option<&Node> {
        self.by_guid.get(&guid).map(|index| self.node(*index))
    }

    /// The vdev, and the sectors of it that hold the range.
    pub(super) fn locate(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        size_bytes: u64,
    ) -> Result<(&Node, Extent), VdevError> {
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
    pub(super) fn best_copy(&self, places: &[(VdevId, u64)], size_bytes: u64) -> usize {
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
            Kind::Leaf(_) => self.common.policy.expected_ns(&self.ask(extent), &node.load).unwrap_or(0),
            Kind::Mirror => children().min().unwrap_or(u64::MAX),
            // As long as the slowest column takes, of those that are read.
            Kind::Raidz(_) | Kind::Draid(_) => children().filter(|ns| *ns != u64::MAX).max().unwrap_or(u64::MAX),
            _ => 0,
        }
    }

    /// Reads a vdev that is not top-level.
    #[boxed]
    pub(super) async fn read_nested(
        &self,
        node: &Node,
        extent: Extent,
        check: Option<Check<'_>>,
        context: ReadContext<'_>,
        depth: Depth,
    ) -> Result<Buf, Faults> {
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
            Kind::Indirect | Kind::Hole | Kind::Missing => Err(self.fault(node, extent, FaultKind::Unavailable).into()),
        }
    }

    /// The child of the draid that a distributed spare stands for at this address.
    pub(super) fn spare_target(&self, spare: &Node, address: u64) -> Option<&Node> {
        let Kind::DraidSpare { draid: Some(draid), spare_id } = &spare.kind else { return None };
        let draid = self.node(*draid);
        let Kind::Draid(layout) = &draid.kind else { return None };
        let child = layout.spare_child(*spare_id, address.checked_sub(START_BYTES)?)?;
        debug_assert!((child as usize) < draid.children.len(), "a spare stands for one of its draid's children");
        draid.children.get(child as usize).map(|child| self.node(*child))
    }

    /// Whether asking this vdev makes sense at all.
    pub(super) fn is_readable(&self, node: &Node, address: u64, depth: Depth) -> bool {
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
    pub(super) fn has_missed(&self, node: &Node, address: u64, birth: Txg, depth: Depth) -> bool {
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
                node.is_rebuilding()
                    || node.missed.contains(birth)
                    || self
                        .spare_target(node, address)
                        .is_none_or(|target| self.has_missed(target, address, birth, depth))
            }
            _ => true,
        }
    }

    /// A fault, unreported.
    pub(super) fn fault(&self, node: &Node, extent: Extent, kind: FaultKind) -> Fault {
        let (address_bytes, size_bytes) = (extent.address, extent.len);
        Fault { guid: node.guid, path: node.path.clone(), address_bytes, size_bytes, kind, class: None }
    }

    /// A fault, counted and logged unless it was to be expected.
    pub(super) fn report(&self, node: &Node, extent: Extent, kind: FaultKind, context: ReadContext<'_>) -> Fault {
        self.report_seen(node, extent, kind, context, Seen::Nothing)
    }

    /// The same, with the bytes that were read.
    pub(super) fn report_seen(
        &self,
        node: &Node,
        extent: Extent,
        kind: FaultKind,
        context: ReadContext<'_>,
        seen: Seen<'_>,
    ) -> Fault {
        let fault = Fault { class: Some(context.class), ..self.fault(node, extent, kind) };
        let is_noted = !matches!(kind, FaultKind::Unavailable | FaultKind::Stale);
        if matches!(kind, FaultKind::Write(_)) {
            self.common.reflow.lost();
        }
        if let Some(damage) = context.damage.filter(|_| kind.is_damage()) {
            damage.note(node.guid);
        }
        if is_noted && context.speculative {
            self.common.speculative_faults.fetch_add(1, Ordering::Relaxed);
        } else if is_noted {
            node.errors.count(kind);
            self.common.faults.push(fault.clone());
            self.tell(&fault, context, seen);
        }
        fault
    }
}
