//! A file system of the pool, with its intent log, and the contents of its files by their paths.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cenote_dmu::tx::SyncMode;
use cenote_format::ids::ObjectId;
use cenote_format::objset::ObjsetFlags;
use cenote_spa::{CreateOptions, Pool, SpaError, TopKind, create};
use cenote_taskq::{Handle, Rng};
use cenote_testkit::zdb::{BlockStatistics, Devices, program, run};
use cenote_vdev::config::AllocationClass;
use cenote_zil::Log;
use cenote_zpl::bulk::{BulkWriter, NodeSpec};
use cenote_zpl::{Cursor, File, FileSystem, FileSystemOptions};

use super::{assert_clean, check, import_with, opened_pool, options};
use crate::Machine;

/// A new pool with a file system that keeps accounts of all owners.
pub async fn make_file_system(handle: &Handle, options: CreateOptions) -> Pool {
    let pool = create(handle, options).await.unwrap();
    let root = pool.root().unwrap().objset.clone();
    let complete = ObjsetFlags::USERACCOUNTING_COMPLETE
        | ObjsetFlags::USEROBJACCOUNTING_COMPLETE
        | ObjsetFlags::PROJECTQUOTA_COMPLETE;
    root.set_flags(pool.txg(), complete);
    BulkWriter::create(&root, pool.txg(), &NodeSpec { mode: 0o755, ..NodeSpec::default() }).await.unwrap();
    pool.sync().await.unwrap();
    pool
}

/// Makes a pool of this layout with an empty file system, and exports it; `has_log`: the last vdev is a log device.
pub async fn make_on(handle: &Handle, machine: &Machine, layout: &[(TopKind, usize)], has_log: bool) {
    let mut tops = machine.tops(handle, layout).await.unwrap();
    if has_log {
        tops.last_mut().unwrap().class = AllocationClass::Log;
    }
    let pool = make_file_system(handle, options(tops, 12)).await;
    pool.export().await.unwrap();
}

/// Its file system, with its log, which was replayed.
pub async fn opened_files(pool: &Pool) -> Result<(FileSystem, Arc<Log>), SpaError> {
    let options = FileSystemOptions { record_bytes: 16 << 10, has_posix_acls: true, ..FileSystemOptions::default() };
    opened_files_with(pool, options).await
}

/// The same with these properties.
pub async fn opened_files_with(pool: &Pool, options: FileSystemOptions) -> Result<(FileSystem, Arc<Log>), SpaError> {
    let head = pool.open_head("written").await?;
    let log = Arc::new(head.log(SyncMode::Standard));
    let fs = FileSystem::open_logged(head.objset(), log.clone(), options).await.unwrap();
    Ok((fs, log))
}

/// The pool on the machine's disks, its files and its log.
pub async fn opened(handle: &Handle, machine: &Machine) -> Result<(Pool, FileSystem, Arc<Log>), SpaError> {
    opened_with(handle, machine, &[]).await
}

/// The same with these tunables.
pub async fn opened_with(
    handle: &Handle,
    machine: &Machine,
    given: &[&str],
) -> Result<(Pool, FileSystem, Arc<Log>), SpaError> {
    let pool = opened_pool(handle, &machine.paths, import_with(given)).await?;
    let (fs, log) = opened_files(&pool).await?;
    Ok((pool, fs, log))
}

/// A new pool of this layout, as [`make_on`] makes it, its files and its log.
pub async fn new_files(
    handle: &Handle,
    machine: &Machine,
    layout: &[(TopKind, usize)],
    has_log: bool,
) -> (Pool, FileSystem, Arc<Log>) {
    make_on(handle, machine, layout, has_log).await;
    opened(handle, machine).await.unwrap()
}

/// Larger files are left alone, and those with several names: a model of them would not be plain.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Files of a dataset by path, with what they are to hold.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The file system of this name, in use.
pub async fn file_system(pool: &Pool, name: &str) -> FileSystem {
    let head = pool.open_head(name).await.unwrap();
    let objset = head.objset().clone();
    FileSystem::open_head(&objset, Arc::new(head), FileSystemOptions::default()).await.unwrap()
}

async fn whole(file: &File) -> Vec<u8> {
    file.read(0, file.size_bytes() as usize).await.unwrap().to_vec()
}

/// Regular files below a directory, with their directory and object.
pub async fn listed(fs: &FileSystem) -> BTreeMap<String, (ObjectId, Vec<u8>, ObjectId)> {
    let mut found = BTreeMap::new();
    let mut directories = vec![(String::new(), fs.root())];
    while let Some((path, directory)) = directories.pop() {
        for entry in fs.list(directory, Cursor::default(), 100_000).await.unwrap() {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let attributes = fs.attributes(entry.object).await.unwrap();
            match attributes.mode() & 0o170_000 {
                0o040_000 => directories.push((path, entry.object)),
                0o100_000 if attributes.size_bytes <= FILE_BYTES_MAX && attributes.link_count == 1 => {
                    drop(found.insert(path, (directory, entry.name.clone(), entry.object)))
                }
                _ => {}
            }
        }
    }
    found
}

/// Reads the files of a file system.
pub async fn contents(fs: &FileSystem) -> Files {
    let mut files = Files::new();
    for (path, (_, _, object)) in listed(fs).await {
        let open = fs.open_file(object).await.unwrap();
        files.insert(path, whole(&open).await);
        open.close().await.unwrap();
    }
    files
}

/// Changes some files, and the model with them.
pub async fn change_files(fs: &FileSystem, files: &mut Files, rng: &mut Rng) {
    for (path, (directory, name, object)) in listed(fs).await {
        let Some(content) = files.get_mut(&path).filter(|_| rng.chance(1, 3)) else { continue };
        let open = fs.open_file(object).await.unwrap();
        match rng.below(4) {
            0 => {
                fs.unlink(directory, &name).await.unwrap();
                files.remove(&path);
            }
            1 => {
                let size = rng.below(content.len() as u64 + 1);
                open.truncate(size).await.unwrap();
                content.truncate(size as usize);
            }
            _ => {
                let at = rng.below(content.len() as u64 + 1) as usize;
                let mut bytes = vec![0; 1 + rng.below(40_000) as usize];
                rng.fill(&mut bytes);
                open.write(at as u64, &bytes).await.unwrap();
                content.resize(content.len().max(at + bytes.len()), 0);
                content[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        open.close().await.unwrap();
    }
    while fs.reap().await.unwrap() > 0 {}
}

/// The pool is whole, and counts each reference to a shared block.
pub async fn judge(handle: &Handle, images: &[PathBuf], name: &str, what: &str) {
    let (_, report) = check(handle, images).await;
    assert_clean(&report, what);
    if program("zdb").is_some() {
        let told = run(&Devices::of(images).unwrap(), &["-bcc"], name).unwrap();
        assert_eq!(told.status, Some(0), "{what}: zdb -bcc: {}", told.text);
        let figures = BlockStatistics::parse(&told.text).unwrap_or_else(|| panic!("{}", told.text));
        assert!(figures.leak_free, "{what}: {}", told.text);
    }
}
