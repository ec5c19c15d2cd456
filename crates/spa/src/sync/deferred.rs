//! Frees that OpenZFS has put off: what its last txgs gave up in their later passes waits in a list of the MOS for the next txg.
//!
//! Cenote puts nothing off, since its passes converge by rewriting in place; but what stands in the list when a pool is opened
//! is freed in the first txgs, a bounded number in each, from the end of the list.

use cenote_dmu::SpaceDelta;
use cenote_format::blkptr::Blkptr;
use cenote_format::bpobj::BpobjPhys;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{ObjectId, Txg};

use crate::SpaError;
use crate::sync::Syncer;

/// Blocks freed in one txg: 2 MiB of the list.
const BATCH: u64 = 1 << 14;

impl Syncer {
    /// Whether blocks that OpenZFS has put off freeing are still to be freed: so for the first txgs, if it left any.
    #[must_use]
    pub const fn has_deferred_frees(&self) -> bool {
        self.deferred.is_some()
    }

    /// Frees the next blocks of the list. Before the first pass, since references to shared blocks may end with them.
    pub(crate) async fn free_deferred(&mut self, txg: Txg) -> Result<(), SpaError> {
        let Some(list) = self.deferred else { return Ok(()) };
        let fail = |error| SpaError::Dmu { pool: self.name.clone(), error };
        let object = self.mos.object(list).await.map_err(fail)?;
        let phys = BpobjPhys::parse(&object.phys().bonus, cenote_zio::ORDER);
        let mut phys = phys.map_err(|error| self.fail(format!("the list of deferred frees: {error}")))?;
        let count = phys.blkptr_count.min(BATCH);
        if count == 0 {
            self.deferred = None;
            return Ok(());
        }
        let size = Blkptr::SIZE as u64;
        let first = phys.blkptr_count - count;
        let at = first.checked_mul(size).ok_or_else(|| self.fail("the list of deferred frees has no end"))?;
        let bytes = object.read(at, (count * size) as usize).await.map_err(fail)?;
        let blocks: Vec<Blkptr> = bytes
            .as_chunks::<{ Blkptr::SIZE }>()
            .0
            .iter()
            .map(|bytes| Blkptr::from_array(bytes, cenote_zio::ORDER))
            .collect();
        assert_eq!(blocks.len() as u64, count, "a list is read pointer by pointer");
        let mut space = SpaceDelta::default();
        blocks.iter().for_each(|bp| space.add(self.writer.space_of(bp)));
        let less = |from: u64, bytes: i64| from.saturating_add_signed(bytes.saturating_neg());
        phys.blkptr_count = first;
        phys.bytes = less(phys.bytes, space.used_bytes);
        if let Some([compressed, uncompressed]) = &mut phys.compressed {
            *compressed = less(*compressed, space.compressed_bytes);
            *uncompressed = less(*uncompressed, space.uncompressed_bytes);
        }
        if first == 0 {
            object.truncate(txg);
        }
        object.set_bonus(txg, &phys.emit(cenote_zio::ORDER)).map_err(fail)?;
        self.free_blocks(txg, &blocks).await
    }
}

/// The list of a pool that has one.
pub(crate) async fn list_of(directory: &cenote_dmu::Zap) -> Result<Option<ObjectId>, cenote_dmu::DmuError> {
    Ok(directory.find_u64(pool_directory::SYNC_BPOBJ).await?.map(ObjectId).filter(|list| list.0 != 0))
}
