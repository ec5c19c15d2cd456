//! Reading ranges of an object's data.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use cenote_format::ids::BlockId;
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{Join, JoinError};

use crate::ahead::{Ahead, Watch};
use crate::dnode::Dnode;
use crate::window::{READS_MAX, in_order};
use crate::{DmuError, DmuErrorKind};

/// The most that one read gives, in bytes.
pub const READ_SIZE_MAX_BYTES: usize = 1 << 30;

/// A piece of an object's data, in order.
#[derive(Clone, Debug)]
pub enum Run {
    /// Bytes.
    Data {
        /// Where they begin, in bytes.
        offset_bytes: u64,
        /// The bytes.
        block: Block,
    },
    /// A hole: zeros that take no space.
    Hole {
        /// Where it begins, in bytes.
        offset_bytes: u64,
        /// How long it is, in bytes.
        len_bytes: u64,
    },
}

/// How a range is read.
#[derive(Clone, Copy)]
enum Way<'a> {
    Plain,
    Ahead(&'a Arc<Ahead>),
    Direct,
}

impl Dnode {
    /// `len` bytes at `offset_bytes`; what lies in holes or past the last block is zeros.
    ///
    /// Within one block nothing is copied. Blocks of a longer range are read concurrently, a bounded number at a time. The
    /// caller bounds `len`, to [`READ_SIZE_MAX_BYTES`] at most: the result is one buffer.
    pub async fn read(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        self.read_by(offset_bytes, len, Way::Plain).await
    }

    /// As [`Dnode::read`], by a reader that has read before and will again: what it will probably want next is loaded
    /// ahead.
    pub async fn read_ahead(&self, offset_bytes: u64, len: usize, ahead: &Arc<Ahead>) -> Result<Block, DmuError> {
        self.read_by(offset_bytes, len, Way::Ahead(ahead)).await
    }

    /// As [`Dnode::read`], past the cache: nothing is looked for there or left there but the indirect blocks. For clients
    /// that keep what they read themselves. A range that is not made of whole blocks goes through the cache, since its
    /// blocks will be asked for again.
    pub async fn read_direct(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        let size = self.data_block_size_bytes().max(1);
        let ends = offset_bytes.saturating_add(len as u64);
        let end = self.last_block().0.saturating_add(1).saturating_mul(size);
        let whole = offset_bytes.is_multiple_of(size) && (ends.is_multiple_of(size) || ends >= end);
        self.read_by(offset_bytes, len, if whole { Way::Direct } else { Way::Plain }).await
    }

    async fn read_by(&self, offset_bytes: u64, len: usize, way: Way<'_>) -> Result<Block, DmuError> {
        let size = self.data_block_size_bytes();
        if len > READ_SIZE_MAX_BYTES {
            return Err(self.error(DmuErrorKind::TooLarge(len)));
        }
        let Some((blocks, start_in_block)) = blocks_of(offset_bytes, len, size, self.last_block()) else {
            return Ok(Buf::zeroed(len).freeze());
        };
        let (first, last) = (*blocks.start(), *blocks.end());
        if first == last {
            let block = match way {
                Way::Plain => self.block(BlockId(first)).await?.map(|(block, _)| block),
                Way::Direct => self.data_direct(BlockId(first)).await?,
                Way::Ahead(ahead) => {
                    let watch = Watch::new(first, 1);
                    let block = watch.block(self, BlockId(first), ahead).await?;
                    watch.tell(ahead);
                    block
                }
            };
            return Ok(match block {
                Some(block) => part_of(block, start_in_block..start_in_block + len),
                None => Buf::zeroed(len).freeze(),
            });
        }
        let watch = match way {
            Way::Ahead(ahead) => Some((Arc::new(Watch::new(first, last - first + 1)), ahead.clone())),
            Way::Plain | Way::Direct => None,
        };
        let direct = matches!(way, Way::Direct);
        let mut target = Buf::zeroed(len);
        let start = |block| {
            let dnode = self.clone();
            let watch = watch.clone();
            self.spawn(async move {
                match watch {
                    Some((watch, ahead)) => watch.block(&dnode, BlockId(block), &ahead).await,
                    None if direct => dnode.data_direct(BlockId(block)).await,
                    None => Ok(dnode.block(BlockId(block)).await?.map(|(block, _)| block)),
                }
            })
        };
        let take = |index: u64, read: Result<_, JoinError>| {
            let read: Result<Option<Block>, DmuError> = read.map_err(|error| self.interrupted(&error))?;
            let Some(block) = read? else { return Ok(()) };
            // Inside the range, so these neither overflow nor exceed `len`.
            let block_start = index * size;
            let skip = offset_bytes.saturating_sub(block_start) as usize;
            let at = block_start.saturating_sub(offset_bytes) as usize;
            copy_into(&mut target, at, block.get(skip..).unwrap_or_default());
            Ok(())
        };
        in_order(blocks, READS_MAX, start, take).await?;
        if let Some((watch, ahead)) = &watch {
            watch.tell(ahead);
        }
        Ok(target.freeze())
    }

    fn interrupted(&self, error: &JoinError) -> DmuError {
        self.error(DmuErrorKind::Interrupted(error.to_string()))
    }

