//! Changing a micro ZAP: one block of slots, 64 bytes each.

use cenote_format::zap::{
    DEFAULT_BLOCK_SHIFT, FatHeader, MICRO_ENTRY_SIZE_BYTES, MicroZapEdit, ZapEditError, ZapFlags, ZapHasher, ZapKey,
    ZapValue,
};
use cenote_taskq::buf::Buf;
use cenote_zio::ORDER;

use super::micro_index::{MicroIndex, hash_of};
use super::{Form, Zap};
use crate::{DmuError, DmuErrorKind};

/// A micro ZAP's block is no larger (`MZAP_MAX_BLKSZ`).
const MICRO_MAX_BYTES: usize = 128 << 10;
/// A micro ZAP grows by this much.
const MICRO_STEP_BYTES: usize = 512;

impl Zap {
    /// The index of a micro block, made if there is none.
    fn index(&mut self) -> Result<&mut MicroIndex, DmuError> {
        if let Form::Micro(None) = self.form {
            let index = MicroIndex::of(&self.micro()?);
            self.form = Form::Micro(Some(index));
        }
        match &mut self.form {
            Form::Micro(Some(index)) => Ok(index),
            _ => Err(self.object.error(DmuErrorKind::WrongType("a fat ZAP, not a micro one".into()))),
        }
    }

    /// True if nothing was changed since this was opened, and there is no index. Many open a ZAP for one entry: making the index of a block
    /// takes many times as long as going through it once.
    fn is_first_change(&self) -> bool {
        matches!(self.form, Form::Micro(None)) && !self.has_changed
    }

    /// Changes the block.
    fn edit_first<T>(&mut self, len_bytes: usize, edit: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut buf = match len_bytes == self.first.len() {
            true => std::mem::take(&mut self.first).into_buf(),
            false => {
                let mut longer = Buf::zeroed(len_bytes);
                assert!(len_bytes > self.first.len(), "a micro block only grows");
                longer[..self.first.len()].copy_from_slice(&self.first);
                longer
            }
        };
        let result = edit(&mut buf);
        self.first = buf.freeze();
        (self.is_first_changed, self.has_changed) = (true, true);
        result
    }

    /// Adds an entry. The inner error is one that a fat ZAP may not have.
    pub(super) fn insert_micro(&mut self, name: &[u8], value: u64) -> Result<Result<(), ZapEditError>, DmuError> {
        let len_bytes = self.first.len();
        if self.is_first_change() {
            let view = self.micro()?;
            if view.lookup(name).is_some() {
                return Ok(Err(ZapEditError::Exists));
            }
            let (hasher, flags) = (ZapHasher::new(view.salt(), ZapFlags::empty()), view.norm_flags());
            let hash = |name: &[u8]| hash_of(&hasher, flags, name);
            let insert = |bytes: &mut [u8]| MicroZapEdit::open(bytes, ORDER)?.insert(name, value, hash);
            match self.edit_first(len_bytes, insert) {
                // It grows below.
                Err(ZapEditError::Full) => {}
                done => return Ok(done.map(drop)),
            }
        }
        let index = self.index()?;
        if index.slots.contains_key(name) {
            return Ok(Err(ZapEditError::Exists));
        }
        let mut grown_bytes = len_bytes;
        if index.free.is_empty() {
            if len_bytes + MICRO_STEP_BYTES > MICRO_MAX_BYTES {
                return Ok(Err(ZapEditError::Full));
            }
            grown_bytes += MICRO_STEP_BYTES;
            let slots = |len: usize| len / MICRO_ENTRY_SIZE_BYTES - 1;
            index.free.extend(slots(len_bytes)..slots(grown_bytes));
        }
        let Some(slot) = index.free.first().copied() else { return Ok(Err(ZapEditError::Full)) };
        let hash = index.hash_of(name);
        let cd = match index.cds.get(&hash) {
            Some(used) => (0..).find(|cd| !used.contains(cd)).unwrap_or(u32::MAX),
            None => 0,
        };
        let put = |bytes: &mut [u8]| MicroZapEdit::open(bytes, ORDER)?.put(slot, name, value, cd);
        if let Err(error) = self.edit_first(grown_bytes, put) {
            return Ok(Err(error));
        }
        let index = self.index()?;
        index.cds.entry(hash).or_default().insert(cd);
        index.slots.insert(name.to_vec(), slot);
        index.free.remove(&slot);
        let used = index.slots.len() + index.free.len();
        assert!(used < grown_bytes / MICRO_ENTRY_SIZE_BYTES, "every slot is one name's, or free");
        Ok(Ok(()))
    }

    pub(super) fn update_micro(&mut self, name: &[u8], value: u64) -> Result<(), DmuError> {
        let update = |bytes: &mut [u8]| MicroZapEdit::open(bytes, ORDER)?.update(name, value);
        self.edit_first(self.first.len(), update).map_err(|error| self.fail(error))
    }

    pub(super) fn remove_micro(&mut self, name: &[u8]) -> Result<ZapValue, DmuError> {
        if self.is_first_change() {
            if self.micro()?.lookup(name).is_none() {
                return Err(self.fail(ZapEditError::NotFound));
            }
            let remove = |bytes: &mut [u8]| MicroZapEdit::open(bytes, ORDER)?.remove(name);
            let value = self.edit_first(self.first.len(), remove).map_err(|error| self.fail(error))?;
            return Ok(ZapValue::from_u64(value));
        }
        let Some(slot) = self.index()?.slot_of(name) else { return Err(self.fail(ZapEditError::NotFound)) };
        let cd = self.micro()?.entry(slot).map(|entry| entry.cd);
        let remove = |bytes: &mut [u8]| MicroZapEdit::open(bytes, ORDER)?.remove(name);
        let value = self.edit_first(self.first.len(), remove).map_err(|error| self.fail(error))?;
        let index = self.index()?;
        let hash = index.hash_of(name);
        if let (Some(cd), Some(used)) = (cd, index.cds.get_mut(&hash)) {
            used.remove(&cd);
            if used.is_empty() {
                index.cds.remove(&hash);
            }
        }
        let was = index.slots.remove(name);
        assert_eq!(was, Some(slot), "a name stands in one slot while it is taken out");
        let is_freed = index.free.insert(slot);
        assert!(is_freed, "a slot is freed once");
        Ok(ZapValue::from_u64(value))
    }

    /// Makes a micro ZAP a fat one. It keeps its salt, and so the order of its entries.
    pub(super) async fn fatten(&mut self) -> Result<(), DmuError> {
        let view = self.micro()?;
        let header = FatHeader::new(DEFAULT_BLOCK_SHIFT, view.salt(), view.norm_flags(), ZapFlags::empty());
        let sorted = !view.norm_flags().is_empty();
        let entries: Vec<(Vec<u8>, u64, u32)> =
            view.sorted().into_iter().map(|(_, entry)| (entry.name.to_vec(), entry.value, entry.cd)).collect();
        *self = Self::new_fat(self.object.clone(), header, sorted)?;
        let count = entries.len() as u64;
        for (name, value, cd) in entries {
            self.insert_fat(ZapKey::Name(&name), Some(cd), &ZapValue::from_u64(value)).await?;
        }
        assert_eq!(self.entry_count()?, count, "a ZAP that becomes a fat one keeps its entries");
        Ok(())
    }
}
