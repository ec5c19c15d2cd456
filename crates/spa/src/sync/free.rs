//! Freeing blocks without references: every extent of every copy, those of a gang's members too. What the checkpoint has is kept instead
//! (`cenote_metaslab`'s `kept`): all that was born up to its txg.
//!
//! A freed block leaves the cache at once: nobody will ask for it, and a quiet pool's own objects (a log space map each txg, of 128 KiB) would
//! otherwise fill the cache up to its limit with what is dead. (OpenZFS: `arc_freed`.)

use cenote_dmu::{Dmu, Killed};
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::gang::MIN_BYTES as GANG_HEADER_BYTES;
use cenote_format::ids::Txg;
use cenote_taskq::Class;
use cenote_taskq::mutant::{self, Mutant};

use crate::SpaError;
use crate::sync::rooms::InTxg;
use crate::sync::space::{FREED_AT_ONCE, Space, extent};

/// Gangs of gangs at most.
const DEPTH_MAX: u32 = 16;

impl InTxg<'_> {
    /// Gives up blocks in the txg that syncs: those without another reference are freed.
    pub(crate) async fn free_blocks(&mut self, txg: Txg, blocks: &[Blkptr]) -> Result<(), SpaError> {
        assert_eq!(txg, self.txg, "blocks are given up in the txg that syncs, or in the open one before its sync");
        let may_have_clones = self.may_have_clones();
        let mut plain = Vec::new();
        for bp in blocks.iter().filter(|bp| !bp.is_hole() && !bp.is_embedded()) {
            self.blocks.given_up += 1;
            if !may_have_clones && !bp.dedup() && !bp.is_gang() {
                plain.push(bp);
                continue;
            }
            for bp in self.give_up(txg, bp).await? {
                self.free_block(txg, bp).await?;
            }
        }
        self.free_plain(txg, &plain)
    }

    /// Gives up what a sync has left behind, likewise; the allocator is told of most of it beside what the sync does next, until
    /// [`Self::frees_done`].
    pub(crate) async fn free_killed(&mut self, txg: Txg, killed: Killed) -> Result<(), SpaError> {
        if self.may_have_clones() {
            let blocks: Vec<Blkptr> = killed.iter().copied().collect();
            return self.free_blocks(txg, &blocks).await;
        }
        let count = killed.count();
        let (plain, others) = killed.split_plain();
        assert_eq!(plain.count() + others.len() as u64, count, "a block that is given up is plain or not");
        self.free_blocks(txg, &others).await?;
        if plain.is_empty() {
            return Ok(());
        }
        self.blocks.given_up += plain.count();
        let space = self.blocks.space.clone();
        let checkpoint = self.blocks.checkpoint;
        let dmu = self.blocks.writer.dmu().clone();
        let tell = async move { tell_allocator(&dmu, &space, txg, &plain, checkpoint) };
        self.blocks.free_tasks.push(self.handle.spawn(Class::Sync, tell));
        Ok(())
    }

    /// Frees blocks that were stored for intent logs and that no tree has: as late as all others, since a crash before the txg is on disk has
    /// a log that points to them.
    pub(crate) async fn free_unused(&mut self, txg: Txg, unused: &[Blkptr]) -> Result<(), SpaError> {
        assert!(unused.iter().all(|bp| bp.logical_birth() == txg), "what is stored for a log is of the txg that syncs");
        if mutant::is(Mutant::LogDataFreedEarly) {
            for dva in unused.iter().flat_map(Blkptr::dvas) {
                self.blocks.space.with(|allocator| allocator.unallocate(txg, &extent(dva)))?;
            }
            return Ok(());
        }
        self.free_blocks(txg, unused).await
    }

    /// The allocator knows of all that was freed. Before what a pass has freed is entered into space maps.
    pub(crate) async fn frees_done(&mut self) -> Result<(), SpaError> {
        for told in std::mem::take(&mut self.blocks.free_tasks) {
            told.await??;
        }
        Ok(())
    }

    /// Frees blocks that cannot have another reference and are no gangs: all of them while the allocator is held once.
    fn free_plain(&self, txg: Txg, blocks: &[&Blkptr]) -> Result<(), SpaError> {
        let checkpoint = self.blocks.checkpoint;
        blocks.iter().for_each(|bp| self.blocks.writer.dmu().forget(bp));
        if self.blocks.space.removed.is_any() {
            let (kept, freed): (Vec<&Blkptr>, Vec<&Blkptr>) =
                blocks.iter().copied().partition(|bp| is_kept(bp, checkpoint));
            self.blocks.space.keep_places(txg, kept.into_iter().flat_map(Blkptr::dvas).map(extent))?;
            return self.blocks.space.give_up_places(txg, freed.into_iter().flat_map(Blkptr::dvas).map(extent));
        }
        let freed = self.blocks.space.with(|allocator| {
            blocks.iter().try_for_each(|bp| {
                let is_kept = is_kept(bp, checkpoint);
                bp.dvas().map(extent).try_for_each(|extent| match is_kept {
                    true => allocator.keep(txg, &[extent]),
                    false => allocator.free(txg, &extent),
                })
            })
        });
        Ok(freed?)
    }

    async fn free_block(&self, txg: Txg, bp: Blkptr) -> Result<(), SpaError> {
        // All are known before any is freed, since a header may have to be waited for.
        let places = self.places_of(&bp).await?;
        self.blocks.writer.dmu().forget(&bp);
        if !is_kept(&bp, self.blocks.checkpoint) {
            return self.blocks.space.give_up_places(txg, places.into_iter().map(extent));
        }
        self.blocks.space.keep_places(txg, places.into_iter().map(extent))
    }

    /// All places of a block: those of its copies, and of a gang's parts.
    pub(crate) async fn places_of(&self, bp: &Blkptr) -> Result<Vec<Dva>, SpaError> {
        let (mut places, mut pending) = (Vec::new(), vec![(*bp, 0)]);
        while let Some((bp, depth)) = pending.pop() {
            if bp.is_hole() || bp.is_embedded() {
                continue;
            }
            if depth > DEPTH_MAX {
                return Err(SpaError::contradiction("a gang block is nested too deeply to be freed"));
            }
            for dva in bp.dvas() {
                let mut asize_bytes = dva.asize_bytes;
                if dva.gang {
                    let header =
                        self.devices.tree.psize_to_asize(dva.vdev, GANG_HEADER_BYTES as u64, bp.physical_birth());
                    asize_bytes = header.unwrap_or(asize_bytes);
                }
                places.push(Dva { asize_bytes, ..dva });
            }
            if bp.is_gang() {
                let parts = self.gang_parts(&bp).await?;
                pending.extend(parts.into_iter().rev().map(|part| (part, depth + 1)));
            }
        }
        Ok(places)
    }

    /// Reads the pointers in a gang block's header. A pool that can be suspended waits until one copy of the header can be read.
    async fn gang_parts(&self, bp: &Blkptr) -> Result<Vec<Blkptr>, SpaError> {
        loop {
            let mut reason = "it has none".to_owned();
            for dva in bp.dvas().filter(|dva| dva.gang) {
                match cenote_zio::gang::read_header(self.blocks.writer.dmu().zio(), bp, dva).await {
                    Ok(header) => return Ok(header.blkptrs),
                    Err(error) => reason = error.to_string(),
                }
            }
            let what = format!("the header of a gang block that is freed cannot be read: {reason}");
            if !self.blocks.space.suspend(what.clone()).await {
                return Err(SpaError::contradiction(what));
            }
        }
    }
}

