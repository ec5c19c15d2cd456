//! Reading where every child has everything: mirror, replacing, spare.
//!
//! One child is read, chosen by a policy ([`crate::mirror`]). Independent of the policy, children that are readable and have not missed
//! the block's txg come first, then those that have missed it (DTL): if their bytes verify, they are not stale after all. A child that
//! fails or answers wrongly is reported, and the next is asked.
//!
//! ```text
//!   sent ----- late ----------- rerouted ---------- dead
//!    |          |                 |                   |
//!   one child   a second as well, reported; another   failed: the next resort
//!               if it is earned   as well, earned
//!                                 or not
//! ```
//!
//! The first good answer wins. A read that lost, or whose reader has gone, continues as a task of its own ([`super::detached`]). A child
//! that has not answered at all for `zfs_vdev_mirror_reroute_ms` is reported, even if a second read succeeded.
//!
//! The last child that could be asked is waited for until the read is dead; not so long where the block has another copy on
//! another vdev and the context says so.

use std::pin::{Pin, pin};
use std::time::Duration;

use cenote_taskq::buf::Buf;
use cenote_taskq::{Either, Handle, race};

use super::leaf::{Patience, Waited, outcome, poll_once};
use super::node::{Kind, Node, NodeIndex};
use super::{Check, Depth, Extent, Faults, ReadContext, Topology};
use crate::fault::{Fault, FaultKind, IoCause};
use crate::layout::MAX_CHILDREN;
use crate::mirror::{Ask, Candidate, Candidates, Load};
use crate::queue::{Dequeued, SharedQueue};

/// A set of children, without allocation.
#[derive(Clone, Copy, Default)]
pub(super) struct ChildSet([u64; MAX_CHILDREN.div_ceil(64)]);

impl ChildSet {
    pub(super) fn insert(&mut self, child: usize) {
        debug_assert!(child < MAX_CHILDREN, "a vdev has so many children at most");
        self.0[child / 64] |= 1 << (child % 64);
    }

    pub(super) const fn contains(&self, child: usize) -> bool {
        self.0[child / 64] & (1 << (child % 64)) != 0
    }
}

/// A mirror's read: what it wants, and what was tried.
struct Quest<'a> {
    node: &'a Node,
    extent: Extent,
    check: Option<Check<'a>>,
    context: ReadContext<'a>,
    depth: Depth,
    tried: ChildSet,
    faults: Faults,
}

type Answer = Result<Buf, Faults>;

