//! Properties of datasets that are written: kept in the MOS, and obeyed by what is written from then on.

use cenote_codec::compress::Compression;
use cenote_dmu::write::{ObjsetMut, ObjsetPolicy, RedundantMetadata};
use cenote_dsl::{Dir, Dsl};
use cenote_format::dsl::{dataset_field, dir_field};
use cenote_format::enums::{Checksum, Compress};
use cenote_format::zap::ZapValue;

use super::refuse::view;
use super::{Head, PoolWriter};
use crate::SpaError;
use crate::features::{FEATURES, by_name};

/// Properties that say how blocks are written.
pub(super) const POLICY_PROPERTIES: [&str; 5] =
    ["compression", "checksum", "copies", "redundant_metadata", "special_small_blocks"];
/// Blocks of files that count as small are no larger than this.
const SMALL_BLOCK_MAX_BYTES: u64 = 1 << 20;

/// A property's value, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyValue {
    /// A number, or the number of a word.
    Number(u64),
    /// Text.
    Text(String),
}

impl PropertyValue {
    pub(super) fn zap(&self) -> ZapValue {
        match self {
            Self::Number(number) => ZapValue::from_u64(*number),
            Self::Text(text) => ZapValue::from_text(text),
        }
    }
}

/// The feature that a checksum needs.
const fn feature_of_checksum(checksum: Checksum) -> Option<&'static str> {
    match checksum {
        Checksum::Sha512 => Some("sha512"),
        Checksum::Skein => Some("skein"),
        Checksum::Edonr => Some("edonr"),
        Checksum::Blake3 => Some("blake3"),
        _ => None,
    }
}

