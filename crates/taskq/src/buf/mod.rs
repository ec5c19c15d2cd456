//! Aligned buffers, unique ([`Buf`]) and shared ([`Block`]).
//!
//! Every byte that moves between a device and a front end lives in one of these. A [`Buf`] is owned by one holder and
//! writable; [`Buf::freeze`] makes it a [`Block`], which is read-only, cheap to clone and cheap to slice, without a
//! copy. Memory comes in size classes, aligned so that `O_DIRECT` accepts it, and returns to a bounded process-wide pool
//! when its last holder lets go, which spares the kernel's page faults on the I/O path; what the pool does not keep goes
//! back to the kernel at once (`pages`), so that a limit on buffers is a limit on the process.

mod pages;
mod pool;

use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::sync::Arc;

use pool::Memory;

/// Alignment of every buffer of a page or more: the page, which no device's sector exceeds in practice. A buffer below
/// that is aligned to any power of two that divides its length, and to [`SMALL_ALIGNMENT_BYTES`] at least: enough for a
/// device whose sectors divide the length.
pub(crate) const ALIGNMENT_BYTES: usize = 4096;

/// Alignment of the smallest buffers, and the granularity of their capacity: the smallest sector.
pub(crate) const SMALL_ALIGNMENT_BYTES: usize = 512;

/// An owned, writable, aligned buffer.
pub struct Buf {
    memory: Memory,
    len: usize,
}

impl Buf {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Buf {
        Buf { memory: Memory::take(len, true), len }
    }

    /// A buffer of `len` bytes of unspecified content, for a reader that will fill all of it: spares the clearing.
    pub fn unfilled(len: usize) -> Buf {
        Buf { memory: Memory::take(len, false), len }
    }

    /// A buffer with a copy of `bytes`.
    pub fn copied_from(bytes: &[u8]) -> Buf {
        let mut buf = Buf::unfilled(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How long the buffer can become without new memory.
    pub fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// Shortens the buffer to `len`, or leaves it if it is shorter already.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the buffer read-only and shareable, without a copy.
    pub fn freeze(self) -> Block {
        Block::all_of(Content::Buf(self))
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[..self.len]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[..self.len]
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

/// The memory that holds a shared block's bytes.
enum Content {
    Buf(Buf),
    Vec(Vec<u8>),
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Content::Buf(buf) => buf,
            Content::Vec(vec) => vec,
        }
    }
}

/// A shared, read-only range of bytes. Cloning and slicing copy no bytes.
#[derive(Clone)]
pub struct Block {
    /// Absent for a block of no bytes.
    owner: Option<Arc<Content>>,
    // Half words: caches hold many blocks, and none is as long as 4 GiB.
    start: u32,
    end: u32,
}

impl Block {
    /// A block of no bytes.
    pub const fn empty() -> Block {
        Block { owner: None, start: 0, end: 0 }
    }

    fn all_of(content: Content) -> Block {
        let end = u32::try_from(content.bytes().len()).expect("a block is shorter than 4 GiB");
        Block { owner: Some(Arc::new(content)), start: 0, end }
    }

    /// A block with a copy of `bytes`.
    pub fn copied_from(bytes: &[u8]) -> Block {
        Buf::copied_from(bytes).freeze()
    }

    /// Bytes of memory that the block keeps from reuse, all of its buffer's whatever part of it this is. Blocks that
    /// share memory each tell all of it.
    pub fn memory_bytes(&self) -> usize {
        match self.owner.as_deref() {
            Some(Content::Buf(buf)) => memory_bytes_of(buf.capacity()),
            Some(Content::Vec(vec)) => vec.capacity(),
            None => 0,
        }
    }

    /// Whether someone else holds the same memory, so that dropping this block would free nothing.
    pub fn is_shared(&self) -> bool {
        self.owner.as_ref().is_some_and(|shared| Arc::strong_count(shared) > 1)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The part of this block in `range`, sharing its memory.
    ///
    /// # Panics
    /// When the range does not lie inside the block, as slicing does. [`Block::try_slice`] reports it instead.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Block {
        self.try_slice(range).expect("a slice lies inside its block")
    }

    /// The part of this block in `range`, or `None` when the range does not lie inside it.
    pub(crate) fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<Block> {
        self.clone().try_into_slice(range)
    }

    /// As [`Block::try_slice`], of this block itself.
    pub fn try_into_slice(mut self, range: impl RangeBounds<usize>) -> Option<Block> {
        let from = match range.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&at) => at.checked_add(1)?,
            Bound::Excluded(&at) => at,
            Bound::Unbounded => self.len(),
        };
        if from > to || to > self.len() {
            return None;
        }
        // Both are at most the length, which is 32 bits wide.
        (self.start, self.end) = (self.start + from as u32, self.start + to as u32);
        Some(self)
    }

