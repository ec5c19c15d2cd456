//! The number of requests that a device has, and the admission of waiting requests.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use cenote_kstat::Histogram;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::aggregate::{Aggregate, Dequeued};
use super::limits::{CLASSES, Limits, PIECE_BYTES, QueueClass};
use super::order::{Chosen, Id, Order, Waiting};
use super::shared::SharedQueue;
use crate::iostat::SIZE_BUCKETS;

/// Reads from the shared queue that a solid-state child has at once: enough to keep all of it busy.
const SOLID_PULL: u32 = 32;
const SOLID_PULL_BYTES: u64 = 2 << 20;

/// How often requests of a class that went to the device alone, and such that others led, had a size.
pub(crate) type SizeCounts = [Vec<u64>; 2];

/// One leaf's queue. See the module's parent.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct LeafQueue {
    limits: Limits,
    /// Requests that the device has, by class.
    active: [AtomicU32; CLASSES],
    /// How many wait.
    waiting: AtomicU32,
    /// Bulk requests that were done since the device last had a request that is not bulk; of a solid-state device, one of a client.
    bulk_done: AtomicU32,
    /// When the last request came. The end of a request uses this time, since it has no clock.
    now_ns: AtomicU64,
    /// Where the latest request that the device was given ends, where that means something.
    head: AtomicU64,
    /// Bytes that it was given without a gap up to there.
    run_bytes: AtomicU64,
    /// Bytes of the requests that the device has.
    active_bytes: AtomicU64,
    /// For each class the sizes of requests to the device: of those that went alone, and of aggregates.
    sizes: [[Histogram<SIZE_BUCKETS>; 2]; CLASSES],
    order: Mutex<Order>,
    /// The queue that it has in common with other children of a mirror, and its place among them.
    shared: OnceLock<(Weak<SharedQueue>, usize)>,
}

