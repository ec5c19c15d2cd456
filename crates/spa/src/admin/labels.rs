//! Labels that were damaged while their devices are in use: found and written again.
//!
//! # Theory
//!
//! **Need.** The labels of a device that is open are not read again before the pool is opened, or before a person asks for the device to be looked at
//! (`online`, `clear`, `reopen`). One whose labels have gone meanwhile would be taken for a device with somebody else's data then, though all blocks
//! on it are whole. A scrub promises that all that is on the devices is right, and labels are.
//!
//! **Life.** A scrub that has read, and repaired, all blocks of the pool ends with the labels of each device in use: those that do not verify are
//! counted for the device like other wrong bytes, and all labels are written with the next txg, as after each change of the vdevs.
//!
//! **Invariants.** 1. Labels come back only after all blocks of the device were verified, so that a device that was emptied does not look whole before
//! it is. 2. A device with a valid label of another pool, or of another device, gets none: it is somebody else's now, and `clear` tells of it.
//!
//! **Rejected.** *With each txg*: it would read all labels again, or write half a mebibyte to each device. *In the sync*: a device that hangs would
//! hold it up.

use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_format::label::VDEV_PHYS_BYTES;
use cenote_format::nvlist::NvList;
use cenote_taskq::{boxed, join_all};
use cenote_vdev::disk::Disk;
use cenote_vdev::leaf::probe;

use super::examine::{LOOK_PATIENCE, LOOKS_MAX, Which};
use crate::SpaError;
use crate::pool::Pool;

/// A label that does not verify is read again after so long.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

impl Pool {
    /// Reads the labels of all devices that are used. Where some are damaged they are counted, and all labels are written again in a txg that is on disk
    /// when this returns. The bytes that were damaged. A device that does not answer is passed over.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn mend_labels(&self) -> Result<u64, SpaError> {
        let disks: Vec<(Guid, Disk)> = self.peek(|syncer| syncer.used_disks(Which::All)).await?;
        let mut damaged = Vec::new();
        for some in disks.chunks(LOOKS_MAX) {
            let reads = some.iter().map(|(guid, disk)| async move {
                let mut bad = self.damaged_labels(*guid, disk).await?;
                if !bad.is_empty() {
                    // It may have been read while it was written.
                    self.handle().sleep(AGAIN_AFTER).await;
                    let still = self.damaged_labels(*guid, disk).await?;
                    bad.retain(|address_bytes| still.contains(address_bytes));
                }
                (!bad.is_empty()).then_some((*guid, bad))
            });
            damaged.extend(join_all(reads).await.into_iter().flatten());
        }
        let Some(tree) = self.tree().filter(|_| !damaged.is_empty()) else { return Ok(0) };
        for (guid, places) in &damaged {
            places.iter().for_each(|address_bytes| tree.report_damaged_label(*guid, *address_bytes));
        }
        self.change(|syncer| {
            Box::pin(async move {
                syncer.devices.config_changed = true;
                Ok::<_, SpaError>(())
            })
        })
        .await?;
        let bytes_of = |places: &Vec<u64>| (places.len() * VDEV_PHYS_BYTES) as u64;
        damaged.iter().for_each(|(guid, places)| tree.count_healed(*guid, bytes_of(places)));
        Ok(damaged.iter().map(|(_, places)| bytes_of(places)).sum())
    }

    /// Where the labels of a device begin that do not verify; none if it does not answer, or has another's.
    async fn damaged_labels(&self, guid: Guid, disk: &Disk) -> Option<Vec<u64>> {
        let labels = self.handle().timeout(LOOK_PATIENCE, probe(disk)).await?.labels;
        let is_own =
            |config: &NvList| (config.u64("pool_guid"), config.u64("guid")) == (Some(self.guid().0), Some(guid.0));
        if !labels.iter().filter_map(|label| label.config.as_ref().ok()).all(|config| is_own(config)) {
            return None;
        }
        let bad = labels.iter().filter(|label| label.config.is_err() && label.bytes.is_some());
        Some(bad.filter_map(|label| label.address_bytes).collect())
    }
}
