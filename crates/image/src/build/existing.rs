//! Existing file systems to which files are added.

use cenote_dmu::Object;
use cenote_spa::{FileSizes, Pool};
use cenote_taskq::boxed;
use cenote_zpl::Properties;
use cenote_zpl::bulk::{BulkWriter, MODE_DIR};

use crate::error::{Context as _, Result};

/// Opens a file system, with its properties for new files.
///
/// # Errors
/// There is no such file system, it is in use, or adding files to it is not supported yet.
#[boxed]
pub async fn open_files(pool: &Pool, name: &str) -> Result<BulkWriter> {
    let head = pool.open_head(name).await?;
    let mut files = BulkWriter::open(&head.objset).await.with_context(|| format!("cannot add to '{name}'"))?;
    files.keep_no_data();
    let view = pool.dsl()?;
    let dir = view.dir(name).await?;
    let (asked, of) = (view.clone(), dir.clone());
    let sizes = pool.look(move |syncer| Box::pin(async move { syncer.file_sizes(&asked, &of).await }));
    let FileSizes { record_bytes, dnode_slots } = sizes.await?;
    (files.record_bytes, files.dnode_slots) = (record_bytes, dnode_slots);
    files.xattrs = Properties::read(&view, &dir).await?.files.xattrs;
    Ok(files)
}

/// A directory of a file system, by its path.
#[boxed]
pub async fn folder_of(files: &BulkWriter, name: &str, path: &str) -> Result<Object> {
    let mut directory = files.objset().object(files.root()).await?;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let entry = files.entries(&directory).await?.remove(part.as_bytes());
        let entry = entry.filter(|entry| u32::from(entry.kind) << 12 == MODE_DIR);
        let entry = entry.with_context(|| format!("there is no directory '{path}' in '{name}'"))?;
        directory = files.objset().object(entry.object).await?;
    }
    Ok(directory)
}
