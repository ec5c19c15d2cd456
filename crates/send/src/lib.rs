//! Send streams: making them, reading and checking them record by record, and receiving them.
//!
//! # Need
//!
//! `zfs send` writes a snapshot, or the difference of two, as a stream of bytes; a file in a backup is such a stream
//! years later. Before anything is received from it, and to tell what is in it at all, it must be read and checked from
//! its first byte to its last, without trusting it.
//!
//! [`sender`] makes a stream of a snapshot, [`package`] several behind one list, [`receiver`] makes a snapshot of a stream, [`rewrite`] a stream
//! of a stream; each has a theory of its own. The rest reads.
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
//! One running fletcher-4 covers everything from a BEGIN to its END. Each record but BEGIN carries the sum of what
//! precedes it at its own end, and END states it once more in its body. Old senders left the former zero.
//!
//! # Life of a record
//!
//! [`StreamDecoder`] does no I/O: it is given the bytes of a record and says how many of payload follow, then is given
//! those in pieces. That is what an asynchronous receiver drives; [`StreamReader`] drives it over any
//! [`std::io::Read`]. Every byte passes the checksum; a record whose stated sum is not the running one is refused
//! before it is looked at. [`mod@dump`] prints what `zstream dump` prints.
//!
//! # Invariants
//!
//! 1. Memory is bounded by the stream's own length and by the format's limits: 16 MiB for a block, 256 MiB for the list
//!    of a package, and nothing is set aside for bytes that have not arrived.
//! 2. A record is handed out only after its own checksum was right (unless that was switched off) and its place in the
//!    order BEGIN … END is allowed.
//! 3. The end of the input anywhere but after the last END is an error that says where.
//!
//! # Rejected
//!
//! Verifying a stream in a first pass and using it in a second: streams come through pipes.

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
