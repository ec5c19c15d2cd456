//! Numbers in the kernel's own order of bytes, which is this machine's.
#![allow(clippy::host_endian_bytes, reason = "messages to this machine's kernel, not to a disk")]

/// Why a request is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Its bytes do not fit its operation.
    Malformed,
    /// An operation that is not known here: the kernel does without.
    Unknown,
}

/// Reads numbers and names one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Fault::Malformed)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_ne_bytes)
    }

    /// A place or length in a file, which Linux has as signed numbers.
    pub(super) fn offset(&mut self) -> Result<u64, Fault> {
        self.u64().and_then(|offset| if i64::try_from(offset).is_ok() { Ok(offset) } else { Err(Fault::Malformed) })
    }

    /// Bytes up to a zero byte, which is not among them.
    pub(super) fn name(&mut self) -> Result<&'a [u8], Fault> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(Fault::Malformed)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }

    pub(super) fn take(&mut self, len: u32) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.0.split_at_checked(len as usize).ok_or(Fault::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// Appends numbers.
pub(super) trait Put {
    fn put_u16(&mut self, number: u16);
    fn put_u32(&mut self, number: u32);
    fn put_u64(&mut self, number: u64);
}

impl Put for Vec<u8> {
    fn put_u16(&mut self, number: u16) {
        self.extend_from_slice(&number.to_ne_bytes());
    }

    fn put_u32(&mut self, number: u32) {
        self.extend_from_slice(&number.to_ne_bytes());
    }

    fn put_u64(&mut self, number: u64) {
        self.extend_from_slice(&number.to_ne_bytes());
    }
}
