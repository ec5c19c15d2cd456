//! Groups of detached work: the roots of asynchronous I/O.
//!
//! Prefetch, read repair and the like are started and not awaited, yet an export must not return while one of them is
//! still running. Each joins a group; [`Group::close`] refuses new work from then on and resolves once none is left,
//! [`Group::wait`] resolves once all that is in it now has left and refuses nobody.
//!
//! ```text
//!   shard 0  [ closed:1 | waited:1 | count:62 ] x 2   its own cache lines; a worker uses its own shard
//!   shard 1  [ closed:1 | waited:1 | count:62 ] x 2
//!   ...
//!   turn     which of a shard's two counts the next members use; read by all, written only by a wait
//! ```
//!
//! One counter for all would be the hot line that every detached I/O of every core fights for, so there is one per shard,
//! and what a member holds on to is its shard, whose hold count is on the same lines. A member remembers its shard and its
//! turn and leaves where it entered, so each count alone says whether it has members.
//!
//! Invariants: 1. once a count's `closed` bit is set it stays, and the count grows no more except by [`Member::fork`],
//! which needs a living member; 2. `close` sets the bit on every count before it looks at any; hence 3. when `close` has
//! seen a count at "closed, zero", it is zero for ever, and the order in which counts are looked at does not matter —
//! unless a fork could enter where zero was seen already, so a fork stays with its parent. 4. A `wait` gives newcomers the
//! other turn and waits for the old one, and before that for those who had taken note of a turn long ago and entered late;
//! so newcomers do not hold it up, and nobody who was in before is missed.

use std::future::Future;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::event::Notify;
use crate::handle::{Class, Handle, Join};
use crate::lock::AsyncMutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const CLOSED: u64 = 1 << 63;
/// Somebody waits for this count to become zero.
const WAITED: u64 = 1 << 62;
const COUNT: u64 = WAITED - 1;

/// Alone on its cache lines.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Shard {
    counts: [AtomicU64; 2],
    common: Arc<Common>,
}

/// What is touched only at the end of things.
#[derive(Debug, Default)]
struct Common {
    emptied: Notify,
    cancelled: AtomicBool,
}

impl Shard {
    /// Whether a member got in.
    fn enter(&self, turn: usize) -> bool {
        let count = &self.counts[turn];
        let mut seen = count.load(Ordering::Relaxed);
        loop {
            if seen & CLOSED != 0 {
                return false;
            }
            match count.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Enters beside a member, even if closed.
    pub(crate) fn fork(&self, turn: usize) {
        self.counts[turn].fetch_add(1, Ordering::Relaxed);
    }

    /// Leaves. Whether this was the last of a count that somebody waits for, who should look again.
    pub(crate) fn leave(&self, turn: usize) -> bool {
        let before = self.counts[turn].fetch_sub(1, Ordering::AcqRel);
        before & COUNT == 1 && before & (CLOSED | WAITED) != 0
    }
}

/// The sharded counters alone, apart from the runtime, so that a model checker can run them.
#[derive(Debug)]
pub(crate) struct Shards {
    shards: Box<[Arc<Shard>]>,
    turn: CachePadded<AtomicUsize>,
    common: Arc<Common>,
}

impl Shards {
    pub(crate) fn new(count: usize) -> Shards {
        let count = count.max(1).next_power_of_two();
        let common = Arc::new(Common::default());
        let shard = || Shard { counts: [AtomicU64::new(0), AtomicU64::new(0)], common: Arc::clone(&common) };
        let shards = (0..count).map(|_| Arc::new(shard())).collect();
        Shards { shards, turn: CachePadded::new(AtomicUsize::new(0)), common }
    }

    /// Enters by way of `hint`; where to leave, or `None` once closed.
    pub(crate) fn enter(&self, hint: usize) -> Option<(&Arc<Shard>, usize)> {
        let shard = &self.shards[hint & (self.shards.len() - 1)];
        let turn = self.turn.load(Ordering::Acquire);
        shard.enter(turn).then_some((shard, turn))
    }

    fn each(&self, turn: usize) -> impl Iterator<Item = &AtomicU64> {
        self.shards.iter().map(move |shard| &shard.counts[turn])
    }

    /// Refuses everyone from now on.
    pub(crate) fn close(&self) {
        for count in self.each(0).chain(self.each(1)) {
            count.fetch_or(CLOSED, Ordering::AcqRel);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shards[0].counts[0].load(Ordering::Acquire) & CLOSED != 0
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

    /// Asks whoever is the last of a turn to tell, or no longer.
    pub(crate) fn set_waited(&self, turn: usize, waited: bool) {
        for count in self.each(turn) {
            match waited {
                true => count.fetch_or(WAITED, Ordering::AcqRel),
                false => count.fetch_and(!WAITED, Ordering::AcqRel),
            };
        }
    }
}

#[derive(Debug)]
struct Inner {
    handle: Handle,
    shards: Shards,
    /// One wait at a time goes through the turns.
    turns: AsyncMutex<()>,
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
        let shards = Shards::new(handle.parallelism());
        Group(Arc::new(Inner { handle, shards, turns: AsyncMutex::new(()) }))
    }

    /// Makes the caller a member until what this returns is dropped.
    pub fn enter(&self) -> Result<Member, GroupClosed> {
        let (shard, turn) = self.0.shards.enter(crate::handle::thread_shard()).ok_or(GroupClosed)?;
        Ok(Member { shard: Arc::clone(shard), turn })
    }

    /// Spawns `future` as a member. Drop the [`Join`] to detach it.
    pub fn spawn<F>(&self, class: Class, future: F) -> Result<Join<F::Output>, GroupClosed>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        Ok(self.0.handle.spawn_member(class, self.enter()?, future))
    }

    /// As [`Group::spawn`] for a task that nobody will join.
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

    /// Resolves when everyone has left who is in the group at the call. Others may come meanwhile and are not waited for.
    ///
    /// A member must not await this: it would wait for itself.
    pub async fn wait(&self) {
        let shards = &self.0.shards;
        let _turns = self.0.turns.lock().await;
        let (turn, other) = shards.turns();
        self.left(other).await;
        shards.flip();
        self.left(turn).await;
    }

    /// Resolves when a turn that no newcomer uses has no members.
    async fn left(&self, turn: usize) {
        let _waited = Waited::set(&self.0.shards, turn);
        loop {
            // The wait begins before the count is read, so a last one leaving in between is not missed.
            let emptied = self.0.shards.common.emptied.wait();
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
            let emptied = self.0.shards.common.emptied.wait();
            if self.0.shards.members() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// As [`Group::close`], and work that was spawned or dispatched and has not begun is dropped instead of done. Work that
    /// has begun goes on to its end.
    pub async fn cancel(&self) {
        self.0.shards.common.cancelled.store(true, Ordering::SeqCst);
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
    shard: Arc<Shard>,
    turn: usize,
}

impl Member {
    /// Another member, for work that this one's work starts. Allowed while the group is closing: it is not new work, and
    /// the group cannot be empty yet.
    pub fn fork(&self) -> Member {
        self.shard.fork(self.turn);
        Member { shard: Arc::clone(&self.shard), turn: self.turn }
    }

    /// Whether the group is being cancelled, so that work which has not begun should not.
    pub fn is_cancelled(&self) -> bool {
        self.shard.common.cancelled.load(Ordering::Relaxed)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.shard.leave(self.turn) {
            self.shard.common.emptied.all();
        }
    }
}