impl Topology {
    /// Reads from any child whose bytes pass the check.
    pub(super) async fn read_mirror<'a>(
        &'a self,
        node: &'a Node,
        extent: Extent,
        check: Option<Check<'a>>,
        context: ReadContext<'a>,
        depth: Depth,
    ) -> Answer {
        let (tried, faults) = (ChildSet::default(), Faults::default());
        let mut quest = Quest { node, extent, check, context, depth, tried, faults };
        loop {
            let Some((mut child, stale)) = self.choose_child(&mut quest) else { return Err(quest.faults) };
            let turn = match &node.shared {
                Some(shared) if !stale => self.turn_at_any(shared, &quest, child).await,
                _ => None,
            };
            if let (Some(shared), Some(turn)) = (&node.shared, &turn) {
                child = shared.child_of(turn.leaf()).unwrap_or(child);
            }
            let chosen = self.node(node.children[child]);
            debug_assert!(!quest.tried.contains(child), "a child is asked once for a block");
            quest.tried.insert(child);
            let first = pin!(self.read_child(chosen, extent, check, context, stale, depth, turn));
            let read = match &self.common.clock {
                Some(clock) => self.read_hedged(clock, &mut quest, chosen, first).await,
                None => first.await,
            };
            match read {
                Ok(buf) => return Ok(buf),
                Err(more) => quest.faults.extend(more),
            }
        }
    }

    /// Waits until one of the children that could serve the read takes it. `preferred`: which would be best now. `None` where there
    /// is only that one, or none took it until it is dead: then the preferred one is to be asked.
    async fn turn_at_any(&self, shared: &SharedQueue, quest: &Quest<'_>, preferred: usize) -> Option<Dequeued> {
        let mut children = 0_u32;
        for candidate in self.candidates(quest).iter().filter(|child| child.position < SharedQueue::CHILDREN_MAX) {
            children |= 1 << candidate.position;
        }
        if children.count_ones() < 2 {
            return None;
        }
        let ask = self.ask(quest.extent);
        let mut turn = pin!(shared.turn(quest.context.class, &ask, children, preferred));
        let Some(clock) = &self.common.clock else { return Some(turn.await) };
        if let Some(turn) = poll_once(turn.as_mut()).await {
            return Some(turn);
        }
        let dead = clock.now() + self.patience(Patience::Long, quest.context);
        while clock.now() < dead {
            if let Either::Left(turn) = race(turn.as_mut(), clock.sleep(self.common.reroute_after)).await {
                return Some(turn);
            }
            // The child that would have served it may hang.
            shared.look_again(clock.now());
        }
        None
    }

    /// Waits for the first child's answer, and asks a second one when that is late.
    async fn read_hedged<'a>(
        &'a self,
        clock: &'a Handle,
        quest: &mut Quest<'a>,
        chosen: &'a Node,
        mut first: Pin<&mut (impl Future<Output = Answer> + Send)>,
    ) -> Answer {
        // A read that completes at once needs no timer.
        match poll_once(first.as_mut()).await {
            Some(answer) => answer,
            // Boxed, as all that a read needs only when it waits.
            None => Box::pin(self.wait_hedged(clock, quest, chosen, first)).await,
        }
    }

    async fn wait_hedged<'a>(
        &'a self,
        clock: &'a Handle,
        quest: &mut Quest<'a>,
        chosen: &'a Node,
        mut first: Pin<&mut (impl Future<Output = Answer> + Send)>,
    ) -> Answer {
        let began = clock.now();
        let ask = Ask { address_bytes: quest.extent.address, size_bytes: quest.extent.len, now: began };
        let (patience, dead) = (self.patience(Patience::Long, quest.context), began + self.common.deadman_after);
        let last = began + patience;
        let reroute = (began + self.common.reroute_after).min(last);
        let mut second = None;
        let late_ns = {
            let others = self.candidates(quest);
            if others.is_empty() { None } else { self.common.policy.second_after_ns(&ask, &chosen.load, &others) }
        };
        chosen.load.earn(self.common.hedge_percent);
        if let Some(late_ns) = late_ns {
            let late = (began + Duration::from_nanos(late_ns)).min(reroute);
            match race(first.as_mut(), clock.sleep_until(late)).await {
                Either::Left(answer) => return answer,
                Either::Right(()) => second = self.other_child(quest, Some(&chosen.load)),
            }
            if chosen.load.take_hang(clock.now(), self.common.reroute_after) {
                self.report(chosen, quest.extent, FaultKind::Overdue, quest.context);
            }
        }
        if second.is_none() {
            let has_others = !self.candidates(quest).is_empty();
            let until = if has_others { reroute } else { last };
            match race(first.as_mut(), clock.sleep_until(until)).await {
                Either::Left(answer) => return answer,
                Either::Right(()) if !has_others => return Err(self.late(chosen, quest, true).into()),
                Either::Right(()) => {
                    self.late(chosen, quest, false);
                    second = self.other_child(quest, None);
                }
            }
        }
        // If the other children were taken away meanwhile, wait for this one until the deadman time.
        let Some(other) = second else { return self.within(clock, last, chosen, quest, first).await };
        // Rare from here on: on the heap, so that the usual read's future stays small.
        let second = self.read_child(other, quest.extent, quest.check, quest.context, false, quest.depth, None);
        let mut second = Box::pin(second);
        let is_last = self.candidates(quest).is_empty();
        // The second child has some time of its own, within the read's deadman time.
        let limit = (clock.now() + if is_last { patience } else { self.common.reroute_after }).min(dead);
        match race(race(first.as_mut(), second.as_mut()), clock.sleep_until(limit)).await {
            Either::Left(Either::Left(Ok(buf)) | Either::Right(Ok(buf))) => Ok(buf),
            Either::Left(Either::Left(Err(faults))) => {
                quest.faults.extend(faults);
                self.within(clock, limit, other, quest, second.as_mut()).await
            }
            Either::Left(Either::Right(Err(faults))) => {
                quest.faults.extend(faults);
                self.within(clock, limit, chosen, quest, first).await
            }
            Either::Right(()) => {
                let overdue = self.late(chosen, quest, is_last);
                quest.faults.add(overdue);
                Err(self.late(other, quest, is_last).into())
            }
        }
    }

    /// Waits for one answer until a moment.
    async fn within(
        &self,
        clock: &Handle,
        limit: cenote_taskq::Instant,
        child: &Node,
        quest: &Quest<'_>,
        read: Pin<&mut (impl Future<Output = Answer> + Send)>,
    ) -> Answer {
        match race(read, clock.sleep_until(limit)).await {
            Either::Left(answer) => answer,
            Either::Right(()) => Err(self.late(child, quest, true).into()),
        }
    }

    /// Reports a child that was given up on; as one that has failed, if it was the last resort of the whole block.
    fn late(&self, child: &Node, quest: &Quest<'_>, is_last: bool) -> Fault {
        let cause = IoCause { kind: std::io::ErrorKind::TimedOut, errno: None };
        let kind = if is_last && !quest.context.elsewhere { FaultKind::Read(cause) } else { FaultKind::Overdue };
        self.report(child, quest.extent, kind, quest.context)
    }

    /// Reads one child of any kind, and keeps its statistics. `turn`: its turn at the child, if it has waited for it.
    #[allow(clippy::too_many_arguments, reason = "what a read is, and where")]
    async fn read_child<'a>(
        &'a self,
        child: &'a Node,
        extent: Extent,
        check: Option<Check<'a>>,
        context: ReadContext<'a>,
        stale: bool,
        depth: Depth,
        turn: Option<Dequeued>,
    ) -> Answer {
        match &child.kind {
            Kind::Leaf(leaf) => {
                let waited = Waited { turn, given_ns: None };
                self.read_counted_leaf(child, leaf, extent, check, context, stale, waited).await
            }
            _ => {
                let mut flight = child.load.send(&self.ask(extent));
                flight.passed_on();
                let read = self.read_nested(child, extent, check, context, depth).await;
                flight.answered(outcome(&read, context), self.common.clock.as_ref());
                read
            }
        }
    }

    /// A read as policies see it.
    pub(super) fn ask(&self, extent: Extent) -> Ask {
        let now = self.common.clock.as_ref().map_or_else(Default::default, Handle::now);
        Ask { address_bytes: extent.address, size_bytes: extent.len, now }
    }

    /// The children that can be read, have not missed the block, and were not tried.
    fn candidates<'a>(&'a self, quest: &Quest<'a>) -> Candidates<'a> {
        let mut candidates = Candidates::new(quest.node.is_replacing);
        for (position, child) in quest.node.children.iter().enumerate() {
            let child = self.node(*child);
            let is_candidate = !quest.tried.contains(position)
                && self.is_readable(child, quest.extent.address, quest.depth)
                && !self.has_missed(child, quest.extent.address, quest.context.birth, quest.depth);
            if is_candidate && !candidates.push(Candidate { position, load: &child.load }) {
                break;
            }
        }
        candidates
    }

    /// Another child to ask as well, if there is one and the hedging budget allows it. `payer`: the late child, whose budget pays; `None`
    /// where the read is free.
    fn other_child<'a>(&'a self, quest: &mut Quest<'a>, payer: Option<&Load>) -> Option<&'a Node> {
        let candidates = self.candidates(quest);
        if candidates.is_empty() {
            return None;
        }
        let index = self.common.policy.choose(&self.ask(quest.extent), &candidates);
        debug_assert!(index < candidates.len(), "a policy only chooses among candidates");
        let chosen = candidates.at(index)?;
        if payer.is_some_and(|payer| !payer.pay() && !chosen.load.pay()) {
            return None;
        }
        quest.tried.insert(chosen.position);
        Some(self.node(quest.node.children[chosen.position]))
    }

    /// The next child to ask, and whether it is stale. Children that cannot be asked are marked as tried.
    fn choose_child(&self, quest: &mut Quest<'_>) -> Option<(usize, bool)> {
        let candidates = self.candidates(quest);
        if !candidates.is_empty() {
            let index = self.common.policy.choose(&self.ask(quest.extent), &candidates);
            debug_assert!(index < candidates.len(), "a policy only chooses among candidates");
            let chosen = candidates.at(index).or_else(|| candidates.at(0))?;
            return Some((chosen.position, false));
        }
        // The remaining children are stale or cannot be read at all.
        let is_left = |(position, _): &(usize, &NodeIndex)| !quest.tried.contains(*position);
        for (position, child) in quest.node.children.iter().enumerate().filter(is_left) {
            let child = self.node(*child);
            if self.is_readable(child, quest.extent.address, quest.depth) {
                return Some((position, true));
            }
            quest.faults.add(self.fault(child, quest.extent, FaultKind::Unavailable));
        }
        None
    }
}
