//! The DSL dataset's bonus: 320 bytes of words in the order of the fields below, with a block pointer among them and 5
//! words unused at the end.

use crate::blkptr::Blkptr;
use crate::ids::{Guid, ObjectId, Txg};
use crate::words::{one_field, word_struct};

bitflags::bitflags! {
    /// `ds_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DatasetFlags: u64 {
        /// Half-received or half-destroyed: not to be opened for use.
        const INCONSISTENT = 1 << 0;
        /// Must not be promoted.
        const NO_PROMOTE = 1 << 1;
        /// `unique_bytes` is right (pools since version 9).
        const UNIQUE_ACCURATE = 1 << 2;
        /// A snapshot to be destroyed when its last hold or clone goes.
        const DEFER_DESTROY = 1 << 3;
        /// Names are looked up case-insensitively.
        const CASE_INSENSITIVE = 1 << 16;
        /// Unknown bits are kept.
        const _ = !0;
    }
}

one_field! { DatasetFlags as u64: |word| Self::from_bits_retain(word), |value| value.bits(); }

word_struct! {
    /// A head dataset or snapshot.
    DslDatasetPhys("dsl dataset", 320) {
        /// Its DSL directory.
        dir: ObjectId,
        /// The snapshot before this one.
        prev_snapshot: ObjectId,
        /// The txg of that.
        prev_snapshot_txg: Txg,
        /// The snapshot or head after this one; 0 for a head.
        next_snapshot: ObjectId,
        /// ZAP: snapshot's name to dataset; 0 for snapshots.
        snapshot_names: ObjectId,
        /// Clones and the next snapshot; 0 for a head.
        child_count: u64,
        /// Seconds since 1970.
        creation_time: u64,
        /// The txg of creation.
        creation_txg: Txg,
        /// Blocks of the previous snapshot that are no longer here.
        deadlist: ObjectId,
        /// Bytes of all blocks reachable from here.
        referenced_bytes: u64,
        /// The same before allocation overhead.
        compressed_bytes: u64,
        /// The same before compression.
        uncompressed_bytes: u64,
        /// Bytes reachable from here alone.
        unique_bytes: u64,
        /// A 56-bit id that may change to stay unique among mounted file systems.
        fsid_guid: u64,
        /// The id that never changes.
        guid: Guid,
        /// Flags.
        flags: DatasetFlags,
        /// The objset.
        bp: Blkptr,
        /// ZAP: clones of this snapshot, named by their numbers in hexadecimal.
        next_clones: ObjectId,
        /// ZAP: a snapshot's properties.
        properties: ObjectId,
        /// ZAP: holds, tag to time in seconds.
        user_refs: ObjectId,
    }
}

impl DslDatasetPhys {
    /// Whether this is a snapshot: only heads have a map of snapshot names.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.snapshot_names.0 == 0
    }
}

/// Names of extra fields of a zapified dataset. A per-dataset feature in use adds its own guid as a name.
pub mod dataset_field {
    /// The ZAP of bookmarks.
    pub const BOOKMARK_NAMES: &str = "com.delphix:bookmarks";
    /// Present with value 0 where dnodes may exceed 512 bytes.
    pub const LARGE_DNODE: &str = "org.zfsonlinux:large_dnode";
    /// Resumable receive: the incremental source's guid.
    pub const RESUME_FROM_GUID: &str = "com.delphix:resume_fromguid";
    /// Resumable receive: the snapshot's name.
    pub const RESUME_TO_NAME: &str = "com.delphix:resume_toname";
    /// Resumable receive: the snapshot's guid.
    pub const RESUME_TO_GUID: &str = "com.delphix:resume_toguid";
    /// Resumable receive: the object reached.
    pub const RESUME_OBJECT: &str = "com.delphix:resume_object";
    /// Resumable receive: the offset reached in it.
    pub const RESUME_OFFSET: &str = "com.delphix:resume_offset";
    /// Resumable receive: bytes received.
    pub const RESUME_BYTES: &str = "com.delphix:resume_bytes";
    /// Resumable receive: the stream has large blocks.
    pub const RESUME_LARGE_BLOCK: &str = "com.delphix:resume_largeblockok";
    /// Resumable receive: the stream has embedded blocks.
    pub const RESUME_EMBED: &str = "com.delphix:resume_embedok";
    /// Resumable receive: the stream has compressed blocks.
    pub const RESUME_COMPRESS: &str = "com.delphix:resume_compressok";
    /// Resumable receive: the stream is raw.
    pub const RESUME_RAW: &str = "com.datto:resume_rawok";
    /// Resumable receive: guids of the redaction bookmark's snapshots.
    pub const RESUME_REDACT_SNAPSHOTS: &str = "com.delphix:resume_redact_book_snaps";
    /// A deadlist of blocks remapped from indirect vdevs.
    pub const REMAP_DEADLIST: &str = "com.delphix:remap_deadlist";
    /// A snapshot that was received raw.
    pub const RAW_RECEIVED: &str = "org.openzfs:raw_received";
    /// An encrypted snapshot's set of IVs.
    pub const IVSET_GUID: &str = "com.datto:ivset_guid";
    /// Guids of the snapshots that a redacted dataset was redacted with.
    pub const REDACTED_DATASETS: &str = "com.delphix:redacted_datasets";
}
