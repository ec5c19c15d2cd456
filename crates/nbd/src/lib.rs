//! Volumes over NBD, the protocol that Linux, QEMU and libnbd speak to block devices over a socket.
//!
//! # Need
//!
//! A volume, or a snapshot of one, holds a disk image: a file system, a partition table, a virtual machine. NBD lets the
//! kernel (`nbd-client`), QEMU and tools (`nbdcopy`, `nbdfuse`, fio) use it without a ZFS module and without copying it
//! out first. This crate is the protocol and the sockets; what is exported it knows through [`Export`] and [`Exports`].
//!
//! # The protocol in short
//!
//! The fixed newstyle handshake: the server greets, the client sets options one by one (list the exports, ask for
//! structured replies, choose what block status is about), and at last opens an export by name. From then on requests
//! of 28 bytes and replies pass each other freely; a reply names its request by a cookie, so any order will do.
//!
//! # Structures and the life of a request
//!
//! ```text
//!                        +------------------------- one connection -------------------------------+
//!   socket --bytes-->    | reader thread: handshake, then requests      budget: requests, bytes   |
//!                        |        | spawn                                  ^  taken      | given  |
//!                        |        v                                        |             | back   |
//!                        |   engine tasks: Export::read, block_status, ... |             |        |
//!                        |        | reply                                                |        |
//!                        |        v                                                      |        |
//!   socket <--bytes--    | queue --> sent at once; the rest by the writer thread --------+        |
//!                        +------------------------------------------------------------------------+
//! ```
//!
//! 1. The reader takes a request's cost from the connection's budget, waiting if there is none, and spawns a task. If the client has
//!    nothing else on its way, as one that waits for each reply, the reader serves the request itself up to its first wait.
//! 2. The task asks the export and puts a reply in the queue; data stays in the engine's reference-counted blocks.
//! 3. The thread that has made a reply sends it, with others that are queued, as far as the socket takes bytes without a wait. The
//!    writer sends the rest, several replies a system call. With that the cost comes back.
//!
//! So a client that waits for each reply wakes one thread of ours for a request, where a task and a writer were two more.
//!
//! Connections have two threads each because blocking sockets are the simplest thing that keeps many requests in flight:
//! the engine's workers never wait for a socket, and a client that does not read its replies stops only itself.
//!
//! # Invariants
//!
//! 1. Every request that was read gets exactly one reply (several chunks, if structured), even if its task panics.
//! 2. A connection holds at most [`limits::IN_FLIGHT_BYTES`] of data and [`limits::IN_FLIGHT_REQUESTS`] requests, all of a server
//!    together [`limits::SERVER_BYTES`] of data (or one request, if that is larger); requests beyond wait.
//! 3. Nothing a client sends makes the server allocate more than [`limits::OPTION_BYTES`] during the handshake or the budget
//!    afterwards, nor wait for ever: a client that has not shaken hands within [`limits::HANDSHAKE`], or that neither sends
//!    the data of its writes nor takes its replies within [`limits::STALL`] and what their bytes may take, is ended by the
//!    watch thread. A client that owes nothing may be silent.
//! 4. A read-only export refuses writes with EPERM before the engine hears of them.
//! 5. [`Server::shutdown`] returns when every accepted request was answered and every thread has ended.
//!
//! # Rejected
//!
//! Waiting for the socket on the engine's workers: one slow client would stop a worker.
//! The oldstyle handshake: it cannot name an export.

mod budget;
mod connection;
mod export;
pub mod fuzz;
mod handshake;
pub mod limits;
mod memory;
mod proto;
mod reply;
mod server;
mod socket;
mod transmission;

pub use budget::SharedBudget;
pub use connection::{ConnectionError, Sender, Transport, serve_stream};
pub use export::{BlockSizes, Export, ExportError, ExportErrorKind, ExportName, Exports, Extent, Piece, StaticExports};
pub use memory::MemoryExport;
pub use server::{Listener, Server, ServerOptions, ServerStats};
