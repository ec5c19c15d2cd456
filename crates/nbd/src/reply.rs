//! Replies: how they are built, queued and written.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;

use cenote_taskq::Block;
use cenote_taskq::sync::{Condvar, Mutex};

use crate::budget::Cost;
use crate::connection::Transport;
use crate::export::{ExportError, ExportErrorKind, Extent, Piece};
use crate::proto::{CHUNK_MAGIC, SIMPLE_REPLY_MAGIC, chunk, errno, status};

/// A part of a reply on its way out.
pub(crate) enum Segment {
    Bytes(Vec<u8>),
    Data(Block),
    Zeros(usize),
}

impl Segment {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Data(block) => block.len(),
            Self::Zeros(length) => *length,
        }
    }
}

const ZEROS: &[u8] = &[0; 64 << 10];

/// How many slices one system call takes (`IOV_MAX` on Linux).
const SLICES_MAX: usize = 1024;

/// A reply and what it holds of the budget until it is written.
struct Outgoing {
    segments: Vec<Segment>,
    _cost: Cost,
}

#[derive(Default)]
struct Queue {
    replies: VecDeque<Outgoing>,
    closed: bool,
}

/// Replies waiting for the writer thread. The budget bounds it: each holds a [`Cost`].
#[derive(Default)]
pub(crate) struct ReplyQueue {
    queue: Mutex<Queue>,
    ready: Condvar,
}

impl ReplyQueue {
    fn push(&self, reply: Outgoing) {
        self.queue.lock().replies.push_back(reply);
        self.ready.notify_one();
    }

    /// No more replies will come.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.ready.notify_one();
    }

    /// Writes replies until the queue is closed and empty. If the client is gone, replies are dropped, so that their
    /// costs return and the reader does not wait for ever.
    pub(crate) fn write_all(&self, mut writer: impl Write, transport: &dyn Transport) -> io::Result<()> {
        let mut result = Ok(());
        loop {
            let batch = {
                let mut queue = self.queue.lock();
                while queue.replies.is_empty() && !queue.closed {
                    queue = self.ready.wait(queue);
                }
                std::mem::take(&mut queue.replies)
            };
            if batch.is_empty() {
                return result;
            }
            if result.is_ok() {
                let segments = || batch.iter().flat_map(|reply| &reply.segments);
                transport.expect_taken(Some(segments().map(|segment| segment.len() as u64).sum()));
                result = write_segments(&mut writer, segments());
                transport.expect_taken(None);
                if result.is_err() {
                    transport.hang_up();
                }
            }
        }
    }
}

