//! A fat ZAP's leaf block, for reading.
//!
//! ```text
//!  0  block type 0x8000000000000000      28  free chunks (u16)     34  head of the free list (u16)
//!  8  unused                             30  entries (u16)         36  flags (u8)
//! 16  hash prefix (u64)                  32  prefix length (u16)   37  unused to 48
//! 24  magic 0x02AB1EAF (u32)
//!
//! 48                  hash table: block/32 chain heads (u16), indexed by the hash bits that follow the prefix
//! 48 + block/16       chunks of 24 bytes, exactly to the end of the block, numbered from 0
//!
//! entry  0  type 252   1  value integer size  2  next entry in chain  4  name chunk   6  name integers
//!        8  value chunk  10  value integers  12  collision differentiator (u32)  16  hash (u64)
//! array  0  type 251   1  21 bytes of a name or value                22  next chunk
//! free   0  type 253   1  unused                                     22  next free chunk
//! ```
//!
//! 0xffff ends every chain. A name is 1-byte integers with a terminating zero, or 8-byte integers in a `UINT64_KEY` ZAP;
//! integers in arrays are big-endian. Chains are disk bytes and may cross or loop: every walk here is bounded, that of a
//! hash chain by the number of chunks, that of an array by the length its entry claims.

use super::value::limit;
use super::{BLOCK_TYPE_LEAF, LEAF_MAGIC, LONG_NAME_MAX_BYTES, VALUE_MAX_BYTES, ZapKey, ZapKeyBuf, ZapValue};
use crate::endian::{Endian, Fields, put_u16, put_u32, put_u64};
use crate::error::{FormatError, FormatErrorKind};

const STRUCTURE: &str = "zap leaf";
pub(super) const OFFSET_PREFIX: usize = 16;
pub(super) const OFFSET_MAGIC: usize = 24;
pub(super) const OFFSET_FREE_COUNT: usize = 28;
pub(super) const OFFSET_ENTRY_COUNT: usize = 30;
pub(super) const OFFSET_PREFIX_LEN: usize = 32;
pub(super) const OFFSET_FREE_LIST: usize = 34;
pub(super) const OFFSET_FLAGS: usize = 36;
pub(super) const OFFSET_HASH_TABLE: usize = 48;

/// The size of a chunk.
pub const CHUNK_SIZE_BYTES: usize = 24;
/// The bytes of a name or value in one chunk: the rest is the type and the next pointer.
pub(super) const ARRAY_BYTES: usize = CHUNK_SIZE_BYTES - 3;
pub(super) const CHUNK_OFFSET_NEXT: usize = 1 + ARRAY_BYTES;
pub(super) const TYPE_ARRAY: u8 = 251;
pub(super) const TYPE_ENTRY: u8 = 252;
pub(super) const TYPE_FREE: u8 = 253;
pub(super) const CHAIN_END: u16 = 0xffff;
pub(super) const ENTRY_OFFSET_NEXT: usize = 2;

bitflags::bitflags! {
    /// `lh_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LeafFlags: u8 {
        /// Hash chains are sorted by collision differentiator.
        const CD_SORTED = 1 << 0;
        /// Unknown bits are kept.
        const _ = !0;
    }
}

/// Chunks that hold `bytes` bytes of a name or value.
pub(super) const fn array_chunks(bytes: usize) -> usize {
    bytes.div_ceil(ARRAY_BYTES)
}

/// The geometry of a leaf, which follows from its block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafGeometry {
    /// Base-2 logarithm of the block size.
    pub block_shift: u32,
}

impl LeafGeometry {
    /// For a block of `len` bytes: a power of two with at least a few chunks and at most as many as 16 bits can number.
    pub(crate) fn of(len: usize) -> Result<Self, FormatError> {
        // 1 MiB gives 40958 chunks; 2 MiB would give more than the chain pointers can say.
        if !len.is_power_of_two() || !(1 << 9..=1 << 20).contains(&len) {
            let rule = "a power of two from 512 bytes to 1 MiB";
            return Err(FormatError::invalid(STRUCTURE, 0, "block size", len as u64, rule));
        }
        Ok(Self { block_shift: len.ilog2() })
    }

    /// Block size in bytes.
    #[must_use]
    pub(crate) const fn block_size_bytes(self) -> usize {
        1 << self.block_shift
    }

    /// Bits that index the hash table.
    #[must_use]
    pub(crate) const fn hash_shift(self) -> u32 {
        self.block_shift - 5
    }

