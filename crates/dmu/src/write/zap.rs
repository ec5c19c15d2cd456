//! Changing ZAP objects: micro while they can be, fat from then on.
//!
//! A [`ZapMut`] holds the blocks that it has looked at in memory; [`ZapMut::flush`] hands the changed ones to the object.
//! Whoever changes a ZAP is alone with it until then: directories and the pool's tables have a lock above.

use std::collections::{BTreeMap, BTreeSet};

use cenote_format::ids::Txg;
use cenote_format::zap::{
    DEFAULT_BLOCK_SHIFT, FatHeader, Leaf, LeafEdit, MICRO_ENTRY_SIZE_BYTES, MICRO_NAME_MAX_BYTES, MicroZap,
    MicroZapEdit, NormFlags, PointerPlace, ZapEditError, ZapFlags, ZapHasher, ZapKey, ZapShape, ZapValue,
    double_pointers, hash_index,
};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::mutant::{self, Mutant};
use cenote_zio::ORDER;

use super::object::Object;
use crate::{DmuError, DmuErrorKind};

/// A micro ZAP's block is no larger (`MZAP_MAX_BLKSZ`).
const MICRO_MAX_BYTES: usize = 128 << 10;
/// A table of pointers is not made larger than this, as a power of two: it is doubled in memory, as a whole.
const TABLE_SHIFT_MAX: u64 = 22;
/// Blocks that a ZAP has set aside and not written at most: those of a table that is to be doubled.
const UNWRITTEN_MAX: u64 = 1 << 20;
/// Clean blocks of a fat ZAP that are kept between changes.
const KEPT_MAX: usize = 8;
/// A micro ZAP grows by this much.
const MICRO_STEP_BYTES: usize = 512;

/// A ZAP being changed.
pub struct ZapMut {
    object: Object,
    form: Form,
}

enum Form {
    Micro(Micro),
    Fat(Fat),
}

struct Micro {
    block: Vec<u8>,
    salt: u64,
    names: BTreeMap<Vec<u8>, usize>,
    /// Differentiators in use, by hash.
    cds: BTreeMap<u64, BTreeSet<u32>>,
    free: BTreeSet<usize>,
    is_dirty: bool,
}

struct Fat {
    header: FatHeader,
    blocks: BTreeMap<u64, Vec<u8>>,
    dirty: BTreeSet<u64>,
}

