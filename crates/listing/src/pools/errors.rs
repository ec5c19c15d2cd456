//! The pool's error log, with the names of files.

use std::collections::BTreeSet;

use cenote_format::ids::ObjectId;
use cenote_spa::{LoggedError, View};
use cenote_taskq::boxed;
use cenote_zpl::{Cursor, FileSystem};

/// Directories above a file at most, as a bound on a walk.
const DEPTH_MAX: usize = 1 << 12;
/// Entries read at a time.
const BATCH: usize = 1 << 10;

/// The place of each error: `pool/fs:/path`, or object numbers where no name is found.
#[boxed]
pub async fn places(pool: &View, errors: &[LoggedError]) -> Vec<String> {
    let mut places = Vec::new();
    let mut seen = BTreeSet::new();
    for error in errors {
        // A file is named once, however many of its blocks are bad.
        if seen.insert((error.objset, error.object)) {
            places.push(place(pool, error).await);
        }
    }
    places
}

async fn place(pool: &View, error: &LoggedError) -> String {
    let object = error.object.0;
    if error.objset.0 == 0 {
        return format!("<metadata>:<{object:#x}>");
    }
    let Ok(name) = pool.dsl().dataset_name(ObjectId(error.objset.0)).await else {
        return format!("<{:#x}>:<{object:#x}>", error.objset.0);
    };
    match path(pool, &name, error.object).await {
        Some(path) => format!("{name}:{path}"),
        None => format!("{name}:<{object:#x}>"),
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
