//! ZAP objects: maps from names (or word keys) to arrays of integers, hashed over an object's blocks.
//!
//! The form of the blocks is in `cenote_format::zap`. This module walks them: block 0 says whether the object is one micro
//! block or a fat ZAP; a fat one is looked up as hash -> pointer table -> leaf block -> chain of chunks, and listed leaf
//! by leaf.
//!
//! **Reading** takes blocks as they are: nothing is copied but what is handed out. Blocks of an open object are replaced as a
//! whole, so a reader keeps the block that it found while others put new ones in its place. Blocks of one ZAP that belong together
//! must not be replaced between two looks: a change is flushed under a lock that keeps readers away for that moment.
//!
//! **Changing.** A [`Zap`] is changed in memory: what is changed and not flushed lies over the object's blocks, and the same `Zap`
//! reads it there. [`Zap::flush`] hands the changed blocks to the object, in a txg. Until then nobody else may change the ZAP: the
//! callers, directories and the pool's tables, hold a lock of their own. A `Zap` that is kept between changes remembers where names stand
//! in a micro block, so that a change does not look through all of them; one that was changed and cannot be flushed is dropped.
//!
//! **Listing** visits each leaf once, in the order of hash prefixes, whatever number of table slots point to it: a leaf says
//! by its prefix which slots are its own, and the listing goes on after them. A leaf that is found at a slot outside its prefix is
//! corrupt. A hostile table can have as many slots as there are hashes, so empty leaves count toward the bound too.

mod fat;
mod listing;
mod micro;
mod micro_index;
mod normal;

use std::collections::BTreeMap;

use cenote_format::ids::{BlockId, Txg};
use cenote_format::zap::{
    FatHeader, LeafEdit, MICRO_NAME_MAX_BYTES, MicroZap, MicroZapEdit, NormFlags, ZapEditError, ZapFlags, ZapKey,
    ZapKeyBuf, ZapShape, ZapValue,
};
use cenote_format::{Endian, dmu_type::DmuType};
use cenote_taskq::boxed;
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::mutant::{self, Mutant};
use cenote_zio::ORDER;

pub use self::listing::ZapListing;

use self::micro_index::MicroIndex;
use self::normal::normalised;
use crate::object::{Object, ObjectSpec};
use crate::objset::Objset;
use crate::{DmuError, DmuErrorKind};

/// Blocks that a ZAP has set aside and not written at most: those of a table that is to be doubled.
const UNWRITTEN_MAX: u64 = 1 << 20;

/// A ZAP object. A clone is a copy of what is in memory of it.
#[derive(Clone)]
pub struct Zap {
    object: Object,
    /// Block 0 as of the newest change.
    first: Block,
    order: Endian,
    form: Form,
    /// Blocks that were changed and are not flushed, beside the first.
    changed: BTreeMap<u64, Block>,
    /// The first block was changed and is not flushed.
    is_first_changed: bool,
    /// A micro block was changed since this was opened.
    has_changed: bool,
}

#[derive(Clone)]
enum Form {
    /// With an index of the block once it was changed.
    Micro(Option<MicroIndex>),
    Fat(FatHeader),
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZapEntry {
    /// The name or the words of the key.
    pub key: ZapKeyBuf,
    /// The value.
    pub value: ZapValue,
    /// The key's hash, which orders a listing.
    pub hash: u64,
    /// Tells entries of one hash apart.
    pub cd: u32,
}

impl ZapEntry {
    /// The name, for ZAPs with names.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        match &self.key {
            ZapKeyBuf::Name(name) => name,
            ZapKeyBuf::Words(_) => &[],
        }
    }
}

