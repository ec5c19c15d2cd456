//! Properties of datasets that are written: kept in the MOS, and obeyed by what is written from then on.

use cenote_codec::compress::Compression;
use cenote_dmu::write::{ObjsetPolicy, RedundantMetadata};
use cenote_format::enums::{Checksum, Compress};
use cenote_format::zap::ZapValue;

use super::{Head, PoolWriter};
use crate::SpaError;
use crate::features::by_name;

/// A property's value, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyValue {
    /// A number, or the number of a word.
    Number(u64),
    /// Text.
    Text(String),
}

impl PropertyValue {
    fn zap(&self) -> ZapValue {
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
        let dir = self.dsl.dataset(head.dataset).await.map_err(|error| self.fail(error))?.dir;
        let set = self.dsl.set_property(txg, dir, name, &value.zap()).await;
        set.map_err(|error| self.fail(error))?;
        head.objset.set_policy(policy);
        Ok(())
    }

    /// What a property changes in how blocks are written, and the feature that this needs.
    fn apply(&self, policy: &mut ObjsetPolicy, name: &str, number: u64) -> Result<Option<&'static str>, SpaError> {
        let bad = || SpaError::CannotCreate(format!("property '{name}' cannot have the value {number}"));
        match name {
            "compression" => {
                let compression = Compression::from_property(number).ok_or_else(bad)?;
                policy.compress = match compression.kind {
                    Compress::On => Compress::Lz4,
                    Compress::Inherit | Compress::Empty => return Err(bad()),
                    kind => kind,
                };
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
            "recordsize" => {
                if !number.is_power_of_two() || !(512..=16 << 20).contains(&number) {
                    return Err(bad());
                }
                Ok((number > 128 << 10).then_some("large_blocks"))
            }
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
