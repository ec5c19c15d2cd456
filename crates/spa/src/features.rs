//! Feature flags: what a pool's format may contain beyond version 28, and whether we can read it.
//!
//! The MOS directory names two ZAPs, `features_for_read` and `features_for_write`, from feature guid to reference count.
//! A pool with an unknown feature in the first (with a count above zero) must not be opened at all; one in the second
//! only forbids writing. Labels carry the names of the first kind that the MOS itself needs, since the MOS cannot be
//! read before they are known. Source: `zpool-features(7)`; guids and flags as registered by OpenZFS.

/// A feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// The globally unique name, as on disk.
    pub guid: &'static str,
    /// The name in `feature@name`.
    pub name: &'static str,
    /// Whether software that does not know it may still open the pool read-only.
    pub read_only_compatible: bool,
    /// Whether single datasets use it (then they say so in their own attributes).
    pub per_dataset: bool,
    /// Whether this version can read pools on which it is active.
    pub readable: bool,
    /// Its purpose.
    pub description: &'static str,
}

/// Every feature that OpenZFS registers, in its order.
pub const FEATURES: &[Feature] = &[
    Feature {
        guid: "com.delphix:async_destroy",
        name: "async_destroy",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Destroy file systems asynchronously.",
    },
    Feature {
        guid: "com.delphix:empty_bpobj",
        name: "empty_bpobj",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Snapshots use less space.",
    },
    Feature {
        guid: "org.illumos:lz4_compress",
        name: "lz4_compress",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "LZ4 compression.",
    },
    Feature {
        guid: "com.joyent:multi_vdev_crash_dump",
        name: "multi_vdev_crash_dump",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "Crash dumps to pools of several vdevs.",
    },
    Feature {
        guid: "com.delphix:spacemap_histogram",
        name: "spacemap_histogram",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Space maps keep histograms of free space.",
    },
    Feature {
        guid: "com.delphix:enabled_txg",
        name: "enabled_txg",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "The txg in which each feature was enabled is recorded.",
    },
    Feature {
        guid: "com.delphix:hole_birth",
        name: "hole_birth",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "Holes remember when they were made, so that sends skip them precisely.",
    },
    Feature {
        guid: "com.delphix:zpool_checkpoint",
        name: "zpool_checkpoint",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "The pool's state can be kept and gone back to.",
    },
    Feature {
        guid: "com.delphix:spacemap_v2",
        name: "spacemap_v2",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Space map entries for large segments.",
    },
    Feature {
        guid: "com.delphix:extensible_dataset",
        name: "extensible_dataset",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "Datasets can carry further attributes; other features need it.",
    },
    Feature {
        guid: "com.delphix:bookmarks",
        name: "bookmarks",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Bookmarks of snapshots.",
    },
    Feature {
        guid: "com.joyent:filesystem_limits",
        name: "filesystem_limits",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Limits on file systems and snapshots.",
    },
    Feature {
        guid: "com.delphix:embedded_data",
        name: "embedded_data",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "Blocks that compress very well live in their pointer.",
    },
    Feature {
        guid: "com.delphix:livelist",
        name: "livelist",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Deleting clones is faster.",
    },
    Feature {
        guid: "com.delphix:log_spacemap",
        name: "log_spacemap",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Space map changes go to one log and are flushed a few at a time.",
    },
    Feature {
        guid: "org.open-zfs:large_blocks",
        name: "large_blocks",
        read_only_compatible: false,
        per_dataset: true,
        readable: true,
        description: "Blocks larger than 128 KiB.",
    },
    Feature {
        guid: "org.zfsonlinux:large_dnode",
        name: "large_dnode",
        read_only_compatible: false,
        per_dataset: true,
        readable: true,
        description: "Dnodes larger than 512 bytes.",
    },
    Feature {
        guid: "org.illumos:sha512",
        name: "sha512",
        read_only_compatible: false,
        per_dataset: true,
        readable: true,
        description: "SHA-512/256 checksums.",
    },
    Feature {
        guid: "org.illumos:skein",
        name: "skein",
        read_only_compatible: false,
        per_dataset: true,
        readable: true,
        description: "Skein checksums.",
    },
    Feature {
        guid: "org.illumos:edonr",
        name: "edonr",
        read_only_compatible: false,
        per_dataset: true,
        readable: true,
        description: "Edon-R checksums.",
    },
    Feature {
        guid: "com.delphix:redaction_bookmarks",
        name: "redaction_bookmarks",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "Bookmarks that list what a redacted send leaves out.",
    },
    Feature {
        guid: "com.delphix:redacted_datasets",
        name: "redacted_datasets",
        read_only_compatible: false,
        per_dataset: true,
        readable: true,
        description: "Datasets received from a redacted send.",
    },
    Feature {
        guid: "com.delphix:bookmark_written",
        name: "bookmark_written",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "Bookmarks know how much was written since.",
    },
    Feature {
        guid: "com.delphix:device_removal",
        name: "device_removal",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "Top-level vdevs can be removed.",
    },
    Feature {
        guid: "com.delphix:obsolete_counts",
        name: "obsolete_counts",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Removed vdevs need less memory as their blocks are freed.",
    },
    Feature {
        guid: "org.zfsonlinux:userobj_accounting",
        name: "userobj_accounting",
        read_only_compatible: true,
        per_dataset: true,
        readable: true,
        description: "Objects are counted by user and group.",
    },
    Feature {
        guid: "com.datto:bookmark_v2",
        name: "bookmark_v2",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "Larger bookmarks.",
    },
    Feature {
        guid: "com.datto:encryption",
        name: "encryption",
        read_only_compatible: false,
        per_dataset: true,
        readable: true,
        description: "Encryption by dataset.",
    },
    Feature {
        guid: "org.zfsonlinux:project_quota",
        name: "project_quota",
        read_only_compatible: true,
        per_dataset: true,
        readable: true,
        description: "Space and objects are counted by project.",
    },
    Feature {
        guid: "org.zfsonlinux:allocation_classes",
        name: "allocation_classes",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Vdevs for metadata, small blocks and dedup tables.",
    },
    Feature {
        guid: "com.datto:resilver_defer",
        name: "resilver_defer",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "A new resilver waits for the running one.",
    },
    Feature {
        guid: "org.openzfs:device_rebuild",
        name: "device_rebuild",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Mirrors and draid can be rebuilt sequentially.",
    },
    Feature {
        guid: "org.freebsd:zstd_compress",
        name: "zstd_compress",
        read_only_compatible: false,
        per_dataset: true,
        readable: true,
        description: "zstd compression.",
    },
    Feature {
        guid: "org.openzfs:draid",
        name: "draid",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "Distributed spare RAID.",
    },
    Feature {
        guid: "com.seagate:draid_failure_domains",
        name: "draid_failure_domains",
        read_only_compatible: false,
        per_dataset: false,
        readable: false,
        description: "Failure domains of draid.",
    },
    Feature {
        guid: "org.openzfs:zilsaxattr",
        name: "zilsaxattr",
        read_only_compatible: true,
        per_dataset: true,
        readable: true,
        description: "Extended attributes are logged in the intent log.",
    },
    Feature {
        guid: "com.delphix:head_errlog",
        name: "head_errlog",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "The error log is kept by dataset.",
    },
    Feature {
        guid: "org.openzfs:blake3",
        name: "blake3",
        read_only_compatible: false,
        per_dataset: true,
        readable: true,
        description: "BLAKE3 checksums.",
    },
    Feature {
        guid: "com.fudosecurity:block_cloning",
        name: "block_cloning",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Blocks can be shared between files.",
    },
    Feature {
        guid: "com.truenas:block_cloning_endian",
        name: "block_cloning_endian",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "The block reference table is kept in a fixed byte order.",
    },
    Feature {
        guid: "com.klarasystems:vdev_zaps_v2",
        name: "vdev_zaps_v2",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "The root vdev has a ZAP of its own.",
    },
    Feature {
        guid: "com.delphix:redaction_list_spill",
        name: "redaction_list_spill",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "Redaction lists of many snapshots.",
    },
    Feature {
        guid: "org.openzfs:raidz_expansion",
        name: "raidz_expansion",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "A raidz vdev can grow by a disk.",
    },
    Feature {
        guid: "com.klarasystems:fast_dedup",
        name: "fast_dedup",
        read_only_compatible: true,
        per_dataset: false,
        readable: true,
        description: "Dedup tables with a log.",
    },
    Feature {
        guid: "org.zfsonlinux:longname",
        name: "longname",
        read_only_compatible: false,
        per_dataset: true,
        readable: true,
        description: "Names up to 1023 bytes.",
    },
    Feature {
        guid: "com.klarasystems:large_microzap",
        name: "large_microzap",
        read_only_compatible: true,
        per_dataset: true,
        readable: true,
        description: "Micro ZAPs larger than 128 KiB.",
    },
    Feature {
        guid: "com.klarasystems:dynamic_gang_header",
        name: "dynamic_gang_header",
        read_only_compatible: false,
        per_dataset: false,
        readable: true,
        description: "Gang headers as large as the vdev's smallest allocation.",
    },
    Feature {
        guid: "com.truenas:physical_rewrite",
        name: "physical_rewrite",
        read_only_compatible: true,
        per_dataset: true,
        readable: true,
        description: "Rewritten blocks keep their logical birth.",
    },
];

