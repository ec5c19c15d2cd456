//! The space that the replay of a claimed log may use: all that can be allocated, in txgs that are small where that is little.

use cenote_dmu::tx::{Cost, TxError};

use crate::Log;

/// Where space is short the txg of a replay is written when it has made one part in so many of what is left dirty.
const DIRTY_PART: u64 = 8;
/// A txg takes so much whatever is in it: the objects of the pool, three copies of each block.
const SYNC_BYTES: u64 = 96 << 10;
/// Of the worst case of a change of names or attributes, one part in so many is what it takes.
const WORST_PART: u64 = 8;
/// Syncs after which what earlier ones have freed can be used.
const SYNCS: u32 = 4;

impl Log {
    /// Bytes that can be allocated, where that is not enough for what is dirty, for so many bytes more, and for what is kept back; and the
    /// bytes that are dirty.
    fn short_of(&self, bytes: u64) -> Option<(u64, u64)> {
        let writer = self.writer.as_ref()?;
        let (free, kept) = writer.io.allocator.replay_space()?;
        let dirty = writer.txgs.unsynced_bytes();
        // Twice, for copies and parity, and for what stands above the data.
        let is_short = free < dirty.saturating_add(bytes).saturating_mul(2).saturating_add(kept);
        is_short.then_some((free, dirty))
    }

    /// Whether space is short.
    pub(crate) fn replay_is_short(&self) -> bool {
        self.short_of(0).is_some()
    }

    /// Whether a replay should have its changes written before it goes on.
    pub(crate) fn replay_is_full(&self) -> bool {
        self.short_of(0).is_some_and(|(free, dirty)| dirty >= free / DIRTY_PART)
    }

    /// Waits until a change of a replay can be written. Changes of others are written meanwhile, and what was freed comes back.
    ///
    /// # Errors
    /// There is no space for it: better that the log stays than that the pool stops.
    pub(crate) async fn wait_for_room(&self, cost: &Cost) -> Result<(), TxError> {
        // Only a write of data changes one object and says how much it writes.
        let Some(writer) = &self.writer else { return Ok(()) };
        let bytes = cost.data_bytes(writer.txgs.dirty().unit_bytes());
        let bytes = if cost.object_count() > 1 { bytes / WORST_PART } else { bytes };
        for _ in 0..SYNCS {
            let Some((free, dirty)) = self.short_of(bytes) else { return Ok(()) };
            if dirty.saturating_add(bytes).saturating_add(SYNC_BYTES) <= free / 4 * 3 {
                return Ok(());
            }
            self.source.wait_synced(writer.txgs.open_txg()).await?;
        }
        Err(TxError::NoSpace)
    }
}
