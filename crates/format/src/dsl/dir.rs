//! The DSL directory's bonus: 256 bytes of words, in the order of the fields below, 13 words unused at the end.

use crate::ids::ObjectId;
use crate::words::{one_field, word_struct};

bitflags::bitflags! {
    /// `dd_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DirFlags: u64 {
        /// `used_breakdown` is kept.
        const USED_BREAKDOWN = 1 << 0;
        /// Unknown bits are kept.
        const _ = !0;
    }
}

one_field! { DirFlags as u64: |word| Self::from_bits_retain(word), |value| value.bits(); }

word_struct! {
    /// A DSL directory.
    DslDirPhys("dsl dir", 256) {
        /// Creation time in seconds; not used.
        creation_time: u64,
        /// The head dataset.
        head_dataset: ObjectId,
        /// The parent directory.
        parent: ObjectId,
        /// The snapshot this is a clone of.
        origin: ObjectId,
        /// ZAP: child's name to DSL directory.
        child_dirs: ObjectId,
        /// Bytes used by this directory and everything below.
        used_bytes: u64,
        /// The same before allocation overhead.
        compressed_bytes: u64,
        /// The same before compression.
        uncompressed_bytes: u64,
        /// `quota` in bytes, 0 for none.
        quota_bytes: u64,
        /// `reservation` in bytes.
        reserved_bytes: u64,
        /// ZAP: properties.
        properties: ObjectId,
        /// ZAP: delegated permissions.
        delegations: ObjectId,
        /// Flags.
        flags: DirFlags,
        /// `used_bytes` by kind: head, snapshots, children, children's reservations, refreservation.
        used_breakdown_bytes: [u64; 5],
        /// ZAP: DSL directories of clones, named by their numbers in hexadecimal.
        clones: ObjectId,
    }
}

/// Names of extra fields of a zapified directory.
pub mod dir_field {
    /// Number of file systems below, where limits are in force.
    pub const FILESYSTEM_COUNT: &str = "com.joyent:filesystem_count";
    /// Number of snapshots below.
    pub const SNAPSHOT_COUNT: &str = "com.joyent:snapshot_count";
    /// The object of the wrapped encryption key.
    pub const CRYPTO_KEY_OBJECT: &str = "com.datto:crypto_key_obj";
    /// The clone's list of own blocks: a deadlist.
    pub const LIVELIST: &str = "com.delphix:livelist";
    /// When a snapshot was last created or destroyed: seconds and nanoseconds.
    pub const SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";
}
