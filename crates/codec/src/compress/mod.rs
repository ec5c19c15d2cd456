//! Compression of blocks: the algorithms of `enum zio_compress`, both ways.
//!
//! # Theory
//!
//! **Need.** A block pointer names an algorithm, a physical size and a logical size. The logical size is known before the
//! first byte is decoded, so a decoder fills a slice of exactly that length, and anything else is corruption. The
//! physical size is rounded up to a whole number of sectors, so every decoder must tolerate padding after the stream.
//!
//! ```text
//! lzjb   | control byte, then 8 items: literal byte or 2-byte match | ...
//! zle    | length byte, literals | length byte (run of zeros) | ...
//! gzip   | zlib stream (RFC 1950), despite the name
//! lz4    | u32 BE: bytes that follow | LZ4 block (no frame)
//! zstd   | u32 BE: bytes of the frame | level and version, 4 bytes | zstd frame without its magic number
//! ```
//!
//! **Contract.** [`decompress`] never panics, never writes outside `target`, and allocates nothing that depends on the source: the window
//! of zstd and zlib is the target itself or a constant 32 KiB. [`compress`] answers `None` when the result would exceed the size that makes
//! compression worth it, and then the block is stored as it is. The output of `compress` depends on its arguments alone, never on what was
//! compressed before.
//!
//! **Scratch.** Contexts of zstd, zlib and lz4 cost more to set up than a small block costs to decode. [`Scratch`]
//! holds one of each. A caller that has a place to keep one passes it; others use the free functions, which borrow from a small pool of
//! slots and never wait.

mod gzip;
mod level;
mod lz4;
mod lzjb;
mod pool;
mod zle;
mod zstandard;

use cenote_format::enums::Compress;
use thiserror::Error;

pub use level::{CompressLevel, Compression};
pub use zstandard::ZstdHeader;

/// Why a block did not decompress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CompressError {
    /// The number names no algorithm that a stored block can have (`inherit`, `on`, `empty`).
    #[error("{0} is not how a stored block is compressed")]
    NotAnAlgorithm(Compress),
    /// The stream ends before the block is full.
    #[error("{algorithm}: compressed data ends early")]
    Truncated {
        /// The algorithm.
        algorithm: &'static str,
    },
    /// The stream breaks a rule of its format.
    #[error("{algorithm}: {rule}")]
    Corrupt {
        /// The algorithm.
        algorithm: &'static str,
        /// The rule broken.
        rule: &'static str,
    },
    /// The stream is sound but holds another number of bytes than the block pointer says.
    #[error("{algorithm}: decompresses to {found_bytes} bytes, the block has {expected_bytes}")]
    WrongSize {
        /// The algorithm.
        algorithm: &'static str,
        /// Bytes that came out.
        found_bytes: u64,
        /// Bytes that the block has.
        expected_bytes: u64,
    },
    /// No memory for a decoder's context.
    #[error("{algorithm}: no memory for a context")]
    NoMemory {
        /// The algorithm.
        algorithm: &'static str,
    },
}

/// Reusable contexts of the algorithms; each is made at its first use.
#[derive(Default)]
pub struct Scratch {
    gzip: gzip::Scratch,
    lz4: lz4::Scratch,
    zstd: zstandard::Scratch,
}

