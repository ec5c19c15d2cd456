//! Properties of vdevs that do something when they are set.
//!
//! # Theory
//! ```text
//! property     of                  takes effect                      in use by                kept in
//! allocating   top-level vdev      with the change                   allocator: passive       configuration `non_allocating`, top ZAP
//! alloc_bias   top-level vdev      when the pool is opened again     allocator: class         top ZAP, as `org.zfsonlinux:allocation_bias`
//! path         leaf                when the pool is opened again     imports                  configuration and labels
//! autosit      raidz, draid        with the change                   reads (vdev::sit_out)    top ZAP
//! sit_out      leaf of these       with the change                   reads (vdev::sit_out)    nowhere
//! ```
//! The others (`checksum_n`, ..., `comment`, those of users) are entries of the vdev's ZAP, and the diagnosis of faults reads its own there.
//!
//! **Invariants.** 1. A pool has a normal vdev that takes blocks, now and after the next opening. 2. Nothing has changed where a property is
//! refused. 3. A vdev with `allocating=off` keeps its blocks, which are read, healed, scrubbed and freed as before; its removal may follow, and
//! one that is cancelled leaves it as it was.
//!
//! **Crash.** Configuration and ZAP change in one txg. The allocator is ahead of the disk until then: after a power cut a vdev takes blocks that
//! was to take none, which no reader minds.
//!
//! **Interchange.** OpenZFS shows `allocating` by the ZAP and obeys the configuration, so both are written. It writes `path` and `sit_out` into
//! the ZAP too, and never reads them there; this one does not.

use cenote_dmu::Zap;
use cenote_format::ids::{Guid, VdevId};
use cenote_vdev::config::{AllocationClass, VdevConfig};
use cenote_vdev::tree::SitOutError;

use super::evacuate::NON_ALLOCATING;
use crate::admin::dataset::PropertyValue;
use crate::space::ALLOCATION_BIAS;
use crate::sync::Syncer;
use crate::{Refusal, SpaError};

/// Whether devices of a raidz or draid that are slow sit out.
pub(super) const AUTOSIT: &str = "autosit";
/// The folder of devices.
const DEVICES: &str = "/dev/";

fn refuse<T>(why: impl Into<String>) -> Result<T, SpaError> {
    Err(SpaError::refused(Refusal::Invalid, why.into()))
}

impl From<SitOutError> for SpaError {
    fn from(error: SitOutError) -> Self {
        let why = match error {
            SitOutError::TooMany => Refusal::Busy,
            SitOutError::NotOfStripe | SitOutError::NoStripe => Refusal::Invalid,
        };
        Self::refused(why, error.to_string())
    }
}

fn is_on(value: Option<&PropertyValue>) -> bool {
    matches!(value, Some(PropertyValue::Number(1..)))
}