/// The salt of a new ZAP: any number, the same for the same place in the same pool.
fn salt_of(object: &Object) -> u64 {
    let mix = (object.id().0 ^ (object.objset().id().0 << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mix >> 20) | 1
}

impl Micro {
    fn open(block: Vec<u8>) -> Result<Self, DmuErrorKind> {
        let view = MicroZap::parse(&block, ORDER)?;
        let (salt, hasher) = (view.salt(), view.hasher());
        let mut free: BTreeSet<usize> = (0..view.slot_count()).collect();
        let mut names = BTreeMap::new();
        let mut cds = BTreeMap::<u64, BTreeSet<u32>>::new();
        for entry in view.entries() {
            free.remove(&entry.slot);
            names.insert(entry.name.to_vec(), entry.slot);
            cds.entry(hasher.name(entry.name)).or_default().insert(entry.cd);
        }
        Ok(Self { salt, names, cds, free, is_dirty: false, block })
    }

    fn hash(&self, name: &[u8]) -> u64 {
        ZapHasher::new(self.salt, ZapFlags::empty()).name(name)
    }

    fn insert(&mut self, name: &[u8], value: u64) -> Result<(), ZapEditError> {
        if self.names.contains_key(name) {
            return Err(ZapEditError::Exists);
        }
        if name.len() > MICRO_NAME_MAX_BYTES {
            return Err(ZapEditError::NameTooLong);
        }
        let Some(slot) = self.free.first().copied() else {
            if self.block.len() + MICRO_STEP_BYTES > MICRO_MAX_BYTES {
                return Err(ZapEditError::Full);
            }
            let slots = |len: usize| len / MICRO_ENTRY_SIZE_BYTES - 1;
            let before = slots(self.block.len());
            self.block.resize(self.block.len() + MICRO_STEP_BYTES, 0);
            self.free.extend(before..slots(self.block.len()));
            return self.insert(name, value);
        };
        let used = self.cds.entry(self.hash(name)).or_default();
        let cd = (0..).find(|cd| !used.contains(cd)).unwrap_or(u32::MAX);
        MicroZapEdit::open(&mut self.block, ORDER)?.put(slot, name, value, cd)?;
        let hash = self.hash(name);
        self.cds.entry(hash).or_default().insert(cd);
        self.names.insert(name.to_vec(), slot);
        self.free.remove(&slot);
        self.is_dirty = true;
        Ok(())
    }

    fn update(&mut self, name: &[u8], value: u64) -> Result<(), ZapEditError> {
        MicroZapEdit::open(&mut self.block, ORDER)?.update(name, value)?;
        self.is_dirty = true;
        Ok(())
    }

    fn remove(&mut self, name: &[u8]) -> Result<ZapValue, ZapEditError> {
        let slot = *self.names.get(name).ok_or(ZapEditError::NotFound)?;
        let cd = MicroZap::parse(&self.block, ORDER)?.entry(slot).map(|entry| entry.cd);
        let value = MicroZapEdit::open(&mut self.block, ORDER)?.remove(name)?;
        let hash = self.hash(name);
        if let (Some(cd), Some(used)) = (cd, self.cds.get_mut(&hash)) {
            used.remove(&cd);
        }
        self.names.remove(name);
        self.free.insert(slot);
        self.is_dirty = true;
        Ok(ZapValue::from_u64(value))
    }
}

impl ZapMut {
    /// Makes an object that has no data yet an empty ZAP.
    pub fn create(object: Object) -> Result<Self, DmuError> {
        Self::create_with(object, NormFlags::empty())
    }

    /// As [`ZapMut::create`], for names that are normalised.
    pub fn create_with(object: Object, norm: NormFlags) -> Result<Self, DmuError> {
        let mut block = vec![0; object.block_bytes() as usize];
        let made = MicroZapEdit::create(&mut block, ORDER, salt_of(&object), norm);
        made.map_err(|error| object.error(error))?;
        let mut micro = Micro::open(block).map_err(|error| object.error(error))?;
        micro.is_dirty = true;
        Ok(Self { object, form: Form::Micro(micro) })
    }

    /// Makes an object that has no data yet an empty ZAP whose keys are words, as tables of blocks are. Its blocks stay of the
    /// size that they have.
    pub fn create_for_words(object: Object, is_prehashed: bool) -> Result<Self, DmuError> {
        let mut flags = ZapFlags::HASH64 | ZapFlags::UINT64_KEY;
        flags.set(ZapFlags::PRE_HASHED_KEY, is_prehashed);
        let shift = object.block_bytes().ilog2();
        let header = FatHeader::new(shift, salt_of(&object), NormFlags::empty(), flags);
        let mut leaf = vec![0; header.block_size_bytes()];
        LeafEdit::create(&mut leaf, ORDER, 0, 0, false).map_err(|error| object.error(error))?;
        let blocks = BTreeMap::from([(0, header.emit_new(ORDER)), (1, leaf)]);
        Ok(Self { object, form: Form::Fat(Fat { header, blocks, dirty: BTreeSet::from([0, 1]) }) })
    }

    /// Opens a ZAP.
    pub async fn open(object: Object) -> Result<Self, DmuError> {
        let Some(first) = object.block(0).await? else {
            return Err(object.error(DmuErrorKind::Corrupt("a ZAP object without its first block".into())));
        };
        let fail = |error: DmuErrorKind| object.error(error);
        let form = match ZapShape::of(&first, ORDER).map_err(|error| fail(error.into()))? {
            ZapShape::Micro => Form::Micro(Micro::open(first.to_vec()).map_err(fail)?),
            ZapShape::Fat => {
                let header = FatHeader::parse(&first, ORDER).map_err(|error| fail(error.into()))?;
                if header.free_block > object.head().max_block_id.saturating_add(UNWRITTEN_MAX) {
                    return Err(fail(DmuErrorKind::Corrupt("a ZAP that goes on far behind its last block".into())));
                }
                let blocks = BTreeMap::from([(0, first.to_vec())]);
                Form::Fat(Fat { header, blocks, dirty: BTreeSet::new() })
            }
        };
        Ok(Self { object, form })
    }

    fn fail(&self, error: impl Into<DmuErrorKind>) -> DmuError {
        self.object.error(error)
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// It is there already, or it cannot be an entry.
    pub async fn insert(&mut self, name: &[u8], value: &ZapValue) -> Result<(), DmuError> {
        if let Form::Micro(micro) = &mut self.form {
            let result = match value.as_word() {
                Some(word) => micro.insert(name, word),
                None => Err(ZapEditError::Full),
            };
            match result {
                Ok(()) => return Ok(()),
                Err(ZapEditError::Full | ZapEditError::NameTooLong) => self.fatten().await?,
                Err(error) => return Err(self.fail(error)),
            }
        }
        self.insert_fat(ZapKey::Name(name), None, value).await
    }

    /// Adds an entry with one 64-bit integer.
    ///
    /// # Errors
    /// As [`ZapMut::insert`].
    pub async fn insert_u64(&mut self, name: &str, value: u64) -> Result<(), DmuError> {
        self.insert(name.as_bytes(), &ZapValue::from_u64(value)).await
    }

    /// Adds an entry, or replaces its value.
    pub async fn set(&mut self, name: &[u8], value: &ZapValue) -> Result<(), DmuError> {
        if self.lookup(name).await?.is_none() {
            return self.insert(name, value).await;
        }
        if let (Form::Micro(micro), Some(word)) = (&mut self.form, value.as_word()) {
            return micro.update(name, word).map_err(|error| self.object.error(error));
        }
        // The longer way also when it is fat: the leaf may have to be split for a longer value.
        self.remove(name).await?;
        self.insert(name, value).await
    }

    /// The value of a key of words.
    pub async fn lookup_words(&mut self, words: &[u64]) -> Result<Option<ZapValue>, DmuError> {
        match &mut self.form {
            Form::Micro(_) => Ok(None),
            Form::Fat(fat) => fat.lookup(&self.object, ZapKey::Words(words)).await,
        }
    }

    /// Adds an entry whose key is words, or replaces its value.
    ///
    /// # Errors
    /// The ZAP's keys are names.
    pub async fn set_words(&mut self, words: &[u64], value: &ZapValue) -> Result<(), DmuError> {
        let key = ZapKey::Words(words);
        match &mut self.form {
            Form::Fat(fat) if fat.header.flags.contains(ZapFlags::UINT64_KEY) => {
                if fat.lookup(&self.object, key).await?.is_some() {
                    fat.remove(&self.object, key).await?;
                }
            }
            _ => return Err(self.fail(DmuErrorKind::Corrupt("a table whose keys are names".into()))),
        }
        self.insert_fat(key, None, value).await
    }

    /// Takes an entry out whose key is words.
    ///
    /// # Errors
    /// It is not there.
    pub async fn remove_words(&mut self, words: &[u64]) -> Result<ZapValue, DmuError> {
        match &mut self.form {
            Form::Micro(_) => Err(self.fail(ZapEditError::NotFound)),
            Form::Fat(fat) => fat.remove(&self.object, ZapKey::Words(words)).await,
        }
    }

    /// How many entries there are.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        match &self.form {
            Form::Micro(micro) => micro.names.len() as u64,
            Form::Fat(fat) => fat.header.entry_count,
        }
    }

    /// How many blocks are held in memory.
    #[must_use]
    pub fn held_blocks(&self) -> usize {
        match &self.form {
            Form::Micro(_) => 1,
            Form::Fat(fat) => fat.blocks.len(),
        }
    }

    /// The object.
    #[must_use]
    pub const fn object(&self) -> &Object {
        &self.object
    }

    /// The value of a name.
    pub async fn lookup(&mut self, name: &[u8]) -> Result<Option<ZapValue>, DmuError> {
        match &mut self.form {
            Form::Micro(micro) => {
                let Some(slot) = micro.names.get(name) else { return Ok(None) };
                let view = MicroZap::parse(&micro.block, ORDER).map_err(|error| self.object.error(error))?;
                Ok(view.entry(*slot).map(|entry| ZapValue::from_u64(entry.value)))
            }
            Form::Fat(fat) => fat.lookup(&self.object, ZapKey::Name(name)).await,
        }
    }

    /// All entries that have names, in no order that means anything.
    ///
    /// # Errors
    /// There are more than `limit`, or the ZAP contradicts itself.
    pub async fn entries(&mut self, limit: usize) -> Result<Vec<(Vec<u8>, ZapValue)>, DmuError> {
        let mut found = Vec::new();
        match &mut self.form {
            Form::Micro(micro) => {
                let view = MicroZap::parse(&micro.block, ORDER).map_err(|error| self.object.error(error))?;
                found.extend(view.entries().map(|entry| (entry.name.to_vec(), ZapValue::from_u64(entry.value))));
            }
            Form::Fat(fat) => {
                let mut seen = BTreeSet::new();
                for index in 0..fat.header.pointer_count() {
                    let (block, offset) = fat.place(&self.object, index).await?;
                    let leaf = fat.header.leaf_block(&fat.blocks[&block], offset, ORDER);
                    let leaf = leaf.map_err(|error| self.object.error(error))?;
                    if !seen.insert(leaf) {
                        continue;
                    }
                    fat.read(&self.object, leaf).await?;
                    let fail = |error| self.object.error(DmuErrorKind::Format(error));
                    let view = Leaf::parse(&fat.blocks[&leaf], ORDER).map_err(fail)?;
                    for entry in view.entries() {
                        let entry = entry.map_err(fail)?;
                        found.push((entry.name().map_err(fail)?, entry.value().map_err(fail)?));
                        if found.len() > limit {
                            let what = format!("a ZAP of more than {limit} entries");
                            return Err(self.object.error(DmuErrorKind::Corrupt(what)));
                        }
                    }
                }
            }
        }
        Ok(found)
    }

    /// Takes an entry out; its value comes back.
    ///
    /// # Errors
    /// It is not there.
    pub async fn remove(&mut self, name: &[u8]) -> Result<ZapValue, DmuError> {
        match &mut self.form {
            Form::Micro(micro) => micro.remove(name).map_err(|error| self.object.error(error)),
            Form::Fat(fat) => fat.remove(&self.object, ZapKey::Name(name)).await,
        }
    }

    /// Writes what has changed into the object.
    pub async fn flush(&mut self, txg: Txg) -> Result<(), DmuError> {
        match &mut self.form {
            Form::Micro(micro) => {
                if micro.is_dirty {
                    self.object.set_block_bytes(txg, micro.block.len() as u32).await?;
                    self.object.write_block(txg, 0, Block::from(micro.block.clone()));
                    micro.is_dirty = false;
                }
            }
            Form::Fat(fat) => {
                self.object.set_block_bytes(txg, 1 << fat.header.block_shift).await?;
                let count = if mutant::is(Mutant::ZapHalf) { 1 } else { usize::MAX };
                for block in std::mem::take(&mut fat.dirty).into_iter().take(count) {
                    if let Some(bytes) = fat.blocks.get(&block) {
                        self.object.write_block(txg, block, Buf::copied_from(bytes).freeze());
                    }
                }
                if fat.blocks.len() > KEPT_MAX {
                    fat.blocks.retain(|block, _| *block == 0);
                }
            }
        }
        Ok(())
    }

    /// Makes a micro ZAP a fat one. It keeps its salt, and so the order of its entries.
    async fn fatten(&mut self) -> Result<(), DmuError> {
        let Form::Micro(micro) = &self.form else { return Ok(()) };
        let view = MicroZap::parse(&micro.block, ORDER).map_err(|error| self.fail(error))?;
        let header = FatHeader::new(DEFAULT_BLOCK_SHIFT, view.salt(), view.norm_flags(), ZapFlags::empty());
        let sorted = !view.norm_flags().is_empty();
        let entries: Vec<(Vec<u8>, u64, u32)> =
            view.sorted().into_iter().map(|(_, entry)| (entry.name.to_vec(), entry.value, entry.cd)).collect();
        let mut leaf = vec![0; header.block_size_bytes()];
        LeafEdit::create(&mut leaf, ORDER, 0, 0, sorted).map_err(|error| self.fail(error))?;
        let blocks = BTreeMap::from([(0, header.emit_new(ORDER)), (1, leaf)]);
        self.form = Form::Fat(Fat { header, blocks, dirty: BTreeSet::from([0, 1]) });
        for (name, value, cd) in entries {
            self.insert_fat(ZapKey::Name(&name), Some(cd), &ZapValue::from_u64(value)).await?;
        }
        Ok(())
    }

    async fn insert_fat(&mut self, key: ZapKey<'_>, cd: Option<u32>, value: &ZapValue) -> Result<(), DmuError> {
        let Form::Fat(fat) = &mut self.form else { return Ok(()) };
        let hash = fat.header.hasher().key(key);
        loop {
            let leaf = fat.leaf_of(&self.object, hash).await?;
            let block = fat.blocks.get_mut(&leaf).expect("the leaf was read");
            let mut edit = LeafEdit::open(block, ORDER).map_err(|error| self.object.error(error))?;
            match edit.insert(hash, key, cd, value) {
                Ok(_) => {
                    fat.dirty.insert(leaf);
                    fat.header.entry_count = fat.header.entry_count.saturating_add(1);
                    fat.put_header();
                    return Ok(());
                }
                Err(ZapEditError::Full) => {
                    let prefix_len = u64::from(edit.header().prefix_len);
                    if fat.header.table.next_block != 0 {
                        fat.finish_growth(&self.object).await?;
                        continue;
                    }
                    if prefix_len >= fat.header.table.shift {
                        fat.double_table(&self.object).await?;
                    }
                    fat.split(&self.object, leaf).await?;
                }
                Err(error) => return Err(self.object.error(error)),
            }
        }
    }
}

