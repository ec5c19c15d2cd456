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
use cenote_format::bpobj::BpobjPhys;
use cenote_taskq::boxed;
use cenote_zio::ORDER;

use super::{Job, Progress, SLICE_BLOCKS_MAX, Slice};
use crate::SpaError;
use crate::sync::rooms::InTxg;

/// Blocks that are taken off the list at once: 2 MiB of it.
const BATCH: u64 = 1 << 14;

/// The job, as it is while the pool is open.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    /// The list has blocks.
    has_blocks: bool,
    progress: Progress,
}

impl FreeList {
    /// As the header of the list has it.
    pub(crate) fn open(phys: &BpobjPhys) -> Self {
        Self { has_blocks: !phys.is_empty(), progress: Progress { left_bytes: phys.bytes, ..Progress::default() } }
    }

    /// Blocks were put into the list.
    pub(crate) const fn filled(&mut self) {
        self.has_blocks = true;
    }

    async fn free_some(&mut self, rooms: &mut InTxg<'_>, slice: &mut Slice) -> Result<(), SpaError> {
        let txg = rooms.txg;
        let list = rooms.mos.objset.object(rooms.mos.dsl.free_bpobj()).await?;
        let mut freed = SpaceDelta::default();
        while !slice.is_over(rooms.handle.now()) {
            let blocks = match rooms.mos.dsl.take_blocks(txg, &list, BATCH).await {
                Ok(blocks) => blocks,
                Err(error) => {
                    let reason = format!("blocks of destroyed snapshots are not freed: {error}");
                    self.progress.stall(rooms, reason);
                    break;
                }
            };
            if blocks.is_empty() {
                self.has_blocks = false;
                break;
            }
            slice.take(blocks.len());
            blocks.iter().for_each(|bp| freed.add(rooms.blocks.writer.space_of(bp)));
            rooms.free_blocks(txg, &blocks).await?;
        }
        rooms.mos.charge_free_dir(txg, freed.negated()).await?;
        self.progress.done_bytes += freed.used_bytes.max(0).cast_unsigned();
        let phys = BpobjPhys::parse(&list.phys().bonus, ORDER)?;
        self.progress.left_bytes = phys.bytes;
        Ok(())
    }
}

impl Job for FreeList {
    fn name(&self) -> &'static str {
        "free_bpobj"
    }

    fn has_work(&self) -> bool {
        self.has_blocks
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn progress_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }

    fn blocks_max(&self, _: u64) -> u64 {
        SLICE_BLOCKS_MAX
    }

    #[boxed]
    async fn slice(&mut self, rooms: &mut InTxg<'_>, slice: &mut Slice) -> Result<(), SpaError> {
        self.free_some(rooms, slice).await
    }
}
