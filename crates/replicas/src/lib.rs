//! The replica test: datasets with random histories, sent and received in all ways; the received snapshots must equal the source.
//!
//! # Need
//!
//! A stream is a difference of two trees, written by a walk that skips what is old, and made by a receiver that changes objects in their
//! places. OpenZFS's bugs in this code were only a few lines long and lost data silently: a hole that was not sent, a file that reused an
//! object number with another block size, a short last block. Each needs two or three things together: how the dataset came to be as it
//! is, what the stream builds on, which forms its records have, what the receiver had before.
//!
//! # Life of a case
//!
//! A number, the *case*, decides everything.
//!
//! ```text
//!  Source: a dataset and its model, changed at random ──► snapshots, bookmarks, clones      pool `written`
//!      │                                                      each with a copy of its model
//!      ▼ stream, package: full, from a snapshot, a bookmark, an origin; with or without -L -e -c -w, redacted
//!  bytes ──► broken off, anywhere or between two records ──► gone on with by a token ──► received, -s -F -d -e -o -x      pool `replica`
//!      ▼
//!  judge: each snapshot of the replica has what its model has; the same objects as a whole stream of the source; and its own stream comes to
//!         the same again. Space adds up, `verify` finds nothing, of some `zdb -bcc` neither.
//! ```
//!
//! * [`tree`]: a file system and its model ([`cenote_sim::tree`]): files with holes, names of all lengths, links, devices, attributes in dnodes, spill blocks and
//!   hidden directories; block and dnode sizes change meanwhile.
//! * [`objects`]: the objects of a dataset and their model: numbers that are used again, dnodes of all sizes, spill blocks.
//! * [`source`]: either of them, or a volume, in a pool, with snapshots.
//! * [`streams`]: streams on their way.
//! * [`swap`]: streams as a big-endian machine would send them, which every fourth of those is.
//! * [`records`]: a receiver of a few lines. Its result for a whole stream of the source is the state that a replica must have.
//! * [`case`](mod@case): the courses that a case can take.
//! * [`golden`]: pools and streams of OpenZFS, encrypted ones too, which are sent and received like ours.
//! * [`mutants`]: whether the judge finds bugs that are there ([`cenote_taskq::mutant`]).
//!
//! # Rejected
//!
//! *Comparing records of a stream and of its replica's stream one by one*: a replica has other trailing holes and may have smaller blocks,
//! and both are right. The results of the records are compared. *OpenZFS as the other side of each case*: it needs a virtual machine; some
//! rounds with it stand in `tools/openzfs-vm`, and what it has written and sent is in the golden pools.

#![forbid(unsafe_code)]

pub mod case;
pub mod golden;
pub mod mutants;
pub mod objects;
pub mod records;
pub mod source;
pub mod streams;
pub mod swap;
pub mod tree;
mod trees;
mod world;
