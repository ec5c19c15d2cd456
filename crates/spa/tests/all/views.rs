//! Pools that are read as of a txg while they are written.

use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::Object;
use cenote_dmu::tx::Cost;
use cenote_format::ids::Txg;
use cenote_scan::{VerifyOptions, verify};
use cenote_spa::{ImportOptions, LiveHead, SpaError, View};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Handle, Runtime};

use cenote_sim::written::blocks::{Written, check_blocks, content, make_objects};
use cenote_sim::written::*;

const BLOCK_BYTES: u64 = 16 << 10;
const BLOCKS: u64 = 40;

/// Overwrites all blocks, in a txg of their own.
async fn overwrite(head: &LiveHead, object: &Object, seed: u64, written: &Mutex<Written>) {
    for block in 0..BLOCKS {
        let tx = head.begin(Cost::write(block * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES)).await.unwrap();
        let seed = seed << 32 | block;
        object.write(tx.txg(), block * BLOCK_BYTES, &content(seed)).await.unwrap();
        written.lock().entry(block).or_default().push((tx.txg(), seed));
    }
    head.pool().sync().await.unwrap();
}

/// The object in the view, through the datasets as of its txg.
async fn check_view(handle: &Handle, view: &View, object: &Object, written: &Written, what: &str) {
    let dsl = view.dsl();
    let dataset = dsl.dataset("written").await.unwrap();
    let objset = dsl.open(&dataset).await.unwrap().unwrap();
    let found = objset.object(object.id()).await.unwrap();
    for (block, writes) in written {
        let expected = writes.iter().rev().find(|(at, _)| *at <= view.txg()).map(|(_, seed)| content(*seed));
        let bytes = found.block(cenote_format::ids::BlockId(*block)).await.unwrap().map(|(bytes, _)| bytes);
        assert!(bytes.as_deref() == expected.as_deref(), "{what}: block {block} of the view is another");
    }
    let report = verify(handle, view, VerifyOptions::default(), &mut |_| true).await.unwrap();
    assert_clean(&report, what);
}

#[test]
fn a_view_stays_as_it_was_while_everything_is_overwritten() {
    for (seed, layout) in [SINGLE, LAYOUTS[3], LAYOUTS[6]].into_iter().enumerate() {
        let runtime = Runtime::simulated(seed as u64);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 4, slow());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            let head = pool.open_head("written").await.unwrap();
            let object = make_objects(&head, 1).await.remove(0);
            let written = Arc::new(Mutex::new(Written::new()));
            let mut views: Vec<View> = Vec::new();
            for round in 0..12 {
                overwrite(&head, &object, round, &written).await;
                if round % 4 == 0 {
                    let view = pool.view(&ImportOptions::default()).await.unwrap();
                    assert!(view.txg() <= pool.txgs().synced_txg());
                    views.push(view);
                }
                let now = written.lock().clone();
                for (number, view) in views.iter().enumerate() {
                    check_view(&handle, view, &object, &now, &format!("{layout:?} view {number} in round {round}"))
                        .await;
                    view.check().unwrap();
                }
                if round == 9 {
                    // The oldest one goes first, and the others lose nothing.
                    views.remove(0);
                }
            }
            drop(views);
            let all = written.lock().clone();
            check_blocks(&object, &all, pool.txgs().open_txg(), "at the end").await;
            drop((head, object));
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths[..layout.iter().map(|(_, disks)| disks).sum()]).await;
            assert_clean(&report, "after the views");
        });
    }
}

#[test]
fn a_view_is_given_up_before_the_pool_has_no_space_left() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let object = make_objects(&head, 1).await.remove(0);
        let written = Mutex::new(Written::new());
        overwrite(&head, &object, 0, &written).await;
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        // A quarter of 80 MiB is 32 times what a round overwrites.
        let mut kept = 0;
        while view.check().is_ok() {
            kept += 1;
            assert!(kept < 40, "too much is kept");
            overwrite(&head, &object, kept, &written).await;
        }
        assert!(kept > 20, "given up after {kept} rounds: too early");
        let error = view.check().unwrap_err();
        assert!(matches!(error, SpaError::ViewGivenUp { txg, .. } if txg == view.txg()), "{error}");
        // Its space is used again, and a younger one is as good as any.
        let younger = pool.view(&ImportOptions::default()).await.unwrap();
        for round in 0..10 {
            overwrite(&head, &object, 1000 + round, &written).await;
        }
        let all = written.lock().clone();
        check_view(&handle, &younger, &object, &all, "the younger").await;
        younger.check().unwrap();
        drop((view, younger, head, object));
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &machine.paths).await;
        assert_clean(&report, "after the views");
    });
}

#[test]
fn a_view_waits_for_no_txg_but_the_one_with_its_callers_changes_and_holds_none_up() {
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let object = make_objects(&head, 1).await.remove(0);
        let written = Mutex::new(Written::new());
        overwrite(&head, &object, 1, &written).await;
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        let before: Vec<Duration> = pool.history().iter().map(|record| record.took).collect();
        for round in 2..12 {
            overwrite(&head, &object, round, &written).await;
        }
        let most = before.iter().max().unwrap();
        let later = pool.history();
        let slowest = later.iter().skip(before.len()).map(|record| record.took).max().unwrap();
        assert!(slowest < *most * 3, "{slowest:?} with a view, {most:?} without");
        assert!(pool.txgs().synced_txg() > Txg(view.txg().0 + 8));
    });
}

#[test]
fn an_export_waits_for_views_and_new_ones_are_refused() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        let other = pool.clone();
        let exported = handle.spawn(Class::Issue, async move { pool.export().await });
        handle.sleep(Duration::from_secs(2)).await;
        assert!(other.view(&ImportOptions::default()).await.is_err(), "a new view of a pool that is exported");
        let report = verify(&handle, &view, VerifyOptions::default(), &mut |_| true).await.unwrap();
        assert_clean(&report, "meanwhile");
        drop((view, other));
        exported.await.unwrap().unwrap();
        let (_, report) = check(&handle, &machine.paths).await;
        assert_clean(&report, "after the view");
    });
}
