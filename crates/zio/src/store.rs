//! Storing: blocks that have their places, to devices.
//!
//! A block goes to all its places at once, and is stored while one of them has it. Many small blocks of a txg lie side by side,
//! since they were placed one after the other: what a device then does for each of them (a request, its completion, a task that
//! is woken) costs more than the block. So [`Zio::store_all`] writes neighbours as one, where the vdev has them side by side too:
//!
//! ```text
//!   placed:   a(0,4K)  b(4K,8K)  c(12K,4K)  d(64K,4K)        e(1M, 1M)
//!   written:  |------- one write -------|   |- one -|        as it is: copying it would cost more
//! ```
//! Where such a write fails each block is written alone, so that an error says whose it is.

use cenote_format::blkptr::Dva;
use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{boxed, join_all};
use cenote_vdev::error::VdevError;
use cenote_vdev::tree::WriteContext;

use crate::write::padded;
use crate::{Allocator, Placed, Zio, ZioError, ZioErrorKind};

/// Blocks from this size on are not copied together: a request to the device costs less than the copy.
const JOINED_BLOCK_MAX_BYTES: usize = 64 << 10;
/// The longest write of neighbours.
const RUN_MAX_BYTES: usize = 1 << 20;

/// Neighbours on a vdev, in the order of their places: of each block its index and its bytes.
struct Run {
    vdev: VdevId,
    start_bytes: u64,
    len_bytes: usize,
    blocks: Vec<(usize, Block)>,
}

impl Run {
    /// Whether a block goes on where this ends.
    fn takes(&self, dva: &Dva, block: &Block) -> bool {
        self.vdev == dva.vdev
            && self.start_bytes + self.len_bytes as u64 == dva.offset_bytes
            && self.len_bytes + block.len() <= RUN_MAX_BYTES
    }

    fn bytes(&self) -> Block {
        if let [(_, block)] = &self.blocks[..] {
            return block.clone();
        }
        let mut all = Buf::unfilled(self.len_bytes);
        let mut at = 0;
        for (_, block) in &self.blocks {
            all[at..at + block.len()].copy_from_slice(block);
            at += block.len();
        }
        // On a device, bytes not filled would be memory of others.
        assert_eq!(at, self.len_bytes, "a run is as long as its blocks");
        all.freeze()
    }
}

impl Zio {
    /// Writes a placed block to all its places at once. Of each part, one copy is enough. The leaves that should have it
    /// and have not come back.
    ///
    /// # Errors
    /// Too few devices took it. Its space stays allocated.
    pub async fn store(&self, allocator: &dyn Allocator, placed: Placed) -> Result<Vec<Guid>, ZioError> {
        let fail = |kind| ZioError::new(placed.bookmark, kind);
        debug_assert!(placed.is_of_its_txg(), "what is stored was born in the txg that stores it");
        let mut missed = Vec::new();
        for stored in join_all(
            placed
                .writes
                .iter()
                .map(|(dvas, block)| self.store_part(allocator, dvas, block, WriteContext::new(placed.txg), true)),
        )
        .await
        {
            missed.extend(stored.map_err(fail)?);
        }
        missed.sort_unstable();
        missed.dedup();
        Ok(missed)
    }

    /// As [`Zio::store`] for blocks of one txg, neighbours together. The first error ends it, when all have been tried.
    ///
    /// # Errors
    /// As [`Zio::store`], of the first block that too few devices took.
    #[boxed]
    pub async fn store_all(&self, allocator: &dyn Allocator, placed: Vec<Placed>) -> Result<Vec<Guid>, ZioError> {
        let (runs, mut alone) = self.runs(allocator, &placed)?;
        let txg = placed.first().map_or(Txg(0), |placed| placed.txg);
        debug_assert!(placed.iter().all(|placed| placed.txg == txg), "blocks that are stored together are of one txg");
        debug_assert!(placed.iter().all(Placed::is_of_its_txg), "what is stored was born in the txg that stores it");
        let tree = self.tree();
        let writes = runs.iter().map(|run| {
            let bytes = run.bytes();
            async move { tree.write(run.vdev, run.start_bytes, &bytes, txg).await }
        });
        let mut missed = Vec::new();
        for (run, written) in runs.iter().zip(join_all(writes).await) {
            match written {
                Ok(written) => missed.extend(written.missed),
                Err(_) => alone.extend(run.blocks.iter().map(|(index, _)| *index)),
            }
        }
        alone.sort_unstable();
        alone.dedup();
        let mut rest = alone.into_iter().peekable();
        let placed = placed.into_iter().enumerate();
        let placed = placed.filter(|(index, _)| rest.next_if_eq(index).is_some()).map(|(_, placed)| placed);
        for stored in join_all(placed.map(|placed| self.store(allocator, placed))).await {
            missed.extend(stored?);
        }
        missed.sort_unstable();
        missed.dedup();
        Ok(missed)
    }

