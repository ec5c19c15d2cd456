//! The health of each vdev, as `zpool status` shows it.

use cenote_format::ids::{Guid, VdevId};

use super::node::{Kind, LeafState, Node};
use super::{HangStatus, VdevTree};
use crate::fault::ErrorTotals;

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
    /// Whether its dirty time log has entries: it needs a resilver.
    pub has_missed_txgs: bool,
    /// Whether and how it hangs, in a pool that is in use.
    pub hang: Option<HangStatus>,
    /// Its children.
    pub children: Vec<VdevStatus>,
}

impl VdevTree {
    /// The health of the whole tree; the root's children are the top-level vdevs by id.
    #[must_use]
    pub fn status(&self) -> VdevStatus {
        let children: Vec<_> = self.tops.iter().map(|top| self.node_status(self.node(top.node))).collect();
        let state = combine(&children, 0);
        VdevStatus { children, ..self.status_of(&self.root, state) }
    }

    fn node_status(&self, node: &Node) -> VdevStatus {
        let children: Vec<_> = node.children.iter().map(|child| self.node_status(self.node(*child))).collect();
        let state = match &node.kind {
            Kind::Leaf(leaf) => leaf.state().into(),
            Kind::Mirror | Kind::Raidz(_) | Kind::Draid(_) => combine(&children, node.dispensable_children()),
            Kind::DraidSpare { draid: Some(_), .. } => VdevState::Online,
            Kind::DraidSpare { draid: None, .. } | Kind::Missing => VdevState::Unavailable,
            Kind::Indirect | Kind::Hole => VdevState::Removed,
        };
        VdevStatus { children, ..self.status_of(node, state) }
    }

    fn status_of(&self, node: &Node, state: VdevState) -> VdevStatus {
        VdevStatus {
            guid: node.guid,
            top: node.top,
            name: node.path.to_string(),
            state,
            errors: node.errors.totals(),
            has_missed_txgs: !node.missed.is_empty(),
            hang: match &node.kind {
                Kind::Leaf(leaf) => leaf.hang_status(),
                _ => None,
            },
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
