//! Devices that hang, of a pool that is in use.
//!
//! # Theory
//!
//! **Need.** A txg waits for its slowest device. One that never answers holds up the pool for good, also where other devices have
//! the same data. It must be left out, and what it may still do must harm nothing.
//!
//! **In memory.** Each leaf's disk has a [`Watch`], which knows what was asked and not answered, and tells when something is out
//! for `zfs_deadman_ziotime_ms`. Reads, writes, flushes, labels and uberblocks all go through it.
//!
//! **Life of a hang.**
//! 1. The pool can do without the device: the leaf is *given up*. It counts as faulted, its pending I/O fails, and nothing more is sent to
//!    it. So its writes are missed and its dirty time log has the txgs, as with a device that refuses; a flush that it was not asked for
//!    counts as failed, since it may have lost what it took in this txg.
//! 2. The pool cannot, and what is late is a write or a flush: the pool is suspended, with a reason that says so. Pending I/O keeps
//!    waiting, since the answer may come: a write that failed now would be issued again, while the first one may still land.
//!    When the last late answer is there the pool goes on by itself, as by [`VdevTree::resume`], which is refused until then.
//! 3. The pool cannot, and what is late is a read: the read fails by its own limit of time ([`super::leaf`]), and the
//!    pool goes on. A read that comes late harms nothing.
//!
//! **Invariants.**
//! 1. A leaf that was given up is asked nothing until it has answered everything and is taken back, or the pool is opened anew: a late write
//!    lands on nothing newer than itself. Data that it has missed is read from other leaves until a resilver has written it.
//! 2. *Without the device* the outage of its top-level vdev has to be empty ([`VdevTree::outage`]): what another leaf has
//!    missed may be on the device that hangs alone.
//! 3. Nothing that was written in memory is lost by a hang: it is on enough devices, or it is kept and the pool waits.
//!
//! **Crash.** As ever: the last synced txg. A pool can be closed before a device has answered: the request that is late keeps the
//! device open, and with it the lock that keeps other writers out, until the answer or the end of the process.
//!
//! **Rejected.** *Sending the request again* (what `zfs_deadman_failmode=continue` stands for): the first one may land after the
//! second, and after what came later. So it is the same as `wait` here. *Opening the device a second time while an answer is missing*: the same
//! again. *Taking the leaf back by itself once it has answered*: a device that hung for a minute is left to a person (`online`, `clear`), as one
//! that was faulted for its errors; the resilver that follows writes what it lacks.
//!
//! **Left open.** Devices that hang together are judged one by one, so a mirror that could have waited for both goes on with one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_taskq::Class;

use super::hangs::Hang;
use super::node::{Kind, Leaf, LeafState, Node};
use super::suspend::Suspension;
use super::{Topology, VdevTree};
use crate::tunables::{HangMode, Tunables};
use crate::watch::{self, Said, Watch};

/// The interval at which a pool that could not go on by itself tries again, while another task is resuming it.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The policy for devices that hang.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadman {
    after: Duration,
    is_enabled: bool,
    is_fatal: bool,
}

impl Deadman {
    pub(super) fn new(tunables: &Tunables) -> Self {
        Self {
            after: Duration::from_millis(tunables.zfs_deadman_ziotime_ms),
            is_enabled: tunables.zfs_deadman_enabled,
            is_fatal: tunables.zfs_deadman_failmode == HangMode::Panic,
        }
    }
}

/// How a leaf hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangStatus {
    /// For how long it has not answered; none if it has by now.
    pub silent: Option<Duration>,
    /// It was given up: it is not used until it has answered, and a person says so or the pool is opened anew.
    pub is_given_up: bool,
}

impl VdevTree {
    /// Notices from now on which devices hang. Called again it sees to those that are new.
    pub(super) fn watch_devices(self: &Arc<Self>) {
        let Some(clock) = self.common.clock.as_ref().filter(|_| self.common.deadman.is_enabled) else { return };
        for node in self.topology().nodes.iter() {
            let Kind::Leaf(leaf) = &node.kind else { continue };
            let Some(disk) = leaf.disk.as_ref().filter(|disk| disk.watched().is_none()) else { continue };
            let (tree, guid) = (Arc::downgrade(self), node.guid);
            let told = move |said| {
                if let Some(tree) = tree.upgrade() {
                    tree.heard(guid, said);
                }
            };
            disk.watch(Watch::new(clock.clone(), self.common.deadman.after, Box::new(told)));
        }
    }

