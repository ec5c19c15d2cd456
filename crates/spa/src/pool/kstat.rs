//! The statistics of a pool in use.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_arc::Cache;
use cenote_dmu::ObjsetStats;
use cenote_dsl::Head;
use cenote_format::ids::ObjectId;
use cenote_kstat::{Registry, Snapshot, Stat};
use cenote_taskq::buf;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use cenote_zil::Logs;
use cenote_zio::ZioError;

use super::history::TxgRecord;
use super::shared::Shared;
use crate::sync::Syncer;

/// The registry, and the counts of head datasets that are open.
#[derive(Default)]
pub(super) struct Kstats {
    pub(super) registry: Registry,
    /// With the name as of the last txg.
    heads: Mutex<BTreeMap<ObjectId, (String, Weak<ObjsetStats>)>>,
    /// Renamed directories when the names were read.
    renames: AtomicU64,
}

impl Kstats {
    /// A head dataset has been opened.
    pub(super) fn opened(&self, name: &str, head: &Head) {
        let Some(stats) = head.objset.stats() else { return };
        self.heads.lock().insert(head.dataset, (name.to_owned(), Arc::downgrade(stats)));
    }

    /// A change of the pool may have given datasets other names.
    pub(super) async fn refresh_names(&self, writer: &Syncer) {
        let renames = writer.dsl().renames();
        if self.renames.swap(renames, Ordering::Relaxed) == renames {
            return;
        }
        let datasets: Vec<ObjectId> = self.heads.lock().keys().copied().collect();
        // Nothing depends on it: what cannot be read keeps its name.
        let names = writer.dsl().head_names(&datasets).await;
        let mut heads = self.heads.lock();
        for (dataset, name) in names {
            heads.entry(dataset).and_modify(|(known, _)| *known = name);
        }
    }

    fn kstat(&self, logs: Option<&Logs>, snapshot: &mut Snapshot) {
        let mut heads = self.heads.lock();
        heads.retain(|_, (_, stats)| stats.strong_count() > 0);
        for (dataset, (name, stats)) in heads.iter() {
            let Some(stats) = stats.upgrade() else { continue };
            let sheet = snapshot.group(format!("objset-0x{:x}", dataset.0));
            sheet.text("dataset_name", name.as_str());
            stats.kstat(sheet);
            logs.inspect(|logs| logs.kstat_of(*dataset, sheet));
        }
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
        shared.caches.kstat(snapshot);
        shared.autotrim.kstat(snapshot);
        let logs = shared.logs.lock().clone();
        logs.iter().for_each(|logs| logs.kstat(snapshot));
        shared.kstats.kstat(logs.as_ref(), snapshot);
    });
}

/// The history of txgs, oldest first, with the columns of OpenZFS's `txgs` that are known here. All of them are on disk (state C).
fn txgs<'a>(records: impl Iterator<Item = &'a TxgRecord>, snapshot: &mut Snapshot) {
    let ns = |span: Duration| Stat::Count(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
    let row = |record: &TxgRecord| {
        let state = Stat::Text("C".into());
        let (txg, dirty, passes) = (record.txg.0, record.dirty_bytes, u64::from(record.passes));
        let (waited, took, serial) = (ns(record.waited), ns(record.took), ns(record.serial));
        vec![Stat::Count(txg), state, Stat::Count(dirty), waited, took, Stat::Count(passes), serial]
    };
    snapshot
        .group("txgs")
        .table(&["txg", "state", "ndirty", "wtime", "stime", "passes", "serial"], records.map(row).collect());
}
