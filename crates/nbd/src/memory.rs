//! An export in memory, for tests and benchmarks of the protocol alone.

use cenote_taskq::sync::Mutex;
use cenote_taskq::{Block, BoxFuture};

use crate::export::{BlockSizes, Export, ExportError, Extent, Piece};

/// Pages of memory; a page that was never written is a hole.
pub struct MemoryExport {
    pages: Mutex<Vec<Option<Block>>>,
    size_bytes: u64,
    read_only: bool,
}

const PAGE: usize = 4096;

impl MemoryExport {
    /// All holes.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        let pages = usize::try_from(size_bytes.div_ceil(PAGE as u64)).expect("it is to lie in memory");
        Self { pages: Mutex::new(vec![None; pages]), size_bytes, read_only: false }
    }

    /// With contents; pages of zeros are holes.
    #[must_use]
    pub fn with_contents(contents: &[u8]) -> Self {
        let export = Self::new(contents.len() as u64);
        export.store(0, contents);
        export
    }

    /// The same, refusing to be written.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Page by page: number, offset within it, length.
    fn spans(offset_bytes: u64, length: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let start = usize::try_from(offset_bytes).expect("requests lie within the size");
        let end = start + length;
        let mut at = start;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let span = (at / PAGE, at % PAGE, (PAGE - at % PAGE).min(end - at));
                at += span.2;
                span
            })
        })
    }

    fn store(&self, offset_bytes: u64, data: &[u8]) {
        assert!(offset_bytes + data.len() as u64 <= self.size_bytes, "a write was checked to lie within the export");
        let mut pages = self.pages.lock();
        let mut rest = data;
        for (page, from, length) in Self::spans(offset_bytes, data.len()) {
            let (piece, after) = rest.split_at(length);
            rest = after;
            if pages[page].is_none() && piece.iter().all(|byte| *byte == 0) {
                continue;
            }
            let mut bytes = pages[page].as_ref().map_or_else(|| vec![0; PAGE], |block| block.to_vec());
            bytes[from..from + length].copy_from_slice(piece);
            pages[page] = Some(bytes.into());
        }
    }

    fn zero(&self, offset_bytes: u64, length_bytes: u32) {
        let mut pages = self.pages.lock();
        for (page, from, length) in Self::spans(offset_bytes, length_bytes as usize) {
            pages[page] = match pages[page].take() {
                Some(block) if length < PAGE => {
                    let mut bytes = block.to_vec();
                    bytes[from..from + length].fill(0);
                    Some(bytes.into())
                }
                _ => None,
            };
        }
    }
}

impl Export for MemoryExport {
    fn description(&self) -> String {
        "memory".to_owned()
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_sizes(&self) -> BlockSizes {
        BlockSizes::default()
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read(&self, offset_bytes: u64, length_bytes: u32) -> BoxFuture<'_, Result<Vec<Piece>, ExportError>> {
        let pages = self.pages.lock();
        let pieces = Self::spans(offset_bytes, length_bytes as usize)
            .map(|(page, from, length)| match &pages[page] {
                Some(block) => Piece::Data(block.slice(from..from + length)),
                None => Piece::Zeros(length as u64),
            })
            .collect();
        Box::pin(async move { Ok(pieces) })
    }

    fn block_status(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, ExportError>> {
        let pages = self.pages.lock();
        let mut extents: Vec<Extent> = Vec::new();
        for (page, _, length) in Self::spans(offset_bytes, length_bytes as usize) {
            let is_hole = pages[page].is_none();
            let full = extents.len() == extents_max;
            match extents.last_mut() {
                Some(last) if last.is_hole == is_hole => last.length_bytes += length as u64,
                _ if full => break,
                _ => extents.push(Extent { length_bytes: length as u64, is_hole, is_zero: is_hole }),
            }
        }
        Box::pin(async move { Ok(extents) })
    }

    fn write(&self, offset_bytes: u64, data: Block, _fua: bool) -> BoxFuture<'_, Result<(), ExportError>> {
        self.store(offset_bytes, &data);
        Box::pin(async { Ok(()) })
    }

    fn write_zeros(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        _may_free: bool,
        _fua: bool,
    ) -> BoxFuture<'_, Result<(), ExportError>> {
        self.zero(offset_bytes, length_bytes);
        Box::pin(async { Ok(()) })
    }

    fn trim(&self, offset_bytes: u64, length_bytes: u32, _fua: bool) -> BoxFuture<'_, Result<(), ExportError>> {
        self.zero(offset_bytes, length_bytes);
        Box::pin(async { Ok(()) })
    }
}
