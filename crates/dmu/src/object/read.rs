//! Reading an object: what the layers in memory know, and what is on disk below them.
//!
//! A block on disk is found through the tree that is on disk when it is looked for. By the time it is read that tree may have been
//! replaced, its blocks freed, and after some txgs written over: a read that was slower than that meets a bad checksum. It is then
//! done again with the new tree.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use cenote_format::dmu_type::{Byteswap, DmuType};
use cenote_format::ids::BlockId;
use cenote_format::{Endian, byteswap};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{Join, JoinError, boxed, give_way};

use super::layer::Known;
use super::{Form, Object};
use crate::prefetch::{Watch, Zfetch};
use crate::tree::BlockTree;
use crate::window::{Begun, READS_MAX, in_order};
use crate::{DmuError, DmuErrorKind};

/// The most that one read gives, in bytes.
pub(crate) const READ_SIZE_MAX_BYTES: usize = 1 << 30;
/// How often a read is done again because the tree that it went through was replaced. Each time at least three txgs passed.
const TRIES_MAX: u32 = 5;
/// Pieces that are put together to one extent.
const PIECES_MAX: u32 = 1024;

/// A run of data blocks of which all are holes, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The blocks.
    pub blocks: Range<u64>,
    /// They are holes. Blocks that were written and not synced yet are none, even if they are all zeros.
    pub is_hole: bool,
}

/// How blocks on disk are read.
#[derive(Clone)]
enum Way {
    Plain,
    /// One of several reads of one reader, which together predict its next ones.
    Watched(Arc<Watch>, Arc<Zfetch>),
    /// Past the cache.
    Direct,
}

/// A block and the byte order of its fields; `None` for a hole.
type Found = Option<(Block, Endian)>;

/// The size, blocks and tree of a range of an object, all taken under one lock.
struct Look {
    size_bytes: u64,
    /// The blocks that the range reaches up to the object's last one, and where in the first it begins.
    blocks: Option<(RangeInclusive<u64>, usize)>,
    /// The tree that all of the range is to be read from, where no layer knows of any of it. `Some(None)` if there is none.
    on_disk: Option<Option<BlockTree>>,
}

impl Object {
    /// The data block `block` as of the newest change, and the byte order of its fields; `None` for a hole (all zeros).
    ///
    /// # Errors
    /// The block cannot be read. In an open objset also: its fields are in another byte order than ours.
    pub async fn block(&self, block: BlockId) -> Result<Option<(Block, Endian)>, DmuError> {
        give_way().await;
        match self.known(block) {
            Known::Data(data) => Ok(Some((data, cenote_zio::ORDER))),
            Known::Hole | Known::OnDisk(None) => Ok(None),
            Known::OnDisk(Some(tree)) if let Some((found, order, _)) = self.resident_in(&tree, block) => {
                Ok(Some((found, order)))
            }
            Known::Ready(_) | Known::OnDisk(Some(_)) => self.find(block, &Way::Plain).await,
        }
    }

    pub(super) fn known(&self, block: BlockId) -> Known {
        match &self.form {
            Form::Frozen(tree) => Known::OnDisk(Some(tree.clone())),
            Form::Open(shared) => shared.state.lock().known(block.0),
        }
    }

    #[boxed]
    async fn find(&self, block: BlockId, way: &Way) -> Result<Found, DmuError> {
        let mut tries = 0;
        loop {
            let tree = match self.known(block) {
                Known::Data(data) => return Ok(Some((data, cenote_zio::ORDER))),
                Known::Ready(data) => return self.unpacked(block, &data).map(Some),
                Known::Hole | Known::OnDisk(None) => return Ok(None),
                Known::OnDisk(Some(tree)) => tree,
            };
            match self.find_on_disk(&tree, block, way).await {
                Err(_) if tries < TRIES_MAX && self.is_replaced(&tree) => tries += 1,
                result => return result,
            }
        }
    }