/// Whether the checkpoint of this txg has a block: the pool gives it up, and the checkpoint does not.
fn is_kept(bp: &Blkptr, checkpoint: Option<Txg>) -> bool {
    let is_kept = checkpoint.is_some_and(|txg| bp.physical_birth() <= txg);
    is_kept && !mutant::is(Mutant::CheckpointFreed)
}

/// Frees the places of plain blocks: in the order of places, in which what the allocator looks at for one is at hand for the next.
fn tell_allocator(dmu: &Dmu, space: &Space, txg: Txg, plain: &Killed, checkpoint: Option<Txg>) -> Result<(), SpaError> {
    debug_assert!(plain.iter().all(|bp| !bp.is_gang() && !bp.dedup()), "a plain block's places stand in its pointer");
    plain.iter().for_each(|bp| dmu.forget(bp));
    let stored = plain.iter().filter(|bp| !bp.is_hole() && !bp.is_embedded());
    let (kept, freed): (Vec<&Blkptr>, Vec<&Blkptr>) = stored.partition(|bp| is_kept(bp, checkpoint));
    let sorted = |blocks: Vec<&Blkptr>| {
        let mut extents: Vec<_> = blocks.into_iter().flat_map(Blkptr::dvas).map(extent).collect();
        extents.sort_unstable();
        extents
    };
    if space.removed.is_any() {
        space.keep_places(txg, kept.into_iter().flat_map(Blkptr::dvas).map(extent))?;
        return space.give_up_places(txg, freed.into_iter().flat_map(Blkptr::dvas).map(extent));
    }
    sorted(kept).chunks(FREED_AT_ONCE).try_for_each(|some| space.with(|allocator| allocator.keep(txg, some)))?;
    space.free_places(txg, &sorted(freed))
}
