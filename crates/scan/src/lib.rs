//! Walking everything a pool holds: verify and its space account.
//!
//! # Theory
//!
//! **Need.** Someone with a pool wants to know two things before trusting it: is every block that anything refers to
//! readable, in every copy; and does the account of space add up, that is, is every allocated byte referred to exactly
//! as often as the pool says, and nothing else allocated. The first finds rotten disks, the second finds broken pools.
//!
//! **On disk.** What refers to blocks: the MOS; every dataset and snapshot (found as objects of the MOS, so that hidden
//! ones count too); the intent logs of heads; and what is freed but not yet returned: the deferred frees, the free list,
//! destroyed datasets and clones being worked off, the checkpoint. Blocks shared by snapshots are visited once, in the
//! oldest dataset that has them: a dataset's walk leaves out what was born before its previous snapshot.
//!
//! **In memory.** A stack of pointers still to visit and a bounded number of visits in flight. A visit reads the block in
//! all its copies, checks it, and returns the ranges that it takes and the pointers that it holds. All accounting is
//! done by the one task that owns the stack, so it needs no locks: per vdev a set of allocated ranges, from which each
//! visited block's ranges are taken out. What is left at the end leaked; what was not there is referred to twice or was
//! never allocated.
//!
//! **Life of a block.** pointer on the stack -> visit (reads, verifies, parses) -> claim -> children on the stack.
//!
//! **Invariants.**
//! 1. A block that holds pointers is visited once, wherever it lies and whether or not space is accounted for; so a pool
//!    of shared or cyclic pointers ends in reports, not in a walk without end.
//! 2. The stack is last in, first out: its size is bounded by depth times fan-out, not by the pool.
//! 3. Memory for reports is bounded; counts are exact.
//!
//! **Crash.** Nothing to leave behind: reading only.
//!
//! **Rejected.** A sorted, sequential scrub order (it pays on rotating disks and needs the write side's scan machinery);
//! a bitmap of claims (the set of ranges shrinks as the walk goes on, and says where leaks are).

mod account;
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
pub use verify::{Progress, VerifyError, VerifyOptions, VerifyReport, verify};
