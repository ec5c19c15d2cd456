//! Invariants of a pool's handle which take a walk to see: for tests and simulations.

use cenote_taskq::boxed;

use super::Pool;
use super::root::Root;
use super::shared::Shared;
use crate::SpaError;

impl Pool {
    /// Checks what is in memory of the pool against itself and the MOS, between two txgs. For a pool that only this version has written, in
    /// tests and simulations.
    ///
    /// # Errors
    /// The MOS cannot be read, or the pool is closed, suspended, or has failed.
    ///
    /// # Panics
    /// Something contradicts something else.
    #[boxed]
    pub async fn audit(&self) -> Result<(), SpaError> {
        let shared = self.shared.clone();
        self.look(move |syncer| {
            Box::pin(async move {
                syncer.audit().await?;
                shared.audit(syncer.txg().0);
                Ok(())
            })
        })
        .await
    }
}

impl Shared {
    /// With the slot, so that no txg is written meanwhile.
    fn audit(&self, open_txg: u64) {
        let root = self.root.lock().as_ref().map(Root::txg);
        assert!(root.is_none_or(|root| root.0 + 1 == open_txg), "the root that is offered is the last");
        assert!(self.txgs.synced_txg().0 < open_txg, "a txg is on disk before the syncer is at the next");
        assert!(self.txgs.open_txg().0 >= open_txg, "changes go to no txg that is on disk");
        let records = self.records.lock();
        assert!(records.iter().is_sorted_by(|one, next| one.txg < next.txg), "txgs are remembered in their order");
        assert!(records.back().is_none_or(|last| last.txg.0 < open_txg), "what is remembered is on disk");
        assert!(self.failed.get().is_none(), "a pool with a syncer has not failed");
    }
}
