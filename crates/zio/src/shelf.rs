//! Blocks on cache devices: read from there in place of the pool, and offered when they were read from the pool.
//!
//! ```text
//! read_shelved ─► on a shelf? ─ yes ─► verified there? ─ yes ─► physical bytes ─► logical bytes
//!                     │ no                  │ no (never an error)
//!                     └──────► the pool ◄───┘
//!                                 └─► physical bytes ─► offered, if the dataset's blocks may go there
//! ```
//! A shelf has physical bytes, as the pool has them: with the checksum of the block pointer, compressed, and encrypted. So a shelf that lies is
//! found out by the same check as a disk that does, and has no plain text of an encrypted dataset.

use cenote_format::blkptr::Blkptr;
use cenote_format::enums::Checksum;
use cenote_format::ids::Guid;
use cenote_taskq::BoxFuture;
use cenote_taskq::boxed;
use cenote_taskq::buf::{Block, Buf};
use cenote_vdev::fault::ErrorTotals;
use cenote_vdev::tree::{LeafIo, VdevState};

use crate::mutation::handed_out;
use crate::{ReadContext, Zio, ZioError, ZioErrorKind, transform};

/// The blocks of a dataset that may go to cache devices (`secondarycache`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shelf {
    /// None of them.
    None,
    /// Metadata.
    Metadata,
    /// All.
    All,
}

/// The cache devices of a pool.
pub trait Shelves: Send + Sync {
    /// Reads the physical bytes of a block, if a device has them; `verify` says whether they are right. Resolves to none where they are not, or are
    /// not to be had.
    fn read<'a>(
        &'a self,
        bp: &'a Blkptr,
        verify: &'a (dyn Fn(&[u8]) -> bool + Send + Sync),
    ) -> Option<BoxFuture<'a, Option<Buf>>>;

    /// Whether a block that is about to be read from the pool is to be offered. `is_ahead`: nobody has asked for it yet.
    fn wants(&self, bp: &Blkptr, is_ahead: bool) -> bool;

    /// Takes the physical bytes of a block, which were verified, or leaves them.
    fn offer(&self, bp: &Blkptr, physical: Block);

    /// The devices.
    fn states(&self) -> Vec<ShelfState>;
}

/// The state of a cache device.
#[derive(Clone, Debug)]
pub struct ShelfState {
    /// The device.
    pub guid: Guid,
    /// Online, offline, or faulted.
    pub state: VdevState,
    /// Bytes for blocks.
    pub size_bytes: u64,
    /// Bytes of blocks and log blocks.
    pub allocated_bytes: u64,
    /// Its errors.
    pub errors: ErrorTotals,
    /// Its requests.
    pub io: LeafIo,
}

impl Zio {
    /// The cache devices of a pool in use.
    #[must_use]
    pub fn shelves(&self) -> Vec<ShelfState> {
        self.shared.shelves.get().map(|shelves| shelves.states()).unwrap_or_default()
    }

    /// As [`Zio::read`], from a cache device where one has the block. What comes from the pool is offered to them.
    ///
    /// # Errors
    /// As [`Zio::read`]; never of a cache device.
    #[boxed]
    pub async fn read_shelved(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Block, ZioError> {
        let Some(shelves) = self.shared.shelves.get().filter(|_| Self::may_be_shelved(bp)) else {
            return self.read(bp, context).await;
        };
        let fail = |kind: ZioErrorKind| self.failed(bp, context, kind);
        self.check_readable(bp).map_err(fail)?;
        if transform::needs_key(bp) && context.key.is_none() {
            return Err(fail(ZioErrorKind::KeyNotLoaded));
        }
        let kind = bp.checksum();
        let verify = |bytes: &[u8]| {
            bytes.len() as u64 == bp.psize_bytes() && kind.is_some_and(|kind| self.checksum_matches(bp, kind, bytes))
        };
        if let Some(read) = shelves.read(bp, &verify)
            && let Some(physical) = read.await
            // A block that does not decrypt or decompress is read from the pool, which then says why.
            && let Ok(logical) = transform::to_logical(bp, context, physical)
        {
            return Ok(handed_out(bp, context.bookmark, logical));
        }
        let is_allowed = match context.shelf {
            Shelf::None => false,
            Shelf::Metadata => bp.is_metadata(),
            Shelf::All => true,
        };
        if !is_allowed || !shelves.wants(bp, context.is_ahead) {
            return self.read(bp, context).await;
        }
        let physical = self.read_patiently(bp, context).await.map_err(fail)?.freeze();
        let logical = transform::logical_of(bp, context, &physical).map_err(fail)?;
        assert_eq!(physical.len() as u64, bp.psize_bytes(), "a device is offered what the pointer speaks of");
        shelves.offer(bp, physical);
        Ok(handed_out(bp, context.bookmark, logical))
    }

    /// Blocks without a checksum are not: nothing would tell theirs from others' bytes.
    fn may_be_shelved(bp: &Blkptr) -> bool {
        let is_checked = bp.checksum().is_some_and(|kind| !matches!(kind, Checksum::Off | Checksum::NoParity));
        is_checked && !bp.is_embedded() && !bp.is_hole() && !bp.is_redacted()
    }
}