impl LeafQueue {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            active: Default::default(),
            waiting: AtomicU32::new(0),
            bulk_done: AtomicU32::new(0),
            now_ns: AtomicU64::new(0),
            head: AtomicU64::new(0),
            run_bytes: AtomicU64::new(0),
            active_bytes: AtomicU64::new(0),
            sizes: Default::default(),
            order: Mutex::new(Order::default()),
            shared: OnceLock::new(),
        }
    }

    /// Requests that the device has.
    pub(crate) fn active(&self) -> u32 {
        self.active.iter().fold(0, |sum, active| sum.saturating_add(active.load(Ordering::SeqCst)))
    }

    /// For each class, the requests that wait and those that the device has.
    pub(crate) fn depths(&self) -> [(u32, u32); CLASSES] {
        let order = self.order.lock();
        QueueClass::ALL.map(|class| {
            let waiting = u32::try_from(order.len_of(class)).unwrap_or(u32::MAX);
            (waiting, self.active[class.index()].load(Ordering::SeqCst))
        })
    }

    /// For each class, how often its requests to the device had which size, by powers of two of bytes.
    pub(crate) fn sizes(&self) -> [SizeCounts; CLASSES] {
        QueueClass::ALL.map(|class| self.sizes[class.index()].each_ref().map(Histogram::buckets))
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::SeqCst)
    }

    /// How many of a class the device may have now: the first number before others get more than theirs, and never more than the second.
    fn bounds(&self, class: QueueClass) -> (u32, u32) {
        let limits = &self.limits;
        let (min, max) = (limits.min[class.index()], limits.max[class.index()]);
        if !class.is_bulk() {
            return (min, max);
        }
        let others = || QueueClass::ALL.into_iter().filter(|class| !class.is_bulk());
        let has_others = || others().any(|class| self.active[class.index()].load(Ordering::SeqCst) != 0);
        if limits.rotational {
            let is_quiet = !has_others() && self.bulk_done.load(Ordering::SeqCst) >= limits.bulk_delay;
            return (min, if is_quiet { max } else { min });
        }
        let bytes = self.active_bytes.load(Ordering::SeqCst);
        if self.has_clients() {
            let own_bytes = u64::from(self.active[class.index()].load(Ordering::SeqCst)) * PIECE_BYTES;
            let count = limits.beside_clients(bytes.saturating_sub(own_bytes));
            return (count, count);
        }
        if has_others() {
            return (min, min);
        }
        if bytes >= limits.bulk_bytes_max { (1, 1) } else { (min, max) }
    }

    /// How many of a class the device may have now.
    fn max(&self, class: QueueClass) -> u32 {
        self.bounds(class).1
    }

    /// Clients have requests there, or had some lately.
    fn has_clients(&self) -> bool {
        let mut clients = QueueClass::ALL.into_iter().filter(|class| class.is_clients());
        self.bulk_done.load(Ordering::SeqCst) < self.limits.bulk_delay
            || clients.any(|class| self.active[class.index()].load(Ordering::SeqCst) != 0)
    }

    /// Whether bulk, while it has this class's requests, makes room.
    const fn holds_bulk_up(&self, class: QueueClass) -> bool {
        if self.limits.rotational { !class.is_bulk() } else { class.is_clients() }
    }

    /// The bytes that a request of this class asks for at once: bulk goes to a solid-state device that clients use in small pieces, each with
    /// a turn of its own. `sector_bytes`: a power of two of which each piece is a multiple.
    pub(crate) fn piece_bytes(&self, class: QueueClass, sector_bytes: u64) -> u64 {
        let is_in_pieces = class.is_bulk() && !self.limits.rotational && self.has_clients();
        if is_in_pieces { PIECE_BYTES.max(sector_bytes) } else { u64::MAX }
    }

    /// The limits for what a request of this class leads.
    pub(super) fn limits_of(&self, class: QueueClass) -> Limits {
        self.limits.aggregating(self.piece_bytes(class, 1))
    }

    /// Counts a request as the device's if nobody waits and there is room.
    fn pass(&self, class: QueueClass) -> bool {
        if self.waiting() != 0 || self.active() >= self.limits.all_max {
            return false;
        }
        if self.holds_bulk_up(class) && self.bulk_done.load(Ordering::Relaxed) != 0 {
            self.bulk_done.store(0, Ordering::SeqCst);
        }
        let active = &self.active[class.index()];
        if active.fetch_add(1, Ordering::SeqCst) < self.max(class) {
            return true;
        }
        // A request that waits now may have been refused because of this count, so the caller looks for room on behalf of all.
        let counted = active.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(counted > 0, "what is not given to the device was counted before (invariant 2)");
        false
    }

    fn count_size(&self, class: QueueClass, range: &Range<u64>, is_aggregate: bool) {
        self.sizes[class.index()][usize::from(is_aggregate)].add(range.end - range.start);
    }

    /// Puts a request into the queue.
    pub(super) fn enter(self: &Arc<Self>, waiting: Waiting) -> Place<'_> {
        let (class, now_ns) = (waiting.class, waiting.arrived_ns);
        let id = {
            let mut order = self.order.lock();
            let id = order.push(waiting);
            self.count_waiting(&order);
            id
        };
        if self.holds_bulk_up(class) {
            self.bulk_done.store(0, Ordering::SeqCst);
        }
        self.now_ns.fetch_max(now_ns, Ordering::Relaxed);
        self.give_room();
        Place { queue: self, id }
    }

    fn count_waiting(&self, order: &Order) {
        self.waiting.store(u32::try_from(order.len()).unwrap_or(u32::MAX), Ordering::SeqCst);
    }

    /// Removes a request from the queue, if it still waits.
    pub(super) fn give_up(&self, id: Id) {
        let gone = {
            let mut order = self.order.lock();
            let gone = order.remove(id);
            self.count_waiting(&order);
            gone
        };
        // The request and its block are dropped outside the lock.
        drop(gone);
    }

    /// Makes reads that wait within a range as urgent as can be.
    pub(crate) fn hurry(self: &Arc<Self>, range: &Range<u64>) {
        if self.waiting() == 0 {
            return;
        }
        self.order.lock().hurry(range);
        self.give_room();
    }

    /// The next aggregate, if there is room for one. Its request is counted as the device's.
    fn next(&self) -> Option<Chosen> {
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let mut order = self.order.lock();
        if self.active() >= self.limits.all_max {
            return None;
        }
        let active = |class: QueueClass| self.active[class.index()].load(Ordering::SeqCst);
        let has_room = |class: QueueClass| active(class) < self.max(class);
        let onward = match self.may_go_on() {
            true => order.onward(self.head(), u32::MAX, &self.limits, has_room),
            false => None,
        };
        let chosen = match onward {
            Some(chosen) => chosen,
            None => {
                let mut waiting = QueueClass::ALL.into_iter().filter(|class| order.has(*class));
                let is_owed = |class: &QueueClass| active(*class) < self.bounds(*class).0;
                let class = waiting.clone().find(is_owed).or_else(|| waiting.find(|class| has_room(*class)))?;
                order.next(class, &self.limits_of(class), self.head(), now_ns)?
            }
        };
        self.count(chosen.class, &chosen.range);
        self.count_waiting(&order);
        Some(chosen)
    }

    /// Sends waiting requests to the device as long as there is room.
    pub(super) fn give_room(self: &Arc<Self>) {
        while self.waiting() != 0 {
            let Some(chosen) = self.next() else { break };
            self.start(chosen);
        }
        if let Some((shared, child)) = self.sharing() {
            shared.give_room(child);
        }
    }

    /// Wakes the requests that were chosen. They have been counted already.
    pub(super) fn start(self: &Arc<Self>, chosen: Chosen) {
        let Chosen { class, range, arrived_ns, first, others } = chosen;
        self.count_size(class, &range, !others.is_empty());
        let room = Room { queue: Arc::clone(self), class, size_bytes: range.end - range.start };
        let others = others.into_iter().map(|member| member.join(self)).collect();
        let aggregate = Aggregate::new(range, first.range, others, room, Some(arrived_ns));
        // One that is dropped unread leaves its room, which comes back to `give_room`: no deeper than there are such.
        let _ = first.sender.send(Dequeued::Lead(aggregate));
    }

    /// The shared queue of its mirror, and the leaf's index among the children.
    fn sharing(&self) -> Option<(Arc<SharedQueue>, usize)> {
        let (shared, child) = self.shared.get()?;
        Some((shared.upgrade()?, *child))
    }

    /// From now on reads may wait for this leaf and others together.
    pub(super) fn share(&self, shared: Weak<SharedQueue>, child: usize) {
        let is_first = self.shared.set((shared, child)).is_ok();
        assert!(is_first, "a leaf is the child of one mirror");
    }

    /// Whether it may take another read from the shared queue. A rotating device takes few at a time: a read that is bound to a child late
    /// is bound to the better child. A solid-state device takes enough to be busy.
    pub(super) fn has_shared_room(&self, class: QueueClass) -> bool {
        let active = self.active();
        let is_below =
            active < self.limits.all_max && self.active[class.index()].load(Ordering::SeqCst) < self.max(class);
        let bytes = self.active_bytes.load(Ordering::SeqCst);
        let is_idle_enough = if self.limits.rotational {
            active < self.limits.pull_active
        } else {
            active < SOLID_PULL && bytes < SOLID_PULL_BYTES
        };
        self.waiting() == 0 && is_below && is_idle_enough
    }

    /// Counts a request as the device's.
    pub(super) fn count(&self, class: QueueClass, range: &Range<u64>) {
        self.active[class.index()].fetch_add(1, Ordering::SeqCst);
        self.move_head(range);
    }

    /// Notes where the device's latest request is.
    fn move_head(&self, range: &Range<u64>) {
        let size_bytes = range.end - range.start;
        self.active_bytes.fetch_add(size_bytes, Ordering::SeqCst);
        if self.limits.rotational {
            let head = self.head.swap(range.end, Ordering::Relaxed);
            let goes_on = (head..=head.saturating_add(self.limits.read_gap_bytes)).contains(&range.start);
            let run = if goes_on { self.run_bytes.load(Ordering::Relaxed) } else { 0 };
            self.run_bytes.store(run.saturating_add(size_bytes), Ordering::Relaxed);
        }
    }

    /// Whether a read that continues the latest request goes before more urgent reads elsewhere: until the run has moved as many bytes as a
    /// seek costs.
    pub(super) fn may_go_on(&self) -> bool {
        self.limits.rotational && self.run_bytes.load(Ordering::Relaxed) < self.limits.run_bytes
    }

    /// Where its latest request ends.
    pub(super) fn head(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }

    pub(super) const fn limits(&self) -> &Limits {
        &self.limits
    }

    fn left(&self, class: QueueClass, size_bytes: u64) {
        let active_bytes = self.active_bytes.fetch_sub(size_bytes, Ordering::SeqCst);
        debug_assert!(active_bytes >= size_bytes, "the device had the bytes of what is done (invariant 2)");
        if class.is_bulk() {
            let done = self.bulk_done.load(Ordering::Relaxed);
            self.bulk_done.store(done.saturating_add(1), Ordering::SeqCst);
        }
        let active = self.active[class.index()].fetch_sub(1, Ordering::SeqCst);
        debug_assert!(active > 0, "the device had what is done (invariant 2)");
    }
}

