//! Children of raidz and draid vdevs that are not read for a while, since they are slow.
//!
//! # Theory
//!
//! A read of a stripe waits for the slowest of the devices that it needs, and parity can stand in for any of them.
//! ```text
//!                  behind its siblings, three comparisons in a row (`autosit`)
//!               ┌──────────────────────────────────────────────────────────────┐
//!  is read ─────┤                                                              ▼
//!     ▲         └────────────── `sit_out=on`, by a person ─────────────►  sits out
//!     │                                                                        │
//!     └── its time is over · `sit_out=off` · `zpool clear` · its device is opened anew ◄┘
//! ```
//! **A child is slow** if its answers of this size take `vdev_raidz_outlier_times` as long as the median of all children's, of which at
//! least three have answered. A comparison is made by a read, at most every `vdev_raidz_outlier_check_interval_ms`. (OpenZFS compares the
//! means since the last look with a fence of quartiles, and needs five children; a median does with three.)
//!
//! **Leaves sit out**, as OpenZFS has it; a child that is a replacing or a spare sits out if a leaf below it does.
//!
//! **Invariants.** 1. No more children sit out or are away than there is parity; who would be one too many is read. 2. A column that
//! cannot be had otherwise is read, whoever has it. 3. Scrubs, resilvers and writes know nothing of this. 4. How a device answered is
//! forgotten when it begins to sit out: it is not measured meanwhile, and would sit out for ever by what it was.
//!
//! Nothing of this is on disk but `autosit`. It is on unless it is set to off; OpenZFS has it off unless it is set to on.

use cenote_format::ids::Guid;
use cenote_taskq::Instant;
use thiserror::Error;

use super::node::{Kind, Node};
use super::topology::Topology;
use super::{Extent, ReadContext, VdevTree};
use crate::fault::FaultKind;
use crate::iostat::IoStats;

/// How often in a row a child must come out far behind its siblings to sit out.
const COMPARISONS: u32 = 3;
/// Children whose answers say what is usual.
const CHILDREN_MIN: usize = 3;

/// A vdev that cannot sit out, or have its children do so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SitOutError {
    /// It is no leaf of a raidz or draid.
    #[error("only a device of a raidz or draid can sit out")]
    NotOfStripe,
    /// It is no raidz or draid.
    #[error("only devices of a raidz or draid sit out by themselves")]
    NoStripe,
    /// Parity is needed for others (`ZFS_ERR_TOO_MANY_SITOUTS`).
    #[error("too many disks already sitting out")]
    TooMany,
}

impl Topology {
    /// Whether a child of a stripe sits out.
    pub(super) fn sits_out(&self, child: &Node, now: Instant) -> bool {
        // As deep as the configuration was let become.
        match child.kind {
            Kind::Leaf(_) => !self.common.sit_out.duration.is_zero() && child.load.is_sitting_out(now),
            _ => child.children.iter().any(|below| self.sits_out(self.node(*below), now)),
        }
    }

    /// Whether nothing of a child can be read.
    fn is_away(&self, child: &Node) -> bool {
        match &child.kind {
            Kind::Leaf(leaf) => leaf.readable_disk().is_none(),
            Kind::DraidSpare { draid, .. } => draid.is_none(),
            _ => child.children.iter().all(|below| self.is_away(self.node(*below))),
        }
    }

    /// Whether parity can stand in for one child more, this one.
    fn can_stand_in(&self, stripe: &Node, child: &Node, now: Instant) -> bool {
        let others = stripe.children.iter().map(|other| self.node(*other)).filter(|other| other.guid != child.guid);
        let missing = others.filter(|other| self.sits_out(other, now) || self.is_away(other)).count();
        missing < stripe.dispensable_children()
    }

    /// Has all leaves of a child sit out.
    fn sit(&self, child: &Node, until: Option<Instant>) {
        child.load.sit_out(until);
        // OpenZFS counts it among slow I/O too.
        child.stats().inspect(|stats| stats.count_slow());
        child.children.iter().for_each(|below| self.sit(self.node(*below), until));
    }

