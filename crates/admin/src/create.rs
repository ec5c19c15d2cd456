//! Making file systems and volumes.

use cenote_dmu::Zap;
use cenote_dsl::{Dsl, DslError};
use cenote_format::enums::ObjsetType;
use cenote_format::zpl::{MASTER_NODE, master_node};
use cenote_spa::{Pool, PropertyValue, SyncTask, Syncer};
use cenote_taskq::{BoxFuture, boxed};
use cenote_zpl::bulk::{BulkWriter, MODE_DIR, NodeSpec};
use cenote_zvol::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Volume, VolumeSpec};

use crate::error::{AdminError, Reason, Verb};
use crate::values::{ValueError, invalid, parse_size};
use crate::{AUTO, Setting};

/// The place of a new dataset in the tree of datasets.
struct Site {
    name: String,
    parents: bool,
    /// Names above it that are missing, from the top down.
    missing: Vec<String>,
    /// It is there already, and that is no fault.
    is_there: bool,
}

impl Site {
    fn new(name: &str, parents: bool) -> Self {
        Self { name: name.to_owned(), parents, missing: Vec::new(), is_there: false }
    }

    fn refused(&self, reason: Reason) -> AdminError {
        AdminError::refused(Verb::Create, &self.name, reason)
    }

    /// `kind`: the kind that what is there already has to be of.
    async fn check(&mut self, pool: &Syncer, kind: ObjsetType) -> Result<(), AdminError> {
        let dsl = pool.dsl();
        self.missing.clear();
        self.is_there = self.parents && exists(dsl, &self.name).await?;
        if self.is_there {
            let found = dsl.dataset(&self.name).await?;
            return match dsl.kind(&found).await? == kind {
                true => Ok(()),
                false => Err(self.refused(Reason::OtherKind)),
            };
        }
        if self.parents {
            for (at, _) in self.name.match_indices('/') {
                let above = &self.name[..at];
                if !exists(dsl, above).await? {
                    self.missing.push(above.to_owned());
                }
            }
        }
        // If the pool has another name the first missing name is a pool's, and is refused as such.
        let first = self.missing.first().unwrap_or(&self.name);
        let parent = pool.check_create(first).await?;
        pool.check_new_below(&self.name, &parent, self.missing.len() as u64 + 1).await?;
        if let Some((above, _)) = first.rsplit_once('/') {
            check_names(dsl, above).await?;
        }
        Ok(())
    }

    /// The nearest dataset above that is there.
    fn above(&self) -> Option<&str> {
        let first = self.missing.first().unwrap_or(&self.name);
        first.rsplit_once('/').map(|(above, _)| above)
    }

    /// Refuses to reserve more than is available.
    async fn check_room(&self, pool: &Syncer, bytes: u64) -> Result<(), AdminError> {
        let Some(above) = self.above() else { return Ok(()) };
        let dir = pool.dsl().dir(above).await?;
        if bytes > pool.available_bytes(pool.dsl(), &dir).await? {
            return Err(self.refused(Reason::OutOfSpace));
        }
        Ok(())
    }

    fn check_value(&self, pool: &Syncer, property: &str, value: &PropertyValue) -> Result<(), AdminError> {
        pool.check_property(property, value).map_err(|error| self.refused(Reason::Value(error)))
    }

    async fn make_parents(&self, pool: &mut Syncer) -> Result<(), AdminError> {
        for above in &self.missing {
            make_filesystem(pool, above).await?;
        }
        Ok(())
    }
}

