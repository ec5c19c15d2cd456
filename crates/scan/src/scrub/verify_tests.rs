//! Goal: nothing is lost when a device is replaced by a sequential rebuild while another one has rotted, whatever comes between the rebuild and the scrub that
//! verifies it. Method: one leg is noise all over, a device beside it is replaced, and in the end each disk alone has every block.

use std::path::PathBuf;
use std::time::Duration;

use cenote_admin::take_snapshots;
use cenote_format::dsl::{ScanFunction, ScanState};
use cenote_format::ids::Guid;
use cenote_sim::written::blocks::{change_head, make_objects, write_some};
use cenote_sim::written::*;
use cenote_sim::{MUTANT_VARIABLE, Machine, disk};
use cenote_spa::{AddOptions, AttachOptions, AuxSpec, ImportOptions, NewDevice, Offline, Pool, ScrubSince, TopKind};
use cenote_taskq::mutant::Mutant;
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Handle, Rng, Runtime};

use super::attend;
use super::tests::open_again;

const MIRROR: Layout = &[(TopKind::Mirror, 2)];
const DRAID: Layout = &[(TopKind::Draid { parity: 1, data: Some(2), spares: 0 }, 4)];

pub(super) async fn change(pool: &Pool, seed: u64, txgs: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..txgs {
        let head = pool.open_head("written").await.unwrap();
        let tx = head.begin(cenote_dmu::tx::Cost::objects(64)).await.unwrap();
        change_head(pool, &pool.root().unwrap(), &mut rng).await.unwrap();
        drop((tx, head));
        pool.sync().await.unwrap();
    }
}

/// Blocks of data, which have one copy: some mebibytes.
pub(super) async fn fill(pool: &Pool, seed: u64) {
    change(pool, seed, 2).await;
    let head = pool.open_head("written").await.unwrap();
    let objects = make_objects(&head, 4).await;
    let mut rng = Rng::new(seed);
    for _ in 0..12 {
        write_some(&head, &objects, &mut rng).await;
    }
    drop(head);
    pool.sync().await.unwrap();
}

async fn leaf(pool: &Pool, at: usize) -> Option<Guid> {
    let view = pool.view(&ImportOptions::default()).await.unwrap();
    let name = Machine::name(at);
    view.vdevs().leaves().into_iter().find(|leaf| leaf.path.as_deref() == Some(&*name)).map(|leaf| leaf.guid)
}

/// Everything on a disk but its labels is noise from now on.
fn rot(machine: &Machine, at: usize, seed: u64) {
    let mut noise = vec![0; 8 << 20];
    Rng::new(seed).fill(&mut noise);
    for mib in (4..60).step_by(8) {
        machine.disks[at].poke(mib << 20, &noise);
    }
}

/// A pool on the first disks, of which one has rotted.
async fn rotten(handle: &Handle, machine: &Machine, layout: Layout, bad: usize, seed: u64) -> Pool {
    let pool = live(handle, machine, layout, small()).await;
    fill(&pool, seed).await;
    pool.export().await.unwrap();
    rot(machine, bad, seed);
    open_again(handle, &machine.paths).await
}

async fn replace(handle: &Handle, machine: &Machine, pool: &Pool, (old, new): (usize, usize)) {
    let new = NewDevice::Disk(disk(handle, &machine.paths[new]).await.unwrap());
    let old = leaf(pool, old).await.unwrap();
    let options = AttachOptions { old, new, is_replacing: true, is_sequential: true, ashift: Some(12), seed: None };
    pool.attach_device(options).await.unwrap();
}

/// Waits until the rebuild has ended. Nothing scrubs the pool by then, unless it is attended to.
async fn rebuilt(handle: &Handle, pool: &Pool) {
    for _ in 0..600 {
        handle.sleep(Duration::from_millis(100)).await;
        if !pool.peek(|syncer| syncer.is_rebuilding()).await.unwrap() {
            handle.sleep(Duration::from_secs(1)).await;
            return;
        }
    }
    panic!("the rebuild does not end");
}

async fn is_held(pool: &Pool) -> bool {
    pool.peek(|syncer| syncer.is_replacing() && syncer.is_verifying()).await.unwrap()
}

/// Waits until the device that is replaced has gone, and no scan is under way.
async fn replaced(handle: &Handle, pool: &Pool, what: &str) {
    for _ in 0..600 {
        handle.sleep(Duration::from_millis(500)).await;
        let is_busy = pool.peek(|syncer| syncer.is_rebuilding() || syncer.is_replacing() || syncer.is_scanned());
        if !is_busy.await.unwrap() {
            assert!(!pool.peek(|syncer| syncer.is_verifying()).await.unwrap(), "{what}: nothing is held any more");
            return;
        }
    }
    panic!("{what}: no end: {:?}", pool.scan().await);
}