impl Fat {
    async fn read(&mut self, object: &Object, block: u64) -> Result<(), DmuError> {
        if self.blocks.contains_key(&block) {
            return Ok(());
        }
        let bytes = object.block(block).await?;
        let bytes = bytes.ok_or_else(|| object.error(DmuErrorKind::Corrupt(format!("ZAP block {block} is a hole"))))?;
        self.blocks.insert(block, bytes.to_vec());
        Ok(())
    }

    async fn lookup(&mut self, object: &Object, key: ZapKey<'_>) -> Result<Option<ZapValue>, DmuError> {
        let hash = self.header.hasher().key(key);
        let leaf = self.leaf_of(object, hash).await?;
        let fail = |error| object.error(DmuErrorKind::Format(error));
        let view = Leaf::parse(&self.blocks[&leaf], ORDER).map_err(fail)?;
        let entry = view.lookup(hash, key).map_err(fail)?;
        entry.map(|entry| entry.value().map_err(fail)).transpose()
    }

    async fn remove(&mut self, object: &Object, key: ZapKey<'_>) -> Result<ZapValue, DmuError> {
        let hash = self.header.hasher().key(key);
        let leaf = self.leaf_of(object, hash).await?;
        let block = self.change(leaf);
        let mut edit = LeafEdit::open(block, ORDER).map_err(|error| object.error(error))?;
        let removed = edit.remove(hash, key).map_err(|error| object.error(error))?;
        self.header.entry_count = self.header.entry_count.saturating_sub(1);
        self.put_header();
        Ok(removed)
    }

