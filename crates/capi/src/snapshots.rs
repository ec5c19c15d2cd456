//! Bookmarks, holds, changes between snapshots, keys, and the pool's history.

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Mutex;

use cenote::{Change, ChangeKind, Changes, HistoryEvent, HistoryRecord, KeyStatus};

use crate::border::{Data, Give, In, Out, Text, pointer};
use crate::fault::{Fault, c_text};
use crate::filesystem::{CTime, c_time, number};
use crate::list::List;
use crate::locked;
use crate::pool::PoolHandle;
use crate::runtime::wait;

type Done = Result<(), Fault>;

pub(crate) fn bookmark(pool: In<PoolHandle>, source: Text, name: Text) -> Done {
    let (pool, source, name) = (pool.get("pool")?, source.get("source")?, name.get("name")?);
    let made = async {
        match source.contains('#') {
            true => pool.pool.bookmark(source).await?.bookmark(name).await,
            false => pool.pool.snapshot(source).await?.bookmark(name).await,
        }
    };
    wait(made).map(drop)
}

pub(crate) fn bookmarks(pool: In<PoolHandle>, dataset: Text, bookmarks: Give<List>) -> Done {
    let (place, pool, dataset) = (bookmarks.get("bookmarks")?, pool.get("pool")?, dataset.get("dataset")?);
    let found = wait(async { pool.pool.dataset(dataset).await?.bookmarks().await })?;
    place.give(List::of_bookmarks(&found));
    Ok(())
}

pub(crate) fn hold(pool: In<PoolHandle>, snapshot: Text, tag: Text) -> Done {
    let (pool, snapshot, tag) = (pool.get("pool")?, snapshot.get("snapshot")?, tag.get("tag")?);
    wait(async { pool.pool.snapshot(snapshot).await?.hold(tag).await })
}

pub(crate) fn release(pool: In<PoolHandle>, snapshot: Text, tag: Text) -> Done {
    let (pool, snapshot, tag) = (pool.get("pool")?, snapshot.get("snapshot")?, tag.get("tag")?);
    wait(async { pool.pool.snapshot(snapshot).await?.release(tag).await })
}

pub(crate) fn holds(pool: In<PoolHandle>, snapshot: Text, holds: Give<List>) -> Done {
    let (place, pool, snapshot) = (holds.get("holds")?, pool.get("pool")?, snapshot.get("snapshot")?);
    let found = wait(async { pool.pool.snapshot(snapshot).await?.holds().await })?;
    place.give(List::of_holds(&found));
    Ok(())
}

pub(crate) fn key_status(pool: In<PoolHandle>, dataset: Text, status: Out<u32>) -> Done {
    let (place, pool, dataset) = (status.get("status")?, pool.get("pool")?, dataset.get("dataset")?);
    let found = wait(async { pool.pool.dataset(dataset).await?.key_status().await })?;
    place.put(key_number(found));
    Ok(())
}

pub(crate) fn unload_key(pool: In<PoolHandle>, dataset: Text) -> Done {
    wait(pool.get("pool")?.pool.unload_key(dataset.get("dataset")?))
}

pub(crate) fn change_key(pool: In<PoolHandle>, dataset: Text, key: Data, len: usize) -> Done {
    let (pool, dataset, key) = (pool.get("pool")?, dataset.get("dataset")?, key.get(len, "key")?);
    wait(async { pool.pool.dataset(dataset).await?.change_key(key).await })
}

/// The number of a key's status: `enum cenote_key_status`.
pub(crate) const fn key_number(status: KeyStatus) -> u32 {
    match status {
        KeyStatus::None => 1,
        KeyStatus::Available => 2,
        KeyStatus::Unavailable => 3,
        _ => 0,
    }
}

/// The path of a change, and the one that a renamed file has now.
type Paths = (CString, Option<CString>);

/// The changes of a file system, and the paths of the one that was taken last.
pub(crate) struct Changing(Mutex<(Changes, Option<Paths>)>);

/// A file that changed: `cenote_change`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CChange {
    pub(crate) path: *const c_char,
    pub(crate) to: *const c_char,
    pub(crate) links: i64,
    pub(crate) changed: CTime,
    pub(crate) kind: u32,
    pub(crate) file_kind: u32,
}

/// The number of a change: `enum cenote_change_kind`.
pub(crate) const fn change_number(kind: &ChangeKind) -> u32 {
    match kind {
        ChangeKind::Modified => 1,
        ChangeKind::Added => 2,
        ChangeKind::Removed => 3,
        ChangeKind::Renamed(_) => 4,
        ChangeKind::Links(_) => 5,
        _ => 0,
    }
}

