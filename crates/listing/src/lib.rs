//! Pools, vdevs and datasets with the values of their properties, as `list`, `get` and `status` have them.
//!
//! # Theory
//!
//! **Need.** The same names, values, sources and order as OpenZFS's, from a pool that no kernel has: for commands that print them and for
//! programs that show them otherwise.
//!
//! **Shape.**
//! ```text
//! Item   a dataset, snapshot or bookmark ─ Column ─► Cell: text, source, received value
//! Facts  a pool ─┬─ Values ─ PoolColumn ─► Cell
//!                └─ Tree ─► Vdev: name, class, state, errors, sizes
//! ```
//!
//! **Invariants.**
//! 1. A value is read when it is asked for: listing names costs no more than names.
//! 2. What cannot be read is an error of that value and does not end the listing.
//!
//! **Rejected.** *Values without their text*: how a number is shown depends on the property, so each front end would have that table again.

#![forbid(unsafe_code)]

mod datasets;
mod error;
mod json;
mod pools;

pub use datasets::{Cell, Column, Item, PoolView, Raw, Source, type_of};
pub use error::ListError;
pub use json::Json;
pub use pools::{
    DEDUP, Facts, LOGS, Names, PoolColumn, Reason, SPECIAL, Sizes, Tree, Values, Vdev, all_columns, found_tree, places,
};

/// Shows a time: seconds since 1970, and a format as of `strftime`.
pub type TimeText = fn(u64, &str) -> String;
