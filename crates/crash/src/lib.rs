//! The power-cut test: pools under mixed load in simulation, whose power goes at any moment.
//!
//! # Need
//!
//! Changes of which a client was told that they are on disk are there after any crash, and the whole pool is as of one txg.
//! No reading of the code
//! shows that: a block that is used again a txg too early, or an uberblock written before a flush, does harm only if the power goes
//! in that very moment, and only if the device kept the wrong half of what it was given.
//!
//! # Life of a cut
//!
//! A *life* is one pool through [`CUTS`] cuts, of which each next one finds what the last has left. A number, the *cut*, decides
//! everything: divided by [`CUTS`] it names the life, and so layout, tunables, load and schedule; the rest says how often the power
//! has gone. To do a cut again is to live the life up to it.
//!
//! ```text
//! make a pool ─► open ─► load: files, volumes, changes of the pool ─► power goes ─► what devices kept ─► import, verify
//!                  ▲          (now and then already while it is opened)                                        │
//!                  └──────────────── compare all with the model as of the txg that is there ◄──────────────────┘
//! ```
//!
//! Devices may fail before the cut too: one of those that the pool can do without is away all the while, or one or all fail for a while
//! and come back or not. Whichever has missed something stays the one that may miss more, since there is no resilvering yet.
//!
//! In some lives snapshots are taken, and all is done with them that can be done, while others write: see `snapshots`.
//!
//! In most lives the pool gets another vdev under load, on devices with an earlier life in another pool that got further. As of each
//! txg it has it or not, and has it from the txg on that the client was told of.
//!
//! * [`machine`]: layouts, devices, and how a cut treats what they had not made stable: whole writes and sectors survive or not, in
//!   any order; some devices lie about nothing and lose everything.
//! * `aim`: cuts that come at a step of a commit, and not at a time that is drawn.
//! * [`load`]: who changes things. Each has what it changes for itself, so that a model of it is a list: which change in which txg.
//! * [`model`]: that list, and what a file, a range of a volume, the datasets are as of a txg.
//! * `snapshots`: who takes snapshots, and what is made of them; with a model and a verdict of their own.
//! * [`life`]: the course above.
//! * `judge`: the verdict below.
//! * [`zdb`]: OpenZFS's own verdict on some of the images.
//! * [`mutants`]: whether the verdict finds bugs that are there ([`cenote_taskq::mutant`]).
//!
//! # Verdict
//!
//! After each cut the pool can be imported; `verify` finds every copy of every block sound and the space accounts exact; its txg is
//! not before the last that was reported synced; it has every change that a client was told is on disk, by the answer to `fsync`,
//! a write with `O_SYNC`, `FLUSH`, `FUA` or a command (the answers are those of `cenote_zil::Log` and
//! `cenote_zvol::live::LiveVolume`, which the front ends pass on), once intent logs are replayed (`replayed`); before that every file,
//! volume and property is as of exactly that txg; where snapshots were taken so are they, and all accounts of space are those of the
//! block trees; and it can be opened
//! and written on, with a second book that every allocation and device write is checked against. A panic anywhere, a simulation
//! that stands still or takes more than [`life::STEPS_MAX`] steps, is a failure too.
//!
//! At random it is judged in other ways too: wound back to one of the two txgs before, if they are of the same stretch, since what they
//! refer to may not have been used again yet; with a device lost or as it was at the cut before, as far as the layout can do without
//! it, when everything but that device's copies must be as promised; and, where writes were under way when the power went, while they
//! reach the devices late.
//!
//! # Rejected
//!
//! *Enumerating every write as a place to cut* a life: the interesting states are subsets of what is in flight, of which there are too
//! many to enumerate and which chance finds. Of short runs every moment is cut: see [`points`]. *Real processes that are killed*: they are another test, since a kill keeps what the
//! kernel was given.

mod aim;
mod judge;
pub mod life;
pub mod load;
pub mod machine;
pub mod model;
pub mod mutants;
pub mod points;
mod replayed;
mod snapshots;
pub mod zdb;

/// Cuts in one life.
pub const CUTS: u64 = 4;