/// A request's room at the device, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room<Q: Borrow<Arc<LeafQueue>>> {
    queue: Q,
    class: QueueClass,
    size_bytes: u64,
}

impl<Q: Borrow<Arc<LeafQueue>>> Room<Q> {
    /// Room without waiting, if there is some and the queue is empty.
    pub(crate) fn pass(queue: Q, class: QueueClass, range: &Range<u64>) -> Option<Self> {
        let leaf = queue.borrow();
        if !leaf.pass(class) {
            return None;
        }
        leaf.move_head(range);
        leaf.count_size(class, range, false);
        Some(Self { queue, class, size_bytes: range.end - range.start })
    }
}

impl Room<Arc<LeafQueue>> {
    pub(super) const fn class(&self) -> QueueClass {
        self.class
    }

    pub(super) const fn leaf(&self) -> &Arc<LeafQueue> {
        &self.queue
    }
}

impl<Q: Borrow<Arc<LeafQueue>>> Drop for Room<Q> {
    fn drop(&mut self) {
        let leaf = self.queue.borrow();
        leaf.left(self.class, self.size_bytes);
        leaf.give_room();
    }
}

/// A place in the queue; given up when dropped.
pub(super) struct Place<'a> {
    queue: &'a LeafQueue,
    id: Id,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.queue.give_up(self.id);
    }
}
