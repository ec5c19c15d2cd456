//! How changes got their txgs, under the names of OpenZFS's `dmu_tx`.

use cenote_kstat::{Counters, Snapshot};

use super::TxError;

/// The counted events, in the order of [`NAMES`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A change has got its txg.
    Assigned,
    /// A change waited because much was dirty.
    Delay,
    /// A change waited because intent logs might have to copy much.
    WrlogDelay,
    /// A change waited because as much was dirty as may be.
    OverMax,
    /// A change was refused for a quota.
    Quota,
    /// A change was refused while the pool could not be written.
    Suspended,
    /// A change was refused for another reason.
    Error,
}

const NAMES: [&str; 7] = [
    "dmu_tx_assigned",
    "dmu_tx_dirty_delay",
    "dmu_tx_wrlog_delay",
    "dmu_tx_dirty_over_max",
    "dmu_tx_quota",
    "dmu_tx_suspended",
    "dmu_tx_error",
];

/// The counts.
#[derive(Debug, Default)]
pub(super) struct TxCounts(Counters<7>);

impl TxCounts {
    pub(super) fn count(&self, event: Event) {
        self.0.count(event as usize);
    }

    /// Counts what became of a change.
    pub(super) fn ended<T>(&self, result: &Result<T, TxError>) {
        self.count(match result {
            Ok(_) => Event::Assigned,
            Err(TxError::Quota(_)) => Event::Quota,
            Err(TxError::Suspended(_)) => Event::Suspended,
            Err(TxError::NoSpace | TxError::Closed) => Event::Error,
        });
    }

    pub(super) fn kstat(&self, snapshot: &mut Snapshot) {
        let sheet = snapshot.group("dmu_tx");
        NAMES.into_iter().zip(self.0.sums()).for_each(|(name, count)| sheet.count(name, count));
    }
}