impl Scratch {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`decompress`], with these contexts.
    pub fn decompress(&mut self, kind: Compress, source: &[u8], target: &mut [u8]) -> Result<(), CompressError> {
        match kind {
            Compress::Inherit | Compress::On | Compress::Empty => Err(CompressError::NotAnAlgorithm(kind)),
            Compress::Off => {
                let len = target.len();
                target
                    .copy_from_slice(source.get(..len).ok_or(CompressError::Truncated { algorithm: "uncompressed" })?);
                Ok(())
            }
            Compress::Lzjb => lzjb::decompress(source, target),
            Compress::Zle => zle::decompress(source, target),
            Compress::Lz4 => lz4::decompress(source, target),
            Compress::Zstd => self.zstd.decompress(source, target),
            _ => self.gzip.decompress(source, target),
        }
    }

    /// As [`compress`], with these contexts.
    #[must_use]
    pub fn compress(
        &mut self,
        kind: Compress,
        level: CompressLevel,
        source: &[u8],
        target_max: usize,
    ) -> Option<Vec<u8>> {
        // A result that saves nothing is none, whatever the caller allows.
        let target_max = target_max.min(source.len().checked_sub(1)?);
        let out = match kind {
            Compress::Inherit | Compress::On | Compress::Off | Compress::Empty => None,
            Compress::Lzjb => lzjb::compress(source, target_max),
            Compress::Zle => zle::compress(source, target_max),
            Compress::Lz4 => self.lz4.compress(source, target_max),
            Compress::Zstd => self.compress_zstd(level, source, target_max),
            _ => self.gzip.compress(kind.gzip_level()?, source, target_max),
        }?;
        debug_assert!(out.len() <= target_max);
        Some(out)
    }

    /// Frees what grew beyond a few MiB, so that one large block at a high level does not cost its memory for ever.
    pub(crate) fn trim(&mut self) {
        self.lz4.trim(TRIM_BYTES);
        self.zstd.trim(TRIM_BYTES);
    }

    /// zstd with OpenZFS's early abort: for the slower levels on large blocks, lz4 and then zstd-1 are asked first
    /// whether the data compresses at all, since both say no much faster.
    fn compress_zstd(&mut self, level: CompressLevel, source: &[u8], target_max: usize) -> Option<Vec<u8>> {
        let zstd_level = level.zstd_level()?;
        if zstd_level >= EARLY_ABORT_LEVEL_MIN
            && source.len() >= EARLY_ABORT_SIZE_MIN_BYTES
            && self.lz4.compress(source, target_max).is_none()
        {
            self.zstd.compress(CompressLevel::zstd(1)?, source, target_max)?;
        }
        self.zstd.compress(level, source, target_max)
    }
}

/// The most memory that one context or buffer keeps between calls. Enough for 128 KiB records at every level of zstd.
const TRIM_BYTES: usize = 4 << 20;

/// OpenZFS `zstd_cutoff_level`: below it a compression is as cheap as asking.
const EARLY_ABORT_LEVEL_MIN: i32 = 3;
/// OpenZFS `zstd_abort_size`: below it the asking costs more than it saves.
const EARLY_ABORT_SIZE_MIN_BYTES: usize = 128 * 1024;

/// Decodes `source` so that it fills `target` (whose length is the block's logical size) exactly. Bytes of `source`
/// after the stream's end are padding and ignored. After an error `target` holds unspecified bytes.
pub fn decompress(kind: Compress, source: &[u8], target: &mut [u8]) -> Result<(), CompressError> {
    let place = target.as_ptr().addr();
    pool::with(place, |scratch| scratch.decompress(kind, source, target))
}

/// Encodes `source`, or says `None` if that takes more than `target_max` bytes (the largest size that is worth it:
/// OpenZFS asks for an eighth saved) or does not make it smaller. `level` matters for zstd alone; gzip's is in `kind`.
#[must_use]
pub fn compress(kind: Compress, level: CompressLevel, source: &[u8], target_max: usize) -> Option<Vec<u8>> {
    let place = source.as_ptr().addr();
    pool::with(place, |scratch| scratch.compress(kind, level, source, target_max))
}

/// Whether the block is all zeros, which is stored as a hole under every algorithm but `off`.
#[must_use]
pub fn is_all_zero(block: &[u8]) -> bool {
    // Chunks let the compiler use wide registers; `iter().all` alone stops at each byte.
    let mut chunks = block.chunks_exact(64);
    chunks.all(|chunk| chunk.iter().fold(0, |sum, byte| sum | byte) == 0)
        && block.chunks_exact(64).remainder().iter().all(|byte| *byte == 0)
}
