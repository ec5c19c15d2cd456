//! The power-cut test: pools under mixed load in simulation, whose power goes at any moment.
//!
//! # Need
//!
//! What was reported as synced is there after any crash, and what is there is a whole pool as of one txg. No reading of the code
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
//! * [`machine`]: layouts, devices, and how a cut treats what they had not made stable: whole writes and sectors survive or not, in
//!   any order; some devices lie about nothing and lose everything.
//! * [`load`]: who changes things. Each has what it changes for itself, so that a model of it is a list: which change in which txg.
//! * [`model`]: that list, and what a file, a range of a volume, the datasets are as of a txg.
//! * [`life`]: the course above.
//!
//! # Verdict
//!
//! After each cut the pool can be imported; `verify` finds every copy of every block sound and the space accounts exact; its txg is
//! not before the last that was reported synced; every file, volume and property is as of exactly that txg; and it can be opened
//! and written on, with a second book that every allocation and device write is checked against. A panic anywhere, a simulation
//! that stands still or takes more than [`life::STEPS_MAX`] steps, is a failure too.
//!
//! # Rejected
//!
//! *Enumerating every write as a place to cut*: the interesting states are subsets of what is in flight, of which there are too many
//! to enumerate and which chance finds. *Real processes that are killed*: they are another test, since a kill keeps what the
//! kernel was given.

pub mod life;
pub mod load;
pub mod machine;
pub mod model;

/// Cuts in one life.
pub const CUTS: u64 = 4;
