//! Goal: initialize and trim touch all free space of a device and nothing else, whatever is written meanwhile, and go on after a power cut where they
//! were. Method: simulated disks whose free space is told apart by its bytes (a trim writes zeros there), blocks written and freed meanwhile, the
//! read path, the walk of all blocks, and `zdb`.

use std::time::Duration;

use cenote_dmu::Zap;
use cenote_format::ids::Guid;
use cenote_kstat::{Body, Stat};
use cenote_sim::Machine;
use cenote_sim::written::blocks::change_head;
use cenote_sim::written::*;
use cenote_spa::{ImportOptions, LeafAction, LeafWorkKind, Offline, Pool, PropertyValue, TopKind};
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Handle, Rng, Runtime};

use cenote_vdev::config::VdevKind;

use crate::expanded;
use crate::offline::{assert_refused, leaf_of, vdevs, zdb};

const START: LeafAction = LeafAction::Start { rate_bytes: 0 };
const LAYOUTS: [(Layout, usize); 4] = [
    (&[(TopKind::Single, 1)], 1),
    (&[(TopKind::Mirror, 2)], 2),
    (&[(TopKind::Raidz { parity: 1 }, 3)], 3),
    (&[(TopKind::Raidz { parity: 2 }, 5)], 5),
];
const PATTERN: u64 = 0xdead_beef_dead_beee;

/// State and offset in a leaf's ZAP.
async fn recorded(pool: &Pool, leaf: Guid, kind: LeafWorkKind) -> (u64, u64) {
    let config = vdevs(pool).await.leaves().into_iter().find(|of| of.guid == leaf).unwrap().clone();
    let view = pool.view(&ImportOptions::default()).await.unwrap();
    let zap = Zap::open(view.mos().object(config.leaf_zap).await.unwrap()).await.unwrap();
    let names = match kind {
        LeafWorkKind::Initialize => ["com.delphix:vdev_initialize_state", "com.delphix:next_offset_to_initialize"],
        LeafWorkKind::Trim => ["org.zfsonlinux:vdev_trim_state", "org.zfsonlinux:next_offset_to_trim"],
    };
    let state = zap.find_u64(names[0]).await.unwrap().unwrap_or(0);
    (state, zap.find_u64(names[1]).await.unwrap().unwrap_or(0))
}

async fn wait(handle: &Handle, pool: &Pool, kind: LeafWorkKind) {
    for _ in 0..600 {
        handle.sleep(Duration::from_secs(1)).await;
        if !pool.peek(move |syncer| syncer.is_worked_on(kind)).await.unwrap() {
            return;
        }
    }
    panic!("{kind:?} does not end");
}

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

/// Words of a disk's metaslabs that are the pattern, and all of them.
async fn patterned(machine: &Machine, pool: &Pool, disk: usize) -> (u64, u64) {
    let (mut found, mut all) = (0, 0);
    let top = vdevs(pool).await.children[0].clone();
    let width = if matches!(top.kind, VdevKind::Raidz { .. }) { top.children.len() as u64 } else { 1 };
    let end = (4 << 20) + (top.asize_bytes >> top.metaslab_shift << top.metaslab_shift) / width;
    for at in ((4 << 20)..end - (1 << 20)).step_by(1 << 20) {
        let bytes = machine.disks[disk].peek(at, 1 << 20);
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        found += words.filter(|word| *word == PATTERN).count() as u64;
        all += (1 << 20) / 8;
    }
    (found, all)
}

