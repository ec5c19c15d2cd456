//! What `zfs list` and `zfs get` show: datasets, and values of their properties with sources.
//!
//! # Theory
//!
//! **Need.** The same names, values, sources and order as OpenZFS's, from a pool that no kernel has.
//!
//! **Shape.**
//! ```text
//! arguments, -r -d -t ─ select ─► Items, sorted ─ values ─► Fact (number or text, source) ─ shown ─► Cell ─► columns
//! ```
//! [`mod@select`] walks the tree and orders what it finds. Values and their sources are crate `listing`'s.
//!
//! **Invariants.**
//! 1. A value is read when it is asked for: listing names costs no more than names.
//! 2. What cannot be read is an error of that value and does not end the listing.

mod select;

use anyhow::Result;
use cenote_listing::Column;
use cenote_props::Types;

use crate::outcome::usage;

pub(crate) use select::{Selection, SortKey, select};

/// The columns that `space` stands for.
const SPACE: [&str; 7] =
    ["name", "avail", "used", "usedbysnapshots", "usedbydataset", "usedbyrefreservation", "usedbychildren"];

/// A list of properties; `None` for `all`.
pub(crate) fn parse_columns(list: &str) -> Result<Option<Vec<Column>>> {
    if list == "all" {
        return Ok(None);
    }
    if list.is_empty() {
        return Err(usage("bad property list: no properties specified"));
    }
    let mut columns = Vec::new();
    for name in list.split(',') {
        let names = if name == "space" { &SPACE[..] } else { &[name] };
        for name in names {
            let column = Column::find(name);
            columns.push(column.ok_or_else(|| usage(format!("bad property list: invalid property '{name}'")))?);
        }
    }
    Ok(Some(columns))
}

/// A list of types, as `-t` has it.
pub(crate) fn parse_types(list: &str) -> Result<Types> {
    let mut types = Types::empty();
    for name in list.split(',') {
        types |= match name {
            "filesystem" | "fs" => Types::FILESYSTEM,
            "volume" | "vol" => Types::VOLUME,
            "snapshot" | "snap" => Types::SNAPSHOT,
            "bookmark" => Types::BOOKMARK,
            "all" => Types::DATASET | Types::BOOKMARK,
            _ => return Err(usage(format!("invalid type '{name}'"))),
        };
    }
    Ok(types)
}
