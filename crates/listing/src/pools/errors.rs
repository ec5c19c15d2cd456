//! The pool's error log, with the names of files.

use std::collections::BTreeSet;

use cenote_format::ids::{ObjectId, ObjsetId};
use cenote_spa::{LoggedError, View};
use cenote_taskq::boxed;
use cenote_zpl::{Cursor, FileSystem};

/// Directories above a file at most, as a bound on a walk.
const DEPTH_MAX: usize = 1 << 12;
/// Entries read at a time.
const BATCH: usize = 1 << 10;

/// The place of each error, `pool/fs:/path` or `pool/fs@snapshot:/path`, or object numbers where no name is found: in each dataset that has the
/// bad block still. One whose block is in no dataset any more has no place.
#[boxed]
pub async fn places(pool: &View, errors: &[LoggedError]) -> Vec<String> {
    let mut places = Vec::new();
    let mut seen = BTreeSet::new();
    for error in errors {
        for dataset in pool.affected(error).await {
            // A file is named once, however many of its blocks are bad.
            if seen.insert((dataset, error.object)) {
                places.push(place(pool, ObjsetId(dataset.0), error.object).await);
            }
        }
    }
    places
}

/// The place of an object: `pool/fs:/path`, or numbers where no name is found. The MOS is dataset 0.
#[boxed]
pub async fn place(pool: &View, dataset: ObjsetId, object: ObjectId) -> String {
    let number = object.0;
    if dataset.0 == 0 {
        return format!("<metadata>:<{number:#x}>");
    }
    let Ok(name) = pool.dsl().dataset_name(ObjectId(dataset.0)).await else {
        return format!("<{:#x}>:<{number:#x}>", dataset.0);
    };
    match path(pool, &name, object).await {
        Some(path) => format!("{name}:{path}"),
        None => format!("{name}:<{number:#x}>"),
    }
}

/// A file's path, from its parents up.
async fn path(pool: &View, dataset: &str, object: ObjectId) -> Option<String> {
    let dataset = pool.dsl().dataset(dataset).await.ok()?;
    let filesystem = FileSystem::open(pool.dsl().open(&dataset).await.ok()??).await.ok()?;
    let mut parts = Vec::new();
    let mut at = object;
    for _ in 0..DEPTH_MAX {
        if at == filesystem.root() {
            parts.reverse();
            return Some(format!("/{}", parts.join("/")));
        }
        let parent = filesystem.attributes(at).await.ok()?.parent;
        parts.push(name_in(&filesystem, parent, at).await?);
        at = parent;
    }
    None
}

async fn name_in(filesystem: &FileSystem, directory: ObjectId, object: ObjectId) -> Option<String> {
    let mut cursor = Cursor::START;
    loop {
        let batch = filesystem.list(directory, cursor, BATCH).await.ok()?;
        if let Some(entry) = batch.iter().find(|entry| entry.object == object) {
            return Some(String::from_utf8_lossy(&entry.name).into_owned());
        }
        cursor = batch.last()?.next;
    }
}
