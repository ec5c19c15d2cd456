//! The DSL: datasets, their directories, snapshots and properties, as objects of the meta objset.
//!
//! ```text
//! MOS object 1 (ZAP): root_dataset ──> DSL dir "pool"
//!
//! DSL dir (bonus DslDirPhys)                          DSL dataset (bonus DslDatasetPhys)
//!   head_dataset ───────────────────────────────────>   dir                     back to its DSL dir
//!   child_dirs (ZAP: name -> DSL dir)                   snapshot_names (ZAP: name -> DSL dataset), head only
//!   properties (ZAP)                                    prev_snapshot, next_snapshot: the chain of snapshots
//!   parent, origin, clones                              deadlist: blocks of prev_snapshot that this one lost
//!   its own data, if any, is a ZAP of named extras      bp: the objset's block pointer
//! ```
//!
//! A directory holds what belongs to the name (quota, properties, children); its head dataset and its snapshots hold
//! contents. A dataset or directory object whose type says ZAP is "zapified": its data is a ZAP of named extra fields, in
//! which features keep what the fixed structures have no room for.

mod bookmark;
mod crypto;
mod dataset;
mod deadlist;
mod dir;
mod pool;
mod property;
mod rebuild;
mod scan;
mod txg_times;

pub use bookmark::{BookmarkFlags, BookmarkPhys, RedactBlock, RedactionListPhys};
pub use crypto::{CryptSuite, CryptoKeyPhys, KeyFormat, crypto_key};
pub use dataset::{DatasetFlags, DslDatasetPhys, dataset_field};
pub use deadlist::DeadlistPhys;
pub use dir::{DirFlags, DslDirPhys, dir_field};
pub use pool::pool_directory;
pub use property::{PropertyEntry, split_property};
pub use rebuild::{RebuildPhys, RebuildState};
pub use scan::{ErrorScrubPhys, ScanFlags, ScanFunction, ScanPhys, ScanState, ZBookmark};
pub use txg_times::TxgTimes;

#[cfg(test)]
mod tests;
