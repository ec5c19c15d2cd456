//! Goal: a raidz gets a further child while it is used. Each block can be read at any moment, whenever the power goes and whichever child is gone, and the pool is
//! written, snapshotted, scrubbed and freed afterwards like any other. Method: files of a pool in use are changed while its sectors move; then the pool is
//! looked at by the read path, by `verify`, and by `zdb`, which reads each block by the reflow word and counts each leak.

use std::sync::Arc;
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_sim::{Machine, disk};
use cenote_spa::{AddOptions, AttachOptions, AuxSpec, ImportOptions, NewDevice, Pool, Refusal, SpaError, TopKind};
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_vdev::config::VdevKind;
use cenote_zil::Log;
use cenote_zpl::FileSystem;

use cenote_sim::written::files::{make_on, opened_files, opened_with};
use cenote_sim::written::tree::{change, seen};
use cenote_sim::written::*;

use crate::evacuated::{check_whole, fill, machine_with, snapshot, work};

/// An expansion takes many txgs.
const SLOWLY: [&str; 1] = ["raidz_expand_max_copy_bytes=4194304"];

const fn raidz(parity: u64) -> TopKind {
    TopKind::Raidz { parity }
}

/// Layouts, with the disks that they have in the beginning.
const LAYOUTS: [Layout; 4] =
    [&[(raidz(1), 3)], &[(raidz(2), 4)], &[(raidz(3), 5)], &[(raidz(1), 2), (TopKind::Single, 1)]];

type Used = (Pool, FileSystem, Arc<Log>);

async fn raidz_of(pool: &Pool) -> Guid {
    pool.view(&ImportOptions::default()).await.unwrap().vdevs().children[0].guid
}

/// Adds a child to the first vdev.
pub(crate) async fn widen(handle: &Handle, machine: &Machine, pool: &Pool, new: usize) -> Result<(), SpaError> {
    let old = raidz_of(pool).await;
    let new = NewDevice::Disk(disk(handle, &machine.paths[new]).await.unwrap());
    pool.attach_device(AttachOptions {
        old,
        new,
        is_replacing: false,
        is_sequential: false,
        ashift: Some(12),
        seed: None,
    })
    .await
    .map(drop)
}

fn is_expanding(pool: &Pool) -> bool {
    pool.jobs().iter().any(|job| job.name == "raidz_expand")
}

/// Waits until no vdev is expanded any more.
pub(crate) async fn ended(handle: &Handle, pool: &Pool) {
    for _ in 0..20_000 {
        if !is_expanding(pool) {
            return;
        }
        handle.sleep(Duration::from_millis(20)).await;
    }
    panic!("an expansion does not end: {:?}", pool.jobs());
}

/// The children of the first vdev, and the expansions that have ended.
async fn width(pool: &Pool) -> (usize, usize, bool) {
    let view = pool.view(&ImportOptions::default()).await.unwrap();
    match &view.vdevs().children[0] {
        top if let VdevKind::Raidz { expanding, expand_txgs, .. } = &top.kind => {
            (top.children.len(), expand_txgs.len(), *expanding)
        }
        top => panic!("{:?}", top.kind),
    }
}

/// A pool in use, with files, and disks left for its vdevs.
async fn used(handle: &Handle, machine: &Machine, layout: Layout, rng: &mut Rng) -> Used {
    make_on(handle, machine, layout, false).await;
    let (pool, fs, log) = opened_with(handle, machine, &SLOWLY).await.unwrap();
    work(&fs, rng, 6).await;
    fill(&fs, rng, 20).await;
    snapshot(&pool, "before").await;
    work(&fs, rng, 4).await;
    fill(&fs, rng, 15).await;
    (pool, fs, log)
}

fn disks_of(layout: Layout) -> usize {
    layout.iter().map(|(_, count)| count).sum()
}

