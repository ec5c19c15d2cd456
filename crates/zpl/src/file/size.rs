//! Sizes of files, and holes in them.

use cenote_dmu::tx::Cost;
use cenote_format::ids::BlockId;
use std::ops::Range;

use cenote_format::sa::ZplAttribute;
use cenote_format::zil::Tx as Record;
use cenote_format::znode::ZnodeFlags;
use cenote_taskq::buf::Block;
use cenote_taskq::mutant::{self, Mutant};
use cenote_zil::LoggedTx;

use crate::delete_queue::weight;
use crate::filesystem::FileSystem;
use crate::node::Node;
use crate::record::touch;
use crate::{FileKind, ZplError};

/// The supported modes of `fallocate`. Others (inserting and collapsing ranges, sharing and unsharing) are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Make room. Space is not set aside, since what is written takes new space anyway; but the file grows unless its size
    /// is to be kept.
    Reserve {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// Make a hole; the size is kept.
    Punch,
    /// Make zeros.
    Zero {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
}

/// The largest file.
pub(super) const SIZE_MAX_BYTES: u64 = i64::MAX as u64;

/// # Errors
/// A flag forbids changing a file's bytes from `from_bytes` on.
pub(crate) fn check_writable(node: &Node, from_bytes: u64) -> Result<(), ZplError> {
    node.check_there()?;
    node.check_kind(FileKind::File)?;
    let flags = node.with(|record| record.flags());
    if flags.contains(ZnodeFlags::IMMUTABLE) {
        return Err(ZplError::NotPermitted("immutable"));
    }
    if flags.contains(ZnodeFlags::APPEND_ONLY) && from_bytes < node.size_bytes() {
        return Err(ZplError::NotPermitted("only to be appended to"));
    }
    Ok(())
}

/// Blocks whose content changes for zeros in a part.
type Patches = Vec<(u64, Block)>;

impl FileSystem {
    /// Changes the size of a file whose node is locked.
    pub(crate) async fn set_size(&self, node: &Node, size_bytes: u64) -> Result<(), ZplError> {
        check_writable(node, size_bytes)?;
        if size_bytes > SIZE_MAX_BYTES {
            return Err(ZplError::TooLarge);
        }
        if size_bytes < node.size_bytes() {
            return self.shrink(node, size_bytes).await;
        }
        let _range = node.in_use()?.bytes.write(0..u64::MAX).await;
        let grown = self.grown_block(node, size_bytes)?;
        let cost = Cost::default().with_objects(1).with_bytes(u64::from(grown.unwrap_or(0)));
        let mut tx = self.begin(cost).await?;
        if let Some(grown) = grown {
            node.object.set_block_bytes(tx.txg(), grown).await?;
        }
        self.put_size(node, &tx, Some(size_bytes))?;
        tx.log(truncated(node, size_bytes..size_bytes));
        debug_assert_eq!(node.size_bytes(), size_bytes, "a file has the size that it was given");
        Ok(())
    }

    fn put_size(&self, node: &Node, tx: &LoggedTx, size_bytes: Option<u64>) -> Result<(), ZplError> {
        let now = self.now();
        node.update(tx.txg(), |record| {
            if let Some(size) = size_bytes {
                record.put(ZplAttribute::Size, size)?;
            }
            touch(record, now)
        })
    }

    /// Makes a file end at a size that is no larger than its own: what its blocks have behind that becomes zeros.
    pub(crate) async fn shrink(&self, node: &Node, size_bytes: u64) -> Result<(), ZplError> {
        let block_bytes = node.object.block_bytes();
        let _range = node.in_use()?.bytes.write(size_bytes / block_bytes * block_bytes..u64::MAX).await;
        let keep = size_bytes.div_ceil(block_bytes);
        let rest = loop {
            match self.last_piece(&node.object, keep..u64::MAX).await? {
                Some(piece) if piece.start > keep => {
                    let weight = weight(&node.object, piece.end - piece.start);
                    let mut tx = self.begin_piece(Cost::default().with_objects(1), weight).await?;
                    node.object.free_blocks(tx.txg(), piece.start..u64::MAX);
                    let left = node.size_bytes().min(piece.start.saturating_mul(block_bytes));
                    assert!(size_bytes <= left, "a file that is made smaller in steps loses no more than it is to");
                    self.put_size(node, &tx, Some(left))?;
                    // The last step says what all of them come to.
                    tx.needs_no_record();
                }
                rest => break rest,
            }
        };
        assert!(rest.as_ref().is_none_or(|rest| rest.start == keep), "the last piece begins where the file ends");
        let tail = (size_bytes % block_bytes) as usize;
        let mut patches = Patches::new();
        if tail > 0 && !mutant::is(Mutant::TailKept) {
            patch(node, &mut patches, keep - 1, tail..block_bytes as usize).await?;
        }
        let mut tx = self.begin_last(node, rest.as_ref(), &patches).await?;
        if size_bytes == 0 {
            node.object.truncate(tx.txg());
        } else if rest.is_some() {
            node.object.free_blocks(tx.txg(), keep..u64::MAX);
        }
        for (block, data) in patches {
            node.object.write_block(tx.txg(), block, data);
        }
        self.put_size(node, &tx, Some(size_bytes))?;
        tx.log(truncated(node, size_bytes..size_bytes));
        debug_assert_eq!(
            node.size_bytes(),
            size_bytes,
            "a file that is made smaller ends with the size that it was given"
        );
        Ok(())
    }

    /// A txg for the last step of something that frees.
    async fn begin_last(
        &self,
        node: &Node,
        piece: Option<&Range<u64>>,
        patches: &Patches,
    ) -> Result<LoggedTx, ZplError> {
        let cost = Cost::default().with_objects(1);
        let cost = patches.iter().fold(cost, |cost, (_, data)| cost.with_bytes(data.len() as u64)).that_frees();
        match piece {
            Some(piece) => self.begin_piece(cost, weight(&node.object, piece.end - piece.start)).await,
            None => self.begin(cost).await,
        }
    }

    /// Makes a hole in a file whose node is locked: whole blocks are freed, parts of blocks become zeros.
    async fn punch(&self, node: &Node, range: Range<u64>) -> Result<(), ZplError> {
        let size = node.size_bytes();
        let range = range.start..range.end.min(size);
        if range.is_empty() {
            return Ok(());
        }
        let block_bytes = node.object.block_bytes();
        let _range = node.in_use()?.bytes.write(range.start / block_bytes * block_bytes..u64::MAX).await;
        let first = range.start.div_ceil(block_bytes);
        let behind = if range.end == size { range.end.div_ceil(block_bytes) } else { range.end / block_bytes };
        let mut patches = Patches::new();
        let head = range.start / block_bytes;
        if head < first {
            let end = (range.end - head * block_bytes).min(block_bytes) as usize;
            patch(node, &mut patches, head, (range.start % block_bytes) as usize..end).await?;
        }
        if behind >= first && behind * block_bytes < range.end {
            patch(node, &mut patches, behind, 0..(range.end % block_bytes) as usize).await?;
        }
        debug_assert!(patches.is_sorted_by(|one, next| one.0 < next.0), "a block has one patch");
        let mut end = behind;
        let mut last = None;
        while let Some(piece) = self.last_piece(&node.object, first..end.max(first)).await? {
            if piece.start == first {
                last = Some(piece);
                break;
            }
            end = piece.start;
            let weight = weight(&node.object, piece.end - piece.start);
            let mut tx = self.begin_piece(Cost::default().with_objects(1), weight).await?;
            node.object.free_blocks(tx.txg(), piece);
            self.put_size(node, &tx, None)?;
            tx.needs_no_record();
        }
        let mut tx = self.begin_last(node, last.as_ref(), &patches).await?;
        if let Some(piece) = last {
            node.object.free_blocks(tx.txg(), piece);
        }
        for (block, data) in patches {
            node.object.write_block(tx.txg(), block, data);
        }
        self.put_size(node, &tx, None)?;
        tx.log(truncated(node, range));
        debug_assert_eq!(node.size_bytes(), size, "a hole leaves a file's size as it was");
        Ok(())
    }

    /// See [`Allocation`]; the node is locked.
    pub(crate) async fn allocate(&self, node: &Node, how: Allocation, range: Range<u64>) -> Result<(), ZplError> {
        check_writable(node, range.start)?;
        if range.end > SIZE_MAX_BYTES {
            return Err(ZplError::TooLarge);
        }
        if range.is_empty() {
            return Err(ZplError::Invalid("an empty range"));
        }
        let keeps = match how {
            Allocation::Reserve { keep_size } => keep_size,
            Allocation::Punch => {
                self.punch(node, range.clone()).await?;
                true
            }
            Allocation::Zero { keep_size } => {
                self.punch(node, range.clone()).await?;
                keep_size
            }
        };
        if !keeps && range.end > node.size_bytes() {
            self.set_size(node, range.end).await?;
        }
        Ok(())
    }
}

/// The record of a file that ends where the range begins, if that is empty; else of a hole.
const fn truncated(node: &Node, range: Range<u64>) -> Record<'static> {
    Record::Truncate { object: node.id, offset_bytes: range.start, length_bytes: range.end - range.start }
}

/// Notes a block with zeros in a part, unless it is a hole.
async fn patch(node: &Node, patches: &mut Patches, block: u64, part: Range<usize>) -> Result<(), ZplError> {
    let Some((data, _)) = node.object.block(BlockId(block)).await? else { return Ok(()) };
    let mut data = data.into_buf();
    let Some(target) = data.get_mut(part) else {
        let what = format!("block {block} has not the size of the others");
        return Err(ZplError::Corrupt { object: node.id.0, what });
    };
    target.fill(0);
    assert_eq!(data.len() as u64, node.object.block_bytes(), "a block of a file in use has the size of the others");
    patches.push((block, data.freeze()));
    Ok(())
}
