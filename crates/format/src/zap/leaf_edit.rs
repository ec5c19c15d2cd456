//! A fat ZAP's leaf block, for writing: create, insert, update, remove, split.
//!
//! The bytes change in place; no function here leaves a leaf half-changed when it returns `Full`, `Exists`, `NotFound`
//! or `TooBig`, since room is counted before anything is touched. A `Format` error means the leaf was damaged before.

use super::leaf::{
    ARRAY_BYTES, CHAIN_END, CHUNK_OFFSET_NEXT, CHUNK_SIZE_BYTES, ENTRY_OFFSET_NEXT, OFFSET_HASH_TABLE, TYPE_ARRAY,
    TYPE_ENTRY, TYPE_FREE, array_chunks,
};
use super::{Leaf, LeafFlags, LeafGeometry, LeafHeader, ZapKey, ZapValue};
use crate::endian::{Endian, put_u16, put_u32, put_u64};
use crate::error::FormatError;
use thiserror::Error;

/// Why a ZAP block was not changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ZapEditError {
    /// No room: a leaf is to be split, a micro ZAP to be made fat.
    #[error("no room in this block")]
    Full,
    /// The entry would not fit even an empty leaf.
    #[error("entry too big for a leaf")]
    TooBig,
    /// The name does not fit a micro ZAP.
    #[error("name too long for a micro zap")]
    NameTooLong,
    /// The key is there already.
    #[error("key exists")]
    Exists,
    /// The key is not there.
    #[error("no such key")]
    NotFound,
    /// The block, key or value is not valid.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// A leaf block being written.
#[derive(Debug)]
pub struct LeafEdit<'a> {
    block: &'a mut [u8],
    endian: Endian,
    geometry: LeafGeometry,
    header: LeafHeader,
}

/// The place of a chain pointer: where to write to relink.
#[derive(Clone, Copy)]
struct Link(usize);

impl<'a> LeafEdit<'a> {
    /// Makes `block` an empty leaf. `cd_sorted` is set for ZAPs that normalise names.
    pub fn create(
        block: &'a mut [u8],
        endian: Endian,
        prefix: u64,
        prefix_len: u16,
        cd_sorted: bool,
    ) -> Result<Self, FormatError> {
        let geometry = LeafGeometry::of(block.len())?;
        let chunk_count = geometry.chunk_count() as u16;
        block.fill(0);
        let header = LeafHeader {
            prefix,
            prefix_len,
            free_count: chunk_count,
            entry_count: 0,
            free_list: 0,
            flags: if cd_sorted { LeafFlags::CD_SORTED } else { LeafFlags::empty() },
        };
        header.emit_into(block, endian);
        block[OFFSET_HASH_TABLE..geometry.chunks_offset()].fill(0xff);
        for chunk in 0..chunk_count {
            let offset = geometry.chunk_offset(chunk);
            block[offset] = TYPE_FREE;
            let next = if chunk + 1 == chunk_count { CHAIN_END } else { chunk + 1 };
            put_u16(block, offset + CHUNK_OFFSET_NEXT, next, endian);
        }
        Leaf::parse(block, endian)?;
        Ok(Self { block, endian, geometry, header })
    }

    /// Opens an existing leaf, after checking all of it: a damaged leaf is not written to.
    pub fn open(block: &'a mut [u8], endian: Endian) -> Result<Self, FormatError> {
        let leaf = Leaf::parse(block, endian)?;
        leaf.check()?;
        let (geometry, header) = (leaf.geometry(), *leaf.header());
        Ok(Self { block, endian, geometry, header })
    }

    /// The header as it is now.
    #[must_use]
    pub fn header(&self) -> &LeafHeader {
        &self.header
    }

