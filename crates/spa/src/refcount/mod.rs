//! Reference counts of cloned and deduplicated blocks (BRT and DDT): dropping references, and adding those of intent logs.
//!
//! # Theory
//!
//! **Need.** A killed block can be freed when nothing else references it. Births and deadlists account for references by snapshots. Two
//! kinds of tables in the MOS count all other references: the block reference table (`brt`) has blocks that were cloned, with the
//! references beyond the first; the dedup tables (`ddt`) have each block that was written with dedup, with all references.
//!
//! **Life of a killed block.**
//! ```text
//! dedup bit? ── in its table, of the same birth? ── one reference fewer ── none left? ── the entry goes, its copies are free
//!    │no               │no: it was pruned                     │left: it stays
//!    └────────┬────────┘
//! level 0 of data? ── in the block reference table? ── one reference fewer; without any the entry goes. The block stays:
//!    │no                      │no                      the count does not have the one that is left
//!    └────────┬───────────────┘
//!   all copies are free
//! ```
//! Claiming an intent log adds references to the blocks that its records cloned (`clone`); freeing the log gives them up.
//!
//! Only data blocks are shared, so blocks of the MOS never pass through here, and blocks that the writing of the tables frees are freed
//! directly. All tables are written before the first sync pass, so they do not delay the convergence of the passes.
//!
//! **In memory.** For the BRT of a vdev, one 16-bit count for each 16 MiB, which shows without a read whether a block can be in the
//! table; and some blocks of each table, with their changes in this txg. The dedup tables' logs (`log`) are read as a whole, once, when
//! the first deduplicated block is given up, and put into the tables.
//!
//! **Rejected.** *Writing to the dedup log*, as OpenZFS does: it spreads the tables' random writes over txgs, at the price of a log that
//! has to be flushed. Frees of deduplicated blocks are rare here, and the tables that are written are those that OpenZFS has after its own
//! flush.
//!
//! **Crash.** The tables are objects of the MOS, and change with the txg.

mod brt;
mod clone;
mod ddt;
pub(crate) mod known;
mod log;
#[cfg(test)]
pub(crate) mod tests;

use cenote_dmu::{ObjectSpec, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{ObjectId, Txg};

use crate::SpaError;
use crate::sync::rooms::InTxg;

/// Blocks of a table that are held in memory before the changed ones are handed on.
const HELD_BLOCKS_MAX: usize = 128;

/// Whether a block may be shared: only data of files and volumes is.
pub(crate) fn is_data(bp: &Blkptr) -> bool {
    bp.level() == 0 && !bp.dmu_type().is_metadata()
}

impl InTxg<'_> {
    /// Removes one reference to a block. Returns the blocks that are free then.
    pub(crate) async fn give_up(&mut self, txg: Txg, bp: &Blkptr) -> Result<Vec<Blkptr>, SpaError> {
        debug_assert!(!bp.is_hole() && !bp.is_embedded(), "references are to blocks that are stored");
        let mut free = vec![*bp];
        if bp.dedup() {
            match self.give_up_deduplicated(txg, bp).await? {
                // A block that the dedup tables report as free may have been cloned while it was not in them.
                Some(gone) => free = gone,
                None => free.iter_mut().for_each(|bp| bp.set_dedup(false)),
            }
        }
        let mut unshared = Vec::new();
        for bp in free {
            if !is_data(&bp) || !self.give_up_clone(txg, &bp).await? {
                unshared.push(bp);
            }
        }
        debug_assert!(unshared.iter().all(|bp| !bp.dedup()), "the dedup tables have nothing of what is free");
        Ok(unshared)
    }

    /// Writes what has changed of the tables. For the datasets' part of a txg: nothing that comes later changes them.
    pub(crate) async fn save_shared(&mut self, txg: Txg) -> Result<(), SpaError> {
        self.save_clones(txg).await?;
        self.save_dedup(txg).await
    }

    fn saved_changed(&mut self, by: i64) {
        self.blocks.shared.saved_bytes = self.blocks.shared.saved_bytes.saturating_add_signed(by);
    }

    /// Bytes that a block uses, as datasets count them.
    fn used_bytes(&self, bp: &Blkptr) -> u64 {
        self.blocks.writer.space_of(bp).used_bytes.unsigned_abs()
    }

    /// A number in a directory.
    async fn number_in(&self, directory: &mut Zap, name: &str) -> Result<Option<u64>, SpaError> {
        let value = directory.lookup(name.as_bytes()).await?;
        Ok(value.and_then(|value| value.as_u64()))
    }

    async fn zap_at(&self, object: ObjectId) -> Result<Zap, SpaError> {
        let object = self.mos.objset.object(object).await?;
        Ok(Zap::open(object).await?)
    }

    /// Hands on what has changed of a table, when much of it is in memory.
    async fn trim(&self, txg: Txg, table: &mut Zap) -> Result<(), SpaError> {
        if table.changed_blocks() > HELD_BLOCKS_MAX {
            table.flush(txg).await?;
        }
        Ok(())
    }

    /// Makes a table whose keys are words, with blocks of this size.
    fn make_table(&self, txg: Txg, kind: DmuType, block_shift: u8, is_prehashed: bool) -> Result<Zap, SpaError> {
        let mut spec = ObjectSpec::new(kind, 1 << block_shift);
        spec.indirect_shift = block_shift;
        let object = self.mos.objset.create_object(txg, &spec)?;
        Ok(Zap::create_for_words(object, is_prehashed)?)
    }
}
