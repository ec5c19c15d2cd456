//! Changes that wait for space that is being freed; what frees it says so.

use std::time::Duration;

use cenote_dmu::tx::{Cost, PendingFrees, Tx, TxError};

use super::frees::Freeing;
use super::head::LiveHead;

/// How long a change waits for the next piece to be freed.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// Pause before the next try when no piece was freed since the last one.
const LOOK: Duration = Duration::from_millis(200);

/// Frees of a dataset that are about to be made, until this is dropped.
pub struct HeadFrees(LiveHead);

impl PendingFrees for HeadFrees {
    fn went_on(&self) {
        self.change(|freeing| {
            debug_assert!(freeing.pending > 0, "a piece is freed by frees that were announced");
            freeing.pieces += 1;
        });
    }
}

impl HeadFrees {
    fn change(&self, change: impl FnOnce(&mut Freeing)) {
        change(self.0.pool.shared.frees.datasets.lock().entry(self.0.head.dataset).or_default());
    }
}

impl Drop for HeadFrees {
    fn drop(&mut self) {
        // The last pieces make room when their txg is on disk.
        let open = self.0.pool.shared.txgs.open_txg();
        self.change(|freeing| {
            debug_assert!(freeing.pending > 0, "frees that end were announced");
            freeing.pending -= 1;
            freeing.until = freeing.until.max(open);
        });
    }
}

impl LiveHead {
    /// Announces that something of the dataset is about to be freed, until the result is dropped.
    #[must_use]
    pub fn frees_begin(&self) -> HeadFrees {
        let pending = HeadFrees(self.clone());
        pending.change(|freeing| freeing.pending += 1);
        pending
    }

    /// Assigns a txg. A change that finds no space waits for frees that may make room, unless it frees something itself.
    pub(super) async fn assign(&self, cost: Cost) -> Result<Tx, TxError> {
        let shared = &self.pool.shared;
        // When the count of pieces was last seen to change, and the count.
        let mut last = None;
        loop {
            let error = match shared.txgs.assign(cost, Some(&self.account)).await {
                Ok(tx) => return Ok(tx),
                Err(error) if cost.frees => return Err(error),
                Err(error) => error,
            };
            let pieces = shared.frees.pieces(&error, self.head.dataset, shared.txgs.synced_txg());
            let (Some(pieces), now) = (pieces, shared.handle.now()) else { return Err(error) };
            match last {
                Some((since, before)) if before == pieces => {
                    if now - since > IDLE_MAX {
                        return Err(error);
                    }
                    shared.handle.sleep(LOOK).await;
                }
                _ => last = Some((now, pieces)),
            }
            shared.txgs.sync().await?;
        }
    }
}
