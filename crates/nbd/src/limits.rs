//! Bounds on what a client can make the server hold. Chosen by eye, unless said otherwise.

use std::time::Duration;

/// Largest read or write, announced to clients. 32 MiB is what every client can be expected to stay within; larger
/// requests are refused.
pub const REQUEST_BYTES: u32 = 32 << 20;

/// Data of requests in flight, of one connection.
pub(crate) const IN_FLIGHT_BYTES: u64 = 64 << 20;

/// Requests in flight, of one connection.
pub(crate) const IN_FLIGHT_REQUESTS: u64 = 256;

/// An option's data. The protocol allows names of 4 KiB; a list of context queries may hold several.
pub const OPTION_BYTES: u32 = 64 << 10;

/// Longest export name or context query, by the protocol.
pub(crate) const STRING_BYTES: usize = 4096;

/// How many options a client may set before it opens an export.
pub(crate) const OPTIONS: u32 = 1024;

/// Extents in one block status reply. The protocol wants at most a million or so; clients ask again for the rest.
pub(crate) const EXTENTS: usize = 8192;

/// Data of requests in flight, of all connections of a server together; further requests wait.
pub(crate) const SERVER_BYTES: u64 = 256 << 20;

/// How long a client may take for the whole handshake.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(30);

/// How long a client may take to send the data of a write, or to take replies, beside what [`SLOWEST_BYTES_A_SECOND`] allows
/// for their bytes. For that time it occupies memory that all clients share.
pub(crate) const STALL: Duration = Duration::from_secs(60);

/// The slowest client that is waited for.
pub(crate) const SLOWEST_BYTES_A_SECOND: u64 = 64 << 10;

/// How long a client may leave a reply unread during shutdown.
pub(crate) const SHUTDOWN_WRITE: Duration = Duration::from_secs(10);