#[test]
fn a_raidz_gets_children_while_it_is_used_and_the_pool_is_written_afterwards() {
    for (seed, layout) in seeds(4).zip(LAYOUTS.into_iter().cycle()) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let count = disks_of(layout);
        let machine = machine_with(&runtime, count + 2, Latency::default());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            let what = format!("seed {seed} {layout:?}");
            let (pool, fs, log) = used(&handle, &machine.part(0..count), layout, &mut rng).await;
            for round in 0..2 {
                widen(&handle, &machine, &pool, count + round).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                let again = widen(&handle, &machine, &pool, count + 1).await;
                assert!(round == 1 || matches!(again, Err(SpaError::Refused { .. })), "{what}: {again:?}");
                let mut looks = 0_u32;
                while is_expanding(&pool) {
                    match looks % 8 {
                        0 => work(&fs, &mut rng, 1).await,
                        _ => fill(&fs, &mut rng, 1).await,
                    }
                    handle.sleep(Duration::from_millis(50)).await;
                    looks += 1;
                    assert!(looks < 5000, "{what}: an expansion does not end: {:?}", pool.jobs());
                }
                assert_eq!(width(&pool).await, (layout[0].1 + round + 1, round + 1, false), "{what}");
                work(&fs, &mut rng, 4).await;
                fill(&fs, &mut rng, 5).await;
                snapshot(&pool, &format!("after-{round}")).await;
                work(&fs, &mut rng, 4).await;
            }
            let tree = seen(&fs).await;
            drop((fs, log));
            check_whole(&handle, &machine, pool, &what).await;
            let pool = opened_pool(&handle, &machine.paths, import_with(&SLOWLY)).await.unwrap();
            let (fs, log) = opened_files(&pool).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}");
            pool.change(|syncer| Box::pin(async move { syncer.destroy_snapshot("written@before", false).await }))
                .await
                .unwrap();
            work(&fs, &mut rng, 6).await;
            fill(&fs, &mut rng, 10).await;
            drop((fs, log));
            check_whole(&handle, &machine, pool, &format!("{what}, again")).await;
        });
    }
}

/// Waits for the end of an expansion, and looks at the pool.
async fn finish(handle: &Handle, machine: &Machine, (pool, fs, log): Used, what: &str) {
    let tree = seen(&fs).await;
    ended(handle, &pool).await;
    assert!(!width(&pool).await.2, "{what}");
    drop((fs, log));
    check_whole(handle, machine, pool, what).await;
    let pool = opened_pool(handle, &machine.paths, import_with(&SLOWLY)).await.unwrap();
    let (fs, log) = opened_files(&pool).await.unwrap();
    assert_eq!(seen(&fs).await, tree, "{what}");
    drop((fs, log, pool));
}

/// The power goes once or twice at any time; between, children are gone, as many as there is parity.
#[test]
fn an_expansion_that_is_cut_off_goes_on_and_ends_as_one_that_was_not_18920() {
    let (mut begun, mut amid) = (0, 0);
    for (seed, layout) in seeds(16).zip(LAYOUTS.into_iter().cycle()) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let count = disks_of(layout);
        let machine = machine_with(&runtime, count + 1, cenote_sim::slow());
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            let what = format!("seed {seed} {layout:?}");
            let (mut pool, mut fs, mut log) = used(&handle, &machine.part(0..count), layout, &mut rng).await;
            widen(&handle, &machine, &pool, count).await.unwrap();
            let mut tree = seen(&fs).await;
            for round in 0..1 + seed % 3 {
                for _ in 0..rng.below(4) {
                    change(&fs, &tree, &mut rng).await;
                    tree = seen(&fs).await;
                    log.sync(None).await.unwrap();
                }
                handle.sleep(Duration::from_millis(rng.below(if seed % 2 == 0 { 20 } else { 150 }))).await;
                cut(&handle, &machine, Crash::Random).await;
                drop((fs, log, pool));
                // It can be read without as many children as there is parity, whatever the state.
                let gone = match layout[0].0 {
                    TopKind::Raidz { parity } => parity as usize,
                    _ => 0,
                };
                let wide = layout[0].1 + 1;
                let first = rng.below(wide as u64) as usize;
                let places = (0..gone).map(|at| (first + at) % wide);
                let lost: Vec<usize> = places.map(|place| if place + 1 == wide { count } else { place }).collect();
                let there = machine.paths.iter().enumerate().filter(|(at, _)| !lost.contains(at));
                let paths: Vec<_> = there.map(|(_, path)| path.clone()).collect();
                let (_, report) = check(&handle, &paths).await;
                assert_eq!(report.error_count, 0, "{what} round {round} without {lost:?}: {:?}", report.errors);
                pool = opened_pool(&handle, &machine.paths, import_with(&SLOWLY)).await.unwrap();
                (fs, log) = opened_files(&pool).await.unwrap();
                assert_eq!(seen(&fs).await, tree, "{what} round {round}");
                begun += u32::from(is_expanding(&pool));
            }
            if seed % 3 == 0 && is_expanding(&pool) {
                amid += 1;
                drop((fs, log));
                check_whole(&handle, &machine, pool, &format!("{what}, amid")).await;
                pool = opened_pool(&handle, &machine.paths, import_with(&SLOWLY)).await.unwrap();
                (fs, log) = opened_files(&pool).await.unwrap();
            }
            finish(&handle, &machine, (pool, fs, log), &what).await;
        });
    }
    assert!(begun > 5 && amid > 1, "{begun} expansions were cut off, {amid} were looked at");
}

