//! Goal: nothing is lost when a mirror is removed of which one device has rotted unnoticed. Method: devices get noise, their vdev is removed beside clients, and in
//! the end every block can be read.

use std::time::Duration;

use cenote_format::dsl::{ScanFunction, ScanState};
use cenote_sim::written::*;
use cenote_sim::{MUTANT_VARIABLE, Machine};
use cenote_spa::{ImportOptions, Pool, TopKind};
use cenote_taskq::mutant::Mutant;
use cenote_taskq::sim::disk::{Crash, Latency, SimDiskOptions};
use cenote_taskq::{Handle, Rng, Runtime};

use super::attend;
use super::tests::open_again;
use super::verify_tests::{change, fill};

const TO_SINGLE: Layout = &[(TopKind::Single, 1), (TopKind::Mirror, 2)];
const TO_MIRROR: Layout = &[(TopKind::Mirror, 2), (TopKind::Mirror, 2)];
const RUNS: u64 = 1;
const FINISHED: u64 = 2;
const SIZE_MIB: usize = 256;

/// Noise in a part of a disk, in MiB.
fn rot(machine: &Machine, at: usize, part_mib: std::ops::Range<usize>, seed: u64) {
    let mut noise = vec![0; part_mib.len() << 20];
    Rng::new(seed + at as u64).fill(&mut noise);
    machine.disks[at].poke((part_mib.start as u64) << 20, &noise);
}

/// A machine, and a pool with data on all vdevs, whose devices rot while it is exported.
async fn rotten(
    handle: &Handle,
    machine: &Machine,
    layout: Layout,
    seed: u64,
    rots: &[(usize, std::ops::Range<usize>)],
) -> Pool {
    let pool = live(handle, machine, layout, small()).await;
    fill(&pool, seed).await;
    pool.export().await.unwrap();
    for (at, part) in rots {
        rot(machine, *at, part.clone(), seed);
    }
    open_again(handle, &machine.paths).await
}

fn machine(runtime: &Runtime) -> Machine {
    let options = SimDiskOptions {
        size_bytes: (SIZE_MIB as u64) << 20,
        latency: Latency::default(),
        ..SimDiskOptions::default()
    };
    Machine::new(runtime, 4, &options)
}

async fn remove(pool: &Pool, at: usize) {
    let guid = pool.view(&ImportOptions::default()).await.unwrap().vdevs().children[at].guid;
    pool.remove_vdev(guid).await.unwrap();
}

async fn state(pool: &Pool) -> Option<u64> {
    pool.removal().await.unwrap().map(|removal| removal.state)
}

/// Waits until the removal waits for a scrub; the reason.
async fn stalled(handle: &Handle, pool: &Pool, what: &str) -> String {
    for _ in 0..1000 {
        handle.sleep(Duration::from_millis(100)).await;
        assert_eq!(state(pool).await, Some(RUNS), "{what}: it waits");
        let jobs = pool.jobs();
        let Some(reason) = jobs.iter().find(|job| job.name == "remove").and_then(|job| job.stalled.clone()) else {
            continue;
        };
        return reason;
    }
    panic!("{what}: it does not wait: {:?}", pool.jobs());
}

async fn ended(handle: &Handle, pool: &Pool, what: &str) {
    for _ in 0..2000 {
        if state(pool).await != Some(RUNS) {
            assert_eq!(state(pool).await, Some(FINISHED), "{what}");
            return;
        }
        handle.sleep(Duration::from_millis(100)).await;
    }
    panic!("{what}: the removal does not end: {:?}, {:?}", pool.jobs(), pool.scan().await);
}

/// Asserts that no block is lost.
async fn assert_whole(handle: &Handle, machine: &Machine, pool: Pool, what: &str) {
    assert_eq!(pool.view(&ImportOptions::default()).await.unwrap().error_count().await.unwrap(), 0, "{what}: errors");
    pool.export().await.unwrap();
    let (_, report) = check(handle, &machine.paths).await;
    assert_eq!(report.error_count, 0, "{what}: {report}");
    assert_eq!(report.leaked_bytes, 0, "{what}: {report}");
}

/// The test that is run once more with the bug.
const TEST: &str = "scrub::removal_tests::a_mirror_goes_only_when_its_devices_have_the_same_bytes";

