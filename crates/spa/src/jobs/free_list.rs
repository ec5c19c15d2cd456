//! Freeing the blocks that only destroyed snapshots had, in the background.
//!
//! **On disk.** The directory's entry `free_bpobj` is a list of blocks, with lists below it. A snapshot that is destroyed leaves the lists
//! of what only it had there, and their bytes count to the directory `$FREE`.
//!
//! **Life of a block in it.** Each txg's slice takes blocks off the end of the list, frees them, and takes their bytes off `$FREE`. OpenZFS
//! goes on where Cenote stopped, and the other way round.
//!
//! **If the list cannot be read**, its blocks are not freed: the job stands still until the pool is opened again, and tells the owner.

use cenote_dmu::SpaceDelta;
use cenote_dsl::UsedBy;
use cenote_format::bpobj::BpobjPhys;
use cenote_format::ids::Txg;
use cenote_zio::ORDER;

use crate::SpaError;
use crate::config::PoolState;
use crate::jobs::{SLICE_BLOCKS_MAX, Slice};
use crate::sync::Syncer;

/// Blocks that are taken off the list at once: 2 MiB of it.
const BATCH: u64 = 1 << 14;

impl Syncer {
    /// Blocks were put into the list.
    pub(crate) fn free_list_changed(&mut self) {
        self.jobs.free_list.has_work = true;
    }

    /// Frees blocks of the list for a slice. Before the datasets are written, since references to shared blocks may end with them.
    pub(crate) async fn free_listed(&mut self, txg: Txg) -> Result<(), SpaError> {
        if !self.jobs.free_list.goes_on() || self.state != PoolState::Active {
            return Ok(());
        }
        let now = self.handle.now();
        self.jobs.free_list.begun.get_or_insert(now);
        let mut slice = Slice::new(now, SLICE_BLOCKS_MAX);
        let list = self.mos.objset.object(self.mos.dsl.free_bpobj()).await?;
        let mut freed = SpaceDelta::default();
        while !slice.is_over(self.handle.now()) {
            let blocks = match self.mos.dsl.take_blocks(txg, &list, BATCH).await {
                Ok(blocks) => blocks,
                Err(error) => {
                    let reason = format!("blocks of destroyed snapshots are not freed: {error}");
                    self.blocks.space.troubles.tell(reason.clone());
                    self.jobs.free_list.stalled = Some(reason);
                    break;
                }
            };
            if blocks.is_empty() {
                self.jobs.free_list.has_work = false;
                break;
            }
            slice.take(blocks.len());
            blocks.iter().for_each(|bp| freed.add(self.blocks.writer.space_of(bp)));
            self.free_blocks(txg, &blocks).await?;
        }
        let free_dir = self.free_dir().await?;
        self.mos.dsl.charge(txg, free_dir, UsedBy::Head, freed.negated()).await?;
        self.jobs.free_list.done_bytes += freed.used_bytes.max(0).cast_unsigned();
        let phys = BpobjPhys::parse(&list.phys().bonus, ORDER)?;
        self.jobs.free_list.left_bytes = phys.bytes;
        Ok(())
    }
}
