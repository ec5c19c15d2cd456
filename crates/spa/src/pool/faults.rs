//! Fault management: verdicts about devices are carried out, and the states of devices become events.
//!
//! ```text
//! Events: fault() ─ Diagnosis ─► verdict ──┐ (waits)
//! task    verdicts() ─► slot ─► Devices::condemn ─┬─ others can do without it: faulted, not used any more
//!                                                 └─ else degraded: used on, and shown as ailing
//!                        config and labels of the next txg say so ─► states at its end ─► statechange
//! ```
//! **A device that takes nothing** is not asked for ten requests that fail: after the first one it is tried ([`VdevTree::probe_leaf`]), and if it fails
//! [`PROBES`] times in a row, [`PROBE_PAUSE`] apart, it is judged. (OpenZFS tries once; a cable that is out for a second costs a device nothing
//! here but the txgs that it missed.) A device that is not there any more has not failed: it is missed, and taken back once it is there again.
//!
//! [`VdevTree::probe_leaf`]: cenote_vdev::tree::VdevTree::probe_leaf
//!
//! **Invariants.** 1. A verdict never takes a device that holds the only good copy of a txg's blocks: it is degraded instead. 2. The pool in use
//! and its configuration are changed with the slot held, between two txgs.
//!
//! **Crash.** A verdict is on disk with the next txg, or was never given. As with OpenZFS, an import forgets faults that were
//! diagnosed: the device may be well in another machine. It is not relied on for txgs that it has missed, since those are in its DTL.

use std::sync::Arc;
use std::time::Duration;

use cenote_taskq::{Class, Either, race};

use super::shared::Shared;
use crate::error::SpaError;
use crate::events::diagnosis::Verdict;

/// A device that fails this many tries takes nothing any more.
const PROBES: usize = 3;
/// The time between two tries.
const PROBE_PAUSE: Duration = Duration::from_secs(1);

impl Shared {
    /// Tries devices that have failed a request.
    fn probe_suspects(self: &Arc<Self>) {
        let (tree, events, handle) = (self.tree.clone(), self.events.clone(), self.handle.clone());
        self.handle.detach(Class::Issue, async move {
            while let Some(leaf) = events.suspect().await {
                let mut failed = 0;
                while failed < PROBES && !events.is_closed() {
                    let Some(tree) = tree.upgrade() else { return };
                    if tree.probe_leaf(leaf).await.is_ok() {
                        break;
                    }
                    failed += 1;
                    drop(tree);
                    if let Either::Right(()) = race(handle.sleep(PROBE_PAUSE), events.closed()).await {
                        return;
                    }
                }
                if failed == PROBES {
                    events.probe_failed(leaf);
                }
            }
        });
    }

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
                        if syncer.blocks.space.events.pardons() != pardons {
                            return Ok::<_, SpaError>(None);
                        }
                        let gone = if verdict == Verdict::Fault { syncer.lose_if_gone(leaf).await? } else { None };
                        if gone.is_some() {
                            return Ok(gone);
                        }
                        let was_used = syncer.devices.root_vdev.disks.contains_key(&leaf);
                        let told = syncer.devices.condemn(leaf, verdict)?;
                        // It may be used again before the txg ends, and what a resilver or a log writes meanwhile is not on it.
                        if was_used && !syncer.devices.root_vdev.disks.contains_key(&leaf) {
                            syncer.note_missed(syncer.txg, 1, [leaf]).await?;
                        }
                        Ok(told)
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
        self.probe_suspects();
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
