//! The task that writes txgs, and the start of a pool's life in the background.

use std::time::Duration;

use cenote_dmu::tx::{TxError, TxTunables, TxgFailure};
use cenote_format::ids::Txg;
use cenote_taskq::sync::atomic::Ordering;
use cenote_taskq::{boxed, buf};

use super::history::TxgRecord;
use super::memory::MemoryLimits;
use super::root::Root;
use super::shared::Shared;
use super::syncer_slot::SyncerSlot;
use super::{Pool, history};
use crate::sync::Syncer;
use crate::{NamePool as _, SpaError};

impl Pool {
    /// Has the pool's txgs written in the background from now on, paced like this; devices that fail suspend it from now on.
    #[boxed]
    pub async fn start(self, tunables: TxTunables) -> Self {
        let shared = &self.shared;
        let kept_bytes = MemoryLimits::of(0, &tunables).buffers;
        buf::raise_buffer_pool_limit_bytes(usize::try_from(kept_bytes).unwrap_or(usize::MAX));
        let mut slot = shared.slot.lock().await;
        // A pool that has failed says so at the next change.
        if let SyncerSlot::Syncer(syncer) = &mut *slot {
            syncer.is_live = true;
            syncer.blocks.space.set_tree(&syncer.devices.tree);
            let suspension = shared.suspension.get_or_init(|| syncer.devices.tree.wait_for_devices()).clone();
            shared.multihost.suspend_by(suspension);
            shared.set_failmode(syncer.failmode);
            shared.log_errors_soon(syncer.blocks.writer.dmu().zio().data_errors());
            shared.manage_faults();
            shared.resume_leaf_work();
            shared.is_background.store(true, Ordering::Release);
            shared.begin_caches(syncer);
            shared.begin_autotrim(syncer);
            shared.txgs.set_tunables(tunables);
            if syncer.has_work() {
                shared.want_txg();
            }
            self.begin_rebuilds(syncer.rebuild_plans());
        }
        drop(slot);
        shared.go_on_healing();
        self
    }
}

impl Shared {
    /// Has the open txg written soon, whatever is in it.
    pub(super) fn want_txg(&self) {
        // Which one is said here: a task that asked later could ask for one txg more.
        self.txgs.want(self.txgs.open_txg());
    }

    /// Writes one txg after the other, until no more can be or are to be. The last comes back: the pool's end writes it.
    pub(super) async fn sync_all(&self) -> Option<Txg> {
        while let Some(txg) = self.txgs.next().await {
            if self.txgs.is_last(txg) {
                return Some(txg);
            }
            let synced = self.sync_one(txg).await;
            let is_over = synced.is_err();
            self.txgs.done(txg, synced.map_err(|error| TxgFailure::unwritten(&error)));
            if is_over {
                break;
            }
        }
        None
    }

    async fn sync_one(&self, txg: Txg) -> Result<(), SpaError> {
        let quiesced = self.handle.now();
        let mut slot = self.slot.lock().await;
        let waited = self.handle.now() - quiesced;
        let written = self.write(slot.syncer().map_err(|error: TxError| self.fail(&error))?, txg, waited).await;
        written.map_err(|error| error.named(&self.name)).inspect_err(|error| self.fail_slot(&mut slot, error))
    }

    async fn write(&self, syncer: &mut Syncer, txg: Txg, waited: Duration) -> Result<(), SpaError> {
        assert_eq!(syncer.txg(), txg, "the syncer is at the txg that is synced");
        assert!(self.txgs.open_txg() > txg, "the txg that syncs is closed to changes");
        let begun = self.handle.now();
        let dirty_bytes = self.txgs.dirty().txg_bytes(txg);
        let is_change = syncer.is_changed;
        let (synced, serial) = history::Polled::new(self.handle.clone(), Box::pin(syncer.sync())).await;
        assert_eq!(synced?, txg, "the txg is written that was quiesced");
        assert_eq!(syncer.txg(), Txg(txg.0 + 1), "the next txg is the one after");
        let root = Root::of(syncer);
        assert_eq!(root.as_ref().map(Root::txg), Some(txg), "the root that is offered is that of the last txg");
        let before = std::mem::replace(&mut *self.root.lock(), root);
        *self.guid.lock() = syncer.guid();
        drop(before);
        self.go_on_healing();
        self.set_failmode(syncer.failmode);
        *self.jobs.lock() = syncer.jobs();
        self.events.states_are(syncer.devices.tree.leaf_states());
        if self.is_background.load(Ordering::Acquire) && (syncer.has_work() || self.late.are_waiting()) {
            self.want_txg();
        }
        let logs = self.logs.lock().clone();
        if let Some(logs) = logs {
            logs.synced(txg);
        }
        self.update_accounts(syncer).await?;
        if is_change {
            self.kstats.refresh_names(syncer).await;
        }
        let record = TxgRecord {
            txg,
            waited,
            begun,
            took: self.handle.now() - begun,
            dirty_bytes,
            is_change,
            passes: syncer.passes(),
            serial,
            space: syncer.space_work(),
            phases: syncer.take_phases(),
        };
        history::keep(&mut self.records.lock(), record);
        Ok(())
    }
}
