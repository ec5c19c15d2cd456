//! What exports of volumes have in common: data and holes of a range; and the export that is not written.

use std::ops::Range;

use cenote_dmu::DmuError;
use cenote_nbd::{BlockSizes, Export, ExportError, Extent, Piece};
use cenote_taskq::{Block, BoxFuture};
use cenote_zvol::Volume;
use cenote_zvol::write::VolumeMut;

use super::io_error;

/// Bytes with holes.
pub(super) trait Readable: Sync {
    /// The extent that an offset lies in, up to a limit: where it ends, and whether it is a hole.
    fn extent(
        &self,
        offset_bytes: u64,
        limit_bytes: u64,
    ) -> impl Future<Output = Result<(Range<u64>, bool), DmuError>> + Send;

    /// Bytes at an offset.
    fn read(&self, offset_bytes: u64, len: usize) -> impl Future<Output = Result<Block, DmuError>> + Send;

    /// The size of blocks.
    fn block_bytes(&self) -> u64;

    /// Sizes that suit clients.
    fn sizes(&self) -> BlockSizes {
        let block = u32::try_from(self.block_bytes()).ok().filter(|size| size.is_power_of_two());
        BlockSizes { preferred_bytes: block.unwrap_or(4096).max(512), ..BlockSizes::default() }
    }

    /// A range in pieces of data and zeros.
    fn pieces(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
    ) -> impl Future<Output = Result<Vec<Piece>, ExportError>> + Send {
        async move {
            let end = offset_bytes + u64::from(length_bytes);
            let mut pieces = Vec::new();
            let mut at = offset_bytes;
            while at < end {
                let (range, is_hole) = self.extent(at, end).await.map_err(|error| io_error(&error))?;
                let length = (range.end - at).max(1).min(end - at);
                if is_hole {
                    pieces.push(Piece::Zeros(length));
                } else {
                    let data = self.read(at, length as usize).await.map_err(|error| io_error(&error))?;
                    pieces.push(Piece::Data(data));
                }
                at += length;
            }
            Ok(pieces)
        }
    }

    /// A range's extents, so many at most.
    fn statuses(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        extents_max: usize,
    ) -> impl Future<Output = Result<Vec<Extent>, ExportError>> + Send {
        async move {
            let end = offset_bytes + u64::from(length_bytes);
            let mut extents: Vec<Extent> = Vec::new();
            let mut at = offset_bytes;
            while at < end && extents.len() < extents_max.max(1) {
                let (range, is_hole) = self.extent(at, end).await.map_err(|error| io_error(&error))?;
                let length_bytes = (range.end - at).max(1).min(end - at);
                extents.push(Extent { length_bytes, is_hole, is_zero: is_hole });
                at += length_bytes;
            }
            Ok(extents)
        }
    }
}

impl Readable for Volume {
    async fn extent(&self, offset_bytes: u64, limit_bytes: u64) -> Result<(Range<u64>, bool), DmuError> {
        Self::extent(self, offset_bytes, limit_bytes).await
    }

    async fn read(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        Self::read(self, offset_bytes, len).await
    }

    fn block_bytes(&self) -> u64 {
        self.block_size_bytes()
    }
}

impl Readable for VolumeMut {
    async fn extent(&self, offset_bytes: u64, limit_bytes: u64) -> Result<(Range<u64>, bool), DmuError> {
        Self::extent(self, offset_bytes, limit_bytes).await
    }

    async fn read(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        Self::read(self, offset_bytes, len).await
    }

    fn block_bytes(&self) -> u64 {
        self.block_size_bytes()
    }
}

/// A volume or snapshot that does not change.
pub(super) struct ReadOnly {
    pub(super) volume: Volume,
    pub(super) name: String,
}

impl Export for ReadOnly {
    fn description(&self) -> String {
        self.name.clone()
    }

    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    fn block_sizes(&self) -> BlockSizes {
        self.volume.sizes()
    }

    fn read(&self, offset_bytes: u64, length_bytes: u32) -> BoxFuture<'_, Result<Vec<Piece>, ExportError>> {
        Box::pin(self.volume.pieces(offset_bytes, length_bytes))
    }

    fn block_status(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, ExportError>> {
        Box::pin(self.volume.statuses(offset_bytes, length_bytes, extents_max))
    }
}
