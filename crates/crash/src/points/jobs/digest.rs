//! The state of an exported pool on its disks, but for what depends on the number of txgs: object numbers, txgs, counts of what jobs have done.

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::Zap;
use cenote_format::dsl::{RebuildPhys, ScanFunction, ScanPhys, ScanState, pool_directory};
use cenote_format::ids::{Guid, ObjectId};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_spa::View;

use crate::stage::words;

/// Entries of a ZAP at most.
const ENTRIES_MAX: usize = 1 << 12;

/// Facts by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest(BTreeMap<String, String>);

/// Entries of configurations that are numbers of objects, or txgs.
const LOOSE: [&str; 13] = [
    "txg",
    "create_txg",
    "metaslab_array",
    "resilver_txg",
    "rebuild_txg",
    "raidz_expand_txgs",
    "com.delphix:vdev_zap_root",
    "com.delphix:vdev_zap_top",
    "com.delphix:vdev_zap_leaf",
    "com.delphix:indirect_object",
    "com.delphix:indirect_births",
    "com.klarasystems:vdev_zap_root",
    "split_txg",
];

/// Features that count maps of metaslabs, and of obsolete space: how many those are depends on the txgs. That the count is right is for `verify`.
const LOOSE_FEATURES: [&str; 3] =
    ["com.delphix:spacemap_histogram", "com.delphix:spacemap_v2", "com.delphix:obsolete_counts"];

/// The map of obsolete space that no condensing has taken up yet, and whether its counts are whole: there, or not there yet.
const OBSOLETE: [&str; 2] = ["com.delphix:indirect_obsolete_sm", "com.delphix:obsolete_counts_are_precise"];

/// The last scan, and what scrubs leave beside it.
const SCAN: &str = "scan";
const OF_SCRUBS: [&str; 4] = [SCAN, "directory.errlog_last", "directory.errlog_scrub", "directory.last_scrubbed_txg"];

/// Facts that are shown of those that differ.
const SHOWN_MAX: usize = 8;

/// Words in names of a table's entries whose values are loose.
const LOOSE_WORDS: [&str; 6] = ["time", "bytes_copied", "_sm", "object", "txg", "phys"];

impl Digest {
    fn put(&mut self, name: impl Into<String>, value: impl std::fmt::Debug) {
        self.0.insert(name.into(), format!("{value:?}"));
    }

    /// The first facts that differ, in words.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let names: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        // A disk that has missed something by the cut is resilvered, which ends a scrub, by OpenZFS's rules too.
        let is_resilvered = self.has_resilvered();
        let is_same = |name: &str| self.0.get(name) == other.0.get(name) || is_resilvered && OF_SCRUBS.contains(&name);
        let differing = names.into_iter().filter(|name| !is_same(name));
        let shown = |of: &Self, name: &String| of.0.get(name).cloned().unwrap_or_else(|| "nothing".to_owned());
        let words = differing.map(|name| format!("{name} is {} and not {}", shown(self, name), shown(other, name)));
        let words: Vec<String> = words.take(SHOWN_MAX).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    fn has_resilvered(&self) -> bool {
        let resilvered = format!("{:?}", (ScanFunction::RESILVER, ScanState::FINISHED, 0_u64));
        self.0.get(SCAN).is_some_and(|scan| *scan == resilvered)
    }

    fn list(&mut self, at: &str, list: &NvList) {
        // The place of a vdev that went gets a guid that is drawn.
        let is_drawn = list.str("type") == Some("indirect");
        for (name, value) in list.iter() {
            let name = name.as_str().unwrap_or("?");
            let at = format!("{at}.{name}");
            match value {
                // Of a leaf that has missed something once; that it lacks nothing is asked elsewhere.
                _ if name == "DTL" => {}
                _ if is_drawn && name == "guid" => self.put(at, "some"),
                NvValue::Nvlist(list) => self.list(&at, list),
                NvValue::NvlistArray(lists) => {
                    for (place, list) in lists.iter().enumerate() {
                        self.list(&format!("{at}[{place}]"), list);
                    }
                }
                NvValue::Uint64Array(values) if LOOSE.contains(&name) => self.put(at, values.len()),
                _ if LOOSE.contains(&name) => self.put(at, "some"),
                NvValue::Uint64(value) => self.put(at, value),
                NvValue::String(value) => self.put(at, value),
                other => self.put(at, other),
            }
        }
    }

