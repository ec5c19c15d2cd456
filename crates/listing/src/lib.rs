//! Pools, vdevs and datasets with the values of their properties, for `list`, `get` and `status`.
//!
//! # Theory
//!
//! **Need.** The same names, values, sources and order as OpenZFS's, but for a pool without a kernel module: for commands that print them and
//! programs that show them in other ways.
//!
//! **Shape.**
//! ```text
//! Selection ─ select ─► Items, sorted            of pools that a PoolSource opens
//! Item   a dataset, snapshot or bookmark ─ Column ─► Cell: text, source, received value
//! Facts  a pool ─┬─ Values ─ PoolColumn ─► Cell
//!                ├─ Tree ─► Vdev: name, class, state, errors, sizes
//!                └─ Status, Importable: reports on its health, and on a pool that could be imported
//! Cells ─► Gotten, document                      text in columns, and JSON, as OpenZFS's tools lay them out
//! ```
//!
//! **Invariants.**
//! 1. A value is read only when it is requested: a listing of names costs no more than the names.
//! 2. An unreadable value is an error of its own, and does not end the listing.
//!
//! **Rejected.** *Values without their text*: the format of a number depends on the property, so each front end would need that table again.

#![forbid(unsafe_code)]

mod accounts;
mod datasets;
mod differences;
mod error;
mod gettable;
mod json;
mod kstats;
mod pools;
mod tables;
mod tunables;
mod upgrades;

pub use accounts::{AccountField, AccountOptions, AccountOwner, accounts};
pub use datasets::{
    Cell, Column, Item, PoolSource, PoolView, Raw, Selection, SortKey, Source, parse_columns, parse_types, select,
};
pub(crate) use datasets::{all_listed, all_shown};
pub use differences::{Change, DiffError, DiffForm, DiffLines, diff_names, differences};
pub use error::ListError;
pub use gettable::{Field, check_sources, parse_fields};
pub use json::{Json, document, json_of, property};
pub use kstats::{chosen_kstats, kstats_document, kstats_lines, kstats_text};
pub use pools::{
    DEDUP, Facts, Importable, Imported, IoTable, LOGS, Left, LostPool, NamedVdev, Names, PoolColumn, Reason, SPECIAL,
    ScriptColumns, Sizes, Status, StatusOptions, Tree, Vdev, VdevIo, WhyLost, event_line, event_members, get_vdevs,
    has_hanging, history_line, parse_pool_columns, place, places, suspended_json, suspended_text,
};
pub(crate) use pools::{Values, all_columns};
pub use tables::{Form, Listed, get_datasets, get_pools, list_datasets, list_pools};
pub use tunables::{TunableList, tunables};
pub use upgrades::{UPGRADE_HEAD, enabled_text, features_text, lacking_text};

pub use cenote_props::number::{counted, nicebytes, nicenum};
pub use cenote_props::{Align, Table, lines};
pub use cenote_spa::Condition;

/// Formats a time: seconds since 1970, and a format of `strftime`.
pub type TimeText = fn(u64, &str) -> String;
