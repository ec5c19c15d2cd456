//! The handshake: greeting and options, up to the opening of an export.

use std::io::{self, Read, Write};
use std::sync::Arc;

use cenote_taskq::{Class, Handle};

use crate::export::{Export, ExportError, ExportErrorKind, ExportName, Exports};
use crate::limits;
use crate::proto::{
    GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, be16, be32, be64, handshake, info, option, option_reply, status,
    transmission_flag,
};
use crate::reply::truncated;
use crate::transport::ConnectionError;

/// The outcome of the handshake.
pub(crate) struct Agreed {
    pub(crate) export: Arc<dyn Export>,
    /// Replies come in chunks.
    pub(crate) structured: bool,
    /// Block status may be asked for.
    pub(crate) block_status: bool,
}

/// The engine's side of a handshake: how exports are asked for.
pub(crate) struct Directory<'a> {
    pub(crate) handle: &'a Handle,
    pub(crate) exports: &'a Arc<dyn Exports>,
}

impl Directory<'_> {
    fn list(&self) -> Result<Vec<ExportName>, ExportError> {
        let exports = Arc::clone(self.exports);
        wait(self.handle, async move { exports.list().await })
    }

    fn open(&self, name: &str) -> Result<Option<Arc<dyn Export>>, ExportError> {
        let exports = Arc::clone(self.exports);
        let name = name.to_owned();
        wait(self.handle, async move { exports.open(&name).await })
    }
}

/// Runs a future on the engine while this thread, which is a connection's own, waits.
fn wait<T: Send + 'static>(
    handle: &Handle,
    future: impl Future<Output = Result<T, ExportError>> + Send + 'static,
) -> Result<T, ExportError> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    drop(handle.spawn(Class::Issue, async move {
        let _ = sender.send(future.await);
    }));
    receiver.recv().unwrap_or_else(|_| Err(ExportError::new(ExportErrorKind::Io, "the request was abandoned")))
}

