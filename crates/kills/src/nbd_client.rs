//! As much of an NBD client as a test of a server wants: one export, one request at a time.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Result, ensure};

const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// Fixed newstyle, and no padding of 124 zeros.
const CLIENT_FLAGS: u32 = 3;
const OPTION_EXPORT_NAME: u32 = 1;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// A connection to one export.
pub(crate) struct Nbd {
    stream: UnixStream,
    cookie: u64,
}

impl Nbd {
    pub(crate) fn connect(socket: &Path, export: &str) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        ensure!(greeting.starts_with(b"NBDMAGICIHAVEOPT"), "the server greets as no NBD server does");
        let mut hello = CLIENT_FLAGS.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPTION_EXPORT_NAME.to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello)?;
        // Size and flags.
        stream.read_exact(&mut [0; 10])?;
        Ok(Self { stream, cookie: 0 })
    }

    fn request(&mut self, kind: u16, offset_bytes: u64, len: usize, data: &[u8]) -> Result<()> {
        self.cookie += 1;
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend(0_u16.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset_bytes.to_be_bytes());
        request.extend((len as u32).to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        let word = |at: usize| u32::from_be_bytes([reply[at], reply[at + 1], reply[at + 2], reply[at + 3]]);
        ensure!(word(0) == REPLY_MAGIC && reply[8..] == self.cookie.to_be_bytes(), "a reply to something else");
        ensure!(word(4) == 0, "the server says error {}", word(4));
        Ok(())
    }

    pub(crate) fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<()> {
        self.request(WRITE, offset_bytes, bytes.len(), bytes)
    }

    pub(crate) fn read(&mut self, offset_bytes: u64, len: usize) -> Result<Vec<u8>> {
        self.request(READ, offset_bytes, len, &[])?;
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        self.request(FLUSH, 0, 0, &[])
    }
}
