//! Code that all exports of volumes share: data and holes of a range; and the read-only export.

use cenote_inuse::Frozen;
use cenote_nbd::{BlockSizes, Export, ExportError, Extent, Piece};
use cenote_taskq::BoxFuture;
use cenote_zvol::Volume;

use super::io_error;

/// Request sizes that suit a volume.
pub(super) fn sizes(volume: &Volume) -> BlockSizes {
    let block = u32::try_from(volume.block_size_bytes()).ok().filter(|size| size.is_power_of_two());
    BlockSizes { preferred_bytes: block.unwrap_or(4096).max(512), ..BlockSizes::default() }
}

/// Splits a range into pieces of data and zeros.
pub(super) async fn pieces(volume: &Volume, offset_bytes: u64, length_bytes: u32) -> Result<Vec<Piece>, ExportError> {
    let end = offset_bytes + u64::from(length_bytes);
    let mut pieces = Vec::new();
    let mut at = offset_bytes;
    while at < end {
        let (range, is_hole) = volume.extent(at, end).await.map_err(|error| io_error(&error))?;
        let length = (range.end - at).max(1).min(end - at);
        if is_hole {
            pieces.push(Piece::Zeros(length));
        } else {
            let data = volume.read(at, length as usize).await.map_err(|error| io_error(&error))?;
            pieces.push(Piece::Data(data));
        }
        at += length;
    }
    Ok(pieces)
}

/// The extents of a range, at most `extents_max`.
pub(super) async fn statuses(
    volume: &Volume,
    offset_bytes: u64,
    length_bytes: u32,
    extents_max: usize,
) -> Result<Vec<Extent>, ExportError> {
    let end = offset_bytes + u64::from(length_bytes);
    let mut extents: Vec<Extent> = Vec::new();
    let mut at = offset_bytes;
    while at < end && extents.len() < extents_max.max(1) {
        let (range, is_hole) = volume.extent(at, end).await.map_err(|error| io_error(&error))?;
        let length_bytes = (range.end - at).max(1).min(end - at);
        extents.push(Extent { length_bytes, is_hole, is_zero: is_hole });
        at += length_bytes;
    }
    Ok(extents)
}

/// A volume or snapshot that does not change.
pub(super) struct ReadOnly {
    pub(super) volume: Frozen<Volume>,
    pub(super) name: String,
}

impl Export for ReadOnly {
    fn description(&self) -> String {
        self.name.clone()
    }

    fn size_bytes(&self) -> u64 {
        self.volume.contents.size_bytes()
    }

    fn block_sizes(&self) -> BlockSizes {
        sizes(&self.volume.contents)
    }

    fn read(&self, offset_bytes: u64, length_bytes: u32) -> BoxFuture<'_, Result<Vec<Piece>, ExportError>> {
        Box::pin(pieces(&self.volume.contents, offset_bytes, length_bytes))
    }

    fn block_status(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, ExportError>> {
        Box::pin(statuses(&self.volume.contents, offset_bytes, length_bytes, extents_max))
    }
}