fn write_segments<'a>(writer: &mut impl Write, segments: impl Iterator<Item = &'a Segment>) -> io::Result<()> {
    let mut slices = Vec::new();
    for segment in segments {
        match segment {
            Segment::Bytes(bytes) => slices.push(IoSlice::new(bytes)),
            Segment::Data(block) => slices.push(IoSlice::new(block)),
            Segment::Zeros(length) => {
                let mut rest = *length;
                while rest > 0 {
                    let piece = rest.min(ZEROS.len());
                    slices.push(IoSlice::new(&ZEROS[..piece]));
                    rest -= piece;
                }
            }
        }
    }
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let now = rest.len().min(SLICES_MAX);
        match writer.write_vectored(&rest[..now]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    writer.flush()
}

/// The obligation to answer one request. Dropped unanswered (a task that panicked, or never ran), it answers EIO.
pub(crate) struct Slot {
    queue: Arc<ReplyQueue>,
    cost: Option<Cost>,
    cookie: u64,
    structured: bool,
}

impl Slot {
    pub(crate) fn new(queue: &Arc<ReplyQueue>, cost: Cost, cookie: u64, structured: bool) -> Self {
        Self { queue: Arc::clone(queue), cost: Some(cost), cookie, structured }
    }

    fn push(mut self, segments: Vec<Segment>) {
        if let Some(cost) = self.cost.take() {
            self.queue.push(Outgoing { segments, _cost: cost });
        }
    }

    /// Answers a request that has no data.
    pub(crate) fn finish(self, result: Result<(), ExportError>) {
        match result {
            Ok(()) => {
                let bytes = self.simple(0);
                self.push(vec![Segment::Bytes(bytes)]);
            }
            Err(error) => self.fail(&error),
        }
    }

    /// Answers with an error.
    pub(crate) fn fail(self, error: &ExportError) {
        let bytes = self.error_bytes(error);
        self.push(vec![Segment::Bytes(bytes)]);
    }

    /// Answers a read of `length_bytes` at `offset_bytes`; in a single chunk if `whole`.
    pub(crate) fn read(
        self,
        offset_bytes: u64,
        length_bytes: u32,
        whole: bool,
        result: Result<Vec<Piece>, ExportError>,
    ) {
        let pieces = match result {
            Ok(pieces) => pieces,
            Err(error) => return self.fail(&error),
        };
        if pieces.iter().map(Piece::length_bytes).sum::<u64>() != u64::from(length_bytes) {
            return self.fail(&ExportError::new(ExportErrorKind::Io, "the export returned another length than asked"));
        }
        let mut segments = Vec::with_capacity(2 * pieces.len() + 1);
        if !self.structured {
            segments.push(Segment::Bytes(self.simple(0)));
            segments.extend(pieces.into_iter().map(segment));
        } else if whole || length_bytes == 0 {
            if length_bytes == 0 {
                segments.push(Segment::Bytes(self.chunk(chunk::FLAG_DONE, chunk::NONE, 0, &[])));
            } else {
                segments.push(Segment::Bytes(self.data_head(chunk::FLAG_DONE, offset_bytes, length_bytes.into())));
                segments.extend(pieces.into_iter().map(segment));
            }
        } else {
            self.chunks(offset_bytes, pieces, &mut segments);
        }
        self.push(segments);
    }

    /// A chunk for each run of data and each hole.
    fn chunks(&self, offset_bytes: u64, pieces: Vec<Piece>, segments: &mut Vec<Segment>) {
        let mut at = offset_bytes;
        let mut pieces = pieces.into_iter().filter(|piece| piece.length_bytes() != 0).peekable();
        while let Some(piece) = pieces.next() {
            let is_data = matches!(piece, Piece::Data(_));
            let mut run = vec![piece];
            while let Some(next) = pieces.next_if(|next| matches!(next, Piece::Data(_)) == is_data) {
                run.push(next);
            }
            let length: u64 = run.iter().map(Piece::length_bytes).sum();
            let flags = if pieces.peek().is_none() { chunk::FLAG_DONE } else { 0 };
            if is_data {
                segments.push(Segment::Bytes(self.data_head(flags, at, length)));
                segments.extend(run.into_iter().map(segment));
            } else {
                let mut body = at.to_be_bytes().to_vec();
                // Within a request, whose length has 32 bits.
                body.extend((length as u32).to_be_bytes());
                segments.push(Segment::Bytes(self.chunk(flags, chunk::OFFSET_HOLE, 0, &body)));
            }
            at += length;
        }
    }

    /// Answers a block status request for `length_bytes`; with one extent only if `one`.
    pub(crate) fn status(self, length_bytes: u32, one: bool, result: Result<Vec<Extent>, ExportError>) {
        let extents = match result {
            Ok(extents) => extents,
            Err(error) => return self.fail(&error),
        };
        let mut body = status::CONTEXT_ID.to_be_bytes().to_vec();
        let mut rest = length_bytes;
        for extent in extents.iter().filter(|extent| extent.length_bytes != 0) {
            // Saturation is cut to the rest anyway.
            let length = u32::try_from(extent.length_bytes).unwrap_or(u32::MAX).min(rest);
            if length == 0 || (one && rest != length_bytes) {
                break;
            }
            let hole = if extent.is_hole { status::HOLE } else { 0 };
            let zero = if extent.is_zero { status::ZERO } else { 0 };
            body.extend(length.to_be_bytes());
            body.extend((hole | zero).to_be_bytes());
            rest -= length;
        }
        if rest == length_bytes {
            return self.fail(&ExportError::new(ExportErrorKind::Io, "the export returned no extents"));
        }
        let bytes = self.chunk(chunk::FLAG_DONE, chunk::BLOCK_STATUS, 0, &body);
        self.push(vec![Segment::Bytes(bytes)]);
    }

    fn simple(&self, error: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        out.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
        out.extend(error.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        out
    }

    /// A chunk whose body is `body` and `more` bytes that follow.
    fn chunk(&self, flags: u16, kind: u16, more: u32, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(20 + body.len());
        out.extend(CHUNK_MAGIC.to_be_bytes());
        out.extend(flags.to_be_bytes());
        out.extend(kind.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        // Bodies are at most an extent list or an error's text.
        out.extend((body.len() as u32 + more).to_be_bytes());
        out.extend(body);
        out
    }

    fn data_head(&self, flags: u16, offset_bytes: u64, length_bytes: u64) -> Vec<u8> {
        self.chunk(flags, chunk::OFFSET_DATA, length_bytes as u32, &offset_bytes.to_be_bytes())
    }

    fn error_bytes(&self, error: &ExportError) -> Vec<u8> {
        let number = match error.kind {
            ExportErrorKind::Io => errno::EIO,
            ExportErrorKind::ReadOnly => errno::EPERM,
            ExportErrorKind::NoSpace => errno::ENOSPC,
            ExportErrorKind::Invalid => errno::EINVAL,
            ExportErrorKind::NotSupported => errno::ENOTSUP,
            ExportErrorKind::Memory => errno::ENOMEM,
            ExportErrorKind::Shutdown => errno::ESHUTDOWN,
        };
        if !self.structured {
            return self.simple(number);
        }
        let text = truncated(&error.message, crate::limits::STRING_BYTES);
        let mut body = number.to_be_bytes().to_vec();
        body.extend((text.len() as u16).to_be_bytes());
        body.extend(text.as_bytes());
        self.chunk(chunk::FLAG_DONE, chunk::ERROR, 0, &body)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(cost) = self.cost.take() {
            let bytes = self.error_bytes(&ExportError::new(ExportErrorKind::Io, "the request was abandoned"));
            self.queue.push(Outgoing { segments: vec![Segment::Bytes(bytes)], _cost: cost });
        }
    }
}

fn segment(piece: Piece) -> Segment {
    match piece {
        Piece::Data(block) => Segment::Data(block),
        // Within a request, whose length has 32 bits.
        Piece::Zeros(length) => Segment::Zeros(length as usize),
    }
}

/// The longest beginning of `text` that has at most `bytes_max` bytes.
pub(crate) fn truncated(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}
