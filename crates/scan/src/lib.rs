//! Walking everything a pool holds: verify and its space account.
//!
//! # Theory
//!
//! **Need.** `cenote verify` answers two questions about a pool: is every referenced block readable, in every copy; and is the space
//! accounting exact, that is, is every allocated byte referenced exactly as often as the pool's tables say, and nothing else allocated.
//! The first finds failing disks, the second finds corrupt pools.
//!
//! **On disk.** These refer to blocks: the MOS; every dataset and snapshot (found as objects of the MOS, so that hidden ones are
//! included); the intent logs of heads; and the lists of blocks that are freed but still allocated: deferred frees (`sync_bplist`),
//! `free_bpobj`, destroyed datasets and clones whose background free is unfinished, the checkpoint. Blocks shared by snapshots are
//! visited once, in the oldest dataset that has them: a dataset's walk leaves out what was born before its previous snapshot.
//!
//! **In memory.** A stack of pointers still to visit and a bounded number of visits in flight. A visit reads the block in
//! all its copies, checks it, and returns the ranges that it takes and the pointers that it holds. All accounting is
//! done by the one task that owns the stack, so it needs no locks: it has a set of allocated ranges for each vdev, and removes the ranges
//! of each visited block. A range that is left at the end is leaked; a range that is not in the set is referenced twice or was never
//! allocated.
//!
//! **Life of a block.** pointer on the stack -> visit (reads, verifies, parses) -> claim -> children on the stack.
//!
//! **Invariants.**
//! 1. A block that holds pointers is visited once, wherever it lies and whether or not space is accounted for; so a pool
//!    of shared or cyclic pointers ends in reports, not in a walk without end.
//! 2. The stack is last in, first out: its size is bounded by depth times fan-out, not by the pool.
//! 3. Memory for reports is bounded; counts are exact.
//!
//! **Crash.** The scan only reads, so a crash leaves nothing.
//!
//! **Rejected.** A sorted, sequential order as OpenZFS's scrub has it (faster on rotating disks, but it needs a queue of extents for each
//! vdev); a bitmap of visited ranges (the set of ranges shrinks as the walk goes on, and gives the places of leaks).

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod account;
mod error;
mod features;
mod freeing;
mod refcounts;
mod resume;
mod roots;
mod stats;
mod verify;
mod visit;

pub use account::{Leak, Misuse, MisuseKind};
pub use stats::{BlockCounts, BlockStatistics, LEVELS};
pub use verify::{BadBlock, Progress, VerifyError, VerifyOptions, VerifyReport, verify};
