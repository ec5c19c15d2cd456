//! A file's content in order, skipping unreadable blocks.

use std::ops::Range;

use cenote_dmu::{DataStream, DmuError, Run};
use cenote_taskq::boxed;
use cenote_zpl::File;

/// A file's content as runs. An unreadable block is a run too, after which the content continues.
pub struct Content {
    file: File,
    window_bytes: u64,
    stream: Option<DataStream>,
    at: u64,
    end: u64,
}

/// A piece of a file.
#[derive(Debug)]
pub enum Piece {
    /// Bytes or a hole.
    Run(Run),
    /// Bytes that cannot be read.
    Damage {
        /// Their offset.
        offset_bytes: u64,
        /// Their number.
        len_bytes: u64,
        /// The reason.
        error: DmuError,
    },
}

impl Content {
    /// The whole file, with `window_bytes` of reads in flight.
    pub fn new(file: File, window_bytes: u64) -> Self {
        let size = file.size_bytes();
        Self::range(file, 0..size, window_bytes)
    }

    /// A part of the file, which must be within it.
    pub(crate) fn range(file: File, range: Range<u64>, window_bytes: u64) -> Self {
        Self { file, window_bytes, stream: None, at: range.start, end: range.end }
    }

    /// The next piece; `None` at the end.
    #[boxed]
    pub async fn next(&mut self) -> Option<Piece> {
        if self.at >= self.end {
            return None;
        }
        let stream = self.stream.get_or_insert_with(|| self.file.stream_range(self.at..self.end, self.window_bytes));
        match stream.next().await {
            Ok(Some(run)) => {
                self.at = match &run {
                    Run::Data { offset_bytes, block } => offset_bytes.saturating_add(block.len() as u64),
                    Run::Hole { offset_bytes, len_bytes } => offset_bytes.saturating_add(*len_bytes),
                };
                Some(Piece::Run(run))
            }
            Ok(None) => {
                self.at = self.end;
                None
            }
            Err(error) => {
                self.stream = None;
                let block_size = self.file.block_size_bytes().max(1);
                let offset_bytes = self.at;
                self.at = (offset_bytes / block_size).saturating_add(1).saturating_mul(block_size).min(self.end);
                Some(Piece::Damage { offset_bytes, len_bytes: self.at - offset_bytes, error })
            }
        }
    }
}