    async fn table(&mut self, view: &View, at: &str, object: ObjectId) -> Result<(), String> {
        if object == ObjectId(0) {
            return Ok(());
        }
        let zap = Zap::open(view.mos().object(object).await.map_err(words)?).await.map_err(words)?;
        for entry in zap.entries(ENTRIES_MAX).await.map_err(words)? {
            let name = String::from_utf8_lossy(entry.name()).into_owned();
            let at = format!("{at}.{name}");
            let integers: Vec<u64> = entry.value.integers().collect();
            if OBSOLETE.contains(&name.as_str()) {
                continue;
            }
            if name == RebuildPhys::ENTRY {
                let phys = RebuildPhys::from_words(&integers).map_err(words)?;
                self.put(at, (phys.state, phys.error_count));
            } else if LOOSE_WORDS.iter().any(|word| name.contains(word)) {
                self.put(at, "some");
            } else {
                self.put(at, integers);
            }
        }
        Ok(())
    }

    /// That of a pool.
    ///
    /// # Errors
    /// Something cannot be read; or a leaf lacks something.
    pub(super) async fn of(view: &View) -> Result<Self, String> {
        let mut this = Self::default();
        for entry in [pool_directory::FEATURES_FOR_READ, pool_directory::FEATURES_FOR_WRITE] {
            for (feature, count) in view.feature_counts(entry).await.map_err(words)? {
                match LOOSE_FEATURES.contains(&feature.as_str()) {
                    true => this.put(format!("{entry}.{feature}"), "some"),
                    false => this.put(format!("{entry}.{feature}"), count),
                }
            }
        }
        for entry in view.directory().entries(ENTRIES_MAX).await.map_err(words)? {
            let name = String::from_utf8_lossy(entry.name()).into_owned();
            let integers: Vec<u64> = entry.value.integers().collect();
            match name.as_str() {
                SCAN => {
                    let scan = ScanPhys::from_words(&integers).map_err(words)?;
                    this.put(SCAN, (scan.function, scan.state, scan.error_count));
                }
                "com.delphix:removing" => {
                    // State, vdev, and the one before it.
                    this.put(name, integers.get(..3));
                }
                _ => this.put(format!("directory.{name}"), "some"),
            }
        }
        this.list("config", view.config());
        // A disk that is not the pool's any more may have one of its labels yet.
        let own: BTreeSet<Guid> = view.vdevs().leaves().iter().map(|leaf| leaf.guid).collect();
        for leaf in view.found().leaves.values().filter(|leaf| own.contains(&leaf.guid)) {
            this.list(&format!("label {}", leaf.disk.path()), &leaf.config);
            this.put(format!("label {}", leaf.disk.path()), leaf.bad_labels);
        }
        let mut tables = Vec::new();
        view.vdevs().walk(&mut |vdev| {
            let name = vdev.display_name();
            tables.extend([vdev.root_zap, vdev.top_zap, vdev.leaf_zap].map(|table| (name.clone(), table)));
        });
        for (name, table) in tables {
            this.table(view, &name, table).await?;
        }
        let uberblock = view.uberblock();
        this.put("reflow", uberblock.raidz_reflow);
        this.put("checkpoint", uberblock.checkpoint_txg.0 > 0);
        for (name, value) in view.properties().await.map_err(words)? {
            this.put(format!("property {name}"), value);
        }
        let behind: Vec<String> = view.tree().status().behind().into_iter().map(|leaf| leaf.name.clone()).collect();
        if !behind.is_empty() {
            return Err(format!("{behind:?} lack something"));
        }
        Ok(this)
    }
}
