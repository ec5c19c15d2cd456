//! The health of each vdev, as `zpool status` shows it.
//!
//! A leaf that works and has missed txgs is degraded, and so is every vdev above it: OpenZFS shows such a leaf as online, since
//! it resilvers it at once; nothing here does yet.

use std::collections::BTreeSet;

use cenote_format::ids::{Guid, VdevId};

use super::node::{CoarseSectors, Kind, LeafState, Node};
use super::topology::Top;
use super::{HangStatus, Topology, VdevTree};
use crate::dtl::Dtl;
use crate::fault::ErrorTotals;
use crate::iostat::IoStats;

/// The health of a vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VdevState {
    /// All of it works.
    Online,
    /// It works, with less redundancy than it should have.
    Degraded,
    /// Too much of it is missing: it cannot be read.
    Unavailable,
    /// Taken offline by the administrator.
    Offline,
    /// Not used because of its errors, or by force.
    Faulted,
    /// A removed vdev: nothing there to be healthy or not.
    Removed,
}

impl VdevState {
    /// Whether something can be read from it.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        matches!(self, Self::Online | Self::Degraded | Self::Removed)
    }

    /// The word that `zpool status` prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Online | Self::Removed => "ONLINE",
            Self::Degraded => "DEGRADED",
            Self::Unavailable => "UNAVAIL",
            Self::Offline => "OFFLINE",
            Self::Faulted => "FAULTED",
        }
    }
}

impl From<LeafState> for VdevState {
    fn from(state: LeafState) -> Self {
        match state {
            LeafState::Online => Self::Online,
            LeafState::Degraded => Self::Degraded,
            LeafState::Unavailable => Self::Unavailable,
            LeafState::Offline => Self::Offline,
            LeafState::Faulted => Self::Faulted,
        }
    }
}

/// A vdev's health and errors, with its children's.
#[derive(Clone, Debug)]
pub struct VdevStatus {
    /// Its identity; 0 for placeholders.
    pub guid: Guid,
    /// The top-level vdev that it belongs to.
    pub top: VdevId,
    /// Its name or place.
    pub name: String,
    /// Its health.
    pub state: VdevState,
    /// Its errors.
    pub errors: ErrorTotals,
    /// Bytes of it, and of its children, that were found wrong or missing since it was opened, and were written again.
    pub healed_bytes: u64,
    /// Of a leaf: requests that it answered late (`zio_slow_io_ms`).
    pub slow_ios: u64,
    /// The txgs that it cannot be relied on for. Of a leaf: what its dirty time log says, so that it needs a resilver if
    /// there are any. Of a vdev above: those that too many of its children have missed, or would have if they were there
    /// ([`VdevTree::outage`]); what was written in them may be lost.
    pub missed: Dtl,
    /// Why it is unavailable though it can be read: its device's sectors.
    pub coarse: Option<CoarseSectors>,
    /// How it hangs, in a pool that is in use; none if it does not.
    pub hang: Option<HangStatus>,
    /// It is a top-level vdev with blocks of intent logs alone.
    pub is_log: bool,
    /// Its children.
    pub children: Vec<VdevStatus>,
}

impl VdevStatus {
    /// The leaves.
    #[must_use]
    pub fn leaves(&self) -> Vec<&Self> {
        fn collect<'a>(vdev: &'a VdevStatus, into: &mut Vec<&'a VdevStatus>) {
            if vdev.children.is_empty() {
                into.push(vdev);
            }
            vdev.children.iter().for_each(|child| collect(child, into));
        }
        let mut all = Vec::new();
        collect(self, &mut all);
        all
    }

    /// The leaves that are there and have missed txgs.
    #[must_use]
    pub fn behind(&self) -> Vec<&Self> {
        let is_behind = |leaf: &&Self| leaf.state.is_readable() && !leaf.missed.is_empty();
        self.leaves().into_iter().filter(is_behind).collect()
    }

    /// Top-level vdevs that can be read and may have lost what was written in some txgs: redundancy does not make up for what
    /// their leaves have missed.
    pub fn with_outage(&self) -> impl Iterator<Item = &Self> {
        // Of a vdev that is one leaf it is the leaf itself that is told of.
        let has = |top: &&Self| !top.children.is_empty() && top.state.is_readable() && !top.missed.is_empty();
        self.children.iter().filter(has)
    }
}

impl VdevTree {
    /// The health of the whole tree; the root's children are the top-level vdevs by id.
    #[must_use]
    pub fn status(&self) -> VdevStatus {
        self.topology().status_for(false)
    }

