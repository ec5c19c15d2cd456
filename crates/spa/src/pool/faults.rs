//! Fault management: verdicts about devices are carried out, and the states of devices become events.
//!
//! ```text
//! Events: fault() ─ Diagnosis ─► verdict ──┐ (waits)
//! task    verdicts() ─► slot ─► Devices::condemn ─┬─ others can do without it: faulted, not used any more
//!                                                 └─ else degraded: used on, and shown as ailing
//!                        config and labels of the next txg say so ─► states at its end ─► statechange
//! ```
//! **Invariants.** 1. A verdict never takes a device that holds the only good copy of a txg's blocks: it is degraded instead. 2. The pool in use
//! and its configuration are changed with the slot held, between two txgs.
//!
//! **Crash.** A verdict is on disk with the next txg, or was never given. As with OpenZFS, an import forgets faults that were
//! diagnosed: the device may be well in another machine. It is not relied on for txgs that it has missed, since those are in its DTL.

use std::sync::Arc;

use cenote_taskq::{Class, Either, race};

use super::shared::Shared;
use crate::error::SpaError;

impl Shared {
    /// Begins to carry out verdicts.
    pub(super) fn manage_faults(self: &Arc<Self>) {
        let (shared, events) = (Arc::downgrade(self), self.events.clone());
        self.handle.detach(Class::Issue, async move {
            if let Some(shared) = shared.upgrade() {
                let read =
                    shared.clone().make(None, |syncer| Box::pin(async move { syncer.read_vdev_settings().await }));
                if let Err(error) = read.await {
                    shared
                        .troubles
                        .tell(format!("properties of vdevs cannot be read, and their usual values count: {error}"));
                }
            }
            while let Some((leaf, verdict)) = events.verdict().await {
                let Some(shared) = shared.upgrade() else { return };
                let pardons = events.pardons();
                let condemned = shared.clone().make(None, move |syncer| {
                    Box::pin(async move {
                        // Where this had to wait, as while the pool was suspended, a person may have said that all is well.
                        let is_current = syncer.blocks.space.events.pardons() == pardons;
                        Ok::<_, SpaError>(if is_current { syncer.devices.condemn(leaf, verdict)? } else { None })
                    })
                });
                match condemned.await {
                    Ok((_, Some(told))) => {
                        shared.troubles.tell(told);
                        shared.want_txg();
                    }
                    Ok((_, None)) => {}
                    Err(error) => shared.troubles.tell(format!("device {leaf} is ailing, and stays in use: {error}")),
                }
            }
        });
        let Some(suspension) = self.suspension.get().cloned() else { return };
        let events = self.events.clone();
        self.handle.detach(Class::Issue, async move {
            loop {
                if let Either::Right(()) = race(suspension.failed(), events.closed()).await {
                    return;
                }
                events.suspended();
                if suspension.passed().await.is_err() {
                    return;
                }
            }
        });
    }
}
