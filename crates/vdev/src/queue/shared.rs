//! Reads that any of several children could serve, waiting for all of them together.
//!
//! A read that is bound to a child when it comes may be bound badly: by the time of its turn another child is idle, or its head
//! is nearer, or the chosen one has stopped answering. So under policy `adaptive` reads of a mirror whose children are leaves
//! wait here, bound to none, and each child that has room takes what is best for it:
//!
//! 1. what goes on where its latest request ended; a run of neighbours is served by one child, as on a disk of its own;
//! 2. else the next one upwards that is not in another child's run, or the one below if that is nearer;
//! 3. else half of the longest run that another child is in;
//! 4. and before all that, once in a batch, the request that has waited too long.
//!
//! A child takes no read that the other children would finish sooner: with `W` waiting, and service times `s` by what each
//! child's answers took lately, child `c` takes one if `s(c) <= W / sum of 1 / s(others) + least s(others)`.
//!
//! A device with a head is given few at once (`zfs_vdev_mirror_pull_active`).

use std::ops::Range;
use std::sync::Arc;

use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use cenote_taskq::{Instant, oneshot};

use super::aggregate::{Aggregate, Dequeued, Kind, Member};
use super::limits::QueueClass;
use super::order::{Chosen, Id, Order, Sharer, Waiting};
use super::room::{LeafQueue, Room};
use crate::mirror::{Ask, Load};

/// A child that has been silent for this long, and for some answers' time besides, may hang: nothing is expected of it.
const SILENT_NS: u64 = 200_000_000;

/// One child.
#[derive(Debug)]
struct MirrorChild {
    /// Its place among the mirror's children.
    position: usize,
    queue: Arc<LeafQueue>,
    load: Arc<Load>,
}

/// See the module comment.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    mirror_children: Vec<MirrorChild>,
    waiting: AtomicU32,
    now_ns: AtomicU64,
    order: Mutex<Order>,
}

impl SharedQueue {
    /// The most children of a shared queue: each has a bit in a word.
    pub(crate) const CHILDREN_MAX: usize = u32::BITS as usize;

    /// Of children of a mirror, each with its place among all of them, below [`Self::CHILDREN_MAX`].
    pub(crate) fn new(children: impl IntoIterator<Item = (usize, Arc<LeafQueue>, Arc<Load>)>) -> Arc<Self> {
        let mirror_child = |(position, queue, load)| MirrorChild { position, queue, load };
        let mirror_children: Vec<MirrorChild> = children.into_iter().map(mirror_child).collect();
        let is_bit = |mirror_child: &MirrorChild| mirror_child.position < Self::CHILDREN_MAX;
        assert!(mirror_children.iter().all(is_bit), "each child that shares a queue has a bit of a word");
        assert!(mirror_children.is_sorted_by(|one, next| one.position < next.position), "a child shares a queue once");
        let shared = Arc::new(Self {
            mirror_children,
            waiting: AtomicU32::new(0),
            now_ns: AtomicU64::new(0),
            order: Mutex::new(Order::default()),
        });
        for (index, mirror_child) in shared.mirror_children.iter().enumerate() {
            mirror_child.queue.share(Arc::downgrade(&shared), index);
        }
        shared
    }

    /// Whether it is one of just these children.
    pub(crate) fn has_children(&self, children: &[(usize, Arc<LeafQueue>, Arc<Load>)]) -> bool {
        let is_same = |(mirror_child, (position, queue, _)): (&MirrorChild, &(usize, Arc<LeafQueue>, Arc<Load>))| {
            mirror_child.position == *position && Arc::ptr_eq(&mirror_child.queue, queue)
        };
        self.mirror_children.len() == children.len() && self.mirror_children.iter().zip(children).all(is_same)
    }

    fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Which child a leaf is.
    pub(crate) fn child_of(&self, leaf: &Arc<LeafQueue>) -> Option<usize> {
        self.mirror_children
            .iter()
            .find(|mirror_child| Arc::ptr_eq(&mirror_child.queue, leaf))
            .map(|mirror_child| mirror_child.position)
    }

