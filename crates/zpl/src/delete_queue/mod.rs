//! The delete queue (OpenZFS's unlinked set): objects without a name, freed when they are not open any more, large ones in steps.
//!
//! # Theory
//!
//! **Need.** `unlink` returns as soon as the name is gone, however large the file is; the space comes back soon, and other operations
//! do not wait for that.
//!
//! **Life of a large file's end.**
//! 1. `unlink`, or a rename over it, removes the name and enters the object's number into the queue, in one txg, and returns.
//! 2. If it is not open, or when its last handle is dropped, it is *garbage*: noted in memory, and the pool is told that space
//!    is about to be freed ([`TxgSource::frees_begin`](cenote_dmu::tx::TxgSource::frees_begin)).
//! 3. The reaper, one task, frees it piece by piece from its end, in each txg its share (`steps`). While it waits for a txg it holds
//!    no lock but the file's own; it takes the queue's lock only to remove the entry together with the last piece.
//! 4. A change that finds no space waits while pieces are being freed, instead of failing with `ENOSPC`.
//!
//! **Invariants.**
//! 1. An object in the queue has no name (asserted where it is freed, in `reap`).
//! 2. No task waits for a txg to be written while it holds the queue's lock, except as every change waits when the pool is full or
//!    too much is dirty.
//!
//! **Crash, or the end of use.** The queue is on disk, and freed pieces are holes, so the next user goes on where this one stopped. At
//! the end of a mount a little is freed, and the rest is left.
//!
//! **Rejected.** *Freeing before the answer*: one `unlink` would take as long as all before it. *Several files at a time*: they would
//! share the same txgs' shares.

mod garbage;
mod reap;
mod share;
mod steps;

pub(crate) use garbage::Garbage;
pub(crate) use reap::{entry_name, entry_value};
pub(crate) use share::{Share, is_small, weight};
