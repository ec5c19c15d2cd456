//! Replies: how they are built, queued and written.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;

use cenote_taskq::Block;
use cenote_taskq::sync::atomic::{AtomicUsize, Ordering};
use cenote_taskq::sync::{Condvar, Mutex};

use crate::budget::Cost;
use crate::export::{ExportError, ExportErrorKind, Extent, Piece};
use crate::proto::{CHUNK_MAGIC, SIMPLE_REPLY_MAGIC, chunk, errno, status};
use crate::transport::{Sender, Transport};

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

impl Outgoing {
    fn len(&self) -> usize {
        self.segments.iter().map(Segment::len).sum()
    }
}

#[derive(Default)]
struct Queue {
    replies: VecDeque<Outgoing>,
    /// Bytes of the first that were sent already.
    sent_bytes: usize,
    /// A thread sends replies that it has taken, and looks for more after that.
    is_sending: bool,
    closed: bool,
}

impl Queue {
    /// Replies that could not be sent yet come first again.
    fn put_back(&mut self, mut batch: VecDeque<Outgoing>, sent_bytes: usize) {
        debug_assert!(
            batch.front().is_some_and(|first| sent_bytes < first.len()),
            "a reply that was sent as a whole does not come again (invariant 1)"
        );
        debug_assert_eq!(self.sent_bytes, 0, "one reply at most was sent in part");
        batch.append(&mut self.replies);
        self.replies = batch;
        self.sent_bytes = sent_bytes;
    }
}

/// Replies on their way to the client. A reply is sent by the thread that has made it, as far as the client can be sent it at once: no
/// other thread wakes for it. The rest goes to the writer thread, which waits for the client. The budget bounds all: each holds a [`Cost`].
#[derive(Default)]
pub(crate) struct ReplyQueue {
    queue: Mutex<Queue>,
    ready: Condvar,
    sender: Option<Sender>,
    unanswered: AtomicUsize,
}

/// Limits of batches and of bytes that a worker or reader sends before the writer does: they have other work.
const BATCHES_MAX: usize = 4;
const SENT_NOW_MAX_BYTES: usize = 256 << 10;

impl ReplyQueue {
    pub(crate) fn new(sender: Option<Sender>) -> Self {
        Self { sender, ..Self::default() }
    }

    /// Requests that were read and whose reply is not made.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Acquire)
    }

    fn push(&self, reply: Outgoing) {
        let unanswered = self.unanswered.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(unanswered > 0, "a reply is of a request that was read (invariant 1)");
        let mut queue = self.queue.lock();
        debug_assert!(!queue.closed, "no reply comes after the last (invariant 1)");
        queue.replies.push_back(reply);
        if queue.is_sending {
            return;
        }
        if let Some(sender) = &self.sender {
            for _ in 0..BATCHES_MAX {
                // A reply that was sent in part is for the writer to end.
                if queue.sent_bytes > 0 || queue.replies.is_empty() {
                    break;
                }
                let mut batch = std::mem::take(&mut queue.replies);
                queue.is_sending = true;
                drop(queue);
                let sent_bytes = send_now(sender, &mut batch, SENT_NOW_MAX_BYTES / BATCHES_MAX);
                queue = self.queue.lock();
                queue.is_sending = false;
                if !batch.is_empty() {
                    queue.put_back(batch, sent_bytes);
                    break;
                }
            }
        }
        if !queue.replies.is_empty() || queue.closed {
            self.ready.notify_one();
        }
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
            let (batch, sent_bytes) = {
                let mut queue = self.queue.lock();
                while queue.is_sending || queue.replies.is_empty() && !queue.closed {
                    queue = self.ready.wait(queue);
                }
                queue.is_sending = !queue.replies.is_empty();
                (std::mem::take(&mut queue.replies), std::mem::take(&mut queue.sent_bytes))
            };
            if batch.is_empty() {
                debug_assert_eq!(sent_bytes, 0, "nothing is left of a reply that was sent in part");
                return result;
            }
            if result.is_ok() {
                let segments = || batch.iter().flat_map(|reply| &reply.segments);
                transport.expect_taken(Some(segments().map(|segment| segment.len() as u64).sum()));
                result = write_segments(&mut writer, segments(), sent_bytes);
                transport.expect_taken(None);
                if result.is_err() {
                    transport.hang_up();
                }
            }
            drop(batch);
            self.queue.lock().is_sending = false;
        }
    }
}

/// Sends replies as far as the client can be sent them at once, and no further once this many bytes are sent; drops those that are sent. Returns
/// the bytes of the next that were.
fn send_now(sender: &Sender, batch: &mut VecDeque<Outgoing>, most_bytes: usize) -> usize {
    let (mut sent_bytes, mut left_bytes) = (0, most_bytes);
    while !batch.is_empty() && left_bytes > 0 {
        let slices = slices_of(batch.iter().flat_map(|reply| &reply.segments), sent_bytes, left_bytes);
        let mut now = match sender(&slices[..slices.len().min(SLICES_MAX)]) {
            // The writer finds out the error.
            Ok(0) | Err(_) => break,
            Ok(now) => {
                debug_assert!(now <= slices.iter().map(|slice| slice.len()).sum(), "a socket takes what it is given");
                left_bytes = left_bytes.saturating_sub(now);
                sent_bytes + now
            }
        };
        while let Some(first) = batch.front().map(Outgoing::len).filter(|first| *first <= now) {
            batch.pop_front();
            now -= first;
        }
        sent_bytes = now;
    }
    debug_assert!(!batch.is_empty() || sent_bytes == 0, "what is left is of a reply that is left");
    sent_bytes
}

