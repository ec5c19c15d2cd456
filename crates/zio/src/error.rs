//! Why a block could not be read.

use std::fmt;
use std::sync::Arc;

use cenote_codec::compress::CompressError;
use cenote_format::FormatError;
use cenote_format::ids::VdevId;
use cenote_vdev::error::VdevError;
use thiserror::Error;

use crate::Bookmark;

/// A block that could not be read: which, and why. Cheap to clone, since many may wait for one block.
#[derive(Clone, Debug)]
pub struct ZioError(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bookmark: Bookmark,
    kind: ZioErrorKind,
}

/// The kind of an error.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ZioErrorKind {
    /// No copy could be read and verified; the error of the last one tried.
    #[error("no good copy among {copies}: {last}")]
    NoGoodCopy {
        /// Copies the pointer names.
        copies: usize,
        /// Why the last failed.
        last: VdevError,
    },
    /// No copy of a new block could be written; the error of the last one tried.
    #[error("none of {copies} copies could be written: {last}")]
    NoCopyWritten {
        /// Copies that were to be written.
        copies: usize,
        /// Why the last failed.
        last: VdevError,
    },
    /// There is no room for a new block, not even in pieces.
    #[error("no space for {size_bytes} bytes")]
    NoSpace {
        /// Bytes to be stored.
        size_bytes: u64,
    },
    /// A device write was stopped: by the `ExtentCheck` the block does not own that extent.
    #[error("write stopped: {0}")]
    OutsideExtents(#[from] OutsideExtents),
    /// The data to be written cannot be a block.
    #[error("{0}")]
    Unwritable(&'static str),
    /// A field of the pointer, or of a gang header, is not valid.
    #[error("{0}")]
    Format(#[from] FormatError),
    /// The pointer names an algorithm that this version does not know.
    #[error("not supported yet: {what} number {number}")]
    UnknownAlgorithm {
        /// `checksum`, `compression` or `embedded type`.
        what: &'static str,
        /// The number in the pointer.
        number: u8,
    },
    /// The bytes passed their checksum but do not decompress.
    #[error("decompression failed: {0}")]
    Decompress(#[from] CompressError),
    /// The dataset is encrypted and its key is not loaded.
    #[error("the dataset is encrypted and its key is not loaded")]
    KeyNotLoaded,
    /// The message authentication code does not match: wrong key, or bytes that were tampered with.
    #[error("authentication failed: {0}")]
    Authentication(String),
    /// The block was removed on purpose from a redacted dataset.
    #[error("the block was redacted")]
    Redacted,
    /// Asked to read a pointer that points to nothing.
    #[error("the block pointer is a hole")]
    Hole,
}

/// A device write that is not within the extents in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("vdev {vdev}: write of {start_bytes:#x}..{end_bytes:#x} outside the extents allocated")]
pub struct OutsideExtents {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// Where the write begins on it, as DVAs count.
    pub start_bytes: u64,
    /// Where it ends.
    pub end_bytes: u64,
}

impl ZioErrorKind {
    /// Whether the block is lost as far as it can be told, in contrast to one that is withheld or that this version cannot read.
    pub(crate) const fn is_of_data(&self) -> bool {
        matches!(self, Self::NoGoodCopy { .. } | Self::Format(_) | Self::Decompress(_) | Self::Authentication(_))
    }

    /// Whether devices failed, in contrast to what was read from them.
    pub(crate) fn is_of_devices(&self) -> bool {
        matches!(self, Self::NoGoodCopy { last, .. } if last.is_of_devices())
    }
}

impl ZioError {
    /// An error about the block at `bookmark`.
    pub fn new(bookmark: Bookmark, kind: impl Into<ZioErrorKind>) -> Self {
        Self(Arc::new(Inner { bookmark, kind: kind.into() }))
    }

    /// The block.
    #[must_use]
    pub fn bookmark(&self) -> Bookmark {
        self.0.bookmark
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> &ZioErrorKind {
        &self.0.kind
    }

    /// Whether the only thing missing is the dataset's key.
    #[must_use]
    pub fn is_key_missing(&self) -> bool {
        matches!(self.0.kind, ZioErrorKind::KeyNotLoaded)
    }
}

impl fmt::Display for ZioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.bookmark, self.0.kind)
    }
}

impl std::error::Error for ZioError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0.kind)
    }
}