#[test]
fn all_that_is_free_is_initialized_and_then_trimmed() {
    for (seed, (layout, count)) in (1..).zip(LAYOUTS) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count, Latency::default());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            change(&pool, seed, 8).await;
            let (mut initialized, mut words) = (Vec::new(), 0);
            for disk in 0..count {
                let leaf = leaf_of(&pool, &format!("/disk{disk}")).await;
                pool.change_leaf_work(leaf, LeafWorkKind::Initialize, START).await.unwrap();
                assert_refused(
                    pool.change_leaf_work(leaf, LeafWorkKind::Initialize, START).await,
                    "currently initializing",
                );
                wait(&handle, &pool, LeafWorkKind::Initialize).await;
                pool.sync().await.unwrap();
                let (state, offset) = recorded(&pool, leaf, LeafWorkKind::Initialize).await;
                assert_eq!(state, 4, "{layout:?}: complete");
                assert!(offset > machine.size_bytes / 2, "{layout:?}: {offset}");
                let (found, all) = patterned(&machine, &pool, disk).await;
                initialized.push(found);
                words = all;
            }
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, "initialized");
            // Deferred space, and that of the last txgs, was neither free nor in use at the end.
            let shared_by = if layout[0].0 == TopKind::Mirror { 1 } else { count as u64 };
            let used = (report.allocated_bytes / shared_by + (6 << 20)) / 8;
            for found in initialized {
                assert!(found + used >= words, "{layout:?}: {found} of {words} words, {used} in use");
            }
            zdb(&machine, "initialized");
            let pool = reopened(&handle, &machine.paths, small()).await;
            for disk in 0..count {
                let leaf = leaf_of(&pool, &format!("/disk{disk}")).await;
                pool.change_leaf_work(leaf, LeafWorkKind::Trim, START).await.unwrap();
                wait(&handle, &pool, LeafWorkKind::Trim).await;
                let (found, all) = patterned(&machine, &pool, disk).await;
                assert!(found < all / 4, "{layout:?}: {found} of {all} words are left");
            }
            export_whole(&handle, &machine, pool, "trimmed").await;
            zdb(&machine, "trimmed");
        });
    }
}

/// Work on several leaves of a vdev at once: what one worker holds is free for the others too.
#[test]
fn leaves_that_are_initialized_at_once_are_each_initialized_whole() {
    for (seed, (layout, count)) in (40..).zip(LAYOUTS) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count, Latency::default());
        // One is slower: the others are ahead of it by what they hold.
        let mut rng = Rng::new(seed);
        machine.disks[0].set_service_model(move |_, _, _| Duration::from_micros(100 + rng.below(2000)));
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            change(&pool, seed, 8).await;
            for disk in 0..count {
                let leaf = leaf_of(&pool, &format!("/disk{disk}")).await;
                pool.change_leaf_work(leaf, LeafWorkKind::Initialize, START).await.unwrap();
            }
            wait(&handle, &pool, LeafWorkKind::Initialize).await;
            pool.sync().await.unwrap();
            let mut words = Vec::new();
            for disk in 0..count {
                let leaf = leaf_of(&pool, &format!("/disk{disk}")).await;
                assert_eq!(recorded(&pool, leaf, LeafWorkKind::Initialize).await.0, 4, "{layout:?}: complete");
                words.push(patterned(&machine, &pool, disk).await);
            }
            export_whole(&handle, &machine, pool, "initialized at once").await;
            let (_, report) = check(&handle, &machine.paths).await;
            let shared_by = if layout[0].0 == TopKind::Mirror { 1 } else { count as u64 };
            let used = (report.allocated_bytes / shared_by + (6 << 20)) / 8;
            for (found, all) in words {
                assert!(found + used >= all, "{layout:?}: {found} of {all} words, {used} in use");
            }
        });
    }
}

/// Places that do not follow from those of the vdev by a sum: groups that are spread by a permutation, and sectors that were dealt out anew.
const SPREAD: [(Layout, usize, usize); 5] = [
    (&[(TopKind::Draid { parity: 1, data: Some(2), spares: 0 }, 4)], 4, 0),
    (&[(TopKind::Draid { parity: 2, data: None, spares: 0 }, 6)], 6, 0),
    (&[(TopKind::Draid { parity: 1, data: Some(2), spares: 1 }, 5)], 5, 0),
    (&[(TopKind::Raidz { parity: 1 }, 3)], 3, 1),
    (&[(TopKind::Raidz { parity: 2 }, 4)], 4, 2),
];

/// A pool with such a vdev, which was written before it was expanded and since.
async fn spread(handle: &Handle, machine: &Machine, (layout, count, added): (Layout, usize, usize), seed: u64) -> Pool {
    let pool = live(handle, &machine.part(0..count), layout, small()).await;
    change(&pool, seed, 6).await;
    for new in 0..added {
        expanded::widen(handle, machine, &pool, count + new).await.unwrap();
        let leaf = leaf_of(&pool, "/disk0").await;
        for kind in [LeafWorkKind::Initialize, LeafWorkKind::Trim] {
            if pool.jobs().iter().any(|job| job.name == "raidz_expand") {
                assert_refused(pool.change_leaf_work(leaf, kind, START).await, "is being expanded");
            }
        }
        expanded::ended(handle, &pool).await;
        change(&pool, seed + 100 + new as u64, 6).await;
    }
    pool
}

