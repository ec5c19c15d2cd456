//! ZAP objects: maps from names (or word keys) to arrays of integers, hashed over an object's blocks.
//!
//! The blocks' form is in `cenote_format::zap`. This module walks them: block 0 says whether the object is one micro
//! block or a fat ZAP; a fat one is looked up as hash -> pointer table -> leaf block -> chain of chunks, and listed leaf
//! by leaf.
//!
//! A listing visits each leaf once, in the order of hash prefixes, whatever number of table slots point to it: a leaf says
//! by its prefix which slots are its own, and the listing goes on behind them. A leaf that is met again there contradicts
//! itself. A hostile table can have as many slots as there are hashes, so leaves without entries are counted too.

use cenote_format::ids::BlockId;
use cenote_format::zap::{
    FatHeader, Leaf, MicroZap, NormFlags, PointerPlace, ZapFlags, ZapKey, ZapKeyBuf, ZapShape, ZapValue,
};
use cenote_format::{Endian, FormatError};
use cenote_taskq::buf::Block;

use crate::dnode::Dnode;
use crate::{DmuError, DmuErrorKind};

/// Leaves without an entry that a listing passes over in a row, before the ZAP is called corrupt. A directory that had two
/// hundred million files and lost them all has about as many.
const EMPTY_LEAVES_MAX: u64 = 1 << 22;

/// An opened ZAP object.
#[derive(Clone)]
pub struct Zap {
    dnode: Dnode,
    first: Block,
    order: Endian,
    form: Form,
}

#[derive(Clone)]
enum Form {
    Micro,
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

impl Zap {
    /// Opens the ZAP in `dnode`.
    pub async fn open(dnode: Dnode) -> Result<Self, DmuError> {
        let Some((first, order)) = dnode.block(BlockId(0)).await? else {
            return Err(dnode.error(DmuErrorKind::Corrupt("a ZAP object without its first block".into())));
        };
        let form = match ZapShape::of(&first, order).map_err(|error| dnode.error(error))? {
            ZapShape::Micro => Form::Micro,
            ZapShape::Fat => {
                let header = FatHeader::parse(&first, order).map_err(|error| dnode.error(error))?;
                if header.block_size_bytes() as u64 != dnode.data_block_size_bytes() {
                    return Err(
                        dnode.error(DmuErrorKind::Corrupt("a ZAP of another block size than its object".into()))
                    );
                }
                Form::Fat(header)
            }
        };
        Ok(Self { dnode, first, order, form })
    }

    /// The object.
    #[must_use]
    pub fn dnode(&self) -> &Dnode {
        &self.dnode
    }

    /// Whether it is one micro block.
    #[must_use]
    pub fn is_micro(&self) -> bool {
        matches!(self.form, Form::Micro)
    }

    /// The fat header, unless it is a micro ZAP.
    #[must_use]
    pub fn header(&self) -> Option<&FatHeader> {
        match &self.form {
            Form::Micro => None,
            Form::Fat(header) => Some(header),
        }
    }

    /// How names are normalised before hashing.
    pub fn norm_flags(&self) -> Result<NormFlags, DmuError> {
        Ok(match &self.form {
            Form::Micro => self.micro()?.norm_flags(),
            Form::Fat(header) => header.norm_flags,
        })
    }

    fn micro(&self) -> Result<MicroZap<'_>, DmuError> {
        MicroZap::parse(&self.first, self.order).map_err(|error| self.dnode.error(error))
    }