    /// Number of hash chains.
    #[must_use]
    pub(crate) const fn hash_count(self) -> usize {
        1 << self.hash_shift()
    }

    /// Number of chunks.
    #[must_use]
    pub(crate) const fn chunk_count(self) -> usize {
        (self.block_size_bytes() - self.chunks_offset()) / CHUNK_SIZE_BYTES
    }

    /// Offset of chunk 0.
    #[must_use]
    pub(crate) const fn chunks_offset(self) -> usize {
        OFFSET_HASH_TABLE + 2 * self.hash_count()
    }

    pub(super) const fn chunk_offset(self, chunk: u16) -> usize {
        self.chunks_offset() + chunk as usize * CHUNK_SIZE_BYTES
    }

    /// The chain of `hash` in a leaf whose prefix has `prefix_len` bits.
    pub(super) const fn bucket(self, hash: u64, prefix_len: u32) -> usize {
        let after_prefix = match hash.checked_shl(prefix_len) {
            Some(rest) => rest,
            None => 0,
        };
        (after_prefix >> (64 - self.hash_shift())) as usize
    }
}

/// The header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafHeader {
    /// The bits with which every hash here begins.
    pub prefix: u64,
    /// How many bits those are.
    pub prefix_len: u16,
    /// Number of free chunks.
    pub free_count: u16,
    /// Number of entries.
    pub entry_count: u16,
    /// First free chunk.
    pub free_list: u16,
    /// Flags.
    pub flags: LeafFlags,
}

impl LeafHeader {
    pub(super) fn emit_into(&self, block: &mut [u8], endian: Endian) {
        put_u64(block, 0, BLOCK_TYPE_LEAF, endian);
        put_u64(block, OFFSET_PREFIX, self.prefix, endian);
        put_u32(block, OFFSET_MAGIC, LEAF_MAGIC, endian);
        put_u16(block, OFFSET_FREE_COUNT, self.free_count, endian);
        put_u16(block, OFFSET_ENTRY_COUNT, self.entry_count, endian);
        put_u16(block, OFFSET_PREFIX_LEN, self.prefix_len, endian);
        put_u16(block, OFFSET_FREE_LIST, self.free_list, endian);
        block[OFFSET_FLAGS] = self.flags.bits();
    }
}

/// A leaf block whose header is checked; chains are checked as they are walked.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    fields: Fields<'a>,
    geometry: LeafGeometry,
    header: LeafHeader,
}

impl<'a> Leaf<'a> {
    /// Wraps a whole block.
    pub fn parse(block: &'a [u8], endian: Endian) -> Result<Self, FormatError> {
        let geometry = LeafGeometry::of(block.len())?;
        let fields = Fields::new(STRUCTURE, block, OFFSET_HASH_TABLE, endian)?;
        let found = fields.u64(0)?;
        if found != BLOCK_TYPE_LEAF {
            return Err(fields.error(0, FormatErrorKind::BadMagic { found, expected: BLOCK_TYPE_LEAF }));
        }
        let found = u64::from(fields.u32(OFFSET_MAGIC)?);
        if found != u64::from(LEAF_MAGIC) {
            return Err(
                fields.error(OFFSET_MAGIC, FormatErrorKind::BadMagic { found, expected: u64::from(LEAF_MAGIC) })
            );
        }
        let header = LeafHeader {
            prefix: fields.u64(OFFSET_PREFIX)?,
            prefix_len: fields.u16(OFFSET_PREFIX_LEN)?,
            free_count: fields.u16(OFFSET_FREE_COUNT)?,
            entry_count: fields.u16(OFFSET_ENTRY_COUNT)?,
            free_list: fields.u16(OFFSET_FREE_LIST)?,
            flags: LeafFlags::from_bits_retain(fields.u8(OFFSET_FLAGS)?),
        };
        let prefix_len = u32::from(header.prefix_len);
        if prefix_len + geometry.hash_shift() > 64 {
            let rule = "prefix and hash table together use at most 64 bits";
            return Err(FormatError::invalid(STRUCTURE, OFFSET_PREFIX_LEN, "prefix length", prefix_len.into(), rule));
        }
        if header.prefix.checked_shr(prefix_len).unwrap_or(0) != 0 {
            let rule = "no longer than its length says";
            return Err(FormatError::invalid(STRUCTURE, OFFSET_PREFIX, "prefix", header.prefix, rule));
        }
        Ok(Self { fields, geometry, header })
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &LeafHeader {
        &self.header
    }

    /// The geometry.
    #[must_use]
    pub(crate) fn geometry(&self) -> LeafGeometry {
        self.geometry
    }

    /// The block's byte order.
    #[must_use]
    pub(crate) fn endian(&self) -> Endian {
        self.fields.endian()
    }

    /// Whether entries with `hash` belong here.
    #[must_use]
    pub fn owns(&self, hash: u64) -> bool {
        super::hash_index(hash, u32::from(self.header.prefix_len)) == self.header.prefix
    }

    fn chunk(&self, chunk: u16) -> Result<Fields<'a>, FormatError> {
        if usize::from(chunk) >= self.geometry.chunk_count() {
            let rule = "below the number of chunks";
            return Err(FormatError::invalid(STRUCTURE, 0, "chunk", u64::from(chunk), rule));
        }
        let bytes = self.fields.slice(self.geometry.chunk_offset(chunk), CHUNK_SIZE_BYTES)?;
        Fields::new("zap leaf chunk", bytes, CHUNK_SIZE_BYTES, self.endian())
    }

