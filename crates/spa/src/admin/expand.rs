//! Devices that have grown: their vdevs get the room, while the pool is in use.
//!
//! # Theory
//!
//! **Need.** A volume of a storage system, or a file, is made larger; or the last small disk of a mirror was replaced by a large one. The pool is to have
//! the space without being closed.
//!
//! **Life of an expansion.**
//! ```text
//! look     in the slot, txg T   sizes of the devices. A vdev can have what its smallest child has (raidz: of each child)
//! enter    T, beginning         the topology gets the devices with their new sizes, the configuration the new `asize`, the allocator the
//!                               metaslabs that fit, behind the others
//! commit   T, end               labels 0 and 2, uberblock, labels 1 and 3; labels 2 and 3 at the new end of each device
//! use      T + 1                the first blocks in the new room
//! ```
//! **Invariants.** 1. A metaslab keeps its place and its size; only whole ones are added. 2. No block of T is in the new room, so where the old labels 2 and 3
//! stood nothing is written before the pool on disk says that it is space.
//!
//! **Crash.** Labels 0 and 1 stay in their places, with the configuration of before or of T. Devices that are larger than the configuration says are
//! used as far as it says.

use std::collections::BTreeMap;

use cenote_dmu::Zap;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{Guid, ObjectId, VdevId};
use cenote_format::label::{DeviceLayout, LABEL_BYTES};
use cenote_taskq::boxed;
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::disk::Disk;
use cenote_vdev::layout::draid::Draid;

use crate::open::vdevs::{METASLABS_MAX, refuse};
use crate::pool::Pool;
use crate::sync::Syncer;
use crate::{FoundLeaf, SpaError};

/// Bytes that a vdev could have on these disks; none where one is not there.
pub(super) fn possible_bytes(vdev: &VdevConfig, ashift: u32, disks: &BTreeMap<Guid, Disk>) -> Option<u64> {
    let least = || -> Option<u64> {
        vdev.children.iter().try_fold(u64::MAX, |least, child| Some(least.min(possible_bytes(child, ashift, disks)?)))
    };
    let bytes = match vdev.kind {
        VdevKind::Disk | VdevKind::File => DeviceLayout::new(disks.get(&vdev.guid)?.size_bytes())?.allocatable_bytes(),
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => least()?,
        VdevKind::Raidz { expanding, .. } => least()?.checked_mul(vdev.children.len() as u64 - u64::from(expanding))?,
        VdevKind::Draid { parity, data, spares, groups } => {
            let draid = Draid::new(ashift, parity, data, spares, groups, vdev.children.len()).ok()?;
            draid.asize_bytes(least()?)
        }
        _ => return None,
    };
    Some(bytes / LABEL_BYTES as u64 * LABEL_BYTES as u64)
}

impl Pool {
    /// Gives vdevs the room that these devices have got (all devices if none is named). True if a vdev has got some; then the pool on disk has it
    /// when this is done.
    ///
    /// # Errors
    /// The size of a device cannot be read. The pool is closed or suspended.
    #[boxed]
    pub async fn expand_devices(&self, guids: Vec<Guid>) -> Result<bool, SpaError> {
        self.change(move |syncer| Box::pin(async move { syncer.enter_expansion(&guids).await })).await
    }

    /// As [`Self::expand_devices`] of all devices, if the property `autoexpand` is on.
    ///
    /// # Errors
    /// As there.
    #[boxed]
    pub async fn expand_if_wanted(&self) -> Result<bool, SpaError> {
        match self.number_property("autoexpand").await? {
            0 => Ok(false),
            _ => self.expand_devices(Vec::new()).await,
        }
    }

    /// A property of the pool that is a number; 0 if it is not set.
    ///
    /// # Errors
    /// The MOS cannot be read. The pool is closed or suspended.
    #[boxed]
    pub async fn number_property(&self, name: &'static str) -> Result<u64, SpaError> {
        self.look(move |syncer| Box::pin(async move { syncer.number_property(name).await })).await
    }

