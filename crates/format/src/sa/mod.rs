//! System attributes: how a file's metadata lies in its dnode's bonus area and spill block.
//!
//! ```text
//!  0  magic 0x2F505A (u32): in which order it reads, the buffer is written
//!  4  bits 0-9 layout number, bits 10-15 header size / 8 (u16)
//!  6  length of the 1st variable attribute (u16), then of the 2nd, ... as many as the layout has
//!  .. attributes in the layout's order, each begun on a multiple of 8 bytes
//! ```
//!
//! Nothing in the buffer says what the attributes are. A dataset's master node names an SA master object, a ZAP with two
//! entries, each the number of another ZAP:
//!
//! ```text
//! REGISTRY   attribute name -> u64: bits 0-15 number, 16-23 byteswap kind, 24-39 length (0: variable)
//! LAYOUTS    "2" (decimal)  -> array of u16: the attribute numbers, in order
//! ```
//!
//! Numbers differ from dataset to dataset, so every reader goes through the dataset's own [`SaRegistry`]. One buffer has
//! one layout; a file whose attributes overflow the bonus area has a second buffer with a layout of its own in the spill
//! block. Datasets of ZPL version below 5 have no attributes but a fixed structure at the same place, which reads as
//! layout 0 ([`SaLayout::legacy`]).

mod zpl;

pub use zpl::ZplAttribute;

use crate::endian::{Endian, Fields, put_u16, put_u32};
use crate::error::{FormatError, FormatErrorKind};
use crate::znode::ZnodeFlags;
use std::collections::BTreeMap;

/// The magic number.
pub const SA_MAGIC: u32 = 0x002F_505A;
/// The registry's name in the SA master object.
pub const SA_REGISTRY: &str = "REGISTRY";
/// The layouts' name in the SA master object.
pub const SA_LAYOUTS: &str = "LAYOUTS";

const STRUCTURE: &str = "system attributes";
const OFFSET_INFO: usize = 4;
const OFFSET_LENGTHS: usize = 6;
const LAYOUT_BITS: u32 = 10;
/// The largest layout number that the header can say.
pub const LAYOUT_MAX: u16 = (1 << LAYOUT_BITS) - 1;
/// The largest attribute number that we accept; OpenZFS knows 23 attributes and numbers them without gaps.
pub const ATTRIBUTE_NUMBER_MAX: u16 = 1023;
/// The most attributes in a layout that we accept.
pub const LAYOUT_ATTRIBUTES_MAX: usize = 1024;

/// How an attribute's bytes are turned from one byte order to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SaByteswap {
    /// An array of 64-bit integers.
    U64s = 0,
    /// An array of 32-bit integers.
    U32s = 1,
    /// An array of 16-bit integers.
    U16s = 2,
    /// Bytes.
    Bytes = 3,
    /// Access control entries, each field by its width.
    Acl = 4,
}

impl SaByteswap {
    /// The member with this number.
    #[must_use]
    pub(crate) const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::U64s),
            1 => Some(Self::U32s),
            2 => Some(Self::U16s),
            3 => Some(Self::Bytes),
            4 => Some(Self::Acl),
            _ => None,
        }
    }
}

/// An attribute as the registry describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SaAttribute {
    /// Its number in this dataset.
    pub number: u16,
    /// Its length in bytes; 0 if it varies.
    pub length_bytes: u16,
    /// How its bytes are swapped.
    pub byteswap: SaByteswap,
}

impl SaAttribute {
    /// From the registry's value.
    pub fn from_word(word: u64) -> Result<Self, FormatError> {
        let number = word as u16;
        if number > ATTRIBUTE_NUMBER_MAX {
            let limit = ATTRIBUTE_NUMBER_MAX.into();
            return Err(FormatError::limit(STRUCTURE, 0, "attribute number", number.into(), limit));
        }
        let kind = (word >> 16) as u8;
        let byteswap = SaByteswap::from_number(kind)
            .ok_or_else(|| FormatError::invalid(STRUCTURE, 0, "byteswap kind", u64::from(kind), "0 to 4"))?;
        Ok(Self { number, length_bytes: (word >> 24) as u16, byteswap })
    }

    /// The registry's value.
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from(self.number) | (self.byteswap as u64) << 16 | u64::from(self.length_bytes) << 24
    }
}

/// A dataset's attributes: which numbers its names have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaRegistry {
    by_number: Vec<Option<SaAttribute>>,
    by_name: BTreeMap<String, u16>,
    zpl: [Option<u16>; ZplAttribute::COUNT],
}

