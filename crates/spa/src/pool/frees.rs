//! Space that is being freed in the background: changes for which there is no space now wait for it.
//!
//! A file system holds [`HeadFrees`](crate::HeadFrees) for as long as it has something to free, and counts the pieces that it frees. A change that
//! finds no space waits for the next txgs and tries again while pieces are freed that may make room for it: any for a full pool,
//! those of its own dataset for a quota. It fails when there are none, or when none was freed for a while. OpenZFS's changes wait
//! likewise while txgs that are under way may free something.

use std::collections::BTreeMap;

use cenote_dmu::tx::TxError;
use cenote_format::ids::{ObjectId, Txg};
use cenote_taskq::sync::Mutex;

/// Frees in the background, by dataset.
#[derive(Debug, Default)]
pub(super) struct Frees {
    pub(super) datasets: Mutex<BTreeMap<ObjectId, Freeing>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Freeing {
    /// [`HeadFrees`](crate::HeadFrees) of the dataset.
    pub(super) pending: u64,
    /// Pieces freed so far.
    pub(super) pieces: u64,
    /// The newest txg in which a piece may have been freed when a [`HeadFrees`](crate::HeadFrees) ended.
    pub(super) until: Txg,
}

impl Frees {
    /// How many pieces were freed so far of those that may make room for a change with this error; none if there are none to come.
    pub(super) fn pieces(&self, error: &TxError, dataset: ObjectId, synced: Txg) -> Option<u64> {
        let datasets = self.datasets.lock();
        let to_come = |freeing: &Freeing| freeing.pending > 0 || freeing.until > synced;
        match error {
            TxError::NoSpace => datasets.values().any(to_come).then(|| datasets.values().map(|all| all.pieces).sum()),
            TxError::Quota(_) => datasets.get(&dataset).filter(|own| to_come(own)).map(|own| own.pieces),
            TxError::Closed | TxError::Suspended(_) => None,
        }
    }
}
