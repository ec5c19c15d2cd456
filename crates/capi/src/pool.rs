//! `cenote_pool`, and all that goes by names of datasets.

use std::ffi::CString;

use cenote::{Pool, Snapshot};

use crate::border::{Borrowed, Data, Give, GiveText, In, Out, Text, Words};
use crate::fault::{Fault, c_text};
use crate::list::{List, row_kind};
use crate::runtime::wait;

/// A pool that is open.
pub(crate) struct PoolHandle {
    pub(crate) pool: Pool,
    name: CString,
}

type Done = Result<(), Fault>;

impl PoolHandle {
    pub(crate) fn new(pool: Pool) -> Self {
        let name = c_text(pool.name());
        Self { pool, name }
    }
}

pub(crate) fn name(pool: In<PoolHandle>) -> Borrowed {
    Borrowed::of(pool.optional().map(|pool| pool.name.as_c_str()))
}

pub(crate) fn guid(pool: In<PoolHandle>) -> u64 {
    pool.optional().map_or(0, |pool| pool.pool.guid())
}

pub(crate) fn txg(pool: In<PoolHandle>) -> u64 {
    pool.optional().map_or(0, |pool| pool.pool.txg())
}

pub(crate) fn is_read_only(pool: In<PoolHandle>) -> bool {
    pool.optional().is_some_and(|pool| pool.pool.is_read_only())
}

pub(crate) fn load_key(pool: In<PoolHandle>, dataset: Text, key: Data, len: usize) -> Done {
    let (dataset, key) = (dataset.get("dataset")?, key.get(len, "key")?);
    wait(pool.get("pool")?.pool.load_key(dataset, key))
}

pub(crate) fn sync(pool: In<PoolHandle>) -> Done {
    wait(pool.get("pool")?.pool.sync())
}

pub(crate) fn resume(pool: In<PoolHandle>) -> Done {
    wait(pool.get("pool")?.pool.resume())
}

pub(crate) fn export(pool: In<PoolHandle>) -> Done {
    wait(pool.get("pool")?.pool.clone().export())
}

pub(crate) fn datasets(pool: In<PoolHandle>, datasets: Give<List>) -> Done {
    let place = datasets.get("datasets")?;
    let found = wait(pool.get("pool")?.pool.datasets())?;
    place.give(List::of_datasets(&found));
    Ok(())
}

pub(crate) fn snapshots(pool: In<PoolHandle>, dataset: Text, snapshots: Give<List>) -> Done {
    let (place, pool, dataset) = (snapshots.get("snapshots")?, pool.get("pool")?, dataset.get("dataset")?);
    let found = wait(async { pool.pool.dataset(dataset).await?.snapshots().await })?;
    place.give(List::of_snapshots(&found));
    Ok(())
}

pub(crate) fn dataset_kind(pool: In<PoolHandle>, dataset: Text, kind: Out<u32>) -> Done {
    let (place, pool, dataset) = (kind.get("kind")?, pool.get("pool")?, dataset.get("dataset")?);
    let found = wait(pool.pool.dataset(dataset))?;
    place.put(row_kind(found.kind()) as u32);
    Ok(())
}

pub(crate) fn dataset_space(pool: In<PoolHandle>, dataset: Text, used: Out<u64>, referenced: Out<u64>) -> Done {
    let (used, referenced) = (used.get("used_bytes")?, referenced.get("referenced_bytes")?);
    let (pool, dataset) = (pool.get("pool")?, dataset.get("dataset")?);
    let space = wait(async { pool.pool.dataset(dataset).await?.space().await })?;
    used.put(space.used_bytes);
    referenced.put(space.referenced_bytes);
    Ok(())
}

/// A word `NAME=VALUE`.
pub(crate) fn setting(word: &str) -> Result<(&str, &str), Fault> {
    word.split_once('=').ok_or_else(|| Fault::misuse(format!("'{word}' is not PROPERTY=VALUE")))
}

