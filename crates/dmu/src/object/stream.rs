//! An object's data in order, read ahead of the reader.

use std::collections::VecDeque;
use std::ops::Range;

use cenote_format::ids::BlockId;
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;

use super::Object;
use super::read::part_of;
use crate::DmuError;
use crate::window::{Begun, READS_MAX};

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

impl Object {
    /// The data of `range` in order, with up to `window_bytes` of reads in flight. Holes come as runs of their own. Integers are in our
    /// byte order as [`Object::read`] gives them.
    #[must_use]
    pub fn stream(&self, range: Range<u64>, window_bytes: u64) -> DataStream {
        DataStream {
            object: self.clone(),
            at: range.start,
            end: range.end,
            window_bytes: window_bytes.max(1),
            pending: VecDeque::new(),
            pending_bytes: 0,
        }
    }
}

/// The outcome of reading a block; `None` for a hole.
type Read = Result<Option<Block>, DmuError>;

enum Pending {
    Hole { offset_bytes: u64, len_bytes: u64 },
    Block { offset_bytes: u64, range: Range<usize>, read: Begun<Read> },
}

/// An object's data in order. Dropping it lets the reads in flight finish unused.
pub struct DataStream {
    object: Object,
    /// Where to issue next.
    at: u64,
    end: u64,
    window_bytes: u64,
    pending: VecDeque<Pending>,
    pending_bytes: u64,
}

impl DataStream {
    /// The next run; `None` at the end.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Run>, DmuError> {
        self.fill().await?;
        match self.pending.pop_front() {
            None => {
                assert_eq!(self.pending_bytes, 0, "what is in flight is pending");
                assert!(self.at >= self.end, "a stream ends where its range does");
                Ok(None)
            }
            Some(Pending::Hole { offset_bytes, len_bytes }) => Ok(Some(Run::Hole { offset_bytes, len_bytes })),
            Some(Pending::Block { offset_bytes, range, read }) => {
                let len = range.len();
                self.pending_bytes -= len as u64;
                let read = read.join().await.map_err(|error| self.object.interrupted(&error))?;
                Ok(Some(match read? {
                    Some(block) => Run::Data { offset_bytes, block: part_of(block, range) },
                    None => Run::Hole { offset_bytes, len_bytes: len as u64 },
                }))
            }
        }
    }

    async fn fill(&mut self) -> Result<(), DmuError> {
        let size = self.object.block_bytes();
        if size == 0 {
            self.at = self.end;
        }
        while self.at < self.end
            && self.pending.len() < READS_MAX
            && (self.pending_bytes < self.window_bytes || self.pending.is_empty())
        {
            let block_id = BlockId(self.at / size);
            let data = self.object.next_data_block(block_id).await?;
            let hole_end = data.map_or(self.end, |data| data.0.saturating_mul(size)).min(self.end);
            if hole_end > self.at {
                self.pending.push_back(Pending::Hole { offset_bytes: self.at, len_bytes: hole_end - self.at });
                self.at = hole_end;
                continue;
            }
            let start = (self.at % size) as usize;
            let len = (size - self.at % size).min(self.end - self.at) as usize;
            let read = match self.object.resident_block(block_id) {
                Some(block) => Begun::Done(Ok(Some(block))),
                None => {
                    let object = self.object.clone();
                    let read = async move {
                        object.block(block_id).await?.map(|found| object.in_our_order(found)).transpose()
                    };
                    Begun::Task(self.object.spawn_read(read)?)
                }
            };
            self.pending.push_back(Pending::Block { offset_bytes: self.at, range: start..start + len, read });
            self.pending_bytes += len as u64;
            self.at += len as u64;
        }
        Ok(())
    }
}
