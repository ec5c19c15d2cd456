//! The requests that wait for one device, and the choice of the next one. It has no locks and no clock: the same calls give the same order.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::aggregate::{Kind, Member};
use super::limits::{CLASSES, Limits, QueueClass};

/// Requests chosen by offset before the next check for a request that has waited too long.
const BATCH: u32 = 16;
/// The most requests in one aggregate: handing the results out takes time too.
const TOGETHER_MAX: usize = 256;

/// A run of requests belongs to a child if the child's latest request ended at most so many bytes before the run.
const RUN_REACH_BYTES: u64 = 1 << 20;
/// No child takes less than this out of another one's run.
const PART_MIN_BYTES: u64 = 2 << 20;

/// One of the mirror's children that share a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharer<'a> {
    /// Its bit in [`Waiting::children`].
    pub(super) bit: u32,
    /// The offset at which its latest request ends.
    pub(super) head: u64,
    /// The same offset of each other child that is busy.
    pub(super) others: &'a [u64],
    /// The time for which a request may be passed over in favour of nearer ones.
    pub(super) fair_ns: u64,
}

/// Names a waiting request. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(u64);

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) class: QueueClass,
    pub(super) arrived_ns: u64,
    /// An aggregate with this request failed: it is sent alone.
    pub(super) alone: bool,
    /// In a shared queue, the children that may serve it: a bit for each.
    pub(super) children: u32,
    pub(super) member: Member,
}

/// The requests that are sent next: the first one leads.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) class: QueueClass,
    pub(super) range: Range<u64>,
    /// When the first one came.
    pub(super) arrived_ns: u64,
    pub(super) first: Member,
    /// The neighbours that are sent with it.
    pub(super) others: Vec<Member>,
}

/// See the module comment.
#[derive(Debug, Default)]
pub(super) struct Order {
    waiting: BTreeMap<Id, Waiting>,
    /// Reads and writes by place: neighbours, whatever their class.
    places: [BTreeSet<(u64, Id)>; 2],
    classes: [Class; CLASSES],
    next_id: u64,
    waiting_bytes: u64,
    batch_left: u32,
}

#[derive(Debug, Default)]
struct Class {
    by_place: BTreeSet<(u64, Id)>,
    by_arrival: BTreeSet<Id>,
}

impl Order {
    /// Adds a request at the end of its class.
    pub(super) fn push(&mut self, waiting: Waiting) -> Id {
        let id = Id(self.next_id);
        self.next_id += 1;
        debug_assert!(waiting.member.range.start <= waiting.member.range.end, "a request's range has its start first");
        self.waiting_bytes += waiting.member.range.end - waiting.member.range.start;
        let place = (waiting.member.range.start, id);
        self.places[waiting.member.kind as usize].insert(place);
        self.enter(waiting.class, place);
        let before = self.waiting.insert(id, waiting);
        debug_assert!(before.is_none(), "each request that waits has a number of its own (invariant 2)");
        id
    }

    fn enter(&mut self, class: QueueClass, place: (u64, Id)) {
        let class = &mut self.classes[class.index()];
        class.by_place.insert(place);
        class.by_arrival.insert(place.1);
    }

    fn leave(&mut self, class: QueueClass, place: (u64, Id)) {
        let class = &mut self.classes[class.index()];
        let (had_place, had_arrival) = (class.by_place.remove(&place), class.by_arrival.remove(&place.1));
        debug_assert!(had_place && had_arrival, "a request that waits is in its class (invariant 2)");
    }

    /// Removes a request, if it still waits.
    pub(super) fn remove(&mut self, id: Id) -> Option<Waiting> {
        let waiting = self.waiting.remove(&id)?;
        let size_bytes = waiting.member.range.end - waiting.member.range.start;
        debug_assert!(size_bytes <= self.waiting_bytes, "a request that waits is counted (invariant 2)");
        self.waiting_bytes -= size_bytes;
        debug_assert!(!self.waiting.is_empty() || self.waiting_bytes == 0, "where nothing waits no byte does");
        let place = (waiting.member.range.start, id);
        let had_place = self.places[waiting.member.kind as usize].remove(&place);
        debug_assert!(had_place, "a request that waits has its place (invariant 2)");
        self.leave(waiting.class, place);
        Some(waiting)
    }