    /// The value of exactly `name`.
    pub async fn lookup(&self, name: &[u8]) -> Result<Option<ZapValue>, DmuError> {
        match &self.form {
            Form::Micro => Ok(self.micro()?.lookup(name).map(|entry| ZapValue::from_u64(entry.value))),
            Form::Fat(header) if !header.norm_flags.is_empty() => {
                // The hash is of the normalised name; the names of such a directory are compared one by one.
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

    /// The value of a word key (ZAPs with such keys only).
    pub async fn lookup_words(&self, words: &[u64]) -> Result<Option<ZapValue>, DmuError> {
        match &self.form {
            Form::Fat(header) if header.flags.contains(ZapFlags::UINT64_KEY) => {
                self.lookup_fat(header, ZapKey::Words(words)).await
            }
            _ => Err(self.dnode.error(DmuErrorKind::WrongType("a ZAP with names, not words, as keys".into()))),
        }
    }

    async fn lookup_fat(&self, header: &FatHeader, key: ZapKey<'_>) -> Result<Option<ZapValue>, DmuError> {
        if key.check().is_err() {
            return Ok(None);
        }
        let hash = header.hasher().key(key);
        let leaf_id = self.leaf_of(header, header.pointer_place(hash)).await?;
        let (block, order) = self.leaf_block(leaf_id).await?;
        let fail = |error: FormatError| self.dnode.error(error);
        let leaf = Leaf::parse(&block, order).map_err(fail)?;
        match leaf.lookup(hash, key).map_err(fail)? {
            Some(entry) => Ok(Some(entry.value().map_err(fail)?)),
            None => Ok(None),
        }
    }

    async fn leaf_of(&self, header: &FatHeader, place: PointerPlace) -> Result<u64, DmuError> {
        let result = match place {
            PointerPlace::Embedded { offset } => header.leaf_block(&self.first, offset, self.order),
            PointerPlace::External { block, offset } => {
                let (bytes, order) = self.leaf_block(block).await?;
                header.leaf_block(&bytes, offset, order)
            }
        };
        result.map_err(|error| self.dnode.error(error))
    }

    async fn leaf_block(&self, block: u64) -> Result<(Block, Endian), DmuError> {
        let Some(found) = self.dnode.block(BlockId(block)).await? else {
            return Err(self.dnode.error(DmuErrorKind::Corrupt(format!("ZAP block {block} is a hole"))));
        };
        Ok(found)
    }

    /// The value of `name`, which must be one 64-bit integer; absence is an error that names it.
    pub async fn lookup_u64(&self, name: &str) -> Result<u64, DmuError> {
        let value = self.lookup(name.as_bytes()).await?;
        let value = value.ok_or_else(|| self.dnode.error(DmuErrorKind::NoSuchEntry(name.into())))?;
        value.as_u64().ok_or_else(|| {
            self.dnode.error(DmuErrorKind::WrongType(format!("entry {name:?} is not one 64-bit integer")))
        })
    }

    /// Like [`Zap::lookup_u64`], `None` for absence.
    pub async fn find_u64(&self, name: &str) -> Result<Option<u64>, DmuError> {
        match self.lookup_u64(name).await {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A listing of all entries, ordered by (hash, differentiator).
    #[must_use]
    pub fn listing(&self) -> ZapListing {
        ZapListing {
            zap: self.clone(),
            next_index: 0,
            last_leaf: None,
            at: (0, None),
            bad_leaf: None,
            leaves_seen: 0,
            empty_in_a_row: 0,
            done: false,
        }
    }

    /// All entries at once, for ZAPs that are small by nature. `limit` bounds them.
    pub async fn entries(&self, limit: usize) -> Result<Vec<ZapEntry>, DmuError> {
        let mut all = Vec::new();
        let mut listing = self.listing();
        while let Some(mut batch) = listing.next().await? {
            if all.len() + batch.len() > limit {
                return Err(self.dnode.error(DmuErrorKind::Corrupt(format!("more than {limit} entries"))));
            }
            all.append(&mut batch);
        }
        Ok(all)
    }
}

/// A listing in progress: hand out a leaf's entries at a time.
pub struct ZapListing {
    zap: Zap,
    next_index: u64,
    last_leaf: Option<u64>,
    /// The slot and leaf at hand, which a failure is about.
    at: (u64, Option<u64>),
    /// The leaf that was given up, whose other slots are passed over.
    bad_leaf: Option<u64>,
    leaves_seen: u64,
    empty_in_a_row: u64,
    done: bool,
}

impl ZapListing {
    /// After a failure: goes on behind the leaf (or the slot of the pointer table) that could not be read. `false` where
    /// nothing is left.
    pub fn skip(&mut self) -> bool {
        let Form::Fat(header) = &self.zap.form else { return false };
        // What fails behind a leaf's first look has moved on already.
        self.next_index = self.next_index.max(self.at.0.saturating_add(1));
        self.bad_leaf = self.at.1.take();
        self.next_index < header.pointer_count()
    }

    /// Goes on at the leaf that holds `hash`: what comes before it in that leaf is listed again.
    pub fn seek(&mut self, hash: u64) {
        if let Form::Fat(header) = &self.zap.form {
            self.next_index = cenote_format::zap::hash_index(hash, header.table.shift as u32);
            self.last_leaf = None;
        }
    }

    /// The entries of the next leaf that has any (sorted); `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<ZapEntry>>, DmuError> {
        let zap = self.zap.clone();
        if self.done {
            return Ok(None);
        }
        let Form::Fat(header) = &zap.form else {
            self.done = true;
            let entries = zap.micro()?.sorted();
            return Ok(Some(
                entries
                    .into_iter()
                    .map(|(hash, entry)| ZapEntry {
                        key: ZapKeyBuf::Name(entry.name.to_vec()),
                        value: ZapValue::from_u64(entry.value),
                        hash,
                        cd: entry.cd,
                    })
                    .collect(),
            ));
        };
        while self.next_index < header.pointer_count() {
            self.at = (self.next_index, None);
            let leaf_id = zap.leaf_of(header, header.index_place(self.next_index)).await?;
            self.at.1 = Some(leaf_id);
            if self.bad_leaf == Some(leaf_id) {
                self.next_index += 1;
                continue;
            }
            if self.last_leaf == Some(leaf_id) {
                let what = format!("leaf {leaf_id} stands at pointers that its prefix says are another's");
                return Err(zap.dnode.error(DmuErrorKind::Corrupt(what)));
            }
            let (block, order) = zap.leaf_block(leaf_id).await?;
            let fail = |error: FormatError| zap.dnode.error(error);
            let leaf = Leaf::parse(&block, order).map_err(fail)?;
            // The leaf owns every slot with its prefix: go to the first that it does not.
            let prefix_len = u64::from(leaf.header().prefix_len).min(header.table.shift);
            let slots = 1_u64 << (header.table.shift - prefix_len);
            self.next_index = (self.next_index / slots + 1) * slots;
            self.last_leaf = Some(leaf_id);
            self.leaves_seen += 1;
            if self.leaves_seen > zap.dnode.last_block().0 {
                return Err(zap.dnode.error(DmuErrorKind::Corrupt("more leaves than blocks".into())));
            }
            let uint64_key = header.flags.contains(ZapFlags::UINT64_KEY);
            let mut entries = Vec::new();
            for entry in leaf.sorted().map_err(fail)? {
                entries.push(ZapEntry {
                    key: entry.key(uint64_key).map_err(fail)?,
                    value: entry.value().map_err(fail)?,
                    hash: entry.hash,
                    cd: entry.cd,
                });
            }
            if !entries.is_empty() {
                self.empty_in_a_row = 0;
                return Ok(Some(entries));
            }
            self.empty_in_a_row += 1;
            if self.empty_in_a_row > EMPTY_LEAVES_MAX {
                let what = format!("more than {EMPTY_LEAVES_MAX} leaves in a row without an entry");
                return Err(zap.dnode.error(DmuErrorKind::Corrupt(what)));
            }
        }
        self.done = true;
        Ok(None)
    }
}