    /// The stripe and its child that a leaf is part of.
    fn stripe_of(&self, leaf: Guid) -> Option<(&Node, &Node)> {
        fn has(topology: &Topology, node: &Node, leaf: Guid) -> bool {
            node.guid == leaf || node.children.iter().any(|below| has(topology, topology.node(*below), leaf))
        }
        let is_stripe = |node: &&Node| matches!(node.kind, Kind::Raidz(_) | Kind::Draid(_));
        self.nodes.iter().filter(is_stripe).find_map(|stripe| {
            let children = stripe.children.iter().map(|child| self.node(*child));
            children.into_iter().find(|child| has(self, child, leaf)).map(|child| (stripe, child))
        })
    }

    /// Compares the answers of a stripe's children now and then, and has one that is far behind sit out.
    pub(super) fn compare_children(&self, stripe: &Node, size_bytes: u64, extent: Extent, context: ReadContext<'_>) {
        let Some(clock) = self.common.clock.as_ref().filter(|_| !self.common.sit_out.duration.is_zero()) else {
            return;
        };
        let now = clock.now();
        if !stripe.load.is_compared() || !stripe.load.take_comparison(now, self.common.sit_out.interval_ns) {
            return;
        }
        let children = || stripe.children.iter().map(|child| self.node(*child));
        let mut means: Vec<u64> =
            children().filter_map(|child| child.load.answer_ns(size_bytes)).map(|(mean, _)| mean).collect();
        if means.len() < CHILDREN_MIN {
            return;
        }
        means.sort_unstable();
        let fence = means[means.len() / 2].saturating_mul(self.common.sit_out.times);
        for child in children() {
            let is_behind = child.load.answer_ns(size_bytes).is_some_and(|(mean, _)| mean > fence);
            if self.sits_out(child, now) || child.load.compared(is_behind) < COMPARISONS {
                continue;
            }
            if self.can_stand_in(stripe, child, now) {
                self.sit(child, Some(now + self.common.sit_out.duration));
                self.report(child, extent, FaultKind::SatOut, context);
                debug_assert!(self.sits_out(child, now), "a child sits out by its leaves");
            }
        }
    }
}

impl VdevTree {
    /// Has a leaf of a raidz or draid sit out, until it is not to any more (`sit_out`).
    ///
    /// # Errors
    /// It is none, or parity is needed for others: then nothing has changed.
    pub fn set_sit_out(&self, leaf: Guid, is_out: bool) -> Result<(), SitOutError> {
        let topology = self.topology();
        let node = topology.lookup(leaf).filter(|node| matches!(node.kind, Kind::Leaf(_)));
        let node = node.ok_or(SitOutError::NotOfStripe)?;
        let (stripe, child) = topology.stripe_of(leaf).ok_or(SitOutError::NotOfStripe)?;
        if !is_out {
            node.load.sit_in();
            return Ok(());
        }
        // Without a clock nobody sits out.
        let Some(now) = self.common.clock.as_ref().map(cenote_taskq::Handle::now) else { return Ok(()) };
        if !topology.can_stand_in(stripe, child, now) {
            return Err(SitOutError::TooMany);
        }
        topology.sit(node, None);
        Ok(())
    }

    /// Whether slow children of a raidz or draid sit out by themselves (`autosit`).
    ///
    /// # Errors
    /// It is none.
    pub fn set_autosit(&self, stripe: Guid, is_on: bool) -> Result<(), SitOutError> {
        let topology = self.topology();
        let node = topology.lookup(stripe).filter(|node| matches!(node.kind, Kind::Raidz(_) | Kind::Draid(_)));
        node.ok_or(SitOutError::NoStripe)?.load.set_compared(is_on);
        Ok(())
    }

    /// Whether a leaf sits out.
    #[must_use]
    pub fn is_sitting_out(&self, leaf: Guid) -> bool {
        let topology = self.topology();
        let Some(now) = self.common.clock.as_ref().map(cenote_taskq::Handle::now) else { return false };
        topology.lookup(leaf).is_some_and(|node| matches!(node.kind, Kind::Leaf(_)) && topology.sits_out(node, now))
    }

    /// Sets all error counts to zero, and has all devices be read (`zpool clear`).
    pub fn clear_errors(&self) {
        for node in self.topology().nodes.iter() {
            node.errors.clear();
            node.load.sit_in();
            node.stats().into_iter().for_each(IoStats::clear_slow);
        }
        self.common.root.errors.clear();
    }
}
