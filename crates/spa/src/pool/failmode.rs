//! The behaviour of a pool while its devices do not take writes: the property `failmode`.
//!
//! With any value, dirty data waits in memory, and is written once the pool goes on ([`Pool::resume`]): writes to devices wait by
//! themselves (`cenote_vdev::tree`). The property is about requests that come meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::tx::TxError;
use cenote_format::ids::Guid;
use cenote_metaslab::MetaslabId;
use cenote_taskq::{Either, boxed, race};
use cenote_vdev::tree::{Hang, Suspension, VdevStatus};

use crate::admin::examine::Which;
use crate::admin::offline::Again;
use crate::admin::remove::Stopped;
use crate::failmode::FailMode;
use crate::pool::Pool;
use crate::pool::shared::Shared;
use crate::{NamePool as _, SpaError};

impl Shared {
    /// Obeys the property from now on.
    pub(super) fn set_failmode(&self, failmode: FailMode) {
        *self.failmode.lock() = failmode;
        self.events.set_failmode(failmode);
        if let Some(suspension) = self.suspension.get() {
            suspension.set_refuses_reads(failmode == FailMode::Continue);
        }
    }

    /// The suspension state of the pool. A pool that is written by hand is never suspended: this waits for ever.
    async fn suspension(&self) -> &Suspension {
        match self.suspension.get() {
            Some(suspension) => suspension,
            None => std::future::pending().await,
        }
    }

    /// Resolves when new requests are to be refused.
    async fn refused(&self) -> TxError {
        let suspension = self.suspension().await;
        loop {
            let reason = suspension.failed().await;
            if *self.failmode.lock() == FailMode::Continue {
                return TxError::Suspended(reason.to_string());
            }
            // It cannot be changed while the pool is suspended.
            if let Err(error) = suspension.passed().await {
                return TxError::Suspended(error.why());
            }
        }
    }

    /// Lets those through that have not to wait for devices, as the property says.
    pub(super) async fn pass(&self) -> Result<(), TxError> {
        let Some(suspension) = self.suspension.get() else { return Ok(()) };
        match suspension.reason() {
            None => Ok(()),
            Some(reason) if *self.failmode.lock() == FailMode::Continue => Err(TxError::Suspended(reason.to_string())),
            Some(_) => suspension.passed().await.map_err(|error| TxError::Suspended(error.why())),
        }
    }

    /// Waits for something that may be waiting for devices, as the property says.
    pub(super) async fn unless_refused<T>(&self, work: impl Future<Output = Result<T, TxError>>) -> Result<T, TxError> {
        match race(work, self.refused()).await {
            Either::Left(done) => done,
            Either::Right(error) => Err(error),
        }
    }
}

impl Pool {
    /// Why the pool is suspended, if it is: too few devices take what is written.
    #[must_use]
    pub fn suspended(&self) -> Option<Arc<str>> {
        self.shared.suspension.get().and_then(|suspension| suspension.reason())
    }

    /// `true` if the pool is suspended because multihost writes failed or were late: devices that work again are no reason to go on.
    #[must_use]
    pub fn is_suspended_for_multihost(&self) -> bool {
        self.shared.suspension.get().is_some_and(|suspension| suspension.is_for_multihost())
    }

    /// Waits until the pool is suspended: why, and what its property `failmode` wants.
    #[boxed]
    pub async fn failed(&self) -> (Arc<str>, FailMode) {
        let reason = self.shared.suspension().await.failed().await;
        (reason, *self.shared.failmode.lock())
    }

    /// Waits until the pool is not suspended; `false` if it was given up.
    #[boxed]
    pub async fn passed(&self) -> bool {
        self.shared.suspension().await.passed().await.is_ok()
    }

    /// Waits until something goes wrong with its space that does not stop it, as where a space map cannot be read: each is reported once,
    /// to one waiter.
    #[boxed]
    pub async fn troubled(&self) -> String {
        self.shared.troubles.next().await
    }

    /// Tells the pool's owner of something that goes wrong and does not stop it.
    pub(crate) fn trouble(&self, what: String) {
        self.shared.troubles.tell(what);
    }

    /// Metaslabs whose space maps cannot be read, so that nothing is written there, and why.
    #[must_use]
    pub fn unreadable_metaslabs(&self) -> Vec<(MetaslabId, String)> {
        self.shared.troubles.unreadable_metaslabs()
    }

