//! Reading an object as of its newest change.
//!
//! The layers in memory are asked first (`object`); what none of them knows is as on disk, and is read through the dnode there,
//! as any reader would. A txg that is synced meanwhile replaces that dnode, and what only the old one led to is freed and, two
//! txgs later, written over: a read that was slower than that meets a bad checksum. It is then done again with the new one.

use std::ops::Range;
use std::sync::Arc;

use cenote_format::Endian;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::BlockId;
use cenote_taskq::JoinError;
use cenote_taskq::buf::{Block, Buf};

use super::object::{Known, Object};
use crate::window::{READS_MAX, in_order};
use crate::{Ahead, DmuError, DmuErrorKind, Dnode, READ_SIZE_MAX_BYTES};

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

impl Object {
    /// A data block as of the newest change; `None` for a hole.
    pub async fn block(&self, block: u64) -> Result<Option<Block>, DmuError> {
        let read = async |dnode: Dnode| dnode.block_on_disk(BlockId(block)).await;
        let mut tries = 0;
        loop {
            let dnode = match self.known(block) {
                Known::Data(data) => return Ok(Some(data)),
                Known::Hole | Known::OnDisk(None) => return Ok(None),
                Known::OnDisk(Some(dnode)) => dnode,
            };
            match read(dnode.clone()).await {
                Ok(Some((_, Endian::Big))) if !is_bytes(dnode.phys().object_type) => {
                    let what = "changing blocks that a big-endian machine wrote";
                    return Err(self.error(DmuErrorKind::Unsupported(what.into())));
                }
                Ok(found) => return Ok(found.map(|(data, _)| data)),
                Err(_) if tries < TRIES_MAX && self.is_replaced(&dnode) => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// `len` bytes at `offset_bytes`; holes and what lies behind the end are zeros. Within one block nothing is copied; the
    /// blocks of a longer range are read at once. The caller bounds `len`, to [`READ_SIZE_MAX_BYTES`] at most.
    pub async fn read(&self, offset_bytes: u64, len: usize) -> Result<Block, DmuError> {
        self.read_with(offset_bytes, len, None).await
    }

    /// As [`Object::read`], for a reader that has read before and will again: see [`Dnode::read_ahead`].
    pub async fn read_ahead(&self, offset_bytes: u64, len: usize, ahead: &Arc<Ahead>) -> Result<Block, DmuError> {
        self.read_with(offset_bytes, len, Some(ahead)).await
    }

    async fn read_with(&self, offset_bytes: u64, len: usize, ahead: Option<&Arc<Ahead>>) -> Result<Block, DmuError> {
        if len > READ_SIZE_MAX_BYTES {
            return Err(self.error(DmuErrorKind::TooLarge(len)));
        }
        if len == 0 {
            return Ok(Block::default());
        }
        let size = self.block_bytes();
        let first = offset_bytes / size;
        let end = offset_bytes.saturating_add(len as u64).div_ceil(size).max(first + 1);
        let mut tries = 0;
        // Mostly nothing of it has changed.
        while let (Known::OnDisk(dnode), known_end) = self.known_run(first, end)
            && known_end == end
        {
            let Some(dnode) = dnode else { return Ok(Buf::zeroed(len).freeze()) };
            let read = match ahead {
                Some(ahead) => dnode.read_ahead(offset_bytes, len, ahead).await,
                None => dnode.read(offset_bytes, len).await,
            };
            match read {
                Err(_) if tries < TRIES_MAX && self.is_replaced(&dnode) => tries += 1,
                result => return result,
            }
        }
        let start = (offset_bytes - first * size) as usize;
        if end == first + 1 {
            let block = self.block(first).await?;
            // A block that had another size stands for zeros behind its end.
            return Ok(match block.map(|block| (block.len() >= start + len, block)) {
                Some((true, block)) => block.try_into_slice(start..start + len).unwrap_or_default(),
                Some((false, block)) => {
                    let mut target = Buf::zeroed(len);
                    copy(&mut target, 0, block.get(start..).unwrap_or_default());
                    target.freeze()
                }
                None => Buf::zeroed(len).freeze(),
            });
        }
        let mut target = Buf::zeroed(len);
        let begin = |block: u64| {
            let object = self.clone();
            let spawned = self.objset().dmu().spawn(async move { object.block(block).await });
            spawned.map_err(|_| self.error(DmuErrorKind::Interrupted("the pool is being exported".into())))
        };
        let take = |block: u64, read: Result<Result<Option<Block>, DmuError>, JoinError>| {
            let read = read.map_err(|error| self.error(DmuErrorKind::Interrupted(error.to_string())))?;
            if let Some(data) = read? {
                let skip = if block == first { start } else { 0 };
                let at = ((block - first) * size) as usize + skip - start;
                copy(&mut target, at, data.get(skip..).unwrap_or_default());
            }
            Ok(())
        };
        in_order(first..end, READS_MAX, begin, take).await?;
        Ok(target.freeze())
    }

    /// The extent that begins at a block, as far as it was looked at, and not beyond the block `limit`.
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

    /// Whether a block is a hole, and a block behind it up to which all are as it is.
    pub(super) async fn piece(&self, block: u64, limit: u64) -> Result<(bool, u64), DmuError> {
        let mut tries = 0;
        loop {
            let (dnode, end) = match self.known_run(block, limit) {
                (Known::Data(_), end) => return Ok((false, end)),
                (Known::Hole | Known::OnDisk(None), end) => return Ok((true, end)),
                (Known::OnDisk(Some(dnode)), end) => (dnode, end),
            };
            match piece_on_disk(&dnode, block, end).await {
                Err(_) if tries < TRIES_MAX && self.is_replaced(&dnode) => tries += 1,
                result => return result,
            }
        }
    }
}

async fn piece_on_disk(dnode: &Dnode, block: u64, end: u64) -> Result<(bool, u64), DmuError> {
    let data = dnode.next_data_block_on_disk(BlockId(block)).await?.map_or(end, |data| data.0.min(end));
    if data > block {
        return Ok((true, data));
    }
    let hole = dnode.next_hole_block_on_disk(BlockId(block)).await?;
    let hole = hole.unwrap_or(BlockId(dnode.last_block().0.saturating_add(1)));
    Ok((false, hole.0.clamp(block + 1, end)))
}

/// Whether data of this kind are bytes, which have no order.
fn is_bytes(kind: DmuType) -> bool {
    [DmuType::PLAIN_FILE_CONTENTS, DmuType::ZVOL, DmuType::UINT8_DATA].contains(&kind)
}

fn copy(target: &mut [u8], at: usize, source: &[u8]) {
    let Some(target) = target.get_mut(at..) else { return };
    let len = source.len().min(target.len());
    target[..len].copy_from_slice(&source[..len]);
}