/// Bytes of all disks that are the pattern.
fn all_patterned(machine: &Machine) -> u64 {
    let mut found = 0;
    for disk in &machine.disks {
        for at in ((4 << 20)..machine.size_bytes - (1 << 20)).step_by(1 << 20) {
            let bytes = disk.peek(at, 1 << 20);
            found += bytes.chunks_exact(8).filter(|word| **word == PATTERN.to_le_bytes()).count() as u64 * 8;
        }
    }
    found
}

#[test]
fn all_that_is_free_of_spread_vdevs_is_initialized_and_then_trimmed() {
    for (seed, case) in (60..).zip(SPREAD) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let count = case.1 + case.2;
        let machine = machine_of(&runtime, count, Latency::default());
        runtime.block_on(async {
            let pool = spread(&handle, &machine, case, seed).await;
            for disk in 0..count {
                let leaf = leaf_of(&pool, &format!("/disk{disk}")).await;
                pool.change_leaf_work(leaf, LeafWorkKind::Initialize, START).await.unwrap();
            }
            wait(&handle, &pool, LeafWorkKind::Initialize).await;
            pool.sync().await.unwrap();
            for disk in 0..count {
                let leaf = leaf_of(&pool, &format!("/disk{disk}")).await;
                assert_eq!(recorded(&pool, leaf, LeafWorkKind::Initialize).await.0, 4, "{case:?}: complete");
            }
            let top = vdevs(&pool).await.children[0].clone();
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, &format!("initialized {case:?}"));
            let found = all_patterned(&machine);
            let whole = top.asize_bytes >> top.metaslab_shift << top.metaslab_shift;
            // Deferred space, and that of the last txgs, was neither free nor in use at the end: on draid a row for each small block.
            let others = report.allocated_bytes + (24 << 20);
            assert!(found + others >= whole, "{case:?}: {found} bytes of {whole}, {others} are others'");
            zdb(&machine, "initialized");
            let pool = reopened(&handle, &machine.paths, small()).await;
            for disk in 0..count {
                let leaf = leaf_of(&pool, &format!("/disk{disk}")).await;
                pool.change_leaf_work(leaf, LeafWorkKind::Trim, START).await.unwrap();
                wait(&handle, &pool, LeafWorkKind::Trim).await;
            }
            let left = all_patterned(&machine);
            assert!(left < found / 4, "{case:?}: {left} of {found} bytes are left");
            export_whole(&handle, &machine, pool, "trimmed").await;
            zdb(&machine, "trimmed");
        });
    }
}

#[test]
fn what_is_written_to_spread_vdevs_meanwhile_stays() {
    for (seed, case) in (70..).zip(SPREAD) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let count = case.1 + case.2;
        let machine = machine_of(&runtime, count, cenote_sim::slow());
        runtime.block_on(async {
            let mut pool = spread(&handle, &machine, case, seed).await;
            for round in 0..4 {
                let leaf = leaf_of(&pool, &format!("/disk{}", round % count)).await;
                let kind = [LeafWorkKind::Trim, LeafWorkKind::Initialize][round / 2];
                pool.change_leaf_work(leaf, kind, LeafAction::Start { rate_bytes: 16 << 20 }).await.unwrap();
                let mut before = 0;
                for more in 0..30 {
                    change(&pool, seed + 1000 * round as u64 + more, 1).await;
                    handle.sleep(Duration::from_millis(100)).await;
                    let (_, offset) = recorded(&pool, leaf, kind).await;
                    assert!(offset >= before, "{case:?}: {offset} after {before}");
                    before = offset;
                    if more == 10 {
                        cut(&handle, &machine, Crash::Random).await;
                        drop(pool);
                        pool = reopened(&handle, &machine.paths, small()).await;
                    }
                }
                drop(pool.change_leaf_work(leaf, kind, LeafAction::Cancel).await);
            }
            export_whole(&handle, &machine, pool, "written while it was trimmed").await;
            zdb(&machine, "written while it was trimmed");
        });
    }
}

