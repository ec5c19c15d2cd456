//! After the handshake: requests in, tasks out.

use std::io::{self, BufReader, Read};
use std::sync::Arc;

use cenote_taskq::{Buf, Class, Group, Handle};

use crate::budget::Budget;
use crate::export::{Export, ExportError, ExportErrorKind};
use crate::handshake::{Agreed, read_or_end};
use crate::limits;
use crate::proto::{Request, command, command_flag};
use crate::reply::{ReplyQueue, Slot};
use crate::transport::{ConnectionError, Transport};

/// Requests that move as much or more are tasks.
const HERE_MAX_BYTES: u64 = 32 << 10;

/// Reads requests until the client leaves or breaks the protocol, or the server closes. Does not wait for replies.
pub(crate) fn read_requests(
    reader: &mut BufReader<impl Read>,
    handle: &Handle,
    agreed: &Agreed,
    queue: &Arc<ReplyQueue>,
    budget: &Arc<Budget>,
    transport: &dyn Transport,
) -> Result<(), ConnectionError> {
    let requests = Requests { group: handle.group(), agreed, queue, budget, transport };
    let mut bytes = [0; Request::SIZE];
    while !transport.is_closing() && read_or_end(reader, &mut bytes)? {
        let request = Request::parse(&bytes).ok_or(ConnectionError::Protocol("a request without its magic number"))?;
        if request.command == command::DISC {
            break;
        }
        transport.count_request();
        requests.accept(reader, request)?;
    }
    Ok(())
}

struct Requests<'a> {
    group: Group,
    agreed: &'a Agreed,
    queue: &'a Arc<ReplyQueue>,
    budget: &'a Arc<Budget>,
    transport: &'a dyn Transport,
}

