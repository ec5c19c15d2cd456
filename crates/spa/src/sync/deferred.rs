//! Deferred frees of OpenZFS: blocks that its last txgs freed in later passes (`zfs_sync_pass_deferred_free`) are in a bpobj of the MOS
//! (`sync_bplist`), to be freed in the next txg.
//!
//! Cenote puts nothing off, since its passes converge by rewriting in place; but what stands in the list when a pool is opened
//! is freed in the first txgs, a bounded number in each, from the end of the list.

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
        self.jobs.deferred.is_some()
    }

    /// Frees the next blocks of the list. Before the first pass, since references to shared blocks may end with them.
    pub(crate) async fn free_deferred(&mut self, txg: Txg) -> Result<(), SpaError> {
        let Some(list) = self.jobs.deferred else { return Ok(()) };
        let object = self.mos.objset.object(list).await?;
        let blocks = self.mos.dsl.take_blocks(txg, &object, BATCH).await?;
        if blocks.is_empty() {
            self.jobs.deferred = None;
            return Ok(());
        }
        self.in_txg().free_blocks(txg, &blocks).await
    }
}

/// The list of a pool that has one.
pub(crate) async fn list_of(directory: &cenote_dmu::Zap) -> Result<Option<ObjectId>, cenote_dmu::DmuError> {
    Ok(directory.find_u64(pool_directory::SYNC_BPOBJ).await?.map(ObjectId).filter(|list| list.0 != 0))
}