    fn expect_type(&self, chunk: u16, fields: &Fields<'_>, expected: u8) -> Result<(), FormatError> {
        let found = fields.u8(0)?;
        if found == expected {
            return Ok(());
        }
        let offset = self.geometry.chunk_offset(chunk);
        Err(self.fields.error(
            offset,
            FormatErrorKind::Invalid {
                field: "chunk type",
                value: u64::from(found),
                rule: "entry (252), array (251) or free (253) as the pointer to it demands",
            },
        ))
    }

    /// The entry in `chunk`.
    pub(crate) fn entry(&self, chunk: u16) -> Result<LeafEntry<'a>, FormatError> {
        let fields = self.chunk(chunk)?;
        self.expect_type(chunk, &fields, TYPE_ENTRY)?;
        let entry = LeafEntry {
            leaf: *self,
            chunk,
            value_integer_size: fields.u8(1)?,
            next: fields.u16(ENTRY_OFFSET_NEXT)?,
            name_chunk: fields.u16(4)?,
            name_count: fields.u16(6)?,
            value_chunk: fields.u16(8)?,
            value_count: fields.u16(10)?,
            cd: fields.u32(12)?,
            hash: fields.u64(16)?,
        };
        if !matches!(entry.value_integer_size, 1 | 2 | 4 | 8) {
            let size = u64::from(entry.value_integer_size);
            return Err(FormatError::invalid(STRUCTURE, 0, "value integer size", size, "one of 1, 2, 4, 8"));
        }
        Ok(entry)
    }

    pub(super) fn bucket_head(&self, bucket: usize) -> Result<u16, FormatError> {
        self.fields.u16(OFFSET_HASH_TABLE + 2 * bucket)
    }

    /// The hash chain in which `hash` would be. A chain longer than there are chunks ends in an error.
    pub(crate) fn chain(&self, hash: u64) -> Chain<'a> {
        self.bucket_chain(self.geometry.bucket(hash, u32::from(self.header.prefix_len)))
    }

    fn bucket_chain(&self, bucket: usize) -> Chain<'a> {
        let next = self.bucket_head(bucket).unwrap_or(CHAIN_END);
        Chain { leaf: *self, next, steps_left: self.geometry.chunk_count() }
    }

    /// The first entry with `hash` whose stored name satisfies `matches`. Where the ZAP normalises names and the chain is
    /// sorted, that is the one with the lowest differentiator, as OpenZFS has it.
    pub(crate) fn find(
        &self,
        hash: u64,
        mut matches: impl FnMut(&LeafEntry<'a>) -> Result<bool, FormatError>,
    ) -> Result<Option<LeafEntry<'a>>, FormatError> {
        for entry in self.chain(hash) {
            let entry = entry?;
            if entry.hash == hash && matches(&entry)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// The entry with exactly this key.
    pub fn lookup(&self, hash: u64, key: ZapKey<'_>) -> Result<Option<LeafEntry<'a>>, FormatError> {
        let stored = key.stored_bytes();
        let count = key.integer_count();
        self.find(hash, |entry| {
            if usize::from(entry.name_count) != count {
                return Ok(false);
            }
            Ok(entry.array(entry.name_chunk, stored.len())? == stored)
        })
    }

    /// Every entry that a hash chain reaches, chain by chain. The total is bounded by the number of chunks.
    pub fn entries(&self) -> Entries<'a> {
        Entries { chain: self.bucket_chain(0), bucket: 0, steps_left: self.geometry.chunk_count() }
    }

    /// The entries sorted by hash and differentiator, which is the order in which OpenZFS lists them and the order of
    /// directory cookies.
    pub fn sorted(&self) -> Result<Vec<LeafEntry<'a>>, FormatError> {
        let mut entries = self.entries().collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(|entry| (entry.hash, entry.cd));
        Ok(entries)
    }

    /// Checks the whole leaf: every chunk is in exactly one chain of the type it says, counts agree, every entry's hash
    /// begins with the prefix and lies in its bucket.
    pub fn check(&self) -> Result<(), FormatError> {
        let malformed = |what| FormatError::malformed(STRUCTURE, 0, what);
        let mut seen = vec![false; self.geometry.chunk_count()];
        let mut visit = |chunk: u16| -> Result<(), FormatError> {
            match seen.get_mut(usize::from(chunk)) {
                None => Err(malformed("a chain leaves the leaf")),
                Some(true) => Err(malformed("two chains share a chunk")),
                Some(slot) => {
                    *slot = true;
                    Ok(())
                }
            }
        };
        let mut entry_count = 0_usize;
        for bucket in 0..self.geometry.hash_count() {
            let mut cd_last = 0;
            for entry in self.bucket_chain(bucket) {
                let entry = entry?;
                visit(entry.chunk)?;
                entry_count += 1;
                if !self.owns(entry.hash)
                    || self.geometry.bucket(entry.hash, u32::from(self.header.prefix_len)) != bucket
                {
                    return Err(malformed("an entry in the wrong hash chain"));
                }
                if self.header.flags.contains(LeafFlags::CD_SORTED) && entry.cd < cd_last {
                    return Err(malformed("a chain flagged as sorted is not"));
                }
                cd_last = entry.cd;
                // A name is of bytes or of words; which, stands in the ZAP's header alone, so the chain may have either
                // length.
                let name_count = usize::from(entry.name_count);
                let value_size = entry.value_size_bytes();
                for (first, sizes) in
                    [(entry.name_chunk, [name_count, name_count * 8]), (entry.value_chunk, [value_size; 2])]
                {
                    let mut next = first;
                    let mut chunks = 0;
                    while next != CHAIN_END {
                        visit(next)?;
                        let fields = self.chunk(next)?;
                        self.expect_type(next, &fields, TYPE_ARRAY)?;
                        next = fields.u16(CHUNK_OFFSET_NEXT)?;
                        chunks += 1;
                    }
                    if !sizes.map(array_chunks).contains(&chunks) {
                        return Err(malformed("an array of the wrong length"));
                    }
                }
            }
        }
        if entry_count != usize::from(self.header.entry_count) {
            return Err(malformed("the number of entries is not the header's"));
        }
        let mut next = self.header.free_list;
        let mut free_count = 0;
        while free_count < usize::from(self.header.free_count) {
            visit(next)?;
            let fields = self.chunk(next)?;
            self.expect_type(next, &fields, TYPE_FREE)?;
            next = fields.u16(CHUNK_OFFSET_NEXT)?;
            free_count += 1;
        }
        if seen.iter().any(|seen| !seen) {
            return Err(malformed("a chunk in no chain"));
        }
        Ok(())
    }
}

