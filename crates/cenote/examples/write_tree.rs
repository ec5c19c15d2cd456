//! Copies a folder of this system into a pool, with modes and symbolic links, and takes a snapshot of it.
//!
//! `cargo run -p cenote --example write_tree -- FOLDER` copies it into a pool that is made for it.

mod setup;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cenote::{Error, FileSystem, Runtime, Snapshot};

/// Copies the folders that are left, each with its place in the file system. Gives the number of files.
async fn copy(files: &FileSystem, mut left: Vec<(PathBuf, PathBuf)>) -> Result<u64, Box<dyn std::error::Error>> {
    let mut count = 0;
    while let Some((folder, place)) = left.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (from, to) = (entry.path(), place.join(entry.file_name()));
            let found = fs::symlink_metadata(&from)?;
            if found.is_symlink() {
                files.symlink(fs::read_link(&from)?, &to).await?;
                continue;
            }
            if found.is_dir() {
                files.create_dir(&to).await?;
                left.push((from, to.clone()));
            } else if found.is_file() {
                files.write(&to, fs::read(&from)?).await?;
                count += 1;
            } else {
                continue;
            }
            files.set_mode(&to, found.permissions().mode()).await?;
            files.set_modified(&to, found.modified()?).await?;
        }
    }
    Ok(count)
}

/// Copies `source` into a pool that is made in `folder`. Gives the number of files, and the snapshot.
pub(crate) fn run(folder: &Path, source: &Path) -> Result<(u64, String), Box<dyn std::error::Error>> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let pool = setup::tank(&runtime, folder).await?;
        let files = pool.filesystem("tank/home").await?;
        let count = copy(&files, vec![(source.to_owned(), "/".into())]).await?;
        let snapshot = snapshot(&files).await?;
        let name = snapshot.name().to_owned();
        pool.export().await?;
        Ok((count, name))
    })
}

async fn snapshot(files: &FileSystem) -> Result<Snapshot, Error> {
    files.pool().dataset(files.name()).await?.snapshot("copied").await
}

#[allow(dead_code, reason = "tests run it without this")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("docs"), PathBuf::from);
    let (count, snapshot) = run(tempfile::tempdir()?.path(), &source)?;
    println!("{count} files of {} are in {snapshot}", source.display());
    Ok(())
}
