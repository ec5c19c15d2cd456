//! Datasets, snapshots and bookmarks, with the values and sources of their properties.
//!
//! [`values`] determines the source of each property: computed from the dataset's fields in the MOS, stored in the MOS and inherited, the
//! property's default, or the table of mounts. [`shown`] turns a number into OpenZFS's text.
//!
//! **Sources** follow OpenZFS's rules, including their oddities: a computed number that equals the default of a settable property has the source
//! `default` (`quota` of 0, `volblocksize` of 16 KiB); sizes that can only be set on the dataset itself are `local`; read-only properties have
//! `-`; a value that a mount overrides is `temporary`.

mod columns;
mod fact;
mod select;
mod shown;
mod space;
mod values;
mod words;

use std::sync::{Arc, OnceLock};

use cenote_dsl::{Bookmark, Dataset};
use cenote_host::Mounts;
use cenote_props::Types;
use cenote_spa::View;
use cenote_taskq::boxed;
use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::{Json, TimeText};

pub use columns::Column;
pub use fact::{Raw, Source};
pub use select::{PoolSource, Selection, SortKey, select};
pub use shown::Cell;
pub(crate) use values::type_of;
pub(crate) use words::{all_listed, all_shown};
pub use words::{parse_columns, parse_types};

/// A pool, with values that are computed only once for all of its datasets.
pub struct PoolView {
    pool: View,
    mounts: Arc<Mounts>,
    usable_bytes: OnceLock<u64>,
    lists_snapshots: bool,
    time: TimeText,
}

impl PoolView {
    /// A view of an open pool. `mounts` tells which datasets are mounted; `time` formats times.
    #[boxed]
    pub async fn new(pool: View, mounts: Arc<Mounts>, time: TimeText) -> Result<Self> {
        let properties = pool.properties().await?;
        let lists_snapshots = properties.get("listsnapshots").and_then(cenote_dsl::property::Value::number) == Some(1);
        Ok(Self { pool, mounts, usable_bytes: OnceLock::new(), lists_snapshots, time })
    }

    /// The pool.
    pub const fn pool(&self) -> &View {
        &self.pool
    }

    /// True if lists of datasets include snapshots (`listsnapshots`).
    pub(crate) const fn lists_snapshots(&self) -> bool {
        self.lists_snapshots
    }

    /// The bytes that the root dataset may use in all. The first call reads the space maps.
    async fn usable_bytes(&self) -> Result<u64> {
        if let Some(bytes) = self.usable_bytes.get() {
            return Ok(*bytes);
        }
        let bytes = self.pool.usable_bytes(&self.pool.space().await?).await?;
        Ok(*self.usable_bytes.get_or_init(|| bytes))
    }
}

/// A selected file system, volume, snapshot or bookmark.
pub struct Item {
    view: Arc<PoolView>,
    /// The full name.
    pub name: String,
    /// Its type: a single bit.
    pub kind: Types,
    /// The type of the head that it belongs to; its own, for a head.
    head_kind: Types,
    /// The dataset; for a bookmark, the head that it belongs to.
    dataset: Dataset,
    bookmark: Option<Bookmark>,
    caches: values::Caches,
}

impl Item {
    /// A file system, volume or snapshot of this type; `head_kind` is the type of the head that it belongs to.
    pub fn of_dataset(view: &Arc<PoolView>, dataset: Dataset, kind: Types, head_kind: Types) -> Self {
        let name = dataset.name();
        let caches = values::Caches::default();
        Self { view: view.clone(), name, kind, head_kind, dataset, bookmark: None, caches }
    }

    /// A bookmark of a head.
    pub(crate) fn of_bookmark(view: &Arc<PoolView>, head: Dataset, bookmark: Bookmark) -> Self {
        Self {
            view: view.clone(),
            name: bookmark.name.clone(),
            kind: Types::BOOKMARK,
            head_kind: Types::FILESYSTEM,
            dataset: head,
            bookmark: Some(bookmark),
            caches: values::Caches::default(),
        }
    }

    /// Its pool's name.
    pub(crate) fn pool(&self) -> &str {
        self.view.pool.name()
    }

    /// The pool that it is in.
    pub fn opened_pool(&self) -> &View {
        &self.view.pool
    }

    /// True if it is half received or half destroyed.
    pub fn is_inconsistent(&self) -> bool {
        self.dataset.is_inconsistent()
    }

    /// Its txg of creation, by which snapshots are sorted.
    pub(crate) fn creation_txg(&self) -> u64 {
        self.bookmark.as_ref().map_or(self.dataset.phys.creation_txg.0, |bookmark| bookmark.phys.creation_txg.0)
    }

    /// The beginning of its object in JSON: its identity, without properties.
    pub fn json(&self, json: Json) -> Map<String, Value> {
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
