//! Making file systems and volumes.

use std::io;

use cenote_dmu::Zap;
use cenote_dsl::name::{check_new_dataset, parent_of};
use cenote_dsl::{Dsl, DslError};
use cenote_format::enums::ObjsetType;
use cenote_format::zpl::{MASTER_NODE, master_node};
use cenote_spa::{Pool, PropertyValue, SyncTask, Syncer};
use cenote_taskq::boxed;
use cenote_zpl::bulk::{BulkWriter, MODE_DIR, NodeSpec};
use cenote_zvol::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Volume, VolumeSpec};

use crate::error::{AdminError, Reason, Verb};
use crate::new_properties::{NewVolume, VolumePlan, new_properties};
use crate::request::{Changed, Line, Request, Users};
use crate::values::{
    Types, ValueError, When, check_once, dataset_settings, full_name, invalid, parse_size, stored_of_datasets,
};
use crate::{AUTO, Setting};

/// The place of a new dataset in the tree of datasets.
struct Site {
    name: String,
    parents: bool,
    owner: Owner,
    /// Names above it that are missing, from the top down.
    missing: Vec<String>,
    /// It is there already, and that is no fault.
    is_there: bool,
}

impl Site {
    fn new(name: &str, parents: bool, owner: Owner) -> Self {
        Self { name: name.to_owned(), parents, owner, missing: Vec::new(), is_there: false }
    }

    fn refused(&self, reason: Reason) -> AdminError {
        AdminError::refused(Verb::Create, &self.name, reason)
    }

    async fn check(&mut self, pool: &Syncer, wanted: ObjsetType) -> Result<(), AdminError> {
        let dsl = pool.dsl();
        self.missing.clear();
        // One of another type is in the way.
        self.is_there = self.parents
            && exists(dsl, &self.name).await?
            && dsl.kind(&dsl.dataset(&self.name).await?).await? == wanted;
        if self.is_there {
            return Ok(());
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
        if let Some(above) = parent_of(first) {
            check_names(dsl, above).await?;
        }
        Ok(())
    }

    /// The nearest dataset above that is there.
    fn above(&self) -> Option<&str> {
        let first = self.missing.first().unwrap_or(&self.name);
        parent_of(first)
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
            make_filesystem(pool, above, self.owner).await?;
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
async fn make_filesystem(pool: &mut Syncer, name: &str, owner: Owner) -> Result<(), AdminError> {
    let head = pool.create_dataset(name, ObjsetType::Zfs).await?;
    BulkWriter::create(&head.objset, pool.txg(), &root_directory(owner, pool.time_s())).await?;
    Ok(())
}

/// The user and group that the root directory of a new file system belongs to: those of who makes it, as in OpenZFS. A user who is not
/// root could otherwise not write to a file system of their own, nor give it to themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl Owner {
    /// Root's.
    pub const ROOT: Self = Self { uid: 0, gid: 0 };
}

/// The attributes of a new file system's root directory.
pub(crate) fn root_directory(owner: Owner, time_s: u64) -> NodeSpec {
    let now = [time_s, 0];
    NodeSpec {
        mode: MODE_DIR | 0o755,
        uid: owner.uid.into(),
        gid: owner.gid.into(),
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        ..NodeSpec::default()
    }
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
    fn parse(size: &str, block_size: Option<&str>, sparse: bool) -> Result<Self, ValueError> {
        let bad = |what: &str, text: &str, why: ValueError| invalid(format!("bad volume {what} '{text}': {why}"));
        let size_bytes = parse_size(size).map_err(|why| bad("size", size, why))?;
        let block_bytes = block_size.map(|text| parse_size(text).map_err(|why| bad("block size", text, why)));
        Ok(Self { size_bytes, block_bytes: block_bytes.transpose()?, sparse })
    }
}

/// The sizes that a new volume would have in this pool. Nothing is made, nor is it seen whether there is room.
async fn plan_volume(
    pool: &Pool,
    name: &str,
    shape: VolumeShape,
    settings: Vec<Setting>,
) -> Result<VolumePlan, AdminError> {
    let task = Create::volume(name, shape, settings, false, Owner::ROOT);
    let planned = pool.change(move |syncer| Box::pin(async move { task.plan(syncer, shape) }));
    let (spec, reserved_bytes) = planned.await?;
    Ok(VolumePlan { size_bytes: spec.size_bytes, block_bytes: u64::from(spec.block_bytes), reserved_bytes })
}

/// A file system or volume to be created: `zfs create`.
#[derive(Clone, Default)]
pub struct CreateRequest<'a> {
    /// Its name.
    pub name: String,
    /// Its properties, `PROPERTY=VALUE`. A volume's `volblocksize` is the same as `block_size`.
    pub properties: Vec<String>,
    /// The size of a volume (`-V`); none for a file system.
    pub volume_size: Option<String>,
    /// The size of a volume's blocks (`-b`).
    pub block_size: Option<String>,
    /// Nothing is reserved for the volume.
    pub is_sparse: bool,
    /// Missing file systems above it are created too.
    pub parents: bool,
    /// The owner of root directories.
    pub owner: Owner,
    /// Nothing is created.
    pub is_dry: bool,
    /// Gets what is about to be created. It is not called if the dataset exists and may.
    pub tells: Option<&'a TellNew<'a>>,
}

/// Reports a new dataset's properties, with their values.
pub type TellNew<'a> = dyn Fn(&[(String, String)]) -> io::Result<()> + Send + Sync + 'a;

impl CreateRequest<'_> {
    /// The shape of a volume, and all settings.
    fn parsed(&self) -> Result<(Option<VolumeShape>, Vec<Setting>), AdminError> {
        let verb = if self.is_dry { Verb::Verify } else { Verb::Create };
        let refused = |reason| AdminError::refused(verb, &self.name, reason);
        // Before missing datasets above it are created.
        check_new_dataset(&self.name).map_err(|error| refused(Reason::Name(error)))?;
        check_once(&self.properties)?;
        let is_block_size = |text: &&String| {
            self.volume_size.is_some()
                && text.split_once('=').is_some_and(|(name, _)| full_name(name) == "volblocksize")
        };
        let (blocks, others): (Vec<&String>, Vec<&String>) = self.properties.iter().partition(is_block_size);
        let types = if self.volume_size.is_some() { Types::VOLUME } else { Types::FILESYSTEM };
        let settings = dataset_settings(others, When::Creation, types);
        let settings = settings.map_err(|error| refused(Reason::Setting(error)))?;
        let block_size = self.block_size.as_deref().or(blocks.last().and_then(|text| text.split('=').nth(1)));
        let shape = self.volume_size.as_deref().map(|size| VolumeShape::parse(size, block_size, self.is_sparse));
        Ok((shape.transpose()?, settings))
    }

