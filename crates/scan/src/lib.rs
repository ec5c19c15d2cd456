//! Walking everything a pool holds: scrub and resilver, verify and its space account.
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
//! **In memory.** One walk (`walk`) goes through all blocks, in one order, and can stop, go on, and follow a pool that is written. A *visit* reads a
//! block in all its copies, checks it, and returns the ranges that it takes and the pointers that it holds. Verify is a sink of the walk. All
//! accounting is done by the one task that has the sink, so it needs no locks: it has a set of allocated ranges for each vdev, and removes the ranges
//! of each visited block. A range that is left at the end is leaked; a range that is not in the set is referenced twice or was never
//! allocated.
//!
//! **Life of a block.** pointer on the stack -> visit (reads, verifies, parses) -> claim -> children on the stack.
//!
//! **Invariants.**
//! 1. A block that holds pointers is visited once in a txg, wherever it lies and whether or not space is accounted for; so a pool
//!    of shared or cyclic pointers ends in reports, not in a walk without end.
//! 2. The stack is last in, first out: its size is bounded by depth times fan-out, not by the pool.
//! 3. Memory for reports is bounded; counts are exact.
//! 4. Space and features are accounted for in one txg, or not at all.
//! 5. A verify that stopped and went on in the same txg reports the same as one that did not stop.
//!
//! **Crash.** The scan only reads, so a crash leaves nothing. The text of a stop ([`VerifyStop`]) is its owner's to keep.
//!
//! **Rejected.** A bitmap of visited ranges (the set of ranges shrinks as the walk goes on, and gives the places of leaks). To keep that set with a stop,
//! in place of going through what leads to data once more: it is as large as the pool is fragmented, and a text that is damaged or forged
//! would hide leaks.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod account;
mod error;
mod features;
mod freeing;
mod refcounts;
mod resume;
mod roots;
mod scrub;
mod stats;
mod verify;
mod visit;
mod walk;

pub use account::{Leak, Misuse, MisuseKind};
pub use scrub::attend;
pub use stats::{BlockCounts, BlockStatistics};
pub use verify::{BadBlock, Verification, VerifyError, VerifyOptions, VerifyReport, VerifyStop, verify};
pub use walk::{Progress, ViewError, Views, WalkControl};
