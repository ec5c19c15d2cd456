//! Exports, as the protocol needs to know them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_taskq::{Block, BoxFuture, boxed};
use thiserror::Error;

use crate::limits;

/// The kind of a request's failure, as far as a client can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportErrorKind {
    /// The device, or what lies on it, is damaged.
    Io,
    /// Writing is not allowed.
    ReadOnly,
    /// There is no room.
    NoSpace,
    /// The request makes no sense.
    Invalid,
    /// The request is not supported.
    NotSupported,
    /// There is not enough memory now.
    Memory,
    /// The export is going away.
    Shutdown,
}

/// An error with the text that clients with structured replies see.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ExportError {
    /// The kind.
    pub kind: ExportErrorKind,
    /// For a person.
    pub message: String,
}

impl ExportError {
    /// An error of that kind and text.
    pub fn new(kind: ExportErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The answer of every default method that would change something.
    #[must_use]
    pub(crate) fn read_only() -> Self {
        Self::new(ExportErrorKind::ReadOnly, "the export is read-only")
    }
}

/// Sizes that a client should keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Requests must be multiples of this, at multiples of this. A power of two up to 64 KiB.
    pub minimum_bytes: u32,
    /// Requests that are multiples of this cost least: the volume's block size. A power of two, 512 or more.
    pub preferred_bytes: u32,
    /// The largest read or write.
    pub maximum_bytes: u32,
}

impl Default for BlockSizes {
    fn default() -> Self {
        Self { minimum_bytes: 1, preferred_bytes: 4096, maximum_bytes: limits::REQUEST_BYTES }
    }
}

/// A part of what was read, in order.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Data.
    Data(Block),
    /// That many zeros, from a hole.
    Zeros(u64),
}

impl Piece {
    /// How long it is.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        match self {
            Self::Data(block) => block.len() as u64,
            Self::Zeros(length_bytes) => *length_bytes,
        }
    }
}

/// A run of an export with the same status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How long it is; not 0.
    pub length_bytes: u64,
    /// No space is allocated for it.
    pub is_hole: bool,
    /// It reads as zeros.
    pub is_zero: bool,
}

/// One volume or snapshot. Requests given to it lie within its size and its maximum block size; it may get many at once.
pub trait Export: Send + Sync + 'static {
    /// A line about it for lists.
    fn description(&self) -> String {
        String::new()
    }

    /// Its size. Fixed while it is open.
    fn size_bytes(&self) -> u64;

    /// Sizes that suit it.
    fn block_sizes(&self) -> BlockSizes {
        BlockSizes::default()
    }

    /// Whether writing is refused. The methods that write are then never called.
    fn is_read_only(&self) -> bool {
        true
    }

    /// Reads; the pieces add up to the length.
    #[boxed]
    async fn read(&self, offset_bytes: u64, length_bytes: u32) -> Result<Vec<Piece>, ExportError>;

    /// Holes, zeros and data of a range: extents in order from the offset, one at least and at most `extents_max`, covering the range or,
    /// where it is fragmented, its beginning.
    fn block_status(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, ExportError>> {
        let _ = (offset_bytes, extents_max);
        let all_data = Extent { length_bytes: length_bytes.into(), is_hole: false, is_zero: false };
        Box::pin(async move { Ok(vec![all_data]) })
    }

    /// Reads ahead into the cache.
    #[boxed]
    async fn cache(&self, offset_bytes: u64, length_bytes: u32) -> Result<(), ExportError> {
        self.read(offset_bytes, length_bytes).await.map(drop)
    }

    /// Writes; durably so, if `fua`.
    fn write(&self, offset_bytes: u64, data: Block, fua: bool) -> BoxFuture<'_, Result<(), ExportError>> {
        let _ = (offset_bytes, data, fua);
        Box::pin(async { Err(ExportError::read_only()) })
    }

    /// Makes a range read as zeros; may free it if `may_free`.
    fn write_zeros(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        may_free: bool,
        fua: bool,
    ) -> BoxFuture<'_, Result<(), ExportError>> {
        let _ = (offset_bytes, length_bytes, may_free, fua);
        Box::pin(async { Err(ExportError::read_only()) })
    }

    /// Frees a range, whose contents are undefined from then on.
    fn trim(&self, offset_bytes: u64, length_bytes: u32, fua: bool) -> BoxFuture<'_, Result<(), ExportError>> {
        let _ = (offset_bytes, length_bytes, fua);
        Box::pin(async { Err(ExportError::read_only()) })
    }

    /// Makes everything durable that was written before.
    #[boxed]
    async fn flush(&self) -> Result<(), ExportError> {
        Ok(())
    }
}

/// A name in a list of exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportName {
    /// The name, at most [`limits::STRING_BYTES`] long.
    pub name: String,
    /// A line about it.
    pub description: String,
}

/// All exports of a server, opened as clients ask for them.
pub trait Exports: Send + Sync + 'static {
    /// The names of all exports, sorted.
    #[boxed]
    async fn list(&self) -> Result<Vec<ExportName>, ExportError>;

    /// The export of that name; `None` if there is none. The empty name asks for a default.
    #[boxed]
    async fn open(&self, name: &str) -> Result<Option<Arc<dyn Export>>, ExportError>;
}

/// Exports that are all open from the start. If there is but one, it is the default.
#[derive(Default)]
pub struct StaticExports(pub BTreeMap<String, Arc<dyn Export>>);

impl StaticExports {
    /// With these exports.
    pub fn new(exports: impl IntoIterator<Item = (String, Arc<dyn Export>)>) -> Self {
        Self(exports.into_iter().collect())
    }
}

impl Exports for StaticExports {
    fn list(&self) -> BoxFuture<'_, Result<Vec<ExportName>, ExportError>> {
        let names = self
            .0
            .iter()
            .map(|(name, export)| ExportName { name: name.clone(), description: export.description() })
            .collect();
        Box::pin(async move { Ok(names) })
    }

    fn open<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Arc<dyn Export>>, ExportError>> {
        let only = || self.0.values().next().filter(|_| name.is_empty() && self.0.len() == 1);
        let found = self.0.get(name).or_else(only).cloned();
        Box::pin(async move { Ok(found) })
    }
}
