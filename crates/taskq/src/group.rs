//! Groups of detached work: the roots of asynchronous I/O.
//!
//! Prefetch, read repair and the like are started and not awaited, yet an export must not return while one of them is
//! still running. Each joins a group; [`Group::close`] refuses new work from then on and resolves once none is left.
//!
//! ```text
//!   shard 0  [ closed:1 | count:63 ]   one cache line each; a worker uses its own shard
//!   shard 1  [ closed:1 | count:63 ]
//!   ...
//! ```
//!
//! One counter for all would be the hot line that every detached I/O of every core fights for, so there is one per shard.
//! A member remembers its shard and leaves where it entered, so each shard alone says whether it has members.
//! Invariants: 1. once a shard's `closed` bit is set it stays, and its count grows no more except by
//! [`Member::fork`], which needs a living member; 2. `close` sets the bit on every shard before it looks at any count;
//! hence 3. when `close` has seen a shard at "closed, zero", that shard is empty for ever, and the order in which the
//! shards are looked at does not matter — unless a fork could enter a shard already seen empty, so a fork stays in its
//! parent's shard.

use std::future::Future;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::event::Notify;
use crate::handle::{Class, Handle, Join};
use crate::sync::atomic::{AtomicU64, Ordering};

const CLOSED: u64 = 1 << 63;

/// The sharded counters alone, apart from the runtime, so that a model checker can run them.
#[derive(Debug)]
pub(crate) struct Shards {
    shards: Box<[CachePadded<AtomicU64>]>,
}

impl Shards {
    pub(crate) fn new(count: usize) -> Shards {
        let count = count.max(1).next_power_of_two();
        Shards { shards: (0..count).map(|_| CachePadded::new(AtomicU64::new(0))).collect() }
    }

    /// Enters by way of `hint`; the shard to leave by, or `None` once closed.
    pub(crate) fn enter(&self, hint: usize) -> Option<usize> {
        let shard = hint & (self.shards.len() - 1);
        let count = &self.shards[shard];
        let mut seen = count.load(Ordering::Relaxed);
        loop {
            if seen & CLOSED != 0 {
                return None;
            }
            match count.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(shard),
                Err(now) => seen = now,
            }
        }
    }

    /// Enters beside a member of `shard`, which may be closed.
    pub(crate) fn fork(&self, shard: usize) {
        self.shards[shard].fetch_add(1, Ordering::Relaxed);
    }

    /// Leaves `shard`. Whether this was the last of a closed shard, so that the closer should look again.
    pub(crate) fn leave(&self, shard: usize) -> bool {
        self.shards[shard].fetch_sub(1, Ordering::AcqRel) == CLOSED | 1
    }

    /// Refuses everyone from now on.
    pub(crate) fn close(&self) {
        for shard in &self.shards {
            shard.fetch_or(CLOSED, Ordering::AcqRel);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shards[0].load(Ordering::Acquire) & CLOSED != 0
    }

    pub(crate) fn members(&self) -> u64 {
        self.shards.iter().map(|shard| shard.load(Ordering::Acquire) & !CLOSED).sum()
    }
}

#[derive(Debug)]
struct Inner {
    handle: Handle,
    shards: Shards,
    emptied: Notify,
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
        Group(Arc::new(Inner { handle, shards, emptied: Notify::new() }))
    }

    /// Makes the caller a member until what this returns is dropped.
    pub fn enter(&self) -> Result<Member, GroupClosed> {
        let shard = self.0.shards.enter(crate::handle::thread_shard()).ok_or(GroupClosed)?;
        Ok(Member { group: Arc::clone(&self.0), shard })
    }

    /// Spawns `future` as a member. Drop the [`Join`] to detach it.
    pub fn spawn<F>(&self, class: Class, future: F) -> Result<Join<F::Output>, GroupClosed>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let member = self.enter()?;
        Ok(self.0.handle.spawn(class, async move {
            let output = future.await;
            drop(member);
            output
        }))
    }

    /// Refuses new work from now on, and resolves when none is left. May be called more than once and concurrently.
    pub async fn close(&self) {
        self.0.shards.close();
        loop {
            // The wait begins before the count is read, so a last one leaving in between is not missed.
            let emptied = self.0.emptied.wait();
            if self.0.shards.members() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Whether [`Group::close`] has been called.
    pub fn is_closed(&self) -> bool {
        self.0.shards.is_closed()
    }

    /// Members now. A sum over counters that move meanwhile: exact only when nothing runs, or once closed and zero.
    pub fn members(&self) -> u64 {
        self.0.shards.members()
    }
}

/// Membership in a [`Group`]; dropping it leaves.
#[derive(Debug)]
#[must_use]
pub struct Member {
    group: Arc<Inner>,
    shard: usize,
}

impl Member {
    /// Another member, for work that this one's work starts. Allowed while the group is closing: it is not new work, and
    /// the group cannot be empty yet.
    pub fn fork(&self) -> Member {
        self.group.shards.fork(self.shard);
        Member { group: Arc::clone(&self.group), shard: self.shard }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.group.shards.leave(self.shard) {
            self.group.emptied.all();
        }
    }
}
