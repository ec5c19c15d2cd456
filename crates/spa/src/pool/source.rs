//! A head dataset as the source of the txgs that its changes go to.

use cenote_dmu::tx::{Cost, PendingFrees, Tx, TxError, TxgSource};
use cenote_format::ids::Txg;
use cenote_taskq::BoxFuture;

use super::LiveHead;

impl TxgSource for LiveHead {
    fn begin(&self, cost: Cost) -> BoxFuture<'_, Result<Tx, TxError>> {
        Box::pin(Self::begin(self, cost))
    }

    fn wait_synced(&self, txg: Txg) -> BoxFuture<'_, Result<(), TxError>> {
        let shared = &self.pool.shared;
        Box::pin(shared.unless_refused(shared.txgs.wait_synced(txg)))
    }

    fn frees_begin(&self) -> Option<Box<dyn PendingFrees>> {
        Some(Box::new(Self::frees_begin(self)))
    }
}