    /// The buffer back, when this block is its only holder and covers all of it; otherwise the block unchanged.
    pub fn try_into_buf(self) -> Result<Buf, Block> {
        let Block { owner, start, end } = self;
        match owner {
            Some(shared) if start == 0 && end as usize == shared.bytes().len() => match Arc::try_unwrap(shared) {
                Ok(Content::Buf(buf)) => Ok(buf),
                Ok(content) => Err(Block { owner: Some(Arc::new(content)), start, end }),
                Err(shared) => Err(Block { owner: Some(shared), start, end }),
            },
            owner => Err(Block { owner, start, end }),
        }
    }

    /// An owned, writable buffer of these bytes: the block's own if nobody else holds it, a copy otherwise.
    pub fn into_buf(self) -> Buf {
        self.try_into_buf().unwrap_or_else(|block| Buf::copied_from(&block))
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.owner {
            Some(shared) => &shared.bytes()[self.start as usize..self.end as usize],
            None => &[],
        }
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for Block {
    fn default() -> Block {
        Block::empty()
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Block {
        Block::all_of(Content::Vec(bytes))
    }
}

impl From<Buf> for Block {
    fn from(buf: Buf) -> Block {
        buf.freeze()
    }
}

impl PartialEq for Block {
    fn eq(&self, other: &Block) -> bool {
        **self == **other
    }
}

impl Eq for Block {}

impl PartialEq<[u8]> for Block {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.len())
    }
}

pub use pool::{
    BufStats, memory_bytes_of, raise_buffer_pool_limit_bytes, set_buffer_pool_floor_bytes, set_buffer_pool_limit_bytes,
    stats,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_memory_is_clean_when_zeroed() {
        for _ in 0..4 {
            let mut buf = Buf::zeroed(5000);
            assert!(buf.iter().all(|&byte| byte == 0));
            assert_eq!(buf.as_ptr().align_offset(ALIGNMENT_BYTES), 0);
            buf.fill(0xFF);
        }
    }

    #[test]
    fn slices_share_memory_and_the_last_holder_gets_the_buffer_back() {
        let mut buf = Buf::zeroed(8192);
        buf[4096] = 7;
        let block = buf.freeze();
        let part = block.slice(4096..);
        assert_eq!(part[0], 7);
        assert_eq!(part.as_ptr(), block[4096..].as_ptr());
        let block = block.try_into_buf().expect_err("the slice holds it too");
        drop(part);
        assert_eq!(block.try_into_buf().expect("sole holder").len(), 8192);
        assert!(Block::from(vec![1, 2, 3]).try_slice(2..9).is_none());
        assert_eq!(Block::from(vec![1, 2, 3]).slice(1..=1)[..], [2]);
    }

    #[test]
    fn buffers_may_end_on_other_threads_than_they_began() {
        let threads: Vec<_> = (0..3u8)
            .map(|mark| {
                let mut buf = Buf::zeroed(9000);
                buf.fill(mark);
                let block = buf.freeze();
                std::thread::spawn(move || {
                    let other = block.slice(4000..);
                    drop(block);
                    assert!(other.iter().all(|&byte| byte == mark));
                    other
                })
            })
            .collect();
        for (mark, thread) in threads.into_iter().enumerate() {
            let block = thread.join().expect("no panic");
            assert!(block.iter().all(|&byte| byte as usize == mark));
            assert!(Buf::zeroed(9000).iter().all(|&byte| byte == 0));
        }
        let stats = stats();
        assert!(stats.pooled_bytes <= stats.allocated_bytes);
    }

    #[test]
    fn large_buffers_are_exact_and_leave_with_their_holder() {
        let buf = Buf::zeroed((16 << 20) + 1);
        assert_eq!(buf.capacity(), (16 << 20) + 4096);
        drop(buf);
    }

    #[test]
    fn a_buffer_is_aligned_to_the_sectors_that_its_length_is_made_of() {
        let mut held = Vec::new();
        for len in (512..=20 * 512).step_by(512).chain([1 << 16, (16 << 20) + 4096]) {
            for _ in 0..40.min((4 << 20) / len) + 1 {
                let buf = Buf::unfilled(len);
                let sectors = 1 << len.trailing_zeros().min(12);
                assert!((buf.as_ptr() as usize).is_multiple_of(sectors), "{len} bytes at {:p}", buf.as_ptr());
                held.push(buf);
            }
        }
    }

    #[test]
    fn a_block_tells_the_memory_it_keeps() {
        let block = Buf::zeroed(130 << 10).freeze();
        assert_eq!(block.memory_bytes(), 160 << 10);
        assert!(!block.is_shared());
        let part = block.slice(7..9);
        assert_eq!(part.memory_bytes(), 160 << 10);
        assert!(part.is_shared() && block.is_shared());
        assert_eq!(Buf::zeroed(1).freeze().memory_bytes(), 512);
    }
}