impl SaRegistry {
    /// Nothing registered.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The sixteen attributes of the old fixed structure, under the numbers that [`SaLayout::legacy`] uses.
    #[must_use]
    pub fn legacy() -> Self {
        let mut registry = Self::new();
        for attribute in ZplAttribute::LEGACY {
            registry.put(attribute.name(), attribute.describe(*attribute as u16));
        }
        registry
    }

    /// The registry of a dataset created now: every attribute of the ZPL, numbered from 0 in the usual order.
    #[must_use]
    pub fn current() -> Self {
        let mut registry = Self::new();
        for attribute in ZplAttribute::ALL {
            registry.put(attribute.name(), attribute.describe(*attribute as u16));
        }
        registry
    }

    fn put(&mut self, name: &str, attribute: SaAttribute) {
        let index = usize::from(attribute.number);
        if self.by_number.len() <= index {
            self.by_number.resize(index + 1, None);
        }
        self.by_number[index] = Some(attribute);
        if let Some(known) = ZplAttribute::from_name(name) {
            self.zpl[known as usize] = Some(attribute.number);
        }
        self.by_name.insert(name.to_owned(), attribute.number);
    }

    /// Takes in one entry of the REGISTRY ZAP. Fails if its value is not valid or its number is taken.
    pub fn register(&mut self, name: &str, word: u64) -> Result<(), FormatError> {
        let attribute = SaAttribute::from_word(word)?;
        if self.attribute(attribute.number).is_some() {
            let rule = "each number has one attribute";
            return Err(FormatError::invalid(STRUCTURE, 0, "attribute number", attribute.number.into(), rule));
        }
        self.put(name, attribute);
        Ok(())
    }

    /// The attribute with this number.
    #[must_use]
    pub fn attribute(&self, number: u16) -> Option<SaAttribute> {
        self.by_number.get(usize::from(number)).copied().flatten()
    }

    /// The number of an attribute of the ZPL.
    #[must_use]
    pub fn zpl(&self, attribute: ZplAttribute) -> Option<u16> {
        self.zpl[attribute as usize]
    }

    /// Names and attributes, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, SaAttribute)> {
        self.by_name.iter().filter_map(|(name, number)| Some((name.as_str(), self.attribute(*number)?)))
    }

    /// The layout with these attribute numbers (a value of the LAYOUTS ZAP). Fails if one is not registered.
    pub fn layout(&self, numbers: &[u16]) -> Result<SaLayout, FormatError> {
        if numbers.len() > LAYOUT_ATTRIBUTES_MAX {
            let what = "attributes in a layout";
            return Err(FormatError::limit(STRUCTURE, 0, what, numbers.len(), LAYOUT_ATTRIBUTES_MAX));
        }
        let attributes = numbers
            .iter()
            .map(|number| {
                self.attribute(*number).ok_or_else(|| {
                    let rule = "registered in this dataset";
                    FormatError::invalid("attribute layout", 0, "attribute number", u64::from(*number), rule)
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(SaLayout { attributes, has_header: true })
    }
}

/// The number in the name of an entry of the LAYOUTS ZAP.
#[must_use]
pub fn layout_number(name: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(name).ok()?;
    text.parse::<u16>().ok().filter(|number| *number <= LAYOUT_MAX)
}

/// Which attributes a buffer holds, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaLayout {
    attributes: Vec<SaAttribute>,
    has_header: bool,
}

impl SaLayout {
    /// The layout of a buffer without attributes: number 1, and number 0 too where the bonus type is SA.
    #[must_use]
    pub fn empty() -> Self {
        Self { attributes: Vec::new(), has_header: true }
    }

    /// The old fixed structure (bonus type ZNODE), which has no header.
    #[must_use]
    pub fn legacy() -> Self {
        let attributes = ZplAttribute::LEGACY.iter().map(|known| known.describe(*known as u16)).collect();
        Self { attributes, has_header: false }
    }

    /// How many have lengths in the header.
    #[must_use]
    pub(crate) fn variable_count(&self) -> usize {
        self.attributes.iter().filter(|attribute| attribute.length_bytes == 0).count()
    }

    /// The size of the header of a buffer with this layout.
    #[must_use]
    pub fn header_size_bytes(&self) -> usize {
        if self.has_header { (OFFSET_LENGTHS + 2 * self.variable_count()).next_multiple_of(8) } else { 0 }
    }
}

/// The fixed part of a buffer's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaHeader {
    /// The order in which the buffer is written.
    pub endian: Endian,
    /// The layout's number as stored.
    pub layout: u16,
    /// The size of the header as stored.
    pub size_bytes: usize,
}

impl SaHeader {
    /// Reads the header, telling the byte order by the magic number. `Ok(None)` if the magic is 0: a buffer never filled.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, FormatError> {
        let fields = Fields::new(STRUCTURE, bytes, 8, Endian::Little)?;
        let found = fields.u32(0)?;
        let endian = match found {
            0 => return Ok(None),
            SA_MAGIC => Endian::Little,
            _ if found.swap_bytes() == SA_MAGIC => Endian::Big,
            _ => {
                let kind = FormatErrorKind::BadMagic { found: u64::from(found), expected: u64::from(SA_MAGIC) };
                return Err(fields.error(0, kind));
            }
        };
        let info = endian.u16(fields.array(OFFSET_INFO)?);
        let size_bytes = usize::from(info >> LAYOUT_BITS) * 8;
        Ok(Some(Self { endian, layout: info & LAYOUT_MAX, size_bytes }))
    }

    /// The number under which the layout is to be looked up: 0 means the empty layout, 1, where there is a header.
    #[must_use]
    pub fn layout_number(&self) -> u16 {
        self.layout.max(1)
    }
}