impl Syncer {
    /// Does what the setting of a property means. Returns what is to be kept in the vdev's ZAP: a name, and its value if it has one.
    ///
    /// # Errors
    /// The vdev cannot have it; or the MOS cannot be read or changed.
    pub(super) async fn apply_vdev_property<'a>(
        &mut self,
        vdev: Guid,
        name: &'a str,
        value: Option<&'a PropertyValue>,
    ) -> Result<Option<(&'a str, Option<&'a PropertyValue>)>, SpaError> {
        match name {
            "allocating" => self.set_allocating(vdev, is_on(value)).await?,
            "alloc_bias" => {
                let class = match value {
                    Some(PropertyValue::Text(name)) => AllocationClass::from_name(name).unwrap_or_default(),
                    _ => AllocationClass::Normal,
                };
                self.check_class(vdev, class).await?;
                return Ok(Some((ALLOCATION_BIAS, value)));
            }
            "path" => {
                self.set_path(vdev, value)?;
                return Ok(None);
            }
            AUTOSIT => {
                self.devices.tree.set_autosit(vdev, is_on(value))?;
            }
            "sit_out" => {
                self.devices.tree.set_sit_out(vdev, is_on(value))?;
                return Ok(None);
            }
            _ => {}
        }
        Ok(Some((name, value)))
    }

    /// A top-level vdev that has blocks of datasets.
    fn data_vdev(&self, guid: Guid) -> Result<(VdevId, VdevConfig), SpaError> {
        let found = self.devices.root_vdev.tops().find(|(_, top)| top.guid == guid);
        match found {
            Some((_, top)) if top.class == AllocationClass::Log => {
                refuse("not of a log device: 'zpool remove' takes it out of the pool")
            }
            Some((vdev, top)) => Ok((vdev, top.clone())),
            None => refuse("only top-level vdevs have this property"),
        }
    }

    /// Has blocks be placed on a top-level vdev, or not (`spa_vdev_alloc`, `spa_vdev_noalloc`).
    async fn set_allocating(&mut self, guid: Guid, is_allocating: bool) -> Result<(), SpaError> {
        let (vdev, top) = self.data_vdev(guid)?;
        if top.removing {
            // The property is kept: it counts when the removal is cancelled.
            return Ok(());
        }
        if is_allocating {
            if top.non_allocating {
                self.devices.root_vdev.clear_field(guid, NON_ALLOCATING)?;
            }
        } else {
            let is_left = top.class != AllocationClass::Normal || self.has_other_normal(vdev).await?;
            if !is_left {
                return refuse("it is the last vdev on which blocks of files can be placed");
            }
            self.devices.root_vdev.set_field(guid, NON_ALLOCATING, 1_u64)?;
        }
        self.blocks.space.set_passive(vdev, !is_allocating);
        self.devices.config_changed = true;
        let now = self.devices.root_vdev.top(vdev);
        assert!(now.is_some_and(|top| top.non_allocating != is_allocating), "the configuration says so too");
        Ok(())
    }

    /// Whether there is another vdev that takes blocks of files, now and when the pool is opened again.
    async fn has_other_normal(&self, vdev: VdevId) -> Result<bool, SpaError> {
        let others = self.devices.root_vdev.tops().filter(|(other, _)| *other != vdev);
        for (_, top) in others {
            let is_normal = top.class == AllocationClass::Normal && !top.non_allocating && !top.removing;
            if is_normal && self.class_after(top).await? == AllocationClass::Normal {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The class that a vdev will have when the pool is opened again.
    async fn class_after(&self, top: &VdevConfig) -> Result<AllocationClass, SpaError> {
        let table = Zap::open(self.mos.objset.object(top.top_zap).await?).await?;
        let bias = table.lookup(ALLOCATION_BIAS.as_bytes()).await?;
        Ok(bias.and_then(|bias| AllocationClass::from_name(bias.as_text()?)).unwrap_or_default())
    }

    /// Whether a vdev can have another class when the pool is opened again. The feature counts each that gets one, and is not counted down,
    /// as in OpenZFS.
    async fn check_class(&mut self, guid: Guid, class: AllocationClass) -> Result<(), SpaError> {
        let (vdev, top) = self.data_vdev(guid)?;
        let before = self.class_after(&top).await?;
        match class {
            AllocationClass::Log => {
                return refuse("no vdev becomes a log device: 'zpool add POOL log DEVICE' adds one");
            }
            AllocationClass::Normal => return Ok(()),
            AllocationClass::Special | AllocationClass::Dedup => {}
        }
        if !self.mos.features.has("allocation_classes") {
            let what = "feature@allocation_classes is not enabled";
            return Err(SpaError::refused(Refusal::NeedsFeature, what.to_owned()));
        }
        if before == AllocationClass::Normal {
            if !self.has_other_normal(vdev).await? {
                return refuse("it is the last vdev on which blocks of files can be placed");
            }
            self.mos.features.change("allocation_classes", 1);
        }
        Ok(())
    }

    /// Records another path of a leaf.
    fn set_path(&mut self, guid: Guid, value: Option<&PropertyValue>) -> Result<(), SpaError> {
        let Some(PropertyValue::Text(path)) = value else { return refuse("a path is wanted") };
        let leaves = self.devices.root_vdev.config.leaves();
        if !leaves.iter().any(|leaf| leaf.guid == guid && leaf.path.is_some()) {
            return refuse("only devices have a path");
        }
        if !path.starts_with(DEVICES) {
            return refuse(format!("a path begins with '{DEVICES}'; an import finds devices wherever they are"));
        }
        self.devices.root_vdev.set_field(guid, "path", path.as_str())?;
        self.devices.config_changed = true;
        Ok(())
    }
}
