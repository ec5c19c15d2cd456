//! Devices: leaves, mirrors, raidz, draid, indirect vdevs; verified reads, and writes that go to every child.
//!
//! # Theory
//!
//! **Need.** A block pointer names a place as (top-level vdev, offset). The place may be on one disk, on several copies, on a parity stripe
//! over a changing number of disks, or on a vdev that was removed years ago. Disks fail, disappear for a while and come back stale, and
//! return wrong data. The layers above want the bytes that pass verification, if any combination of the devices' answers yields them, and a
//! record of the devices that were wrong.
//!
//! **On disk.** Each leaf has four labels ([`cenote_format::label`]) with the configuration of its top-level vdev and a
//! ring of uberblocks; between the labels lies the data area, which DVA offsets count from. The MOS holds the whole
//! configuration, a dirty time log for each leaf that missed something, and the mappings of removed vdevs. How a block is
//! laid out over children is a pure function of configuration, offset, size and birth txg: [`layout`].
//!
//! **In memory.** [`leaf::probe_device`] turns a device into [`leaf::LabelReport`]s. [`config::VdevConfig`] is the tree as
//! configured; [`tree::VdevTree`] is the tree as opened. It has a current *topology*: an immutable arena of nodes, each with its kind,
//! its layout and its children, and with references to its state: the device and its queue, the txgs it has missed, its error
//! counts. A change of the vdevs of a pool in use is another topology over the same states, swapped in between two txgs' writes
//! ([`tree::VdevTree::change`]).
//!
//! **The life of a read.** `VdevTree::read` finds the top-level vdev and goes by its kind. A leaf is read once. A
//! mirror asks one child, leaf or stripe, after another, by a policy ([`mirror`]) and by resort (current children, then stale
//! ones), and a second one when an answer is late. A stripe reads its data columns; then parity, rebuilding what is known to be lost; then stale columns;
//! then it takes sets of columns for lost that no device admits to ([`tree`] has the stages). Whatever comes out is
//! given to the caller's `verify`, and only accepted bytes are returned. Every leaf that failed or answered wrongly
//! is reported when it is noticed: into its counts and the bounded [`fault::FaultLog`]. An error lists what each
//! device's part in it was.
//!
//! **The life of a write.** `VdevTree::write` goes the same ways with a block that is as long as it will be on disk. A mirror
//! gives it to every child, a stripe computes parity and gives each child its column, all at once. A leaf that cannot take its part has
//! missed the txg: its dirty time log (DTL) gets the txg, and readers ask that leaf last. The result names such leaves. The write is good
//! while the block could be read back.
//!
//! **Invariants.**
//! 1. Nothing is returned that the caller's `verify` did not accept.
//! 2. No read or write leaves a leaf's data area, except for the scratch area of a raidz expansion; labels are never data.
//! 3. Every loop that a configuration or mapping can drive is bounded: nesting, spares that stand for each other, chained
//!    mappings, sets of suspects, combinations of copies, faults kept.
//! 4. A device is blamed for wrong bytes only after the right ones are known, or when it alone was asked for all of them.
//! 5. A read of a leaf allocates its buffer and nothing else, and spawns nothing, unless the pool is in use: then a [`watch`] follows
//!    the read.
//! 6. A device that hangs holds up a pool in use only where the pool cannot do without it ([`tree`]).
//!
//! 7. An I/O uses the topology that was current when it began, until it ends.
//!
//! **Locking.** A topology is immutable and counted; taking the current one is a shared lock of its top-level vdev's own. What changes
//! (leaf states, counts) is atomic; missed txgs and the reflow offset are behind read-write locks that are never held across an
//! await, and the txgs are looked at only when a flag says that there are any.
//!
//! **Crash.** Reads change nothing on disk. A write that a crash cuts short belongs to a txg that was never committed: nothing points to
//! it. What was flushed is stable. [`commit`] makes a txg the pool's newest, in an order that leaves the old
//! pool or the new one on the disks whenever the power goes.
//!
//! **Rejected.** A trait object for each kind of vdev, as OpenZFS has: reads differ in shape, not only in detail, and one
//! `match` keeps the leaf's path free of boxes. Rebuilding parity columns instead of reading the other columns: every stage keeps the
//! columns that it read, so that they can be compared with the correct data at the end.

pub mod commit;
pub mod config;
pub mod disk;
pub mod dtl;
pub mod error;
pub mod fault;
#[doc(hidden)]
pub mod fuzz;
mod iostat;
pub mod layout;
pub mod leaf;
pub mod mirror;
pub mod partition;
pub mod queue;
pub mod ring;
pub mod tree;
pub mod tunables;
mod watch;
