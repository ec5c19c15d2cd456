//! Byte order: integers at fixed offsets of a byte slice, in either order.
//!
//! All access is total: a read past the end is an error value, never a panic.

use crate::error::{FormatError, FormatErrorKind};

/// The byte order a structure was written in. ZFS writes in the order of the writing machine and marks it (in a magic
/// number or in a block pointer's byte-order bit), and readers swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endian {
    /// Least significant byte first (x86, ARM, RISC-V, ppc64le).
    Little,
    /// Most significant byte first (SPARC, s390x, ppc64).
    Big,
}

impl Endian {
    /// The other order.
    #[must_use]
    pub const fn swapped(self) -> Self {
        match self {
            Self::Little => Self::Big,
            Self::Big => Self::Little,
        }
    }

    /// A 16-bit integer from its bytes.
    #[must_use]
    pub const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    /// A 32-bit integer from its bytes.
    #[must_use]
    pub const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// A 64-bit integer from its bytes.
    #[must_use]
    pub const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    /// The bytes of a 16-bit integer.
    #[must_use]
    pub(crate) const fn bytes16(self, value: u16) -> [u8; 2] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// The bytes of a 32-bit integer.
    #[must_use]
    pub const fn bytes32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// The bytes of a 64-bit integer.
    #[must_use]
    pub const fn bytes64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }
}

/// A structure's bytes with its name and order, for reading fields at fixed offsets with errors that say where.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    structure: &'static str,
    bytes: &'a [u8],
    endian: Endian,
}

impl<'a> Fields<'a> {
    /// Wraps `bytes`; fails with [`FormatErrorKind::Truncated`] if there are fewer than `need_bytes` of them.
    pub fn new(
        structure: &'static str,
        bytes: &'a [u8],
        need_bytes: usize,
        endian: Endian,
    ) -> Result<Self, FormatError> {
        if bytes.len() < need_bytes {
            return Err(FormatError::truncated(structure, need_bytes, bytes.len()));
        }
        Ok(Self { structure, bytes, endian })
    }

    /// All bytes.
    #[must_use]
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The byte order in force.
    #[must_use]
    pub(crate) fn endian(&self) -> Endian {
        self.endian
    }

    /// `len` bytes at `offset`.
    pub(crate) fn slice(&self, offset: usize, len: usize) -> Result<&'a [u8], FormatError> {
        offset
            .checked_add(len)
            .and_then(|end| self.bytes.get(offset..end))
            .ok_or_else(|| FormatError::truncated(self.structure, offset.saturating_add(len), self.bytes.len()))
    }

    /// `N` bytes at `offset`.
    pub(crate) fn array<const N: usize>(&self, offset: usize) -> Result<[u8; N], FormatError> {
        let mut out = [0; N];
        out.copy_from_slice(self.slice(offset, N)?);
        Ok(out)
    }

    /// The byte at `offset`.
    pub(crate) fn u8(&self, offset: usize) -> Result<u8, FormatError> {
        Ok(self.array::<1>(offset)?[0])
    }

    /// The 16-bit integer at `offset`.
    pub fn u16(&self, offset: usize) -> Result<u16, FormatError> {
        Ok(self.endian.u16(self.array(offset)?))
    }

    /// The 32-bit integer at `offset`.
    pub(crate) fn u32(&self, offset: usize) -> Result<u32, FormatError> {
        Ok(self.endian.u32(self.array(offset)?))
    }

    /// The 64-bit integer at `offset`.
    pub fn u64(&self, offset: usize) -> Result<u64, FormatError> {
        Ok(self.endian.u64(self.array(offset)?))
    }

    /// An error about the field at `offset` of this structure.
    #[must_use]
    pub(crate) fn error(&self, offset: usize, kind: FormatErrorKind) -> FormatError {
        FormatError { structure: self.structure, offset, kind }
    }
}

/// Writes a 64-bit integer at a fixed offset of a buffer that the caller sized. The counterpart of [`Fields::u64`];
/// emitters own their buffers, so an offset past the end is a defect of ours and panics.
pub fn put_u64(buffer: &mut [u8], offset: usize, value: u64, endian: Endian) {
    buffer[offset..offset + 8].copy_from_slice(&endian.bytes64(value));
}

/// Like [`put_u64`], 32 bits.
pub fn put_u32(buffer: &mut [u8], offset: usize, value: u32, endian: Endian) {
    buffer[offset..offset + 4].copy_from_slice(&endian.bytes32(value));
}

/// Like [`put_u64`], 16 bits.
pub fn put_u16(buffer: &mut [u8], offset: usize, value: u16, endian: Endian) {
    buffer[offset..offset + 2].copy_from_slice(&endian.bytes16(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_past_the_end_are_errors_not_panics() {
        let fields = Fields::new("test", &[1, 2, 3, 4, 5, 6, 7, 8], 8, Endian::Big).unwrap();
        assert_eq!(fields.u64(0).unwrap(), 0x0102_0304_0506_0708);
        assert_eq!(fields.u32(4).unwrap(), 0x0506_0708);
        assert!(fields.u64(1).is_err());
        assert!(fields.u8(usize::MAX).is_err());
        assert!(fields.slice(usize::MAX, 2).is_err());
        assert!(Fields::new("test", &[], 1, Endian::Little).is_err());
    }

    #[test]
    fn both_orders_round_trip() {
        for endian in [Endian::Little, Endian::Big] {
            let mut buffer = [0; 14];
            put_u64(&mut buffer, 0, 0x1122_3344_5566_7788, endian);
            put_u32(&mut buffer, 8, 0x99aa_bbcc, endian);
            put_u16(&mut buffer, 12, 0xddee, endian);
            let fields = Fields::new("test", &buffer, 14, endian).unwrap();
            assert_eq!(fields.u64(0).unwrap(), 0x1122_3344_5566_7788);
            assert_eq!(fields.u32(8).unwrap(), 0x99aa_bbcc);
            assert_eq!(fields.u16(12).unwrap(), 0xddee);
            assert_eq!(endian.swapped().swapped(), endian);
        }
    }
}
