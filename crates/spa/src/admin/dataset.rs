//! Properties of datasets that are written: kept in the MOS, and obeyed by what is written from then on.
//!
//! # Features
//!
//! Bytes that older software does not know must not be in a pool that says that it has none. So which features a dataset uses is found
//! out where its bytes are made, by the sync: each block that gets its pointer, each dnode and the objset's flags say what they need
//! ([`Needs`]), and before the dataset's new root is entered the MOS, in the same txg, says that the dataset and the pool use it
//! ([`Syncer::use_features`], the one place that does). Callers need not care.
//!
//! 1. A dataset's root in the MOS leads to no block that needs a feature which the dataset does not have noted.
//! 2. A feature's count is how many datasets, snapshots included, have it noted; `verify` counts them anew.
//! 3. A property whose value needs a feature that is not enabled is refused when it is set, and where it was set by others when the
//!    dataset is opened: a sync never finds out.
//!
//! As in OpenZFS a feature stays noted when the last block that needs it is gone, and zstd's is noted already when the property is set.
//!
//! Rejected: to note features when a property is set or a dataset is opened. Datasets inherit, properties change while files are
//! written, and each writer of blocks of another size had to remember it; two of three writers did not.

use std::ops::RangeInclusive;

use cenote_codec::compress::Compression;
use cenote_dmu::{Kinds, Objset, ObjsetPolicy, RedundantMetadata};
use cenote_dsl::{Dir, Dsl};
use cenote_format::dsl::dir_field;
use cenote_format::enums::{Checksum, Compress, ObjsetType};
use cenote_format::ids::{ObjectId, ObjsetId, Txg};
use cenote_format::needs::Needs;
use cenote_format::objset::ObjsetFlags;
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;

use crate::features::by_name;
use crate::sync::Syncer;
use crate::{Refusal, SpaError};
use cenote_dsl::Head;

/// Properties that say how blocks are written and cached.
pub(crate) const POLICY_PROPERTIES: [&str; 8] = [
    "compression",
    "checksum",
    "copies",
    "redundant_metadata",
    "special_small_blocks",
    "primarycache",
    "prefetch",
    "secondarycache",
];
/// Blocks of files that count as small are no larger than this.
const SMALL_BLOCK_MAX_BYTES: u64 = 16 << 20;

/// Sizes that a file's blocks can have, each a power of two.
const RECORD_BYTES: RangeInclusive<u32> = 512..=16 << 20;

/// Sizes of new files' blocks and dnodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSizes {
    /// The block size of files that are larger, in bytes (`recordsize`).
    pub record_bytes: u32,
    /// Slots of 512 bytes that a dnode takes (`dnodesize`).
    pub dnode_slots: u8,
}

impl Default for FileSizes {
    fn default() -> Self {
        Self { record_bytes: 128 << 10, dnode_slots: 1 }
    }
}

impl FileSizes {
    /// By the numbers that properties have, where they have any. A number that is no size of a block counts for none.
    #[must_use]
    pub fn of_properties(record: Option<u64>, dnode: Option<u64>) -> Self {
        let usual = Self::default();
        Self {
            record_bytes: record
                .and_then(|bytes| u32::try_from(bytes).ok())
                .filter(|bytes| bytes.is_power_of_two() && RECORD_BYTES.contains(bytes))
                .unwrap_or(usual.record_bytes),
            dnode_slots: match dnode {
                None => usual.dnode_slots,
                // `auto` is 1 KiB, as in OpenZFS.
                Some(1) => 2,
                Some(bytes) => u8::try_from(bytes / 512).unwrap_or(1).clamp(1, 32),
            },
        }
    }
}

/// A property's value, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyValue {
    /// A number, or the number of a word.
    Number(u64),
    /// Text.
    Text(String),
}

impl PropertyValue {
    pub(crate) fn zap(&self) -> ZapValue {
        match self {
            Self::Number(number) => ZapValue::from_u64(*number),
            Self::Text(text) => ZapValue::from_text(text),
        }
    }
}

impl Syncer {
    /// The datasets as they are now, with all that was changed in the open txg.
    #[must_use]
    pub fn dsl(&self) -> &Dsl {
        &self.mos.dsl
    }

