//! Clones of snapshots.

use cenote_dsl::DslError;
use cenote_dsl::name::{check_new_dataset, parent_of, pool_of};
use cenote_format::enums::ObjsetType;
use cenote_spa::{Pool, PropertyValue, SyncTask, Syncer};
use cenote_taskq::boxed;
use cenote_zvol::Volume;

use crate::create::{Owner, create_filesystem_of};
use crate::error::{AdminError, Reason, Verb};
use crate::request::{Changed, Line, Request, Users};
use crate::values::{Types, When, check_once, dataset_settings, stored_of_datasets};
use crate::{AUTO, Setting};

/// A clone to be created: `zfs clone`.
#[derive(Debug, Default)]
pub struct CloneRequest {
    /// The snapshot.
    pub snapshot: String,
    /// The new dataset.
    pub name: String,
    /// Its properties, `PROPERTY=VALUE`.
    pub properties: Vec<String>,
    /// Missing file systems above it are created too, and it may exist.
    pub parents: bool,
    /// The owner of root directories above it.
    pub owner: Owner,
}

impl CloneRequest {
    fn refused(&self, reason: Reason) -> AdminError {
        AdminError::refused(Verb::Create, &self.name, reason)
    }
}

impl Request for CloneRequest {
    /// False if the dataset exists.
    type Made = bool;

    fn subject(&self) -> &str {
        &self.snapshot
    }

    fn check(&self) -> Result<(), AdminError> {
        check_once(&self.properties)?;
        if !self.snapshot.contains('@') {
            return Err(AdminError::no_snapshot_name(&self.snapshot));
        }
        check_new_dataset(&self.name).map_err(|error| self.refused(Reason::Name(error)))?;
        if pool_of(&self.name) != pool_of(&self.snapshot) {
            return Err(self.refused(Reason::Said("source and target pools differ".to_owned())));
        }
        Ok(())
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<bool, AdminError> {
        self.check()?;
        let dsl = pool.dsl()?;
        let types = match dsl.kind(&dsl.dataset(&self.snapshot).await?).await? {
            ObjsetType::Zvol => Types::VOLUME,
            ObjsetType::Zfs => Types::FILESYSTEM,
            other => return Err(DslError::Unsupported(format!("datasets of the type '{other}'")).into()),
        };
        if self.parents && dsl.find_dir(&self.name).await?.is_some() {
            return Ok(false);
        }
        let settings = dataset_settings(&self.properties, When::Cloning, types);
        let settings = settings.map_err(|error| self.refused(Reason::Setting(error)))?;
        let notes = stored_of_datasets(&settings);
        if let Some(above) = parent_of(&self.name).filter(|above| self.parents && above.contains('/')) {
            create_filesystem_of(pool, above, Vec::new(), true, self.owner).await?;
        }
        pool.sync_task(Clone::new(&self.snapshot, &self.name, settings)).await?;
        notes.iter().for_each(|note| users.tell(note));
        users.after(Changed::Datasets(std::slice::from_ref(&self.name))).await?;
        Ok(true)
    }

    fn history_line(&self) -> Option<Line> {
        let line = Line::new("zfs clone").flag(self.parents, "-p").option("-o", &self.properties);
        Some(line.words([&self.snapshot, &self.name]))
    }

    fn is_void(&self, is_made: &bool) -> bool {
        !is_made
    }
}

/// Makes a dataset as a clone of a snapshot ([`clone_dataset`](crate::clone_dataset)).
pub(crate) struct Clone {
    origin: String,
    name: String,
    settings: Vec<Setting>,
    /// As checked: the size that a volume is to have, if it is to have another, in bytes.
    size_bytes: Option<u64>,
}

impl Clone {
    pub(crate) fn new(origin: &str, name: &str, settings: Vec<Setting>) -> Self {
        Self { origin: origin.to_owned(), name: name.to_owned(), settings, size_bytes: None }
    }

    fn refused(&self, reason: Reason) -> AdminError {
        AdminError::refused(Verb::Create, &self.name, reason)
    }

    /// The number that a property is to have.
    fn asked(&self, wanted: &str) -> Option<u64> {
        self.settings.iter().rev().find_map(|(property, value)| match value {
            PropertyValue::Number(number) if property == wanted => Some(*number),
            _ => None,
        })
    }

    /// Finds out what a volume's size and its reservation come to.
    async fn plan_volume(&mut self, pool: &Syncer) -> Result<(), AdminError> {
        let (size, reserved) = (self.asked("volsize"), self.asked("refreservation"));
        if size.is_none() && reserved != Some(AUTO) {
            return Ok(());
        }
        let dsl = pool.dsl();
        let snapshot = dsl.dataset(&self.origin).await?;
        let objset = dsl.open(&snapshot).await?.filter(|objset| objset.phys().objset_type() == Some(ObjsetType::Zvol));
        let Some(objset) = objset else { return Err(AdminError::NoVolume(self.origin.clone())) };
        let volume = Volume::open(&objset).await?;
        let block_bytes = volume.block_size_bytes();
        if let Some(bytes) = size {
            if bytes == 0 {
                return Err(self.refused(Reason::ZeroSize));
            }
            if !bytes.is_multiple_of(block_bytes) {
                return Err(self.refused(Reason::NotWholeBlocks(block_bytes)));
            }
            // Nothing may stand in the way of changing the clone once it is made.
            let above = parent_of(&self.name).unwrap_or_default();
            let dedup =
                dsl.property(&dsl.dir(above).await?, "dedup", true).await?.and_then(|found| found.value.number());
            let off = u64::from(cenote_format::enums::Checksum::Off.number());
            if dedup.is_some_and(|number| number != off) {
                return Err(self.refused(Reason::NotYet("changing a dataset with dedup")));
            }
        }
        self.size_bytes = size.filter(|bytes| *bytes != volume.size_bytes());
        let usual = pool.volume_reservation_bytes(size.unwrap_or(volume.size_bytes()), block_bytes);
        for (property, value) in &mut self.settings {
            if property == "refreservation" && *value == PropertyValue::Number(AUTO) {
                *value = PropertyValue::Number(usual);
            }
        }
        Ok(())
    }
}

impl SyncTask for Clone {
    type Made = ();
    type Error = AdminError;

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        pool.check_clone(&self.origin, &self.name).await?;
        self.plan_volume(pool).await?;
        for (property, value) in &self.settings {
            pool.check_property(property, value).map_err(|error| self.refused(Reason::Value(error)))?;
        }
        let reserved = self.asked("refreservation").unwrap_or(0);
        if let Some(above) = parent_of(&self.name).filter(|_| reserved != 0) {
            let dir = pool.dsl().dir(above).await?;
            if reserved > pool.available_bytes(pool.dsl(), &dir).await? {
                return Err(self.refused(Reason::OutOfSpace));
            }
        }
        // A quota is checked against what is used, and that includes the reservation.
        if self.asked("quota").is_some_and(|quota| quota != 0 && quota < reserved) {
            return Err(self.refused(Reason::OutOfSpace));
        }
        Ok(())
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        pool.clone_dataset(&self.origin, &self.name).await?;
        for (property, value) in self.settings.iter().filter(|(property, _)| property != "volsize") {
            pool.change_property(&self.name, property, Some(value)).await?;
        }
        if let Some(size_bytes) = self.size_bytes {
            let head = pool.open_head(&self.name).await?;
            Volume::open(&head.objset).await?.claim_all().await.resize(pool.txg(), size_bytes).await?;
        }
        Ok(())
    }
}