/// A buffer with its layout. Lengths are checked as attributes are reached.
#[derive(Clone, Copy, Debug)]
pub struct SaView<'a> {
    fields: Fields<'a>,
    layout: &'a SaLayout,
}

impl<'a> SaView<'a> {
    /// Wraps a bonus area or spill block in the order that its header told.
    pub fn new(bytes: &'a [u8], header: &SaHeader, layout: &'a SaLayout) -> Result<Self, FormatError> {
        let fields = Fields::new(STRUCTURE, bytes, layout.header_size_bytes(), header.endian)?;
        Ok(Self { fields, layout })
    }

    /// Wraps the old fixed structure, in the order of the dnode; `layout` is [`SaLayout::legacy`].
    pub fn legacy(bytes: &'a [u8], endian: Endian, layout: &'a SaLayout) -> Result<Self, FormatError> {
        Ok(Self { fields: Fields::new("znode", bytes, 0, endian)?, layout })
    }

    /// The byte order of the attributes.
    #[must_use]
    pub fn endian(&self) -> Endian {
        self.fields.endian()
    }

    /// Every attribute with its bytes, in order; ends after the first error.
    pub fn iter(&self) -> SaIter<'a> {
        SaIter { view: *self, index: 0, variable: 0, offset: self.layout.header_size_bytes() }
    }

    /// The bytes of the attribute with this number.
    pub fn find(&self, number: u16) -> Result<Option<&'a [u8]>, FormatError> {
        for item in self.iter() {
            let (attribute, bytes) = item?;
            if attribute.number == number {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// The attribute as 64-bit integer.
    pub fn u64(&self, number: u16) -> Result<Option<u64>, FormatError> {
        self.find(number)?.map(|bytes| Fields::new(STRUCTURE, bytes, 8, self.endian())?.u64(0)).transpose()
    }

    /// The attribute as two 64-bit integers: a time's seconds and nanoseconds.
    pub(crate) fn u64_pair(&self, number: u16) -> Result<Option<[u64; 2]>, FormatError> {
        let pair = |bytes| {
            let fields = Fields::new(STRUCTURE, bytes, 16, self.endian())?;
            Ok([fields.u64(0)?, fields.u64(8)?])
        };
        self.find(number)?.map(pair).transpose()
    }
}

/// Walks the attributes of a buffer.
#[derive(Clone, Debug)]
pub struct SaIter<'a> {
    view: SaView<'a>,
    index: usize,
    variable: usize,
    offset: usize,
}

impl<'a> SaIter<'a> {
    fn step(&mut self, attribute: SaAttribute) -> Result<&'a [u8], FormatError> {
        let fields = &self.view.fields;
        let len = if attribute.length_bytes == 0 {
            let length = fields.u16(OFFSET_LENGTHS + 2 * self.variable)?;
            self.variable += 1;
            usize::from(length)
        } else {
            usize::from(attribute.length_bytes)
        };
        let bytes = fields.slice(self.offset, len)?;
        self.offset = (self.offset + len).next_multiple_of(8);
        Ok(bytes)
    }
}

impl<'a> Iterator for SaIter<'a> {
    type Item = Result<(SaAttribute, &'a [u8]), FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        let attribute = *self.view.layout.attributes.get(self.index)?;
        let item = self.step(attribute);
        self.index = if item.is_ok() { self.index + 1 } else { usize::MAX };
        Some(item.map(|bytes| (attribute, bytes)))
    }
}

