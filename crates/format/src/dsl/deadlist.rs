//! Deadlists: the blocks that a dataset no longer has but its previous snapshot does.
//!
//! The object is a ZAP (type DEADLIST, bonus below) that maps the birth txg of a range's first block, in hexadecimal, to
//! the number of a bpobj with the range's blocks. In pools before version 26 the object is one bpobj
//! itself. A clone's livelist has the same form, its bpobjs holding allocations and frees by txg.

use crate::words::word_struct;

word_struct! {
    /// The bonus of a deadlist ZAP: the sums over its bpobjs.
    DeadlistPhys("deadlist", 320) {
        /// Bytes on disk.
        used_bytes: u64,
        /// Bytes before allocation overhead.
        compressed_bytes: u64,
        /// Bytes before compression.
        uncompressed_bytes: u64,
    }
}