    async fn find_on_disk(&self, tree: &BlockTree, block: BlockId, way: &Way) -> Result<Found, DmuError> {
        let found = match way {
            Way::Plain => tree.block(block).await?,
            Way::Watched(watch, zfetch) => watch.block(tree, block, zfetch).await?,
            Way::Direct => tree.block_direct(block).await?,
        };
        if let (Some((_, Endian::Big)), Form::Open(_)) = (&found, &self.form)
            && !is_bytes(tree.phys().object_type)
        {
            let what = "changing blocks that a big-endian machine wrote";
            return Err(self.error(DmuErrorKind::Unsupported(what.into())));
        }
        Ok(match &self.form {
            Form::Frozen(_) => found,
            // A block that is changed in part and written again has the size of the others.
            Form::Open(_) => found.map(|(block, order)| (sized(block, tree.block_bytes() as usize), order)),
        })
    }

    /// A block's bytes as readers get them. The order of integers belongs to the block, and blocks of one object can have different
    /// ones. Objects that are arrays of integers are given in ours ([`cenote_zio::ORDER`]); others say themselves where it matters.
    pub(super) fn in_our_order(&self, (block, order): (Block, Endian)) -> Result<Block, DmuError> {
        if order == cenote_zio::ORDER {
            return Ok(block);
        }
        let kind = self.phys().object_type.byteswap();
        match kind.filter(|kind| is_array(*kind)) {
            None => Ok(block),
            Some(kind) => {
                let mut turned = Buf::copied_from(&block);
                byteswap::swap(kind, &mut turned, order).map_err(|error| self.error(error))?;
                Ok(turned.freeze())
            }
        }
    }

    /// `len` bytes at `offset_bytes`; what lies in holes or past the last block is zeros. An object that is an array of integers
    /// gives them in our byte order, whichever each of its blocks is in.
    ///
    /// Within one block nothing is copied. Blocks of a longer range are read concurrently, a bounded number at a time. The
    /// caller bounds `len`, to [`READ_SIZE_MAX_BYTES`] at most: the result is one buffer.
    pub async fn read(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        give_way().await;
        if let Some(at) = self.locate(offset_bytes, len)
            && let Some(read) = self.read_at(&at).await
        {
            return read;
        }
        self.read_range(offset_bytes, len).await
    }

    #[boxed]
    async fn read_range(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        let look = self.look(offset_bytes, len)?;
        self.read_by(look, offset_bytes, len, Way::Plain).await
    }

    /// Reads a block that no open txg has changed into the cache, if the dataset has such blocks read ahead. An error is left to its reader.
    #[boxed]
    pub async fn prefetch(&self, block: BlockId) {
        if let Known::OnDisk(Some(tree)) = self.known(block) {
            tree.prefetch(block).await;
        }
    }

    /// State that a reader of this object gives to each of its reads ([`Object::read_prefetching`]).
    #[must_use]
    pub fn zfetch(&self) -> Arc<Zfetch> {
        Zfetch::new(self.dmu(), self.block_bytes(), self.last_block())
    }

    /// As [`Object::read`], by a reader that has read before and will again: what it will probably want next is loaded
    /// ahead.
    pub async fn read_prefetching(
        &self,
        offset_bytes: u64,
        len: usize,
        zfetch: &Arc<Zfetch>,
    ) -> Result<Block, DmuError> {
        if let Some(at) = self.locate(offset_bytes, len)
            && let Some(read) = self.read_at_watched(&at, zfetch).await
        {
            return read;
        }
        self.read_watched(offset_bytes, len, zfetch).await
    }

    #[boxed]
    async fn read_watched(&self, offset_bytes: u64, len: usize, zfetch: &Arc<Zfetch>) -> Result<Block, DmuError> {
        let look = self.look(offset_bytes, len)?;
        let Some((blocks, _)) = &look.blocks else { return Ok(Buf::zeroed(len).freeze()) };
        let watch = Arc::new(Watch::new(*blocks.start(), blocks.end() - blocks.start() + 1));
        let read = self.read_by(look, offset_bytes, len, Way::Watched(watch.clone(), zfetch.clone())).await;
        watch.tell(zfetch);
        read
    }

