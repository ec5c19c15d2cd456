//! Lists of name and value: pool configuration, properties, stream headers.
//!
//! Two encodings, told apart by the first byte. XDR is big-endian on any host; native is the writer's memory layout.
//!
//! ```text
//! header    0: encoding (0 native, 1 XDR)   1: order (0 big, 1 little; of use to native)   2, 3: zero
//! list      version i32 (0) | flags u32 (1 unique names, 2 unique names and types) | pairs ... | end
//!
//! XDR pair  encoded size i32 | decoded size i32 | name: length u32, bytes, padded to 4 | type i32 | count u32 | value
//!           a pair with decoded size 0 (and no more) ends the list
//!           values: integers up to 32 bits in 4 bytes, 64 bits in 8; strings as the name; arrays: count u32, elements
//!           (byte arrays: no count, padded to 4); lists: nested without the header
//!
//! native pair   0           4         6      8         12      16
//!               +-----------+---------+------+---------+-------+----------------------+------------------+
//!               | size i32  | name    | zero | count   | type  | name with its zero,  | value, to 8      |
//!               |           | size i16| i16  | i32     | i32   | to 8                 |                  |
//!               +-----------+---------+------+---------+-------+----------------------+------------------+
//!           size 0 ends the list. A nested list's value is 24 bytes (version, flags, 16 of no meaning), and its pairs
//!           follow the pair. An array of lists: 8 zeros each, then 24 bytes each; an array of strings: 8 zeros each,
//!           then the strings with their zeros.
//! ```
//!
//! Bounds: lists nest at most [`MAX_DEPTH`] deep; each pair, element and string takes bytes of the input, so memory is at
//! most a small multiple of the input's length.

use std::fmt;

use crate::endian::Endian;
use crate::enums::numbered;
use crate::error::FormatError;

mod native;
mod xdr;

const NAME: &str = "nvlist";

/// How deep lists may nest. OpenZFS's kernel code stops at 20.
pub const MAX_DEPTH: usize = 20;

/// Longest name: with its zero it fits the native encoding's signed 16 bits.
pub const MAX_NAME_BYTES: usize = i16::MAX as usize - 1;

const HEADER_BYTES: usize = 4;
const ENCODING_NATIVE: u8 = 0;
const ENCODING_XDR: u8 = 1;

