//! FUSE's messages as bytes: requests of the kernel in our terms, and replies and notices in its.
//!
//! # Theory
//! A request is a header, an argument of a fixed size that its operation has, and a payload (names, data). Read from `/dev/fuse` the
//! three come one after the other; a ring (FUSE over io_uring) has them in three places ([`of_device`], [`of_ring`]). All the rest is
//! the same for both. A reply is a header and a body; this module makes bodies, and the sender puts the header before them.
//!
//! The kernel is not an adversary, but its messages are checked like other input: every length is checked, and a message that is
//! inconsistent is refused with its fault ([`Fault`]). There is no unsafe code and no structure laid over bytes.

mod bytes;
pub(crate) mod reply;
pub(crate) mod request;

pub(crate) use bytes::Fault;
pub(crate) use request::{Header, Operation, of_device, of_ring};
