//! Volumes over NBD, the protocol that Linux, QEMU and libnbd speak to block devices over a socket.
//!
//! # Need
//!
//! A volume, or a snapshot of one, holds a disk image: a file system, a partition table, a virtual machine. NBD lets the
//! kernel (`nbd-client`), QEMU and tools (`nbdcopy`, `nbdfuse`, fio) use it without a ZFS module and without copying it
//! out first. This crate implements the protocol and the sockets; it accesses volumes through the traits [`Export`] and [`Exports`].
//!
//! # The protocol in short
//!
//! The fixed newstyle handshake: the server greets, the client sets options one by one (list the exports, ask for
//! structured replies, choose the metadata contexts of block status), and finally opens an export by name. From then on the client sends
//! requests (28 bytes and data) and the server sends replies, in any order: a reply carries the cookie of its request.
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
//! 1. The reader takes a request's cost from the connection's budget, waiting if there is none, and spawns a task. If the client has no
//!    other request in flight (it waits for each reply), the reader thread polls the request itself, up to its first wait.
//! 2. The task asks the export and puts a reply in the queue; data stays in the engine's reference-counted blocks.
//! 3. The thread that has made a reply sends it, with others that are queued, as far as the socket takes bytes without a wait. The
//!    writer sends the rest, several replies a system call. Then the request's cost is returned to the budget.
//!
//! So a request of a client that waits for each reply wakes one thread of the server, where a separate task and the writer would wake two
//! more.
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
//!    the data of its writes nor takes its replies within [`limits::STALL`] and what their bytes may take, is disconnected by the watch
//!    thread. A client without outstanding data or replies may stay idle.
//! 4. A read-only export refuses writes with EPERM before they reach the engine.
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
mod transport;

pub use export::{BlockSizes, Export, ExportError, ExportErrorKind, ExportName, Exports, Extent, Piece, StaticExports};
pub use memory::MemoryExport;
pub use server::{Listener, Server, ServerOptions, ServerStats};
pub use transport::Transport;
