//! One object's attributes in memory: all of them, in the order in which they are packed, those of unknown kinds included.

use std::sync::Arc;

use cenote_format::sa::{SaRegistry, SaView, ZplAttribute};
use cenote_format::znode::ZnodeFlags;
use cenote_format::{Endian, FormatError};
use cenote_zio::ORDER;
use thiserror::Error;

/// The attributes that all files have, in the order in which OpenZFS packs them and accounting looks for them.
const USUAL: [ZplAttribute; 12] = [
    ZplAttribute::Mode,
    ZplAttribute::Size,
    ZplAttribute::Gen,
    ZplAttribute::Uid,
    ZplAttribute::Gid,
    ZplAttribute::Parent,
    ZplAttribute::Flags,
    ZplAttribute::Atime,
    ZplAttribute::Mtime,
    ZplAttribute::Ctime,
    ZplAttribute::Crtime,
    ZplAttribute::Links,
];

/// The objset's registry has no such attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not supported yet: registering the attribute '{}' in an old file system", .0.name())]
pub struct NotRegistered(pub ZplAttribute);

/// One object's attributes.
#[derive(Clone, Debug)]
pub struct SaRecord {
    registry: Arc<SaRegistry>,
    /// Values, in any order.
    bytes: Vec<u8>,
    /// In the order in which they are packed.
    items: Vec<Item>,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    number: u16,
    order: Endian,
    start: u32,
    len: u32,
}

/// Words as a value.
#[must_use]
pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| ORDER.bytes64(*word)).collect()
}

impl SaRecord {
    /// An empty one.
    pub(super) fn new(registry: &Arc<SaRegistry>) -> Self {
        Self { registry: Arc::clone(registry), bytes: Vec::new(), items: Vec::new() }
    }

    /// Adds the attributes of a bonus or spill block. `Ok(false)` if one is there already.
    pub(super) fn take(&mut self, view: SaView<'_>) -> Result<bool, FormatError> {
        for item in view.iter() {
            let (attribute, bytes) = item?;
            if self.at(attribute.number).is_some() {
                return Ok(false);
            }
            self.push(self.items.len(), attribute.number, view.endian(), bytes);
        }
        Ok(true)
    }

    fn push(&mut self, at: usize, number: u16, order: Endian, value: &[u8]) {
        // A bonus and a spill block have some 140 KiB at most.
        assert!(u32::try_from(self.bytes.len() + value.len()).is_ok(), "attributes are small");
        debug_assert!(self.at(number).is_none(), "an attribute is there once");
        let item = Item { number, order, start: self.bytes.len() as u32, len: value.len() as u32 };
        self.bytes.extend_from_slice(value);
        self.items.insert(at, item);
        self.check();
    }

