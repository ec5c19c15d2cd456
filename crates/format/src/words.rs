//! Structures that are nothing but 64-bit words in sequence, which most of the DSL's are: OpenZFS swaps them word by word.
//! One declaration gives the value, its reader and its writer.

use crate::blkptr::Blkptr;
use crate::endian::{Endian, Fields, put_u64};
use crate::error::FormatError;
use crate::ids::{BlockId, Guid, ObjectId, ObjsetId, Txg};

/// Something that occupies a fixed number of words.
pub(crate) trait DiskWords: Sized {
    /// How many words.
    const WORDS: usize;
    fn read(fields: &Fields<'_>, offset: usize) -> Result<Self, FormatError>;
    fn write(&self, buffer: &mut [u8], offset: usize, endian: Endian);
}

macro_rules! one_word {
    ($($type:ty: |$word:ident| $from:expr, |$value:ident| $into:expr;)*) => {$(
        impl DiskWords for $type {
            const WORDS: usize = 1;
            fn read(fields: &Fields<'_>, offset: usize) -> Result<Self, FormatError> {
                let $word = fields.u64(offset)?;
                Ok($from)
            }
            fn write(&self, buffer: &mut [u8], offset: usize, endian: Endian) {
                let $value = *self;
                put_u64(buffer, offset, $into, endian);
            }
        }
    )*};
}
pub(crate) use one_word;

one_word! {
    u64: |word| word, |value| value;
    i64: |word| word as i64, |value| value as u64;
    Txg: |word| Self(word), |value| value.0;
    ObjectId: |word| Self(word), |value| value.0;
    ObjsetId: |word| Self(word), |value| value.0;
    Guid: |word| Self(word), |value| value.0;
    BlockId: |word| Self(word), |value| value.0;
}

impl<T: DiskWords + Copy + Default, const N: usize> DiskWords for [T; N] {
    const WORDS: usize = N * T::WORDS;

    fn read(fields: &Fields<'_>, offset: usize) -> Result<Self, FormatError> {
        let mut values = [T::default(); N];
        for (index, value) in values.iter_mut().enumerate() {
            *value = T::read(fields, offset + 8 * T::WORDS * index)?;
        }
        Ok(values)
    }

    fn write(&self, buffer: &mut [u8], offset: usize, endian: Endian) {
        for (index, value) in self.iter().enumerate() {
            value.write(buffer, offset + 8 * T::WORDS * index, endian);
        }
    }
}

impl DiskWords for Blkptr {
    const WORDS: usize = Self::SIZE / 8;

    fn read(fields: &Fields<'_>, offset: usize) -> Result<Self, FormatError> {
        Self::parse(fields.slice(offset, Self::SIZE)?, fields.endian())
    }

    fn write(&self, buffer: &mut [u8], offset: usize, endian: Endian) {
        buffer[offset..offset + Self::SIZE].copy_from_slice(&self.emit(endian));
    }
}

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
            pub(crate) const FIELDS_SIZE_BYTES: usize = 8 * (0 $(+ <$type as $crate::words::DiskWords>::WORDS)*);

            /// Reads the structure; bytes after its fields are ignored.
            pub fn parse(
                bytes: &[u8],
                endian: $crate::endian::Endian,
            ) -> Result<Self, $crate::error::FormatError> {
                const { assert!(Self::FIELDS_SIZE_BYTES <= Self::SIZE_BYTES) };
                let fields = $crate::endian::Fields::new($text, bytes, Self::FIELDS_SIZE_BYTES, endian)?;
                let mut offset = 0;
                $(
                    let $field = <$type as $crate::words::DiskWords>::read(&fields, offset)?;
                    offset += 8 * <$type as $crate::words::DiskWords>::WORDS;
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
                    $crate::words::DiskWords::write(&self.$field, &mut buffer, offset, endian);
                    offset += 8 * <$type as $crate::words::DiskWords>::WORDS;
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