/// The feature with this guid.
#[must_use]
pub fn by_guid(guid: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|feature| feature.guid == guid)
}

/// The features that each feature depends on, by name.
const NEEDS: &[(&str, &[&str])] = &[
    ("hole_birth", &["enabled_txg"]),
    ("bookmarks", &["extensible_dataset"]),
    ("filesystem_limits", &["extensible_dataset"]),
    ("livelist", &["extensible_dataset"]),
    ("log_spacemap", &["spacemap_v2"]),
    ("large_blocks", &["extensible_dataset"]),
    ("large_dnode", &["extensible_dataset"]),
    ("sha512", &["extensible_dataset"]),
    ("skein", &["extensible_dataset"]),
    ("edonr", &["extensible_dataset"]),
    ("redaction_bookmarks", &["bookmark_v2", "extensible_dataset", "bookmarks"]),
    ("redacted_datasets", &["extensible_dataset"]),
    ("bookmark_written", &["bookmark_v2", "extensible_dataset", "bookmarks"]),
    ("obsolete_counts", &["extensible_dataset", "device_removal"]),
    ("userobj_accounting", &["extensible_dataset"]),
    ("bookmark_v2", &["extensible_dataset", "bookmarks"]),
    ("encryption", &["extensible_dataset", "bookmark_v2"]),
    ("project_quota", &["extensible_dataset"]),
    ("zstd_compress", &["extensible_dataset"]),
    ("draid_failure_domains", &["draid"]),
    ("zilsaxattr", &["extensible_dataset"]),
    ("blake3", &["extensible_dataset"]),
    ("redaction_list_spill", &["redaction_bookmarks"]),
    ("longname", &["extensible_dataset"]),
    ("large_microzap", &["extensible_dataset", "large_blocks"]),
    ("physical_rewrite", &["extensible_dataset"]),
];