/// The owner that a file's space is charged to, read at the fixed places where OpenZFS reads it: it accounts space below the layer
/// that knows layouts, so files must be laid out with mode, size, generation, owner, group, parent, flags, four times and
/// links first, and the project next if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SaOwner {
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// The txg of creation.
    pub generation: u64,
    /// Project; 0 if the file has none.
    pub project: u64,
}

impl SaOwner {
    const OFFSET_GENERATION: usize = 16;
    const OFFSET_UID: usize = 24;
    const OFFSET_GID: usize = 32;
    const OFFSET_FLAGS: usize = 48;
    const OFFSET_PROJECT: usize = 128;
    /// Four times stand before it.
    const ZNODE_OFFSET_GENERATION: usize = 64;
    /// And mode, size, parent, links, attribute directory, device and flags.
    const ZNODE_OFFSET_UID: usize = 128;
    const ZNODE_OFFSET_GID: usize = 136;

    /// Reads a bonus of type SA. One that was never filled, of any length, belongs to user 0: an object can be on disk before it is
    /// given attributes.
    pub fn parse(bonus: &[u8]) -> Result<Self, FormatError> {
        if bonus.iter().all(|byte| *byte == 0) {
            return Ok(Self::default());
        }
        let Some(header) = SaHeader::parse(bonus)? else {
            return Ok(Self::default());
        };
        if header.size_bytes < 8 {
            let rule = "at least 8 bytes";
            return Err(FormatError::invalid(STRUCTURE, OFFSET_INFO, "header size", header.size_bytes as u64, rule));
        }
        let fields = Fields::new(STRUCTURE, bonus, 0, header.endian)?;
        let word = |offset| fields.u64(header.size_bytes + offset);
        let flags = ZnodeFlags::from_bits_retain(word(Self::OFFSET_FLAGS)?);
        let has_project = flags.contains(ZnodeFlags::PROJECT_ID);
        Ok(Self {
            uid: word(Self::OFFSET_UID)?,
            gid: word(Self::OFFSET_GID)?,
            generation: word(Self::OFFSET_GENERATION)?,
            project: if has_project { word(Self::OFFSET_PROJECT)? } else { 0 },
        })
    }

    /// Reads a bonus of type ZNODE, in a byte order: the fixed structure of files from before system attributes, which have no project.
    ///
    /// # Errors
    /// It is too short.
    pub fn parse_znode(bonus: &[u8], order: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new(STRUCTURE, bonus, 0, order)?;
        Ok(Self {
            uid: fields.u64(Self::ZNODE_OFFSET_UID)?,
            gid: fields.u64(Self::ZNODE_OFFSET_GID)?,
            generation: fields.u64(Self::ZNODE_OFFSET_GENERATION)?,
            project: 0,
        })
    }
}

