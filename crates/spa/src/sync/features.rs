//! Features of a pool that is written: which are enabled, and how many things use each.

use std::collections::BTreeMap;

use cenote_dmu::{Object, Objset, ObjsetPolicy, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::enums::Compress;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_taskq::mutant::{self, Mutant};

use crate::features::{FEATURES, Feature, by_name, with_needs};
use crate::{Refusal, SpaError};

/// Registered after OpenZFS 2.3, which could not open a pool that uses them: not enabled unless asked for.
const LATER: [&str; 4] = ["draid_failure_domains", "block_cloning_endian", "dynamic_gang_header", "physical_rewrite"];
/// In use from the moment that they are enabled (`ZFEATURE_FLAG_ACTIVATE_ON_ENABLE`), and `vdev_zaps_v2`, by the root's ZAP.
const ALWAYS: [&str; 6] = ["lz4_compress", "hole_birth", "embedded_data", "head_errlog", "spacemap_v2", "vdev_zaps_v2"];
/// Enabled before the txgs of enabling were recorded.
const BEFORE_TXGS: [&str; 5] =
    ["async_destroy", "empty_bpobj", "lz4_compress", "multi_vdev_crash_dump", "spacemap_histogram"];
/// Needed to read the MOS, so labels name them while they are in use (`ZFEATURE_FLAG_MOS`).
const FOR_MOS: [&str; 4] = ["hole_birth", "embedded_data", "vdev_zaps_v2", "draid"];

/// How blocks are written as far as features say it: metadata, and data of `compression=on`, is compressed by lz4, or by lzjb in a pool without
/// that feature. Properties of datasets say the rest.
pub(crate) fn obeying(has: impl Fn(&str) -> bool, policy: ObjsetPolicy) -> ObjsetPolicy {
    let on = if has("lz4_compress") { Compress::Lz4 } else { Compress::Lzjb };
    ObjsetPolicy {
        compress: on,
        metadata_compress: on,
        may_embed: has("embedded_data"),
        holes_have_births: has("hole_birth"),
        ..policy
    }
}

/// The features of a pool.
#[derive(Clone)]
pub(crate) struct FeatureCounts {
    counts: BTreeMap<&'static str, (&'static Feature, u64)>,
    for_read: Object,
    for_write: Object,
    is_dirty: bool,
}

/// Which features a new pool gets.
pub(crate) fn of_new_pool(disabled: &[String]) -> Result<Vec<&'static Feature>, SpaError> {
    for name in disabled {
        by_name(name).ok_or_else(|| SpaError::refused(Refusal::Invalid, format!("feature '{name}' is not known")))?;
    }
    let mut enabled: Vec<&'static Feature> = FEATURES.iter().filter(|feature| !LATER.contains(&feature.name)).collect();
    enabled.retain(|feature| !disabled.iter().any(|name| name == feature.name));
    let enabled = with_needs(&enabled);
    let has = |name: &str| enabled.iter().any(|feature| feature.name == name);
    if has("log_spacemap") && !has("spacemap_histogram") {
        let what = "not supported yet: feature@log_spacemap without feature@spacemap_histogram: zdb takes the logs for errors; disable both";
        return Err(SpaError::refused(Refusal::NotYet, what.to_owned()));
    }
    Ok(enabled)
}