    /// Opens a head dataset for changing what is in it.
    ///
    /// # Errors
    /// There is none of this name, or it has something that cannot be kept up yet ([`PoolError::Unsupported`](crate::PoolError::Unsupported)).
    #[boxed]
    pub async fn open_head(&mut self, name: &str) -> Result<Head, SpaError> {
        self.open_to_change(name, false).await
    }

    /// Opens a dataset that is half received, for its receiver.
    ///
    /// # Errors
    /// As [`Self::open_head`].
    pub(crate) async fn open_received(&mut self, name: &str) -> Result<Head, SpaError> {
        self.open_to_change(name, true).await
    }

    async fn open_to_change(&mut self, name: &str, is_received: bool) -> Result<Head, SpaError> {
        let view = self.dsl().clone();
        let dataset = view.dataset(name).await?;
        let refuse = |what: &str| Err(SpaError::unsupported(format!("{what} ('{name}')")));
        if dataset.is_snapshot() {
            return Err(SpaError::contradiction(format!("'{name}' is a snapshot, which does not change")));
        }
        // Before the next look: a receive that broke off may have left it open.
        match is_received {
            false => dataset.check_whole()?,
            true => assert!(dataset.is_inconsistent(), "a receive writes what is marked as half received"),
        }
        let open = self.mos.dsl.open_head(dataset.object);
        if let Some(head) = open.clone().filter(|_| !self.mos.headers_only.contains(&dataset.object)) {
            return Ok(head);
        }
        if view.dir_field(&dataset.dir, dir_field::CRYPTO_KEY_OBJECT).await?.is_some() {
            return refuse("changing an encrypted dataset");
        }
        self.check_livelist(&dataset).await?;
        let mut policy = ObjsetPolicy { copies: 1, ..self.mos.objset.policy() };
        self.obey_properties(&view, &dataset.dir, &mut policy).await?;
        let refquota = view.property(&dataset.dir, "refquota", false).await?;
        // A receive writes beside the dataset: quotas of its own and tables of deduplicated blocks are for later writers.
        if !is_received && refquota.and_then(|found| found.value.number()).unwrap_or(0) != 0 {
            return refuse("changing a dataset with refquota");
        }
        let dedup = view.property(&dataset.dir, "dedup", true).await?;
        if !is_received
            && dedup.is_some_and(|dedup| {
                dedup.value.number().is_some_and(|number| number != u64::from(Checksum::Off.number()))
            })
        {
            return refuse("changing a dataset with dedup");
        }
        if let Some(head) = open {
            // Only its header was to be changed: now all of it may be.
            head.objset.set_policy(policy);
            self.mos.headers_only.remove(&dataset.object);
            return Ok(head);
        }
        let dmu = self.blocks.writer.dmu().clone();
        let objset = Objset::own(dmu, dataset.objset_id(), dataset.phys.bp, policy).await?;
        let head = Head { dataset: dataset.object, objset };
        self.mos.dsl.add_head(head.clone());
        Ok(head)
    }

    /// Opens a head dataset of which nothing but the intent log's header changes: the key of an encrypted one need not be there, nor is
    /// asked how its blocks are written. It is among the open heads until [`Dsl::retain_heads`].
    ///
    /// # Errors
    /// As [`Self::open_head`].
    pub(crate) async fn open_header(&mut self, name: &str) -> Result<Head, SpaError> {
        let view = self.dsl().clone();
        let dataset = view.dataset(name).await?;
        assert!(
            self.mos.dsl.open_head(dataset.object).is_none(),
            "headers are changed before anybody else opens the dataset"
        );
        let policy = ObjsetPolicy { copies: 1, ..self.mos.objset.policy() };
        let objset = Objset::own(self.blocks.writer.dmu().clone(), dataset.objset_id(), dataset.phys.bp, policy).await;
        let head = Head { dataset: dataset.object, objset: objset? };
        self.mos.dsl.add_head(head.clone());
        Ok(head)
    }

    /// Takes over what a directory's properties say of how blocks are written.
    pub(crate) async fn obey_properties(
        &self,
        view: &Dsl,
        dir: &Dir,
        policy: &mut ObjsetPolicy,
    ) -> Result<(), SpaError> {
        for property in POLICY_PROPERTIES {
            let found = view.property(dir, property, true).await?;
            if let Some(number) = found.and_then(|found| found.value.number()) {
                let needs = self.apply(policy, property, number)?;
                self.require(needs)?;
            }
        }
        Ok(())
    }

