//! The micro ZAP: one block of fixed entries, for maps of short names to single 64-bit integers.
//!
//! ```text
//!  0  block type  0x8000000000000003        64  entry 0
//!  8  salt (not 0)                          128  entry 1, and so on to the end of the block
//! 16  normflags
//! 24  40 bytes unused
//!
//! entry:  0  value (u64)    8  collision differentiator (u32)    12  2 bytes unused    14  name, zero-terminated (50)
//! ```
//!
//! An entry whose name is empty is a free slot. Entries lie in no particular order; the in-memory index by hash is the
//! reader's business. Two names with the same 28-bit hash differ in their differentiator, so that a directory cookie
//! (hash and differentiator) names one entry.

use super::{BLOCK_TYPE_MICRO, NormFlags, ZapFlags, ZapHasher};
use crate::endian::{Endian, Fields, put_u32, put_u64};
use crate::error::{FormatError, FormatErrorKind};
use crate::zap::leaf_edit::ZapEditError;

const STRUCTURE: &str = "micro zap";
const OFFSET_SALT: usize = 8;
const OFFSET_NORMFLAGS: usize = 16;
const ENTRY_OFFSET_CD: usize = 8;
const ENTRY_OFFSET_NAME: usize = 14;

/// Size of the header and of each entry.
pub const MICRO_ENTRY_SIZE_BYTES: usize = 64;
/// The longest name, without its terminating zero.
pub const MICRO_NAME_MAX_BYTES: usize = MICRO_ENTRY_SIZE_BYTES - ENTRY_OFFSET_NAME - 1;
/// The largest differentiator a micro ZAP may hold; OpenZFS keeps 16 bits of it in memory.
const MICRO_CD_MAX: u32 = 0xffff;

/// A micro ZAP's block, checked for its header.
#[derive(Clone, Copy, Debug)]
pub struct MicroZap<'a> {
    fields: Fields<'a>,
    salt: u64,
    norm_flags: NormFlags,
}

/// One entry of a micro ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroEntry<'a> {
    /// Which 64-byte slot after the header.
    pub slot: usize,
    /// The name without its terminating zero.
    pub name: &'a [u8],
    /// The value.
    pub value: u64,
    /// The collision differentiator.
    pub cd: u32,
}

impl<'a> MicroZap<'a> {
    /// Wraps a block.
    pub fn parse(block: &'a [u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new(STRUCTURE, block, MICRO_ENTRY_SIZE_BYTES, endian)?;
        let found = fields.u64(0)?;
        if found != BLOCK_TYPE_MICRO {
            return Err(fields.error(0, FormatErrorKind::BadMagic { found, expected: BLOCK_TYPE_MICRO }));
        }
        let salt = fields.u64(OFFSET_SALT)?;
        let norm_flags = NormFlags::from_bits_retain(fields.u64(OFFSET_NORMFLAGS)?);
        Ok(Self { fields, salt, norm_flags })
    }

    /// The salt of the hash.
    #[must_use]
    pub fn salt(&self) -> u64 {
        self.salt
    }

    /// How names are normalised.
    #[must_use]
    pub fn norm_flags(&self) -> NormFlags {
        self.norm_flags
    }

    /// The hash function of this ZAP.
    #[must_use]
    pub fn hasher(&self) -> ZapHasher {
        ZapHasher::new(self.salt, ZapFlags::empty())
    }

    /// Number of slots, used or free.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        (self.fields.bytes().len() / MICRO_ENTRY_SIZE_BYTES).saturating_sub(1)
    }

    /// The entry in `slot`; `None` if it is free or past the end. A name without a terminating zero ends with the slot.
    #[must_use]
    pub fn entry(&self, slot: usize) -> Option<MicroEntry<'a>> {
        let offset = slot.checked_add(1)?.checked_mul(MICRO_ENTRY_SIZE_BYTES)?;
        let bytes = self.fields.slice(offset, MICRO_ENTRY_SIZE_BYTES).ok()?;
        let fields = Fields::new(STRUCTURE, bytes, MICRO_ENTRY_SIZE_BYTES, self.fields.endian()).ok()?;
        let name = &bytes[ENTRY_OFFSET_NAME..];
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        if len == 0 {
            return None;
        }
        Some(MicroEntry { slot, name: &name[..len], value: fields.u64(0).ok()?, cd: fields.u32(ENTRY_OFFSET_CD).ok()? })
    }

    /// The used entries, in the order of the slots.
    pub fn entries(&self) -> impl Iterator<Item = MicroEntry<'a>> + use<'a> {
        let this = *self;
        (0..this.slot_count()).filter_map(move |slot| this.entry(slot))
    }

    /// The entries with their hashes, in the order of hash and differentiator, which is the order of cookies.
    #[must_use]
    pub fn sorted(&self) -> Vec<(u64, MicroEntry<'a>)> {
        let hasher = self.hasher();
        let mut entries: Vec<_> = self.entries().map(|entry| (hasher.name(entry.name), entry)).collect();
        entries.sort_by_key(|(hash, entry)| (*hash, entry.cd, entry.slot));
        entries
    }

    /// The entry with exactly this name.
    #[must_use]
    pub fn lookup(&self, name: &[u8]) -> Option<MicroEntry<'a>> {
        if name.is_empty() || name.contains(&0) {
            return None;
        }
        // Directories are looked into this way, so an entry costs a comparison and no more.
        let is_it = |entry: &[u8]| {
            let rest = entry[ENTRY_OFFSET_NAME..].strip_prefix(name);
            rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == 0))
        };
        let slot = self.fields.bytes().chunks_exact(MICRO_ENTRY_SIZE_BYTES).skip(1).position(is_it)?;
        self.entry(slot)
    }
}