/// Goal: an expansion does not go on while a spare stands for a child, says whose detaching it waits for, and ends after that. Method: a person has a
/// spare replace a child that is well, in the middle; so nothing but a person ends its use.
#[test]
fn an_expansion_waits_for_the_detaching_of_a_spare_and_says_so() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_with(&runtime, 5, cenote_sim::slow());
    let mut rng = Rng::new(1);
    runtime.block_on(async {
        let (pool, fs, log) = used(&handle, &machine.part(0..3), LAYOUTS[0], &mut rng).await;
        let spares = vec![disk(&handle, &machine.paths[4]).await.unwrap()];
        let auxiliaries = AuxSpec { spares, caches: Vec::new() };
        pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() }).await.unwrap();
        widen(&handle, &machine, &pool, 3).await.unwrap();
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        let (old, spare) = (view.vdevs().children[0].children[1].guid, view.spares().await.unwrap()[0].guid);
        let options = AttachOptions {
            old,
            new: NewDevice::Spare(spare),
            is_replacing: true,
            is_sequential: false,
            ashift: Some(12),
            seed: None,
        };
        pool.attach_device(options).await.unwrap();
        cenote_scan::attend(&pool);
        for _ in 0..200 {
            handle.sleep(Duration::from_secs(1)).await;
            let status = pool.tree().unwrap().status();
            if status.leaves().iter().all(|leaf| leaf.missed.is_empty()) {
                break;
            }
        }
        work(&fs, &mut rng, 2).await;
        pool.sync().await.unwrap();
        pool.sync().await.unwrap();
        let stalled = pool.jobs().into_iter().find(|job| job.name == "raidz_expand").and_then(|job| job.stalled);
        let told = "waits until /disk1 has all of its data and /disk4 does not stand for it any more";
        assert!(stalled.as_ref().is_some_and(|why| why.starts_with(told)), "{stalled:?}");
        pool.detach_device(spare).await.unwrap();
        finish(&handle, &machine.part(0..4), (pool, fs, log), "after the spare").await;
    });
}

#[test]
fn what_cannot_be_wider_is_not_expanded() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_with(&runtime, 5, Latency::default());
    let mut rng = Rng::new(1);
    runtime.block_on(async {
        let (pool, fs, log) = used(&handle, &machine.part(0..3), LAYOUTS[0], &mut rng).await;
        pool.take_checkpoint().await.unwrap();
        let refused = widen(&handle, &machine, &pool, 3).await.unwrap_err();
        assert!(matches!(refused, SpaError::Refused { why: Refusal::Busy, .. }), "{refused}");
        drop((fs, log, pool));
    });
}

/// Bugs of expansions. Each has its own process, since a bug is alive in a whole one.
#[test]
fn bugs_of_expansions_are_found() {
    const NAMES: [&str; 1] = ["expanded::an_expansion_that_is_cut_off_goes_on_and_ends_as_one_that_was_not_18920"];
    for mutant in cenote_taskq::mutant::Mutant::OF_EXPANSIONS.iter().map(|mutant| mutant.name()) {
        let told = std::process::Command::new(std::env::current_exe().unwrap())
            .args(NAMES)
            .arg("--exact")
            .env_remove(cenote_testkit::PART_VARIABLE)
            .env(cenote_sim::MUTANT_VARIABLE, mutant)
            .output()
            .unwrap();
        assert!(!told.status.success(), "{mutant}: {}", String::from_utf8_lossy(&told.stdout));
    }
}
