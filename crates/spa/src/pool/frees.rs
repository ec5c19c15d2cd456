//! Space that is being freed in the background: changes for which there is no space now wait for it.
//!
//! A file system holds [`HeadFrees`] for as long as it has something to free, and counts the pieces that it frees. A change that
//! finds no space waits for the next txgs and tries again while pieces are freed that may make room for it: any for a full pool,
//! those of its own dataset for a quota. It fails when there are none, or when none was freed for a while. OpenZFS's changes wait
//! likewise while txgs that are under way may free something.

use std::collections::BTreeMap;
use std::time::Duration;

use cenote_dmu::tx::{Cost, PendingFrees, Tx, TxError};
use cenote_format::ids::{ObjectId, Txg};
use cenote_taskq::sync::Mutex;

use crate::pool::LiveHead;

/// How long a change waits for the next piece to be freed.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// Pause before the next try when no piece was freed since the last one.
const LOOK: Duration = Duration::from_millis(200);

/// Frees in the background, by dataset.
#[derive(Debug, Default)]
pub(super) struct Frees {
    datasets: Mutex<BTreeMap<ObjectId, Freeing>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Freeing {
    /// [`HeadFrees`] of the dataset.
    pending: u64,
    /// Pieces freed so far.
    pieces: u64,
    /// The newest txg in which a piece may have been freed when a [`HeadFrees`] ended.
    until: Txg,
}

/// Frees of a dataset that are about to be made, until this is dropped.
pub struct HeadFrees(LiveHead);

impl PendingFrees for HeadFrees {
    fn went_on(&self) {
        self.change(|freeing| freeing.pieces += 1);
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
            freeing.pending -= 1;
            freeing.until = freeing.until.max(open);
        });
    }
}

impl Frees {
    /// How many pieces were freed so far of those that may make room for a change with this error; none if there are none to come.
    fn pieces(&self, error: &TxError, dataset: ObjectId, synced: Txg) -> Option<u64> {
        let datasets = self.datasets.lock();
        let to_come = |freeing: &Freeing| freeing.pending > 0 || freeing.until > synced;
        match error {
            TxError::NoSpace => datasets.values().any(to_come).then(|| datasets.values().map(|all| all.pieces).sum()),
            TxError::Quota(_) => datasets.get(&dataset).filter(|own| to_come(own)).map(|own| own.pieces),
            TxError::Closed | TxError::Suspended(_) => None,
        }
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
