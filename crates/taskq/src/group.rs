//! Groups of detached work: the roots of asynchronous I/O.
//!
//! Prefetch, read repair and the like are started and not awaited, yet an export must not return while one of them is
//! still running. Each joins a group; [`Group::close`] refuses new work from then on and resolves once none is left,
//! [`Group::wait`] resolves once all that is in it now has left and refuses nobody.
//!
//! ```text
//!   shard 0  [ closed:1 | waited:1 | orphaned:1 | count:61 ] x 2   its own cache lines; a worker uses its own shard
//!   shard 1  [ closed:1 | waited:1 | orphaned:1 | count:61 ] x 2
//!   ...
//!   turn     which of a shard's two counts the next members use; read by all, written only by a wait
//! ```
//!
//! One counter for all would be the hot line that every detached I/O of every core fights for, so there is one per shard. A
//! member remembers its shard and its turn and leaves where it entered, so each count alone says whether it has members.
//! Entering and leaving are one atomic step each and nothing else: what a member refers to is kept for ever and used again
//! (`spare`), so it needs no count of its own.
//!
//! Invariants: 1. once a count's `closed` bit is set it stays, and the count grows no more except by [`Member::fork`],
//! which needs a living member; 2. `close` sets the bit on every count before it looks at any; hence 3. when `close` has
//! seen a count at "closed, zero", it is zero for ever, and the order in which counts are looked at does not matter —
//! unless a fork could enter where zero was seen already, so a fork stays with its parent. 4. A `wait` gives newcomers the
//! other turn and waits for the old one, and before that for members that read the turn long ago and entered late. So newcomers do not
//! delay it, and no member that was in before is missed.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crossbeam_utils::CachePadded;

use crate::event::Notify;
use crate::handle::{Class, Handle, Join};
use crate::lock::AsyncMutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::task::Work;

const CLOSED: u64 = 1 << 63;
/// Somebody waits for this count to become zero.
const WAITED: u64 = 1 << 62;
/// Nobody holds the group: its counters go when its last member does.
const ORPHANED: u64 = 1 << 61;
const COUNT: u64 = ORPHANED - 1;

/// Alone on its cache lines.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Shard {
    counts: [Count; 2],
}

/// How many members entered by one shard in one turn.
#[derive(Debug)]
struct Count(AtomicU64);

impl Default for Count {
    fn default() -> Self {
        Count(AtomicU64::new(0))
    }
}

impl Count {
    /// Whether a member got in.
    fn enter(&self) -> bool {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            if seen & CLOSED != 0 {
                return false;
            }
            match self.0.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }
}

/// Where a member entered: twice the shard, and one more for its second count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(u32);

/// The sharded counters alone, apart from the runtime, so that a model checker can run them.
#[derive(Debug)]
pub(crate) struct Shards {
    shards: Box<[Shard]>,
    turn: CachePadded<AtomicUsize>,
    /// The next fields are touched only when a count becomes zero.
    emptied: Notify,
    cancelled: AtomicBool,
    /// Counts that may still have members, once nobody holds the group.
    held: AtomicUsize,
}

impl Shards {
    pub(crate) fn new(count: usize) -> Shards {
        let count = count.max(1).next_power_of_two();
        Shards {
            shards: (0..count).map(|_| Shard::default()).collect(),
            turn: CachePadded::new(AtomicUsize::new(0)),
            emptied: Notify::default(),
            cancelled: AtomicBool::new(false),
            held: AtomicUsize::new(2 * count),
        }
    }

    fn count(&self, place: Place) -> &AtomicU64 {
        &self.shards[place.0 as usize / 2].counts[place.0 as usize % 2].0
    }

    /// Enters by way of `hint`; where to leave, or `None` once closed.
    pub(crate) fn enter(&self, hint: usize) -> Option<Place> {
        let shard = hint & (self.shards.len() - 1);
        let turn = self.turn.load(Ordering::Acquire);
        self.shards[shard].counts[turn].enter().then_some(Place((2 * shard + turn) as u32))
    }

    /// Enters beside a member, even if closed.
    pub(crate) fn fork(&self, place: Place) {
        self.count(place).fetch_add(1, Ordering::Relaxed);
    }

    /// Leaves. The result says whether this was the last member of a count with a waiter, which is to be woken, and whether it was the last
    /// that held the counters.
    pub(crate) fn leave(&self, place: Place) -> Left {
        let before = self.count(place).fetch_sub(1, Ordering::AcqRel);
        let last = before & COUNT == 1;
        Left { tell: last && before & (CLOSED | WAITED) != 0, unheld: last && before & ORPHANED != 0 && self.release() }
    }

    fn each(&self, turn: usize) -> impl Iterator<Item = &AtomicU64> {
        self.shards.iter().map(move |shard| &shard.counts[turn].0)
    }