    /// Tells what is created, or would be.
    async fn tell(&self, pool: &Pool, shape: Option<VolumeShape>, settings: &[Setting]) -> Result<(), AdminError> {
        let plan = match shape {
            Some(shape) => Some(plan_volume(pool, &self.name, shape, settings.to_vec()).await?),
            None => None,
        };
        let is_there = self.parents && pool.dsl()?.find_dir(&self.name).await?.is_some();
        let Some(tells) = self.tells.filter(|_| !is_there) else { return Ok(()) };
        let volume = NewVolume {
            asked_bytes: shape.map(|shape| shape.size_bytes),
            names_blocks: self.block_size.is_some(),
            is_sparse: self.is_sparse,
        };
        Ok(tells(&new_properties(&self.properties, &volume, plan.as_ref()))?)
    }
}

impl Request for CreateRequest<'_> {
    type Made = ();

    fn subject(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<(), AdminError> {
        self.parsed().map(drop)
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<(), AdminError> {
        let (shape, settings) = self.parsed()?;
        if self.is_dry || self.tells.is_some() {
            self.tell(pool, shape, &settings).await?;
        }
        if self.is_dry {
            return Ok(());
        }
        let outermost = outermost_new(pool, &self.name).await?;
        let notes = stored_of_datasets(&settings);
        pool.sync_task(match shape {
            Some(shape) => Create::volume(&self.name, shape, settings, self.parents, self.owner),
            None => Create::filesystem(&self.name, settings, self.parents, self.owner),
        })
        .await?;
        notes.iter().for_each(|note| users.tell(note));
        users.after(Changed::Datasets(&[outermost])).await?;
        Ok(())
    }

    fn history_line(&self) -> Option<Line> {
        let line = Line::new("zfs create").flag(self.parents, "-p").flag(self.is_sparse, "-s");
        let line = line.option("-b", &self.block_size).option("-o", &self.properties).option("-V", &self.volume_size);
        (!self.is_dry).then(|| line.word(&self.name))
    }
}

/// Creates a file system; with `parents` also its missing ancestors, and then it may exist. The root directories belong to `owner`.
pub(crate) async fn create_filesystem_of(
    pool: &Pool,
    name: &str,
    settings: Vec<Setting>,
    parents: bool,
    owner: Owner,
) -> Result<bool, AdminError> {
    pool.sync_task(Create::filesystem(name, settings, parents, owner)).await
}

/// The outermost dataset on the way to a new one that is not there yet: what a mount has to show when all are made.
pub(crate) async fn outermost_new(pool: &Pool, name: &str) -> Result<String, AdminError> {
    let dsl = pool.dsl()?;
    let mut outermost = name;
    while let Some(above) = parent_of(outermost) {
        match dsl.dir(above).await {
            Err(DslError::NoSuchDataset(_)) => outermost = above,
            Ok(_) | Err(_) => break,
        }
    }
    Ok(outermost.to_owned())
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
    pub(crate) fn filesystem(name: &str, settings: Vec<Setting>, parents: bool, owner: Owner) -> Self {
        Self { site: Site::new(name, parents, owner), settings, kind: Kind::Filesystem }
    }

    /// The task that makes a volume. File systems above it get this owner.
    pub(crate) fn volume(name: &str, shape: VolumeShape, settings: Vec<Setting>, parents: bool, owner: Owner) -> Self {
        Self { site: Site::new(name, parents, owner), settings, kind: Kind::Volume(shape, None) }
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

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        let wanted = match self.kind {
            Kind::Filesystem => ObjsetType::Zfs,
            Kind::Volume(..) => ObjsetType::Zvol,
        };
        self.site.check(pool, wanted).await?;
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
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<bool, AdminError> {
        if self.site.is_there {
            return Ok(false);
        }
        self.site.make_parents(pool).await?;
        match &self.kind {
            Kind::Filesystem => {
                make_filesystem(pool, &self.site.name, self.site.owner).await?;
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
    }
}