/// Declares the types of values with their numbers on disk, and what a value of each has.
macro_rules! values {
    ($($(#[$doc:meta])* $name:ident$(($content:ty))? = $number:literal;)*) => {
        numbered! {
            /// The types that values may have, with their numbers on disk (`data_type_t`).
            DataType: i32 { $($(#[$doc])* $name = $number;)* }
        }

        /// A value. Doubles are kept as bits, so that equality is that of the bytes.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum NvValue { $($(#[$doc])* $name$(($content))?,)* }

        impl NvValue {
            /// The type.
            #[must_use]
            pub const fn data_type(&self) -> DataType {
                match self { $(Self::$name { .. } => DataType::$name,)* }
            }
        }
    };
}

values! {
    /// Present, without a value.
    Boolean = 1;
    /// An unsigned byte.
    Byte(u8) = 2;
    /// 16 bits, signed.
    Int16(i16) = 3;
    /// 16 bits.
    Uint16(u16) = 4;
    /// 32 bits, signed.
    Int32(i32) = 5;
    /// 32 bits.
    Uint32(u32) = 6;
    /// 64 bits, signed.
    Int64(i64) = 7;
    /// 64 bits.
    Uint64(u64) = 8;
    /// Text.
    String(NvString) = 9;
    /// Bytes.
    ByteArray(Vec<u8>) = 10;
    /// Array of 16 bits, signed.
    Int16Array(Vec<i16>) = 11;
    /// Array of 16 bits.
    Uint16Array(Vec<u16>) = 12;
    /// Array of 32 bits, signed.
    Int32Array(Vec<i32>) = 13;
    /// Array of 32 bits.
    Uint32Array(Vec<u32>) = 14;
    /// Array of 64 bits, signed.
    Int64Array(Vec<i64>) = 15;
    /// Array of 64 bits.
    Uint64Array(Vec<u64>) = 16;
    /// Array of text.
    StringArray(Vec<NvString>) = 17;
    /// Time in nanoseconds.
    Hrtime(i64) = 18;
    /// A list.
    Nvlist(NvList) = 19;
    /// Array of lists.
    NvlistArray(Vec<NvList>) = 20;
    /// True or false.
    BooleanValue(bool) = 21;
    /// 8 bits, signed.
    Int8(i8) = 22;
    /// 8 bits.
    Uint8(u8) = 23;
    /// Array of true or false.
    BooleanArray(Vec<bool>) = 24;
    /// Array of 8 bits, signed.
    Int8Array(Vec<i8>) = 25;
    /// Array of 8 bits.
    Uint8Array(Vec<u8>) = 26;
    /// IEEE double; user space only.
    Double(u64) = 27;
}

impl DataType {
    /// The element count that the type demands; `None` for arrays.
    const fn fixed_count(self) -> Option<u32> {
        match self {
            Self::Boolean => Some(0),
            Self::ByteArray
            | Self::Int16Array
            | Self::Uint16Array
            | Self::Int32Array
            | Self::Uint32Array
            | Self::Int64Array
            | Self::Uint64Array
            | Self::StringArray
            | Self::NvlistArray
            | Self::BooleanArray
            | Self::Int8Array
            | Self::Uint8Array => None,
            _ => Some(1),
        }
    }
}

/// Text of a list: any bytes but zero, usually UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NvString(Box<[u8]>);

impl NvString {
    /// From bytes; what follows a zero byte is cut off, as C would.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.split(|byte| *byte == 0).next().unwrap_or_default().into())
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, if it is UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl From<&str> for NvString {
    fn from(text: &str) -> Self {
        Self::new(text.as_bytes())
    }
}

impl fmt::Display for NvString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for NvString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(&self.0), f)
    }
}

impl NvValue {
    /// The element count as stored.
    fn count(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::ByteArray(items) | Self::Uint8Array(items) => items.len(),
            Self::Int16Array(items) => items.len(),
            Self::Uint16Array(items) => items.len(),
            Self::Int32Array(items) => items.len(),
            Self::Uint32Array(items) => items.len(),
            Self::Int64Array(items) => items.len(),
            Self::Uint64Array(items) => items.len(),
            Self::StringArray(items) => items.len(),
            Self::NvlistArray(items) => items.len(),
            Self::BooleanArray(items) => items.len(),
            Self::Int8Array(items) => items.len(),
            _ => 1,
        }
    }

    /// Bytes of the value in a pair of the native encoding, before rounding.
    fn native_bytes(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::Byte(_) | Self::Int8(_) | Self::Uint8(_) => 1,
            Self::Int16(_) | Self::Uint16(_) => 2,
            Self::Int32(_) | Self::Uint32(_) | Self::BooleanValue(_) => 4,
            Self::Int64(_) | Self::Uint64(_) | Self::Hrtime(_) | Self::Double(_) => 8,
            Self::String(text) => text.0.len() + 1,
            Self::ByteArray(_) | Self::Uint8Array(_) | Self::Int8Array(_) => self.count(),
            Self::Int16Array(_) | Self::Uint16Array(_) => self.count() * 2,
            Self::Int32Array(_) | Self::Uint32Array(_) | Self::BooleanArray(_) => self.count() * 4,
            Self::Int64Array(_) | Self::Uint64Array(_) => self.count() * 8,
            Self::StringArray(items) => items.iter().map(|text| 8 + text.0.len() + 1).sum(),
            Self::Nvlist(_) => native::LIST_BYTES,
            Self::NvlistArray(items) => items.len() * (8 + native::LIST_BYTES),
        }
    }
}

impl From<u64> for NvValue {
    fn from(value: u64) -> Self {
        Self::Uint64(value)
    }
}

impl From<&str> for NvValue {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl From<NvList> for NvValue {
    fn from(list: NvList) -> Self {
        Self::Nvlist(list)
    }
}

/// A list of pairs, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvList {
    flags: u32,
    pairs: Vec<(NvString, NvValue)>,
}

impl Default for NvList {
    fn default() -> Self {
        Self::new()
    }
}

impl NvList {
    /// Flag: names are unique.
    pub const UNIQUE_NAME: u32 = 1;
    /// Flag: pairs of name and type are unique.
    pub const UNIQUE_NAME_TYPE: u32 = 2;

    /// An empty list with unique names.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_flags(Self::UNIQUE_NAME)
    }

    /// An empty list with these flags.
    #[must_use]
    pub(crate) const fn with_flags(flags: u32) -> Self {
        Self { flags, pairs: Vec::new() }
    }

    /// Parses a packed list with header, of either encoding and order. Bytes behind the list's end are ignored.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        Self::parse_prefix(bytes).map(|(list, _)| list)
    }

    /// Parses like [`Self::parse`] and tells how many bytes the list took.
    pub(crate) fn parse_prefix(bytes: &[u8]) -> Result<(Self, usize), FormatError> {
        let header = bytes
            .first_chunk::<HEADER_BYTES>()
            .ok_or_else(|| FormatError::truncated(NAME, HEADER_BYTES, bytes.len()))?;
        let order = match header[1] {
            0 => Endian::Big,
            1 => Endian::Little,
            other => return Err(FormatError::invalid(NAME, 1, "endian", other.into(), "0 or 1")),
        };
        match header[0] {
            ENCODING_XDR => xdr::parse(bytes, HEADER_BYTES),
            ENCODING_NATIVE => native::parse(bytes, HEADER_BYTES, order),
            other => Err(FormatError::invalid(NAME, 0, "encoding", other.into(), "0 (native) or 1 (XDR)")),
        }
    }

    /// Parses a packed list that must be XDR.
    pub fn parse_xdr(bytes: &[u8]) -> Result<Self, FormatError> {
        match bytes.first() {
            Some(&ENCODING_XDR) => Self::parse(bytes),
            Some(other) => Err(FormatError::invalid(NAME, 0, "encoding", (*other).into(), "1 (XDR)")),
            None => Err(FormatError::truncated(NAME, HEADER_BYTES, 0)),
        }
    }

    /// Packs as XDR, with the order byte of a little-endian host.
    #[must_use]
    pub fn emit_xdr(&self) -> Vec<u8> {
        let mut out = vec![ENCODING_XDR, 1, 0, 0];
        xdr::emit(self, &mut out);
        out
    }

    /// Packs natively in an order.
    #[must_use]
    pub fn emit_native(&self, order: Endian) -> Vec<u8> {
        let mut out = vec![ENCODING_NATIVE, (order == Endian::Little).into(), 0, 0];
        native::emit(self, order, &mut out);
        out
    }

    /// The pairs in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&NvString, &NvValue)> + DoubleEndedIterator {
        self.pairs.iter().map(|(name, value)| (name, value))
    }

    /// How many pairs there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Appends a pair. If names are unique, the one of this name (and type, if that counts) goes first.
    ///
    /// # Panics
    /// If the name is longer than [`MAX_NAME_BYTES`].
    pub fn push(&mut self, name: impl Into<NvString>, value: impl Into<NvValue>) {
        let (name, value) = (name.into(), value.into());
        assert!(name.0.len() <= MAX_NAME_BYTES, "name of {} bytes", name.0.len());
        if self.flags & Self::UNIQUE_NAME != 0 {
            self.pairs.retain(|(other, _)| *other != name);
        } else if self.flags & Self::UNIQUE_NAME_TYPE != 0 {
            self.pairs.retain(|(other, old)| *other != name || old.data_type() != value.data_type());
        }
        self.pairs.push((name, value));
    }

    /// Removes all pairs of this name; returns whether there were any.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.pairs.len();
        self.pairs.retain(|(other, _)| other.as_bytes() != name.as_bytes());
        self.pairs.len() != before
    }

    fn pick<'a, T>(&'a self, name: &str, pick: impl Fn(&'a NvValue) -> Option<T>) -> Option<T> {
        self.pairs.iter().find_map(
            |(other, value)| {
                if other.as_bytes() == name.as_bytes() { pick(value) } else { None }
            },
        )
    }

    /// The first value of this name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&NvValue> {
        self.pick(name, Some)
    }

    /// Whether there is a pair of this name, of whatever type.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// The 64-bit unsigned integer of this name.
    #[must_use]
    pub fn u64(&self, name: &str) -> Option<u64> {
        self.pick(name, |value| if let NvValue::Uint64(number) = value { Some(*number) } else { None })
    }

    /// The 64-bit signed integer of this name.
    #[must_use]
    pub fn i64(&self, name: &str) -> Option<i64> {
        self.pick(name, |value| if let NvValue::Int64(number) = value { Some(*number) } else { None })
    }

    /// The text of this name, if it is UTF-8.
    #[must_use]
    pub fn str(&self, name: &str) -> Option<&str> {
        self.text(name).and_then(NvString::as_str)
    }

    /// The text of this name, whatever bytes it has.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&NvString> {
        self.pick(name, |value| if let NvValue::String(text) = value { Some(text) } else { None })
    }

    /// The list of this name.
    #[must_use]
    pub fn list(&self, name: &str) -> Option<&NvList> {
        self.pick(name, |value| if let NvValue::Nvlist(list) = value { Some(list) } else { None })
    }

    /// The array of lists of this name.
    #[must_use]
    pub fn lists(&self, name: &str) -> Option<&[NvList]> {
        self.pick(name, |value| if let NvValue::NvlistArray(lists) = value { Some(lists.as_slice()) } else { None })
    }

    /// The array of 64-bit unsigned integers of this name.
    #[must_use]
    pub fn u64s(&self, name: &str) -> Option<&[u64]> {
        self.pick(name, |value| if let NvValue::Uint64Array(items) = value { Some(items.as_slice()) } else { None })
    }

    /// The bytes of this name: a byte array or an array of 8-bit unsigned integers.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.pick(name, |value| match value {
            NvValue::ByteArray(items) | NvValue::Uint8Array(items) => Some(items.as_slice()),
            _ => None,
        })
    }
}

