//! Devices: leaves, mirrors, raidz, draid, indirect vdevs; verified reads, and writes that go to every child.
//!
//! # Theory
//!
//! **Need.** A block pointer names a place as (top-level vdev, offset). The block may be on one disk, on several mirror children, on a
//! parity stripe over an expandable number of disks, or on a vdev that was removed years ago. Disks fail, disappear for a while and come
//! back stale, and return wrong data. The layers above want the bytes that pass verification, if any combination of the children's data
//! yields them, and an error count for each device that returned wrong data.
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
//! ([`tree::TreeControl::change`]).
//!
//! **The life of a read.** `VdevTree::read` finds the top-level vdev and goes by its kind. A leaf is read once. A mirror asks one child
//! (leaf or stripe) after another, chosen by a policy ([`mirror`]), and children whose DTL has the block's birth txg last; when an answer
//! is late it asks a second child as well. A stripe reads its data columns; then parity, to reconstruct missing columns; then stale
//! columns; then it tries combinations of silently corrupt columns ([`tree`] has the stages). The caller's `verify` checks each result,
//! and only accepted bytes are returned. Every leaf that failed or returned wrong data is reported at once, to its error counts and to
//! the bounded [`fault::FaultLog`]. The final error lists how each device contributed to it. What was wrong can be written again, in its place,
//! by whoever keeps the place ([`tree::VdevTree::mend`]).
//!
//! **The life of a write.** `VdevTree::write` takes the same paths with the physical block. A mirror
//! gives it to every child, a stripe computes parity and gives each child its column, all at once. A leaf that cannot take its part has
//! missed the txg: the txg is added to its dirty time log (DTL), and reads of blocks born in that txg ask the leaf last. The result names
//! such leaves. The write succeeds if the block can be reconstructed from the leaves that took their part.
//!
//! **Invariants.**
//! 1. Nothing is returned that the caller's `verify` did not accept.
//! 2. No read or write leaves a leaf's data area, except for the scratch area of a raidz expansion; labels are never data.
//! 3. Every loop that a configuration or mapping can drive is bounded: nesting, spares that stand for each other, chained
//!    mappings, sets of suspects, combinations of copies, faults kept.
//! 4. A checksum error is counted for a device only when the correct bytes are known, or when the device alone supplied the whole block.
//! 5. A read of a leaf allocates its buffer and nothing else, and spawns nothing, unless the pool is in use: then a [`watch`] follows
//!    the read.
//! 6. A device that hangs holds up a pool in use only where the pool cannot do without it ([`tree`]).
//!
//! 7. An I/O uses the topology that was current when it began, until it ends.
//!
//! **Locking.** A topology is immutable and reference-counted; an I/O takes the current one under a read lock that only I/O to the same
//! top-level vdev shares. The mutable state (leaf states, counts) is atomic; DTLs and the reflow offset are behind read-write locks that
//! are never held across an await, and a DTL is looked at only if a flag says that it is not empty.
//!
//! **Crash.** Reads change nothing on disk. A write that a crash interrupts belongs to an uncommitted txg, so no block pointer refers to
//! it. Flushed writes are stable. [`commit`] writes the labels and the uberblock in an order that leaves either the old or the new txg as
//! the pool's newest if power fails.
//!
//! **Rejected.** A trait object for each kind of vdev, as OpenZFS has: reads differ in shape, not only in detail, and one
//! `match` keeps the leaf's path free of boxes. Rebuilding parity columns instead of reading the other columns: every stage keeps the
//! columns that it read, so that they can be compared with the correct data at the end.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

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
