//! Which features a pool's contents need, and how often: told from the contents, and compared with what datasets and the pool say.
//!
//! # Theory
//!
//! **Need.** A feature's count is a promise to software that does not know the feature: where it is zero there is nothing of it. A
//! writer that makes such bytes and does not count them has made a pool that others open and misread.
//!
//! **On disk.** Features of datasets (blocks larger than 128 KiB, checksums, ...) are noted as entries of the dataset's own ZAP, and
//! the pool counts how many datasets have them noted, snapshots included: those take their head's notes over when they are
//! made, and so do clones from their origin. A note stays when the last block that needs it is gone. The other features count objects:
//! extended datasets and directories, space maps with histograms, entries of deadlists that stand for an empty list, bookmarks.
//!
//! **In memory.** For each dataset a set of needs with one place for each, and a sum for each feature.
//!
//! **Life.** The walk of blocks notes needs ([`FeatureUse::note`]); when it has seen everything, the objects of the MOS are looked at once
//! more for notes and sums ([`FeatureUse::problems`]).
//!
//! **Invariants.**
//! 1. Needed and not noted is a fault; noted and not needed is none.
//! 2. A count is compared only where OpenZFS's rule for it is known and can be told from what is on disk. Where the rule was another in the
//!    past, every count that one of its versions leaves is right.
//! 3. Memory is bounded by the number of datasets, and reports by a constant.
//!
//! **Rejected.** To compare needs with the pool's count alone: two datasets that need a feature, one of which has it noted, would pass.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use cenote_dmu::{DmuError, Object, Zap, ZapEntry};
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{BookmarkFlags, BookmarkPhys, DslDatasetPhys, dataset_field, dir_field, pool_directory};
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::{ObjectId, ObjsetId};
use cenote_format::needs::Needs;
use cenote_spa::{View, features::FEATURES};
use cenote_vdev::config::{AllocationClass, VdevKind};
use cenote_zio::Bookmark;

use crate::error::ReadError;

/// Faults that are reported at most.
const FAULTS_MAX: usize = 200;
/// Bytes of a space map's bonus that has no histogram (`SPACE_MAP_SIZE_V0`).
const PLAIN_SPACE_MAP_BYTES: usize = 24;
/// Words of a bookmark that needs no feature of its own.
const PLAIN_BOOKMARK_WORDS: usize = 3;
/// In use as soon as they are enabled (`ZFEATURE_FLAG_ACTIVATE_ON_ENABLE`, and the oldest one likewise).
const ALWAYS_USED: [&str; 5] = ["lz4_compress", "hole_birth", "embedded_data", "head_errlog", "spacemap_v2"];

/// The counts that writers have left in a pool with so many uses of a feature. Rules of counting have changed, and a pool keeps the counts
/// of its last writer.
fn counts_of(name: &str, uses: u64, has_lz4: bool) -> RangeInclusive<u64> {
    let counts = match name {
        // Counted up and not always down: OpenZFS forgets a dataset's bookmarks when it destroys the dataset.
        "bookmark_v2" => uses..=u64::MAX,
        // Counts each vdev that gets such a class, and none that loses it ('zpool set alloc_bias').
        "allocation_classes" => uses..=u64::MAX,
        // Until 2013 it counted when a dataset first used it, and metadata were not compressed with it before that. Such a pool has a
        // count of 0 until a later version writes it.
        "lz4_compress" if !has_lz4 => 0..=uses,
        // A checkpoint that is being discarded has no entry any more, and counts until all of its space is free.
        "zpool_checkpoint" => uses..=1,
        _ => uses..=uses,
    };
    assert!(!counts.is_empty() || name == "zpool_checkpoint", "some count is right");
    counts
}

