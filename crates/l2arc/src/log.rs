//! Log blocks as they are stored, and the header's sector.

use cenote_codec::checksum::{self, embedded};
use cenote_codec::compress::{self, CompressLevel};
use cenote_format::enums::{Checksum, Compress};
use cenote_format::l2arc::{CacheHeader, CachedBlock, LOG_BYTES, LogBlock, LogPointer};
use cenote_format::label::START_BYTES;
use cenote_taskq::buf::Buf;

use crate::ring::Geometry;

/// A log block, compressed where that saves a sector, and a pointer to it without its place.
pub(crate) fn stored(blocks: Vec<CachedBlock>, previous: LogPointer, geometry: &Geometry) -> (LogPointer, Buf) {
    let payload_start_bytes = blocks.first().map_or(0, |block| block.offset_bytes);
    let payload_bytes = blocks.iter().map(|block| geometry.taken(block.psize_bytes)).sum();
    let plain = LogBlock { previous, blocks }.emit();
    let max = LOG_BYTES.saturating_sub(geometry.sector_bytes as usize);
    let packed = compress::compress(Compress::Lz4, CompressLevel::INHERIT, &plain, max);
    let (kind, bytes) = match &packed {
        Some(packed) => (Compress::Lz4, &packed[..]),
        None => (Compress::Off, &plain[..]),
    };
    let size_bytes = geometry.taken(bytes.len() as u64);
    assert!(size_bytes <= LOG_BYTES as u64 || packed.is_none(), "compression does not make it longer");
    let mut buf = Buf::zeroed(size_bytes as usize);
    buf[..bytes.len()].copy_from_slice(bytes);
    let properties = LogPointer::properties_of(size_bytes, kind.number(), Checksum::Fletcher4.number());
    let checksum = checksum::fletcher::fletcher4(&buf, cenote_zio::ORDER);
    (LogPointer { offset_bytes: 0, payload_bytes, payload_start_bytes, properties, checksum }, buf)
}

/// A log block that was read where `pointer` says.
///
/// # Errors
/// Why it is none.
pub(crate) fn opened(pointer: &LogPointer, bytes: &[u8], entries: usize) -> Result<LogBlock, LogFault> {
    if checksum::fletcher::fletcher4(bytes, cenote_zio::ORDER) != pointer.checksum {
        return Err(LogFault::Checksum);
    }
    let plain = match Compress::from_number(pointer.compress_number()) {
        Some(Compress::Off) => bytes.to_vec(),
        Some(Compress::Lz4) => {
            let mut plain = vec![0; LOG_BYTES];
            compress::decompress(Compress::Lz4, bytes, &mut plain).map_err(|_| LogFault::Content)?;
            plain
        }
        _ => return Err(LogFault::Content),
    };
    LogBlock::parse(&plain, entries).map_err(|_| LogFault::Content)
}

/// Why bytes are no log block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFault {
    /// They are others than were written.
    Checksum,
    /// They say something else.
    Content,
}

/// The sector of a header.
pub(crate) fn header_sector(header: &CacheHeader, sector_bytes: u64) -> Buf {
    let mut sector = Buf::zeroed(sector_bytes as usize);
    header.emit_into(&mut sector);
    let verifier = embedded::label_verifier(START_BYTES);
    let sealed = embedded::seal_embedded(Checksum::Label, &mut sector, verifier, cenote_zio::ORDER, None);
    assert!(sealed.is_ok(), "a sector has room for its checksum");
    sector
}

/// The header in a sector; none if it is another's, or damaged.
pub(crate) fn header_of(sector: &[u8]) -> Option<CacheHeader> {
    embedded::verify_label(sector, START_BYTES).ok()?;
    CacheHeader::parse_any(sector).ok()
}
