//! Deferred frees of OpenZFS: blocks that its last txgs freed in later passes (`zfs_sync_pass_deferred_free`) are in a bpobj of the MOS
//! (`sync_bplist`), to be freed in the next txg.
//!
//! Cenote puts nothing off, since its passes converge by rewriting in place; but what stands in the list when a pool is opened
//! is freed in the first txgs, a bounded number in each, from the end of the list.

use cenote_dmu::{DmuError, Zap};
use cenote_format::dsl::pool_directory;
use cenote_format::ids::ObjectId;

use crate::SpaError;
use crate::sync::rooms::InTxg;

/// Blocks freed in one txg: 2 MiB of the list.
const BATCH: u64 = 1 << 14;

/// The list, until it is empty.
#[derive(Debug, Default)]
pub(crate) struct Deferred(Option<ObjectId>);

impl Deferred {
    /// As the pool's directory has it.
    pub(crate) async fn open(directory: &Zap) -> Result<Self, DmuError> {
        Ok(Self(directory.find_u64(pool_directory::SYNC_BPOBJ).await?.map(ObjectId).filter(|list| list.0 != 0)))
    }

    /// There may be blocks in it.
    pub(crate) const fn is_left(&self) -> bool {
        self.0.is_some()
    }

    /// Frees the next blocks of the list. Before the first pass, since references to shared blocks may end with them.
    pub(crate) async fn free_some(&mut self, rooms: &mut InTxg<'_>) -> Result<(), SpaError> {
        let Some(list) = self.0 else { return Ok(()) };
        let object = rooms.mos.objset.object(list).await?;
        let blocks = rooms.mos.dsl.take_blocks(rooms.txg, &object, BATCH).await?;
        if blocks.is_empty() {
            self.0 = None;
            return Ok(());
        }
        rooms.free_blocks(rooms.txg, &blocks).await
    }
}