    /// Devices that are to be used and are not there, with their recorded paths.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn absent_devices(&self) -> Result<Vec<(Guid, String)>, SpaError> {
        self.peek(|syncer| {
            let absent = syncer.absent();
            let leaves = syncer.devices.root_vdev.config.leaves().into_iter();
            leaves
                .filter(|leaf| absent.contains(&leaf.guid))
                .filter_map(|leaf| Some((leaf.guid, leaf.path.as_deref()?.to_owned())))
                .collect()
        })
        .await
    }
}

impl Syncer {
    pub(super) async fn number_property(&self, name: &str) -> Result<u64, SpaError> {
        let directory = Zap::open(self.mos.directory.clone()).await?;
        let Some(object) = directory.find_u64(pool_directory::PROPERTIES).await? else { return Ok(0) };
        let properties = Zap::open(self.mos.objset.object(ObjectId(object)).await?).await?;
        Ok(properties.find_u64(name).await?.unwrap_or(0))
    }

    async fn enter_expansion(&mut self, guids: &[Guid]) -> Result<bool, SpaError> {
        let is_meant = |guid: &Guid| guids.is_empty() || guids.contains(guid);
        let mut next = self.devices.root_vdev.clone();
        let mut grown = Vec::new();
        for (guid, disk) in self.devices.root_vdev.disks.iter().filter(|(guid, _)| is_meant(guid)) {
            let larger = disk.grown().map_err(|error| refuse(format!("{}: {error}", disk.path())))?;
            grown.extend(larger.map(|disk| (*guid, disk)));
        }
        next.disks.extend(grown.iter().cloned());
        let mut larger: Vec<(VdevId, Guid, u64)> = Vec::new();
        for (vdev, top) in self.devices.root_vdev.tops() {
            let is_of_it = top.leaves().iter().any(|leaf| is_meant(&leaf.guid));
            let Some(bytes) = possible_bytes(top, top.ashift, &next.disks).filter(|_| is_of_it) else { continue };
            let count = |bytes: u64| bytes >> top.metaslab_shift;
            // One that is expanded gets its room at the end: what lies behind its old end would not be moved.
            let is_expanded = matches!(top.kind, VdevKind::Raidz { expanding: true, .. });
            // Only whole metaslabs are space.
            if !is_expanded && count(bytes) > count(top.asize_bytes) && count(bytes) <= METASLABS_MAX {
                larger.push((vdev, top.guid, bytes));
            }
        }
        if larger.is_empty() {
            return Ok(false);
        }
        // Devices of other vdevs stay as they are known.
        let is_larger = |guid: &Guid| {
            let top = self.devices.root_vdev.top_of(*guid);
            top.is_some_and(|(vdev, _)| larger.iter().any(|(of, ..)| *of == vdev))
        };
        grown.retain(|(guid, _)| is_larger(guid));
        next.disks = self.devices.root_vdev.disks.clone();
        next.disks.extend(grown.iter().cloned());
        for (_, top, bytes) in &larger {
            next.set_field(*top, "asize", *bytes)?;
        }
        let paused = self.devices.tree.pause_mends().await;
        self.devices.tree.change(&next.config, grown.iter().cloned())?;
        drop(paused);
        self.devices.root_vdev = next;
        for (guid, disk) in grown {
            if let Some(found) = self.devices.found.leaves.remove(&guid) {
                self.devices.found.leaves.insert(guid, FoundLeaf { disk, ..found });
            }
        }
        for (vdev, top, bytes) in larger {
            self.blocks.space.with(|allocator| allocator.grow_vdev(vdev, bytes))?;
            let text = format!("vdev={top} asize={bytes}");
            self.record_event("vdev expand", &text, None).await?;
        }
        self.blocks.space.events.sysevent("vdev_autoexpand", None);
        self.vdevs_changed().await?;
        Ok(true)
    }
}