    fn change(&mut self, block: u64) -> &mut [u8] {
        self.dirty.insert(block);
        self.blocks.entry(block).or_insert_with(|| vec![0; 1 << self.header.block_shift])
    }

    fn put_header(&mut self) {
        self.dirty.insert(0);
        let header = &self.header;
        if let Some(block) = self.blocks.get_mut(&0) {
            header.emit_into(block, ORDER);
        }
    }

    /// The block with the pointer of this index, read, and the offset in it.
    async fn place(&mut self, object: &Object, index: u64) -> Result<(u64, usize), DmuError> {
        let (block, offset) = match self.header.index_place(index) {
            PointerPlace::Embedded { offset } => (0, offset),
            PointerPlace::External { block, offset } => (block, offset),
        };
        self.read(object, block).await?;
        Ok((block, offset))
    }

    /// The leaf of a hash, read.
    async fn leaf_of(&mut self, object: &Object, hash: u64) -> Result<u64, DmuError> {
        let index = hash_index(hash, self.header.table.shift as u32);
        let (block, offset) = self.place(object, index).await?;
        let leaf = self.header.leaf_block(&self.blocks[&block], offset, ORDER);
        let leaf = leaf.map_err(|error| object.error(error))?;
        self.read(object, leaf).await?;
        Ok(leaf)
    }