/// Walks one hash chain.
#[derive(Clone, Debug)]
pub(crate) struct Chain<'a> {
    leaf: Leaf<'a>,
    next: u16,
    steps_left: usize,
}

impl<'a> Iterator for Chain<'a> {
    type Item = Result<LeafEntry<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == CHAIN_END {
            return None;
        }
        if self.steps_left == 0 {
            self.next = CHAIN_END;
            return Some(Err(FormatError::malformed(STRUCTURE, OFFSET_HASH_TABLE, "a hash chain loops")));
        }
        self.steps_left -= 1;
        let entry = self.leaf.entry(self.next);
        self.next = entry.as_ref().map_or(CHAIN_END, |entry| entry.next);
        Some(entry)
    }
}

/// Walks all hash chains.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    chain: Chain<'a>,
    bucket: usize,
    steps_left: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<LeafEntry<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        let leaf = self.chain.leaf;
        loop {
            if let Some(item) = self.chain.next() {
                if self.steps_left == 0 {
                    self.bucket = leaf.geometry.hash_count();
                    self.chain.next = CHAIN_END;
                    return Some(Err(FormatError::malformed(STRUCTURE, OFFSET_HASH_TABLE, "hash chains cross")));
                }
                self.steps_left -= 1;
                return Some(item);
            }
            self.bucket = self.bucket.saturating_add(1);
            if self.bucket >= leaf.geometry.hash_count() {
                return None;
            }
            self.chain = leaf.bucket_chain(self.bucket);
        }
    }
}

