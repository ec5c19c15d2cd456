//! Crash points: short runs on a small pool, with a power cut simulated at every moment of the run.
//!
//! # Theory
//!
//! **Need.** The lives of [`crate::life`] are long and are cut a few times each, by chance. A fault of the intent log may need a cut between
//! two given requests of a device, after two given operations. Most such faults appear in short runs (a result of bounded black-box crash
//! testing of file systems). So all short runs are enumerated, and each is cut at every moment.
//!
//! **Shape.**
//! ```text
//! Script      two or three operations, each with what its client then waits for         script
//! base        a small pool with some files and a volume, the same for all scripts       base
//! Run         a script on the simulated runtime; all that happens to the disks is noted run
//! Moments     the disks as of each request that got under way, was done, or flushed     cenote_taskq::sim::history
//! each_cut    the ways in which the power goes in each moment, as far as they are wanted cuts
//! verdict     what a cut in a moment leaves is opened, replayed, compared               verdict
//! ```
//! A script has a number, and so has each cut of it: `points --first SCRIPT --count 1` makes a run again.
//!
//! **Life of a point.** The run ends; its history goes through its moments. In each moment the disks keep all, none or some of the
//! unflushed writes, depending on the event that began the moment: a missing flush shows only if the cut loses all of them, a wrong write
//! only if the cut keeps it. Further subsets are drawn from the seed, with torn writes. The remaining pool is opened as a crashed pool is,
//! its logs are claimed and replayed, and files and the volume are compared with what clients had been told by then.
//!
//! **Verdict.** As in `replayed`: names are those of one moment, not before the last that a client was told of; bytes and attributes of a
//! file those of times that are not before its own promises. `fsync` of one file promises all names, and that file's data. Of some points the
//! pool is verified before it is replayed, and is exactly as of its txg; of some, it is exported after, verified again, and `zdb` judges.
//!
//! **Equal disks.** Cuts in neighbouring moments often leave the same bytes, while the promises differ. The result of replay depends on the
//! disks alone. So within a run equal disks are opened and replayed once, and the result is compared with the promises of each point.
//!
//! **Jobs** of a pool are cut in the same way: [`jobs`].
//!
//! **Invariants.** 1. A promise counts from the moment in which the client was told. 2. Changes that had not begun are not there.
//!
//! **Rejected.** *All subsets of what is in flight*: there are too many; which of them matter is found by the lives, whose cuts draw them.
//! *A run for each point*: hundreds of times the work, for the same states.

mod base;
mod cuts;
mod hunt;
pub mod jobs;
mod run;
mod script;
mod verdict;

pub use base::{Base, SHAPES};
pub use cuts::Wanted;
pub use hunt::{LOG_MUTANTS, hunt};
pub use run::{Run, Tally};
pub use script::{Script, count};