    /// Runs of neighbours among small blocks, and the indices of the blocks that go alone.
    fn runs(&self, allocator: &dyn Allocator, placed: &[Placed]) -> Result<(Vec<Run>, Vec<usize>), ZioError> {
        let tree = self.tree();
        let (mut runs, mut alone): (Vec<Run>, Vec<usize>) = (Vec::new(), Vec::new());
        // Copies of neighbours are neighbours, each on its own vdev: a run is open for each copy.
        let mut open: Vec<usize> = Vec::new();
        for (index, placed) in placed.iter().enumerate() {
            let is_small = |(dvas, block): &(Vec<Dva>, Block)| {
                block.len() < JOINED_BLOCK_MAX_BYTES && dvas.iter().all(|dva| tree.keeps_neighbours(dva.vdev))
            };
            if !placed.writes.iter().all(is_small) {
                alone.push(index);
                continue;
            }
            for (dvas, block) in &placed.writes {
                open.resize(open.len().max(dvas.len()), usize::MAX);
                for (copy, dva) in dvas.iter().enumerate() {
                    let checked = allocator.check_write(*dva);
                    checked.map_err(|error| ZioError::new(placed.bookmark, error))?;
                    let block = self.in_sectors(dva.vdev, block);
                    match runs.get_mut(open[copy]).filter(|run| run.takes(dva, &block)) {
                        Some(run) => {
                            run.len_bytes += block.len();
                            run.blocks.push((index, block));
                        }
                        None => {
                            open[copy] = runs.len();
                            let (start_bytes, len_bytes) = (dva.offset_bytes, block.len());
                            runs.push(Run { vdev: dva.vdev, start_bytes, len_bytes, blocks: vec![(index, block)] });
                        }
                    }
                }
            }
        }
        debug_assert!(runs.iter().all(|run| run.len_bytes <= RUN_MAX_BYTES), "no run is longer than a run may be");
        debug_assert_eq!(
            runs.iter().map(|run| run.blocks.len()).sum::<usize>()
                + alone.iter().map(|at| placed[*at].places()).sum::<usize>(),
            placed.iter().map(Placed::places).sum::<usize>(),
            "every place of every block is written to, once"
        );
        Ok((runs, alone))
    }

    /// A block's bytes with zeros up to the vdev's next sector.
    pub(crate) fn in_sectors(&self, vdev: VdevId, physical: &Block) -> Block {
        let sector = 1_usize << self.tree().ashift(vdev).unwrap_or(0);
        if physical.len().is_multiple_of(sector) {
            return physical.clone();
        }
        padded(physical, physical.len().next_multiple_of(sector)).freeze()
    }

    /// Writes the bytes to all places at once. Good while one of them has them. `waits`: for devices, in a pool that waits for them; else
    /// it fails where they cannot be written, and where the pool is suspended.
    pub(crate) async fn store_part(
        &self,
        allocator: &dyn Allocator,
        dvas: &[Dva],
        physical: &Block,
        context: WriteContext,
        waits: bool,
    ) -> Result<Vec<Guid>, ZioErrorKind> {
        assert!(!dvas.is_empty(), "what is stored has a place");
        let tree = self.tree();
        let writes = dvas.iter().map(|dva| async move {
            let block = self.in_sectors(dva.vdev, physical);
            allocator.check_write(*dva)?;
            Ok::<_, ZioErrorKind>(match waits {
                true => tree.write(dva.vdev, dva.offset_bytes, &block, context).await,
                false => tree.write_unless_suspended(dva.vdev, dva.offset_bytes, &block, context).await,
            })
        });
        let mut missed = Vec::new();
        let mut last = None;
        let mut good = 0;
        for written in join_all(writes).await {
            match written? {
                Ok(written) => {
                    good += 1;
                    missed.extend(written.missed);
                }
                Err(error) => {
                    // Where another copy is good this one is lacking all the same.
                    if let VdevError::Unwritable { faults, .. } = &error {
                        missed.extend(faults.iter().map(|fault| fault.guid));
                    }
                    last = Some(error);
                }
            }
        }
        match last {
            Some(last) if good == 0 => Err(ZioErrorKind::NoCopyWritten { copies: dvas.len(), last }),
            _ => Ok(missed),
        }
    }
}