    /// Leaves whose devices have gone while they are open: they may take what is written to them, and nobody finds it again. Devices are
    /// not asked, so this can be called whatever state they are in.
    #[must_use]
    pub fn gone(&self) -> BTreeSet<Guid> {
        let topology = self.topology();
        let is_gone = |node: &&Node| match &node.kind {
            Kind::Leaf(leaf) => leaf.disk.as_ref().is_some_and(|disk| disk.device().check_present().is_err()),
            _ => false,
        };
        topology.nodes.iter().filter(is_gone).map(|node| node.guid).collect()
    }

    /// The same for a reader: a leaf whose device has too large sectors counts as any other.
    #[must_use]
    pub fn status_for_reading(&self) -> VdevStatus {
        self.topology().status_for(true)
    }
}

impl Topology {
    fn status_for(&self, reading: bool) -> VdevStatus {
        let of_top = |top: &Top| VdevStatus { is_log: top.is_log, ..self.node_status(self.node(top.node), reading) };
        let children: Vec<_> = self.tops.iter().map(of_top).collect();
        // A pool goes on without its log devices, taken off or lost: what they hold is in memory too, or was given up by whoever opened it.
        let is_off = |top: &VdevStatus| top.is_log && !top.state.is_readable();
        let off_count = children.iter().filter(|top| is_off(top)).count();
        let state = combine(&children, off_count);
        let is_lost = children.iter().any(|top| !is_off(top) && !top.state.is_readable());
        let state = if is_lost { VdevState::Unavailable } else { state };
        let mut missed = Dtl::new();
        for top in &children {
            missed.absorb(&top.missed);
        }
        let root = &self.common.root;
        VdevStatus {
            guid: root.guid(),
            top: VdevId(u32::MAX),
            name: "root".to_owned(),
            state,
            errors: root.errors.totals(),
            healed_bytes: children.iter().map(|top| top.healed_bytes).sum(),
            slow_ios: 0,
            missed,
            coarse: None,
            hang: None,
            is_log: false,
            children,
        }
    }

    fn node_status(&self, node: &Node, reading: bool) -> VdevStatus {
        let children: Vec<_> = node.children.iter().map(|child| self.node_status(self.node(*child), reading)).collect();
        let state = match &node.kind {
            Kind::Leaf(leaf) => match leaf.state() {
                LeafState::Online | LeafState::Degraded if leaf.coarse.is_some() && !reading => VdevState::Unavailable,
                LeafState::Online if !node.missed.get().is_empty() => VdevState::Degraded,
                state => state.into(),
            },
            Kind::Mirror | Kind::Raidz(_) | Kind::Draid(_) => combine(&children, node.dispensable_children()),
            Kind::DraidSpare { draid: Some(_), .. } => VdevState::Online,
            Kind::DraidSpare { draid: None, .. } | Kind::Missing => VdevState::Unavailable,
            Kind::Indirect | Kind::Hole => VdevState::Removed,
        };
        let status = self.status_of(node, state);
        let healed_bytes =
            children.iter().fold(status.healed_bytes, |sum, child| sum.saturating_add(child.healed_bytes));
        VdevStatus { children, healed_bytes, ..status }
    }

    fn status_of(&self, node: &Node, state: VdevState) -> VdevStatus {
        VdevStatus {
            guid: node.guid,
            top: node.top,
            name: node.path.to_string(),
            state,
            errors: node.errors.totals(),
            healed_bytes: node.errors.healed_bytes(),
            slow_ios: node.stats().map_or(0, IoStats::slow_count),
            missed: match &node.kind {
                Kind::Leaf(_) => node.missed.get(),
                _ => self.lacks(node, &BTreeSet::new()),
            },
            coarse: match &node.kind {
                Kind::Leaf(leaf) => leaf.coarse,
                _ => None,
            },
            hang: match &node.kind {
                Kind::Leaf(leaf) => leaf.hang_status(),
                _ => None,
            },
            is_log: false,
            children: Vec::new(),
        }
    }
}

/// The state of a vdev that can do without `spare_count` of its children.
fn combine(children: &[VdevStatus], spare_count: usize) -> VdevState {
    let lost = children.iter().filter(|child| !child.state.is_readable()).count();
    if lost > spare_count {
        VdevState::Unavailable
    } else if lost > 0 || children.iter().any(|child| child.state == VdevState::Degraded) {
        VdevState::Degraded
    } else {
        VdevState::Online
    }
}