impl FeatureCounts {
    /// Enables features in a new pool.
    pub(crate) async fn create(
        mos: &Objset,
        directory: &mut Zap,
        enabled: &[&'static Feature],
        txg: Txg,
    ) -> Result<Self, cenote_dmu::DmuError> {
        let zap = |kind| {
            let spec = cenote_dmu::ObjectSpec::new(kind, 512);
            mos.create_object(txg, &spec)
        };
        let (for_read, for_write) = (zap(DmuType::ZAP_METADATA)?, zap(DmuType::ZAP_METADATA)?);
        let descriptions = zap(DmuType::ZAP_METADATA)?;
        for (name, object) in [
            (pool_directory::FEATURES_FOR_READ, &for_read),
            (pool_directory::FEATURES_FOR_WRITE, &for_write),
            (pool_directory::FEATURE_DESCRIPTIONS, &descriptions),
        ] {
            directory.insert_u64(name, object.id().0).await?;
        }
        let mut descriptions = Zap::create(descriptions)?;
        // Where nothing notes the txgs of enabling, a table of them would belong to nothing.
        let mut enabled_txgs = None;
        if enabled.iter().any(|feature| feature.name == "enabled_txg") {
            let object = zap(DmuType::ZAP_METADATA)?;
            directory.insert_u64(pool_directory::FEATURE_ENABLED_TXG, object.id().0).await?;
            enabled_txgs = Some(Zap::create(object)?);
        }
        let mut counts = BTreeMap::new();
        let mut recorded = 0;
        for feature in enabled {
            descriptions.insert(feature.guid.as_bytes(), &ZapValue::from_text(feature.description)).await?;
            if let Some(txgs) = enabled_txgs.as_mut().filter(|_| !BEFORE_TXGS.contains(&feature.name)) {
                txgs.insert_u64(feature.guid, txg.0).await?;
                recorded += 1;
            }
            counts.insert(feature.name, (*feature, u64::from(ALWAYS.contains(&feature.name))));
        }
        assert_eq!(counts.len(), enabled.len(), "a feature is enabled once");
        if let Some((_, count)) = counts.get_mut("enabled_txg") {
            *count = recorded;
        }
        descriptions.flush(txg).await?;
        if let Some(mut txgs) = enabled_txgs {
            txgs.flush(txg).await?;
        }
        for object in [&for_read, &for_write] {
            Zap::create(object.clone())?.flush(txg).await?;
        }
        Ok(Self { counts, for_read, for_write, is_dirty: true })
    }

    /// The features of a pool that exists: those enabled that this version knows.
    pub(crate) async fn open(mos: &Objset, directory: &Zap) -> Result<Self, cenote_dmu::DmuError> {
        let zap = async |name: &str| {
            let id = directory.lookup_u64(name).await?;
            let object = mos.object(ObjectId(id)).await?;
            Ok::<_, cenote_dmu::DmuError>(object)
        };
        let for_read = zap(pool_directory::FEATURES_FOR_READ).await?;
        let for_write = zap(pool_directory::FEATURES_FOR_WRITE).await?;
        let mut counts = BTreeMap::new();
        for object in [&for_read, &for_write] {
            let zap = Zap::open(object.clone()).await?;
            for feature in FEATURES.iter() {
                let count = zap.lookup(feature.guid.as_bytes()).await?;
                if let Some(count) = count.and_then(|value| value.as_u64()) {
                    counts.insert(feature.name, (feature, count));
                }
            }
        }
        // Versions before 2013 counted it when a dataset first used it. Blocks of the MOS that are written from now on use it.
        let lz4 = counts.get_mut("lz4_compress").filter(|(_, count)| *count == 0);
        let is_dirty = lz4.is_some();
        if let Some((_, count)) = lz4 {
            *count = 1;
        }
        Ok(Self { counts, for_read, for_write, is_dirty })
    }

    /// Enables a feature in a pool that exists, where it is not. Whether it was not.
    pub(crate) async fn enable(
        &mut self,
        mos: &Objset,
        directory: &mut Zap,
        feature: &'static Feature,
        txg: Txg,
    ) -> Result<bool, cenote_dmu::DmuError> {
        if self.has(feature.name) {
            return Ok(false);
        }
        // The root's table is made with the configuration, and counts then.
        let is_used = ALWAYS.contains(&feature.name) && feature.name != "vdev_zaps_v2";
        self.counts.insert(feature.name, (feature, u64::from(is_used)));
        self.is_dirty = true;
        let description = ZapValue::from_text(feature.description);
        table(mos, directory, pool_directory::FEATURE_DESCRIPTIONS, feature, &description, txg).await?;
        if self.has("enabled_txg") {
            let now = ZapValue::from_u64(txg.0);
            table(mos, directory, pool_directory::FEATURE_ENABLED_TXG, feature, &now, txg).await?;
            self.change("enabled_txg", 1);
        }
        Ok(true)
    }

    /// Checks the counts against each other and, where they are written, against the MOS. For tests and simulations.
    pub(crate) async fn audit(&self) -> Result<(), cenote_dmu::DmuError> {
        let enabled: Vec<_> = FEATURES.iter().filter(|feature| self.has(feature.name)).collect();
        assert_eq!(with_needs(&enabled), enabled, "what a feature needs is enabled with it");
        for (name, (feature, count)) in &self.counts {
            assert_eq!(*name, feature.name, "a count stands under its feature's name");
            assert!(*count > 0 || !ALWAYS.contains(name), "{name} is in use from the moment that it is enabled");
        }
        for (object, is_compatible) in [(&self.for_read, false), (&self.for_write, true)] {
            let zap = Zap::open(object.clone()).await?;
            for (name, (feature, count)) in self.counts.iter().filter(|_| !self.is_dirty) {
                let written = zap.find_u64(feature.guid).await?;
                let expected = (feature.read_only_compatible == is_compatible).then_some(*count);
                assert_eq!(written, expected, "the MOS counts {name} as often, in one table");
            }
        }
        Ok(())
    }

    /// Whether a feature is enabled.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.counts.contains_key(name)
    }