/// Asserts that no block is lost, and that each of the sets of disks has all of them.
async fn assert_whole(handle: &Handle, machine: &Machine, pool: Pool, gone: usize, alone: &[&[usize]], what: &str) {
    assert_eq!(leaf(&pool, gone).await, None, "{what}: the replaced device is gone");
    let view = pool.view(&ImportOptions::default()).await.unwrap();
    assert!(view.vdevs().leaves().iter().all(|leaf| leaf.rebuild_txg.is_none()), "{what}: nothing is marked");
    assert_eq!(view.error_count().await.unwrap(), 0, "{what}: errors");
    drop(view);
    pool.export().await.unwrap();
    let at = |disks: &[usize]| disks.iter().map(|at| machine.paths[*at].clone()).collect::<Vec<PathBuf>>();
    for disks in alone {
        let (_, report) = check(handle, &at(disks)).await;
        assert_eq!(report.error_count, 0, "{what}, {disks:?} alone: {report}");
    }
}

/// The test that is run once more with the bug.
const TEST: &str = "scrub::verify_tests::a_good_copy_goes_only_when_what_was_rebuilt_is_verified";

#[test]
fn a_good_copy_goes_only_when_what_was_rebuilt_is_verified() {
    for (seed, layout, count, old, alone) in [
        (1, MIRROR, 2, 1, &[&[0][..], &[2], &[0, 2]][..]),
        // Neighbours are copied from different legs.
        (2, MIRROR, 2, 0, &[&[1], &[2]]),
        (3, DRAID, 4, 1, &[&[0, 2, 3, 4], &[0, 2, 4], &[2, 3, 4], &[0, 3, 4]]),
    ] {
        let bad = usize::from(old == 0);
        let what = format!("verified, seed {seed}, {layout:?}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let latency = if seed == 2 { cenote_sim::slow() } else { Latency::default() };
        let machine = machine_of(&runtime, count + 1, latency);
        runtime.block_on(async {
            let pool = rotten(&handle, &machine, layout, bad, seed).await;
            attend(&pool);
            replace(&handle, &machine, &pool, (old, count)).await;
            change(&pool, seed + 50, 2).await;
            replaced(&handle, &pool, &what).await;
            let scan = pool.scan().await.unwrap().unwrap();
            let found = (scan.function, scan.state, scan.error_count);
            assert_eq!(found, (ScanFunction::SCRUB, ScanState::FINISHED, 0), "{what}");
            assert!(scan.processed_bytes > 0, "{what}: it has repaired something");
            assert_whole(&handle, &machine, pool, old, alone, &what).await;
        });
    }
}

#[test]
fn a_good_copy_that_goes_early_is_missed() {
    let mutant = Mutant::RebuildUnverified.name();
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture"])
        .env_remove(cenote_testkit::PART_VARIABLE)
        .env(MUTANT_VARIABLE, mutant)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(!told.status.success() && text.contains("verified, seed"), "{mutant}: {text}");
}

/// Power cuts, exports, a pause and a resilver between the rebuild and the end of its scrub.
#[test]
fn a_good_copy_is_held_across_whatever_comes_between() {
    for seed in seeds(8) {
        let what = format!("held, seed {seed}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 4, Latency::default());
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let layout: Layout = if seed % 4 == 3 { &[(TopKind::Mirror, 3)] } else { MIRROR };
            let mut pool = rotten(&handle, &machine, layout, 0, seed).await;
            replace(&handle, &machine, &pool, (1, 3)).await;
            rebuilt(&handle, &pool).await;
            for round in 0..3 {
                assert!(is_held(&pool).await, "{what}, round {round}");
                assert_eq!(pool.finish_replacing().await.unwrap(), 0, "{what}: nothing goes");
                change(&pool, seed * 10 + round, 1).await;
                match (seed + round) % 4 {
                    0 => {
                        cut(&handle, &machine, if rng.chance(1, 2) { Crash::Random } else { Crash::Torn }).await;
                        drop(pool);
                        pool = open_again(&handle, &machine.paths).await;
                    }
                    1 => {
                        pool.export().await.unwrap();
                        pool = open_again(&handle, &machine.paths).await;
                    }
                    2 => {
                        if !pool.peek(|syncer| syncer.is_scanned()).await.unwrap() {
                            pool.scrub(ScrubSince::Ever).await.unwrap();
                        }
                        pool.pause_scrub().await.unwrap();
                    }
                    _ => take_snapshots(&pool, &[format!("written@{round}")], &[]).await.unwrap(),
                }
            }
            assert!(is_held(&pool).await, "{what}");
            attend(&pool);
            if layout.len() == 1 && seed % 4 == 3 {
                // A device is away for a while: its resilver ends the scrub, which begins anew after it.
                let third = leaf(&pool, 2).await.unwrap();
                pool.offline_device(third, Offline::default()).await.unwrap();
                change(&pool, seed + 500, 2).await;
                pool.online_device(third, Vec::new()).await.unwrap();
            }
            let scan = pool.scan().await.unwrap().unwrap();
            if scan.function == ScanFunction::SCRUB && scan.state == ScanState::SCANNING {
                drop(pool.scrub(ScrubSince::Ever).await);
            }
            replaced(&handle, &pool, &what).await;
            assert_eq!(pool.scan().await.unwrap().unwrap().error_count, 0, "{what}");
            assert_whole(&handle, &machine, pool, 1, &[&[0], &[3]], &what).await;
        });
    }
}