/// The features that blocks need, as far as the walk has seen them.
#[derive(Default)]
pub(crate) struct FeatureUse {
    needs: BTreeMap<ObjsetId, Needs>,
    /// The first place of each need.
    places: BTreeMap<(ObjsetId, &'static str), Bookmark>,
    /// A block is compressed with LZ4, of the MOS or of a dataset.
    has_lz4: bool,
}

/// Sums and notes read from the objects of the MOS.
#[derive(Default)]
struct Sums {
    /// How often each feature is used, by name.
    uses: BTreeMap<&'static str, u64>,
    /// The features that datasets have noted.
    noted: BTreeMap<ObjsetId, BTreeSet<&'static str>>,
    /// The list that stands for empty ones.
    empty: Option<u64>,
}

impl FeatureUse {
    /// Notes what the block of a pointer needs.
    pub(crate) fn note_pointer(&mut self, at: Bookmark, bp: &Blkptr) {
        self.has_lz4 |= !bp.is_hole() && bp.compress() == Some(Compress::Lz4);
        self.note(at, Needs::of_pointer(bp));
    }

    /// Notes what a block needs. The MOS and what belongs to no dataset any more have no features of their own.
    pub(crate) fn note(&mut self, at: Bookmark, needs: Needs) {
        if needs.is_empty() || at.objset == ObjsetId(0) || at.objset == ObjsetId(u64::MAX) {
            return;
        }
        let known = self.needs.entry(at.objset).or_default();
        for name in needs.difference(*known).names() {
            self.places.insert((at.objset, name), at);
        }
        *known |= needs;
        assert!(known.contains(needs), "what is needed once is needed");
        debug_assert!(known.names().all(|name| self.places.contains_key(&(at.objset, name))), "a need has a place");
    }

    /// The disagreements between needs, notes and counts, in words.
    pub(crate) async fn problems(self, pool: &View) -> Vec<String> {
        let read = async {
            let counts = counts(pool).await?;
            Ok::<_, ReadError>((Sums::of(pool, &counts).await?, counts))
        };
        let (sums, counts) = match read.await {
            Ok(read) => read,
            Err(error) => return vec![format!("features: {error}")],
        };
        let mut faults = Vec::new();
        for (objset, needs) in &self.needs {
            for name in needs.names() {
                if faults.len() < FAULTS_MAX && !sums.noted.get(objset).is_some_and(|noted| noted.contains(name)) {
                    let dataset = pool.dsl().dataset_name(ObjectId(objset.0)).await;
                    let dataset = dataset.map_or_else(|_| format!("dataset {objset}"), |name| format!("'{name}'"));
                    let place = self.places.get(&(*objset, name)).map(ToString::to_string).unwrap_or_default();
                    faults.push(format!("{dataset} has what needs feature@{name} and does not say so ({place})"));
                }
            }
        }
        for feature in FEATURES {
            let (Some(uses), counted) = (sums.uses.get(feature.name).copied(), counts.get(feature.name).copied())
            else {
                continue;
            };
            if counts_of(feature.name, uses, self.has_lz4).contains(&counted.unwrap_or(0)) {
                continue;
            }
            faults.push(match counted {
                Some(counted) => format!("feature@{}: the pool counts {counted} uses and has {uses}", feature.name),
                None => format!("feature@{} is not enabled, and the pool has {uses} uses of it", feature.name),
            });
        }
        assert!(faults.len() <= FAULTS_MAX + FEATURES.len(), "memory for reports is bounded");
        faults
    }
}

/// The pool's feature counts, by short name.
async fn counts(pool: &View) -> Result<BTreeMap<&'static str, u64>, ReadError> {
    let mut counts = BTreeMap::new();
    for table in [pool_directory::FEATURES_FOR_READ, pool_directory::FEATURES_FOR_WRITE] {
        let of_table = pool.feature_counts(table).await?;
        let known = FEATURES.iter().filter_map(|feature| Some((feature.name, *of_table.get(feature.guid)?)));
        counts.extend(known);
    }
    Ok(counts)
}