    /// As [`Object::read`], past the cache: nothing is looked for there or left there but the indirect blocks. For clients
    /// that keep what they read themselves. A range that is not made of whole blocks goes through the cache, since its
    /// blocks will be asked for again.
    pub async fn read_direct(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        if let Some(at) = self.locate(offset_bytes, len)
            && at.is_whole()
            && let Some(read) = self.read_at_direct(&at).await
        {
            return read;
        }
        self.read_range_direct(offset_bytes, len).await
    }

    #[boxed]
    async fn read_range_direct(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        let look = self.look(offset_bytes, len)?;
        let size = look.size_bytes.max(1);
        let ends = offset_bytes.saturating_add(len as u64);
        let end = self.last_block().0.saturating_add(1).saturating_mul(size);
        let is_whole = offset_bytes.is_multiple_of(size) && (ends.is_multiple_of(size) || ends >= end);
        self.read_by(look, offset_bytes, len, if is_whole { Way::Direct } else { Way::Plain }).await
    }

    /// Looks at a range, with one lock at most.
    fn look(&self, offset_bytes: u64, len: usize) -> Result<Look, DmuError> {
        if len > READ_SIZE_MAX_BYTES {
            return Err(self.error(DmuErrorKind::TooLarge(len)));
        }
        let place = |size_bytes: u64, last: u64| blocks_of(offset_bytes, len, size_bytes, BlockId(last));
        Ok(match &self.form {
            Form::Frozen(tree) => Look {
                size_bytes: tree.block_bytes(),
                blocks: place(tree.block_bytes(), tree.last_block().0),
                on_disk: Some(Some(tree.clone())),
            },
            Form::Open(shared) => {
                let state = shared.state.lock();
                let size_bytes = u64::from(state.head.data_block_bytes());
                let blocks = place(size_bytes, state.head.max_block_id);
                let on_disk = blocks.as_ref().and_then(|(blocks, _)| {
                    let end = blocks.end().saturating_add(1);
                    match state.known_run(*blocks.start(), end) {
                        (Known::OnDisk(tree), known_end) if known_end >= end => Some(tree),
                        _ => None,
                    }
                });
                Look { size_bytes, blocks, on_disk }
            }
        })
    }

    async fn read_by(&self, look: Look, offset_bytes: u64, len: usize, way: Way) -> Result<Block, DmuError> {
        let Look { size_bytes: size, blocks, on_disk } = look;
        let Some((blocks, start_in_block)) = blocks else { return Ok(Buf::zeroed(len).freeze()) };
        let tree = match on_disk {
            Some(None) => return Ok(Buf::zeroed(len).freeze()),
            Some(Some(tree)) => Some(tree),
            None => None,
        };
        let (first, last) = (*blocks.start(), *blocks.end());
        if first == last {
            let found = self.find_at(tree.as_ref(), BlockId(first), &way).await?;
            return Ok(match found {
                Some(found) => part_of(self.in_our_order(found)?, start_in_block..start_in_block + len),
                None => Buf::zeroed(len).freeze(),
            });
        }
        let mut target = Buf::zeroed(len);
        let begin = |block| {
            if let Some(found) = tree.as_ref().and_then(|tree| self.find_resident(tree, BlockId(block), &way)) {
                return Ok(Begun::Done(Ok(Some(found))));
            }
            let (object, tree, way) = (self.clone(), tree.clone(), way.clone());
            let read = async move { object.find_at(tree.as_ref(), BlockId(block), &way).await };
            Ok(Begun::Task(self.spawn_read(read)?))
        };
        let take = |index: u64, read: Result<Result<Found, DmuError>, JoinError>| {
            let Some(found) = read.map_err(|error| self.interrupted(&error))?? else { return Ok(()) };
            let block = self.in_our_order(found)?;
            // Inside the range, so these neither overflow nor exceed `len`.
            let block_start = index * size;
            let skip = offset_bytes.saturating_sub(block_start) as usize;
            let at = block_start.saturating_sub(offset_bytes) as usize;
            assert!(at < len && (skip as u64) < size, "a block that is read is one of the range");
            copy_into(&mut target, at, block.get(skip..).unwrap_or_default());
            Ok(())
        };
        in_order(blocks, READS_MAX, begin, take).await?;
        Ok(target.freeze())
    }

