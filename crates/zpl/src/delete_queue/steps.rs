//! Freeing a piece at a time.

use std::ops::Range;

use cenote_dmu::Object;
use cenote_dmu::tx::{Cost, TxgSource};
use cenote_zil::LoggedTx;

use super::share::{SHARE_MAX, SHARE_MIN};
use crate::ZplError;
use crate::filesystem::FileSystem;

impl FileSystem {
    /// The last piece of a range that has data, cut to the range.
    pub(crate) async fn last_piece(&self, object: &Object, range: Range<u64>) -> Result<Option<Range<u64>>, ZplError> {
        let Some(last) = object.last_data_block(range.start, range.end).await? else { return Ok(None) };
        let shift = object.phys().blkptrs_per_indirect_shift();
        let start = (last >> shift) << shift;
        let piece = start.max(range.start)..last + 1;
        assert!(piece.start < piece.end && piece.end <= range.end, "a piece lies in the range that it is cut to");
        Ok(Some(piece))
    }

    /// A txg in which something of this weight may be freed.
    pub(crate) async fn begin_piece(&self, cost: Cost, weight: u64) -> Result<LoggedTx, ZplError> {
        loop {
            let mut tx = self.begin(cost.that_frees()).await?;
            let txg = tx.txg();
            let bound = self.shared.objset.frees_max().unwrap_or(SHARE_MAX).clamp(SHARE_MIN, SHARE_MAX);
            if self.in_use()?.share.lock().take(txg, weight, bound) {
                self.shared.objset.count_frees(txg, weight);
                return Ok(tx);
            }
            tx.needs_no_record();
            drop(tx);
            let handle = self.shared.objset.dmu().handle();
            let begun = handle.now();
            self.log()?.wait_synced(txg).await?;
            self.in_use()?.share.lock().adapt(txg, handle.now() - begun, bound);
        }
    }
}