/// The work of a leaf that is faulted is given up, that of one that is offline waits for it; and what is written is what the tunable says, on each leaf.
#[test]
fn work_of_a_faulted_leaf_is_given_up_and_of_one_that_is_offline_goes_on() {
    let runtime = Runtime::simulated(31);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, cenote_sim::slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Mirror, 2)], small()).await;
        let mut settings = cenote_spa::tunables::settings();
        for given in ["zfs_initialize_chunk_size=4096", "zfs_initialize_value=7"] {
            settings.set_from(given).unwrap();
        }
        pool.tune(settings).await.unwrap();
        let leaf = leaf_of(&pool, "/disk1").await;
        for is_fault in [true, false] {
            pool.change_leaf_work(leaf, LeafWorkKind::Initialize, START).await.unwrap();
            handle.sleep(Duration::from_secs(1)).await;
            pool.offline_device(leaf, Offline { is_fault, is_temporary: false }).await.unwrap();
            let (state, _) = recorded(&pool, leaf, LeafWorkKind::Initialize).await;
            assert_eq!(state, if is_fault { 2 } else { 1 }, "canceled, or active");
            pool.online_device(leaf, Vec::new()).await.unwrap();
            let (state, _) = recorded(&pool, leaf, LeafWorkKind::Initialize).await;
            assert_eq!(state, if is_fault { 2 } else { 1 });
        }
        wait(&handle, &pool, LeafWorkKind::Initialize).await;
        pool.sync().await.unwrap();
        assert_eq!(recorded(&pool, leaf, LeafWorkKind::Initialize).await.0, 4, "complete");
        let bytes = machine.disks[1].peek(machine.size_bytes / 2, 1 << 20);
        let words = bytes.chunks_exact(8).filter(|word| u64::from_le_bytes((*word).try_into().unwrap()) == 7);
        assert!(words.count() > 100_000, "the value of the tunable is written");
        export_whole(&handle, &machine, pool, "faulted").await;
    });
}

/// The test that is run once more with a bug.
const BUSY: &str = "leaf_work::what_is_written_meanwhile_stays";

#[test]
fn what_is_written_meanwhile_stays() {
    for (seed, (layout, count)) in (20..).zip(LAYOUTS) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count, cenote_sim::slow());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            change(&pool, seed, 4).await;
            for round in 0..4 {
                let leaf = leaf_of(&pool, &format!("/disk{}", round % count)).await;
                let kind = [LeafWorkKind::Trim, LeafWorkKind::Initialize][round / 2];
                pool.change_leaf_work(leaf, kind, START).await.unwrap();
                for more in 0..40 {
                    change(&pool, seed + 1000 * round as u64 + more, 1).await;
                    handle.sleep(Duration::from_millis(100)).await;
                    if !pool.peek(move |syncer| syncer.is_worked_on(kind)).await.unwrap() {
                        break;
                    }
                }
                drop(pool.change_leaf_work(leaf, kind, LeafAction::Cancel).await);
            }
            export_whole(&handle, &machine, pool, "written while it was trimmed").await;
        });
    }
}

#[test]
fn the_bug_that_free_space_is_not_held_is_seen() {
    let mutant = cenote_taskq::mutant::Mutant::TrimUnheld.name();
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args([BUSY, "--exact", "--nocapture"])
        .env_remove(cenote_testkit::PART_VARIABLE)
        .env(cenote_sim::MUTANT_VARIABLE, mutant)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(!told.status.success() && text.contains("written while it was trimmed"), "{mutant}: {text}");
}