/// A cursor over the packed bytes; every step is checked.
struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
    order: Endian,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let end = self.offset.checked_add(len);
        match end.and_then(|end| self.bytes.get(self.offset..end)) {
            Some(taken) => {
                self.offset += len;
                Ok(taken)
            }
            None => Err(FormatError::truncated(NAME, self.offset.saturating_add(len), self.bytes.len())),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(self.order.u16(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(self.order.u32(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(self.order.u64(self.array()?))
    }

    fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    fn malformed(&self, what: &'static str) -> FormatError {
        FormatError::malformed(NAME, self.offset, what)
    }

    /// `count` elements, each of at least `least_bytes` of input. The check comes before any memory is set aside.
    fn many<T>(
        &mut self,
        count: u32,
        least_bytes: usize,
        mut one: impl FnMut(&mut Self) -> Result<T, FormatError>,
    ) -> Result<Vec<T>, FormatError> {
        let count = count as usize;
        if count > self.remaining() / least_bytes {
            let limit = self.remaining() / least_bytes;
            return Err(FormatError::limit(NAME, self.offset, "nvlist element count", count, limit));
        }
        let mut out = Vec::with_capacity(count);
        for _ in 0..count {
            out.push(one(self)?);
        }
        Ok(out)
    }

    /// Version and flags of a list.
    fn list_head(&mut self) -> Result<u32, FormatError> {
        let version = self.u32()?;
        if version != 0 {
            return Err(FormatError::invalid(NAME, self.offset - 4, "version", version.into(), "0"));
        }
        self.u32()
    }

    /// Type and count of a pair, checked against each other.
    fn check_type(&self, number: u32, count: u32) -> Result<DataType, FormatError> {
        let data_type = DataType::from_number(number as i32)
            .ok_or_else(|| FormatError::invalid(NAME, self.offset, "type", number.into(), "a known data type"))?;
        if data_type.fixed_count().is_some_and(|fixed| fixed != count) {
            return Err(FormatError::invalid(NAME, self.offset, "nelem", count.into(), "1, or 0 for booleans"));
        }
        Ok(data_type)
    }

    fn check_name(&self, bytes: usize) -> Result<(), FormatError> {
        if bytes > MAX_NAME_BYTES {
            return Err(FormatError::limit(NAME, self.offset, "nvlist name", bytes, MAX_NAME_BYTES));
        }
        Ok(())
    }

    fn check_depth(&self, depth: usize) -> Result<(), FormatError> {
        if depth > MAX_DEPTH {
            return Err(FormatError::limit(NAME, self.offset, "nvlist depth", depth, MAX_DEPTH));
        }
        Ok(())
    }
}

const fn round_up(value: usize, to: usize) -> usize {
    value.div_ceil(to) * to
}

#[cfg(test)]
mod tests;
