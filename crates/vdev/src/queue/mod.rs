//! The I/O queue of a leaf: waiting requests, and the limits on active ones.
//!
//! # Theory
//!
//! **Need.** If all requests were sent to the device at once, a reader's block would wait behind a thousand blocks of a scrub, and a
//! rotating device would seek for each request in the order of arrival. So a leaf has a bounded number of active requests, as in OpenZFS.
//! Urgent classes go first, but each class gets its minimum (`min_active`). The other requests wait in this queue, where they are sorted
//! and aggregated. A solid-state device with little load needs none of that, so the queue must cost next to nothing there.
//!
//! **In memory.** For each leaf a [`LeafQueue`]: how many requests of each [`QueueClass`] the device has (atomic), how many wait
//! (atomic), and behind a lock those that wait (`order`): by place, and by arrival.
//!
//! **The life of a request.**
//! ```text
//!   turn() -- nobody waits, and the class has room --------------------> Lead(alone) -- the device --> room again
//!      |                                                                    ^                             |
//!      +-- waits, in order ---- it is its turn, with its neighbours --> Lead(aggregate)                      |
//!                |                                                          |  one request to the device  v
//!                +<----------- alone, after the aggregate failed ---- Served, each its part          the next ones' turn
//! ```
//! 1. If no request waits and the class is below its limit, the request is issued at once, with a few atomic counters and no lock.
//! 2. Otherwise it waits. Room is given first to classes below their minimum, then to those below their maximum, each time in the order of
//!    urgency. Within a class a device with a head is served upwards from where its last request ended, and from the start again; once in a
//!    batch a request that has waited for `zfs_vdev_queue_expire_ms` comes first. Other devices are served in the order of arrival.
//! 3. The chosen request is aggregated with adjacent requests of any class, up to the aggregation limit: reads across gaps of up to
//!    `zfs_vdev_read_gap_limit`, writes without gaps. It becomes their leader, issues one device request, and distributes the result.
//! 4. When a request is done its room goes to the next, in the same way.
//! 5. A rotating device first continues a sequential run: a read that continues its latest request goes before more urgent ones
//!    elsewhere, until the run is `zfs_vdev_read_run_limit` long. Otherwise several sequential readers would make it seek for each
//!    record.
//! 6. Reads of a mirror with such devices wait in a queue of all its children (`shared`), under policy `adaptive`.
//!
//! **Bulk.** Scrubs and the like ([`QueueClass::is_bulk`]) get only their minimum while the device has interactive requests, and after that
//! until `zfs_vdev_nia_delay` bulk requests were done. Of a solid-state device, which brings the bytes of all requests one after the other, the
//! bytes count: while clients use it, or did a little ago, bulk has `zfs_vdev_scrub_min_active` requests of 16 KiB there (`tree::pieces` has the
//! theory), or an eighth of the bytes that others have there, so that it does not starve behind a txg. Alone it has 2 MiB there at most, in
//! whole requests. Urgent requests lead no bulk there. A txg has all its requests there, as before: it is over soon, and few readers meet it.
//!
//! **The bypass.** A solid-state device does many at once, and its limits are `zfs_vdev_solid_active_times` times those of a device
//! with a head. So requests there take step 1, unless there are very many. They are counted like all others, here and in
//! [`mirror::Load`](crate::mirror::Load), so a mirror still knows which child is less busy.
//!
//! **Invariants.**
//! 1. No request is forgotten: a request that begins to wait becomes visible and then looks for room; a request that ends frees its room
//!    and then looks for waiters (both sequentially consistent). One of the two sees the other.
//! 2. A request is waiting, aggregated into a leader, or a leader itself. If it is dropped in any of these states, its place in the queue
//!    and its active slot are released, and requests that it led wait again.
//! 3. When an aggregate fails, each of its requests goes to the device alone, so that errors name the request that failed.
//! 4. No caller's code and no waker runs under the lock.
//!
//! **Requests that do not wait here**: labels and uberblocks ([`commit`](crate::commit)), flushes, and probing. Blocks of a txg are
//! [`QueueClass::AsyncWrite`], those of intent logs [`QueueClass::SyncWrite`].
//!
//! **Crash.** The queue is in memory only.
//!
//! **Rejected.** One lock around the queue, as OpenZFS has (`vq_lock`): with fast devices users bypass the queue because of it, and then
//! mirrors lack the counts of outstanding requests to choose by. First come, first served for urgent reads, as in OpenZFS: several
//! sequential readers then move the head for each block; a bound on the waiting time gives fairness instead. A task for each device that
//! issues its requests: each request would wake one more task.

mod aggregate;
mod limits;
mod order;
mod room;
mod shared;
#[cfg(test)]
mod tests;

pub(crate) use aggregate::{Dequeued, Kind, Reading};
pub(crate) use limits::Limits;
pub use limits::QueueClass;
pub(crate) use room::{LeafQueue, Room, SizeCounts};
pub(crate) use shared::SharedQueue;