    /// Refuses everyone from now on.
    pub(crate) fn close(&self) {
        for count in self.each(0).chain(self.each(1)) {
            count.fetch_or(CLOSED, Ordering::AcqRel);
        }
    }

    /// The last handle of the group was dropped. Returns whether no member is left either.
    pub(crate) fn orphan(&self) -> bool {
        let mut unheld = false;
        for count in self.each(0).chain(self.each(1)) {
            let before = count.fetch_or(CLOSED | ORPHANED, Ordering::AcqRel);
            unheld |= before & COUNT == 0 && self.release();
        }
        unheld
    }

    /// One count less that may have members. Whether it was the last.
    fn release(&self) -> bool {
        self.held.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// As new. Nobody holds the counters but the caller.
    #[cfg_attr(any(loom, shuttle), allow(dead_code, reason = "checkers take new ones"))]
    fn reset(&self) {
        self.each(0).chain(self.each(1)).for_each(|count| count.store(0, Ordering::Relaxed));
        self.turn.store(0, Ordering::Relaxed);
        self.cancelled.store(false, Ordering::Relaxed);
        self.held.store(2 * self.shards.len(), Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shards[0].counts[0].0.load(Ordering::Acquire) & CLOSED != 0
    }

    pub(crate) fn members_of(&self, turn: usize) -> u64 {
        self.each(turn).map(|count| count.load(Ordering::Acquire) & COUNT).sum()
    }

    pub(crate) fn members(&self) -> u64 {
        self.members_of(0) + self.members_of(1)
    }

    /// The turn that newcomers use, and the other.
    pub(crate) fn turns(&self) -> (usize, usize) {
        let turn = self.turn.load(Ordering::Acquire);
        (turn, turn ^ 1)
    }

    /// Gives newcomers the other turn.
    pub(crate) fn flip(&self) {
        self.turn.fetch_xor(1, Ordering::AcqRel);
    }

    /// Sets whether the last member of a turn has to wake a waiter.
    pub(crate) fn set_waited(&self, turn: usize, waited: bool) {
        for count in self.each(turn) {
            match waited {
                true => count.fetch_or(WAITED, Ordering::AcqRel),
                false => count.fetch_and(!WAITED, Ordering::AcqRel),
            };
        }
    }
}

/// The consequences of a member's leaving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    /// Waiters are to be woken.
    pub(crate) tell: bool,
    /// Nobody holds the counters.
    pub(crate) unheld: bool,
}

/// Counters that no group uses, for the next ones.
///
/// A member refers to its group's counters for as long as it lives, which is for one item of work. Counting that reference
/// would double what an item pays for its membership; so counters are never freed, only used again, and there are as many
/// as groups were ever alive at one time.
#[cfg(not(any(loom, shuttle)))]
mod spare {
    use super::Shards;

    static SPARE: std::sync::Mutex<Vec<&'static Shards>> = std::sync::Mutex::new(Vec::new());

    fn spare() -> std::sync::MutexGuard<'static, Vec<&'static Shards>> {
        SPARE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn take(count: usize) -> &'static Shards {
        let mut spare = spare();
        let place = spare.iter().position(|shards| shards.shards.len() == count.max(1).next_power_of_two());
        match place {
            Some(place) => spare.swap_remove(place),
            None => Box::leak(Box::new(Shards::new(count))),
        }
    }

    pub(super) fn give(shards: &'static Shards) {
        shards.reset();
        spare().push(shards);
    }
}

/// A model checker's objects do not outlive a run: each group has new ones.
#[cfg(any(loom, shuttle))]
mod spare {
    use super::Shards;

    pub(super) fn take(count: usize) -> &'static Shards {
        Box::leak(Box::new(Shards::new(count)))
    }

    pub(super) fn give(_: &'static Shards) {}
}

#[derive(Debug)]
struct Inner {
    handle: Handle,
    shards: &'static Shards,
    /// One wait at a time goes through the turns.
    turns: AsyncMutex<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.shards.orphan() {
            spare::give(self.shards);
        }
    }
}

/// A group of detached work. Cloning gives another handle on the same group.
#[derive(Clone, Debug)]
pub struct Group(Arc<Inner>);

/// The group takes no more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the group is closed to new work")]
pub struct GroupClosed;

impl Group {
    pub(crate) fn new(handle: Handle) -> Group {
        let shards = spare::take(handle.parallelism());
        Group(Arc::new(Inner { handle, shards, turns: AsyncMutex::new(()) }))
    }

    /// Makes the caller a member until what this returns is dropped.
    pub fn enter(&self) -> Result<Member, GroupClosed> {
        let place = self.0.shards.enter(crate::handle::thread_shard()).ok_or(GroupClosed)?;
        Ok(Member { shards: self.0.shards, place })
    }