    /// The reader's view of what is there now.
    pub(crate) fn view(&self) -> Result<Leaf<'_>, FormatError> {
        Leaf::parse(self.block, self.endian)
    }

    /// Adds an entry and returns its collision differentiator: `cd` if given, else the lowest that no entry of the same
    /// hash has.
    pub fn insert(
        &mut self,
        hash: u64,
        key: ZapKey<'_>,
        cd: Option<u32>,
        value: &ZapValue,
    ) -> Result<u32, ZapEditError> {
        key.check()?;
        let name = key.stored_bytes();
        let need = 1 + array_chunks(name.len()) + array_chunks(value.stored_bytes().len());
        if need > self.geometry.chunk_count() {
            return Err(ZapEditError::TooBig);
        }
        let view = self.view()?;
        if !view.owns(hash) {
            let rule = "begins with the leaf's prefix";
            return Err(FormatError::invalid("zap leaf", 0, "hash", hash, rule).into());
        }
        if view.lookup(hash, key)?.is_some() {
            return Err(ZapEditError::Exists);
        }
        let cd = match cd {
            Some(cd) => cd,
            None => lowest_free_cd(&view, hash)?,
        };
        if usize::from(self.header.free_count) < need {
            return Err(ZapEditError::Full);
        }
        let link = self.link_for(hash, cd)?;
        let chunk = self.allocate()?;
        let name_chunk = self.write_array(&name)?;
        let value_chunk = self.write_array(value.stored_bytes())?;
        let endian = self.endian;
        let next = self.follow(link);
        let entry = self.chunk_mut(chunk);
        entry[0] = TYPE_ENTRY;
        entry[1] = value.integer_size();
        put_u16(entry, ENTRY_OFFSET_NEXT, next, endian);
        put_u16(entry, 4, name_chunk, endian);
        // Both counts fit: key and value are bounded by kilobytes.
        put_u16(entry, 6, key.integer_count() as u16, endian);
        put_u16(entry, 8, value_chunk, endian);
        put_u16(entry, 10, value.count() as u16, endian);
        put_u32(entry, 12, cd, endian);
        put_u64(entry, 16, hash, endian);
        self.relink(link, chunk);
        self.header.entry_count += 1;
        self.write_header();
        Ok(cd)
    }

    /// Replaces the value of an entry.
    pub(crate) fn update(&mut self, hash: u64, key: ZapKey<'_>, value: &ZapValue) -> Result<(), ZapEditError> {
        let view = self.view()?;
        let entry = view.lookup(hash, key)?.ok_or(ZapEditError::NotFound)?;
        let (chunk, old_chunk) = (entry.chunk, entry.value_chunk);
        let room = usize::from(self.header.free_count) + array_chunks(entry.value_size_bytes());
        if room < array_chunks(value.stored_bytes().len()) {
            return Err(ZapEditError::Full);
        }
        self.free_array(old_chunk)?;
        let value_chunk = self.write_array(value.stored_bytes())?;
        let endian = self.endian;
        let entry = self.chunk_mut(chunk);
        entry[1] = value.integer_size();
        put_u16(entry, 8, value_chunk, endian);
        put_u16(entry, 10, value.count() as u16, endian);
        self.write_header();
        Ok(())
    }

    /// Removes an entry and returns its value.
    pub fn remove(&mut self, hash: u64, key: ZapKey<'_>) -> Result<ZapValue, ZapEditError> {
        let view = self.view()?;
        let entry = view.lookup(hash, key)?.ok_or(ZapEditError::NotFound)?;
        let value = entry.value()?;
        let (chunk, next, name_chunk, value_chunk) = (entry.chunk, entry.next, entry.name_chunk, entry.value_chunk);
        let link = self.link_to(hash, chunk)?;
        self.relink(link, next);
        // The reverse of the order of allocation, so that the next insertion finds the chunks in a row again.
        self.free_array(value_chunk)?;
        self.free_array(name_chunk)?;
        self.free(chunk);
        self.header.entry_count -= 1;
        self.write_header();
        Ok(value)
    }

    /// Splits this leaf: entries whose hash has the next bit set move to `sibling_block`, which becomes a leaf with this
    /// one's prefix followed by 1, while this one's becomes prefix followed by 0.
    pub fn split<'b>(&mut self, sibling_block: &'b mut [u8]) -> Result<LeafEdit<'b>, ZapEditError> {
        if sibling_block.len() != self.block.len() {
            return Err(FormatError::malformed("zap leaf", 0, "a sibling of another size").into());
        }
        let prefix_len = self.header.prefix_len + 1;
        if u32::from(prefix_len) + self.geometry.hash_shift() > 64 {
            return Err(ZapEditError::TooBig);
        }
        let prefix = self.header.prefix << 1;
        let cd_sorted = self.header.flags.contains(LeafFlags::CD_SORTED);
        // Both halves are built aside, so that damage is found while this leaf is still whole.
        let copies = self.view()?.entries().map(|entry| entry?.copy()).collect::<Result<Vec<_>, _>>()?;
        let mut rest_block = vec![0; self.block.len()];
        let mut rest = LeafEdit::create(&mut rest_block, self.endian, prefix, prefix_len, cd_sorted)?;
        let mut sibling = LeafEdit::create(sibling_block, self.endian, prefix | 1, prefix_len, cd_sorted)?;
        for entry in &copies {
            if rest.owns(entry.hash) {
                rest.insert_copy(entry)?;
            } else {
                sibling.insert_copy(entry)?;
            }
        }
        self.header = rest.header;
        self.block.copy_from_slice(&rest_block);
        Ok(sibling)
    }

    fn owns(&self, hash: u64) -> bool {
        super::hash_index(hash, u32::from(self.header.prefix_len)) == self.header.prefix
    }

    fn insert_copy(&mut self, entry: &EntryCopy) -> Result<(), ZapEditError> {
        let need = 1 + array_chunks(entry.name.len()) + array_chunks(entry.value.len());
        if need > usize::from(self.header.free_count) {
            return Err(FormatError::malformed("zap leaf", 0, "entries that do not fit their own leaf").into());
        }
        let link = self.link_for(entry.hash, entry.cd)?;
        let chunk = self.allocate()?;
        let name_chunk = self.write_array(&entry.name)?;
        let value_chunk = self.write_array(&entry.value)?;
        let endian = self.endian;
        let next = self.follow(link);
        let bytes = self.chunk_mut(chunk);
        bytes[0] = TYPE_ENTRY;
        bytes[1] = entry.value_integer_size;
        put_u16(bytes, ENTRY_OFFSET_NEXT, next, endian);
        put_u16(bytes, 4, name_chunk, endian);
        put_u16(bytes, 6, entry.name_count, endian);
        put_u16(bytes, 8, value_chunk, endian);
        put_u16(bytes, 10, entry.value_count, endian);
        put_u32(bytes, 12, entry.cd, endian);
        put_u64(bytes, 16, entry.hash, endian);
        self.relink(link, chunk);
        self.header.entry_count += 1;
        self.write_header();
        Ok(())
    }

    /// The pointer before which an entry of this hash and differentiator belongs: chains are kept sorted by
    /// differentiator always, though only leaves flagged so promise it.
    fn link_for(&self, hash: u64, cd: u32) -> Result<Link, FormatError> {
        self.find_link(hash, |entry_cd, _| entry_cd > cd)
    }

    /// The pointer that points to `chunk`.
    fn link_to(&self, hash: u64, chunk: u16) -> Result<Link, FormatError> {
        self.find_link(hash, |_, entry_chunk| entry_chunk == chunk)
    }

    fn find_link(&self, hash: u64, stop: impl Fn(u32, u16) -> bool) -> Result<Link, FormatError> {
        let bucket = self.geometry.bucket(hash, u32::from(self.header.prefix_len));
        let mut link = Link(OFFSET_HASH_TABLE + 2 * bucket);
        for entry in self.view()?.chain(hash) {
            let entry = entry?;
            if stop(entry.cd, entry.chunk) {
                break;
            }
            link = Link(self.geometry.chunk_offset(entry.chunk) + ENTRY_OFFSET_NEXT);
        }
        Ok(link)
    }

    fn follow(&self, link: Link) -> u16 {
        self.endian.u16([self.block[link.0], self.block[link.0 + 1]])
    }

    fn relink(&mut self, link: Link, chunk: u16) {
        put_u16(self.block, link.0, chunk, self.endian);
    }

    fn chunk_mut(&mut self, chunk: u16) -> &mut [u8] {
        let offset = self.geometry.chunk_offset(chunk);
        &mut self.block[offset..offset + CHUNK_SIZE_BYTES]
    }

    fn next_of(&self, chunk: u16) -> Result<(u8, u16), FormatError> {
        if usize::from(chunk) >= self.geometry.chunk_count() {
            let rule = "below the number of chunks";
            return Err(FormatError::invalid("zap leaf", 0, "chunk", u64::from(chunk), rule));
        }
        let offset = self.geometry.chunk_offset(chunk);
        Ok((self.block[offset], self.follow(Link(offset + CHUNK_OFFSET_NEXT))))
    }

    fn allocate(&mut self) -> Result<u16, FormatError> {
        let chunk = self.header.free_list;
        let (kind, next) = self.next_of(chunk)?;
        if kind != TYPE_FREE || self.header.free_count == 0 {
            return Err(FormatError::malformed("zap leaf", 0, "the free list holds what is not free"));
        }
        self.header.free_list = next;
        self.header.free_count -= 1;
        Ok(chunk)
    }

    fn free(&mut self, chunk: u16) {
        let endian = self.endian;
        let next = self.header.free_list;
        let bytes = self.chunk_mut(chunk);
        bytes.fill(0);
        bytes[0] = TYPE_FREE;
        put_u16(bytes, CHUNK_OFFSET_NEXT, next, endian);
        self.header.free_list = chunk;
        self.header.free_count += 1;
    }

    fn write_array(&mut self, bytes: &[u8]) -> Result<u16, FormatError> {
        let endian = self.endian;
        let mut head = CHAIN_END;
        let mut last: Option<u16> = None;
        for piece in bytes.chunks(ARRAY_BYTES) {
            let chunk = self.allocate()?;
            let target = self.chunk_mut(chunk);
            target.fill(0);
            target[0] = TYPE_ARRAY;
            target[1..=piece.len()].copy_from_slice(piece);
            put_u16(target, CHUNK_OFFSET_NEXT, CHAIN_END, endian);
            match last {
                None => head = chunk,
                Some(last) => {
                    let offset = self.geometry.chunk_offset(last) + CHUNK_OFFSET_NEXT;
                    self.relink(Link(offset), chunk);
                }
            }
            last = Some(chunk);
        }
        Ok(head)
    }

    fn free_array(&mut self, head: u16) -> Result<(), FormatError> {
        let mut chunks = Vec::new();
        let mut next = head;
        while next != CHAIN_END {
            let (kind, following) = self.next_of(next)?;
            if kind != TYPE_ARRAY || chunks.len() >= self.geometry.chunk_count() {
                return Err(FormatError::malformed("zap leaf", 0, "an array chain that is none"));
            }
            chunks.push(next);
            next = following;
        }
        for chunk in chunks.into_iter().rev() {
            self.free(chunk);
        }
        Ok(())
    }

    fn write_header(&mut self) {
        self.header.emit_into(self.block, self.endian);
    }
}

/// An entry lifted out of its leaf.
struct EntryCopy {
    hash: u64,
    cd: u32,
    name: Vec<u8>,
    name_count: u16,
    value: Vec<u8>,
    value_count: u16,
    value_integer_size: u8,
}

impl super::LeafEntry<'_> {
    fn copy(&self) -> Result<EntryCopy, FormatError> {
        Ok(EntryCopy {
            hash: self.hash,
            cd: self.cd,
            name: self.whole_array(self.name_chunk)?,
            name_count: self.name_count,
            value: self.whole_array(self.value_chunk)?,
            value_count: self.value_count,
            value_integer_size: self.value_integer_size,
        })
    }
}

fn lowest_free_cd(leaf: &Leaf<'_>, hash: u64) -> Result<u32, FormatError> {
    let mut used = Vec::new();
    for entry in leaf.chain(hash) {
        let entry = entry?;
        if entry.hash == hash {
            used.push(entry.cd);
        }
    }
    used.sort_unstable();
    used.dedup();
    let gap = (0_u32..).zip(&used).find(|(want, have)| want != *have);
    Ok(gap.map_or(used.len() as u32, |(want, _)| want))
}

#[cfg(test)]
#[path = "leaf_tests.rs"]
mod tests;