    /// How many things use a feature.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counts.get(name).map_or(0, |(_, count)| *count)
    }

    /// More, or fewer, things use a feature.
    pub(crate) fn change(&mut self, name: &str, by: i64) {
        if mutant::is(Mutant::FeatureUncounted) {
            return;
        }
        if let Some((_, count)) = self.counts.get_mut(name) {
            *count = count.saturating_add_signed(by);
            self.is_dirty = true;
        }
    }

    /// Guids of those in use that are needed to read the MOS.
    pub(crate) fn for_labels(&self) -> impl Iterator<Item = &'static str> {
        FOR_MOS.iter().filter_map(|name| self.counts.get(name)).filter(|(_, count)| *count > 0).map(|(it, _)| it.guid)
    }

    /// Writes the counts, if they changed.
    pub(crate) async fn flush(&mut self, txg: Txg) -> Result<(), cenote_dmu::DmuError> {
        if !std::mem::take(&mut self.is_dirty) {
            return Ok(());
        }
        for (object, read_only_compatible) in [(&self.for_read, false), (&self.for_write, true)] {
            let mut zap = Zap::open(object.clone()).await?;
            let mut changed = false;
            for (feature, count) in self.counts.values() {
                let value = ZapValue::from_u64(*count);
                if feature.read_only_compatible == read_only_compatible
                    && zap.lookup(feature.guid.as_bytes()).await?.as_ref() != Some(&value)
                {
                    zap.set(feature.guid.as_bytes(), &value).await?;
                    changed = true;
                }
            }
            if changed {
                zap.flush(txg).await?;
            }
        }
        Ok(())
    }
}

/// Enters what there is to say of a feature into a table of the directory, which is made if there is none.
async fn table(
    mos: &Objset,
    directory: &mut Zap,
    name: &str,
    feature: &Feature,
    value: &ZapValue,
    txg: Txg,
) -> Result<(), cenote_dmu::DmuError> {
    let mut zap = match directory.lookup(name.as_bytes()).await?.and_then(|value| value.as_u64()) {
        Some(object) => Zap::open(mos.object(ObjectId(object)).await?).await?,
        None => {
            let object = Zap::create_object(mos, txg, DmuType::ZAP_METADATA, &[]).await?;
            directory.insert_u64(name, object.id().0).await?;
            directory.flush(txg).await?;
            Zap::open(object).await?
        }
    };
    zap.set(feature.guid.as_bytes(), value).await?;
    zap.flush(txg).await
}
