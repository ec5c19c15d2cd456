//! Looking into and changing a fat ZAP: a table of pointers to leaves, by hash.

use cenote_format::FormatError;
use cenote_format::zap::{FatHeader, Leaf, LeafEdit, PointerPlace, ZapEditError, ZapKey, ZapValue, double_pointers};
use cenote_taskq::buf::{Block, Buf};
use cenote_zio::ORDER;

use super::normal::normalised;
use super::{Form, UNWRITTEN_MAX, Zap};
use crate::{DmuError, DmuErrorKind};

/// A table of pointers is not made larger than this, as a power of two: it is doubled in memory, as a whole.
const TABLE_SHIFT_MAX: u64 = 22;

impl Zap {
    pub(super) async fn lookup_fat(&self, header: &FatHeader, key: ZapKey<'_>) -> Result<Option<ZapValue>, DmuError> {
        if key.check().is_err() {
            return Ok(None);
        }
        let hash = self.hash_of(header, key)?;
        let leaf = self.leaf_at(header, header.pointer_place(hash)).await?;
        let (block, order) = self.block(leaf).await?;
        let fail = |error: FormatError| self.fail(error);
        let leaf = Leaf::parse(&block, order).map_err(fail)?;
        match leaf.lookup(hash, key).map_err(fail)? {
            Some(entry) => Ok(Some(entry.value().map_err(fail)?)),
            None => Ok(None),
        }
    }

    /// The hash of a key. Names are normalised before, where the ZAP says so.
    fn hash_of(&self, header: &FatHeader, key: ZapKey<'_>) -> Result<u64, DmuError> {
        let ZapKey::Name(name) = key else { return Ok(header.hasher().key(key)) };
        let name = normalised(name, header.norm_flags);
        let name = name.ok_or_else(|| {
            self.fail(DmuErrorKind::WrongType(
                "a ZAP that normalises names, and a name with other than ASCII letters".into(),
            ))
        })?;
        Ok(header.hasher().key(ZapKey::Name(&name)))
    }

    /// The number of the leaf that a pointer leads to.
    pub(super) async fn leaf_at(&self, header: &FatHeader, place: PointerPlace) -> Result<u64, DmuError> {
        let result = match place {
            PointerPlace::Embedded { offset } => header.leaf_block(&self.first, offset, self.order),
            PointerPlace::External { block, offset } => {
                let (bytes, order) = self.block(block).await?;
                header.leaf_block(&bytes, offset, order)
            }
        };
        result.map_err(|error| self.fail(error))
    }

    /// The number of blocks, those that are changed and not flushed included.
    pub(super) fn blocks_end(&self) -> u64 {
        let changed = self.changed.last_key_value().map_or(0, |(block, _)| *block);
        self.object.last_block().0.max(changed).saturating_add(1)
    }

    /// The header of a fat ZAP that is changed. Its blocks are in our byte order then: the object sees to that.
    fn fat(&mut self) -> Result<&mut FatHeader, DmuError> {
        match &mut self.form {
            Form::Fat(header) => Ok(header),
            Form::Micro(_) => Err(self.object.error(DmuErrorKind::WrongType("a micro ZAP, not a fat one".into()))),
        }
    }

    /// New blocks come after those that are there: a header that says otherwise would make the object large at once.
    fn check_end(&mut self) -> Result<(), DmuError> {
        let end = self.blocks_end();
        if self.fat()?.free_block > end.saturating_add(UNWRITTEN_MAX) {
            return Err(self.fail(DmuErrorKind::Corrupt("a ZAP that goes on far behind its last block".into())));
        }
        Ok(())
    }

    /// Changes a block that is there.
    async fn edit<T>(&mut self, block: u64, edit: impl FnOnce(&mut [u8]) -> T) -> Result<T, DmuError> {
        let mut buf = match (block, self.changed.remove(&block)) {
            (0, _) => std::mem::take(&mut self.first).into_buf(),
            (_, Some(changed)) => changed.into_buf(),
            (_, None) => self.block(block).await?.0.into_buf(),
        };
        let result = edit(&mut buf);
        self.put(block, buf.freeze());
        Ok(result)
    }