/// These features and all that they need, in the order of [`FEATURES`].
#[must_use]
pub(crate) fn with_needs(features: &[&'static Feature]) -> Vec<&'static Feature> {
    let mut names: Vec<&str> = features.iter().map(|feature| feature.name).collect();
    let mut at = 0;
    while let Some(name) = names.get(at).copied() {
        let needs = NEEDS.iter().filter(|(of, _)| *of == name).flat_map(|(_, needs)| needs.iter());
        let new: Vec<&str> = needs.copied().filter(|need| !names.contains(need)).collect();
        names.extend(new);
        at += 1;
    }
    debug_assert!(
        NEEDS
            .iter()
            .filter(|(of, _)| names.contains(of))
            .all(|(_, needs)| needs.iter().all(|need| names.contains(need))),
        "what a feature needs is there with it"
    );
    FEATURES.iter().filter(|feature| names.contains(&feature.name)).collect()
}

/// Features of releases after OpenZFS 2.3.
const NEWER: [&str; 4] = ["draid_failure_domains", "block_cloning_endian", "dynamic_gang_header", "physical_rewrite"];

impl Feature {
    /// Whether releases after OpenZFS 2.3 brought it: a pool without it is not out of date.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        NEWER.contains(&self.name)
    }
}

/// The feature with this short name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|feature| feature.name == name)
}

/// How a feature stands on a pool: what `zpool get feature@name` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureState {
    /// Not enabled.
    Disabled,
    /// Enabled, but nothing on disk uses it yet.
    Enabled,
    /// In use.
    Active,
}

impl FeatureState {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_comes_with_what_it_needs() {
        let of = |name| with_needs(&[by_name(name).unwrap()]).iter().map(|feature| feature.name).collect::<Vec<_>>();
        assert_eq!(of("encryption"), ["extensible_dataset", "bookmarks", "bookmark_v2", "encryption"]);
        assert_eq!(of("lz4_compress"), ["lz4_compress"]);
        for (name, needs) in NEEDS {
            assert!(by_name(name).is_some() && needs.iter().all(|need| by_name(need).is_some()), "{name}");
        }
    }

    #[test]
    fn guids_and_names_are_unique_and_belong_together() {
        for feature in FEATURES {
            assert_eq!(by_guid(feature.guid), Some(feature));
            assert_eq!(by_name(feature.name), Some(feature));
            assert_eq!(feature.guid.split_once(':').map(|(_, name)| name), Some(feature.name));
        }
    }
}
