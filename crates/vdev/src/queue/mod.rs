//! What waits for a leaf, and what it is given at once.
//!
//! # Theory
//!
//! **Need.** A device that is given everything at once serves a reader's block behind a scrub's thousand, and a device with a head
//! moves it for each request as it comes. So a leaf is given a bounded number of requests, what is urgent first, but
//! of everything a little; the others wait here, where they can be put in order and brought together. A solid-state device that
//! has little to do needs none of that, and there the queue must cost next to nothing.
//!
//! **In memory.** For each leaf a [`LeafQueue`]: how many requests of each [`QueueClass`] the device has (atomic), how many wait
//! (atomic), and behind a lock those that wait (`order`): by place, and by arrival.
//!
//! **The life of a request.**
//! ```text
//!   turn() -- nobody waits, and the class has room --------------------> Lead(alone) -- the device --> room again
//!      |                                                                    ^                             |
//!      +-- waits, in order ---- it is its turn, with its neighbours --> Lead(bundle)                      |
//!                |                                                          |  one request to the device  v
//!                +<----------- alone, after the bundle failed ---- Served, each its part          the next ones' turn
//! ```
//! 1. Where nobody waits and the class is below its limit the request goes on at once: some atomic counts, no lock.
//! 2. Otherwise it waits. Room is given first to classes below their minimum, then to those below their maximum, each time in the
//!    order of urgency. Within a class a device with a head is served upwards from where its last request ended, and from the
//!    start again; once in a batch whoever has waited for `zfs_vdev_queue_expire_ms` comes first. Others are served
//!    as they came.
//! 3. Whose turn it is takes neighbours along: reads with gaps of up to `zfs_vdev_read_gap_limit`, writes without, up to
//!    the aggregation limit, whatever their class. It becomes their leader, asks the device once, and hands each its part.
//! 4. When a request is done its room goes to the next, in the same way.
//! 5. A device with a head first goes on where it is: what continues its latest request is read before what is more urgent
//!    elsewhere, until the run has come to `zfs_vdev_read_run_limit`. Else readers of several files have it seek for each record.
//! 6. Reads of a mirror with such devices wait in a queue of all its children (`shared`), under policy `adaptive`.
//!
//! **Bulk.** Scrubs and the like ([`QueueClass::is_bulk`]) have their minimum only, as long as the device has requests that someone
//! waits for, and until `zfs_vdev_nia_delay` of theirs were done since.
//!
//! **The bypass.** A solid-state device does many at once, and its limits are `zfs_vdev_solid_active_times` times those of a device
//! with a head. So step 1 is what happens there, as long as it is not overrun. What goes that way is counted like all else,
//! here and in [`mirror::Load`](crate::mirror::Load): which child is less busy is known.
//!
//! **Invariants.**
//! 1. Nobody is forgotten: whoever begins to wait looks for room after he can be seen, and whoever leaves room looks for
//!    waiters after it can be seen (both sequentially consistent); one of the two sees the other.
//! 2. A request waits, is led or leads; dropped in any of these states, its place and its room are free again, and what it led
//!    waits anew.
//! 3. A failed bundle is nobody's fault: each of its requests goes to the device alone, so that errors name what failed.
//! 4. No caller's code and no waker runs under the lock.
//!
//! **What does not wait here**: labels and uberblocks ([`commit`](crate::commit)), flushes, and probing. Blocks of a txg are
//! [`QueueClass::AsyncWrite`], those of intent logs [`QueueClass::SyncWrite`].
//!
//! **Crash.** Nothing is kept.
//!
//! **Rejected.** A lock around all of it, as OpenZFS has: it is what users of fast devices switch off, and with it they lost the
//! counts that mirrors choose by. First come, first served for urgent reads, as there: readers of several files then move the
//! head for each block; a bound on waiting gives the fairness. A task for each device that feeds it: a hand-over more
//! for each request.

mod limits;
mod order;
mod room;
mod shared;
#[cfg(test)]
mod tests;
mod turn;

pub(crate) use limits::Limits;
pub use limits::QueueClass;
pub(crate) use room::{LeafQueue, Room};
pub(crate) use shared::SharedQueue;
pub(crate) use turn::{Kind, Reading, Turn};
