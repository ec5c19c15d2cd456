//! Looking into ZAP objects that are being changed: names and listings as of the newest change.
//!
//! Nothing is copied but what is handed out: blocks are immutable, so whoever looks keeps the block that it found while
//! others put new ones in its place. Blocks of one ZAP that belong together must not be replaced between two looks, so
//! whoever flushes a change ([`super::ZapMut::flush`]) keeps those who look away for that moment.

use cenote_format::FormatError;
use cenote_format::zap::{FatHeader, Leaf, MicroZap, PointerPlace, ZapKey, ZapKeyBuf, ZapShape, ZapValue, hash_index};
use cenote_taskq::buf::Block;
use cenote_zio::ORDER;

use super::object::Object;
use crate::zap::ZapEntry;
use crate::{DmuError, DmuErrorKind};

/// Leaves without an entry that a listing passes over in a row, as for reading.
const EMPTY_LEAVES_MAX: u64 = 1 << 22;

/// A ZAP object as it is now.
pub struct ZapLook {
    object: Object,
    first: Block,
    header: Option<FatHeader>,
}

impl ZapLook {
    /// Looks at the ZAP's first block.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub async fn open(object: &Object) -> Result<Self, DmuError> {
        let Some(first) = object.block(0).await? else {
            return Err(object.error(DmuErrorKind::Corrupt("a ZAP object without its first block".into())));
        };
        let header = match ZapShape::of(&first, ORDER).map_err(|error| object.error(error))? {
            ZapShape::Micro => None,
            ZapShape::Fat => {
                let header = FatHeader::parse(&first, ORDER).map_err(|error| object.error(error))?;
                if header.block_size_bytes() as u64 != object.block_bytes() {
                    let what = "a ZAP of another block size than its object";
                    return Err(object.error(DmuErrorKind::Corrupt(what.into())));
                }
                Some(header)
            }
        };
        Ok(Self { object: object.clone(), first, header })
    }

    fn micro(&self) -> Result<MicroZap<'_>, DmuError> {
        MicroZap::parse(&self.first, ORDER).map_err(|error| self.object.error(error))
    }

    /// The number of entries.
    ///
    /// # Errors
    /// The ZAP is damaged.
    pub fn entry_count(&self) -> Result<u64, DmuError> {
        match &self.header {
            Some(header) => Ok(header.entry_count),
            None => Ok(self.micro()?.entries().count() as u64),
        }
    }

    async fn block(&self, block: u64) -> Result<Block, DmuError> {
        let found = self.object.block(block).await?;
        found.ok_or_else(|| self.object.error(DmuErrorKind::Corrupt(format!("ZAP block {block} is a hole"))))
    }

    async fn leaf_at(&self, header: &FatHeader, index: u64) -> Result<Block, DmuError> {
        let leaf = match header.index_place(index) {
            PointerPlace::Embedded { offset } => header.leaf_block(&self.first, offset, ORDER),
            PointerPlace::External { block, offset } => header.leaf_block(&self.block(block).await?, offset, ORDER),
        };
        self.block(leaf.map_err(|error| self.object.error(error))?).await
    }

    /// The value of a name.
    ///
    /// # Errors
    /// The ZAP cannot be read.
    pub async fn lookup(&self, name: &[u8]) -> Result<Option<ZapValue>, DmuError> {
        let Some(header) = &self.header else {
            return Ok(self.micro()?.lookup(name).map(|entry| ZapValue::from_u64(entry.value)));
        };
        if ZapKey::Name(name).check().is_err() {
            return Ok(None);
        }
        let hash = header.hasher().name(name);
        let block = self.leaf_at(header, hash_index(hash, header.table.shift as u32)).await?;
        let fail = |error: FormatError| self.object.error(error);
        let leaf = Leaf::parse(&block, ORDER).map_err(fail)?;
        let entry = leaf.lookup(hash, ZapKey::Name(name)).map_err(fail)?;
        entry.map(|entry| entry.value().map_err(fail)).transpose()
    }

    /// About `count_max` entries behind a place (a hash and a differentiator; nothing for the start), in the order of places.
    /// None at the end. What was there before the first of several such calls and is there still after the last is listed
    /// once, whatever else comes and goes between them.
    ///
    /// # Errors
    /// The ZAP cannot be read, or contradicts itself.
    pub async fn list(&self, after: Option<(u64, u32)>, count_max: usize) -> Result<Vec<ZapEntry>, DmuError> {
        let is_behind = |hash: u64, cd: u32| after.is_none_or(|after| (hash, cd) > after);
        let mut found = Vec::new();
        let Some(header) = &self.header else {
            let sorted = self.micro()?.sorted();
            let rest = sorted.into_iter().filter(|(hash, entry)| is_behind(*hash, entry.cd));
            found.extend(rest.take(count_max).map(|(hash, entry)| ZapEntry {
                key: ZapKeyBuf::Name(entry.name.to_vec()),
                value: ZapValue::from_u64(entry.value),
                hash,
                cd: entry.cd,
            }));
            return Ok(found);
        };
        let shift = header.table.shift;
        let mut index = after.map_or(0, |(hash, _)| hash_index(hash, shift as u32));
        let mut empty_in_a_row = 0;
        while index < header.pointer_count() && found.len() < count_max {
            let block = self.leaf_at(header, index).await?;
            let fail = |error: FormatError| self.object.error(error);
            let leaf = Leaf::parse(&block, ORDER).map_err(fail)?;
            // A leaf owns every slot with its prefix: go to the first that it does not.
            let prefix_len = u64::from(leaf.header().prefix_len).min(shift);
            let slots = 1_u64 << (shift - prefix_len);
            if index / slots != leaf.header().prefix && prefix_len == u64::from(leaf.header().prefix_len) {
                let what = format!("slot {index} leads to a leaf whose prefix says that it is another's");
                return Err(self.object.error(DmuErrorKind::Corrupt(what)));
            }
            index = (index / slots + 1) * slots;
            let before = found.len();
            for entry in leaf.sorted().map_err(fail)? {
                if !is_behind(entry.hash, entry.cd) || found.len() >= count_max {
                    continue;
                }
                let key = ZapKeyBuf::Name(entry.name().map_err(fail)?);
                let value = entry.value().map_err(fail)?;
                found.push(ZapEntry { key, value, hash: entry.hash, cd: entry.cd });
            }
            empty_in_a_row = if found.len() > before { 0 } else { empty_in_a_row + 1 };
            if empty_in_a_row > EMPTY_LEAVES_MAX {
                let what = format!("more than {EMPTY_LEAVES_MAX} leaves in a row without an entry");
                return Err(self.object.error(DmuErrorKind::Corrupt(what)));
            }
        }
        Ok(found)
    }
}