/// Shakes hands. `None` if the client left politely.
pub(crate) fn shake_hands(
    reader: &mut impl Read,
    writer: &mut impl Write,
    directory: &Directory<'_>,
) -> Result<Option<Agreed>, ConnectionError> {
    let mut greeting = Vec::with_capacity(18);
    greeting.extend(GREETING_MAGIC.to_be_bytes());
    greeting.extend(OPTION_MAGIC.to_be_bytes());
    greeting.extend((handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
    send(writer, &greeting)?;
    let mut flags = [0; 4];
    if !read_or_end(reader, &mut flags)? {
        return Ok(None);
    }
    let flags = be32(&flags, 0);
    let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    if flags & !known != 0 || flags & u32::from(handshake::FIXED_NEWSTYLE) == 0 {
        return Err(ConnectionError::Protocol("the client does not speak the fixed newstyle handshake"));
    }
    let mut shaking = Handshake {
        no_zeroes: flags & u32::from(handshake::NO_ZEROES) != 0,
        structured: false,
        status_for: None,
        writer,
        directory,
    };
    for _ in 0..limits::OPTIONS {
        let mut head = [0; 16];
        if !read_or_end(reader, &mut head)? {
            return Ok(None);
        }
        if be64(&head, 0) != OPTION_MAGIC {
            return Err(ConnectionError::Protocol("an option without its magic number"));
        }
        let (number, length) = (be32(&head, 8), be32(&head, 12));
        if length > limits::OPTION_BYTES {
            if number == option::EXPORT_NAME || length > 16 * limits::OPTION_BYTES {
                return Err(ConnectionError::Protocol("an option too long to skip"));
            }
            io::copy(&mut reader.by_ref().take(length.into()), &mut io::sink()).map_err(ConnectionError::Io)?;
            shaking.refuse(number, option_reply::ERR_TOO_BIG, "the option's data is too long")?;
            continue;
        }
        let mut data = vec![0; length as usize];
        reader.read_exact(&mut data).map_err(ConnectionError::Io)?;
        match shaking.option(number, &data)? {
            Step::Next => {}
            Step::Open(agreed) => return Ok(Some(agreed)),
            Step::Leave => return Ok(None),
        }
    }
    Err(ConnectionError::Protocol("too many options"))
}

enum Step {
    Next,
    Open(Agreed),
    Leave,
}

struct Handshake<'a, W> {
    no_zeroes: bool,
    structured: bool,
    /// The export for which block status was agreed upon; it holds for no other.
    status_for: Option<String>,
    writer: &'a mut W,
    directory: &'a Directory<'a>,
}

impl<W: Write> Handshake<'_, W> {
    fn option(&mut self, number: u32, data: &[u8]) -> Result<Step, ConnectionError> {
        assert!(data.len() <= limits::OPTION_BYTES as usize, "an option's data is bounded (invariant 3)");
        match number {
            option::EXPORT_NAME => return self.export_name(data),
            option::ABORT => {
                // The client may be gone already.
                let _ = self.reply(number, option_reply::ACK, &[]);
                return Ok(Step::Leave);
            }
            option::LIST if data.is_empty() => self.list()?,
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.reply(number, option_reply::ACK, &[])?;
            }
            option::LIST | option::STRUCTURED_REPLY => {
                self.refuse(number, option_reply::ERR_INVALID, "the option takes no data")?;
            }
            option::INFO | option::GO => return self.info(number, data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(number, data)?,
            _ => self.refuse(number, option_reply::ERR_UNSUP, "option not supported")?,
        }
        Ok(Step::Next)
    }

    fn list(&mut self) -> Result<(), ConnectionError> {
        match self.directory.list() {
            Ok(names) => {
                for ExportName { name, description } in names {
                    let mut data = counted(&name);
                    data.extend(truncated(&description, limits::STRING_BYTES).as_bytes());
                    self.reply(option::LIST, option_reply::SERVER, &data)?;
                }
                self.reply(option::LIST, option_reply::ACK, &[])
            }
            Err(error) => self.refuse_export(option::LIST, &error),
        }
    }

    /// The old way to open an export, which has no way to say no but to hang up.
    fn export_name(&mut self, data: &[u8]) -> Result<Step, ConnectionError> {
        let name = name(data).ok_or(ConnectionError::Protocol("an export name that is none"))?;
        let export = self.directory.open(name).map_err(ConnectionError::Export)?;
        let export = export.ok_or(ConnectionError::Protocol("an export that does not exist"))?;
        let mut reply = export.size_bytes().to_be_bytes().to_vec();
        reply.extend(self.flags(&*export).to_be_bytes());
        if !self.no_zeroes {
            reply.extend([0; 124]);
        }
        send(self.writer, &reply)?;
        Ok(Step::Open(self.agreed(name, export)))
    }

    fn info(&mut self, number: u32, data: &[u8]) -> Result<Step, ConnectionError> {
        let Some((name, wanted)) = info_request(data) else {
            self.refuse(number, option_reply::ERR_INVALID, "malformed request")?;
            return Ok(Step::Next);
        };
        let export = match self.directory.open(name) {
            Ok(Some(export)) => export,
            Ok(None) => {
                self.refuse(number, option_reply::ERR_UNKNOWN, &format!("no export named \"{name}\""))?;
                return Ok(Step::Next);
            }
            Err(error) => {
                self.refuse_export(number, &error)?;
                return Ok(Step::Next);
            }
        };
        let mut about = info::EXPORT.to_be_bytes().to_vec();
        about.extend(export.size_bytes().to_be_bytes());
        about.extend(self.flags(&*export).to_be_bytes());
        self.reply(number, option_reply::INFO, &about)?;
        let sizes = export.block_sizes();
        let mut about = info::BLOCK_SIZE.to_be_bytes().to_vec();
        for size in [sizes.minimum_bytes, sizes.preferred_bytes, sizes.maximum_bytes.min(limits::REQUEST_BYTES)] {
            about.extend(size.to_be_bytes());
        }
        self.reply(number, option_reply::INFO, &about)?;
        for (kind, text) in [(info::NAME, name), (info::DESCRIPTION, &export.description())] {
            if wanted.contains(&kind) {
                let mut about = kind.to_be_bytes().to_vec();
                about.extend(truncated(text, limits::STRING_BYTES).as_bytes());
                self.reply(number, option_reply::INFO, &about)?;
            }
        }
        self.reply(number, option_reply::ACK, &[])?;
        Ok(if number == option::GO { Step::Open(self.agreed(name, export)) } else { Step::Next })
    }

    fn meta_context(&mut self, number: u32, data: &[u8]) -> Result<(), ConnectionError> {
        let set = number == option::SET_META_CONTEXT;
        if set {
            self.status_for = None;
            if !self.structured {
                return self.refuse(number, option_reply::ERR_INVALID, "structured replies must come first");
            }
        }
        let Some((name, queries)) = context_queries(data) else {
            return self.refuse(number, option_reply::ERR_INVALID, "malformed request");
        };
        match self.directory.open(name) {
            Ok(Some(_)) => {}
            Ok(None) => {
                return self.refuse(number, option_reply::ERR_UNKNOWN, &format!("no export named \"{name}\""));
            }
            Err(error) => return self.refuse_export(number, &error),
        }
        let exact = queries.contains(&status::CONTEXT_NAME.as_bytes());
        let listed = !set && (queries.is_empty() || queries.contains(&b"base:".as_slice()));
        if exact || listed {
            let id = if set { status::CONTEXT_ID } else { 0 };
            let mut context = id.to_be_bytes().to_vec();
            context.extend(status::CONTEXT_NAME.as_bytes());
            self.reply(number, option_reply::META_CONTEXT, &context)?;
            if set {
                self.status_for = Some(name.to_owned());
            }
        }
        self.reply(number, option_reply::ACK, &[])
    }

    fn flags(&self, export: &dyn Export) -> u16 {
        use transmission_flag as flag;
        let always = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_CACHE | flag::CAN_MULTI_CONN;
        let write = if export.is_read_only() {
            flag::READ_ONLY
        } else {
            flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES
        };
        always | write | if self.structured { flag::SEND_DF } else { 0 }
    }

    fn agreed(&self, name: &str, export: Arc<dyn Export>) -> Agreed {
        let block_status = self.structured && self.status_for.as_deref() == Some(name);
        debug_assert!(
            self.structured || self.status_for.is_none(),
            "block status is agreed upon after structured replies"
        );
        Agreed { export, structured: self.structured, block_status }
    }

    fn refuse_export(&mut self, number: u32, error: &ExportError) -> Result<(), ConnectionError> {
        let reply = match error.kind {
            ExportErrorKind::Shutdown => option_reply::ERR_SHUTDOWN,
            _ => option_reply::ERR_PLATFORM,
        };
        self.refuse(number, reply, &error.message)
    }

    fn refuse(&mut self, number: u32, reply: u32, text: &str) -> Result<(), ConnectionError> {
        self.reply(number, reply, truncated(text, limits::STRING_BYTES).as_bytes())
    }

    fn reply(&mut self, number: u32, reply: u32, data: &[u8]) -> Result<(), ConnectionError> {
        debug_assert!(data.len() <= 16 + 2 * limits::STRING_BYTES, "names and texts of a reply are bounded");
        let mut out = Vec::with_capacity(20 + data.len());
        out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        out.extend(number.to_be_bytes());
        out.extend(reply.to_be_bytes());
        // Names and texts are cut to a few KiB.
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(data);
        send(self.writer, &out)
    }
}

