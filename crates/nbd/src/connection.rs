//! One connection from greeting to farewell, over any pair of byte streams.

use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;

use cenote_taskq::Handle;

use crate::budget::{Budget, SharedBudget};
use crate::export::Exports;
use crate::handshake::{Directory, shake_hands};
use crate::reply::ReplyQueue;
use crate::transmission::read_requests;
use crate::transport::{ConnectionError, Transport};

/// Bytes per read from the socket: some two thousand requests.
const READ_BUFFER_BYTES: usize = 64 << 10;

/// Serves one client; returns when it has left and all its requests are answered.
/// `shared` bounds the data in flight of all connections.
pub(crate) fn serve_stream(
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
        assert_eq!(
            queue.unanswered(),
            0,
            "every request that was read is answered when none is in flight (invariant 1)"
        );
        queue.close();
        let written = writing.join().unwrap_or_else(|_| Err(io::Error::other("the writer thread panicked")));
        read.and(written.map_err(ConnectionError::Io))
    })
}