/// The slices of segments behind so many bytes, and no more of them than this.
fn slices_of<'a>(
    segments: impl Iterator<Item = &'a Segment>,
    mut skipped_bytes: usize,
    mut left_bytes: usize,
) -> Vec<IoSlice<'a>> {
    let mut slices = Vec::new();
    let mut add = |bytes: &'a [u8]| {
        let skipped = skipped_bytes.min(bytes.len());
        skipped_bytes -= skipped;
        let taken = &bytes[skipped..][..left_bytes.min(bytes.len() - skipped)];
        left_bytes -= taken.len();
        if !taken.is_empty() {
            slices.push(IoSlice::new(taken));
        }
    };
    for segment in segments {
        match segment {
            Segment::Bytes(bytes) => add(bytes),
            Segment::Data(block) => add(block),
            Segment::Zeros(length) => {
                let mut rest = *length;
                while rest > 0 {
                    let piece = rest.min(ZEROS.len());
                    add(&ZEROS[..piece]);
                    rest -= piece;
                }
            }
        }
    }
    slices
}

fn write_segments<'a>(
    writer: &mut impl Write,
    segments: impl Iterator<Item = &'a Segment>,
    skipped_bytes: usize,
) -> io::Result<()> {
    let mut slices = slices_of(segments, skipped_bytes, usize::MAX);
    let mut rest = &mut slices[..];
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
        queue.unanswered.fetch_add(1, Ordering::AcqRel);
        Self { queue: Arc::clone(queue), cost: Some(cost), cookie, structured }
    }

    fn push(mut self, segments: Vec<Segment>) {
        debug_assert!(self.cost.is_some(), "a request is answered once (invariant 1)");
        debug_assert!(segments.iter().map(Segment::len).sum::<usize>() >= 16, "a reply has its head");
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
            debug_assert_eq!(
                flags == chunk::FLAG_DONE,
                pieces.peek().is_none(),
                "the last chunk says so (invariant 1)"
            );
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
        assert!(rest < length_bytes, "a block status says something of the range, and of nothing behind it");
        debug_assert_eq!(body.len() % 8, 4, "a block status is an id and whole extents");
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
        debug_assert!(
            u32::try_from(body.len()).is_ok_and(|len| len.checked_add(more).is_some()),
            "a chunk's length has 32 bits"
        );
        out.extend((body.len() as u32 + more).to_be_bytes());
        out.extend(body);
        out
    }

    fn data_head(&self, flags: u16, offset_bytes: u64, length_bytes: u64) -> Vec<u8> {
        debug_assert!(u32::try_from(length_bytes).is_ok_and(|len| len < u32::MAX - 8), "data is within a request");
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
    let beginning = &text[..text.floor_char_boundary(bytes_max)];
    assert!(beginning.len() <= bytes_max, "a text that is sent is bounded");
    beginning
}

#[cfg(test)]
mod tests {
    use cenote_taskq::Rng;

    use super::*;
    use crate::budget::Budget;
    use crate::fuzz::Quiet;

    /// A socket that takes a few bytes at a time, and often none; the writer's way takes all.
    struct Socket(Arc<Mutex<(Rng, Vec<u8>)>>);

    impl Write for Socket {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut socket = self.0.lock();
            let now = bytes.len().min(1 + socket.0.below(30) as usize);
            socket.1.extend(&bytes[..now]);
            Ok(now)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Each reply arrives whole and once, also where two threads send parts of it.
    #[test]
    fn replies_stay_whole_where_several_threads_send_them() {
        const THREADS: u64 = 4;
        const EACH: u64 = 500;
        let socket = Arc::new(Mutex::new((Rng::new(7), Vec::new())));
        let taken = Arc::clone(&socket);
        let sender: Sender = Box::new(move |slices| {
            let mut socket = taken.lock();
            let room = socket.0.below(40) as usize;
            if room < 5 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).take(room).collect();
            socket.1.extend(&bytes);
            Ok(bytes.len())
        });
        let queue = Arc::new(ReplyQueue::new(Some(sender)));
        let budget = Arc::new(Budget::new(Arc::default()));
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| queue.write_all(Socket(Arc::clone(&socket)), &Quiet));
            let makers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (queue, budget) = (&queue, &budget);
                    scope.spawn(move || {
                        for number in 0..EACH {
                            Slot::new(queue, budget.take(0), thread << 32 | number, false).finish(Ok(()));
                        }
                    })
                })
                .collect();
            makers.into_iter().for_each(|maker| maker.join().expect("no panic"));
            budget.drained();
            queue.close();
            writing.join().expect("no panic").expect("a socket that takes all");
        });
        assert_eq!(queue.unanswered(), 0);
        let bytes = std::mem::take(&mut socket.lock().1);
        let mut cookies: Vec<u64> = bytes
            .chunks(16)
            .map(|reply| {
                assert_eq!(reply[..8], [SIMPLE_REPLY_MAGIC.to_be_bytes(), [0; 4]].concat(), "a whole reply");
                u64::from_be_bytes(reply[8..].try_into().expect("eight bytes"))
            })
            .collect();
        for thread in 0..THREADS {
            let of_one = cookies.iter().filter(|cookie| *cookie >> 32 == thread).map(|cookie| cookie & 0xffff_ffff);
            assert!(of_one.eq(0..EACH), "replies of one thread are in its order");
        }
        cookies.sort_unstable();
        cookies.dedup();
        assert_eq!(cookies.len() as u64, THREADS * EACH);
    }
}
