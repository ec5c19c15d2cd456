//! The statistics of a pool in use.

use std::sync::Arc;
use std::time::Duration;

use cenote_arc::Cache;
use cenote_kstat::{Registry, Snapshot, Stat};
use cenote_taskq::buf;
use cenote_zio::ZioError;

use super::history::TxgRecord;
use super::{Pool, Shared};

/// The registry.
#[derive(Default)]
pub(super) struct Kstats {
    registry: Registry,
}

impl Pool {
    /// Its statistics, to which those who serve it may add their own.
    #[must_use]
    pub fn kstats(&self) -> &Registry {
        &self.shared.kstats.registry
    }
}

/// Has the statistics of a pool be read from what its layers count.
pub(super) fn register(shared: &Arc<Shared>, cache: &Arc<Cache<ZioError>>) {
    let registry = &shared.kstats.registry;
    registry.add(cache, |cache, snapshot| {
        cache.stats().kstat(snapshot);
        // The process's, which all of its pools share.
        let buffers = buf::stats();
        let sheet = snapshot.group("cenote_buffers");
        sheet.level("allocated", buffers.allocated_bytes);
        sheet.level("pooled", buffers.pooled_bytes);
    });
    registry.add(shared, |shared, snapshot| {
        shared.txgs.kstat(snapshot);
        txgs(shared.records.lock().iter(), snapshot);
        shared.tree.upgrade().inspect(|tree| tree.kstat(snapshot));
    });
}

/// The history of txgs, oldest first, with the columns of OpenZFS's `txgs` that are known here. All of them are on disk (state C).
fn txgs<'a>(records: impl Iterator<Item = &'a TxgRecord>, snapshot: &mut Snapshot) {
    let ns = |span: Duration| Stat::Count(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
    let row = |record: &TxgRecord| {
        let state = Stat::Text("C".into());
        let (txg, dirty, passes) = (record.txg.0, record.dirty_bytes, u64::from(record.passes));
        vec![Stat::Count(txg), state, Stat::Count(dirty), ns(record.took), Stat::Count(passes), ns(record.serial)]
    };
    snapshot.group("txgs").table(&["txg", "state", "ndirty", "stime", "passes", "serial"], records.map(row).collect());
}