/// One entry of a leaf.
#[derive(Clone, Copy, Debug)]
pub struct LeafEntry<'a> {
    leaf: Leaf<'a>,
    /// The chunk it lies in.
    pub chunk: u16,
    /// Bytes per integer of the value: 1, 2, 4 or 8.
    pub value_integer_size: u8,
    pub(super) next: u16,
    pub(super) name_chunk: u16,
    /// Integers of the name as stored.
    pub name_count: u16,
    pub(super) value_chunk: u16,
    /// Integers of the value.
    pub value_count: u16,
    /// The collision differentiator.
    pub cd: u32,
    /// The hash.
    pub hash: u64,
}

impl LeafEntry<'_> {
    /// The first `len` bytes of the array that begins at `chunk`.
    fn array(&self, chunk: u16, len: usize) -> Result<Vec<u8>, FormatError> {
        // The claimed length must fit in the leaf, or chains would be walked in circles to satisfy it.
        if array_chunks(len) > self.leaf.geometry.chunk_count() {
            return Err(limit("zap array size", len, self.leaf.geometry.chunk_count() * ARRAY_BYTES));
        }
        let mut bytes = Vec::with_capacity(len);
        let mut next = chunk;
        while bytes.len() < len {
            let fields = self.leaf.chunk(next)?;
            self.leaf.expect_type(next, &fields, TYPE_ARRAY)?;
            bytes.extend_from_slice(fields.slice(1, ARRAY_BYTES.min(len - bytes.len()))?);
            next = fields.u16(CHUNK_OFFSET_NEXT)?;
        }
        Ok(bytes)
    }

    /// The bytes of the value as stored.
    #[must_use]
    pub(crate) fn value_size_bytes(&self) -> usize {
        usize::from(self.value_count) * usize::from(self.value_integer_size)
    }

    /// The name, without its terminating zero.
    pub fn name(&self) -> Result<Vec<u8>, FormatError> {
        let len = usize::from(self.name_count);
        if len > LONG_NAME_MAX_BYTES {
            return Err(limit("zap name size", len, LONG_NAME_MAX_BYTES));
        }
        let mut name = self.array(self.name_chunk, len)?;
        if let Some(end) = name.iter().position(|byte| *byte == 0) {
            name.truncate(end);
        }
        if name.is_empty() {
            return Err(FormatError::malformed(STRUCTURE, 0, "an empty name"));
        }
        Ok(name)
    }

    /// The key of an entry of a `UINT64_KEY` ZAP.
    pub(crate) fn words(&self) -> Result<Vec<u64>, FormatError> {
        let len = usize::from(self.name_count) * 8;
        if len > LONG_NAME_MAX_BYTES {
            return Err(limit("zap key size", len, LONG_NAME_MAX_BYTES));
        }
        let bytes = self.array(self.name_chunk, len)?;
        Ok(bytes
            .chunks_exact(8)
            .map(|word| word.iter().fold(0_u64, |value, byte| (value << 8) | u64::from(*byte)))
            .collect())
    }

    /// The key, as words if `uint64_key`, else as a name.
    pub fn key(&self, uint64_key: bool) -> Result<ZapKeyBuf, FormatError> {
        if uint64_key { self.words().map(ZapKeyBuf::Words) } else { self.name().map(ZapKeyBuf::Name) }
    }

    /// The value.
    pub fn value(&self) -> Result<ZapValue, FormatError> {
        let len = self.value_size_bytes();
        if len > VALUE_MAX_BYTES {
            return Err(limit("zap value size", len, VALUE_MAX_BYTES));
        }
        ZapValue::from_stored(self.value_integer_size, self.array(self.value_chunk, len)?)
    }

    /// All bytes of an array's chain, the last chunk's padding included: what copies an entry without knowing how wide
    /// the integers of its name are.
    pub(super) fn whole_array(&self, head: u16) -> Result<Vec<u8>, FormatError> {
        let mut bytes = Vec::new();
        let mut next = head;
        while next != CHAIN_END {
            if bytes.len() >= self.leaf.geometry.chunk_count() * ARRAY_BYTES {
                return Err(FormatError::malformed(STRUCTURE, 0, "an array chain loops"));
            }
            let fields = self.leaf.chunk(next)?;
            self.leaf.expect_type(next, &fields, TYPE_ARRAY)?;
            bytes.extend_from_slice(fields.slice(1, ARRAY_BYTES)?);
            next = fields.u16(CHUNK_OFFSET_NEXT)?;
        }
        Ok(bytes)
    }
}