    /// The sizes that a directory's properties give new files. As in OpenZFS they are those that need no feature where the pool has
    /// not got it.
    ///
    /// # Errors
    /// The properties cannot be read.
    #[boxed]
    pub async fn file_sizes(&self, view: &Dsl, dir: &Dir) -> Result<FileSizes, SpaError> {
        let number = async |property| {
            let found = view.property(dir, property, true).await?;
            Ok::<_, SpaError>(found.and_then(|found| found.value.number()))
        };
        let (record, dnode) = (number("recordsize").await?, number("dnodesize").await?);
        Ok(self.allowed_sizes(FileSizes::of_properties(record, dnode)))
    }

    /// Those of these sizes that the pool's features allow, or else those that need none.
    #[must_use]
    fn allowed_sizes(&self, sizes: FileSizes) -> FileSizes {
        let usual = FileSizes::default();
        let FileSizes { record_bytes, dnode_slots } = sizes;
        let has = |needs| self.require(needs).is_ok();
        FileSizes {
            record_bytes: match has(Needs::of_block_size(u64::from(record_bytes))) {
                true => record_bytes,
                false => usual.record_bytes,
            },
            dnode_slots: if has(Needs::of_slots(dnode_slots.into())) { dnode_slots } else { usual.dnode_slots },
        }
    }

    /// An objset for a new dataset, whose root is written in this txg though there is nothing in it. File systems count what each owner has from
    /// their first file on.
    pub(crate) fn new_objset(&self, txg: Txg, dataset: ObjectId, kind: ObjsetType, policy: ObjsetPolicy) -> Objset {
        let objset = Objset::create(self.blocks.writer.dmu().clone(), ObjsetId(dataset.0), kind, policy);
        let mut flags = ObjsetFlags::empty();
        if kind == ObjsetType::Zfs {
            flags.insert(ObjsetFlags::USERACCOUNTING_COMPLETE);
            flags.set(ObjsetFlags::USEROBJACCOUNTING_COMPLETE, self.mos.features.has("userobj_accounting"));
            flags.set(ObjsetFlags::PROJECTQUOTA_COMPLETE, self.mos.features.has("project_quota"));
        }
        objset.set_flags(txg, flags);
        debug_assert!(objset.is_dirty(txg), "a dataset that is on disk has a root");
        objset
    }

    /// Checks that all needed features are enabled.
    ///
    /// # Errors
    /// One is not enabled.
    pub(crate) fn require(&self, needs: Needs) -> Result<(), SpaError> {
        match needs.names().find(|name| !self.mos.features.has(name)) {
            None => Ok(()),
            Some(name) => {
                let what = format!("feature@{name} is not enabled, and what is asked for needs it");
                Err(SpaError::refused(Refusal::NeedsFeature, what))
            }
        }
    }

    /// Notes with a dataset, and counts for the pool, that it uses features: in the txg that syncs, before the bytes that need them
    /// are the dataset's.
    ///
    /// # Errors
    /// One is not enabled, or the MOS cannot be changed.
    pub(crate) async fn use_features(&mut self, txg: Txg, dataset: ObjectId, needs: Needs) -> Result<(), SpaError> {
        let known = self.mos.used_features.get(&dataset).copied().unwrap_or_default();
        if known.contains(needs) {
            return Ok(());
        }
        self.require(needs)?;
        for feature in needs.difference(known).names().filter_map(by_name) {
            let noted = self.mos.dsl.note_feature(txg, dataset, feature.guid).await?;
            self.mos.features.change("extensible_dataset", i64::from(noted.zapified));
            self.mos.features.change(feature.name, i64::from(noted.is_new));
        }
        assert_eq!(txg, self.txg, "features are noted in the txg whose bytes need them");
        self.mos.used_features.insert(dataset, known | needs);
        Ok(())
    }