    /// A block of a range that was looked at, if nothing has to be waited for.
    fn find_resident(&self, tree: &BlockTree, block: BlockId, way: &Way) -> Option<(Block, Endian)> {
        if matches!(way, Way::Direct) {
            return None;
        }
        let (found, order, source) = self.resident_in(tree, block)?;
        if let Way::Watched(watch, zfetch) = way {
            watch.met_resident(source, tree, zfetch);
        }
        Some((found, order))
    }

    /// A block of a range that was looked at: from the tree that was found then, or from the newest state if that is replaced.
    async fn find_at(&self, tree: Option<&BlockTree>, block: BlockId, way: &Way) -> Result<Found, DmuError> {
        match tree {
            Some(tree) => match self.find_on_disk(tree, block, way).await {
                Err(_) if self.is_replaced(tree) => self.find(block, way).await,
                result => result,
            },
            None => self.find(block, way).await,
        }
    }

    pub(super) fn interrupted(&self, error: &JoinError) -> DmuError {
        self.error(DmuErrorKind::Interrupted(error.to_string()))
    }

    /// A part of a read as a task of its own. Fails once the pool is being exported.
    pub(super) fn spawn_read<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<Join<T>, DmuError> {
        let spawned = self.dmu().spawn(future);
        spawned.map_err(|_| self.error(DmuErrorKind::Interrupted("the pool is being exported".into())))
    }

    /// The extent that begins at a block, as far as it was looked at, and not beyond the block `limit`.
    ///
    /// # Errors
    /// The tree on disk cannot be read.
    #[boxed]
    pub async fn extent(&self, from: u64, limit: u64) -> Result<Extent, DmuError> {
        let mut found: Option<Extent> = None;
        for _ in 0..PIECES_MAX {
            let at = found.as_ref().map_or(from, |found| found.blocks.end);
            if at >= limit {
                break;
            }
            let (is_hole, end) = self.piece(at, limit).await?;
            match &mut found {
                None => found = Some(Extent { blocks: from..end, is_hole }),
                Some(found) if found.is_hole == is_hole => found.blocks.end = end,
                Some(_) => break,
            }
        }
        Ok(found.unwrap_or(Extent { blocks: from..limit.max(from), is_hole: true }))
    }

    /// True if a block is a hole, and a block after it up to which all are as it is.
    pub(super) async fn piece(&self, block: u64, limit: u64) -> Result<(bool, u64), DmuError> {
        let mut tries = 0;
        loop {
            let known = match &self.form {
                Form::Frozen(tree) => (Known::OnDisk(Some(tree.clone())), limit),
                Form::Open(shared) => shared.state.lock().known_run(block, limit),
            };
            let (tree, end) = match known {
                (Known::Data(_) | Known::Ready(_), end) => return Ok((false, end)),
                (Known::Hole | Known::OnDisk(None), end) => return Ok((true, end)),
                (Known::OnDisk(Some(tree)), end) => (tree, end),
            };
            assert!(block < end && end <= limit, "what layers know of a block reaches up to the next one at least");
            match piece_on_disk(&tree, block, end).await {
                Err(_) if tries < TRIES_MAX && self.is_replaced(&tree) => tries += 1,
                result => return result,
            }
        }
    }
}

