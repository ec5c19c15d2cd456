//! Clones of snapshots.

use cenote_dsl::name::parent_of;
use cenote_format::enums::ObjsetType;
use cenote_spa::{PropertyValue, SyncTask, Syncer};
use cenote_taskq::BoxFuture;
use cenote_zvol::Volume;

use crate::error::{AdminError, Reason, Verb};
use crate::{AUTO, Setting};

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

    fn check<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
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
        })
    }

    fn sync<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            pool.clone_dataset(&self.origin, &self.name).await?;
            for (property, value) in self.settings.iter().filter(|(property, _)| property != "volsize") {
                pool.change_property(&self.name, property, Some(value)).await?;
            }
            if let Some(size_bytes) = self.size_bytes {
                let head = pool.open_head(&self.name).await?;
                Volume::open(&head.objset).await?.claim_all().await.resize(pool.txg(), size_bytes).await?;
            }
            Ok(())
        })
    }
}