    /// Makes the larger copy of the table whole, where OpenZFS has begun one: its copied half would miss what changes now.
    async fn finish_growth(&mut self, object: &Object) -> Result<(), DmuError> {
        if self.header.table.next_block == 0 {
            return Ok(());
        }
        let (first, count) = (self.header.table.next_block, self.header.table.block_count);
        if first.checked_add(count * 2).is_none_or(|end| end > self.header.free_block) {
            return Err(object.error(DmuErrorKind::Corrupt("a ZAP's table grows where there is nothing".into())));
        }
        let table = self.table_bytes(object).await?;
        self.put_doubled(first, &table);
        Ok(())
    }

    /// The bytes of a table that does not stand in block 0.
    async fn table_bytes(&mut self, object: &Object) -> Result<Vec<u8>, DmuError> {
        let old = self.header.table;
        if old.shift >= TABLE_SHIFT_MAX {
            let what = format!("a directory or table of more than 2^{TABLE_SHIFT_MAX} leaves");
            return Err(object.error(DmuErrorKind::Unsupported(what)));
        }
        let mut table = Vec::new();
        for block in old.block..old.block + old.block_count {
            self.read(object, block).await?;
            table.extend_from_slice(&self.blocks[&block]);
        }
        Ok(table)
    }

    /// Puts a table into blocks from `first` on, each pointer twice, and makes it the one to read.
    fn put_doubled(&mut self, first: u64, table: &[u8]) {
        let size = self.header.block_size_bytes();
        let mut doubled = vec![0; table.len() * 2];
        double_pointers(table, &mut doubled);
        let count = (doubled.len() / size) as u64;
        for (block, bytes) in (first..).zip(doubled.chunks_exact(size)) {
            self.change(block).copy_from_slice(bytes);
        }
        let table = &mut self.header.table;
        (table.block, table.block_count, table.shift) = (first, count, table.shift + 1);
        (table.next_block, table.blocks_copied) = (0, 0);
        self.put_header();
    }