    /// How many of a class wait.
    pub(super) fn len_of(&self, class: QueueClass) -> usize {
        self.classes[class.index()].by_arrival.len()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The mean size of those that wait.
    pub(super) fn mean_size_bytes(&self) -> u64 {
        self.waiting_bytes / (self.waiting.len() as u64).max(1)
    }

    /// Whether any of a class wait.
    pub(super) fn has(&self, class: QueueClass) -> bool {
        !self.classes[class.index()].by_arrival.is_empty()
    }

    /// Makes reads within a range as urgent as can be: someone has come to wait for them.
    pub(super) fn hurry(&mut self, range: &Range<u64>) {
        let places = self.places[Kind::Read as usize].range((range.start, Id(0))..(range.end, Id(0)));
        for place in places.copied().collect::<Vec<_>>() {
            let Some(waiting) = self.waiting.get_mut(&place.1) else { continue };
            let before = std::mem::replace(&mut waiting.class, QueueClass::SyncRead);
            self.leave(before, place);
            self.enter(QueueClass::SyncRead, place);
        }
    }

    /// Takes out the next of a class, with those that go along. `head`: where the device's latest request ends.
    pub(super) fn next(&mut self, class: QueueClass, limits: &Limits, head: u64, now_ns: u64) -> Option<Chosen> {
        let id = self.pick(class, limits, head, now_ns)?;
        self.take(id, u32::MAX, limits)
    }

    /// Takes a request out, with its neighbours that these children may have.
    fn take(&mut self, id: Id, children: u32, limits: &Limits) -> Option<Chosen> {
        let Waiting { class, alone, arrived_ns, member, .. } = self.remove(id)?;
        let (mut range, mut others) = (member.range.clone(), Vec::new());
        if !alone {
            self.gather((class, member.kind), children, limits, &mut range, &mut others);
        }
        let is_of_it = |other: &Member| {
            other.kind == member.kind && range.start <= other.range.start && other.range.end <= range.end
        };
        debug_assert!(others.iter().all(is_of_it), "an aggregate covers requests of one kind");
        debug_assert!(
            others.is_empty() || range.end - range.start <= limits.aggregation_bytes,
            "an aggregate is no larger than allowed"
        );
        let bytes = |member: &Member| member.range.end - member.range.start;
        debug_assert!(
            member.kind == Kind::Read
                || bytes(&member) + others.iter().map(bytes).sum::<u64>() == range.end - range.start,
            "writes are aggregated without gaps, and none over another"
        );
        Some(Chosen { class, range, arrived_ns, first: member, others })
    }

    /// As [`Self::next`] for a child that shares this queue. `None` if the other children should serve everything that waits.
    pub(super) fn next_of(
        &mut self,
        class: QueueClass,
        child: &Sharer<'_>,
        limits: &Limits,
        now_ns: u64,
    ) -> Option<Chosen> {
        let id = self.pick_of(class, child, limits, now_ns)?;
        self.take(id, child.bit, limits)
    }

    /// As [`Self::next`], but a read of any class that continues where the latest request ended.
    pub(super) fn onward(
        &mut self,
        head: u64,
        child: u32,
        limits: &Limits,
        has_room: impl Fn(QueueClass) -> bool,
    ) -> Option<Chosen> {
        let reach = head.saturating_add(limits.read_gap_bytes);
        let places = self.places[Kind::Read as usize].range((head, Id(0))..=(reach, Id(u64::MAX)));
        let mut ids = places.map(|place| place.1);
        let may = |waiting: &Waiting| waiting.children & child != 0 && has_room(waiting.class);
        let id = ids.find(|id| self.waiting.get(id).is_some_and(may))?;
        self.take(id, child, limits)
    }

    fn pick_of(&mut self, class: QueueClass, child: &Sharer<'_>, limits: &Limits, now_ns: u64) -> Option<Id> {
        let class = &self.classes[class.index()];
        let may = |id: &Id| self.waiting.get(id).filter(|waiting| waiting.children & child.bit != 0);
        let oldest = class.by_arrival.iter().find(|id| may(id).is_some()).copied()?;
        let is_expired = now_ns.saturating_sub(may(&oldest)?.arrived_ns) >= limits.expire_ns;
        if is_expired && self.batch_left == 0 {
            self.batch_left = BATCH;
            return Some(oldest);
        }
        self.batch_left = self.batch_left.saturating_sub(1);
        // Leave a run to the child that is reading it. If all requests are in such runs, take the second half of the longest one.
        let mut longest = 0..0;
        let mut run: Option<Range<u64>> = None;
        for &(start, id) in
            class.by_place.range((child.head, Id(0))..).chain(class.by_place.range(..(child.head, Id(0))))
        {
            let Some(waiting) = may(&id) else { continue };
            match &mut run {
                Some(run) if (run.start..=run.end.saturating_add(limits.read_gap_bytes)).contains(&start) => {
                    run.end = run.end.max(waiting.member.range.end);
                }
                _ => {
                    let is_anothers = child.others.iter().any(|head| (*head..=head + RUN_REACH_BYTES).contains(&start));
                    if !is_anothers {
                        let waited_ns = now_ns.saturating_sub(may(&oldest)?.arrived_ns);
                        return Some(if waited_ns > child.fair_ns {
                            oldest
                        } else {
                            self.nearer(class, child, start, id)
                        });
                    }
                    run = Some(waiting.member.range.clone());
                }
            }
            longest = run.clone().filter(|run| run.end - run.start > longest.end - longest.start).unwrap_or(longest);
        }
        if longest.end - longest.start >= 2 * PART_MIN_BYTES {
            let middle = longest.start.midpoint(longest.end);
            return class.by_place.range((middle, Id(0))..).map(|place| place.1).find(|id| may(id).is_some());
        }
        is_expired.then_some(oldest)
    }

    /// `id`, which begins at `start`, or the nearest one below the head if that is nearer and in nobody's run.
    /// A strictly ascending order would be fair, but slower. It is not needed here: another child can serve the request, and a request that
    /// has waited too long is chosen first.
    fn nearer(&self, class: &Class, child: &Sharer<'_>, start: u64, id: Id) -> Id {
        let below = class.by_place.range(..(child.head, Id(0))).next_back();
        let Some(&(place, other)) = below else { return id };
        let is_near = start < child.head || child.head - place < start - child.head;
        let is_free = self.waiting.get(&other).is_some_and(|waiting| waiting.children & child.bit != 0)
            && !child.others.iter().any(|head| (*head..=head + RUN_REACH_BYTES).contains(&place));
        if is_near && is_free { other } else { id }
    }

    fn pick(&mut self, class: QueueClass, limits: &Limits, head: u64, now_ns: u64) -> Option<Id> {
        let class = &self.classes[class.index()];
        let oldest = *class.by_arrival.first()?;
        if !limits.rotational {
            return Some(oldest);
        }
        let arrived = self.waiting.get(&oldest)?.arrived_ns;
        if self.batch_left == 0 && now_ns.saturating_sub(arrived) >= limits.expire_ns {
            self.batch_left = BATCH;
            return Some(oldest);
        }
        self.batch_left = self.batch_left.saturating_sub(1);
        let onward = class.by_place.range((head, Id(0))..).next();
        onward.or_else(|| class.by_place.first()).map(|place| place.1)
    }

    /// Takes out those next to `range`, which is of a request of this class and kind, and widens it.
    fn gather(
        &mut self,
        (class, kind): (QueueClass, Kind),
        child: u32,
        limits: &Limits,
        range: &mut Range<u64>,
        others: &mut Vec<Member>,
    ) {
        let gap = if kind == Kind::Read { limits.read_gap_bytes } else { 0 };
        // Upwards: what begins where the range ends, or a little later. Reads may overlap; writes that do are left alone.
        while others.len() < TOGETHER_MAX {
            let reach = range.end.saturating_add(gap);
            let from = if kind == Kind::Read { range.start } else { range.end };
            let Some(&(_, id)) = self.places[kind as usize].range((from, Id(0))..=(reach, Id(u64::MAX))).next() else {
                break;
            };
            let Some(end) = self.fits(id, (class, child), range, limits).map(|fit| fit.end) else { break };
            let Some(waiting) = self.remove(id) else { break };
            range.end = end;
            others.push(waiting.member);
        }
        // Downwards: what ends where it begins, or a little before.
        while others.len() < TOGETHER_MAX {
            let Some(&(_, id)) = self.places[kind as usize].range(..(range.start, Id(0))).next_back() else { break };
            let Some(fit) = self.fits(id, (class, child), range, limits) else { break };
            let Some(below) = self.waiting.get(&id).map(|waiting| waiting.member.range.end) else { break };
            let is_next =
                if kind == Kind::Read { below.saturating_add(gap) >= range.start } else { below == range.start };
            if !is_next {
                break;
            }
            let Some(waiting) = self.remove(id) else { break };
            *range = fit;
            others.push(waiting.member);
        }
        debug_assert!(others.len() <= TOGETHER_MAX, "an aggregate has so many requests at most");
    }

    /// The range widened by a waiting request, if that is allowed. On a device without a head nobody waits longer for the sake of bulk.
    fn fits(
        &self,
        id: Id,
        (class, child): (QueueClass, u32),
        range: &Range<u64>,
        limits: &Limits,
    ) -> Option<Range<u64>> {
        let waiting = self.waiting.get(&id)?;
        if !limits.rotational && waiting.class.is_bulk() && !class.is_bulk() {
            return None;
        }
        let wide = waiting.member.range.start.min(range.start)..waiting.member.range.end.max(range.end);
        (!waiting.alone && waiting.children & child != 0 && wide.end - wide.start <= limits.aggregation_bytes)
            .then_some(wide)
    }
}