    /// A part of a read as a task of its own. Fails once the pool is being exported.
    fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Result<Join<T>, DmuError> {
        let spawned = self.objset().dmu().spawn(future);
        spawned.map_err(|_| self.error(DmuErrorKind::Interrupted("the pool is being exported".into())))
    }

    /// The data of `range` in order, with up to `window_bytes` of reads in flight. Holes come as runs of their own.
    #[must_use]
    pub fn stream(&self, range: Range<u64>, window_bytes: u64) -> DataStream {
        DataStream {
            dnode: self.clone(),
            at: range.start,
            end: range.end,
            window_bytes: window_bytes.max(1),
            pending: VecDeque::new(),
            pending_bytes: 0,
        }
    }
}

/// A part of a block. A short block stands for zeros beyond its end.
fn part_of(block: Block, range: Range<usize>) -> Block {
    if block.len() >= range.end {
        return block.try_into_slice(range).unwrap_or_default();
    }
    let mut padded = Buf::zeroed(range.len());
    copy_into(&mut padded, 0, block.get(range.start..).unwrap_or_default());
    padded.freeze()
}

/// The blocks, of `size` bytes each, that a range reaches up to the object's last one, and where in the first it begins.
/// `None` if it reaches none.
fn blocks_of(offset_bytes: u64, len: usize, size: u64, last: BlockId) -> Option<(RangeInclusive<u64>, usize)> {
    let first = offset_bytes.checked_div(size)?;
    let last_byte = offset_bytes.saturating_add((len as u64).checked_sub(1)?);
    let end = (last_byte / size).min(last.0);
    (first <= end).then(|| (first..=end, (offset_bytes % size) as usize))
}

fn copy_into(target: &mut [u8], at: usize, source: &[u8]) {
    let Some(target) = target.get_mut(at..) else { return };
    let len = source.len().min(target.len());
    target[..len].copy_from_slice(&source[..len]);
}

enum Pending {
    Hole { offset_bytes: u64, len_bytes: u64 },
    Block { offset_bytes: u64, range: Range<usize>, read: Join<Result<Option<Block>, DmuError>> },
}

/// An object's data in order. Dropping it lets the reads in flight finish unused.
pub struct DataStream {
    dnode: Dnode,
    /// Where to issue next.
    at: u64,
    end: u64,
    window_bytes: u64,
    pending: VecDeque<Pending>,
    pending_bytes: u64,
}

impl DataStream {
    /// The next run; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Run>, DmuError> {
        self.fill().await?;
        match self.pending.pop_front() {
            None => Ok(None),
            Some(Pending::Hole { offset_bytes, len_bytes }) => Ok(Some(Run::Hole { offset_bytes, len_bytes })),
            Some(Pending::Block { offset_bytes, range, read }) => {
                let len = range.len();
                self.pending_bytes -= len as u64;
                let read = read.await.map_err(|error| self.dnode.interrupted(&error))?;
                Ok(Some(match read? {
                    Some(block) => Run::Data { offset_bytes, block: part_of(block, range) },
                    None => Run::Hole { offset_bytes, len_bytes: len as u64 },
                }))
            }
        }
    }

    async fn fill(&mut self) -> Result<(), DmuError> {
        let size = self.dnode.data_block_size_bytes();
        if size == 0 {
            self.at = self.end;
        }
        while self.at < self.end
            && self.pending.len() < READS_MAX
            && (self.pending_bytes < self.window_bytes || self.pending.is_empty())
        {
            let block_id = BlockId(self.at / size);
            let data = self.dnode.next_data_block(block_id).await?;
            let hole_end = data.map_or(self.end, |data| data.0.saturating_mul(size)).min(self.end);
            if hole_end > self.at {
                self.pending.push_back(Pending::Hole { offset_bytes: self.at, len_bytes: hole_end - self.at });
                self.at = hole_end;
                continue;
            }
            let start = (self.at % size) as usize;
            let len = (size - self.at % size).min(self.end - self.at) as usize;
            let dnode = self.dnode.clone();
            let read = self.dnode.spawn(async move { Ok(dnode.block(block_id).await?.map(|(block, _)| block)) })?;
            self.pending.push_back(Pending::Block { offset_bytes: self.at, range: start..start + len, read });
            self.pending_bytes += len as u64;
            self.at += len as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_at_the_end_of_all_offsets_are_blocks_that_exist_or_none() {
        let last = BlockId(u64::MAX / 512);
        assert_eq!(blocks_of(u64::MAX, 1, 512, last), Some((last.0..=last.0, 511)));
        assert_eq!(blocks_of(u64::MAX, usize::MAX, 512, last), Some((last.0..=last.0, 511)));
        assert_eq!(blocks_of(u64::MAX - 512, 1 << 20, 512, last), Some((last.0 - 1..=last.0, 511)));
        assert_eq!(blocks_of(u64::MAX - 512, 1 << 20, 512, BlockId(7)), None);
        assert_eq!(blocks_of(0, usize::MAX, 512, BlockId(7)), Some((0..=7, 0)));
        assert_eq!(blocks_of(1000, 24, 512, BlockId(u64::MAX)), Some((1..=1, 488)));
        assert_eq!(blocks_of(1000, 25, 512, BlockId(u64::MAX)), Some((1..=2, 488)));
        assert_eq!(blocks_of(5, 0, 512, last), None);
        assert_eq!(blocks_of(5, 10, 0, last), None);
    }
}