    /// Sets a property of a dataset, before or while files are written: those that say how blocks are written take effect
    /// with the next sync.
    ///
    /// # Errors
    /// The value is none that it can have, or needs a feature that is not enabled.
    #[boxed]
    pub async fn set_property(&mut self, head: &Head, name: &str, value: &PropertyValue) -> Result<(), SpaError> {
        let txg = self.txg;
        let mut policy = head.objset.policy();
        if let PropertyValue::Number(number) = value {
            let needs = self.apply(&mut policy, name, *number)?;
            self.require(needs)?;
            if name == "compression" {
                self.use_features(txg, head.dataset, needs).await?;
            }
        }
        let set = match (name, value) {
            ("refreservation", PropertyValue::Number(bytes)) => {
                self.mos.dsl.set_refreservation(txg, head.dataset, Some(*bytes)).await
            }
            _ => {
                let dir = self.mos.dsl.dataset_phys(head.dataset).await?.dir;
                self.mos.dsl.set_property(txg, dir, name, &value.zap()).await
            }
        };
        set?;
        head.objset.set_policy(policy);
        Ok(())
    }

    /// Applies a property to the policy that blocks are written by. Returns the features that the value needs.
    pub(crate) fn apply(&self, policy: &mut ObjsetPolicy, name: &str, number: u64) -> Result<Needs, SpaError> {
        let bad = || SpaError::refused(Refusal::Invalid, format!("property '{name}' cannot have the value {number}"));
        match name {
            "compression" => {
                let compression = Compression::from_property(number).ok_or_else(bad)?;
                if matches!(compression.kind, Compress::Inherit | Compress::Empty) {
                    return Err(bad());
                }
                // The only place where `on` and a level that was not given get their meaning.
                let has_lz4 = self.mos.features.has("lz4_compress");
                let compression = compression.resolved(has_lz4);
                if compression.kind == Compress::Lz4 && !has_lz4 {
                    let what = "feature@lz4_compress is not enabled, and what is asked for needs it";
                    return Err(SpaError::refused(Refusal::NeedsFeature, what.to_owned()));
                }
                policy.compress = compression.kind;
                policy.compress_level = compression.level;
                Ok(Needs::of_compress(compression.kind))
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
                Ok(Needs::of_checksum(checksum))
            }
            "copies" => {
                policy.copies = u8::try_from(number).ok().filter(|copies| (1..=3).contains(copies)).ok_or_else(bad)?;
                Ok(Needs::empty())
            }
            "redundant_metadata" => {
                policy.redundant_metadata = match number {
                    0 => RedundantMetadata::All,
                    1 => RedundantMetadata::Most,
                    2 => RedundantMetadata::Some,
                    3 => RedundantMetadata::None,
                    _ => return Err(bad()),
                };
                Ok(Needs::empty())
            }
            "special_small_blocks" => {
                let is_size = number.is_power_of_two() && (512..=SMALL_BLOCK_MAX_BYTES).contains(&number);
                let small = u32::try_from(number).ok().filter(|_| number == 0 || is_size);
                policy.small_block_bytes = small.ok_or_else(|| {
                    let what =
                        format!("invalid '{name}={number}' property: must be zero or a power of 2 from 512B to 16M");
                    SpaError::refused(Refusal::Invalid, what)
                })?;
                Ok(Needs::empty())
            }
            "recordsize" => {
                let record = u32::try_from(number).ok().filter(|bytes| RECORD_BYTES.contains(bytes));
                if !record.is_some_and(u32::is_power_of_two) {
                    return Err(bad());
                }
                Ok(Needs::of_block_size(number))
            }
            "primarycache" => {
                policy.caching.primary = Kinds::from_property(number).ok_or_else(bad)?;
                Ok(Needs::empty())
            }
            "secondarycache" => {
                policy.caching.secondary = Kinds::from_property(number).ok_or_else(bad)?;
                Ok(Needs::empty())
            }
            "prefetch" => {
                policy.caching.prefetch = Kinds::from_property(number).ok_or_else(bad)?;
                Ok(Needs::empty())
            }
            "volblocksize" => Ok(Needs::of_block_size(number)),
            "dnodesize" => Ok(Needs::of_slots(FileSizes::of_properties(None, Some(number)).dnode_slots.into())),
            _ => Ok(Needs::empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_size_that_no_block_has_counts_for_none() {
        let record_bytes = |number| FileSizes::of_properties(Some(number), None).record_bytes;
        for odd in [0, 3, 256, 1536, 32 << 20, u64::MAX] {
            assert_eq!(record_bytes(odd), FileSizes::default().record_bytes, "{odd}");
        }
        assert_eq!([512, 1 << 20, 16 << 20].map(record_bytes), [512, 1 << 20, 16 << 20]);
    }
}
