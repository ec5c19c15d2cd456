//! Keys and values as leaves hold them.

use super::{LONG_NAME_MAX_BYTES, VALUE_MAX_BYTES};
use crate::error::FormatError;

/// A key to look up or insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZapKey<'a> {
    /// A name, without its terminating zero.
    Name(&'a [u8]),
    /// The words of a `UINT64_KEY` ZAP.
    Words(&'a [u64]),
}

impl ZapKey<'_> {
    /// Bytes per integer of the key as stored.
    #[must_use]
    pub const fn integer_size(&self) -> usize {
        match self {
            Self::Name(_) => 1,
            Self::Words(_) => 8,
        }
    }

    /// Integers of the key as stored (with the terminating zero).
    #[must_use]
    pub(crate) const fn integer_count(&self) -> usize {
        match self {
            Self::Name(name) => name.len() + 1,
            Self::Words(words) => words.len(),
        }
    }

    /// The key's bytes as they lie in a leaf.
    #[must_use]
    pub(crate) fn stored_bytes(&self) -> Vec<u8> {
        match self {
            Self::Name(name) => {
                let mut bytes = name.to_vec();
                bytes.push(0);
                bytes
            }
            Self::Words(words) => words.iter().flat_map(|word| word.to_be_bytes()).collect(),
        }
    }

    /// Refuses keys that no ZAP can hold: empty, too long, or names with a zero inside.
    pub fn check(&self) -> Result<(), FormatError> {
        let size_bytes = self.integer_count() * self.integer_size();
        if size_bytes > LONG_NAME_MAX_BYTES {
            return Err(limit("zap key size", size_bytes, LONG_NAME_MAX_BYTES));
        }
        match self {
            Self::Name(name) if name.is_empty() || name.contains(&0) => {
                Err(FormatError::malformed("zap key", 0, "a name must not be empty or hold a zero byte"))
            }
            Self::Words([]) => Err(FormatError::malformed("zap key", 0, "a key needs at least one word")),
            _ => Ok(()),
        }
    }
}

/// A key read from a ZAP.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZapKeyBuf {
    /// A name, without its terminating zero.
    Name(Vec<u8>),
    /// The words of a `UINT64_KEY` ZAP.
    Words(Vec<u64>),
}

impl ZapKeyBuf {
    /// Borrowed form.
    #[must_use]
    pub fn as_key(&self) -> ZapKey<'_> {
        match self {
            Self::Name(name) => ZapKey::Name(name),
            Self::Words(words) => ZapKey::Words(words),
        }
    }
}

/// A value: integers of 1, 2, 4 or 8 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ZapValue {
    integer_size: u8,
    big_endian: Vec<u8>,
}

impl ZapValue {
    /// One 64-bit integer, by far the commonest value.
    #[must_use]
    pub fn from_u64(value: u64) -> Self {
        Self { integer_size: 8, big_endian: value.to_be_bytes().to_vec() }
    }

    /// An array of 64-bit integers.
    #[must_use]
    pub fn from_u64s(values: &[u64]) -> Self {
        Self { integer_size: 8, big_endian: values.iter().flat_map(|value| value.to_be_bytes()).collect() }
    }

    /// An array of 16-bit integers (SA layouts).
    #[must_use]
    pub fn from_u16s(values: &[u16]) -> Self {
        Self { integer_size: 2, big_endian: values.iter().flat_map(|value| value.to_be_bytes()).collect() }
    }

    /// Bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self { integer_size: 1, big_endian: bytes.to_vec() }
    }

    /// Text, with the terminating zero that string values carry.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        Self { integer_size: 1, big_endian: bytes }
    }

    /// From the stored form: integers of `integer_size` bytes, each big-endian.
    pub(crate) fn from_stored(integer_size: u8, big_endian: Vec<u8>) -> Result<Self, FormatError> {
        if !matches!(integer_size, 1 | 2 | 4 | 8) {
            return Err(FormatError::invalid(
                "zap value",
                0,
                "integer size",
                u64::from(integer_size),
                "one of 1, 2, 4, 8",
            ));
        }
        if !big_endian.len().is_multiple_of(usize::from(integer_size)) {
            return Err(FormatError::malformed("zap value", 0, "not a whole number of integers"));
        }
        if big_endian.len() > VALUE_MAX_BYTES {
            return Err(limit("zap value size", big_endian.len(), VALUE_MAX_BYTES));
        }
        Ok(Self { integer_size, big_endian })
    }

    /// Bytes per integer.
    #[must_use]
    pub fn integer_size(&self) -> u8 {
        self.integer_size
    }

    /// Number of integers.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.big_endian.len() / usize::from(self.integer_size)
    }

    /// The bytes as stored: each integer big-endian. For 1-byte integers these are the value's bytes.
    #[must_use]
    pub fn stored_bytes(&self) -> &[u8] {
        &self.big_endian
    }

    /// The integers, widened without sign.
    pub fn integers(&self) -> impl Iterator<Item = u64> + '_ {
        self.big_endian
            .chunks_exact(usize::from(self.integer_size))
            .map(|bytes| bytes.iter().fold(0_u64, |value, byte| (value << 8) | u64::from(*byte)))
    }

    /// The value if it is exactly one integer (of any size).
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        if self.count() == 1 { self.integers().next() } else { None }
    }

    /// The value if it is exactly one 64-bit integer: the only one that a micro ZAP can hold. (An empty text is one byte.)
    #[must_use]
    pub fn as_word(&self) -> Option<u64> {
        if self.integer_size == 8 { self.as_u64() } else { None }
    }

    /// The integers if they are 64-bit.
    #[must_use]
    pub fn as_u64s(&self) -> Option<Vec<u64>> {
        (self.integer_size == 8).then(|| self.integers().collect())
    }

    /// The bytes if the integers are bytes.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        (self.integer_size == 1).then_some(self.big_endian.as_slice())
    }

    /// The text of a string value: bytes up to the first zero, if they are UTF-8.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        let bytes = self.as_bytes()?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..end]).ok()
    }
}

pub(super) fn limit(what: &'static str, value: usize, limit: usize) -> FormatError {
    FormatError::limit("zap", 0, what, value, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_integers() {
        assert_eq!(ZapValue::from_u64(7).as_u64(), Some(7));
        assert_eq!(ZapValue::from_u16s(&[1, 0x203]).integers().collect::<Vec<_>>(), [1, 0x203]);
        assert_eq!(ZapValue::from_text("lz4").as_text(), Some("lz4"));
        assert_eq!(ZapValue::from_u64s(&[1, 2]).as_u64(), None);
        assert_eq!((ZapValue::from_u64(7).as_word(), ZapValue::from_text("").as_word()), (Some(7), None));
        assert_eq!(ZapValue::from_u16s(&[1]).as_word(), None);
        assert_eq!(ZapValue::from_u64s(&[1, 2]).as_u64s(), Some(vec![1, 2]));
        assert!(ZapValue::from_stored(3, vec![]).is_err());
        assert!(ZapValue::from_stored(4, vec![0; 6]).is_err());
        assert!(ZapValue::from_stored(1, vec![0; VALUE_MAX_BYTES + 1]).is_err());
    }
}
