//! Pools of OpenZFS in which blocks were cloned or deduplicated: their files are overwritten, truncated and removed, and their
//! datasets destroyed, until nothing is left. A block's reference count goes down with each reference, the block is free with
//! the last, and the tables go with their last entry. Contents are compared with a plain model; `verify` finds each reference
//! that a table counts, and OpenZFS's `zdb` judges the same where it is installed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cenote_dmu::tx::TxTunables;
use cenote_format::ids::ObjectId;
use cenote_spa::{ImportOptions, Pool, PoolError, PropertyValue, SpaError, find, import, open};
use cenote_taskq::{Handle, Rng, Runtime, RuntimeOptions};
use cenote_testkit::Golden;
use cenote_testkit::zdb::{BlockStatistics, Devices, program, run};
use cenote_zpl::{Cursor, File, FileSystem, FileSystemOptions};

use crate::common::*;
use crate::reopened::write_options;

/// Larger files are left alone, and those with several names: a model of them would not be plain.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Files of a dataset by path, with what they are to hold.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

async fn live(handle: &Handle, images: &[PathBuf]) -> Pool {
    let (mut pools, skipped) = find(handle, images).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    open(handle, pools.remove(0), &how, write_options()).await.unwrap().start(TxTunables::default()).await
}

pub(crate) async fn file_system(pool: &Pool, name: &str) -> FileSystem {
    let head = pool.open_head(name).await.unwrap();
    let objset = head.objset().clone();
    FileSystem::open_head(&objset, std::sync::Arc::new(head), FileSystemOptions::default()).await.unwrap()
}

async fn whole(file: &File) -> Vec<u8> {
    file.read(0, file.size_bytes() as usize).await.unwrap().to_vec()
}

/// Regular files below a directory, with their directory and object.
async fn listed(fs: &FileSystem) -> BTreeMap<String, (ObjectId, Vec<u8>, ObjectId)> {
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

pub(crate) async fn contents(fs: &FileSystem) -> Files {
    let mut files = Files::new();
    for (path, (_, _, object)) in listed(fs).await {
        let open = fs.open_file(object).await.unwrap();
        files.insert(path, whole(&open).await);
        open.close().await.unwrap();
    }
    files
}

/// Changes some files, and the model with them.
pub(crate) async fn change_files(fs: &FileSystem, files: &mut Files, rng: &mut Rng) {
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
pub(crate) async fn judge(handle: &Handle, images: &[PathBuf], name: &str, what: &str) {
    let (_, report) = check(handle, images).await;
    assert_clean(&report, what);
    if program("zdb").is_some() {
        let told = run(&Devices::of(images).unwrap(), &["-bcc"], name).unwrap();
        assert_eq!(told.status, Some(0), "{what}: zdb -bcc: {}", told.text);
        let figures = BlockStatistics::parse(&told.text).unwrap_or_else(|| panic!("{}", told.text));
        assert!(figures.leak_free, "{what}: {}", told.text);
    }
}

/// The datasets, each after those that it is below.
async fn names(pool: &Pool) -> Vec<String> {
    let names = pool.change(|writer| {
        Box::pin(async move {
            let view = writer.dsl().clone();
            let root = view.root_dir().await.unwrap();
            Ok::<_, SpaError>(view.tree(root, false).await.unwrap().into_iter().map(|dir| dir.name).collect::<Vec<_>>())
        })
    });
    names.await.unwrap()
}

/// Changes the files of a pool in rounds, removes them in the last, and then destroys datasets. Of these objects of the MOS snapshots keep some.
async fn take_apart(handle: &Handle, theme: &str, kept: &[&str]) {
    let theme = Golden::selection().unwrap().theme(theme).unwrap();
    let name = theme.manifest().unwrap().pools[0].clone();
    let scratch = theme.scratch().unwrap();
    let images = &scratch.images;
    let mut rng = Rng::new(11);
    let mut model: BTreeMap<String, Files> = BTreeMap::new();
    for round in 0..4 {
        let pool = live(handle, images).await;
        let names = names(&pool).await;
        for dataset in names {
            let at = dataset.clone();
            pool.change(move |writer| {
                Box::pin(async move { writer.change_property(&at, "dedup", Some(&PropertyValue::Number(2))).await })
            })
            .await
            .unwrap();
            let fs = file_system(&pool, &dataset).await;
            let found = contents(&fs).await;
            let files = model.entry(dataset.clone()).or_insert_with(|| found.clone());
            assert!(*files == found, "{name} round {round}: {dataset} is not as it was left");
            if round == 3 {
                for (path, (directory, name, _)) in listed(&fs).await {
                    fs.unlink(directory, &name).await.unwrap();
                    files.remove(&path);
                }
                while fs.reap().await.unwrap() > 0 {}
            } else {
                change_files(&fs, files, &mut rng).await;
            }
        }
        pool.export().await.unwrap();
        judge(handle, images, &name, &format!("{name} round {round}")).await;
    }
    let pool = live(handle, images).await;
    for dataset in names(&pool).await {
        let result = pool.change(move |writer| Box::pin(async move { writer.destroy_dataset(&dataset).await })).await;
        // The root, what has snapshots, and what OpenZFS has begun an intent log for.
        assert!(
            matches!(
                result,
                Ok(()) | Err(SpaError::Refused { .. } | SpaError::Pool { error: PoolError::Unsupported(_), .. })
            ),
            "{result:?}"
        );
    }
    pool.export().await.unwrap();
    judge(handle, images, &name, &format!("{name} in the end")).await;
    let (mut pools, _) = find(handle, images).await;
    let how = ImportOptions { force: true, ..ImportOptions::default() };
    let pool = import(handle, pools.remove(0), &how).await.unwrap();
    for object in kept {
        assert!(pool.directory_object(object).await.unwrap().is_some(), "{object}");
    }
    pool.close().await;
}

fn taken_apart(theme: &str, kept: &[&str]) {
    let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
    let handle = runtime.handle();
    runtime.block_on(take_apart(&handle, theme, kept));
}

#[test]
fn cloned_blocks_are_free_with_their_last_reference() {
    taken_apart("brt", &["com.fudosecurity:brt:vdev:0"]);
}

#[test]
fn deduplicated_blocks_are_free_with_their_last_reference() {
    taken_apart("dedup_old", &["DDT-sha256-zap-unique"]);
}

#[test]
fn what_the_dedup_log_says_goes_before_the_tables() {
    taken_apart("dedup_fast_log", &["DDT-sha256"]);
}