/// A micro ZAP's block being written.
#[derive(Debug)]
pub struct MicroZapEdit<'a> {
    block: &'a mut [u8],
    endian: Endian,
}

impl<'a> MicroZapEdit<'a> {
    /// Makes `block` an empty micro ZAP. `salt` must not be 0: OpenZFS asserts that.
    pub fn create(block: &'a mut [u8], endian: Endian, salt: u64, norm_flags: NormFlags) -> Result<Self, FormatError> {
        if block.len() < 2 * MICRO_ENTRY_SIZE_BYTES {
            return Err(FormatError::truncated(STRUCTURE, 2 * MICRO_ENTRY_SIZE_BYTES, block.len()));
        }
        if salt == 0 {
            return Err(FormatError::invalid(STRUCTURE, OFFSET_SALT, "salt", 0, "not zero"));
        }
        block.fill(0);
        put_u64(block, 0, BLOCK_TYPE_MICRO, endian);
        put_u64(block, OFFSET_SALT, salt, endian);
        put_u64(block, OFFSET_NORMFLAGS, norm_flags.bits(), endian);
        Ok(Self { block, endian })
    }

    /// Opens an existing block.
    pub fn open(block: &'a mut [u8], endian: Endian) -> Result<Self, FormatError> {
        MicroZap::parse(block, endian)?;
        Ok(Self { block, endian })
    }

    /// The reader's view of what is there now.
    pub fn view(&self) -> Result<MicroZap<'_>, FormatError> {
        MicroZap::parse(self.block, self.endian)
    }

    /// Adds `name`, taking the lowest differentiator that is free for `hash` among entries for which `same_hash` holds.
    /// `hash_of` gives the hash of a stored name (of its normalised form, where this ZAP normalises).
    /// Fails with `Full` when there is no slot, or with `NameTooLong`: then the ZAP must become a fat one. Looks at every
    /// entry; writers of large ZAPs keep an index and use [`Self::put`].
    pub fn insert(
        &mut self,
        name: &[u8],
        value: u64,
        hash_of: impl Fn(&[u8]) -> u64,
    ) -> Result<MicroSlot, ZapEditError> {
        let view = self.view()?;
        if view.lookup(name).is_some() {
            return Err(ZapEditError::Exists);
        }
        let hash = hash_of(name);
        let mut used: Vec<u32> =
            view.entries().filter(|entry| hash_of(entry.name) == hash).map(|entry| entry.cd).collect();
        used.sort_unstable();
        used.dedup();
        let cd = (0_u32..).zip(&used).find(|(want, have)| want != *have).map_or(used.len() as u32, |(want, _)| want);
        let slot = (0..view.slot_count()).find(|slot| view.entry(*slot).is_none()).ok_or(ZapEditError::Full)?;
        self.put(slot, name, value, cd)?;
        Ok(MicroSlot { slot, cd })
    }

    /// Writes an entry into a free slot, for writers who keep an index of their own and know that `name` is not there and
    /// that no other entry of its hash has this differentiator.
    pub fn put(&mut self, slot: usize, name: &[u8], value: u64, cd: u32) -> Result<(), ZapEditError> {
        if name.is_empty() || name.contains(&0) {
            return Err(FormatError::malformed(STRUCTURE, 0, "a name must not be empty or hold a zero byte").into());
        }
        if name.len() > MICRO_NAME_MAX_BYTES {
            return Err(ZapEditError::NameTooLong);
        }
        let view = self.view()?;
        if cd > MICRO_CD_MAX || slot >= view.slot_count() {
            return Err(ZapEditError::Full);
        }
        if view.entry(slot).is_some() {
            return Err(ZapEditError::Exists);
        }
        let endian = self.endian;
        let entry = self.slot_bytes(slot);
        entry.fill(0);
        put_u64(entry, 0, value, endian);
        put_u32(entry, ENTRY_OFFSET_CD, cd, endian);
        entry[ENTRY_OFFSET_NAME..ENTRY_OFFSET_NAME + name.len()].copy_from_slice(name);
        Ok(())
    }

    /// Changes the value of `name`.
    pub fn update(&mut self, name: &[u8], value: u64) -> Result<(), ZapEditError> {
        let slot = self.view()?.lookup(name).ok_or(ZapEditError::NotFound)?.slot;
        let endian = self.endian;
        put_u64(self.slot_bytes(slot), 0, value, endian);
        Ok(())
    }

    /// Removes `name` and returns its value.
    pub fn remove(&mut self, name: &[u8]) -> Result<u64, ZapEditError> {
        let entry = self.view()?.lookup(name).ok_or(ZapEditError::NotFound)?;
        let (slot, value) = (entry.slot, entry.value);
        self.slot_bytes(slot).fill(0);
        Ok(value)
    }

    fn slot_bytes(&mut self, slot: usize) -> &mut [u8] {
        let offset = (slot + 1) * MICRO_ENTRY_SIZE_BYTES;
        &mut self.block[offset..offset + MICRO_ENTRY_SIZE_BYTES]
    }
}

