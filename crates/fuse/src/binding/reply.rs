//! The reply to one request: sent once, on whatever way the request came.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::bound::Bound;
use super::outbox::Outbox;
use crate::raw::Entry;
use crate::server::Errno;
use crate::wire::reply::header;

/// Where a reply goes.
pub(super) enum Way {
    /// To the descriptor that the request was read from.
    Device(Arc<OwnedFd>),
    /// Into the entry of a ring that the request came in.
    Ring(Entry, Arc<Outbox>),
}

/// The reply to one request. Dropped without an answer (a panic, a runtime going away) it is `EIO`.
pub(super) struct Reply {
    unique: u64,
    way: Option<Way>,
}

impl Reply {
    pub(super) fn new(unique: u64, way: Way) -> Self {
        Self { unique, way: Some(way) }
    }

    /// The requests of the same queue that wait for others, where it came by one.
    pub(super) fn waiting(&self) -> Option<Arc<Bound>> {
        match &self.way {
            Some(Way::Ring(_, outbox)) => Some(Arc::clone(outbox.waiting())),
            _ => None,
        }
    }

    /// Answers with a body.
    pub(super) fn body(mut self, body: &[u8]) {
        self.send(0, body);
    }

    /// Answers that it is done.
    pub(super) fn done(self) {
        self.body(&[]);
    }

    /// Leaves a request alone that takes no reply.
    pub(super) fn none(mut self) {
        self.way = None;
    }

    pub(super) fn error(mut self, errno: Errno) {
        self.send(errno.raw_os_error(), &[]);
    }

    pub(super) fn result(self, result: Result<impl AsRef<[u8]>, Errno>) {
        match result {
            Ok(body) => self.body(body.as_ref()),
            Err(errno) => self.error(errno),
        }
    }

    fn send(&mut self, errno: i32, body: &[u8]) {
        match self.way.take() {
            None => {}
            Some(Way::Device(device)) => {
                let head = header(self.unique, errno, body.len());
                // An error means that the request has no waiter any more: it was interrupted, or the mount is gone.
                let _ = rustix::io::writev(&*device, &[IoSlice::new(&head), IoSlice::new(body)]);
            }
            Some(Way::Ring(mut entry, outbox)) => {
                if !entry.set_reply(&header(self.unique, errno, body.len()), body) {
                    entry.set_reply(&header(self.unique, Errno::IO.raw_os_error(), 0), &[]);
                }
                outbox.put(entry);
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(Errno::IO.raw_os_error(), &[]);
    }
}
