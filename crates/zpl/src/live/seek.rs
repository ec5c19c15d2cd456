//! Finding data and holes in a file (`SEEK_DATA`, `SEEK_HOLE`).
//!
//! A block is a hole or not; but a block that was written in part, beside a hole, has zeros on that side, which programs take for part
//! of the hole. So zeros of whole sectors count as a hole where they meet one: at the front of a block behind a hole or at the file's
//! beginning, at the end of a block before a hole or the file's end.
//! ```text
//!   hole    │00000ddddd│dddddddddd│dddd000000│    hole
//!           └ ─ ─ ┴───── data ────────┴ ─ ─ ─ ┘
//! ```
//! One search looks into two blocks at most, whatever the file's size. **Rejected**: *zeros anywhere as holes*, which would read a file
//! whole before the first byte of it is copied.

use std::ops::Range;

use cenote_format::ids::BlockId;

use super::OpenFile;
use crate::ZplError;

/// Zeros count in units of this many bytes.
const SECTOR_BYTES: usize = 512;

/// The sectors of a block from its first that is not zero to its last, in bytes; empty if there is none.
fn filled(block: &[u8]) -> Range<usize> {
    let is_filled = |sector: &[u8]| sector.iter().any(|byte| *byte != 0);
    let count = block.len().div_ceil(SECTOR_BYTES);
    let first = block.chunks(SECTOR_BYTES).position(is_filled).unwrap_or(count);
    let last = block.chunks(SECTOR_BYTES).rposition(is_filled).map_or(first, |last| last + 1);
    first * SECTOR_BYTES..(last * SECTOR_BYTES).min(block.len()).max(first * SECTOR_BYTES)
}

impl OpenFile {
    /// The first block at or after this that is a hole. All after the last block is one, which a file that was made longer has.
    async fn hole_at(&self, block: u64) -> Result<u64, ZplError> {
        let object = &self.node.object;
        let found = object.next_hole_block(BlockId(block)).await?;
        Ok(found.map_or_else(|| object.last_block().0.saturating_add(1), |found| found.0).max(block))
    }

    async fn is_hole(&self, block: u64) -> Result<bool, ZplError> {
        Ok(self.hole_at(block).await? == block)
    }

    /// The part of a block that is not a hole and counts as data, as offsets in the file.
    async fn data_in(&self, block: u64) -> Result<Range<u64>, ZplError> {
        let block_bytes = self.node.object.block_bytes();
        let at = block.saturating_mul(block_bytes);
        let whole = at..at.saturating_add(block_bytes);
        let is_behind_hole = match block.checked_sub(1) {
            Some(before) => self.is_hole(before).await?,
            None => true,
        };
        let is_before_hole = self.is_hole(block + 1).await?;
        if !is_behind_hole && !is_before_hole {
            return Ok(whole);
        }
        let Some((content, _)) = self.node.object.block(BlockId(block)).await? else { return Ok(at..at) };
        let filled = filled(&content);
        if filled.is_empty() {
            return Ok(at..at);
        }
        let start = if is_behind_hole { at + filled.start as u64 } else { whole.start };
        let end = if is_before_hole { at + filled.end as u64 } else { whole.end };
        Ok(start.min(end)..end)
    }

    /// `SEEK_DATA`: the first offset at or after this that is not in a hole; nothing if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn next_data(&self, offset_bytes: u64) -> Result<Option<u64>, ZplError> {
        let _range = self.node.ranges.read(offset_bytes..u64::MAX).await;
        let (size, block_bytes) = (self.node.size_bytes(), self.node.object.block_bytes());
        let mut at = offset_bytes;
        while at < size {
            let Some(BlockId(block)) = self.node.object.next_data_block(BlockId(at / block_bytes)).await? else {
                break;
            };
            let data = self.data_in(block).await?;
            if at < data.end {
                return Ok(Some(at.max(data.start)).filter(|at| *at < size));
            }
            at = (block + 1).saturating_mul(block_bytes);
        }
        Ok(None)
    }

    /// `SEEK_HOLE`: the first offset at or after this that is in a hole, or the end; nothing behind the end.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn next_hole(&self, offset_bytes: u64) -> Result<Option<u64>, ZplError> {
        let _range = self.node.ranges.read(offset_bytes..u64::MAX).await;
        let (size, block_bytes) = (self.node.size_bytes(), self.node.object.block_bytes());
        if offset_bytes >= size {
            return Ok(None);
        }
        let block = offset_bytes / block_bytes;
        let hole = self.hole_at(block).await?;
        if hole == block {
            return Ok(Some(offset_bytes));
        }
        // Data up to the last block before the hole, but for zeros in front of the first.
        let data = self.data_in(block).await?;
        if data.is_empty() || offset_bytes < data.start {
            return Ok(Some(offset_bytes));
        }
        let end = self.data_in(hole - 1).await?.end;
        Ok(Some(end.max(offset_bytes).min(size)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_of_zeros_at_both_ends_are_not_filled() {
        let mut block = vec![0; 4096];
        assert!(filled(&block).is_empty());
        block[1500] = 1;
        assert_eq!(filled(&block), 1024..1536);
        block[3000] = 1;
        assert_eq!(filled(&block), 1024..3072);
        block[0] = 1;
        block[4095] = 1;
        assert_eq!(filled(&block), 0..4096);
        assert_eq!(filled(&[0, 7]), 0..2);
    }
}
