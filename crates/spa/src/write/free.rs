//! Freeing blocks that nobody refers to any more: every extent of every copy, those of a gang's parts too.

use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::gang::MIN_BYTES as GANG_HEADER_BYTES;
use cenote_format::ids::Txg;
use cenote_taskq::BoxFuture;

use super::PoolWriter;
use super::space::extent;
use crate::SpaError;

/// Gangs of gangs at most.
const DEPTH_MAX: u32 = 16;

impl PoolWriter {
    /// Gives up blocks in the txg that syncs: those that nobody else refers to are free.
    pub(super) async fn free_blocks(&mut self, txg: Txg, blocks: &[Blkptr]) -> Result<(), SpaError> {
        let may_have_clones = self.may_have_clones();
        let mut plain = Vec::new();
        for bp in blocks.iter().filter(|bp| !bp.is_hole() && !bp.is_embedded()) {
            self.given_up += 1;
            if !may_have_clones && !bp.dedup() && !bp.is_gang() {
                plain.push(bp);
                continue;
            }
            for bp in self.give_up(txg, bp).await? {
                self.free_block(txg, bp, 0).await?;
            }
        }
        self.free_plain(txg, &plain)
    }

    /// Frees blocks that nobody else can refer to and that are no gangs: all of them while the allocator is held once.
    fn free_plain(&self, txg: Txg, blocks: &[&Blkptr]) -> Result<(), SpaError> {
        let freed = self.space.with(|allocator| {
            let mut extents = blocks.iter().flat_map(|bp| bp.dvas()).map(extent);
            extents.try_for_each(|extent| allocator.free(txg, &extent))
        });
        freed.map_err(|error| self.fail(error))
    }

    fn free_block(&self, txg: Txg, bp: Blkptr, depth: u32) -> BoxFuture<'_, Result<(), SpaError>> {
        Box::pin(async move {
            if bp.is_hole() || bp.is_embedded() {
                return Ok(());
            }
            if depth > DEPTH_MAX {
                return Err(self.fail("a gang block is nested too deeply to be freed"));
            }
            let mut parts = None;
            for dva in bp.dvas() {
                let mut asize_bytes = dva.asize_bytes;
                if dva.gang {
                    let header = self.tree.psize_to_asize(dva.vdev, GANG_HEADER_BYTES as u64, bp.physical_birth());
                    asize_bytes = header.unwrap_or(asize_bytes);
                    if parts.is_none() {
                        parts = cenote_zio::gang::read_header(self.writer.dmu().zio(), &bp, dva).await.ok();
                    }
                }
                self.free_extent(txg, Dva { asize_bytes, ..dva })?;
            }
            if bp.is_gang() {
                let parts =
                    parts.ok_or_else(|| self.fail("the header of a gang block that is freed cannot be read"))?;
                for part in parts.blkptrs {
                    self.free_block(txg, part, depth + 1).await?;
                }
            }
            Ok(())
        })
    }

    fn free_extent(&self, txg: Txg, dva: Dva) -> Result<(), SpaError> {
        self.space.with(|allocator| allocator.free(txg, &extent(dva))).map_err(|error| self.fail(error))
    }
}