async fn piece_on_disk(tree: &BlockTree, block: u64, end: u64) -> Result<(bool, u64), DmuError> {
    let data = tree.next_data_block(BlockId(block)).await?.map_or(end, |data| data.0.min(end));
    if data > block {
        return Ok((true, data));
    }
    debug_assert_eq!(data, block, "the first block with data is not before where the search began");
    let hole = tree.next_hole_block(BlockId(block)).await?;
    let hole = hole.unwrap_or(BlockId(tree.last_block().0.saturating_add(1)));
    Ok((false, hole.0.clamp(block + 1, end)))
}

/// True if data of this kind are integers of one width.
fn is_array(kind: Byteswap) -> bool {
    matches!(kind, Byteswap::Uint16 | Byteswap::Uint32 | Byteswap::Uint64)
}

/// True if data of this kind are bytes, which have no order.
pub(super) fn is_bytes(kind: DmuType) -> bool {
    [DmuType::PLAIN_FILE_CONTENTS, DmuType::ZVOL, DmuType::UINT8_DATA].contains(&kind)
}

/// A part of a block. A short block stands for zeros beyond its end.
pub(super) fn part_of(block: Block, range: Range<usize>) -> Block {
    if block.len() >= range.end {
        return block.try_into_slice(range).unwrap_or_default();
    }
    debug_assert!(range.start <= range.end, "a part begins before it ends");
    let mut padded = Buf::zeroed(range.len());
    copy_into(&mut padded, 0, block.get(range.start..).unwrap_or_default());
    padded.freeze()
}

/// The blocks, of `size` bytes each, that a range reaches up to the object's last one, and where in the first it begins.
/// `None` if it reaches none.
fn blocks_of(offset_bytes: u64, len: usize, size: u64, last: BlockId) -> Option<(RangeInclusive<u64>, usize)> {
    let first = offset_bytes.checked_div(size)?;
    let last_byte = offset_bytes.saturating_add((len as u64).checked_sub(1)?);
    let end = (last_byte / size).min(last.0);
    (first <= end).then(|| (first..=end, (offset_bytes % size) as usize))
}

/// A block with so many bytes: only one that stands in its pointer can have others. Zeros follow where it has less.
fn sized(block: Block, size: usize) -> Block {
    if block.len() == size { block } else { part_of(block, 0..size) }
}

fn copy_into(target: &mut [u8], at: usize, source: &[u8]) {
    let Some(target) = target.get_mut(at..) else { return };
    let len = source.len().min(target.len());
    target[..len].copy_from_slice(&source[..len]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_another_size_gets_that_of_its_object() {
        let block = |len: usize| Block::from(vec![7; len]);
        assert_eq!(&sized(block(512), 512)[..], &[7; 512]);
        assert_eq!(&sized(block(1024), 512)[..], &[7; 512]);
        let longer = sized(block(512), 1024);
        assert_eq!((&longer[..512], &longer[512..]), (&[7; 512][..], &[0; 512][..]));
    }

    #[test]
    fn ranges_at_the_end_of_all_offsets_are_blocks_that_exist_or_none() {
        let last = BlockId(u64::MAX / 512);
        assert_eq!(blocks_of(u64::MAX, 1, 512, last), Some((last.0..=last.0, 511)));
        assert_eq!(blocks_of(u64::MAX, usize::MAX, 512, last), Some((last.0..=last.0, 511)));
        assert_eq!(blocks_of(u64::MAX - 512, 1 << 20, 512, last), Some((last.0 - 1..=last.0, 511)));
        assert_eq!(blocks_of(u64::MAX - 512, 1 << 20, 512, BlockId(7)), None);
        assert_eq!(blocks_of(0, usize::MAX, 512, BlockId(7)), Some((0..=7, 0)));
        assert_eq!(blocks_of(1000, 24, 512, BlockId(u64::MAX)), Some((1..=1, 488)));
        assert_eq!(blocks_of(1000, 25, 512, BlockId(u64::MAX)), Some((1..=2, 488)));
        assert_eq!(blocks_of(5, 0, 512, last), None);
        assert_eq!(blocks_of(5, 10, 0, last), None);
    }
}
