//! `cenote_list`: pools, datasets, snapshots, bookmarks and holds that were listed.

use std::ffi::CString;

use std::time::SystemTime;

use cenote::{Bookmark, Dataset, DatasetKind, FoundPool, Hold, Snapshot};

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
    Bookmark,
    Hold,
}

struct Row {
    name: CString,
    kind: RowKind,
    guid: u64,
    /// Seconds since 1970; 0 if there is no time.
    time_s: u64,
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
        let row = |of: &Snapshot| row(of.name(), RowKind::Snapshot, of.guid()).at(of.created());
        Self(snapshots.iter().map(row).collect())
    }

    pub(crate) fn of_bookmarks(bookmarks: &[Bookmark]) -> Self {
        let row = |of: &Bookmark| row(of.name(), RowKind::Bookmark, of.guid()).at(of.created());
        Self(bookmarks.iter().map(row).collect())
    }

    pub(crate) fn of_holds(holds: &[Hold]) -> Self {
        Self(holds.iter().map(|hold| row(&hold.tag, RowKind::Hold, 0).at(hold.placed)).collect())
    }
}

fn row(name: &str, kind: RowKind, guid: u64) -> Row {
    Row { name: c_text(name), kind, guid, time_s: 0 }
}

impl Row {
    fn at(self, time: SystemTime) -> Self {
        let time_s = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { time_s, ..self }
    }
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

pub(crate) fn time(list: In<List>, index: usize) -> u64 {
    at(&list, index).map_or(0, |row| row.time_s)
}
