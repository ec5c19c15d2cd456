//! The power-cut test: pools under mixed load in simulation, whose power goes at any moment.
//!
//! # Need
//!
//! Changes that were acknowledged as durable must survive any crash, and the pool must be as of one txg. Code review alone cannot show
//! that: a block that is reused a txg too early, or an uberblock written before a flush, does harm only if power fails in exactly that
//! moment, and only if the device has kept the wrong part of its unflushed writes.
//!
//! # Life of a cut
//!
//! A *life* is one pool with [`CUTS`] cuts, each of which starts from the state that the previous one left. A number, the *cut*,
//! determines everything: divided by [`CUTS`] it is the seed of the life, and so of layout, tunables, load and schedule; the remainder is
//! the number of the cut in the life. To reproduce a cut, the whole life up to it is run again.
//!
//! ```text
//! make a pool ─► open ─► load: files, volumes, changes of the pool ─► power goes ─► what devices kept ─► import, verify
//!                  ▲          (now and then already while it is opened)                                        │
//!                  └──────────────── compare all with the model as of the txg that is there ◄──────────────────┘
//! ```
//!
//! Devices may fail before the cut too: one of those that the pool can do without is away all the while, or one or all fail for a while
//! and come back or not. Only a device that has already missed txgs may miss more, since there is no resilver yet.
//!
//! In some lives two tasks run all snapshot commands while the others write: see `snapshots`.
//!
//! In most lives `zpool add` adds a vdev under load, on devices with labels of another pool with higher txgs. After a cut the pool has
//! the vdev if the txg on disk is not older than the acknowledged txg of the command.
//!
//! * [`machine`]: layouts, devices, and the effect of a cut on unflushed writes: whole writes and single sectors survive or not, in any
//!   order; a device may also lose all of them.
//! * `aim`: cuts that come at a step of a commit, and not at a time that is drawn.
//! * [`load`]: the tasks that change the pool. Each task has files, ranges or datasets of its own, so its model is a list of changes with
//!   their txgs.
//! * [`model`]: these lists, and the state of a file, a range of a volume or the datasets as of a txg.
//! * `snapshots`: the tasks that take snapshots and use them, with a model and checks of their own.
//! * [`life`]: the course above.
//! * `judge`: the verdict below.
//! * [`hosts`]: other lives, in which a second host gets the pool.
//! * [`zdb`]: OpenZFS's own verdict on some of the images.
//! * [`log_space`]: lives of another kind, short of space, whose clients wait for every write.
//! * [`schedules`]: pools that live through one failure of a disk after the other.
//! * [`mutants`]: whether the verdict finds bugs that are there ([`cenote_taskq::mutant`]).
//!
//! # Verdict
//!
//! After each cut the pool can be imported; `verify` finds every copy of every block valid and the space accounting exact; its txg is not
//! older than the last that was reported as synced; it has every change that was acknowledged as durable, by the answer to `fsync`,
//! a write with `O_SYNC`, `FLUSH`, `FUA` or a command (the answers are those of `cenote_zil::Log` and
//! `cenote_zvol::live::LiveVolume`, which the front ends pass on), once intent logs are replayed (`replayed`); before that every file,
//! volume and property is as of exactly that txg; snapshots have the contents of their txg, and all space accounting matches the block
//! trees; and the pool can be opened and written again, while a second record of allocated extents checks every allocation and device
//! write. A panic anywhere, a simulation that stands still or takes more than [`life::STEPS_MAX`] steps, is a failure too.
//!
//! At random the pool is also checked after a rewind by one or two txgs (of the time since the last opening), whose blocks may not have
//! been reused yet; with one device lost, or with its contents as of the previous cut, if the redundancy allows it; and while in-flight
//! writes reach the devices late.
//!
//! # Rejected
//!
//! *A cut at every write* of a life: the interesting states are subsets of the writes in flight, which are too many to enumerate but are
//! found by chance. For short runs every moment is cut: see [`points`]. *Killing real processes*: that is another test (`cargo xtask
//! kills`), since a kill loses no write that the kernel already has.

mod aim;
pub mod hosts;
mod judge;
pub mod life;
pub mod load;
pub mod log_space;
pub mod machine;
pub mod model;
mod models;
pub mod mutants;
pub mod points;
mod replayed;
pub mod schedules;
mod snapshots;
mod stage;
pub mod zdb;

/// A device's size in bytes.
pub const DISK_BYTES: u64 = 80 << 20;
/// Cuts in one life.
pub const CUTS: u64 = 4;