    /// Waits for a read's turn at any of `children` (a bit for each place). `preferred`: the place of the child that serves it if that
    /// child has room now.
    ///
    /// Cancel safe: dropped, it does not wait any more.
    pub(crate) async fn turn(&self, class: QueueClass, ask: &Ask, children: u32, preferred: usize) -> Dequeued {
        let preferred =
            self.mirror_children.iter().position(|mirror_child| mirror_child.position == preferred).unwrap_or(0);
        let range = ask.address_bytes..ask.address_bytes.saturating_add(ask.size_bytes);
        let is_able = |mirror_child: &&MirrorChild| {
            children & (1 << mirror_child.position) != 0 && mirror_child.queue.has_shared_room(class)
        };
        if self.waiting() == 0
            && let Some(mirror_child) = self.mirror_children.get(preferred).filter(is_able)
            && let Some(room) = Room::pass(Arc::clone(&mirror_child.queue), class, &range)
        {
            return Dequeued::Lead(Aggregate::new(range.clone(), range, Vec::new(), room, None));
        }
        let now_ns = ask.now.as_ns();
        loop {
            let (sender, receiver) = oneshot::channel();
            let member = Member { kind: Kind::Read, range: range.clone(), block: None, sender };
            let id = {
                let mut order = self.order.lock();
                let id = order.push(Waiting { class, arrived_ns: now_ns, alone: false, children, member });
                self.count_waiting(&order);
                id
            };
            let _place = Place { shared: self, id };
            self.now_ns.fetch_max(now_ns, Ordering::Relaxed);
            self.give_room(preferred);
            (0..self.mirror_children.len()).filter(|child| *child != preferred).for_each(|child| self.give_room(child));
            if let Ok(turn) = receiver.await {
                return turn;
            }
        }
    }

    /// Has every child look for requests again: by now other children may have stopped answering.
    pub(crate) fn look_again(&self, now: Instant) {
        self.now_ns.fetch_max(now.as_ns(), Ordering::Relaxed);
        (0..self.mirror_children.len()).for_each(|index| self.give_room(index));
    }

    fn count_waiting(&self, order: &Order) {
        self.waiting.store(u32::try_from(order.len()).unwrap_or(u32::MAX), Ordering::SeqCst);
    }

    /// Sends waiting reads to a child as long as it has room and is the best one for them.
    pub(super) fn give_room(&self, index: usize) {
        let Some(mirror_child) = self.mirror_children.get(index) else { return };
        while self.waiting() != 0 {
            let Some(chosen) = self.next(index, mirror_child) else { return };
            mirror_child.queue.start(chosen);
        }
    }

    fn next(&self, index: usize, mirror_child: &MirrorChild) -> Option<Chosen> {
        let mut order = self.order.lock();
        let class = QueueClass::ALL
            .into_iter()
            .find(|class| order.has(*class) && mirror_child.queue.has_shared_room(*class))?;
        let mut heads = [0; u32::BITS as usize];
        let mut count = 0;
        for (other, mirror_child) in self.mirror_children.iter().enumerate() {
            if other != index && mirror_child.queue.active() != 0 && count < heads.len() {
                heads[count] = mirror_child.queue.head();
                count += 1;
            }
        }
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let size_bytes = order.mean_size_bytes();
        // The time that this child alone would need for all waiting reads.
        let fair_ns = (order.len() as u64 + 1).saturating_mul(mirror_child.load.service_ns(size_bytes));
        let sharer = Sharer {
            bit: 1 << mirror_child.position,
            head: mirror_child.queue.head(),
            others: &heads[..count],
            fair_ns,
        };
        if !self.is_worth_it(index, order.len() as u64, size_bytes, Instant::from_ns(now_ns)) {
            return None;
        }
        let onward = if mirror_child.queue.may_go_on() {
            let has_room = |class| mirror_child.queue.has_shared_room(class);
            order.onward(sharer.head, sharer.bit, mirror_child.queue.limits(), has_room)
        } else {
            None
        };
        let chosen = match onward {
            Some(chosen) => chosen,
            None => order.next_of(class, &sharer, &mirror_child.queue.limits_of(class), now_ns)?,
        };
        mirror_child.queue.count(chosen.class, &chosen.range);
        self.count_waiting(&order);
        Some(chosen)
    }

    /// Whether a child would have one of `waiting` done before the others have done all.
    fn is_worth_it(&self, own_index: usize, waiting: u64, size_bytes: u64, now: Instant) -> bool {
        let (mut own, mut least, mut rate) = (0, u64::MAX, 0_u64);
        for (index, mirror_child) in self.mirror_children.iter().enumerate() {
            let service_ns = mirror_child.load.service_ns(size_bytes).max(1);
            if index == own_index {
                own = service_ns;
            } else if mirror_child.load.silence_ns(now) < SILENT_NS + 8 * service_ns {
                least = least.min(service_ns);
                // In requests a second.
                rate += 1_000_000_000_000 / service_ns;
            }
        }
        if rate == 0 {
            return true;
        }
        let others = waiting.saturating_mul(1_000_000_000_000) / rate;
        own <= others.saturating_add(least)
    }

    /// Makes reads that wait within a range as urgent as can be.
    pub(crate) fn hurry(&self, range: &Range<u64>) {
        if self.waiting() == 0 {
            return;
        }
        self.order.lock().hurry(range);
        (0..self.mirror_children.len()).for_each(|child| self.give_room(child));
    }
}

/// A place in the shared queue; given up when dropped.
struct Place<'a> {
    shared: &'a SharedQueue,
    id: Id,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let gone = {
            let mut order = self.shared.order.lock();
            let gone = order.remove(self.id);
            self.shared.count_waiting(&order);
            gone
        };
        drop(gone);
    }
}
