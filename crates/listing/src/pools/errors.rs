//! The pool's error log, with the names of files.

use std::collections::BTreeSet;

use cenote_format::ids::{ObjectId, ObjsetId};
use cenote_host::Mounts;
use cenote_spa::{LoggedError, View};
use cenote_taskq::boxed;
use cenote_zpl::{Cursor, FileSystem};

/// The maximum number of directories above a file, as a bound on a walk.
const DEPTH_MAX: usize = 1 << 12;
/// Entries in one read.
const BATCH: usize = 1 << 10;

/// The place of each error, `pool/fs:/path` or `pool/fs@snapshot:/path`, or object numbers if no name is found: in each dataset that still has
/// the bad block. A file of a dataset that is mounted is named by the mount point, as in OpenZFS. An error whose block is no longer in any dataset has no
/// place.
#[boxed]
pub async fn places(pool: &View, errors: &[LoggedError]) -> Vec<String> {
    let mut places = Vec::new();
    let mut seen = BTreeSet::new();
    let mounts = Mounts::read();
    for error in errors {
        for dataset in pool.affected(error).await {
            // A file is named only once, even with several bad blocks.
            if seen.insert((dataset, error.object)) {
                places.push(match mounted_place(pool, &mounts, dataset, error.object).await {
                    Some(path) => path,
                    None => place(pool, ObjsetId(dataset.0), error.object).await,
                });
            }
        }
    }
    places
}

/// The path of a file of a dataset that is mounted.
async fn mounted_place(pool: &View, mounts: &Mounts, dataset: ObjectId, object: ObjectId) -> Option<String> {
    let name = pool.dsl().dataset_name(dataset).await.ok()?;
    let mounted = mounts.ours().find(|mounted| mounted.dataset == name)?;
    let path = path(pool, &name, object).await?;
    Some(format!("{}{path}", mounted.at.display().to_string().trim_end_matches('/')))
}

/// The place of an object: `pool/fs:/path`, or numbers if no name is found. The MOS is dataset 0.
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

/// A file's path, found from its parents upwards.
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