impl Sums {
    /// `enabled`: the features that are enabled.
    async fn of(pool: &View, enabled: &BTreeMap<&'static str, u64>) -> Result<Self, ReadError> {
        let mut sums = Self::default();
        let directory = async |name: &str| pool.directory().find_u64(name).await;
        sums.empty = directory(pool_directory::EMPTY_BPOBJ).await?;
        // A feature that is counted below is compared also where its count is zero.
        for feature in FEATURES.iter().filter(|feature| feature.per_dataset) {
            sums.uses.insert(feature.name, 0);
        }
        for name in [
            "extensible_dataset",
            "empty_bpobj",
            "spacemap_histogram",
            "bookmarks",
            "bookmark_v2",
            "bookmark_written",
            "redaction_bookmarks",
            "livelist",
        ] {
            sums.uses.insert(name, 0);
        }
        for name in ALWAYS_USED.into_iter().filter(|name| enabled.contains_key(name)) {
            sums.uses.insert(name, 1);
        }
        for (name, entry) in
            [("async_destroy", pool_directory::BPTREE), ("log_spacemap", pool_directory::LOG_SPACEMAP_ZAP)]
        {
            sums.uses.insert(name, u64::from(directory(entry).await?.is_some()));
        }
        sums.uses.insert("zpool_checkpoint", u64::from(pool.checkpoint().await?.is_some()));
        if enabled.contains_key("enabled_txg") {
            let txgs = pool.feature_counts(pool_directory::FEATURE_ENABLED_TXG).await?;
            sums.uses.insert("enabled_txg", txgs.len() as u64);
        }
        sums.count_shared(pool).await?;
        sums.count_vdevs(pool);
        let mos = pool.mos();
        let mut from = ObjectId(0);
        while let Some(batch) = mos.next_objects(from).await? {
            from = batch.next;
            for (id, dnode) in batch.objects {
                let Ok(dnode) = dnode else { continue }; // reported by the walk of the MOS
                sums.count_object(pool, id, dnode).await?;
            }
        }
        // Livelists that deleted clones have left.
        if let Some(list) = pool.directory_object(pool_directory::DELETED_CLONES).await? {
            let zap = Zap::open(list).await?;
            let mut listing = zap.listing();
            while let Some(batch) = listing.next().await? {
                sums.add("livelist", batch.len() as u64);
            }
        }
        Ok(sums)
    }

    fn add(&mut self, name: &'static str, count: u64) {
        debug_assert!(cenote_spa::features::by_name(name).is_some(), "{name} is a feature");
        *self.uses.entry(name).or_default() += count;
    }

    /// Tables of references, each of which counts.
    async fn count_shared(&mut self, pool: &View) -> Result<(), ReadError> {
        let has = async |name: String| {
            let found = pool.directory().find_u64(&name).await?;
            Ok::<_, DmuError>(u64::from(found.is_some()))
        };
        self.uses.insert("block_cloning", 0);
        for vdev in 0..pool.vdevs().children.len() {
            let found = has(pool_directory::brt(u32::try_from(vdev).unwrap_or(u32::MAX))).await?;
            self.add("block_cloning", found);
        }
        self.uses.insert("fast_dedup", 0);
        for checksum in Checksum::ALL {
            let found = has(pool_directory::ddt_dir(checksum.name())).await?;
            self.add("fast_dedup", found);
        }
        Ok(())
    }

    fn count_vdevs(&mut self, pool: &View) {
        let tops = &pool.vdevs().children;
        let count = |test: &dyn Fn(&cenote_vdev::config::VdevConfig) -> bool| {
            tops.iter().filter(|top| test(top)).count() as u64
        };
        self.uses.insert("draid", count(&|top| matches!(top.kind, VdevKind::Draid { .. })));
        let is_gone = |top: &cenote_vdev::config::VdevConfig| matches!(top.kind, VdevKind::Indirect(_));
        let has_gone = tops.iter().any(|top| is_gone(top) || matches!(top.kind, VdevKind::Hole));
        // The count of a removed vdev stays.
        if !has_gone {
            let is_special = |top: &cenote_vdev::config::VdevConfig| {
                matches!(top.class, AllocationClass::Special | AllocationClass::Dedup)
            };
            self.uses.insert("allocation_classes", count(&is_special));
        }
    }

