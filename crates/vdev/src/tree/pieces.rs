//! Long work on a solid-state device that clients use: requests in pieces, each with a turn of its own in the device's queue.
//!
//! # Theory
//!
//! **Need.** A solid-state device serves many requests at once, but brings their bytes through one interface, one after the other: 128 KiB
//! take a SATA disk 0.24 ms there, and 1 MiB takes 1.9 ms. A client who reads 16 KiB, which takes 0.12 ms, waits behind them.
//!
//! **Shape.** The queue says before each piece how large it may be ([`LeafQueue::piece_bytes`]): small while clients use the device, the
//! whole rest otherwise. A piece is a request like any other: it waits, is aggregated, fails, and is dropped as such. The next one begins when
//! it is done, so a request has one piece at the device, and requests take turns.
//!
//! **Invariants.** 1. Pieces are the request: each byte of it is in one of them, in its place. 2. A request is good when all its pieces are, and
//! fails with the first that fails.
//!
//! **Rejected.** *One turn for all pieces*: a request of 16 MiB would hold it for a tenth of a second, whoever else came. *Pieces of a txg's
//! blocks*: a device where each takes 1 ms would write 16 MB/s.

use cenote_taskq::buf::{Block, Buf};

use super::Extent;
use crate::disk::Disk;
use crate::queue::{LeafQueue, QueueClass};

/// The most bytes of the next piece.
fn piece_bytes(disk: &Disk, queue: &LeafQueue, class: QueueClass) -> u64 {
    queue.piece_bytes(class, u64::from(disk.device().physical_sector_bytes()))
}

/// Whether a request of this class goes to the device in pieces now.
pub(super) fn is_in_pieces(disk: &Disk, queue: &LeafQueue, extent: Extent, class: QueueClass) -> bool {
    class.is_bulk() && extent.len > piece_bytes(disk, queue, class)
}

/// A read or a write that goes to a device piece by piece.
pub(super) struct Pieces {
    extent: Extent,
    done_bytes: u64,
    /// Of a read, what came.
    buf: Buf,
}

impl Pieces {
    pub(super) fn new(extent: Extent) -> Self {
        Self { extent, done_bytes: 0, buf: Buf::unfilled(0) }
    }

    /// The next piece; `None` after the last one.
    pub(super) fn next(&self, disk: &Disk, queue: &LeafQueue, class: QueueClass) -> Option<Extent> {
        let left = self.extent.len - self.done_bytes;
        let len = piece_bytes(disk, queue, class).min(left);
        (left != 0).then(|| Extent { address: self.extent.address + self.done_bytes, len })
    }

    /// The bytes of a write that a piece has.
    pub(super) fn part(&self, piece: Extent, block: &Block) -> Block {
        assert_eq!(block.len() as u64, self.extent.len, "a write has as many bytes as its place");
        block.slice(self.done_bytes as usize..(self.done_bytes + piece.len) as usize)
    }

    /// So many bytes more are written.
    pub(super) fn wrote(&mut self, len: u64) {
        self.done_bytes += len;
        assert!(self.done_bytes <= self.extent.len, "pieces are of their request (pieces, invariant 1)");
    }

    /// The piece that was next has been read.
    pub(super) fn put(&mut self, bytes: Buf) {
        let (from, len) = (self.done_bytes as usize, bytes.len());
        self.wrote(len as u64);
        if len as u64 == self.extent.len {
            self.buf = bytes;
            return;
        }
        if from == 0 {
            self.buf = Buf::unfilled(self.extent.len as usize);
        }
        self.buf[from..from + len].copy_from_slice(&bytes);
    }

    /// All that was read.
    pub(super) fn whole(self) -> Buf {
        assert_eq!(self.done_bytes, self.extent.len, "all pieces were read (pieces, invariant 1)");
        self.buf
    }
}