    /// Checks the relations between items and bytes.
    fn check(&self) {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        if cfg!(debug_assertions) {
            ranges.extend(self.items.iter().map(|item| (item.start, item.start + item.len)));
            ranges.sort_unstable();
        }
        debug_assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "values lie apart, with nothing between");
        debug_assert_eq!(
            ranges.last().map_or(0, |last| last.1) as usize,
            self.bytes.len(),
            "the bytes are those of the values"
        );
    }

    fn at(&self, number: u16) -> Option<usize> {
        self.items.iter().position(|item| item.number == number)
    }

    fn item(&self, attribute: ZplAttribute) -> Option<Item> {
        Some(self.items[self.at(self.registry.zpl(attribute)?)?])
    }

    fn value(&self, item: Item) -> &[u8] {
        &self.bytes[item.start as usize..(item.start + item.len) as usize]
    }

    /// How many attributes there are.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// True if there are none: an object that was never given any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// All attributes by number, in their order.
    pub(crate) fn values(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.items.iter().map(|item| (item.number, self.value(*item)))
    }

    /// Numbers and lengths.
    fn shape(&self) -> impl Iterator<Item = (u16, u32)> {
        self.items.iter().map(|item| (item.number, item.len))
    }

    /// Whether another has the same attributes with the same lengths, so that it fits the same form.
    #[must_use]
    pub(crate) fn has_shape_of(&self, other: &Self) -> bool {
        self.shape().eq(other.shape())
    }

    /// Whether all of it is in the byte order that is written.
    pub(super) fn is_native(&self) -> bool {
        self.items.iter().all(|item| item.order == ORDER)
    }

    /// The bytes of an attribute, as stored.
    #[must_use]
    pub fn bytes(&self, attribute: ZplAttribute) -> Option<&[u8]> {
        self.item(attribute).map(|item| self.value(item))
    }

    /// The byte order in which an attribute is stored.
    #[must_use]
    pub fn byte_order(&self, attribute: ZplAttribute) -> Option<Endian> {
        Some(self.item(attribute)?.order)
    }

    /// Whether an attribute is there.
    #[must_use]
    pub fn has(&self, attribute: ZplAttribute) -> bool {
        self.item(attribute).is_some()
    }

    /// An attribute that begins with `N` 64-bit integers.
    #[must_use]
    pub fn words<const N: usize>(&self, attribute: ZplAttribute) -> Option<[u64; N]> {
        let item = self.item(attribute)?;
        let mut words = [0; N];
        let bytes = self.value(item);
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = item.order.u64(bytes.try_into().ok()?);
        }
        (bytes.len() >= N * 8).then_some(words)
    }

    /// An attribute that is one 64-bit integer.
    #[must_use]
    pub fn find_u64(&self, attribute: ZplAttribute) -> Option<u64> {
        self.words::<1>(attribute).map(|[word]| word)
    }

    /// The same; 0 if it is not there.
    #[must_use]
    pub fn u64(&self, attribute: ZplAttribute) -> u64 {
        self.find_u64(attribute).unwrap_or(0)
    }

    /// A file's flags.
    #[must_use]
    pub fn flags(&self) -> ZnodeFlags {
        ZnodeFlags::from_bits_retain(self.u64(ZplAttribute::Flags))
    }

    /// Sets an attribute: in its place, or after all others; a project after the links, where accounting looks for it.
    ///
    /// # Errors
    /// The objset's registry does not have it.
    pub fn set(&mut self, attribute: ZplAttribute, value: &[u8]) -> Result<(), NotRegistered> {
        let number = self.registry.zpl(attribute).ok_or(NotRegistered(attribute))?;
        if let Some(at) = self.at(number) {
            self.replace(at, value);
            return Ok(());
        }
        let links = self.registry.zpl(ZplAttribute::Links).and_then(|links| self.at(links));
        let at = match (attribute, links) {
            (ZplAttribute::Projid, Some(links)) => links + 1,
            _ => self.items.len(),
        };
        self.push(at, number, ORDER, value);
        Ok(())
    }

    fn replace(&mut self, at: usize, value: &[u8]) {
        let before = self.items[at];
        let range = before.start as usize..(before.start + before.len) as usize;
        if before.len as usize == value.len() {
            self.bytes[range].copy_from_slice(value);
        } else {
            self.bytes.splice(range, value.iter().copied());
            // An empty value begins where the next one does, which moves too.
            for item in self.items.iter_mut().filter(|item| item.start >= before.start + before.len) {
                item.start = item.start - before.len + value.len() as u32;
            }
        }
        self.items[at] = Item { order: ORDER, len: value.len() as u32, ..before };
        self.check();
    }

    /// Sets an attribute that is one word.
    ///
    /// # Errors
    /// As [`SaRecord::set`].
    pub fn put(&mut self, attribute: ZplAttribute, word: u64) -> Result<(), NotRegistered> {
        self.set(attribute, &ORDER.bytes64(word))
    }

    /// Sets an attribute that is some words.
    ///
    /// # Errors
    /// As [`SaRecord::set`].
    pub fn put_words(&mut self, attribute: ZplAttribute, values: &[u64]) -> Result<(), NotRegistered> {
        self.set(attribute, &words(values))
    }

    /// Takes an attribute out.
    pub fn remove(&mut self, attribute: ZplAttribute) {
        if let Some(at) = self.registry.zpl(attribute).and_then(|number| self.at(number)) {
            self.replace(at, &[]);
            self.items.remove(at);
        }
    }

    /// Whether it begins with what all files have in the usual order, so that accounting finds owner and project.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        self.items.len() >= USUAL.len()
            && USUAL.iter().zip(&self.items).all(|(usual, item)| self.registry.zpl(*usual) == Some(item.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SaRecord {
        SaRecord::new(&Arc::new(SaRegistry::current()))
    }

    #[test]
    fn values_are_found_again_after_others_were_replaced_and_taken_out() {
        let mut record = record();
        record.put(ZplAttribute::Mode, 7).unwrap();
        record.set(ZplAttribute::Symlink, b"abc").unwrap();
        record.put(ZplAttribute::Size, 8).unwrap();
        record.set(ZplAttribute::Symlink, b"longer than before").unwrap();
        assert_eq!(record.bytes(ZplAttribute::Symlink), Some(&b"longer than before"[..]));
        assert_eq!((record.u64(ZplAttribute::Mode), record.u64(ZplAttribute::Size)), (7, 8));
        let before = record.clone();
        record.put(ZplAttribute::Size, 9).unwrap();
        assert!(record.has_shape_of(&before));
        record.set(ZplAttribute::Symlink, b"").unwrap();
        assert!(!record.has_shape_of(&before));
        record.remove(ZplAttribute::Symlink);
        assert_eq!((record.u64(ZplAttribute::Mode), record.u64(ZplAttribute::Size)), (7, 9));
        assert!(!record.has(ZplAttribute::Symlink) && record.len() == 2);
    }

    #[test]
    fn an_empty_value_that_grows_moves_those_behind_it() {
        let mut record = record();
        record.put(ZplAttribute::Mode, 7).unwrap();
        record.set(ZplAttribute::Symlink, b"").unwrap();
        record.put(ZplAttribute::Size, 8).unwrap();
        record.set(ZplAttribute::Symlink, b"no longer empty").unwrap();
        assert_eq!(record.bytes(ZplAttribute::Symlink), Some(&b"no longer empty"[..]));
        assert_eq!((record.u64(ZplAttribute::Mode), record.u64(ZplAttribute::Size)), (7, 8));
    }

    #[test]
    fn a_project_stands_where_accounting_looks_for_it() {
        let mut record = record();
        for attribute in USUAL {
            let len = usize::from(attribute.describe(0).length_bytes);
            record.set(attribute, &vec![0; len]).unwrap();
        }
        record.set(ZplAttribute::DaclAces, b"list").unwrap();
        record.put(ZplAttribute::Projid, 5).unwrap();
        let number = record.values().nth(USUAL.len()).unwrap().0;
        assert_eq!(record.registry.zpl(ZplAttribute::Projid), Some(number));
        assert!(record.is_usual());
        record.remove(ZplAttribute::Gen);
        assert!(!record.is_usual());
    }

    #[test]
    fn what_is_not_registered_cannot_be_set() {
        let mut record = SaRecord::new(&Arc::new(SaRegistry::legacy()));
        assert_eq!(record.put(ZplAttribute::Projid, 1), Err(NotRegistered(ZplAttribute::Projid)));
        assert!(record.is_empty());
    }
}
