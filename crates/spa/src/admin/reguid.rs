//! Giving a pool another guid, while it is in use.
//!
//! **Need.** A pool that was copied device by device has the guid of the original, and only one of the two can be imported.
//!
//! **Life.** In a txg's beginning the root of the configuration gets the guid, and with it the sum of guids that uberblocks have. The labels of that
//! txg name the pool by it.
//!
//! **Invariants.** All devices are there and whole, since one that is not keeps labels with the old guid, and is not known when it is back.
//!
//! **Crash.** A disk may have labels with both guids. The new one counts as soon as an uberblock of the txg is on a disk that has a label of it
//! (`find`): until then the pool is the old one, and after it the new one, on all its disks.

use cenote_format::ids::Guid;
use cenote_vdev::tree::VdevState;

use crate::sync::Syncer;
use crate::{Refusal, SpaError};

impl Syncer {
    /// Gives the pool another guid in the open txg.
    ///
    /// # Errors
    /// As [`crate::Pool::reguid`].
    pub(crate) async fn enter_guid(&mut self, guid: Guid) -> Result<(), SpaError> {
        self.check_no_checkpoint()?;
        let status = self.devices.tree.status();
        // A vdev that was removed is not missing.
        let is_whole = |state| matches!(state, VdevState::Online | VdevState::Removed);
        if status.state != VdevState::Online || !status.leaves().iter().all(|leaf| is_whole(leaf.state)) {
            return Err(SpaError::refused(
                Refusal::Busy,
                "a device is missing or not whole: bring it online, or detach it, first",
            ));
        }
        let (txg, old) = (self.txg, self.guid);
        if guid == old || guid == Guid(0) {
            return Err(SpaError::refused(Refusal::Exists, format!("the guid {guid} cannot be given: it is in use")));
        }
        let mut next = self.devices.root_vdev.clone();
        next.set_guid(guid)?;
        let paused = self.devices.tree.pause_mends().await;
        self.devices.tree.change(&next.config, [])?;
        drop(paused);
        self.devices.root_vdev = next;
        self.devices.found.guid = guid;
        self.guid = guid;
        self.blocks.space.events.sysevent("pool_reguid", None);
        self.record_event("guid change", &format!("old={old} new={guid}"), None).await?;
        self.vdevs_changed().await?;
        assert_eq!(self.txg, txg, "a pool gets its guid in one txg");
        Ok(())
    }
}