async fn exists(dsl: &Dsl, name: &str) -> Result<bool, AdminError> {
    match dsl.dir(name).await {
        Ok(_) => Ok(true),
        Err(DslError::NoSuchDataset(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// How names are compared is inherited at creation; only the usual way is written yet.
async fn check_names(dsl: &Dsl, above: &str) -> Result<(), AdminError> {
    let dataset = dsl.dataset(above).await?;
    let Some(objset) = dsl.open(&dataset).await? else { return Ok(()) };
    let master = Zap::open(objset.object(MASTER_NODE).await?).await?;
    for property in [master_node::NORMALIZATION, master_node::UTF8_ONLY, master_node::CASE_SENSITIVITY] {
        if master.find_u64(property).await?.unwrap_or(0) != 0 {
            return Err(AdminError::Names { property, parent: above.to_owned() });
        }
    }
    Ok(())
}

/// Makes an empty file system.
async fn make_filesystem(pool: &mut Syncer, name: &str) -> Result<(), AdminError> {
    let head = pool.create_dataset(name, ObjsetType::Zfs).await?;
    let now = [pool.time_s(), 0];
    let node =
        NodeSpec { mode: MODE_DIR | 0o755, atime: now, mtime: now, ctime: now, crtime: now, ..NodeSpec::default() };
    BulkWriter::create(&head.objset, pool.txg(), &node).await?;
    Ok(())
}

/// Size and kind of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeShape {
    /// Its size in bytes; up to whole blocks.
    pub size_bytes: u64,
    /// The size of its blocks in bytes; the pool's usual one if none is given.
    pub block_bytes: Option<u64>,
    /// Nothing is reserved for it, unless `refreservation` is given.
    pub sparse: bool,
}

impl VolumeShape {
    /// Of the words of `zfs create -V SIZE -b BLOCKSIZE`.
    ///
    /// # Errors
    /// A word is no size.
    pub fn parse(size: &str, block_size: Option<&str>, sparse: bool) -> Result<Self, ValueError> {
        let bad = |what: &str, text: &str, why| invalid(format!("bad volume {what} '{text}': {why}"));
        let size_bytes = parse_size(size).map_err(|why| bad("size", size, why))?;
        let block_bytes = block_size.map(|text| parse_size(text).map_err(|why| bad("block size", text, why)));
        Ok(Self { size_bytes, block_bytes: block_bytes.transpose()?, sparse })
    }
}

/// The outermost dataset on the way to a new one that is not there yet: what a mount has to show when all are made.
///
/// # Errors
/// The pool is closed.
#[boxed]
pub async fn outermost_new(pool: &Pool, name: &str) -> Result<String, AdminError> {
    let dsl = pool.dsl()?;
    let mut outermost = name;
    while let Some((above, _)) = outermost.rsplit_once('/') {
        match dsl.dir(above).await {
            Err(DslError::NoSuchDataset(_)) => outermost = above,
            Ok(_) | Err(_) => break,
        }
    }
    Ok(outermost.to_owned())
}

/// The sizes of a new volume, and what is reserved for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumePlan {
    /// Its size in bytes, in whole blocks.
    pub size_bytes: u64,
    /// The size of its blocks in bytes.
    pub block_bytes: u64,
    /// Bytes that are reserved for it.
    pub reserved_bytes: u64,
}

/// The sizes that a new volume would have in this pool. Nothing is made, nor is it seen whether there is room.
///
/// # Errors
/// No volume has such a size.
#[boxed]
pub async fn plan_volume(
    pool: &Pool,
    name: &str,
    shape: VolumeShape,
    settings: Vec<Setting>,
) -> Result<VolumePlan, AdminError> {
    let task = Create::volume(name, shape, settings, false);
    let planned = pool.change(move |syncer| Box::pin(async move { task.plan(syncer, shape) }));
    let (spec, reserved_bytes) = planned.await?;
    Ok(VolumePlan { size_bytes: spec.size_bytes, block_bytes: u64::from(spec.block_bytes), reserved_bytes })
}

/// Makes a file system ([`create_filesystem`](crate::create_filesystem)) or a volume ([`create_volume`](crate::create_volume)).
pub(crate) struct Create {
    site: Site,
    settings: Vec<Setting>,
    kind: Kind,
}

enum Kind {
    Filesystem,
    /// With its size and its reservation in bytes, once they are checked.
    Volume(VolumeShape, Option<(VolumeSpec, u64)>),
}

impl Create {
    /// The task that makes a file system.
    pub(crate) fn filesystem(name: &str, settings: Vec<Setting>, parents: bool) -> Self {
        Self { site: Site::new(name, parents), settings, kind: Kind::Filesystem }
    }

    /// The task that makes a volume.
    pub(crate) fn volume(name: &str, shape: VolumeShape, settings: Vec<Setting>, parents: bool) -> Self {
        Self { site: Site::new(name, parents), settings, kind: Kind::Volume(shape, None) }
    }

    /// The number that a property is to have; of one that is given twice, the last.
    fn asked(&self, wanted: &str) -> Option<u64> {
        self.settings.iter().rev().find_map(|(property, value)| match value {
            PropertyValue::Number(number) if property == wanted => Some(*number),
            _ => None,
        })
    }

    /// The size of a volume of this shape, and how much to reserve for it.
    fn plan(&self, pool: &Syncer, shape: VolumeShape) -> Result<(VolumeSpec, u64), AdminError> {
        let block_bytes = shape.block_bytes.unwrap_or_else(|| pool.default_volume_block_bytes());
        let range = u64::from(BLOCK_BYTES_MIN)..=u64::from(BLOCK_BYTES_MAX);
        let block_bytes = match u32::try_from(block_bytes) {
            Ok(bytes) if bytes.is_power_of_two() && range.contains(&block_bytes) => bytes,
            _ => return Err(self.site.refused(Reason::BadBlockSize)),
        };
        // As OpenZFS does it: up to whole blocks.
        let size_bytes = shape.size_bytes.checked_next_multiple_of(u64::from(block_bytes)).unwrap_or(0);
        if size_bytes == 0 {
            return Err(self.site.refused(Reason::ZeroSize));
        }
        let spec = VolumeSpec { size_bytes, block_bytes };
        spec.check().map_err(|error| self.site.refused(Reason::Volume(error)))?;
        // The feature of large blocks is used once a block is written, but it has to be there.
        let block = PropertyValue::Number(u64::from(block_bytes));
        self.site.check_value(pool, "volblocksize", &block)?;
        let usual = pool.volume_reservation_bytes(size_bytes, u64::from(block_bytes));
        let reserved = match self.asked("refreservation") {
            Some(AUTO) => usual,
            Some(bytes) => bytes,
            None if shape.sparse => 0,
            None => usual,
        };
        Ok((spec, reserved))
    }

    async fn make_volume(&self, pool: &mut Syncer, spec: &VolumeSpec, reserved: u64) -> Result<(), AdminError> {
        let head = pool.create_dataset(&self.site.name, ObjsetType::Zvol).await?;
        Volume::create(&head.objset, pool.txg(), spec).await?;
        for (property, value) in self.settings.iter().filter(|(property, _)| property != "refreservation") {
            pool.set_property(&head, property, value).await?;
        }
        if reserved != 0 || self.asked("refreservation").is_some() {
            pool.set_property(&head, "refreservation", &PropertyValue::Number(reserved)).await?;
        }
        Ok(())
    }
}

impl SyncTask for Create {
    /// Whether it was made.
    type Made = bool;
    type Error = AdminError;

    fn check<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            let kind = match self.kind {
                Kind::Filesystem => ObjsetType::Zfs,
                Kind::Volume(..) => ObjsetType::Zvol,
            };
            self.site.check(pool, kind).await?;
            if self.site.is_there {
                return Ok(());
            }
            for (property, value) in &self.settings {
                self.site.check_value(pool, property, value)?;
            }
            let reserved = match self.kind {
                Kind::Filesystem => self.asked("refreservation").unwrap_or(0),
                Kind::Volume(shape, _) => {
                    let (spec, reserved) = self.plan(pool, shape)?;
                    self.kind = Kind::Volume(shape, Some((spec, reserved)));
                    reserved
                }
            };
            // A quota is checked against what is used, and that includes the reservation.
            if self.asked("quota").is_some_and(|quota| quota != 0 && quota < reserved) {
                return Err(self.site.refused(Reason::OutOfSpace));
            }
            self.site.check_room(pool, reserved).await
        })
    }

    fn sync<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<bool, AdminError>> {
        Box::pin(async move {
            if self.site.is_there {
                return Ok(false);
            }
            self.site.make_parents(pool).await?;
            match &self.kind {
                Kind::Filesystem => {
                    make_filesystem(pool, &self.site.name).await?;
                    for (property, value) in &self.settings {
                        pool.change_property(&self.site.name, property, Some(value)).await?;
                    }
                }
                Kind::Volume(_, plan) => {
                    let (spec, reserved) = plan.as_ref().expect("a task is checked before it is made");
                    self.make_volume(pool, spec, *reserved).await?;
                }
            }
            Ok(true)
        })
    }
}
