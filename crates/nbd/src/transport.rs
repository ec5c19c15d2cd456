//! A connection's socket as the rest sees it, and the reasons for its end.

use std::io::{self, IoSlice};

use thiserror::Error;

use crate::export::ExportError;

/// Why a connection ended other than by the client's leave.
#[derive(Debug, Error)]
pub(crate) enum ConnectionError {
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
pub(crate) type Sender = Box<dyn Fn(&[IoSlice<'_>]) -> io::Result<usize> + Send + Sync>;

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
