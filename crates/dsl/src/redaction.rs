//! Lists of redacted blocks, which belong to redaction bookmarks.
//!
//! ```text
//! bookmark ── redaction_list ─► object ─┬─ data: entries of 32 bytes, runs of blocks in rising order
//!                                       └─ bonus, or spill block if they do not fit: how far it reaches, the number of entries,
//!                                          the guids of the snapshots that do not have these blocks
//! ```
//! **Life of a list.** It is created empty with its bookmark. `zfs redact` adds entries, txg by txg, and each time records how far the list
//! reaches; the last ones complete it (all ones). An interrupted list is continued, or destroyed with its bookmark. A bookmark of a redacted
//! snapshot has a complete list without entries, which records the snapshots that it was redacted for.

use cenote_dmu::{ORDER, Object, ObjectSpec};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{BookmarkPhys, RedactBlock, RedactionListPhys};
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;

use crate::{Bookmark, BookmarkCounts, Dsl, DslError};

/// The size of a dnode's bonus that all software supports.
const BONUS_MAX_BYTES: usize = 320;
/// Data blocks of a list.
const BLOCK_BYTES: u32 = 128 << 10;
/// The size of a spill block is a multiple of this.
const SECTOR_BYTES: usize = 512;
/// The largest spill block that Cenote makes: every pool supports it.
const SPILL_MAX_BYTES: usize = 128 << 10;

/// Snapshots of a list at most: as many as fit in the dnode or, with the feature `redaction_list_spill`, a spill block.
#[must_use]
pub fn redaction_snapshots_max(has_spill: bool) -> usize {
    let header = empty(&[]).emit(ORDER).len();
    ((if has_spill { SPILL_MAX_BYTES } else { BONUS_MAX_BYTES }) - header) / 8
}

fn empty(snapshots: &[u64]) -> RedactionListPhys {
    let snapshots = snapshots.iter().copied().map(Guid).collect();
    RedactionListPhys { last_object: 0, last_block: 0, entry_count: 0, snapshots }
}

/// Writes the head of a list to its bonus or spill block.
fn put(list: &Object, txg: Txg, phys: &RedactionListPhys, is_spilled: bool) -> Result<(), DslError> {
    let mut bytes = phys.emit(ORDER);
    if is_spilled {
        bytes.resize(bytes.len().next_multiple_of(SECTOR_BYTES), 0);
        list.set_spill(txg, Some(Block::from(bytes)));
        return Ok(());
    }
    Ok(list.set_bonus(txg, &bytes)?)
}

impl Dsl {
    /// The guids of the snapshots that a redaction bookmark was made for; `None` if it is no such bookmark.
    #[boxed]
    pub async fn bookmark_redaction(&self, bookmark: &Bookmark) -> Result<Option<Vec<u64>>, DslError> {
        let object = bookmark.phys.redaction_list;
        if object.0 == 0 {
            return Ok(None);
        }
        let phys = self.redaction_list(object).await?;
        Ok(Some(phys.snapshots.iter().map(|guid| guid.0).collect()))
    }

    /// The head of the list in this object of the MOS.
    ///
    /// # Errors
    /// It is not such a list, or cannot be read.
    #[boxed]
    pub async fn redaction_list(&self, id: ObjectId) -> Result<RedactionListPhys, DslError> {
        let object = self.mos_object(id).await?;
        let parsed = match object.spill().await? {
            Some((spill, order)) => RedactionListPhys::parse(&spill, order),
            None => object.bonus(RedactionListPhys::parse),
        };
        parsed.map_err(|error| DslError::Format { object: id.0, error })
    }

    /// The place after the last entry of a list: object and block. `(0, 0)` if it has no entries.
    ///
    /// # Errors
    /// It cannot be read.
    #[boxed]
    pub async fn redaction_end(&self, id: ObjectId) -> Result<(u64, u64), DslError> {
        let phys = self.redaction_list(id).await?;
        let Some(last) = phys.entry_count.checked_sub(1) else { return Ok((0, 0)) };
        let object = self.mos_object(id).await?;
        let bytes = object.read(last.saturating_mul(RedactBlock::SIZE_BYTES as u64), RedactBlock::SIZE_BYTES).await?;
        let entry = RedactBlock::parse(&bytes, ORDER);
        let entry = entry.map_err(|error| DslError::Format { object: id.0, error })?;
        Ok((entry.object.0, entry.block.saturating_add(entry.block_count)))
    }

    /// Creates a list without entries for at most [`redaction_snapshots_max`] snapshots. `is_complete`: no entries will follow. `counts` records
    /// a spill block.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn create_redaction_list(
        &self,
        txg: Txg,
        snapshots: &[u64],
        is_complete: bool,
        counts: &mut BookmarkCounts,
    ) -> Result<ObjectId, DslError> {
        let mut phys = empty(snapshots);
        if is_complete {
            (phys.last_object, phys.last_block) = (u64::MAX, u64::MAX);
        }
        let bonus = phys.emit(ORDER);
        let is_spilled = bonus.len() > BONUS_MAX_BYTES;
        let kind = DmuType::UINT64_METADATA;
        // OpenZFS (2.4) has three pointers in the dnode even with a spill block, whose pointer overlaps the last of them.
        let spec = ObjectSpec { has_spill: is_spilled, ..ObjectSpec::new(kind, BLOCK_BYTES) };
        let spec = spec.with_bonus(kind, if is_spilled { Vec::new() } else { bonus });
        let list = self.mos().create_object(txg, &spec)?;
        if is_spilled {
            put(&list, txg, &phys, true)?;
            counts.redaction_list_spill += 1;
        }
        Ok(list.id())
    }

    /// Appends entries to a list, all after those that it has, and records how far it reaches.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn add_redaction(
        &self,
        txg: Txg,
        list: ObjectId,
        blocks: &[RedactBlock],
        last: (u64, u64),
    ) -> Result<(), DslError> {
        let mut phys = self.redaction_list(list).await?;
        let object = self.mos().object(list).await?;
        let is_spilled = object.spill().await?.is_some();
        let bytes: Vec<u8> = blocks.iter().flat_map(|block| block.emit(ORDER)).collect();
        if !bytes.is_empty() {
            object.write(txg, phys.entry_count.saturating_mul(RedactBlock::SIZE_BYTES as u64), &bytes).await?;
        }
        phys.entry_count += blocks.len() as u64;
        (phys.last_object, phys.last_block) = last;
        put(&object, txg, &phys, is_spilled)
    }

    pub(crate) async fn free_redaction_list(
        &self,
        txg: Txg,
        phys: &BookmarkPhys,
        counts: &mut BookmarkCounts,
    ) -> Result<(), DslError> {
        if phys.redaction_list.0 == 0 {
            return Ok(());
        }
        let list = self.mos().object(phys.redaction_list).await?;
        counts.redaction_list_spill -= i64::from(list.spill().await?.is_some());
        list.free(txg);
        Ok(())
    }
}