/// Where an insertion went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroSlot {
    /// The slot.
    pub slot: usize,
    /// The differentiator given.
    pub cd: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn a_micro_zap_behaves_like_a_map(
            operations in proptest::collection::vec((0_u8..12, 0_u8..3, any::<u64>()), 0..60),
            big in any::<bool>(),
        ) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let mut block = vec![0; 512];
            let mut edit = MicroZapEdit::create(&mut block, endian, 77, NormFlags::empty()).unwrap();
            let mut model = BTreeMap::new();
            for (key, operation, value) in operations {
                let name = format!("name-{key}").into_bytes();
                // A hash of three values only, so that differentiators are exercised.
                let hash_of = |name: &[u8]| u64::from(name[name.len() - 1] % 3);
                match operation {
                    0 => match edit.insert(&name, value, hash_of) {
                        Ok(_) => prop_assert!(model.insert(name, value).is_none()),
                        Err(ZapEditError::Exists) => prop_assert!(model.contains_key(&name)),
                        Err(ZapEditError::Full) => prop_assert_eq!(model.len(), 7),
                        Err(error) => panic!("{error}"),
                    },
                    1 => prop_assert_eq!(
                        edit.update(&name, value).is_ok(),
                        model.get_mut(&name).map(|slot| *slot = value).is_some()
                    ),
                    _ => prop_assert_eq!(edit.remove(&name).ok(), model.remove(&name)),
                }
                let view = edit.view().unwrap();
                let found: BTreeMap<_, _> =
                    view.entries().map(|entry| (entry.name.to_vec(), entry.value)).collect();
                prop_assert_eq!(&found, &model);
                let mut cookies: Vec<_> =
                    view.entries().map(|entry| (hash_of(entry.name), entry.cd)).collect();
                cookies.sort_unstable();
                cookies.dedup();
                prop_assert_eq!(cookies.len(), model.len());
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(mut block in proptest::collection::vec(any::<u8>(), 0..300)) {
            if block.len() >= 8 {
                put_u64(&mut block, 0, BLOCK_TYPE_MICRO, Endian::Little);
            }
            if let Ok(view) = MicroZap::parse(&block, Endian::Little) {
                let _ = view.sorted();
                let _ = view.lookup(b"a");
            }
        }
    }

    #[test]
    fn names_of_49_bytes_fit_and_50_do_not() {
        let mut block = vec![0; 512];
        let mut edit = MicroZapEdit::create(&mut block, Endian::Little, 1, NormFlags::empty()).unwrap();
        edit.insert(&[b'a'; 49], 1, |_| 0).unwrap();
        assert!(matches!(edit.insert(&[b'b'; 50], 1, |_| 0), Err(ZapEditError::NameTooLong)));
        assert!(edit.insert(b"", 1, |_| 0).is_err());
        assert!(MicroZapEdit::create(&mut [0; 512], Endian::Little, 0, NormFlags::empty()).is_err());
    }
}