pub(crate) fn changes(pool: In<PoolHandle>, earlier: Text, later: Text, changes: Give<Changing>) -> Done {
    let (place, pool) = (changes.get("changes")?, pool.get("pool")?);
    let (earlier, later) = (earlier.get("earlier")?, later.get("later")?);
    let begun = async {
        let earlier = pool.pool.snapshot(earlier).await?;
        match later.contains('@') {
            true => pool.pool.snapshot(later).await?.changes_since(&earlier).await,
            false => pool.pool.dataset(later).await?.changes_since(&earlier).await,
        }
    };
    place.give(Changing(Mutex::new((wait(begun)?, None))));
    Ok(())
}

pub(crate) fn next_change(changes: In<Changing>, change: Out<CChange>) -> Done {
    let (changes, place) = (changes.get("changes")?, change.get("change")?);
    let mut state = locked(&changes.0);
    let (changes, texts) = &mut *state;
    let text = |path: &Path| c_text(path.as_os_str().as_bytes());
    let found = wait(changes.next())?;
    let taken = texts.insert(match &found {
        Some(Change { path, kind: ChangeKind::Renamed(to), .. }) => (text(path), Some(text(to))),
        Some(change) => (text(&change.path), None),
        None => Default::default(),
    });
    place.put(CChange {
        path: pointer(found.as_ref().map(|_| taken.0.as_c_str())),
        to: pointer(taken.1.as_deref()),
        links: match &found {
            Some(Change { kind: ChangeKind::Links(links), .. }) => *links,
            _ => 0,
        },
        changed: found.as_ref().map_or_else(CTime::default, |change| c_time(change.changed)),
        kind: found.as_ref().map_or(0, |change| change_number(&change.kind)),
        file_kind: found.as_ref().map_or(0, |change| number(change.file_kind)),
    });
    Ok(())
}

struct Row {
    time: CTime,
    host: Option<CString>,
    name: Option<CString>,
    dataset: Option<CString>,
    text: CString,
    txg: u64,
    uid: u64,
    kind: u32,
}

/// The records of a pool's history.
pub(crate) struct History(Vec<Row>);

/// A record: `cenote_record`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CRecord {
    pub(crate) text: *const c_char,
    pub(crate) name: *const c_char,
    pub(crate) dataset: *const c_char,
    pub(crate) host: *const c_char,
    pub(crate) txg: u64,
    pub(crate) uid: u64,
    pub(crate) time: CTime,
    pub(crate) kind: u32,
}

pub(crate) const COMMAND: u32 = 1;
pub(crate) const INTERNAL: u32 = 2;
pub(crate) const OTHER: u32 = 3;
/// Stands for a number that is not known.
const UNKNOWN: u64 = u64::MAX;

fn row(record: HistoryRecord) -> Row {
    let (time, host) = (c_time(record.time), record.host.map(c_text));
    let none =
        Row { time, host, name: None, dataset: None, text: CString::default(), txg: 0, uid: UNKNOWN, kind: OTHER };
    match record.event {
        HistoryEvent::Command { line, uid } => {
            Row { text: c_text(line), uid: uid.unwrap_or(UNKNOWN), kind: COMMAND, ..none }
        }
        HistoryEvent::Internal { name, txg, dataset, text } => {
            let (name, dataset) = (Some(c_text(name)), dataset.map(c_text));
            Row { text: c_text(text), name, dataset, txg, kind: INTERNAL, ..none }
        }
        HistoryEvent::Other(text) => Row { text: c_text(text), ..none },
        _ => none,
    }
}

pub(crate) fn history(pool: In<PoolHandle>, history: Give<History>) -> Done {
    let place = history.get("history")?;
    let found = wait(pool.get("pool")?.pool.history())?;
    place.give(History(found.into_iter().map(row).collect()));
    Ok(())
}

pub(crate) fn record_count(history: In<History>) -> usize {
    history.optional().map_or(0, |history| history.0.len())
}

pub(crate) fn record(history: In<History>, index: usize, record: Out<CRecord>) -> Done {
    let (history, place) = (history.get("history")?, record.get("record")?);
    let row = history.0.get(index).ok_or_else(|| Fault::misuse(format!("there is no record {index}")))?;
    place.put(CRecord {
        text: pointer(Some(&row.text)),
        name: pointer(row.name.as_deref()),
        dataset: pointer(row.dataset.as_deref()),
        host: pointer(row.host.as_deref()),
        txg: row.txg,
        uid: row.uid,
        time: row.time,
        kind: row.kind,
    });
    Ok(())
}

pub(crate) fn record_command(pool: In<PoolHandle>, line: Text) -> Done {
    wait(pool.get("pool")?.pool.record_command(line.get("line")?))
}