impl Requests<'_> {
    fn accept(&self, reader: &mut BufReader<impl Read>, request: Request) -> Result<(), ConnectionError> {
        let verdict = self.check(&request);
        let length = u64::from(request.length_bytes);
        let data_bytes = match request.command {
            command::READ | command::WRITE if verdict.is_ok() => length,
            command::BLOCK_STATUS => (limits::EXTENTS * 8) as u64,
            _ => 0,
        };
        assert!(
            data_bytes <= u64::from(limits::REQUEST_BYTES).max((limits::EXTENTS * 8) as u64),
            "a request that was checked moves so much at most (invariant 3)"
        );
        let slot = Slot::new(self.queue, self.budget.take(data_bytes), request.cookie, self.agreed.structured);
        if let Err(error) = verdict {
            if request.command == command::WRITE {
                self.receive(length, || discard(reader, length))?;
            }
            slot.fail(&error);
            return Ok(());
        }
        let export = Arc::clone(&self.agreed.export);
        let Request { offset_bytes, length_bytes, flags, .. } = request;
        assert!(
            offset_bytes.checked_add(length).is_some() || command::FLUSH == request.command,
            "a range that was checked has an end"
        );
        let fua = flags & command_flag::FUA != 0;
        // Data of more bypasses the reader's buffer, which then says nothing of requests behind it.
        let is_small = data_bytes < HERE_MAX_BYTES;
        match request.command {
            command::READ => {
                let whole = flags & command_flag::DF != 0;
                self.spawn(reader, is_small, async move {
                    let result = export.read(offset_bytes, length_bytes).await;
                    slot.read(offset_bytes, length_bytes, whole, result);
                });
            }
            command::WRITE => {
                let mut data = Buf::unfilled(length_bytes as usize);
                self.receive(length, || reader.read_exact(&mut data).map_err(ConnectionError::Io))?;
                self.spawn(reader, is_small, async move {
                    slot.finish(export.write(offset_bytes, data.freeze(), fua).await)
                });
            }
            command::FLUSH => self.spawn(reader, is_small, async move { slot.finish(export.flush().await) }),
            command::TRIM => {
                self.spawn(
                    reader,
                    is_small,
                    async move { slot.finish(export.trim(offset_bytes, length_bytes, fua).await) },
                );
            }
            command::CACHE => self
                .spawn(reader, is_small, async move { slot.finish(cache(&*export, offset_bytes, length_bytes).await) }),
            command::WRITE_ZEROES => {
                let may_free = flags & command_flag::NO_HOLE == 0;
                self.spawn(reader, is_small, async move {
                    slot.finish(export.write_zeros(offset_bytes, length_bytes, may_free, fua).await);
                });
            }
            _ => {
                let one = flags & command_flag::REQ_ONE != 0;
                let extents_max = if one { 1 } else { limits::EXTENTS };
                self.spawn(reader, is_small, async move {
                    let result = export.block_status(offset_bytes, length_bytes, extents_max).await;
                    slot.status(length_bytes, one, result);
                });
            }
        }
        Ok(())
    }

    /// Reads data that a client has announced, which it may not take for ever to send.
    fn receive(&self, bytes: u64, read: impl FnOnce() -> Result<(), ConnectionError>) -> Result<(), ConnectionError> {
        self.transport.expect_data(Some(bytes));
        let result = read();
        self.transport.expect_data(None);
        result
    }

    /// Serves a request: here, as far as that waits for nothing, if it moves little and the client has nothing else on its way, and else as a
    /// task, beside which the next request is read.
    fn spawn<R: Read>(&self, reader: &BufReader<R>, is_small: bool, work: impl Future<Output = ()> + Send + 'static) {
        debug_assert!(self.queue.unanswered() > 0, "a request that is served has its reply before it (invariant 1)");
        let is_alone = is_small && reader.buffer().is_empty() && self.queue.unanswered() == 1;
        // A request of a group that is closed is dropped, which answers it.
        let _ = match is_alone {
            true => self.group.begin(Class::Issue, work),
            false => self.group.spawn(Class::Issue, work).map(drop),
        };
    }

    /// Checks a request as far as it can be checked without asking the export.
    fn check(&self, request: &Request) -> Result<(), ExportError> {
        use command_flag as flag;
        let export = &self.agreed.export;
        let invalid = |text: &str| Err(ExportError::new(ExportErrorKind::Invalid, text));
        let df = if self.agreed.structured { flag::DF } else { 0 };
        let (allowed, is_write) = match request.command {
            command::READ => (flag::FUA | df, false),
            command::CACHE | command::FLUSH => (flag::FUA, false),
            command::WRITE | command::TRIM => (flag::FUA, true),
            command::WRITE_ZEROES => (flag::FUA | flag::NO_HOLE, true),
            command::BLOCK_STATUS if self.agreed.block_status => (flag::FUA | flag::REQ_ONE, false),
            command::BLOCK_STATUS => return invalid("block status was not agreed upon"),
            _ => return invalid("unknown command"),
        };
        if is_write && export.is_read_only() {
            return Err(ExportError::read_only());
        }
        if request.flags & !allowed != 0 {
            return invalid("unknown flags");
        }
        if request.command == command::FLUSH {
            return Ok(());
        }
        let sizes = export.block_sizes();
        let moves_data = matches!(request.command, command::READ | command::WRITE);
        if moves_data && request.length_bytes > sizes.maximum_bytes.min(limits::REQUEST_BYTES) {
            return invalid("the request is longer than the largest block size");
        }
        if request.length_bytes == 0 && request.command == command::BLOCK_STATUS {
            return invalid("block status of nothing");
        }
        let end = request.offset_bytes.checked_add(request.length_bytes.into());
        if end.is_none_or(|end| end > export.size_bytes()) {
            let kind = if is_write { ExportErrorKind::NoSpace } else { ExportErrorKind::Invalid };
            return Err(ExportError::new(kind, "the request goes past the export's end"));
        }
        let minimum = u64::from(sizes.minimum_bytes.max(1));
        if !request.offset_bytes.is_multiple_of(minimum) || !u64::from(request.length_bytes).is_multiple_of(minimum) {
            return invalid("the request is not aligned to the smallest block size");
        }
        Ok(())
    }
}

/// Caches a range that may be longer than a read may be.
async fn cache(export: &dyn Export, offset_bytes: u64, length_bytes: u32) -> Result<(), ExportError> {
    let step = export.block_sizes().maximum_bytes.clamp(1, limits::REQUEST_BYTES);
    let mut done = 0;
    while done < length_bytes {
        let now = step.min(length_bytes - done);
        debug_assert!(now > 0 && now <= limits::REQUEST_BYTES, "a part to be cached is no larger than a read");
        export.cache(offset_bytes + u64::from(done), now).await?;
        done += now;
    }
    Ok(())
}

/// Skips the data of a write that is refused. A client that sends more than it may is not worth the reading.
fn discard(reader: &mut impl Read, length: u64) -> Result<(), ConnectionError> {
    if length > u64::from(limits::REQUEST_BYTES) {
        return Err(ConnectionError::Protocol("a write too long to skip"));
    }
    let skipped = io::copy(&mut reader.take(length), &mut io::sink()).map_err(ConnectionError::Io)?;
    debug_assert!(skipped <= length, "no byte of the next request is skipped");
    if skipped < length {
        return Err(ConnectionError::Io(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(())
}