    fn put(&mut self, block: u64, bytes: Block) {
        match block {
            0 => (self.first, self.is_first_changed) = (bytes, true),
            _ => {
                self.changed.insert(block, bytes);
            }
        }
    }

    /// Puts the header into block 0.
    async fn put_header(&mut self) -> Result<(), DmuError> {
        let header = self.fat()?.clone();
        self.edit(0, |bytes| header.emit_into(bytes, ORDER)).await
    }

    pub(super) async fn insert_fat(
        &mut self,
        key: ZapKey<'_>,
        cd: Option<u32>,
        value: &ZapValue,
    ) -> Result<(), DmuError> {
        self.check_end()?;
        let header = self.fat()?.clone();
        let hash = self.hash_of(&header, key)?;
        loop {
            let header = self.fat()?.clone();
            let leaf = self.leaf_at(&header, header.pointer_place(hash)).await?;
            let insert = |bytes: &mut [u8]| -> Result<(Result<(), ZapEditError>, u64), FormatError> {
                let mut edit = LeafEdit::open(bytes, ORDER)?;
                let inserted = edit.insert(hash, key, cd, value).map(|_| ());
                Ok((inserted, u64::from(edit.header().prefix_len)))
            };
            let (inserted, prefix_len) = self.edit(leaf, insert).await?.map_err(|error| self.fail(error))?;
            match inserted {
                Ok(()) => {
                    let header = self.fat()?;
                    header.entry_count = header.entry_count.saturating_add(1);
                    return self.put_header().await;
                }
                Err(ZapEditError::Full) => {
                    // Boxed: most insertions find room.
                    Box::pin(self.make_room(leaf, prefix_len)).await?;
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    pub(super) async fn remove_fat(&mut self, key: ZapKey<'_>) -> Result<ZapValue, DmuError> {
        let header = self.fat()?.clone();
        let hash = self.hash_of(&header, key)?;
        let leaf = self.leaf_at(&header, header.pointer_place(hash)).await?;
        let remove = |bytes: &mut [u8]| LeafEdit::open(bytes, ORDER)?.remove(hash, key);
        let removed = self.edit(leaf, remove).await?.map_err(|error| self.fail(error))?;
        let header = self.fat()?;
        header.entry_count = header.entry_count.saturating_sub(1);
        self.put_header().await?;
        Ok(removed)
    }

    /// Makes room in a full leaf, whose prefix has so many bits: with another leaf, and where the table tells no more leaves
    /// apart with a larger table. Or does what must be done before.
    async fn make_room(&mut self, leaf: u64, prefix_len: u64) -> Result<(), DmuError> {
        let table = self.fat()?.table;
        if table.next_block != 0 {
            return self.finish_growth().await;
        }
        if prefix_len >= table.shift {
            self.double_table().await?;
            assert_eq!(self.fat()?.table.shift, table.shift + 1, "a table that was doubled tells one bit more");
        }
        self.split(leaf).await
    }

    /// Makes the larger copy of the table whole, where OpenZFS has begun one: its copied half would miss what changes now.
    async fn finish_growth(&mut self) -> Result<(), DmuError> {
        let header = self.fat()?.clone();
        if header.table.next_block == 0 {
            return Ok(());
        }
        let (first, count) = (header.table.next_block, header.table.block_count);
        if first.checked_add(count * 2).is_none_or(|end| end > header.free_block) {
            return Err(self.fail(DmuErrorKind::Corrupt("a ZAP's table grows where there is nothing".into())));
        }
        let table = self.table_bytes(&header).await?;
        self.put_doubled(first, &table).await
    }

    /// The bytes of a table that does not stand in block 0.
    async fn table_bytes(&self, header: &FatHeader) -> Result<Vec<u8>, DmuError> {
        let old = header.table;
        if old.shift >= TABLE_SHIFT_MAX {
            let what = format!("a directory or table of more than 2^{TABLE_SHIFT_MAX} leaves");
            return Err(self.fail(DmuErrorKind::Unsupported(what)));
        }
        let mut table = Vec::new();
        for block in old.block..old.block + old.block_count {
            table.extend_from_slice(&self.block(block).await?.0);
        }
        Ok(table)
    }

    /// Puts a table into blocks from `first` on, each pointer twice, and makes it the one to read.
    async fn put_doubled(&mut self, first: u64, table: &[u8]) -> Result<(), DmuError> {
        let size = self.fat()?.block_size_bytes();
        let mut doubled = vec![0; table.len() * 2];
        double_pointers(table, &mut doubled);
        let count = (doubled.len() / size) as u64;
        assert!(first > 0 && first + count <= self.fat()?.free_block, "a table gets blocks that were set aside for it");
        for (block, bytes) in (first..).zip(doubled.chunks_exact(size)) {
            self.put(block, Buf::copied_from(bytes).freeze());
        }
        let table = &mut self.fat()?.table;
        (table.block, table.block_count, table.shift) = (first, count, table.shift + 1);
        (table.next_block, table.blocks_copied) = (0, 0);
        self.put_header().await
    }

    /// Splits a leaf on its next bit, which the table tells apart.
    async fn split(&mut self, leaf: u64) -> Result<(), DmuError> {
        let header = self.fat()?;
        let sibling = header.free_block;
        header.free_block += 1;
        header.leaf_count = header.leaf_count.saturating_add(1);
        assert!(leaf < sibling, "a new leaf is none that is there");
        let mut sibling_block = Buf::zeroed(header.block_size_bytes());
        let split = |bytes: &mut [u8]| -> Result<(u64, u64), ZapEditError> {
            let mut edit = LeafEdit::open(bytes, ORDER)?;
            let made = edit.split(&mut sibling_block)?;
            Ok((made.header().prefix, u64::from(made.header().prefix_len)))
        };
        let (prefix, prefix_len) = self.edit(leaf, split).await?.map_err(|error| self.fail(error))?;
        self.put(sibling, sibling_block.freeze());
        let header = self.fat()?.clone();
        let shift = header.table.shift.checked_sub(prefix_len);
        let shift = shift.ok_or_else(|| self.fail(DmuErrorKind::Corrupt("a ZAP's leaf below its table".into())))?;
        for index in prefix << shift..(prefix + 1) << shift {
            let (block, offset) = match header.index_place(index) {
                PointerPlace::Embedded { offset } => (0, offset),
                PointerPlace::External { block, offset } => (block, offset),
            };
            self.edit(block, |bytes| bytes[offset..offset + 8].copy_from_slice(&ORDER.bytes64(sibling))).await?;
        }
        debug_assert_eq!(
            self.leaf_at(&header, header.pointer_place(prefix << (64 - prefix_len))).await?,
            sibling,
            "the table leads to the leaf that was split off"
        );
        self.put_header().await
    }

    /// Doubles the table, at once: it moves out of block 0, or to twice as many blocks.
    async fn double_table(&mut self) -> Result<(), DmuError> {
        let header = self.fat()?.clone();
        let size = header.block_size_bytes();
        if header.table.shift >= u64::from(header.hasher().bits()) {
            return Err(self.fail(ZapEditError::TooBig));
        }
        let first = header.free_block;
        let table = if header.is_embedded() {
            let table = self.first[size / 2..].to_vec();
            self.edit(0, |bytes| bytes[size / 2..].fill(0)).await?;
            table
        } else {
            self.table_bytes(&header).await?
        };
        // The old blocks stay as they are: the object keeps them, as it keeps leaves that were emptied.
        self.fat()?.free_block += (table.len() * 2 / size) as u64;
        self.put_doubled(first, &table).await
    }
}