    fn heard(self: &Arc<Self>, leaf: Guid, said: Said) {
        let Some(suspension) = self.suspension() else { return };
        match said {
            Said::Hangs(kind) => self.topology().hangs(leaf, kind, suspension),
            Said::Quiet => suspension.look_again(),
            Said::Answers => {
                suspension.look_again();
                if suspension.is_for_hang()
                    && let Some(clock) = &self.common.clock
                {
                    let tree = Arc::clone(self);
                    clock.detach(Class::Sync, async move { tree.go_on().await });
                }
            }
        }
    }

    /// Has a pool go on that was suspended because a device hung, which has answered.
    async fn go_on(&self) {
        let (Some(suspension), Some(clock)) = (self.suspension(), &self.common.clock) else { return };
        while suspension.is_for_hang() && !suspension.is_abandoned() && self.topology().held_up().is_none() {
            if self.resume().await.is_ok() {
                return;
            }
            clock.sleep(RETRY_INTERVAL).await;
        }
    }
}

impl Topology {
    /// A leaf's device hangs. A device that is no longer in the pool is ignored.
    fn hangs(&self, leaf: Guid, kind: watch::Kind, suspension: &Suspension) {
        let Some(node) = self.lookup(leaf) else { return };
        let Kind::Leaf(leaf) = &node.kind else { return };
        let Some(watch) = leaf.watch() else { return };
        let silent_s = watch.silence().unwrap_or(self.common.deadman.after).as_secs();
        let hangs = format!("{} hangs: it has not answered for {silent_s} s", node.path);
        let then = if self.can_do_without(node, suspension) {
            leaf.set_state(LeafState::Faulted);
            watch.give_up();
            assert!(watch.is_given_up(), "a leaf that was given up is asked nothing more (invariant 1)");
            "the pool goes on without it until it has answered and is cleared"
        } else if kind == watch::Kind::Change {
            suspension.suspend_for_hang(hangs.clone());
            "the pool waits for it"
        } else {
            "what was read is asked elsewhere, or fails"
        };
        let is_fatal = self.common.deadman.is_fatal;
        suspension.hangs.push(Hang { message: format!("{hangs}; {then}"), is_fatal });
    }

    /// Whether everything that was written is still there, and can be written on, without this leaf.
    fn can_do_without(&self, node: &Node, suspension: &Suspension) -> bool {
        let Some(top) = self.tops.get(node.top.0 as usize) else { return false };
        let mut lost = suspension.behind();
        lost.insert(node.guid);
        debug_assert_eq!(
            self.lookup(node.guid).map(|found| found.top),
            Some(node.top),
            "a leaf that hangs is this pool's"
        );
        self.takes(self.node(top.node), &lost) && self.outage(node.top, &BTreeSet::from([node.guid])).is_empty()
    }

    /// A device that hangs and is waited for, if there is one: why nothing can go on.
    pub(super) fn held_up(&self) -> Option<String> {
        self.nodes.iter().find_map(|node| {
            let Kind::Leaf(leaf) = &node.kind else { return None };
            let watch = leaf.watch().filter(|watch| watch.holds_up())?;
            let silent_s = watch.silence().unwrap_or(self.common.deadman.after).as_secs();
            Some(format!("{} hangs: it has not answered for {silent_s} s", node.path))
        })
    }

    /// Whether devices have answered every write and flush that they were asked.
    pub(super) fn is_quiet(&self) -> bool {
        self.leaves().all(|leaf| leaf.watch().is_none_or(|watch| watch.is_quiet()))
    }

    fn leaves(&self) -> impl Iterator<Item = &Leaf> {
        self.nodes.iter().filter_map(|node| match &node.kind {
            Kind::Leaf(leaf) => Some(&**leaf),
            _ => None,
        })
    }
}

impl Leaf {
    /// The watch on the device's unanswered requests, if it has one.
    pub(super) fn watch(&self) -> Option<&Arc<Watch>> {
        self.disk.as_ref()?.watched()
    }

    /// Whether and how it hangs.
    pub(super) fn hang_status(&self) -> Option<HangStatus> {
        let watch = self.watch()?;
        let status = HangStatus { silent: watch.silence(), is_given_up: watch.is_given_up() };
        (status.silent.is_some() || status.is_given_up).then_some(status)
    }
}
