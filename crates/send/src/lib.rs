//! Send streams: making them, reading and checking them record by record, and receiving them.
//!
//! # Need
//!
//! `zfs send` writes a snapshot, or the difference between two, as a stream of bytes, which may be stored in a backup for years. A
//! receiver, and a tool that lists its contents, must read and check an untrusted stream from its first byte to its last.
//!
//! [`sender`] makes a stream of a snapshot, [`package`] makes a compound stream of several, [`receiver`] makes a snapshot of a stream,
//! and [`rewrite`] makes a stream of another stream; each module describes its own theory. The rest of the crate reads streams.
//!
//! # The stream
//!
//! Records of a fixed size (`cenote_format::stream` has their pictures), each followed by its payload:
//!
//! ```text
//!   one stream:   BEGIN  OBJECT+bonus  WRITE+block  FREE ...  END
//!   a package:    BEGIN+list  END  [BEGIN ... END] [BEGIN ... END] ...  END
//!                 (compound)       one stream each                      (no checksum)
//! ```
//!
//! One running fletcher-4 covers everything from a BEGIN to its END. Each record except BEGIN has, in its last 32 bytes, the checksum of
//! the stream up to there, and END also has it in its body. Old senders left the checksum at the end of records zero.
//!
//! # Life of a record
//!
//! [`StreamDecoder`] does no I/O: it takes the bytes of a record and returns the length of the payload, then takes the payload in pieces. An
//! asynchronous receiver calls it directly; [`StreamReader`] drives it over any [`std::io::Read`]. Every byte is checksummed; a record whose
//! checksum is wrong is refused before it is interpreted. [`mod@dump`] prints the same text as `zstream dump`.
//!
//! # Invariants
//!
//! 1. Memory is bounded by the stream's own length and by the format's limits: 16 MiB for a block, 256 MiB for the list of a package. Nothing is
//!    allocated for bytes that have not arrived.
//! 2. A record is returned only after its checksum was verified (unless that was switched off) and its place in the order BEGIN … END was
//!    checked.
//! 3. If the input ends anywhere but after the last END, the error gives the offset.
//!
//! # Rejected
//!
//! Verifying a stream in a first pass and using it in a second: streams come through pipes.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod account;
mod decoder;
mod dump;
mod error;
pub mod fuzz;
mod nvprint;
pub mod package;
mod reader;
pub mod receiver;
pub mod rewrite;
pub mod sender;
#[cfg(test)]
mod tests;

pub use account::{Account, KindAccount};
pub use decoder::{Checks, DecodedRecord, StreamDecoder};
pub use dump::{DumpOptions, DumpOutcome, dump};
pub use error::SendError;
pub use nvprint::{dump_nvlist, print_nvlist};
pub use reader::{StreamItem, StreamReader};
