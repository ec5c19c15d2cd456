//! Requests read from `/dev/fuse`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::TRANSFER_MAX_BYTES;
use super::reply::{Reply, Way};
use crate::wire::{Fault, Header, Operation, of_device};

/// Room for a request's header and argument beside its payload.
const HEAD_MAX_BYTES: usize = 4096;

/// A descriptor that requests are read from and answered on.
pub(super) struct Device {
    descriptor: Arc<OwnedFd>,
    buffer: Vec<u8>,
}

impl Device {
    pub(super) fn new(descriptor: Arc<OwnedFd>) -> Self {
        Self { descriptor, buffer: vec![0; TRANSFER_MAX_BYTES as usize + HEAD_MAX_BYTES] }
    }

    /// The next request; `None` once the file system is unmounted. Blocks. Requests that do not add up are refused here.
    pub(super) fn next(&mut self) -> io::Result<Option<(Header, Operation, Reply)>> {
        loop {
            let len = match rustix::io::read(self.descriptor.as_fd(), &mut self.buffer) {
                Ok(len) => len,
                // The request was taken back before it was read, or there is none.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            // Without a header there is nobody to tell.
            let Some((header, operation)) = self.buffer.get(..len).and_then(of_device) else { continue };
            let reply = Reply::new(header.unique, Way::Device(Arc::clone(&self.descriptor)));
            match operation {
                Ok(operation) => return Ok(Some((header, operation, reply))),
                Err(_) if header.takes_no_reply() => reply.none(),
                Err(Fault::Unknown) => reply.error(Errno::NOSYS),
                Err(Fault::Malformed) => reply.error(Errno::IO),
            }
        }
    }
}