/// Suspended, cut, exported and opened again, the work ends as if nothing had been, and a state that was cancelled stays so.
#[test]
fn work_that_is_cut_or_suspended_ends_like_work_that_is_not() {
    for seed in seeds(12) {
        let (layout, count) = LAYOUTS[seed as usize % LAYOUTS.len()];
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count, cenote_sim::slow());
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let kind = [LeafWorkKind::Trim, LeafWorkKind::Initialize][rng.below(2) as usize];
            let mut pool = live(&handle, &machine, layout, small()).await;
            change(&pool, seed, 4).await;
            let leaf = leaf_of(&pool, "/disk0").await;
            pool.change_leaf_work(leaf, kind, LeafAction::Start { rate_bytes: 4 << 20 }).await.unwrap();
            let mut before = 0;
            for round in 0..5 {
                handle.sleep(Duration::from_millis(rng.below(3000))).await;
                change(&pool, seed * 10 + round, 1).await;
                let (state, offset) = recorded(&pool, leaf, kind).await;
                if state == 4 {
                    break;
                }
                assert!(offset >= before, "seed {seed}: {offset} after {before}");
                before = offset;
                match rng.below(3) {
                    0 => {
                        pool.change_leaf_work(leaf, kind, LeafAction::Suspend).await.unwrap();
                        let (state, kept) = recorded(&pool, leaf, kind).await;
                        assert_eq!(state, 3, "seed {seed}");
                        handle.sleep(Duration::from_secs(30)).await;
                        assert_eq!(recorded(&pool, leaf, kind).await, (3, kept), "seed {seed}: nothing goes on");
                        pool.change_leaf_work(leaf, kind, START).await.unwrap();
                    }
                    1 => {
                        pool.export().await.unwrap();
                        pool = reopened(&handle, &machine.paths, small()).await;
                    }
                    _ => {
                        cut(&handle, &machine, if rng.chance(1, 2) { Crash::Random } else { Crash::Torn }).await;
                        drop(pool);
                        pool = reopened(&handle, &machine.paths, small()).await;
                    }
                }
            }
            wait(&handle, &pool, kind).await;
            pool.sync().await.unwrap();
            assert_eq!(recorded(&pool, leaf, kind).await.0, 4, "seed {seed}: complete");
            assert_refused(pool.change_leaf_work(leaf, kind, LeafAction::Suspend).await, "there is no active");
            pool.change_leaf_work(leaf, kind, LeafAction::Forget).await.unwrap();
            assert_eq!(recorded(&pool, leaf, kind).await, (0, 0), "seed {seed}");
            export_whole(&handle, &machine, pool, "cut").await;
        });
    }
}

/// Free space that is held is not in use: an evacuation copies none of it, and leaves nothing behind.
#[test]
fn a_vdev_that_is_initialized_while_it_is_evacuated_leaves_no_copies_of_free_space() {
    for seed in seeds(4) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 4, cenote_sim::slow());
        runtime.block_on(async {
            let pool = live(&handle, &machine, &[(TopKind::Single, 1); 4], small()).await;
            change(&pool, seed, 6).await;
            let leaf = leaf_of(&pool, "/disk1").await;
            pool.change_leaf_work(leaf, LeafWorkKind::Initialize, START).await.unwrap();
            pool.remove_vdev(leaf).await.unwrap();
            for _ in 0..600 {
                handle.sleep(Duration::from_millis(500)).await;
                pool.sync().await.unwrap();
                if pool.removal().await.unwrap().is_some_and(|removal| removal.state == 2) {
                    break;
                }
            }
            assert_eq!(
                pool.removal().await.unwrap().map(|removal| removal.state),
                Some(2),
                "seed {seed}: it has ended"
            );
            export_whole(&handle, &machine, pool, "evacuated while it was initialized").await;
            zdb(&machine, "evacuated");
        });
    }
}

/// The test that is run once more with a bug.
const BY_ITSELF: &str = "leaf_work::what_is_freed_is_trimmed_by_itself";

async fn autotrim(pool: &Pool, is_on: bool) {
    let value = PropertyValue::Number(u64::from(is_on));
    let set =
        pool.change(move |syncer| Box::pin(async move { syncer.set_pool_property("autotrim", Some(&value)).await }));
    set.await.unwrap();
}

fn trimmed_bytes(pool: &Pool) -> u64 {
    let groups = pool.kstats().snapshot();
    let group = groups.iter().find(|group| group.name == "iostats").unwrap();
    let Body::Named(named) = &group.body else { panic!("they have names") };
    match named.iter().find(|(name, _)| *name == "autotrim_bytes_written") {
        Some((_, Stat::Count(count))) => *count,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_freed_is_trimmed_by_itself() {
    for (seed, (layout, count)) in (40..).zip(LAYOUTS.into_iter().chain([(SPREAD[0].0, SPREAD[0].1)])) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count, cenote_sim::slow());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            change(&pool, seed, 4).await;
            pool.export().await.unwrap();
            let given = import_with(&["zfs_trim_txg_batch=1", "zfs_trim_extent_bytes_min=4096"]);
            let pool = opened_pool(&handle, &machine.paths, given.clone()).await.unwrap();
            assert_eq!(trimmed_bytes(&pool), 0);
            autotrim(&pool, true).await;
            // A small block of a draid takes a whole row.
            let is_draid = matches!(layout[0].0, TopKind::Draid { .. });
            let rounds = if is_draid { 20 } else { 80 };
            for more in 0..rounds {
                change(&pool, seed + 100 + more, 1).await;
                handle.sleep(Duration::from_millis(100)).await;
            }
            let trimmed = trimmed_bytes(&pool);
            assert!(trimmed > 64 << 10, "{layout:?}: {trimmed} bytes are trimmed");
            pool.export().await.unwrap();
            // The property is obeyed from the beginning, and until it is taken back.
            let pool = opened_pool(&handle, &machine.paths, given).await.unwrap();
            for more in 0..rounds / 2 {
                change(&pool, seed + 300 + more, 1).await;
                handle.sleep(Duration::from_millis(100)).await;
            }
            assert!(trimmed_bytes(&pool) > 0, "{layout:?}");
            autotrim(&pool, false).await;
            handle.sleep(Duration::from_secs(3)).await;
            let before = trimmed_bytes(&pool);
            change(&pool, seed + 400, 4).await;
            handle.sleep(Duration::from_secs(3)).await;
            assert_eq!(trimmed_bytes(&pool), before, "{layout:?}: nobody wants it");
            export_whole(&handle, &machine, pool, "trimmed by itself").await;
            zdb(&machine, "trimmed by itself");
        });
    }
}

