//! One connection from greeting to farewell, over any pair of byte streams.

use std::io::{self, BufReader, IoSlice, Read, Write};
use std::sync::Arc;

use cenote_taskq::Handle;
use thiserror::Error;

use crate::budget::{Budget, SharedBudget};
use crate::export::{ExportError, Exports};
use crate::handshake::{Directory, shake_hands};
use crate::reply::ReplyQueue;
use crate::transmission::read_requests;

/// Why a connection ended other than by the client's leave.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The client does not keep to the protocol.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// An export could not be opened, and the handshake in use has no way to say so.
    #[error("export: {0}")]
    Export(ExportError),
    /// The socket failed.
    #[error("socket: {0}")]
    Io(io::Error),
}

/// Sends some of these bytes, or none with [`io::ErrorKind::WouldBlock`]. It does not block.
pub type Sender = Box<dyn Fn(&[IoSlice<'_>]) -> io::Result<usize> + Send + Sync>;

/// The control of a connection's socket, beside its bytes.
pub trait Transport: Sync {
    /// The handshake is over: the client may be silent from now on.
    fn handshake_done(&self) {}

    /// Ends the connection so that a blocked read returns.
    fn hang_up(&self) {}

    /// Whether no more requests are to be read.
    fn is_closing(&self) -> bool {
        false
    }

    /// A request was read.
    fn count_request(&self) {}

    /// From now on the client is to send this many bytes of data; `None`: it has.
    fn expect_data(&self, _bytes: Option<u64>) {}

    /// A way to send as many bytes as the client can be sent at once, from any thread; without one, replies are left to the writer.
    fn sender(&self) -> Option<Sender> {
        None
    }

    /// From now on the client is to take this many bytes of replies; `None`: it has.
    fn expect_taken(&self, _bytes: Option<u64>) {}
}

/// Bytes per read from the socket: some two thousand requests.
const READ_BUFFER_BYTES: usize = 64 << 10;

/// Serves one client; returns when it has left and all its requests are answered.
/// `shared` bounds the data in flight of all connections.
pub fn serve_stream(
    handle: &Handle,
    exports: &Arc<dyn Exports>,
    shared: &Arc<SharedBudget>,
    reader: impl Read,
    mut writer: impl Write + Send,
    transport: &dyn Transport,
) -> Result<(), ConnectionError> {
    let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader);
    let directory = Directory { handle, exports };
    let Some(agreed) = shake_hands(&mut reader, &mut writer, &directory)? else { return Ok(()) };
    transport.handshake_done();
    let queue = Arc::new(ReplyQueue::new(transport.sender()));
    let budget = Arc::new(Budget::new(Arc::clone(shared)));
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| queue.write_all(writer, transport));
        let read = read_requests(&mut reader, handle, &agreed, &queue, &budget, transport);
        budget.drained();
        queue.close();
        let written = writing.join().unwrap_or_else(|_| Err(io::Error::other("the writer thread panicked")));
        read.and(written.map_err(ConnectionError::Io))
    })
}
