//! Fields, properties and features of directories and datasets, by their objects.

use cenote_dmu::{ORDER, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{DslDatasetPhys, DslDirPhys};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;

use crate::{Dsl, DslError};

/// The changes that [`Dsl::note_feature`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The dataset did not use the feature before: its count rises by one.
    pub is_new: bool,
    /// The dataset was zapified, which the feature `extensible_dataset` counts.
    pub zapified: bool,
}

impl Dsl {
    /// A directory's fields.
    #[boxed]
    pub async fn dir_phys(&self, dir: ObjectId) -> Result<DslDirPhys, DslError> {
        let object = self.mos().object(dir).await?.phys();
        DslDirPhys::parse(&object.bonus, ORDER).map_err(|error| DslError::Format { object: dir.0, error })
    }

    pub(crate) async fn put_dir(&self, txg: Txg, dir: ObjectId, phys: &DslDirPhys) -> Result<(), DslError> {
        Ok(self.mos().object(dir).await?.set_bonus(txg, &phys.emit(ORDER))?)
    }

    pub(crate) async fn change_dir(
        &self,
        txg: Txg,
        dir: ObjectId,
        change: impl FnOnce(&mut DslDirPhys),
    ) -> Result<(), DslError> {
        let mut phys = self.dir_phys(dir).await?;
        change(&mut phys);
        self.put_dir(txg, dir, &phys).await
    }

    /// A dataset's fields.
    #[boxed]
    pub async fn dataset_phys(&self, dataset: ObjectId) -> Result<DslDatasetPhys, DslError> {
        let object = self.mos().object(dataset).await?.phys();
        DslDatasetPhys::parse(&object.bonus, ORDER).map_err(|error| DslError::Format { object: dataset.0, error })
    }

    pub(crate) async fn put_dataset(&self, txg: Txg, dataset: ObjectId, phys: &DslDatasetPhys) -> Result<(), DslError> {
        Ok(self.mos().object(dataset).await?.set_bonus(txg, &phys.emit(ORDER))?)
    }

    /// Sets a property of a directory, which its descendants inherit.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn set_property(&self, txg: Txg, dir: ObjectId, name: &str, value: &ZapValue) -> Result<(), DslError> {
        let properties = self.mos().object(self.dir_phys(dir).await?.properties).await?;
        Ok(Zap::put_entry(&properties, txg, name, Some(value)).await?)
    }

    /// Records in a dataset that it uses a feature.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn note_feature(&self, txg: Txg, dataset: ObjectId, guid: &str) -> Result<Noted, DslError> {
        if self.has_noted(dataset, guid).await? {
            return Ok(Noted { is_new: false, zapified: false });
        }
        let zapified = self.put_dataset_field(txg, dataset, guid, &ZapValue::from_u64(0)).await?;
        Ok(Noted { is_new: true, zapified })
    }

    /// Copies the record that a dataset uses a feature to another dataset, if there is one.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn copy_feature(&self, txg: Txg, from: ObjectId, to: ObjectId, guid: &str) -> Result<Noted, DslError> {
        let source = self.mos().object(from).await?;
        let value = match source.phys().object_type.is_zap() {
            true => Zap::open(source).await?.lookup(guid.as_bytes()).await?,
            false => None,
        };
        let Some(value) = value else { return Ok(Noted { is_new: false, zapified: false }) };
        let is_new = !self.has_noted(to, guid).await?;
        let zapified = self.put_dataset_field(txg, to, guid, &value).await?;
        Ok(Noted { is_new, zapified })
    }

    /// Stores an extra field of a dataset or directory. Returns true if this zapified it.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn put_dataset_field(
        &self,
        txg: Txg,
        dataset: ObjectId,
        name: &str,
        value: &ZapValue,
    ) -> Result<bool, DslError> {
        let object = self.mos().object(dataset).await?;
        let zapified = !object.phys().object_type.is_zap();
        if zapified {
            object.set_kind(txg, DmuType::ZAP_METADATA);
            Zap::create(object.clone())?.flush(txg).await?;
        }
        Zap::put_entry(&object, txg, name, Some(value)).await?;
        Ok(zapified)
    }

    /// Sets a property of a snapshot.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn set_snapshot_property(
        &self,
        txg: Txg,
        snapshot: ObjectId,
        name: &str,
        value: &ZapValue,
    ) -> Result<(), DslError> {
        let mut phys = self.dataset_phys(snapshot).await?;
        if phys.properties.0 == 0 {
            phys.properties = Zap::create_object(self.mos(), txg, DmuType::DSL_PROPS, &[]).await?.id();
            self.put_dataset(txg, snapshot, &phys).await?;
        }
        Ok(Zap::put_entry(&self.mos().object(phys.properties).await?, txg, name, Some(value)).await?)
    }

    /// Removes from a dataset the record that it uses a feature. Returns true if there was one.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn forget_feature(&self, txg: Txg, dataset: ObjectId, guid: &str) -> Result<bool, DslError> {
        if !self.has_noted(dataset, guid).await? {
            return Ok(false);
        }
        Zap::put_entry(&self.mos().object(dataset).await?, txg, guid, None).await?;
        Ok(true)
    }

    /// True if a dataset records that it uses a feature.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn has_noted(&self, dataset: ObjectId, guid: &str) -> Result<bool, DslError> {
        let object = self.mos().object(dataset).await?;
        if !object.phys().object_type.is_zap() {
            return Ok(false);
        }
        Ok(Zap::open(object).await?.lookup(guid.as_bytes()).await?.is_some())
    }
}
