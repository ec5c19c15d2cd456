//! Structures with fields at fixed places, most of which are nothing but 64-bit words in sequence: OpenZFS swaps them word
//! by word. One declaration gives the value, its reader and its writer.

use crate::blkptr::Blkptr;
use crate::endian::{Endian, Fields};
use crate::error::FormatError;
use crate::ids::{BlockId, Guid, ObjectId, ObjsetId, Txg};

/// Something that occupies a fixed number of bytes.
pub(crate) trait DiskField: Sized {
    /// How many bytes.
    const BYTES: usize;
    fn read(fields: &Fields<'_>, offset: usize) -> Result<Self, FormatError>;
    fn write(&self, buffer: &mut [u8], offset: usize, endian: Endian);
}

/// Types that are stored as one integer: `Type as integer: |integer| value, |value| integer;`.
macro_rules! one_field {
    ($($type:ty as $raw:ident: |$number:ident| $from:expr, |$value:ident| $into:expr;)*) => {$(
        impl $crate::words::DiskField for $type {
            const BYTES: usize = size_of::<$raw>();
            fn read(fields: &$crate::endian::Fields<'_>, at: usize) -> Result<Self, $crate::error::FormatError> {
                let $number = fields.$raw(at)?;
                Ok($from)
            }
            fn write(&self, buffer: &mut [u8], at: usize, endian: $crate::endian::Endian) {
                let $value = *self;
                let number: $raw = $into;
                let bytes = match endian {
                    $crate::endian::Endian::Little => number.to_le_bytes(),
                    $crate::endian::Endian::Big => number.to_be_bytes(),
                };
                buffer[at..at + size_of::<$raw>()].copy_from_slice(&bytes);
            }
        }
    )*};
}
pub(crate) use one_field;

one_field! {
    u8 as u8: |number| number, |value| value;
    u32 as u32: |number| number, |value| value;
    u64 as u64: |word| word, |value| value;
    i64 as u64: |word| word as i64, |value| value as u64;
    Txg as u64: |word| Self(word), |value| value.0;
    ObjectId as u64: |word| Self(word), |value| value.0;
    ObjsetId as u64: |word| Self(word), |value| value.0;
    Guid as u64: |word| Self(word), |value| value.0;
    BlockId as u64: |word| Self(word), |value| value.0;
}

impl<T: DiskField + Copy + Default, const N: usize> DiskField for [T; N] {
    const BYTES: usize = N * T::BYTES;

    fn read(fields: &Fields<'_>, offset: usize) -> Result<Self, FormatError> {
        let mut values = [T::default(); N];
        for (index, value) in values.iter_mut().enumerate() {
            *value = T::read(fields, offset + T::BYTES * index)?;
        }
        Ok(values)
    }

    fn write(&self, buffer: &mut [u8], offset: usize, endian: Endian) {
        for (index, value) in self.iter().enumerate() {
            value.write(buffer, offset + T::BYTES * index, endian);
        }
    }
}

impl DiskField for Blkptr {
    const BYTES: usize = Self::SIZE;

    fn read(fields: &Fields<'_>, offset: usize) -> Result<Self, FormatError> {
        Self::parse(fields.slice(offset, Self::SIZE)?, fields.endian())
    }

    fn write(&self, buffer: &mut [u8], offset: usize, endian: Endian) {
        buffer[offset..offset + Self::SIZE].copy_from_slice(&self.emit(endian));
    }
}

/// Declares a part of larger structures: `Name { offset field: Type, ... }`. Fields ascend and do not overlap; what lies between
/// them is unused.
macro_rules! fixed_struct {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $offset:literal $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }

        impl $crate::words::DiskField for $name {
            const BYTES: usize = {
                let mut end = 0;
                $(
                    assert!($offset >= end, "fields ascend and do not overlap");
                    end = $offset + <$type as $crate::words::DiskField>::BYTES;
                )*
                end
            };
            fn read(fields: &$crate::endian::Fields<'_>, at: usize) -> Result<Self, $crate::error::FormatError> {
                Ok(Self { $($field: $crate::words::DiskField::read(fields, at + $offset)?,)* })
            }
            fn write(&self, buffer: &mut [u8], at: usize, endian: $crate::endian::Endian) {
                $($crate::words::DiskField::write(&self.$field, buffer, at + $offset, endian);)*
            }
        }
    };
}
pub(crate) use fixed_struct;

/// Declares a structure of words: `Name("name", bytes) { field: Type, ... }`. The fields follow one another from the
/// start; what is left of `bytes` is unused, read leniently and written as zeros.
macro_rules! word_struct {
    ($(#[$doc:meta])* $name:ident($text:literal, $size:expr) { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }

        impl $name {
            /// The size on disk, unused words at the end included.
            pub const SIZE_BYTES: usize = $size;
            /// The size of the fields alone.
            pub(crate) const FIELDS_SIZE_BYTES: usize = 0 $(+ <$type as $crate::words::DiskField>::BYTES)*;

            /// Reads the structure; bytes after its fields are ignored.
            pub fn parse(
                bytes: &[u8],
                endian: $crate::endian::Endian,
            ) -> Result<Self, $crate::error::FormatError> {
                const { assert!(Self::FIELDS_SIZE_BYTES <= Self::SIZE_BYTES) };
                let fields = $crate::endian::Fields::new($text, bytes, Self::FIELDS_SIZE_BYTES, endian)?;
                let mut offset = 0;
                $(
                    let $field = <$type as $crate::words::DiskField>::read(&fields, offset)?;
                    offset += <$type as $crate::words::DiskField>::BYTES;
                )*
                debug_assert_eq!(offset, Self::FIELDS_SIZE_BYTES);
                Ok(Self { $($field,)* })
            }

            /// Writes the structure.
            #[must_use]
            pub fn emit(&self, endian: $crate::endian::Endian) -> [u8; $size] {
                let mut buffer = [0; $size];
                let mut offset = 0;
                $(
                    $crate::words::DiskField::write(&self.$field, &mut buffer, offset, endian);
                    offset += <$type as $crate::words::DiskField>::BYTES;
                )*
                debug_assert_eq!(offset, Self::FIELDS_SIZE_BYTES);
                buffer
            }
        }
    };
}
pub(crate) use word_struct;

/// The bytes of words, for structures that lie in ZAP values as arrays of integers.
pub(crate) fn words_to_bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The words of bytes, in the given order; a rest shorter than a word is dropped.
pub(crate) fn bytes_to_words(bytes: &[u8], endian: Endian) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| endian.u64(*word)).collect()
}
