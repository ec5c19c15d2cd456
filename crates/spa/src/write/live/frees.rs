//! Space that is being freed in the background: changes for which there is no space now wait for it.
//!
//! Whoever frees says so for as long as there is something to free, and that it goes on. A change that is refused for want of space
//! waits for that and a txg, and asks again; it gives up where nothing is being freed, or nothing has gone on for a while. OpenZFS's
//! changes wait likewise while txgs that are under way may free something.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_dmu::tx::{Cost, Tx, TxError};
use cenote_format::ids::ObjectId;
use cenote_taskq::sync::Mutex;

use super::LiveHead;

/// For so long a change waits for the next piece to be freed.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// Pieces are freed in all txgs that there are; so often it is looked whether there is space now.
const LOOK: Duration = Duration::from_millis(200);

/// Who frees something in the background.
#[derive(Debug, Default)]
pub(super) struct Frees {
    /// By dataset.
    under_way: Mutex<BTreeMap<ObjectId, u64>>,
    /// Pieces freed so far.
    pieces: AtomicU64,
}

/// Somebody is about to free something of a dataset, until this is dropped.
#[derive(Debug)]
pub struct PendingFrees {
    frees: Arc<Frees>,
    dataset: ObjectId,
}

impl PendingFrees {
    /// Another piece is freed.
    pub fn went_on(&self) {
        self.frees.pieces.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for PendingFrees {
    fn drop(&mut self) {
        // What was freed last is not on disk yet: that is something too.
        self.went_on();
        let mut under_way = self.frees.under_way.lock();
        if let Some(count) = under_way.get_mut(&self.dataset) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.dataset);
            }
        }
    }
}

impl Frees {
    /// Whether something is being freed that may make room: anything, for a full pool; something of the dataset, for a quota.
    fn may_help(&self, error: &TxError, dataset: ObjectId) -> bool {
        let under_way = self.under_way.lock();
        match error {
            TxError::NoSpace => !under_way.is_empty(),
            TxError::Quota(_) => under_way.contains_key(&dataset),
            TxError::Closed | TxError::Suspended(_) => false,
        }
    }
}

impl LiveHead {
    /// Says that something of the dataset is about to be freed, until what comes back is dropped.
    #[must_use]
    pub fn frees_begin(&self) -> PendingFrees {
        let frees = self.pool.shared.frees.clone();
        *frees.under_way.lock().entry(self.head.dataset).or_default() += 1;
        PendingFrees { frees, dataset: self.head.dataset }
    }

    /// Assigns a txg; a change that takes space waits for what is being freed where there is none without.
    pub(super) async fn assign(&self, cost: Cost) -> Result<Tx, TxError> {
        let shared = &self.pool.shared;
        let (mut since, mut pieces) = (shared.handle.now(), shared.frees.pieces.load(Ordering::Relaxed));
        loop {
            let error = match shared.txgs.assign(cost, Some(&self.account)).await {
                Ok(tx) => return Ok(tx),
                Err(error) => error,
            };
            let (now, freed) = (shared.handle.now(), shared.frees.pieces.load(Ordering::Relaxed));
            let has_gone_on = freed != pieces;
            if has_gone_on {
                (since, pieces) = (now, freed);
            }
            // What frees must not wait for what frees.
            let may_help = has_gone_on || shared.frees.may_help(&error, self.head.dataset);
            if cost.frees || !may_help || now - since > IDLE_MAX {
                return Err(error);
            }
            if !has_gone_on {
                shared.handle.sleep(LOOK).await;
            }
            shared.txgs.sync().await?;
        }
    }
}
