//! Goal: the mapping of a removed vdev is written anew without what is obsolete, nothing is lost by that wherever the power goes, and a half-done one is
//! continued. Method: files of a pool with a removed vdev are overwritten, with small limits, so that mappings are condensed again and again; verify, and
//! `zdb`, which counts each obsolete byte of mappings, in the middle too.

use std::time::Duration;

use cenote_format::ids::ObjectId;
use cenote_spa::{ImportOptions, Pool, TopKind};
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_vdev::config::VdevKind;

use cenote_sim::written::files::{make_on, opened_files, opened_with};
use cenote_sim::written::tree::seen;
use cenote_sim::written::*;

use crate::evacuated::{ended, fill, left, machine_with, top, work, zdb};

/// Entries for short pieces, which are condensed when little of them is obsolete.
const SOON: [&str; 4] = [
    "zfs_remove_max_copy_bytes=65536",
    "vdev_removal_max_span=32768",
    "zfs_condense_min_mapping_bytes=0",
    "zfs_condense_indirect_obsolete_pct=3",
];
const LAYOUT: &[(TopKind, usize)] = &[(TopKind::Mirror, 2), (TopKind::Single, 1)];

/// The mapping of the vdev that was removed.
async fn mapping(pool: &Pool) -> ObjectId {
    match pool.view(&ImportOptions::default()).await.unwrap().vdevs().children[0].kind {
        VdevKind::Indirect(indirect) => indirect.mapping,
        ref other => panic!("{other:?}"),
    }
}

fn is_condensing(pool: &Pool) -> bool {
    pool.jobs().iter().any(|job| job.name == "condense")
}

/// A pool in use with a removed vdev, of which something is obsolete; how many changes a test makes.
async fn removed(handle: &Handle, machine: &cenote_sim::Machine, rng: &mut Rng) -> (Pool, cenote_sim::Machine) {
    make_on(handle, machine, LAYOUT, false).await;
    let (pool, fs, log) = opened_with(handle, machine, &SOON).await.unwrap();
    work(&fs, rng, 10).await;
    fill(&fs, rng, 20).await;
    let guid = top(&pool, 0).await;
    pool.remove_vdev(guid).await.unwrap();
    ended(handle, &pool).await;
    drop((fs, log));
    (pool, left(machine, LAYOUT, &[0]))
}

const CONDENSED: &str = "condensed::mappings_are_condensed_while_the_pool_is_used";

#[test]
fn mappings_are_condensed_while_the_pool_is_used() {
    for seed in 0..3 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_with(&runtime, 3, Latency::default());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            let (mut pool, machine) = removed(&handle, &machine, &mut rng).await;
            let (mut condensed, mut amid, mut last) = (0, 0, mapping(&pool).await);
            for round in 0..12 {
                let what = format!("seed {seed} round {round}");
                let (fs, log) = opened_files(&pool).await.unwrap();
                work(&fs, &mut rng, 3).await;
                fill(&fs, &mut rng, 3).await;
                for _ in 0..rng.below(6) {
                    pool.sync().await.unwrap();
                }
                let tree = seen(&fs).await;
                drop((fs, log));
                amid += u32::from(is_condensing(&pool));
                pool.export().await.unwrap();
                let (_, report) = check(&handle, &machine.paths).await;
                assert_clean(&report, &what);
                zdb(&machine, &what);
                pool = opened_pool(&handle, &machine.paths, import_with(&SOON)).await.unwrap();
                let (fs, log) = opened_files(&pool).await.unwrap();
                assert_eq!(seen(&fs).await, tree, "{what}");
                drop((fs, log));
                let now = mapping(&pool).await;
                condensed += u32::from(now != last);
                last = now;
            }
            assert!(condensed > 1, "seed {seed}: condensed {condensed} times, {amid} looked at amid it");
            drop(pool);
        });
    }
}

#[test]
fn a_condensing_that_is_cut_off_goes_on() {
    let (mut condensed, mut amid) = (0, 0);
    for seed in 0..24 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_with(&runtime, 3, slow());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            let (pool, machine) = removed(&handle, &machine, &mut rng).await;
            let what = format!("seed {seed}");
            let last = mapping(&pool).await;
            let (fs, log) = opened_files(&pool).await.unwrap();
            work(&fs, &mut rng, 3).await;
            fill(&fs, &mut rng, 6).await;
            let tree = seen(&fs).await;
            log.sync(None).await.unwrap();
            for _ in 0..rng.below(5) {
                pool.sync().await.unwrap();
            }
            handle.sleep(Duration::from_millis(rng.below(30))).await;
            cut(&handle, &machine, Crash::Random).await;
            drop((fs, log, pool));
            let pool = opened_pool(&handle, &machine.paths, import_with(&SOON)).await.unwrap();
            amid += u32::from(is_condensing(&pool));
            let (fs, log) = opened_files(&pool).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}");
            for _ in 0..5 {
                pool.sync().await.unwrap();
            }
            work(&fs, &mut rng, 3).await;
            let tree = seen(&fs).await;
            condensed += u32::from(mapping(&pool).await != last);
            drop((fs, log));
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, &what);
            zdb(&machine, &what);
            let pool = opened_pool(&handle, &machine.paths, import_with(&SOON)).await.unwrap();
            let (fs, log) = opened_files(&pool).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}");
            drop((fs, log, pool));
        });
    }
    assert!(condensed > 8 && amid > 1, "{condensed} condensed, {amid} cut off amid it");
}

/// The first test finds the bug that it is about.
#[test]
fn an_entry_that_is_lost_is_found() {
    let mutant = cenote_taskq::mutant::Mutant::CondensedEntryLost.name();
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args([CONDENSED, "--exact"])
        .env_remove(cenote_testkit::PART_VARIABLE)
        .env(cenote_sim::MUTANT_VARIABLE, mutant)
        .output()
        .unwrap();
    assert!(!told.status.success(), "{mutant}: {}", String::from_utf8_lossy(&told.stdout));
}
