//! Order among writers that share a lock: one txg at a time.

use cenote_format::ids::Txg;
use cenote_taskq::Notify;
use cenote_taskq::sync::Mutex;
use cenote_zil::LoggedTx;

/// Lets writers of the same txg through; a writer of a later txg waits until they are done.
pub(super) struct Gate {
    state: Mutex<(Txg, u64)>,
    emptied: Notify,
}

pub(super) struct Through<'a>(&'a Gate);

impl Default for Gate {
    fn default() -> Self {
        Self { state: Mutex::new((Txg(0), 0)), emptied: Notify::new() }
    }
}

impl Gate {
    pub(super) async fn enter(&self, txg: Txg) -> Through<'_> {
        loop {
            let emptied = self.emptied.wait();
            {
                let mut state = self.state.lock();
                assert!(state.0 <= txg, "a writer's txg is never earlier than that of one before");
                if state.1 == 0 || state.0 == txg {
                    *state = (txg, state.1 + 1);
                    return Through(self);
                }
            }
            emptied.await;
        }
    }
}

impl Drop for Through<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.1 -= 1;
        if state.1 == 0 {
            drop(state);
            self.0.emptied.all();
        }
    }
}

/// A writer's txg.
pub(crate) struct SharedTxg<'a> {
    pub(super) tx: LoggedTx,
    pub(super) _through: Through<'a>,
}

impl SharedTxg<'_> {
    pub(crate) const fn txg(&self) -> Txg {
        self.tx.txg()
    }

    pub(crate) const fn change(&mut self) -> &mut LoggedTx {
        &mut self.tx
    }
}
