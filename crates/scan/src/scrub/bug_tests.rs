//! Known bugs of OpenZFS's scans, by their numbers: what has to be well here. Others are where the verb is tested; docs/robustness.md has the whole list.

use std::time::Duration;

use cenote_format::dsl::ScanState;
use cenote_format::ids::Guid;
use cenote_sim::written::blocks::change_head;
use cenote_sim::written::*;
use cenote_sim::{MUTANT_VARIABLE, Machine};
use cenote_spa::{Offline, Pool, ScrubSince, TopKind};
use cenote_taskq::mutant::Mutant;
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_vdev::layout::draid::Draid;

use super::attend;
use super::tests::ended;

const SPARED: Layout = &[(TopKind::Draid { parity: 2, data: Some(4), spares: 2 }, 8)];

async fn change(pool: &Pool, seed: u64, txgs: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..txgs {
        let head = pool.open_head("written").await.unwrap();
        let tx = head.begin(cenote_dmu::tx::Cost::objects(64)).await.unwrap();
        change_head(pool, &pool.root().unwrap(), &mut rng).await.unwrap();
        drop((tx, head));
        pool.sync().await.unwrap();
    }
}

fn leaf(pool: &Pool, at: usize) -> Guid {
    let status = pool.tree().unwrap().status();
    let name = Machine::name(at);
    status.leaves().into_iter().find(|leaf| leaf.name == name).unwrap().guid
}

/// No leaf that is there lacks anything, and no scan is under way.
async fn settle(handle: &Handle, pool: &Pool, what: &str) {
    for _ in 0..600 {
        handle.sleep(Duration::from_millis(500)).await;
        let is_behind = !pool.tree().unwrap().status().behind().is_empty();
        let is_scanned = pool.scan().await.unwrap().is_some_and(|scan| scan.state == ScanState::SCANNING);
        if !is_behind && !is_scanned && !pool.peek(|syncer| syncer.is_rebuilding()).await.unwrap() {
            return;
        }
    }
    panic!("{what}: no end: {:?}", pool.scan().await);
}

/// The test that is run once more with the bug.
const SPARE_TEST: &str = "scrub::bug_tests::a_spare_keeps_what_lay_on_a_device_that_was_away_18286";

/// A device fails, and its spare is rebuilt; a second one fails, and the spare of that one is rebuilt, which lies on the first device in part. The first device is
/// back, and its spare goes.
#[test]
fn a_spare_keeps_what_lay_on_a_device_that_was_away_18286() {
    // Where the second spare lies in the beginning of each disk, and the first one.
    let draid = Draid::new(12, 2, 4, 2, 1, 8).unwrap();
    let [first, stand_in] = [1, 0].map(|spare| draid.spare_child(spare, 0).unwrap() as usize);
    let others: Vec<usize> = (0..8).filter(|at| *at != first && *at != stand_in).collect();
    let second = others[0];
    for seed in 1..4 {
        let what = format!("a spare, seed {seed}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 8, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, SPARED, small()).await;
            attend(&pool);
            change(&pool, seed, 8).await;
            for at in [first, second] {
                let how = Offline { is_fault: true, ..Offline::default() };
                pool.offline_device(leaf(&pool, at), how).await.unwrap();
                assert_eq!(pool.use_spares().await.unwrap().len(), 1, "{what}: a spare is taken for disk {at}");
                settle(&handle, &pool, &what).await;
            }
            change(&pool, seed + 50, 2).await;
            pool.clear_device(leaf(&pool, first)).await.unwrap();
            settle(&handle, &pool, &what).await;
            handle.sleep(Duration::from_secs(5)).await;
            let leaves = pool.tree().unwrap().status().leaves().len();
            assert_eq!(leaves, 9, "{what}: the first spare is gone");
            pool.scrub(ScrubSince::Ever).await.unwrap();
            let scan = ended(&handle, &pool).await;
            assert_eq!((scan.error_count, scan.processed_bytes), (0, 0), "{what}: nothing is to be repaired");
            pool.export().await.unwrap();
            // The second device is away, and two more.
            let gone = [second, stand_in, others[1]];
            let paths: Vec<_> = (0..8).filter(|at| !gone.contains(at)).map(|at| machine.paths[at].clone()).collect();
            let (_, report) = check(&handle, &paths).await;
            assert_eq!(report.error_count, 0, "{what}: {report}");
        });
    }
}

#[test]
fn a_leaf_that_was_passed_over_and_does_not_know_it_is_found() {
    let mutant = Mutant::PassedOverForgotten.name();
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args([SPARE_TEST, "--exact", "--nocapture"])
        .env_remove(cenote_testkit::PART_VARIABLE)
        .env(MUTANT_VARIABLE, mutant)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(!told.status.success() && text.contains("a spare, seed"), "{mutant}: {text}");
}
