//! The pool's directory: MOS object 1, a ZAP of everything else.

/// Names of its entries, and of the DSL's special children.
pub mod pool_directory {
    use crate::ids::ObjectId;

    /// The directory's own number.
    pub const OBJECT: ObjectId = ObjectId(1);
    /// The pool's configuration: an object with a packed name-value list.
    pub const CONFIG: &str = "config";
    /// ZAP: features needed to write, guid to reference count.
    pub const FEATURES_FOR_WRITE: &str = "features_for_write";
    /// ZAP: features needed to read, guid to reference count.
    pub const FEATURES_FOR_READ: &str = "features_for_read";
    /// ZAP: guid to description.
    pub const FEATURE_DESCRIPTIONS: &str = "feature_descriptions";
    /// ZAP: guid to the txg in which it was enabled.
    pub const FEATURE_ENABLED_TXG: &str = "feature_enabled_txg";
    /// The root DSL directory.
    pub const ROOT_DATASET: &str = "root_dataset";
    /// A bpobj of frees put off to the next txg.
    pub const SYNC_BPOBJ: &str = "sync_bplist";
    /// The error log of the scrub under way.
    pub const ERRLOG_SCRUB: &str = "errlog_scrub";
    /// The error log of the last complete scrub, and since.
    pub const ERRLOG_LAST: &str = "errlog_last";
    /// The hot spares: an object with a packed name-value list.
    pub const SPARES: &str = "spares";
    /// Whether sizes are counted without RAID-Z parity.
    pub const DEFLATE: &str = "deflate";
    /// The history.
    pub const HISTORY: &str = "history";
    /// ZAP: the pool's properties.
    pub const PROPERTIES: &str = "pool_props";
    /// The cache devices: an object with a packed name-value list.
    pub const L2CACHE: &str = "l2cache";
    /// ZAP: temporary holds.
    pub const TMP_USERREFS: &str = "tmp_userrefs";
    /// ZAP: dedup statistics.
    pub const DDT_STATISTICS: &str = "DDT-statistics";
    /// The version with which the pool was created.
    pub const CREATION_VERSION: &str = "creation_version";
    /// Scrub or resilver.
    pub const SCAN: &str = "scan";
    /// Scrub of known errors.
    pub const ERROR_SCRUB: &str = "error_scrub";
    /// The txg up to which the last scrub went.
    pub const LAST_SCRUBBED_TXG: &str = "last_scrubbed_txg";
    /// A bpobj of blocks to free.
    pub const FREE_BPOBJ: &str = "free_bpobj";
    /// Trees of destroyed datasets to free.
    pub const BPTREE: &str = "bptree_obj";
    /// The bpobj that stands for all empty ones.
    pub const EMPTY_BPOBJ: &str = "empty_bpobj";
    /// The salt of keyed checksums: 32 bytes.
    pub const CHECKSUM_SALT: &str = "org.illumos:checksum_salt";
    /// ZAP of vdev ZAPs.
    pub const VDEV_ZAP_MAP: &str = "com.delphix:vdev_zap_map";
    /// Removal of a vdev: words.
    pub const REMOVING: &str = "com.delphix:removing";
    /// A bpobj of blocks remapped from indirect vdevs.
    pub const OBSOLETE_BPOBJ: &str = "com.delphix:obsolete_bpobj";
    /// Condensing of an indirect vdev's mapping: words.
    pub const CONDENSING_INDIRECT: &str = "com.delphix:condensing_indirect";
    /// The checkpoint's uberblock: words.
    pub const CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
    /// ZAP: txg in hexadecimal to log space map.
    pub const LOG_SPACEMAP_ZAP: &str = "com.delphix:log_spacemap_zap";
    /// ZAP: livelists of destroyed clones.
    pub const DELETED_CLONES: &str = "com.delphix:deleted_clones";

    /// The root's child that keeps the MOS's own space.
    pub const MOS_DIR: &str = "$MOS";
    /// The root's child that keeps space being freed.
    pub const FREE_DIR: &str = "$FREE";
    /// The root's child that keeps leaked space.
    pub const LEAK_DIR: &str = "$LEAK";
    /// The root's child whose one snapshot is the origin of everything that is no clone.
    pub const ORIGIN_DIR: &str = "$ORIGIN";

    /// The name of a dedup table: checksum, type (`zap`), class (`ditto`, `duplicate`, `unique`).
    #[must_use]
    pub fn ddt(checksum: &str, table_type: &str, class: &str) -> String {
        format!("DDT-{checksum}-{table_type}-{class}")
    }

    /// The name of the directory of a checksum's dedup objects, in pools with `fast_dedup`.
    #[must_use]
    pub fn ddt_dir(checksum: &str) -> String {
        format!("DDT-{checksum}")
    }

    /// The name of a dedup log, 0 or 1.
    #[must_use]
    pub fn ddt_log(checksum: &str, index: u32) -> String {
        format!("DDT-log-{checksum}-{index}")
    }

    /// The name of a vdev's block reference table.
    #[must_use]
    pub fn brt(vdev: u32) -> String {
        format!("com.fudosecurity:brt:vdev:{vdev}")
    }
}
