//! Jobs of a pool, cut at every moment: whatever the moment, the job ends as one that was never stopped.
//!
//! # Theory
//!
//! **Need.** A job (scrub, resilver, removal, expansion, ...) takes many txgs, and the power may go between any two requests of any of them. What is
//! left is rarely wrong: only where a cursor, a map or a label of one txg says what another one does. Random cuts meet few of these moments.
//!
//! **Shape.**
//! ```text
//! Case      a layout with further disks, what is there at first, and the job                               case
//! Driver    the stage that the job stands at, by what is on disk, and the verb that a person gives there   drive
//! JobRun    the job from its verb to its end, while a client writes and waits; its events are noted        run
//! Moments   the disks as of each request that got under way, was done, or flushed                          cenote_taskq::sim::history
//! verdict   what a cut leaves is opened, the job goes on to its end, and the pool is judged                verdict
//! Digest    what the disks say of the pool when it is exported                                             digest
//! ```
//! **Life of a point.** As in the [parent](super): in each moment the disks keep all, none or some of the unflushed writes. The pool that is left is
//! opened, its logs are replayed, and files and the volume are compared with what clients had been told. The stage is not before the last one that a
//! verb had answered. The driver goes on from that stage to the end, as a person would who finds the pool so.
//!
//! **Verdict.** At the end files are as they were when the pool was opened. No leaf lacks anything. Exported, the pool is verified: each copy and each
//! column of parity, space maps, obsolete space, counts of features. Its *digest* (labels, configuration, tables of vdevs, directory, features, scan,
//! reflow word) is that of the run that was never cut. It leaves out object numbers, txgs, and counts of what a job has done, which depend on the
//! number of txgs. Some are judged by `zdb`.
//!
//! **Expansion.** No label has the new child without the mark that the raidz is being expanded, or was (#18920 of OpenZFS). In each state of the
//! scratch area and the reflow word each child in turn is missing: the pool is whole without it, is written, and ends as the others when the child is
//! back.
//!
//! **A disk that lost its newest uberblock** by a cut is resilvered when the pool is opened, and that ends a scrub, by OpenZFS's rules too. A verb that
//! needs whole disks is given after it.
//!
//! **Disks that are alike** are opened once: those that differ only in places that whoever opened the one has not read, up to the verdict, or has written
//! first (`alike`). Mostly these are places of blocks that no uberblock leads to yet. Since a simulation does what its seed and its reads have it do, the verdict on
//! the one is the verdict on the other.
//!
//! **Rejected.** *A job that is cut twice*: the random tests of each job do that. *A comparison of bytes*: each txg more moves blocks to other places.

mod alike;
mod case;
mod digest;
mod drive;
mod made;
mod run;
mod verdict;

pub use case::{CASES, Case};
pub use run::{JobRun, JobTally};