pub(crate) fn create_filesystem(pool: In<PoolHandle>, dataset: Text, properties: Words) -> Done {
    let (pool, dataset) = (pool.get("pool")?, dataset.get("dataset")?);
    let words = properties.get("properties")?;
    let settings = words.iter().map(|word| setting(word)).collect::<Result<Vec<_>, _>>()?;
    wait(pool.pool.create_filesystem(dataset, &settings)).map(drop)
}

pub(crate) fn create_volume(pool: In<PoolHandle>, dataset: Text, size_bytes: u64, properties: Words) -> Done {
    let (pool, dataset) = (pool.get("pool")?, dataset.get("dataset")?);
    let words = properties.get("properties")?;
    let settings = words.iter().map(|word| setting(word)).collect::<Result<Vec<_>, _>>()?;
    wait(pool.pool.create_volume(dataset, size_bytes, &settings)).map(drop)
}

pub(crate) fn get_property(pool: In<PoolHandle>, dataset: Text, property: Text, value: GiveText) -> Done {
    let (place, pool) = (value.get("value")?, pool.get("pool")?);
    let (dataset, property) = (dataset.get("dataset")?, property.get("property")?);
    let found = wait(async { pool.pool.dataset(dataset).await?.get(property).await })?;
    place.text(found.value.as_bytes())
}

pub(crate) fn set_property(pool: In<PoolHandle>, dataset: Text, property: Text, value: Text) -> Done {
    let (pool, dataset) = (pool.get("pool")?, dataset.get("dataset")?);
    let (property, value) = (property.get("property")?, value.get("value")?);
    wait(async { pool.pool.dataset(dataset).await?.set(property, value).await })
}

pub(crate) fn rename_dataset(pool: In<PoolHandle>, dataset: Text, to: Text) -> Done {
    let (pool, dataset, to) = (pool.get("pool")?, dataset.get("dataset")?, to.get("to")?);
    wait(async { pool.pool.dataset(dataset).await?.rename(to).await }).map(drop)
}

pub(crate) fn destroy(pool: In<PoolHandle>, dataset: Text, all_below: bool) -> Done {
    let (pool, dataset) = (pool.get("pool")?, dataset.get("dataset")?);
    wait(async {
        match (dataset.find(['@', '#']).map(|at| &dataset[at..=at]), all_below) {
            (Some("#"), _) => pool.pool.bookmark(dataset).await?.destroy().await,
            (Some(_), _) => pool.pool.snapshot(dataset).await?.destroy().await,
            (None, true) => pool.pool.dataset(dataset).await?.destroy_all().await,
            (None, false) => pool.pool.dataset(dataset).await?.destroy().await,
        }
    })
}

pub(crate) fn snapshot(pool: In<PoolHandle>, snapshot: Text) -> Done {
    let (pool, whole) = (pool.get("pool")?, snapshot.get("snapshot")?);
    let Some((dataset, name)) = whole.split_once('@') else {
        return Err(Fault::misuse(format!("'{whole}' is no name of a snapshot: DATASET@NAME")));
    };
    wait(async { pool.pool.dataset(dataset).await?.snapshot(name).await }).map(drop)
}

pub(crate) fn rollback(pool: In<PoolHandle>, snapshot: Text, over_newer: bool) -> Done {
    let (pool, whole) = (pool.get("pool")?, snapshot.get("snapshot")?);
    wait(async {
        let found: Snapshot = pool.pool.snapshot(whole).await?;
        match over_newer {
            true => found.rollback_over_newer().await,
            false => found.rollback().await,
        }
    })
}

pub(crate) fn clone_snapshot(pool: In<PoolHandle>, snapshot: Text, dataset: Text, properties: Words) -> Done {
    let (pool, whole, dataset) = (pool.get("pool")?, snapshot.get("snapshot")?, dataset.get("dataset")?);
    let words = properties.get("properties")?;
    let settings = words.iter().map(|word| setting(word)).collect::<Result<Vec<_>, _>>()?;
    wait(async { pool.pool.snapshot(whole).await?.clone_to(dataset, &settings).await }).map(drop)
}
