//! A txg's way through the allocator: passes, flushing, its end.

use cenote_format::ids::Txg;
use cenote_taskq::mutant::{self, Mutant};

use super::{Allocator, FlushMode, slot};
use crate::class::ClassKind;
use crate::map::Batch;
use crate::{Keep, MetaslabId, MetaslabWork, SpaceError, SpaceStore, SyncTarget, TxgWork};

impl Allocator {
    /// Has a metaslab's map rewritten in this txg; it must be loaded.
    pub fn condense(&mut self, id: MetaslabId, txg: Txg) -> Result<(), SpaceError> {
        let vdev = self.vdevs.get_mut(&id.vdev).ok_or(SpaceError::NoMetaslab(id))?;
        vdev.metaslab(id.index)?.want_condensed();
        self.dirty[slot(txg)].insert(id);
        Ok(())
    }

    /// Asks for flushes beyond the plan.
    pub fn flush_more(&mut self, mode: FlushMode) {
        self.flush_mode = mode;
    }

    /// Writes the changes of one pass. Passes count from 1 in each txg; writing makes the objects dirty, which allocates
    /// and frees, so the caller goes on until nothing changes.
    pub fn sync(&mut self, store: &mut dyn SpaceStore, txg: Txg, pass: u16) -> Result<(), SpaceError> {
        assert!(pass > 0, "passes count from 1");
        self.pass = pass;
        let batch = Batch { txg, pass, two_words: self.features.spacemap_v2 };
        if pass == 1 && self.features.log_spacemap && !self.dirty[slot(txg)].is_empty() {
            self.flush(store, batch)?;
        }
        for id in self.dirty[slot(txg)].clone() {
            let Some(vdev) = self.vdevs.get_mut(&id.vdev) else { continue };
            let logs = self.features.log_spacemap.then_some(&mut self.logs);
            let work = MetaslabWork::new(id);
            let mut target = SyncTarget { store: &mut *store, batch, logs, tunables: &self.tunables, work };
            vdev.metaslab(id.index)?.sync(&mut target)?;
            self.gathered.add(&target.work);
        }
        self.sync_kept(store, batch)?;
        self.logs.put_header(store)
    }

    /// Flushes those flushed longest ago: as many as the plan says, and more while memory is short.
    fn flush(&mut self, store: &mut dyn SpaceStore, batch: Batch) -> Result<(), SpaceError> {
        if self.logs.oldest().is_none() {
            return Ok(());
        }
        self.logs.open(batch.txg, store, &self.tunables)?;
        let planned = self.logs.flushes_wanted(&self.tunables);
        let mut wanted = match self.flush_mode {
            FlushMode::Paced => planned,
            FlushMode::Requested { total, .. } => {
                let share = self.tunables.zfs_min_metaslabs_to_condense_pct.clamp(1, 100);
                planned.max((total.saturating_mul(share) / 100).max(1))
            }
            FlushMode::Everything => u64::MAX,
        };
        let mut passed_over = None;
        while let Some((id, unflushed, is_dirty)) = self.logs.oldest_after(passed_over) {
            let past = matches!(self.flush_mode, FlushMode::Requested { until, .. } if unflushed > until);
            if unflushed == batch.txg || past {
                self.flush_mode = FlushMode::Paced;
                break;
            }
            if wanted == 0 && !self.logs.exceeds_memory(&self.tunables) {
                break;
            }
            let vdev = self.vdevs.get_mut(&id.vdev).ok_or(SpaceError::NoMetaslab(id))?;
            let (logs, work) = (Some(&mut self.logs), MetaslabWork::new(id));
            let mut target = SyncTarget { store: &mut *store, batch, logs, tunables: &self.tunables, work };
            let metaslab = vdev.metaslab(id.index)?;
            if metaslab.is_unreadable() {
                // Its changes stay in the logs, which are kept for it.
                passed_over = Some((unflushed, id));
                continue;
            }
            if is_dirty {
                metaslab.flush(&mut target)?;
                self.gathered.add(&target.work);
                wanted = wanted.saturating_sub(1);
            } else {
                metaslab.skip_flush(&mut target)?;
            }
        }
        self.logs.set_block_limit(&self.tunables);
        Ok(())
    }

    /// The last pass is over; writes what only then is known. Before the uberblock, and without making anything dirty that
    /// is not.
    pub fn close_txg(&mut self, store: &mut dyn SpaceStore) -> Result<(), SpaceError> {
        self.logs.close(store, &self.tunables)
    }

    /// The txg is on disk: deferred frees come back, weights and balance are computed anew, what was not used for long is
    /// unloaded. `keep` says which frees still wait. Returns the metaslabs that should be loaded next.
    pub fn sync_done(&mut self, txg: Txg, keep: &Keep<'_>, now_ms: u64) -> Result<Vec<MetaslabId>, SpaceError> {
        let keep = if mutant::is(Mutant::DeferNone) { &Keep { may_defer: false, pins: &[] } } else { keep };
        let mut next = Vec::new();
        for id in std::mem::take(&mut self.dirty[slot(txg)]) {
            let Some(vdev) = self.vdevs.get_mut(&id.vdev) else { continue };
            let mut usable = Vec::new();
            let noted = self.freed.is_noted().then_some(&mut usable);
            if vdev.metaslab(id.index)?.sync_done(txg, keep, noted)? {
                next.push(id);
            }
            usable.into_iter().for_each(|range| self.freed.note(id.vdev, range));
            vdev.weigh(id.index, &self.tunables)?;
        }
        // New vdevs come into use with the txg, changed or not.
        for vdev in self.vdevs.values_mut() {
            for index in 0..vdev.metaslabs.len() as u64 {
                if vdev.metaslab(index)?.is_new() {
                    vdev.metaslab(index)?.sync_done(txg, keep, None)?;
                }
            }
            vdev.main.is_full = false;
            vdev.log.is_full = false;
        }
        self.dirty[slot(Txg(txg.0 + 1))].extend(next);
        self.pass = 0;
        if let Some(check) = &mut self.check {
            check.synced(txg, keep);
        }
        ClassKind::ALL.iter().for_each(|kind| self.balance(*kind));
        self.unload_idle(txg, now_ms)?;
        self.fit_memory(None)?;
        self.work = self.gathered.end(&mut self.logs);
        Ok(self.preload())
    }

    /// The work of the last txg that is done ([`Self::sync_done`]).
    #[must_use]
    pub const fn work(&self) -> &TxgWork {
        &self.work
    }
}
