//! Requests that nobody waits for long, to a solid-state device that others use: piece by piece.
//!
//! # Theory
//!
//! **Need.** A solid-state device serves many requests at once, but brings their bytes through one interface, one after the other: 128 KiB of a scrub take a
//! SATA disk 0.24 ms there, sixteen of them 4 ms, and 48 MB of a txg 90 ms. A reader of 16 KiB, who waits 0.12 ms on an idle device, waits behind them.
//!
//! **Shape.** *Patient* are bulk and the writes of txgs. While the device has other requests, or had some lately (it is not quiet), it has one bulk request, which
//! goes to it in pieces of [`BULK_PIECE_BYTES`], and so many writes of txgs as come to 128 KiB, in pieces of [`WRITE_PIECE_BYTES`]; each piece after the
//! answer to the one before. So a reader waits behind one piece of bulk and a few writes at most. Before each piece it is looked at anew: when the device has become
//! quiet, the rest goes in pieces of [`QUIET_PIECE_BYTES`], since somebody may come meanwhile. Pieces are what is counted until it is quiet.
//!
//! **No starving.** Each patient class has its minimum at the device whatever others want, and a piece follows the one before at once.
//!
//! **Invariants.** The same bytes are read or written, in their places, upwards. A request that fails in a piece has failed.
//!
//! **Rejected.** *A pause between bulk requests*: a reader who comes during one waits as long as without. *Smaller aggregates alone*: a block of 1 MiB is one
//! request. *Writes of txgs in small pieces too*: a device with a latency of 1 ms would write 32 MB/s beside a reader.

use std::io;
use std::sync::Arc;

use cenote_taskq::buf::{Block, Buf};

use super::limits::QueueClass;
use super::room::LeafQueue;
use crate::disk::Disk;

/// Bytes of a piece of bulk: 30 us on the interface of a SATA disk.
pub(super) const BULK_PIECE_BYTES: usize = 16 << 10;
/// Bytes of a piece of a txg's write: two of them are as many as are to be at the device.
pub(super) const WRITE_PIECE_BYTES: usize = 64 << 10;
/// Bytes of a piece while nobody else is there.
pub(super) const QUIET_PIECE_BYTES: usize = 1 << 20;

impl LeafQueue {
    /// The bytes of the next piece of a request of this class.
    fn piece_bytes(&self, class: QueueClass) -> usize {
        match class {
            _ if !class.is_patient(self.limits().rotational) => usize::MAX,
            _ if !self.is_shared_with_others() => QUIET_PIECE_BYTES,
            _ if class.is_bulk() => BULK_PIECE_BYTES,
            _ => WRITE_PIECE_BYTES,
        }
    }

    /// Reads for a request of this class, in pieces where that is to be.
    pub(crate) async fn read_as(
        self: &Arc<Self>,
        class: QueueClass,
        disk: &Disk,
        at: u64,
        buf: Buf,
    ) -> (io::Result<()>, Buf) {
        match buf.len() > self.piece_bytes(class) {
            true => Box::pin(self.read_in_pieces(class, disk, at, buf)).await,
            false => disk.read(at, buf).await,
        }
    }

    async fn read_in_pieces(
        self: &Arc<Self>,
        class: QueueClass,
        disk: &Disk,
        at: u64,
        mut buf: Buf,
    ) -> (io::Result<()>, Buf) {
        let mut done = 0;
        while done < buf.len() {
            let len = self.piece_bytes(class).min(buf.len() - done);
            let (result, piece) = disk.read(at + done as u64, Buf::unfilled(len)).await;
            if result.is_err() {
                return (result, buf);
            }
            assert_eq!(piece.len(), len, "a good read fills its piece");
            buf[done..done + len].copy_from_slice(&piece);
            done += len;
            self.piece_done();
        }
        (Ok(()), buf)
    }

    /// Writes for a request of this class, likewise. One that makes itself stable is one write.
    pub(super) async fn write_as(
        self: &Arc<Self>,
        class: QueueClass,
        disk: &Disk,
        at: u64,
        block: Block,
        is_stable: bool,
    ) -> io::Result<()> {
        match block.len() > self.piece_bytes(class) && !is_stable {
            true => Box::pin(self.write_in_pieces(class, disk, at, block)).await,
            false => disk.write_as(at, block, is_stable).await,
        }
    }

    async fn write_in_pieces(
        self: &Arc<Self>,
        class: QueueClass,
        disk: &Disk,
        at: u64,
        block: Block,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < block.len() {
            let len = self.piece_bytes(class).min(block.len() - done);
            disk.write(at + done as u64, block.slice(done..done + len)).await?;
            done += len;
            self.piece_done();
        }
        assert_eq!(done, block.len(), "all pieces are written");
        Ok(())
    }
}