/// A buffer with this layout and these values, one an attribute in the layout's order, each already in `endian` order.
pub fn emit(layout_number: u16, layout: &SaLayout, values: &[&[u8]], endian: Endian) -> Result<Vec<u8>, FormatError> {
    if values.len() != layout.attributes.len() {
        return Err(FormatError::malformed(STRUCTURE, 0, "as many values as attributes"));
    }
    if layout_number > LAYOUT_MAX {
        let rule = "at most 1023";
        return Err(FormatError::invalid(STRUCTURE, OFFSET_INFO, "layout number", layout_number.into(), rule));
    }
    let header_size = layout.header_size_bytes();
    let mut bytes = vec![0; header_size];
    let mut variable = 0;
    for (attribute, value) in layout.attributes.iter().zip(values) {
        if attribute.length_bytes == 0 {
            let length = u16::try_from(value.len()).map_err(|_| {
                let rule = "at most 65535 bytes";
                FormatError::invalid(STRUCTURE, bytes.len(), "attribute length", value.len() as u64, rule)
            })?;
            if layout.has_header {
                put_u16(&mut bytes, OFFSET_LENGTHS + 2 * variable, length, endian);
            }
            variable += 1;
        } else if value.len() != usize::from(attribute.length_bytes) {
            let rule = "the registered length";
            return Err(FormatError::invalid(STRUCTURE, bytes.len(), "attribute length", value.len() as u64, rule));
        }
        // Padding goes before an attribute, not after the last: the bonus area ends with its last byte.
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend_from_slice(value);
    }
    if layout.has_header {
        let Ok(size_in_words) = u16::try_from(header_size / 8) else {
            return Err(FormatError::malformed(STRUCTURE, 0, "too many variable attributes"));
        };
        if size_in_words >= 1 << (16 - LAYOUT_BITS) {
            return Err(FormatError::malformed(STRUCTURE, 0, "too many variable attributes"));
        }
        put_u32(&mut bytes, 0, SA_MAGIC, endian);
        put_u16(&mut bytes, OFFSET_INFO, layout_number | size_in_words << LAYOUT_BITS, endian);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A large file that `build` writes in several txgs is on disk before it has attributes: its bonus has no bytes then.
    #[test]
    fn a_bonus_that_was_never_filled_belongs_to_user_0() {
        for len in [0, 4, 8, 168, 320] {
            assert_eq!(SaOwner::parse(&vec![0; len]).unwrap(), SaOwner::default());
        }
        assert!(SaOwner::parse(&[1; 4]).is_err());
        let words: Vec<u8> = (0_u64..33).flat_map(|word| (100 + word).to_le_bytes()).collect();
        let owner = SaOwner { uid: 116, gid: 117, generation: 108, project: 0 };
        assert_eq!(SaOwner::parse_znode(&words, Endian::Little).unwrap(), owner);
        assert!(SaOwner::parse_znode(&words[..143], Endian::Little).is_err());
    }

    proptest! {
        #[test]
        fn buffers_round_trip_in_both_orders(
            picks in proptest::collection::vec(0_u16..ZplAttribute::COUNT as u16, 0..12),
            lengths in proptest::collection::vec(0_usize..100, 12),
            number in 1_u16..=LAYOUT_MAX,
        ) {
            let registry = SaRegistry::current();
            let layout = registry.layout(&picks).unwrap();
            let values: Vec<Vec<u8>> = layout.attributes.iter().zip(&lengths).enumerate().map(|(index, (attribute, len))| {
                let len = if attribute.length_bytes == 0 { *len } else { usize::from(attribute.length_bytes) };
                vec![index as u8 + 1; len]
            }).collect();
            let borrowed: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
            for endian in [Endian::Little, Endian::Big] {
                let bytes = emit(number, &layout, &borrowed, endian).unwrap();
                let header = SaHeader::parse(&bytes).unwrap().unwrap();
                prop_assert_eq!(header, SaHeader { endian, layout: number, size_bytes: layout.header_size_bytes() });
                let view = SaView::new(&bytes, &header, &layout).unwrap();
                let found: Vec<_> = view.iter().map(|item| item.unwrap().1.to_vec()).collect();
                prop_assert_eq!(&found, &values);
                // Every cut is an error or a shorter list, never a panic.
                for cut in 0..bytes.len() {
                    if let Ok(view) = SaView::new(&bytes[..cut], &header, &layout) {
                        let _ = view.iter().count();
                    }
                }
            }
        }

        #[test]
        fn registry_words_round_trip(word in any::<u64>()) {
            if let Ok(attribute) = SaAttribute::from_word(word) {
                prop_assert_eq!(attribute.word(), word & 0xff_ffff_ffff);
            }
        }
    }

    #[test]
    fn the_header_grows_by_words_with_the_lengths() {
        let registry = SaRegistry::current();
        let of = |attributes: &[ZplAttribute]| {
            let numbers: Vec<_> = attributes.iter().map(|known| registry.zpl(*known).unwrap()).collect();
            registry.layout(&numbers).unwrap().header_size_bytes()
        };
        assert_eq!(of(&[]), 8);
        assert_eq!(of(&[ZplAttribute::Symlink]), 8);
        assert_eq!(of(&[ZplAttribute::Symlink, ZplAttribute::DaclAces]), 16);
        assert_eq!(SaLayout::legacy().header_size_bytes(), 0);
    }

    #[test]
    fn registered_numbers_are_looked_up_by_name() {
        let mut registry = SaRegistry::new();
        // As a real dataset has it: ZPL_MODE is number 5, 8 bytes, 64-bit integers.
        registry.register("ZPL_MODE", 0x0800_0005).unwrap();
        assert_eq!(registry.zpl(ZplAttribute::Mode), Some(5));
        assert_eq!(registry.zpl(ZplAttribute::Size), None);
        assert!(registry.register("other", 0x0800_0005).is_err());
        assert!(registry.register("bad", 0x0005_0006).is_err());
        assert!(registry.layout(&[5, 6]).is_err());
    }

    #[test]
    fn an_unfilled_buffer_is_none_and_a_wrong_magic_an_error() {
        assert_eq!(SaHeader::parse(&[0; 8]), Ok(None));
        assert!(SaHeader::parse(&[1; 8]).is_err());
        assert!(SaHeader::parse(&[0; 7]).is_err());
    }

    #[test]
    fn layout_names_are_decimal() {
        assert_eq!(layout_number(b"2"), Some(2));
        assert_eq!(layout_number(b"1024"), None);
        assert_eq!(layout_number(b"x"), None);
    }
}