    /// Spawns `future` as a member. Drop the [`Join`] to detach it.
    pub fn spawn<F>(&self, class: Class, future: F) -> Result<Join<F::Output>, GroupClosed>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        Ok(self.0.handle.spawn_member(class, self.enter()?, future))
    }

    /// As [`Group::spawn`] for a task that will not be joined.
    pub fn detach<F>(&self, class: Class, future: F) -> Result<(), GroupClosed>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let member = self.enter()?;
        self.0.handle.detach(class, async move {
            match member.is_cancelled() {
                true => drop(future),
                false => future.await,
            }
            drop(member);
        });
        Ok(())
    }

    /// Polls `future` once on the calling thread, as a member. If it is not ready then, the rest of it becomes a task. This is for a front
    /// end's threads: short work is done here sooner than a worker would wake up, and [`wait_here`](crate::wait_here) may wait for a device.
    ///
    /// A panic of that poll ends the work as it ends a task: only the drop of the future shows it.
    pub fn begin<F>(&self, class: Class, future: F) -> Result<(), GroupClosed>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.begin_work(class, Box::pin(future))
    }

    /// Compiled once, not for each type of work.
    fn begin_work(&self, class: Class, mut future: Work) -> Result<(), GroupClosed> {
        let member = self.enter()?;
        let polled = {
            let _entered = crate::handle::enter(self.0.handle.clone());
            let _front = crate::front::enter();
            crate::fair::begin();
            // Being woken means nothing yet: as a task it is polled again at once.
            let mut context = Context::from_waker(Waker::noop());
            catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)))
        };
        match polled {
            Ok(Poll::Pending) => self.0.handle.detach(class, async move {
                future.await;
                drop(member);
            }),
            Ok(Poll::Ready(())) => {}
            Err(_) => drop(catch_unwind(AssertUnwindSafe(|| drop(future)))),
        }
        Ok(())
    }

    /// Runs `work` once on some worker, as a member: see [`Handle::dispatch`].
    pub fn dispatch<W>(&self, class: Class, work: W) -> Result<(), GroupClosed>
    where
        W: FnOnce() + Send + 'static,
    {
        let member = self.enter()?;
        let dispatched = self.0.handle.dispatch(class, move || {
            match member.is_cancelled() {
                true => drop(work),
                false => work(),
            }
            drop(member);
        });
        dispatched.map_err(|_| GroupClosed)
    }

    /// Resolves when all members that are in the group at the call have left. It does not wait for later members.
    ///
    /// A member must not await this: it would wait for itself.
    pub async fn wait(&self) {
        let shards = self.0.shards;
        let _turns = self.0.turns.lock().await;
        let (turn, other) = shards.turns();
        self.left(other).await;
        shards.flip();
        self.left(turn).await;
    }

    /// Resolves when a turn that no newcomer uses has no members.
    async fn left(&self, turn: usize) {
        let _waited = Waited::set(self.0.shards, turn);
        loop {
            // The wait begins before the count is read, so a last one leaving in between is not missed.
            let emptied = self.0.shards.emptied.wait();
            if self.0.shards.members_of(turn) == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Refuses new work from now on, and resolves when none is left. May be called more than once and concurrently.
    pub async fn close(&self) {
        self.0.shards.close();
        loop {
            let emptied = self.0.shards.emptied.wait();
            if self.0.shards.members() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// As [`Group::close`], and work that was spawned or dispatched and has not begun is dropped instead of done. Work that
    /// has begun goes on to its end.
    pub async fn cancel(&self) {
        self.0.shards.cancelled.store(true, Ordering::SeqCst);
        self.close().await;
    }

    /// Whether [`Group::close`] or [`Group::cancel`] has been called.
    pub fn is_closed(&self) -> bool {
        self.0.shards.is_closed()
    }

    /// Members now. A sum over counters that move meanwhile: exact only when nothing runs, or once closed and zero.
    pub fn members(&self) -> u64 {
        self.0.shards.members()
    }
}

/// Asks to be told by the last of a turn, until it is dropped.
struct Waited<'a>(&'a Shards, usize);

impl<'a> Waited<'a> {
    fn set(shards: &'a Shards, turn: usize) -> Self {
        shards.set_waited(turn, true);
        Waited(shards, turn)
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        self.0.set_waited(self.1, false);
    }
}

/// Membership in a [`Group`]; dropping it leaves.
#[derive(Debug)]
#[must_use]
pub struct Member {
    shards: &'static Shards,
    place: Place,
}

impl Member {
    /// Another member, for work that this one's work starts. Allowed while the group is closing: it is not new work, and
    /// the group cannot be empty yet.
    pub fn fork(&self) -> Member {
        self.shards.fork(self.place);
        Member { shards: self.shards, place: self.place }
    }

    /// Whether the group is being cancelled, so that work which has not begun should not.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.shards.cancelled.load(Ordering::Relaxed)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let left = self.shards.leave(self.place);
        if left.tell {
            self.shards.emptied.all();
        }
        if left.unheld {
            spare::give(self.shards);
        }
    }
}