    async fn count_object(&mut self, pool: &View, id: ObjectId, dnode: Object) -> Result<(), DmuError> {
        let (kind, bonus) = (dnode.phys().object_type, dnode.phys().bonus_type);
        match (kind, bonus) {
            (DmuType::SPACE_MAP, _) => {
                self.add("spacemap_histogram", u64::from(dnode.phys().bonus.len() != PLAIN_SPACE_MAP_BYTES));
            }
            (DmuType::DEADLIST, _) => {
                let Some(empty) = self.empty else { return Ok(()) };
                let zap = Zap::open(dnode).await?;
                let mut listing = zap.listing();
                while let Some(batch) = listing.next().await? {
                    let shared = batch.iter().filter(|entry| entry.value.as_u64() == Some(empty)).count();
                    self.add("empty_bpobj", shared as u64);
                }
            }
            (DmuType::ZAP_METADATA, DmuType::DSL_DATASET) => {
                self.add("extensible_dataset", 1);
                let is_snapshot = dnode.bonus(DslDatasetPhys::parse).is_ok_and(|it| it.is_snapshot());
                let fields = fields(dnode).await?;
                let noted = FEATURES.iter().filter(|feature| {
                    feature.per_dataset && fields.iter().any(|field| field.name() == feature.guid.as_bytes())
                });
                let noted: BTreeSet<&'static str> = noted.map(|feature| feature.name).collect();
                noted.iter().for_each(|name| self.add(name, 1));
                self.noted.insert(ObjsetId(id.0), noted);
                let names = field(&fields, dataset_field::BOOKMARK_NAMES).filter(|_| !is_snapshot);
                if let Some(names) = names {
                    self.add("bookmarks", 1);
                    self.count_bookmarks(pool, ObjectId(names)).await?;
                }
            }
            (DmuType::ZAP_METADATA, DmuType::DSL_DIR) => {
                self.add("extensible_dataset", 1);
                let fields = fields(dnode).await?;
                self.add("livelist", u64::from(field(&fields, dir_field::LIVELIST).is_some()));
            }
            _ => {}
        }
        Ok(())
    }

    async fn count_bookmarks(&mut self, pool: &View, names: ObjectId) -> Result<(), DmuError> {
        let zap = Zap::open(pool.mos().object(names).await?).await?;
        let mut listing = zap.listing();
        while let Some(batch) = listing.next().await? {
            for entry in batch {
                let words: Vec<u64> = entry.value.integers().collect();
                self.add("bookmark_v2", u64::from(words.len() > PLAIN_BOOKMARK_WORDS));
                let Ok(bookmark) = BookmarkPhys::from_words(&words) else { continue };
                let has_freed = bookmark.flags.contains(BookmarkFlags::HAS_FREED_BEFORE_NEXT);
                self.add("bookmark_written", u64::from(has_freed));
                if bookmark.redaction_list.0 != 0 {
                    self.add("redaction_bookmarks", 1);
                    let list = pool.mos().object(bookmark.redaction_list).await?;
                    self.add("redaction_list_spill", u64::from(list.phys().spill.is_some()));
                }
            }
        }
        Ok(())
    }
}

/// The entries of a dataset or directory that has become a ZAP.
async fn fields(dnode: Object) -> Result<Vec<ZapEntry>, DmuError> {
    /// Far more than there are fields.
    const FIELDS_MAX: usize = 1 << 16;
    Zap::open(dnode).await?.entries(FIELDS_MAX).await
}

fn field(fields: &[ZapEntry], name: &str) -> Option<u64> {
    fields.iter().find(|field| field.name() == name.as_bytes()).and_then(|field| field.value.as_u64())
}

#[cfg(test)]
mod tests {
    use cenote_spa::features::by_name;

    use super::*;

    #[test]
    fn counts_by_the_rules_of_earlier_versions_are_right() {
        assert!(counts_of("lz4_compress", 1, false).contains(&0) && counts_of("lz4_compress", 1, false).contains(&1));
        assert!(!counts_of("lz4_compress", 1, true).contains(&0) && !counts_of("lz4_compress", 1, false).contains(&2));
        assert!(
            counts_of("zpool_checkpoint", 0, true).contains(&1) && !counts_of("zpool_checkpoint", 1, true).contains(&0)
        );
        assert!(counts_of("bookmark_v2", 2, true).contains(&5) && !counts_of("bookmark_v2", 2, true).contains(&1));
        assert!(!counts_of("hole_birth", 1, false).contains(&0));
    }

    #[test]
    fn each_need_is_a_feature_of_datasets() {
        for name in Needs::all().names() {
            assert!(by_name(name).is_some_and(|feature| feature.per_dataset), "{name}");
        }
    }
}
