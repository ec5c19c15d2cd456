//! `cenote_list`: pools, datasets and snapshots that were listed.

use std::ffi::CString;

use cenote::{Dataset, DatasetKind, FoundPool, Snapshot};

use crate::border::{Borrowed, In};
use crate::fault::c_text;

/// The kind of a row: `enum cenote_kind`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum RowKind {
    ExportedPool = 1,
    Pool,
    FileSystem,
    Volume,
    Snapshot,
}

struct Row {
    name: CString,
    kind: RowKind,
    guid: u64,
}

/// A list, which does not change.
#[derive(Default)]
pub(crate) struct List(Vec<Row>);

impl List {
    pub(crate) fn of_pools(pools: &[FoundPool]) -> Self {
        let kind = |pool: &FoundPool| if pool.is_exported { RowKind::ExportedPool } else { RowKind::Pool };
        Self(pools.iter().map(|pool| row(&pool.name, kind(pool), pool.guid)).collect())
    }

    pub(crate) fn of_datasets(datasets: &[Dataset]) -> Self {
        Self(datasets.iter().map(|dataset| row(dataset.name(), row_kind(dataset.kind()), dataset.guid())).collect())
    }

    pub(crate) fn of_snapshots(snapshots: &[Snapshot]) -> Self {
        let row = |snapshot: &Snapshot| row(snapshot.name(), RowKind::Snapshot, snapshot.guid());
        Self(snapshots.iter().map(row).collect())
    }
}

fn row(name: &str, kind: RowKind, guid: u64) -> Row {
    Row { name: c_text(name), kind, guid }
}

pub(crate) fn row_kind(kind: DatasetKind) -> RowKind {
    match kind {
        DatasetKind::FileSystem => RowKind::FileSystem,
        DatasetKind::Volume => RowKind::Volume,
    }
}

fn at(list: &In<List>, index: usize) -> Option<&Row> {
    list.optional()?.0.get(index)
}

pub(crate) fn count(list: In<List>) -> usize {
    list.optional().map_or(0, |list| list.0.len())
}

pub(crate) fn name(list: In<List>, index: usize) -> Borrowed {
    Borrowed::of(at(&list, index).map(|row| row.name.as_c_str()))
}

pub(crate) fn kind(list: In<List>, index: usize) -> u32 {
    at(&list, index).map_or(0, |row| row.kind as u32)
}

pub(crate) fn guid(list: In<List>, index: usize) -> u64 {
    at(&list, index).map_or(0, |row| row.guid)
}

#[cfg(test)]
pub(crate) fn layout() -> String {
    crate::border::spelling::numbers(&[
        ("EXPORTED_POOL", RowKind::ExportedPool as u32),
        ("POOL", RowKind::Pool as u32),
        ("FILESYSTEM", RowKind::FileSystem as u32),
        ("VOLUME", RowKind::Volume as u32),
        ("SNAPSHOT", RowKind::Snapshot as u32),
    ])
}