    /// Splits a leaf on its next bit, which the table tells apart.
    async fn split(&mut self, object: &Object, leaf: u64) -> Result<(), DmuError> {
        let sibling = self.header.free_block;
        self.header.free_block += 1;
        self.header.leaf_count = self.header.leaf_count.saturating_add(1);
        let mut sibling_block = vec![0; self.header.block_size_bytes()];
        let block = self.blocks.get_mut(&leaf).expect("the leaf was read");
        let mut edit = LeafEdit::open(block, ORDER).map_err(|error| object.error(error))?;
        let (prefix, prefix_len) = {
            let made = edit.split(&mut sibling_block).map_err(|error| object.error(error))?;
            (made.header().prefix, u64::from(made.header().prefix_len))
        };
        self.dirty.extend([leaf, sibling]);
        self.blocks.insert(sibling, sibling_block);
        let shift = self.header.table.shift.checked_sub(prefix_len);
        let shift = shift.ok_or_else(|| object.error(DmuErrorKind::Corrupt("a ZAP's leaf below its table".into())))?;
        for index in prefix << shift..(prefix + 1) << shift {
            let (block, offset) = self.place(object, index).await?;
            self.change(block)[offset..offset + 8].copy_from_slice(&ORDER.bytes64(sibling));
        }
        self.put_header();
        Ok(())
    }

    /// Doubles the table, at once: it moves out of block 0, or to twice as many blocks.
    async fn double_table(&mut self, object: &Object) -> Result<(), DmuError> {
        let size = self.header.block_size_bytes();
        if self.header.table.shift >= u64::from(self.header.hasher().bits()) {
            return Err(object.error(ZapEditError::TooBig));
        }
        let first = self.header.free_block;
        let table = if self.header.is_embedded() {
            let table = self.blocks[&0][size / 2..].to_vec();
            self.change(0)[size / 2..].fill(0);
            table
        } else {
            self.table_bytes(object).await?
        };
        // The old blocks stay as they are: the object keeps them, as it keeps leaves that were emptied.
        self.header.free_block += (table.len() * 2 / size) as u64;
        self.put_doubled(first, &table);
        Ok(())
    }
}

/// Makes a new object that is a ZAP with these entries, in the order of their names' hashes.
pub async fn create_zap(
    objset: &super::ObjsetMut,
    txg: Txg,
    kind: cenote_format::dmu_type::DmuType,
    entries: &[(&str, ZapValue)],
) -> Result<Object, DmuError> {
    let object = objset.create_object(txg, &super::ObjectSpec::new(kind, 512))?;
    let mut zap = ZapMut::create(object.clone())?;
    for (name, value) in entries {
        zap.insert(name.as_bytes(), value).await?;
    }
    zap.flush(txg).await?;
    Ok(object)
}

/// Changes one entry of a ZAP: sets it, or takes it out if it is there.
pub async fn put_entry(object: &Object, txg: Txg, name: &str, value: Option<&ZapValue>) -> Result<(), DmuError> {
    let mut zap = ZapMut::open(object.clone()).await?;
    match value {
        Some(value) => {
            if zap.lookup(name.as_bytes()).await?.as_ref() == Some(value) {
                return Ok(());
            }
            zap.set(name.as_bytes(), value).await?;
        }
        None => match zap.remove(name.as_bytes()).await {
            Ok(_) => {}
            Err(DmuError { kind: DmuErrorKind::ZapEdit(ZapEditError::NotFound), .. }) => return Ok(()),
            Err(error) => return Err(error),
        },
    }
    zap.flush(txg).await
}
