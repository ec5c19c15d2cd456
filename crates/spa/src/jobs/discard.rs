//! Freeing what only a discarded checkpoint had.
//!
//! **On disk.** The state is what is left: the vdevs' maps of the checkpoint, and the feature's count without the entry of a checkpoint. Each slice takes
//! entries off the end of a map and frees them in the same txg (`cenote_metaslab`'s `kept`), as OpenZFS does, so each of the two goes on where the other stopped.
//! The slice that finds no map takes the count back.
//!
//! **A map that cannot be read, or is damaged,** stalls the job: its space stays allocated.

use cenote_dmu::{DmuError, Zap};
use cenote_format::dsl::pool_directory;
use cenote_taskq::boxed;

use super::{Job, Progress, Slice};
use crate::SpaError;
use crate::sync::rooms::InTxg;
use crate::sync::space::Space;

/// The job, as it is while the pool is open.
#[derive(Debug, Default)]
pub(crate) struct Discard {
    is_under_way: bool,
    /// It has ended in the txg that syncs.
    has_ended: bool,
    progress: Progress,
}

fn left_bytes(space: &Space) -> u64 {
    space.with(|allocator| {
        let vdevs: Vec<_> = allocator.checkpoint_vdevs().collect();
        vdevs.into_iter().map(|vdev| allocator.checkpoint_bytes(vdev)).fold(0, u64::saturating_add)
    })
}

impl Discard {
    /// As the pool's directory has it. `count`: that of the feature.
    pub(crate) async fn open(directory: &Zap, count: u64, space: &Space) -> Result<Self, DmuError> {
        let entry = directory.lookup(pool_directory::CHECKPOINT.as_bytes()).await?;
        let mut job = Self::default();
        if count > 0 && entry.is_none() {
            job.begin(space);
        }
        Ok(job)
    }

    /// The checkpoint is given up.
    pub(crate) fn begin(&mut self, space: &Space) {
        assert!(!self.is_under_way, "a pool has one checkpoint");
        self.is_under_way = true;
        self.progress = Progress { left_bytes: left_bytes(space), ..Progress::default() };
    }

    /// Something is left to be freed.
    pub(crate) const fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// True once after the end.
    pub(crate) fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.has_ended)
    }

    async fn free_some(&mut self, rooms: &mut InTxg<'_>, slice: &mut Slice) -> Result<(), SpaError> {
        let txg = rooms.txg;
        while !slice.is_over(rooms.handle.now()) {
            let space = rooms.blocks.space.clone();
            let tail = space.with(|allocator| {
                let vdev = allocator.checkpoint_vdevs().next()?;
                Some((vdev, allocator.checkpoint_tail(vdev)?))
            });
            let Some((vdev, tail)) = tail else {
                return self.end(rooms);
            };
            let read = async {
                let map = rooms.mos.objset.object(tail.object).await?;
                map.read(tail.offset_bytes, usize::try_from(tail.len_bytes).unwrap_or(usize::MAX)).await
            };
            let bytes = match read.await {
                Ok(bytes) => bytes,
                Err(error) => {
                    let reason = format!("what the checkpoint of vdev {vdev} had is not freed: {error}");
                    self.progress.stall(rooms, reason);
                    return Ok(());
                }
            };
            let mut changes = rooms.mos.space_changes(txg);
            let freed = space.with(|allocator| allocator.discard(&mut changes, txg, vdev, &bytes, slice.blocks_left()));
            let (entries, bytes) = match freed {
                Ok(freed) => freed,
                Err(cenote_metaslab::AllocError::Space(error @ cenote_metaslab::SpaceError::Checkpoint { .. })) => {
                    self.progress.stall(rooms, error.to_string());
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            rooms.make_changes(changes).await?;
            slice.take(usize::try_from(entries).unwrap_or(usize::MAX));
            self.progress.done_bytes = self.progress.done_bytes.saturating_add(bytes);
            self.progress.left_bytes = left_bytes(&space);
        }
        Ok(())
    }

    fn end(&mut self, rooms: &mut InTxg<'_>) -> Result<(), SpaError> {
        self.is_under_way = false;
        self.progress.left_bytes = 0;
        rooms.mos.features.change("zpool_checkpoint", -1);
        self.has_ended = true;
        Ok(())
    }
}

impl Job for Discard {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn has_work(&self) -> bool {
        self.is_under_way
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn progress_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }

    #[boxed]
    async fn slice(&mut self, rooms: &mut InTxg<'_>, slice: &mut Slice) -> Result<(), SpaError> {
        self.free_some(rooms, slice).await
    }
}
