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
//! [`mod@select`] walks the tree and orders what it finds. [`values`] knows where each property comes from: computed from
//! what the MOS keeps of the dataset, stored in the MOS and inherited, the properties' defaults, or the mount table.
//! [`shown`] turns a number into OpenZFS's text.
//!
//! **Sources** follow OpenZFS's rules, oddities included: a number that is computed and equals the default of a property
//! that can be chosen has the source `default` (`quota` of 0, `volblocksize` of 16 KiB); sizes that can only be set on
//! the dataset itself are `local`; what only reports is `-`; what a mount overrides is `temporary`.
//!
//! **Invariants.**
//! 1. A value is read when it is asked for: listing names costs no more than names.
//! 2. What cannot be read is an error of that value and does not end the listing.

mod columns;
mod select;
mod shown;
mod space;
mod values;

use std::sync::{Arc, OnceLock};

use anyhow::Result;
use cenote_dsl::{Bookmark, Dataset};
use cenote_props::Types;
use cenote_server::Mounts;
use cenote_spa::View;
use serde_json::{Map, Value, json};

use crate::output::Json;

pub(crate) use cenote_send::receiver::receive_resume_token;
pub(crate) use columns::{Column, parse_columns, parse_types};
pub(crate) use select::{Selection, SortKey, select};
pub(crate) use shown::Cell;
pub(crate) use values::Source;

/// A pool and what is computed once for all of its datasets.
pub(crate) struct PoolView {
    pool: View,
    mounts: Arc<Mounts>,
    usable_bytes: OnceLock<u64>,
    lists_snapshots: bool,
}

impl PoolView {
    pub(crate) async fn new(pool: View, mounts: Arc<Mounts>) -> Result<Self> {
        let properties = pool.properties().await?;
        let lists_snapshots = properties.get("listsnapshots").and_then(cenote_dsl::property::Value::number) == Some(1);
        Ok(Self { pool, mounts, usable_bytes: OnceLock::new(), lists_snapshots })
    }

    /// What the root dataset may use in all. Reads the space maps, the first time.
    async fn usable_bytes(&self) -> Result<u64> {
        if let Some(bytes) = self.usable_bytes.get() {
            return Ok(*bytes);
        }
        let bytes = self.pool.usable_bytes(&self.pool.space().await?).await?;
        Ok(*self.usable_bytes.get_or_init(|| bytes))
    }
}

/// A file system, volume, snapshot or bookmark that was selected.
pub(crate) struct Item {
    view: Arc<PoolView>,
    /// The full name.
    pub(crate) name: String,
    /// Its type: one bit.
    pub(crate) kind: Types,
    /// The type of the head that it belongs to; its own, for a head.
    head_kind: Types,
    /// The dataset; a bookmark's is the head that it belongs to.
    dataset: Dataset,
    bookmark: Option<Bookmark>,
    caches: values::Caches,
}

impl Item {
    /// Its pool's name.
    pub(crate) fn pool(&self) -> &str {
        self.view.pool.name()
    }

    /// The pool that it is in.
    pub(crate) fn opened_pool(&self) -> &View {
        &self.view.pool
    }

    /// Whether it is half-received or half-destroyed.
    pub(crate) fn is_inconsistent(&self) -> bool {
        self.dataset.is_inconsistent()
    }

    /// Its txg of creation, by which snapshots are sorted.
    pub(crate) fn creation_txg(&self) -> u64 {
        self.bookmark.as_ref().map_or(self.dataset.phys.creation_txg.0, |bookmark| bookmark.phys.creation_txg.0)
    }

    /// The head of its object in JSON: what it is, without properties.
    pub(crate) fn json(&self, json: Json) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("name".into(), json!(self.name));
        let kind = match self.kind {
            Types::FILESYSTEM => "FILESYSTEM",
            Types::VOLUME => "VOLUME",
            Types::SNAPSHOT => "SNAPSHOT",
            _ => "BOOKMARK",
        };
        map.insert("type".into(), json!(kind));
        map.insert("pool".into(), json!(self.pool()));
        map.insert("createtxg".into(), json.number(self.creation_txg()));
        if let Some((dataset, snapshot)) = self.name.split_once('@') {
            map.insert("dataset".into(), json!(dataset));
            map.insert("snapshot_name".into(), json!(snapshot));
        }
        map
    }
}