/// A person gives the scrub up, or takes a device away, or has no scrub: nothing is held any more; nor is a device that is gone.
#[test]
fn nothing_is_held_for_ever() {
    for seed in 0..5 {
        let what = format!("not held, seed {seed}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 3, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, MIRROR, small()).await;
            change(&pool, seed, 6).await;
            pool.export().await.unwrap();
            let unscrubbed = import_with(&["zfs_rebuild_scrub_enabled=0"]);
            let how = if seed == 0 { unscrubbed } else { ImportOptions::default() };
            let pool = opened_pool(&handle, &machine.paths, how).await.unwrap();
            replace(&handle, &machine, &pool, (1, 2)).await;
            rebuilt(&handle, &pool).await;
            assert_eq!(is_held(&pool).await, seed > 0, "{what}");
            let (old, new) = (leaf(&pool, 1).await, leaf(&pool, 2).await);
            let mut gone = 1;
            match seed {
                0 => {}
                1 => pool.stop_scrub().await.unwrap(),
                2 => assert!(pool.detach_device(old.unwrap()).await.is_ok(), "{what}"),
                3 => {
                    gone = 2;
                    assert!(pool.detach_device(new.unwrap()).await.is_ok(), "{what}");
                }
                _ => {
                    pool.offline_device(old.unwrap(), Offline::default()).await.unwrap();
                    pool.finish_replacing().await.unwrap();
                }
            }
            let is_left = pool.peek(|syncer| syncer.is_replacing() || syncer.is_verifying()).await.unwrap();
            assert!(!is_left, "{what}");
            assert_eq!(leaf(&pool, gone).await, None, "{what}");
            pool.finish_replacing().await.unwrap();
            assert_whole(&handle, &machine, pool, gone, &[&[0], &[3 - gone]], &what).await;
        });
    }
}

/// A device for which a spare stands is replaced: the spare goes with it, and both have good copies until then.
#[test]
fn a_spare_is_held_with_the_device_that_it_stands_for() {
    let what = "a spare";
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 4, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, MIRROR, small()).await;
        fill(&pool, 7).await;
        let auxiliaries = AuxSpec { spares: vec![disk(&handle, &machine.paths[3]).await.unwrap()], caches: Vec::new() };
        pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() }).await.unwrap();
        let spare = {
            let view = pool.view(&ImportOptions::default()).await.unwrap();
            view.spares().await.unwrap()[0].guid
        };
        let (old, new) = (leaf(&pool, 1).await.unwrap(), NewDevice::Spare(spare));
        let options = AttachOptions { old, new, is_replacing: true, is_sequential: false, ashift: None, seed: None };
        pool.attach_device(options).await.unwrap();
        attend(&pool);
        replaced(&handle, &pool, what).await;
        pool.export().await.unwrap();
        rot(&machine, 0, 7);
        let pool = open_again(&handle, &machine.paths).await;
        replace(&handle, &machine, &pool, (1, 2)).await;
        rebuilt(&handle, &pool).await;
        assert!(is_held(&pool).await);
        assert!(leaf(&pool, 3).await.is_some(), "the spare is in use");
        attend(&pool);
        replaced(&handle, &pool, what).await;
        assert_eq!(leaf(&pool, 3).await, None, "the spare is free");
        assert_whole(&handle, &machine, pool, 1, &[&[0], &[2]], what).await;
    });
}