fn send(writer: &mut impl Write, bytes: &[u8]) -> Result<(), ConnectionError> {
    writer.write_all(bytes).and_then(|()| writer.flush()).map_err(ConnectionError::Io)
}

/// Fills `buffer`; `false` if the client left before its first byte.
pub(crate) fn read_or_end(reader: &mut impl Read, buffer: &mut [u8]) -> Result<bool, ConnectionError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(ConnectionError::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ConnectionError::Io(error)),
        }
    }
    debug_assert_eq!(filled, buffer.len(), "no byte of a buffer is left as it was");
    Ok(true)
}

fn name(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|name| name.len() <= limits::STRING_BYTES)
}

/// A name with its length in front.
fn counted(name: &str) -> Vec<u8> {
    let name = truncated(name, limits::STRING_BYTES);
    let mut out = (name.len() as u32).to_be_bytes().to_vec();
    out.extend(name.as_bytes());
    out
}

/// Splits `count` bytes off.
fn take<'a>(data: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, rest) = data.split_at_checked(count)?;
    *data = rest;
    Some(head)
}

fn take_counted<'a>(data: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = be32(take(data, 4)?, 0);
    take(data, length as usize)
}

/// Name and wanted kinds of information of an INFO or GO request.
fn info_request(mut data: &[u8]) -> Option<(&str, Vec<u16>)> {
    let name = name(take_counted(&mut data)?)?;
    let count = be16(take(&mut data, 2)?, 0);
    if data.len() != 2 * usize::from(count) {
        return None;
    }
    Some((name, data.chunks_exact(2).map(|kind| be16(kind, 0)).collect()))
}

/// Name and queries of a request about contexts.
fn context_queries(mut data: &[u8]) -> Option<(&str, Vec<&[u8]>)> {
    let name = name(take_counted(&mut data)?)?;
    let count = be32(take(&mut data, 4)?, 0);
    let mut queries = Vec::new();
    // Each query takes four bytes at least, so a count that lies ends with the data.
    for _ in 0..count {
        queries.push(take_counted(&mut data).filter(|query| query.len() <= limits::STRING_BYTES)?);
    }
    data.is_empty().then_some((name, queries))
}
