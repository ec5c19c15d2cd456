//! Pools of OpenZFS in which blocks were cloned or deduplicated: their files are overwritten, truncated and removed, and their
//! datasets destroyed, until nothing is left. A block's reference count goes down with each reference, the block is free with
//! the last, and the tables go with their last entry. Contents are compared with a plain model; `verify` finds each reference
//! that a table counts, and OpenZFS's `zdb` judges the same where it is installed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cenote_dmu::tx::TxTunables;
use cenote_spa::{ImportOptions, Pool, PoolError, PropertyValue, SpaError, find, import, open};
use cenote_taskq::{Handle, Rng, Runtime, RuntimeOptions};
use cenote_testkit::Golden;

use cenote_sim::written::files::{Files, change_files, contents, file_system, judge, listed};
use cenote_sim::written::*;

async fn live(handle: &Handle, images: &[PathBuf]) -> Pool {
    let (mut pools, skipped) = find(handle, images).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    open(handle, pools.remove(0), &how, write_options()).await.unwrap().start(TxTunables::default()).await
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