#[test]
fn a_mirror_goes_only_when_its_devices_have_the_same_bytes() {
    for (seed, layout, rots) in [
        (1, TO_SINGLE, vec![(1, 4..SIZE_MIB - 4)]),
        (2, TO_SINGLE, vec![(2, 4..SIZE_MIB - 4)]),
        (3, TO_MIRROR, vec![(2, 4..SIZE_MIB - 4)]),
        // No place is bad on both.
        (4, TO_SINGLE, vec![(1, 4..6), (2, 6..16), (1, 16..40), (2, 40..SIZE_MIB - 4)]),
    ] {
        let what = format!("removed, seed {seed}, {layout:?}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine(&runtime);
        runtime.block_on(async {
            let pool = rotten(&handle, &machine, layout, seed, &rots).await;
            attend(&pool);
            remove(&pool, 1).await;
            change(&pool, seed + 50, 2).await;
            ended(&handle, &pool, &what).await;
            let scan = pool.scan().await.unwrap().unwrap();
            assert_eq!(
                (scan.function, scan.state, scan.error_count),
                (ScanFunction::SCRUB, ScanState::FINISHED, 0),
                "{what}"
            );
            assert!(scan.processed_bytes > 0, "{what}: it has repaired something");
            assert_whole(&handle, &machine, pool, &what).await;
        });
    }
}

#[test]
fn a_mirror_that_goes_early_is_missed() {
    let mutant = Mutant::EvacuationUncompared.name();
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture"])
        .env_remove(cenote_testkit::PART_VARIABLE)
        .env(MUTANT_VARIABLE, mutant)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&told.stderr);
    let is_lost = text.contains("NoGoodCopy") || text.contains("removed, seed");
    assert!(!told.status.success() && is_lost, "{mutant}: {text}");
}

#[test]
fn a_mirror_whose_devices_are_the_same_goes_without_a_scrub() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let machine = machine(&runtime);
    runtime.block_on(async {
        let pool = rotten(&handle, &machine, TO_SINGLE, 7, &[]).await;
        remove(&pool, 1).await;
        ended(&handle, &pool, "the same").await;
        assert!(
            pool.scan().await.unwrap().is_none_or(|scan| scan.state == ScanState::NONE),
            "nobody has asked for a scrub"
        );
        assert_whole(&handle, &machine, pool, "the same").await;
    });
}

/// Bytes that no scrub makes good are copied, and the removal ends.
#[test]
fn a_removal_waits_once_for_a_scrub_that_cannot_make_all_good() {
    let runtime = Runtime::simulated(8);
    let handle = runtime.handle();
    let machine = machine(&runtime);
    runtime.block_on(async {
        let rots = [(1, 4..SIZE_MIB - 4), (2, 4..SIZE_MIB - 4)];
        let pool = rotten(&handle, &machine, TO_MIRROR, 8, &[]).await;
        pool.export().await.unwrap();
        for (at, part) in rots {
            rot(&machine, at + 1, part, 8);
        }
        let pool = open_again(&handle, &machine.paths).await;
        attend(&pool);
        remove(&pool, 1).await;
        ended(&handle, &pool, "beyond").await;
        let scan = pool.scan().await.unwrap().unwrap();
        assert_eq!((scan.function, scan.state), (ScanFunction::SCRUB, ScanState::FINISHED));
        assert!(scan.error_count > 0, "what both had bad is lost, and told");
        pool.export().await.unwrap();
    });
}

/// A person gives the scrub up, a pool that is opened again compares once more, and a pause has the removal wait.
#[test]
fn a_removal_goes_on_when_its_scrub_does() {
    for seed in seeds(6) {
        let what = format!("waits, seed {seed}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine(&runtime);
        runtime.block_on(async {
            let mut pool = rotten(&handle, &machine, TO_SINGLE, seed, &[(1, 4..SIZE_MIB - 4)]).await;
            remove(&pool, 1).await;
            let reason = stalled(&handle, &pool, &what).await;
            assert!(reason.contains("waits for a scrub"), "{what}: {reason}");
            let scan = pool.scan().await.unwrap().unwrap();
            assert_eq!((scan.function, scan.state), (ScanFunction::SCRUB, ScanState::SCANNING), "{what}");
            match seed % 3 {
                0 => {
                    cut(&handle, &machine, if seed % 2 == 0 { Crash::Random } else { Crash::Torn }).await;
                    drop(pool);
                    pool = open_again(&handle, &machine.paths).await;
                    attend(&pool);
                }
                1 => {
                    pool.pause_scrub().await.unwrap();
                    attend(&pool);
                    handle.sleep(Duration::from_secs(60)).await;
                    stalled(&handle, &pool, &what).await;
                    pool.scrub(cenote_spa::ScrubSince::Ever).await.unwrap();
                }
                _ => {
                    pool.stop_scrub().await.unwrap();
                    ended(&handle, &pool, &what).await;
                    // As a person wants it.
                    pool.export().await.unwrap();
                    return;
                }
            }
            ended(&handle, &pool, &what).await;
            assert_whole(&handle, &machine, pool, &what).await;
        });
    }
}