impl PoolWriter {
    /// The datasets as of the last txg that was synced.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub async fn view(&self) -> Result<Dsl, SpaError> {
        let made = view(self.writer.dmu(), &self.name, self.mos.root()).await;
        made.map_err(|error| self.dmu_error(error))
    }

    /// Opens a head dataset for changing what is in it.
    ///
    /// # Errors
    /// There is none of this name, or it has something that cannot be kept up yet ([`SpaError::Unwritable`]).
    pub async fn open_head(&mut self, name: &str) -> Result<Head, SpaError> {
        let fail = |error| SpaError::Dsl { pool: self.name.clone(), error };
        let view = self.view().await?;
        let dataset = view.dataset(name).await.map_err(fail)?;
        if let Some(head) = self.datasets.iter().find(|head| head.dataset == dataset.object) {
            return Ok(head.clone());
        }
        let refuse =
            |what: &str| Err(SpaError::Unwritable { pool: self.name.clone(), what: format!("{what} ('{name}')") });
        if dataset.is_snapshot() {
            return Err(self.fail(format!("'{name}' is a snapshot, which does not change")));
        }
        if dataset.is_inconsistent() {
            return refuse("changing a dataset that is half received or half destroyed");
        }
        for (field, what) in [
            (dir_field::CRYPTO_KEY_OBJECT, "changing an encrypted dataset"),
            (dir_field::LIVELIST, "changing a clone that keeps a list of its blocks"),
        ] {
            if view.dir_field(&dataset.dir, field).await.map_err(fail)?.is_some() {
                return refuse(what);
            }
        }
        if view.dataset_field(&dataset, dataset_field::BOOKMARK_NAMES).await.map_err(fail)?.is_some() {
            return refuse("changing a dataset with bookmarks");
        }
        let mut policy = ObjsetPolicy { copies: 1, ..self.mos.policy() };
        self.obey_properties(&view, &dataset.dir, &mut policy).await?;
        let refquota = view.property(&dataset.dir, "refquota", false).await.map_err(fail)?;
        if refquota.and_then(|found| found.value.number()).unwrap_or(0) != 0 {
            return refuse("changing a dataset with refquota");
        }
        if view
            .property(&dataset.dir, "dedup", true)
            .await
            .map_err(fail)?
            .is_some_and(|dedup| dedup.value.number().is_some_and(|number| number != u64::from(Checksum::Off.number())))
        {
            return refuse("changing a dataset with dedup");
        }
        for feature in FEATURES.iter().filter(|feature| feature.per_dataset) {
            if view.dataset_field(&dataset, feature.guid).await.map_err(fail)?.is_some() {
                self.used_features.insert((dataset.object, feature.name));
            }
        }
        let dmu = self.writer.dmu().clone();
        let objset = ObjsetMut::open(dmu, dataset.objset_id(), dataset.phys.bp, policy).await;
        let objset = objset.map_err(|error| self.dmu_error(error))?;
        let head = Head { dataset: dataset.object, objset };
        self.datasets.push(head.clone());
        self.use_features(&head).await?;
        Ok(head)
    }

    /// Takes over what a directory's properties say of how blocks are written.
    pub(super) async fn obey_properties(
        &self,
        view: &Dsl,
        dir: &Dir,
        policy: &mut ObjsetPolicy,
    ) -> Result<(), SpaError> {
        for property in POLICY_PROPERTIES {
            let found = view.property(dir, property, true).await;
            let found = found.map_err(|error| SpaError::Dsl { pool: self.name.clone(), error })?;
            if let Some(number) = found.and_then(|found| found.value.number()) {
                self.apply(policy, property, number)?;
            }
        }
        Ok(())
    }

    /// Notes that a dataset uses the features that its blocks need.
    pub(super) async fn use_features(&mut self, head: &Head) -> Result<(), SpaError> {
        let policy = head.objset.policy();
        if policy.compress == Compress::Zstd {
            self.activate(head, "zstd_compress").await?;
        }
        if let Some(feature) = feature_of_checksum(policy.checksum) {
            self.activate(head, feature).await?;
        }
        Ok(())
    }

    /// Sets a property of a dataset, before or while files are written: those that say how blocks are written take effect
    /// with the next sync.
    ///
    /// # Errors
    /// The value is none that it can have, or needs a feature that is not enabled.
    pub async fn set_property(&mut self, head: &Head, name: &str, value: &PropertyValue) -> Result<(), SpaError> {
        let txg = self.txg;
        let mut policy = head.objset.policy();
        let mut feature = None;
        if let PropertyValue::Number(number) = value {
            feature = self.apply(&mut policy, name, *number)?;
        }
        if let Some(feature) = feature {
            self.activate(head, feature).await?;
        }
        let set = match (name, value) {
            ("refreservation", PropertyValue::Number(bytes)) => {
                self.dsl.set_refreservation(txg, head.dataset, *bytes).await
            }
            _ => {
                let dir = self.dsl.dataset(head.dataset).await.map_err(|error| self.fail(error))?.dir;
                self.dsl.set_property(txg, dir, name, &value.zap()).await
            }
        };
        set.map_err(|error| self.fail(error))?;
        head.objset.set_policy(policy);
        Ok(())
    }

    /// What a property changes in how blocks are written, and the feature that this needs.
    pub(super) fn apply(
        &self,
        policy: &mut ObjsetPolicy,
        name: &str,
        number: u64,
    ) -> Result<Option<&'static str>, SpaError> {
        let bad = || SpaError::CannotCreate(format!("property '{name}' cannot have the value {number}"));
        match name {
            "compression" => {
                let compression = Compression::from_property(number).ok_or_else(bad)?;
                if matches!(compression.kind, Compress::Inherit | Compress::Empty) {
                    return Err(bad());
                }
                // The only place where `on` and a level that was not given get their meaning.
                let compression = compression.resolved(self.features.has("lz4_compress"));
                policy.compress = compression.kind;
                policy.compress_level = compression.level;
                Ok((compression.kind == Compress::Zstd).then_some("zstd_compress"))
            }
            "checksum" => {
                let checksum = u8::try_from(number).ok().and_then(Checksum::from_number).ok_or_else(bad)?;
                policy.checksum = match checksum {
                    Checksum::On => Checksum::Fletcher4,
                    Checksum::Inherit | Checksum::Label | Checksum::GangHeader | Checksum::Zilog | Checksum::Zilog2 => {
                        return Err(bad());
                    }
                    checksum => checksum,
                };
                Ok(feature_of_checksum(checksum))
            }
            "copies" => {
                policy.copies = u8::try_from(number).ok().filter(|copies| (1..=3).contains(copies)).ok_or_else(bad)?;
                Ok(None)
            }
            "redundant_metadata" => {
                policy.redundant_metadata = match number {
                    0 => RedundantMetadata::All,
                    1 => RedundantMetadata::Most,
                    2 => RedundantMetadata::Some,
                    3 => RedundantMetadata::None,
                    _ => return Err(bad()),
                };
                Ok(None)
            }
            "special_small_blocks" => {
                let is_size = number.is_power_of_two() && (512..=SMALL_BLOCK_MAX_BYTES).contains(&number);
                let small = u32::try_from(number).ok().filter(|_| number == 0 || is_size);
                policy.small_block_bytes = small.ok_or_else(|| {
                    let what = format!("'{name}' must be zero or a power of 2 from 512B to 1M");
                    SpaError::CannotCreate(what)
                })?;
                Ok(None)
            }
            "recordsize" => {
                if !number.is_power_of_two() || !(512..=16 << 20).contains(&number) {
                    return Err(bad());
                }
                Ok((number > 128 << 10).then_some("large_blocks"))
            }
            "volblocksize" => Ok((number > 128 << 10).then_some("large_blocks")),
            "dnodesize" => Ok((number != 0).then_some("large_dnode")),
            _ => Ok(None),
        }
    }

    /// Has a dataset use a feature.
    ///
    /// # Errors
    /// The feature is not enabled.
    pub async fn activate(&mut self, head: &Head, name: &'static str) -> Result<(), SpaError> {
        let feature = by_name(name).filter(|_| self.features.has(name));
        let feature = feature.ok_or_else(|| {
            SpaError::CannotCreate(format!("feature@{name} is not enabled, and what is asked for needs it"))
        })?;
        if !self.used_features.insert((head.dataset, name)) {
            return Ok(());
        }
        let is_first = self.dsl.note_feature(self.txg, head.dataset, feature.guid).await;
        if is_first.map_err(|error| self.fail(error))? {
            self.features.change("extensible_dataset", 1);
        }
        self.features.change(name, 1);
        Ok(())
    }
}