/// The salt of a new ZAP: any number, the same for the same place in the same pool.
fn salt_of(object: &Object) -> u64 {
    let mix = (object.id().0 ^ (object.objset_id().0 << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mix >> 20) | 1
}

impl Zap {
    /// Opens the ZAP in `object`.
    ///
    /// # Errors
    /// Its first block cannot be read, or is none of a ZAP.
    #[boxed]
    pub async fn open(object: Object) -> Result<Self, DmuError> {
        let Some((first, order)) = object.block(BlockId(0)).await? else {
            return Err(object.error(DmuErrorKind::Corrupt("a ZAP object without its first block".into())));
        };
        let form = match ZapShape::of(&first, order).map_err(|error| object.error(error))? {
            ZapShape::Micro => Form::Micro(None),
            ZapShape::Fat => {
                let header = FatHeader::parse(&first, order).map_err(|error| object.error(error))?;
                if header.block_size_bytes() as u64 != object.block_bytes() {
                    let what = "a ZAP of another block size than its object";
                    return Err(object.error(DmuErrorKind::Corrupt(what.into())));
                }
                Form::Fat(header)
            }
        };
        Ok(Self::with(object, first, order, form))
    }

    fn with(object: Object, first: Block, order: Endian, form: Form) -> Self {
        assert!(!first.is_empty(), "a ZAP has a first block");
        Self { object, first, order, form, changed: BTreeMap::new(), is_first_changed: false, has_changed: false }
    }

    /// Makes an object that has no data yet an empty ZAP. It is one with the next flush.
    ///
    /// # Errors
    /// The object's block is too small.
    pub fn create(object: Object) -> Result<Self, DmuError> {
        Self::create_with(object, NormFlags::empty())
    }

    /// As [`Zap::create`], for names that are normalised.
    ///
    /// # Errors
    /// As there.
    pub fn create_with(object: Object, norm: NormFlags) -> Result<Self, DmuError> {
        let mut block = Buf::zeroed(object.block_bytes() as usize);
        let made = MicroZapEdit::create(&mut block, ORDER, salt_of(&object), norm);
        made.map_err(|error| object.error(error))?;
        let mut this = Self::with(object, block.freeze(), ORDER, Form::Micro(None));
        this.is_first_changed = true;
        Ok(this)
    }

    /// Makes an object that has no data yet an empty ZAP whose keys are words, as tables of blocks are. Its blocks stay of the
    /// size that they have.
    ///
    /// # Errors
    /// That size is none of a ZAP.
    pub fn create_for_words(object: Object, is_prehashed: bool) -> Result<Self, DmuError> {
        let mut flags = ZapFlags::HASH64 | ZapFlags::UINT64_KEY;
        flags.set(ZapFlags::PRE_HASHED_KEY, is_prehashed);
        let shift = object.block_bytes().ilog2();
        let header = FatHeader::new(shift, salt_of(&object), NormFlags::empty(), flags);
        Self::new_fat(object, header, false)
    }

    /// A fat ZAP without entries.
    fn new_fat(object: Object, header: FatHeader, sorted: bool) -> Result<Self, DmuError> {
        let mut leaf = Buf::zeroed(header.block_size_bytes());
        LeafEdit::create(&mut leaf, ORDER, 0, 0, sorted).map_err(|error| object.error(error))?;
        let first = Buf::copied_from(&header.emit_new(ORDER)).freeze();
        let mut this = Self::with(object, first, ORDER, Form::Fat(header));
        this.is_first_changed = true;
        this.changed.insert(1, leaf.freeze());
        Ok(this)
    }

    /// The object.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// True if it is one micro block.
    #[must_use]
    pub fn is_micro(&self) -> bool {
        matches!(self.form, Form::Micro(_))
    }

    /// The fat header, unless it is a micro ZAP.
    #[must_use]
    pub fn header(&self) -> Option<&FatHeader> {
        match &self.form {
            Form::Micro(_) => None,
            Form::Fat(header) => Some(header),
        }
    }

    /// The flags that say how names are normalised before hashing.
    ///
    /// # Errors
    /// The ZAP is damaged.
    pub fn norm_flags(&self) -> Result<NormFlags, DmuError> {
        Ok(match &self.form {
            Form::Micro(_) => self.micro()?.norm_flags(),
            Form::Fat(header) => header.norm_flags,
        })
    }

    /// The number of entries.
    ///
    /// # Errors
    /// The ZAP is damaged.
    pub fn entry_count(&self) -> Result<u64, DmuError> {
        match &self.form {
            Form::Micro(Some(index)) => Ok(index.entry_count()),
            Form::Micro(None) => Ok(self.micro()?.entries().count() as u64),
            Form::Fat(header) => Ok(header.entry_count),
        }
    }

    /// Blocks that were changed and are not flushed.
    #[must_use]
    pub fn changed_blocks(&self) -> usize {
        self.changed.len() + usize::from(self.is_first_changed)
    }

    fn fail(&self, error: impl Into<DmuErrorKind>) -> DmuError {
        self.object.error(error)
    }

    fn micro(&self) -> Result<MicroZap<'_>, DmuError> {
        MicroZap::parse(&self.first, self.order).map_err(|error| self.fail(error))
    }

    /// A block as of the newest change, and the byte order of its fields.
    async fn block(&self, block: u64) -> Result<(Block, Endian), DmuError> {
        if block == 0 {
            return Ok((self.first.clone(), self.order));
        }
        if let Some(changed) = self.changed.get(&block) {
            return Ok((changed.clone(), ORDER));
        }
        let found = self.object.block(BlockId(block)).await?;
        found.ok_or_else(|| self.fail(DmuErrorKind::Corrupt(format!("ZAP block {block} is a hole"))))
    }

    /// The value of exactly `name`.
    ///
    /// # Errors
    /// The ZAP cannot be read, or contradicts itself.
    #[boxed]
    pub async fn lookup(&self, name: &[u8]) -> Result<Option<ZapValue>, DmuError> {
        match &self.form {
            Form::Micro(Some(index)) => {
                let Some(slot) = index.slot_of(name) else { return Ok(None) };
                Ok(self.micro()?.entry(slot).map(|entry| ZapValue::from_u64(entry.value)))
            }
            Form::Micro(None) => Ok(self.micro()?.lookup(name).map(|entry| ZapValue::from_u64(entry.value))),
            Form::Fat(header) if normalised(name, header.norm_flags).is_none() => {
                // The hash is of the normalised name, which is not known; the names are compared one by one.
                let mut listing = self.listing();
                while let Some(batch) = listing.next().await? {
                    if let Some(entry) = batch.into_iter().find(|entry| entry.name() == name) {
                        return Ok(Some(entry.value));
                    }
                }
                Ok(None)
            }
            Form::Fat(header) => self.lookup_fat(header, ZapKey::Name(name)).await,
        }
    }

    /// The value of a word key.
    ///
    /// # Errors
    /// The ZAP cannot be read, or its keys are names.
    #[boxed]
    pub async fn lookup_words(&self, words: &[u64]) -> Result<Option<ZapValue>, DmuError> {
        match &self.form {
            Form::Fat(header) if header.flags.contains(ZapFlags::UINT64_KEY) => {
                self.lookup_fat(header, ZapKey::Words(words)).await
            }
            _ => Err(self.fail(DmuErrorKind::WrongType("a ZAP with names, not words, as keys".into()))),
        }
    }

    /// The value of `name`, which must be one 64-bit integer; absence is an error that names it.
    ///
    /// # Errors
    /// There is no such entry, it is of another type, or the ZAP cannot be read.
    #[boxed]
    pub async fn lookup_u64(&self, name: &str) -> Result<u64, DmuError> {
        let value = self.lookup(name.as_bytes()).await?;
        let value = value.ok_or_else(|| self.fail(DmuErrorKind::NoSuchEntry(name.into())))?;
        value
            .as_u64()
            .ok_or_else(|| self.fail(DmuErrorKind::WrongType(format!("entry {name:?} is not one 64-bit integer"))))
    }

    /// Like [`Zap::lookup_u64`], `None` for absence.
    ///
    /// # Errors
    /// The entry is of another type, or the ZAP cannot be read.
    #[boxed]
    pub async fn find_u64(&self, name: &str) -> Result<Option<u64>, DmuError> {
        match self.lookup_u64(name).await {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// It is there already, it cannot be an entry, or the ZAP cannot be read.
    #[boxed]
    pub async fn insert(&mut self, name: &[u8], value: &ZapValue) -> Result<(), DmuError> {
        if self.is_micro() {
            let result = match value.as_word() {
                Some(_) if name.len() > MICRO_NAME_MAX_BYTES => Err(ZapEditError::NameTooLong),
                Some(word) => self.insert_micro(name, word)?,
                None => Err(ZapEditError::Full),
            };
            match result {
                Ok(()) => return Ok(()),
                Err(ZapEditError::Full | ZapEditError::NameTooLong) => Box::pin(self.fatten()).await?,
                Err(error) => return Err(self.fail(error)),
            }
        }
        self.insert_fat(ZapKey::Name(name), None, value).await
    }

    /// Adds an entry with one 64-bit integer.
    ///
    /// # Errors
    /// As [`Zap::insert`].
    #[boxed]
    pub async fn insert_u64(&mut self, name: &str, value: u64) -> Result<(), DmuError> {
        self.insert(name.as_bytes(), &ZapValue::from_u64(value)).await
    }

    /// Adds an entry, or replaces its value.
    ///
    /// # Errors
    /// It cannot be an entry, or the ZAP cannot be read.
    #[boxed]
    pub async fn set(&mut self, name: &[u8], value: &ZapValue) -> Result<(), DmuError> {
        if self.lookup(name).await?.is_none() {
            return self.insert(name, value).await;
        }
        if let (true, Some(word)) = (self.is_micro(), value.as_word()) {
            return self.update_micro(name, word);
        }
        // The longer way also when it is fat: the leaf may have to be split for a longer value.
        self.remove(name).await?;
        self.insert(name, value).await
    }

    /// Adds an entry whose key is words, or replaces its value.
    ///
    /// # Errors
    /// The ZAP's keys are names, or it cannot be read.
    #[boxed]
    pub async fn set_words(&mut self, words: &[u64], value: &ZapValue) -> Result<(), DmuError> {
        if self.lookup_words(words).await?.is_some() {
            self.remove_fat(ZapKey::Words(words)).await?;
        }
        self.insert_fat(ZapKey::Words(words), None, value).await
    }

    /// Removes an entry; returns its value.
    ///
    /// # Errors
    /// It is not there, or the ZAP cannot be read.
    #[boxed]
    pub async fn remove(&mut self, name: &[u8]) -> Result<ZapValue, DmuError> {
        match &self.form {
            Form::Micro(_) => self.remove_micro(name),
            Form::Fat(_) => self.remove_fat(ZapKey::Name(name)).await,
        }
    }

    /// Takes an entry out whose key is words.
    ///
    /// # Errors
    /// It is not there, or the ZAP cannot be read.
    #[boxed]
    pub async fn remove_words(&mut self, words: &[u64]) -> Result<ZapValue, DmuError> {
        match &self.form {
            Form::Micro(_) => Err(self.fail(ZapEditError::NotFound)),
            Form::Fat(_) => self.remove_fat(ZapKey::Words(words)).await,
        }
    }

    /// Writes what has changed into the object.
    ///
    /// # Errors
    /// The object cannot get the block size that the ZAP needs.
    #[boxed]
    pub async fn flush(&mut self, txg: Txg) -> Result<(), DmuError> {
        if self.changed_blocks() == 0 {
            return Ok(());
        }
        self.object.set_block_bytes(txg, self.first.len() as u32).await?;
        let half = mutant::is(Mutant::ZapHalf) && !self.is_micro();
        if std::mem::take(&mut self.is_first_changed) {
            self.object.write_block(txg, 0, self.first.clone());
        }
        for (block, bytes) in std::mem::take(&mut self.changed) {
            if !half {
                self.object.write_block(txg, block, bytes);
            }
        }
        Ok(())
    }

    /// Makes a new object that is a ZAP with these entries, in the order of their names' hashes.
    ///
    /// # Errors
    /// An entry cannot be one.
    #[boxed]
    pub async fn create_object(
        objset: &Objset,
        txg: Txg,
        kind: DmuType,
        entries: &[(&str, ZapValue)],
    ) -> Result<Object, DmuError> {
        Self::create_object_as(objset, txg, &ObjectSpec::new(kind, 512), entries).await
    }

    /// As [`Zap::create_object`], with a specification of the object, for one that needs a bonus. The first block has the size in `spec`.
    ///
    /// # Errors
    /// An entry's name or value is not valid in a ZAP.
    #[boxed]
    pub async fn create_object_as(
        objset: &Objset,
        txg: Txg,
        spec: &ObjectSpec,
        entries: &[(&str, ZapValue)],
    ) -> Result<Object, DmuError> {
        let object = objset.create_object(txg, spec)?;
        let mut zap = Self::create(object.clone())?;
        for (name, value) in entries {
            zap.insert(name.as_bytes(), value).await?;
        }
        zap.flush(txg).await?;
        Ok(object)
    }

    /// Changes one entry of the ZAP in `object`: sets it, or takes it out if it is there.
    ///
    /// # Errors
    /// It cannot be an entry, or the ZAP cannot be read.
    #[boxed]
    pub async fn put_entry(object: &Object, txg: Txg, name: &str, value: Option<&ZapValue>) -> Result<(), DmuError> {
        let mut zap = Self::open(object.clone()).await?;
        let found = zap.lookup(name.as_bytes()).await?;
        match value {
            value if found.as_ref() == value => return Ok(()),
            Some(value) => zap.set(name.as_bytes(), value).await?,
            None => {
                zap.remove(name.as_bytes()).await?;
            }
        }
        zap.flush(txg).await
    }
}
