//! The estimated length of a stream in bytes, without making it.

use cenote_dsl::Sizes;
use cenote_format::blkptr::Blkptr;
use cenote_format::enums::ObjsetType;
use cenote_format::stream::Record;
use cenote_spa::View;

use super::error::SenderError;
use super::source::Source;
use super::{SendProgress, SendRequest, send};

/// Block sizes of datasets without their own.
const RECORD_BYTES: u64 = 128 << 10;
const VOLUME_BLOCK_BYTES: u64 = 16 << 10;

/// Estimates a stream. `received_bytes`: bytes that the receiver of a resumed stream has.
///
/// The accounts of snapshots tell the bytes written since the incremental source. If they do not (bookmarks without sizes, redaction) the stream
/// is made without reading data, and its length is exact.
///
/// # Errors
/// As for [`send`].
pub async fn estimate(pool: &View, request: &SendRequest, received_bytes: u64) -> Result<u64, SenderError> {
    let base = request.base.as_ref();
    let is_walked =
        request.redact.is_some() || base.is_some_and(|base| base.redaction_list.0 != 0 || base.sizes.is_none());
    if is_walked {
        let dry = SendRequest { is_dry: true, ..request.clone() };
        return send(pool, &dry, &mut std::io::sink(), &SendProgress::default()).await;
    }
    // A dataset's accounts can be read without its key.
    let source = Source::open_saved(pool.dsl(), request.to.clone(), true).await?;
    let sizes = match base.and_then(|base| Some((base.txg, base.sizes?))) {
        Some((txg, (referenced, freed))) => pool.dsl().written_since(&source.dataset, txg, referenced, freed).await?,
        None => Sizes::referenced_by(&source.dataset),
    };
    let (name, default) = match source.objset_type {
        ObjsetType::Zvol => ("volblocksize", VOLUME_BLOCK_BYTES),
        _ => ("recordsize", RECORD_BYTES),
    };
    let block_bytes = pool.dsl().property(&source.dataset.dir, name, name == "recordsize").await?;
    let block_bytes = block_bytes.and_then(|property| property.value.number()).unwrap_or(default).max(1);
    let blocks = sizes.uncompressed_bytes / block_bytes;
    let is_compressed = request.flags.compressed || request.flags.raw;
    let bytes = if is_compressed { sizes.compressed_bytes } else { sizes.uncompressed_bytes };
    // The written bytes include pointers, which are not sent; instead, each block has a record.
    Ok(bytes
        .wrapping_sub(blocks.wrapping_mul(Blkptr::SIZE as u64))
        .wrapping_add(blocks.wrapping_mul(Record::SIZE as u64))
        .wrapping_add(2 * Record::SIZE as u64)
        .wrapping_sub(received_bytes))
}