#[test]
fn the_bug_that_freed_space_is_trimmed_at_once_is_seen() {
    let mutant = cenote_taskq::mutant::Mutant::AutotrimEarly.name();
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args([BY_ITSELF, "--exact", "--nocapture"])
        .env_remove(cenote_testkit::PART_VARIABLE)
        .env(cenote_sim::MUTANT_VARIABLE, mutant)
        .output()
        .unwrap();
    assert!(!told.status.success(), "{mutant}");
}

/// Space that was trimmed by itself was free for good: the power goes at any moment, and nothing that the pool then has is missing.
#[test]
fn a_cut_beside_trims_costs_nothing() {
    for seed in seeds(8) {
        let (layout, count) = LAYOUTS[seed as usize % LAYOUTS.len()];
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count, cenote_sim::slow());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            change(&pool, seed, 4).await;
            pool.export().await.unwrap();
            let given = import_with(&["zfs_trim_txg_batch=1", "zfs_trim_extent_bytes_min=4096"]);
            let mut pool = opened_pool(&handle, &machine.paths, given.clone()).await.unwrap();
            autotrim(&pool, true).await;
            for round in 0..4 {
                for more in 0..10 {
                    change(&pool, seed * 100 + round * 10 + more, 1).await;
                    handle.sleep(Duration::from_millis(150)).await;
                }
                cut(&handle, &machine, Crash::Random).await;
                drop(pool);
                handle.sleep(Duration::from_secs(30)).await;
                pool = opened_pool(&handle, &machine.paths, given.clone()).await.unwrap();
            }
            export_whole(&handle, &machine, pool, "cut beside trims").await;
        });
    }
}

/// A raidz begins to be expanded while what is freed is trimmed: a device is told of no place that a sector has just got. What was held before has its
/// places in the old layout, or the trim waits for the end.
#[test]
fn an_expansion_that_begins_beside_trims_loses_nothing() {
    for seed in seeds(8) {
        let (layout, count): (Layout, usize) =
            [(LAYOUTS[2].0, LAYOUTS[2].1), (LAYOUTS[3].0, LAYOUTS[3].1)][seed as usize % 2];
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count + 1, cenote_sim::slow());
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let pool = live(&handle, &machine.part(0..count), layout, small()).await;
            change(&pool, seed, 4).await;
            pool.export().await.unwrap();
            let given = import_with(&[
                "zfs_trim_txg_batch=1",
                "zfs_trim_extent_bytes_min=4096",
                "raidz_expand_max_copy_bytes=4194304",
            ]);
            let pool = opened_pool(&handle, &machine.paths[..count], given).await.unwrap();
            autotrim(&pool, true).await;
            let begins = rng.below(10);
            for round in 0..30 {
                change(&pool, seed * 100 + round, 1).await;
                if round == begins {
                    expanded::widen(&handle, &machine, &pool, count).await.unwrap();
                }
                handle.sleep(Duration::from_millis(rng.below(300))).await;
            }
            expanded::ended(&handle, &pool).await;
            change(&pool, seed * 100 + 50, 10).await;
            assert!(trimmed_bytes(&pool) > 0, "seed {seed}: something is trimmed");
            export_whole(&handle, &machine, pool, "expanded beside trims").await;
            zdb(&machine, "expanded beside trims");
        });
    }
}