    /// Waits until one of its devices is found to hang: each hang is reported once, to one waiter.
    #[boxed]
    pub async fn hung(&self) -> Hang {
        self.shared.suspension().await.hung().await
    }

    /// Resumes a suspended pool (`zpool clear`), if its devices take writes again, and forgets the errors that were counted. Writes that
    /// the devices may have lost are repeated first.
    ///
    /// # Errors
    /// They do not: the pool stays suspended. Or another system may have it: where it is shown to be in use, that is looked for
    /// first, and where `multihost` is on the devices are watched for as long as at an import.
    #[boxed]
    pub async fn resume(&self) -> Result<(), SpaError> {
        let tree = self.shared.tree.upgrade().ok_or_else(|| self.fail(&TxError::Closed))?;
        // A verdict that waits for the pool to go on is void.
        self.shared.events.forget_errors(None);
        if self.suspended().is_some() {
            let may = self.shared.multihost.may_resume().await;
            may.map_err(|error| SpaError::devices(error).named(self.name()))?;
        }
        let resumed = tree.resume().await;
        resumed.map_err(|error| SpaError::from(error).named(self.name()))?;
        tree.clear_errors();
        self.clear_caches(None).await;
        match self.after_resumption().await {
            // It has waited for its devices to be closed, and may be closed at any moment from here on.
            Err(_) if self.is_closing() => Ok(()),
            done => done,
        }
    }

    /// Has the devices used that were not while the pool was suspended.
    async fn after_resumption(&self) -> Result<(), SpaError> {
        // One may have been emptied that never failed a request.
        self.look_at_devices(Which::All, Again::Clear).await?;
        self.pardon(None).await?;
        self.take_log_devices_back().await
    }

    /// Looks at devices, and tells of those that are not what they were.
    pub(crate) async fn look_at_devices(&self, which: Which, verb: Again) -> Result<(), SpaError> {
        let condemned = self.peek(|syncer| syncer.used_disks(Which::Condemned(None))).await?;
        for (guid, lost) in self.examine_devices(which).await? {
            // One that was faulted is told of as cleared, though it is gone (`vdev_clear` of OpenZFS).
            if verb == Again::Clear && !lost.is_kept && condemned.iter().any(|(leaf, _)| *leaf == guid) {
                self.events().of_device(verb.event(), guid);
            }
            self.trouble(lost.told());
        }
        Ok(())
    }

    /// Has devices used again that were condemned because of their errors: this one, or all. What they have missed meanwhile they still
    /// lack.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn pardon(&self, leaf: Option<Guid>) -> Result<(), SpaError> {
        self.pardon_for(leaf, Again::Clear).await
    }

    /// Whether the pool takes no changes any more, since it is being closed or is closed.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        matches!(self.shared.txgs.enter(), Err(TxError::Closed))
    }

    /// Has log devices used again that have failed or missed something. First logs leave them, so that nothing on them is missed any more.
    async fn take_log_devices_back(&self) -> Result<(), SpaError> {
        let (space, vdevs) = self.peek(|syncer| (syncer.blocks.space.clone(), syncer.log_devices_behind())).await?;
        for vdev in vdevs {
            let Some(stopped) = Stopped::begin(&space, vdev) else { continue };
            self.leave(vdev).await?;
            // One txg more, which notes that nothing is missed.
            self.sync().await?;
            space.log_device_is_back(vdev);
            drop(stopped);
        }
        Ok(())
    }

    /// The health of its devices, and the errors that were counted since the pool was opened or cleared; none once it is closed.
    #[must_use]
    pub fn devices(&self) -> Option<VdevStatus> {
        self.shared.tree.upgrade().map(|tree| tree.status())
    }

    /// Devices that have gone while they are open; none once it is closed.
    #[must_use]
    pub fn gone_devices(&self) -> BTreeSet<Guid> {
        self.shared.tree.upgrade().map(|tree| tree.gone()).unwrap_or_default()
    }

    /// Whether it was given up.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.shared.suspension.get().is_some_and(|suspension| suspension.is_abandoned())
    }

    /// Gives up a suspended pool: what is not on disk is lost, and all waiting calls fail. On disk the pool is as of the last txg
    /// that was written. One that is not suspended loses nothing until it is.
    pub fn abandon(&self) {
        if let Some(suspension) = self.shared.suspension.get() {
            suspension.abandon();
        }
    }
}
