//! Goal: a pool of mirrors is split into two with the same contents while it is in use, and wherever the power goes each disk is of one pool: the first one is
//! whole, or it has parted with the legs and the new one can be opened. Method: files of a pool in use, cuts at every write of the split, a leg that
//! fails, verify, and `zdb` of both pools.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_sim::Machine;
use cenote_spa::{ImportOptions, Offline, Pool, SplitOptions, TopKind, find};
use cenote_taskq::sim::disk::{Crash, Fault, Latency, RequestKind};
use cenote_taskq::{Class, Handle, Rng, Runtime};
use cenote_vdev::tree::VdevState;
use cenote_zpl::FileSystem;

use cenote_sim::written::files::{new_files, opened_files};
use cenote_sim::written::tree::{change, seen};
use cenote_sim::written::*;

use crate::offline::{assert_readable, assert_refused, leaf_of, state, stop_at, vdevs};

const TWO: Layout = &[(TopKind::Mirror, 2), (TopKind::Mirror, 3)];
/// And a log device.
const LOGGED: Layout = &[(TopKind::Mirror, 2), (TopKind::Mirror, 3), (TopKind::Single, 1)];
/// The last legs.
const LEGS: [usize; 2] = [1, 4];

fn options(name: &str) -> SplitOptions {
    let import = ImportOptions { cache_bytes: 16 << 20, ..ImportOptions::default() };
    SplitOptions { name: name.to_owned(), seed: Some(5), import, ..SplitOptions::default() }
}

/// Some disks of a machine.
fn disks(machine: &Machine, which: impl Fn(usize) -> bool) -> Machine {
    let mut part = machine.part(0..0);
    for at in (0..machine.disks.len()).filter(|at| which(*at)) {
        part.disks.push(machine.disks[at].clone());
        part.paths.push(machine.paths[at].clone());
    }
    part
}

fn zdb(machine: &Machine, name: &str, what: &str) {
    if cenote_testkit::zdb::program("zdb").is_some() {
        let images = machine.images();
        cenote_sim::zdb(name, &images, machine.size_bytes).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
    }
}

async fn work(fs: &FileSystem, rng: &mut Rng, count: u64) {
    for _ in 0..count {
        let tree = seen(fs).await;
        change(fs, &tree, rng).await;
    }
}

/// The name and the paths of leaves of each pool on the disks.
async fn pools_on(handle: &Handle, paths: &[PathBuf]) -> Vec<(String, usize)> {
    let (pools, _) = find(handle, paths).await;
    let mut found: Vec<_> = pools.iter().map(|pool| (pool.name().to_owned(), pool.leaves.len())).collect();
    found.sort();
    found
}

/// The only pool on these disks, open to be changed; its file system is called as it is.
async fn opened_as(handle: &Handle, machine: &Machine, name: &str) -> Pool {
    let pool = reopened(handle, &machine.paths, small()).await;
    assert_eq!(pool.name(), name);
    pool
}

#[test]
fn a_pool_in_use_is_split_and_both_have_what_was_there() {
    for (seed, layout) in [TWO, LOGGED, &[(TopKind::Mirror, 2)]].into_iter().enumerate() {
        let runtime = Runtime::simulated(seed as u64);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_of(&runtime, count, Latency::default());
        let mut rng = Rng::new(seed as u64);
        runtime.block_on(async {
            let what = format!("{layout:?}");
            let (pool, fs, log) = new_files(&handle, &machine, layout, layout == LOGGED).await;
            work(&fs, &mut rng, 20).await;
            log.sync(None).await.unwrap();
            work(&fs, &mut rng, 5).await;
            let legs: &[usize] = if layout.len() == 1 { &LEGS[..1] } else { &LEGS };
            let tree = seen(&fs).await;
            let guids = pool.split(options("copy")).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(guids.len(), legs.len(), "{what}");
            let left = disks(&machine, |at| !legs.contains(&at));
            let gone = disks(&machine, |at| legs.contains(&at));
            assert!(vdevs(&pool).await.leaves().iter().all(|leaf| !guids.contains(&leaf.guid)), "{what}");
            let before: Vec<u64> = gone.disks.iter().map(|disk| disk.counts().written_bytes).collect();
            work(&fs, &mut rng, 20).await;
            log.sync(None).await.unwrap();
            pool.sync().await.unwrap();
            let after: Vec<u64> = gone.disks.iter().map(|disk| disk.counts().written_bytes).collect();
            assert_eq!(before, after, "{what}: nothing of the first pool goes to the legs any more");
            let later = seen(&fs).await;
            drop((fs, log));
            pool.export().await.unwrap();
            assert_eq!(
                pools_on(&handle, &machine.paths).await,
                [("copy".to_owned(), legs.len()), ("written".to_owned(), count - legs.len())]
            );
            for (machine, name) in [(&left, "written"), (&gone, "copy")] {
                let (_, report) = check(&handle, &machine.paths).await;
                assert_clean(&report, &format!("{what}: {name}"));
                zdb(machine, name, &what);
            }
            let pool = opened_as(&handle, &left, "written").await;
            let (fs, log) = opened_files(&pool).await.unwrap();
            assert_eq!(seen(&fs).await, later, "{what}");
            drop((fs, log));
            pool.export().await.unwrap();
            let pool = opened_as(&handle, &gone, "copy").await;
            let head = pool.open_head("copy").await.unwrap();
            let log = std::sync::Arc::new(head.log(cenote_dmu::tx::SyncMode::Standard));
            let options = cenote_zpl::FileSystemOptions { record_bytes: 16 << 10, ..Default::default() };
            let fs = FileSystem::open_logged(head.objset(), log, options).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}: it has what came before the split, and nothing else");
            work(&fs, &mut rng, 10).await;
            drop((fs, head));
            pool.export().await.unwrap();
            zdb(&gone, "copy", &what);
        });
    }
}

#[test]
fn what_cannot_be_split_is_refused_and_nothing_changes() {
    let runtime = Runtime::simulated(4);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 5, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, TWO, small()).await;
        let tops = vdevs(&pool).await.children;
        let leaf = async |at: usize| leaf_of(&pool, &machine.paths[at].display().to_string()).await;
        let two = vec![leaf(2).await, leaf(3).await];
        let legs = |legs: Vec<Guid>| SplitOptions { legs, ..options("copy") };
        for wanted in [two, vec![Guid(77)], vec![tops[0].guid]] {
            assert_refused(pool.split(legs(wanted)).await, "at most one disk from each mirror");
        }
        // A slip of the finger: the second mirror would give its last leg.
        let twice = vec![leaf(0).await, leaf(0).await];
        assert_refused(pool.split(legs(twice)).await, "one is named twice");
        assert_refused(pool.split(legs(vec![Guid(77)])).await, "no spare, log or cache device");
        pool.offline_device(leaf(1).await, Offline::default()).await.unwrap();
        assert_refused(pool.split(options("copy")).await, "is not whole");
        assert_refused(pool.split(legs(vec![leaf(0).await])).await, "no valid replicas");
        pool.online_device(leaf(1).await, Vec::new()).await.unwrap();
        assert_refused(pool.split(options("copy")).await, "is not whole");
        pool.mended(leaf(1).await).await.unwrap();
        pool.take_checkpoint().await.unwrap();
        assert_refused(pool.split(options("copy")).await, "checkpoint exists");
        pool.discard_checkpoint().await.unwrap();
        let now = vdevs(&pool).await.children;
        let guids = |tops: &[cenote_vdev::config::VdevConfig]| -> Vec<Guid> {
            tops.iter().flat_map(|top| top.leaves()).map(|leaf| leaf.guid).collect()
        };
        assert_eq!(guids(&now), guids(&tops));
        export_whole(&handle, &machine, pool, "refused").await;
    });
    let machine = machine_of(&runtime, 3, Latency::default());
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Mirror, 2), (TopKind::Single, 1)], small()).await;
        assert_refused(pool.split(options("copy")).await, "must be composed only of mirrors");
        export_whole(&handle, &machine, pool, "refused").await;
    });
}

/// Legs that fail while they become a pool are back in the first one.
#[test]
fn a_split_that_fails_is_undone() {
    let mut undone = 0;
    for at in 0..12 {
        let runtime = Runtime::simulated(at);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 5, Latency::default());
        runtime.block_on(async {
            let what = format!("from write {at}");
            let pool = live(&handle, &machine, TWO, small()).await;
            let head = pool.open_head("written").await.unwrap();
            cenote_sim::written::blocks::change_head(&pool, head.head(), &mut Rng::new(at)).await.unwrap();
            pool.sync().await.unwrap();
            let mut count = 0;
            machine.disks[4].set_faults(move |request, _| {
                count += u64::from(request.kind == RequestKind::Write);
                if request.kind == RequestKind::Write && count > at {
                    Fault::Error(std::io::ErrorKind::Other)
                } else {
                    Fault::None
                }
            });
            let failed = pool.split(options("copy")).await;
            machine.disks.iter().for_each(|disk| disk.clear_faults());
            assert!(failed.is_err(), "{what}: {failed:?}");
            pool.sync().await.unwrap();
            let leaves = vdevs(&pool).await.leaves().len();
            assert_eq!(leaves, 5, "{what}");
            // It may have failed before it left the pool.
            let states = LEGS.map(|disk| state(&pool, &machine.paths[disk].display().to_string()));
            undone += u32::from(states == [VdevState::Degraded; 2]);
            drop(head);
            pool.export().await.unwrap();
            assert_eq!(pools_on(&handle, &machine.paths).await, [("written".to_owned(), 5)], "{what}");
            assert_readable(&handle, &machine.paths, &what).await;
        });
    }
    assert!(undone > 2, "{undone} splits had begun");
}

/// Splits the pool, with a cut at each write, and returns how often it was as before, and split.
fn cut_at_each(layout: Layout, has_log: bool) -> (u32, u32) {
    let (mut whole, mut split) = (0, 0);
    for at in 0.. {
        let what = format!("{layout:?} cut at {at}");
        let runtime = Runtime::simulated(at);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_of(&runtime, count, slow());
        let legs: &[usize] = if layout.len() == 1 { &LEGS[..1] } else { &LEGS };
        let is_done = runtime.block_on(async {
            let mut rng = Rng::new(at);
            let (pool, fs, log) = new_files(&handle, &machine, layout, has_log).await;
            work(&fs, &mut rng, 3).await;
            log.sync(None).await.unwrap();
            let tree = seen(&fs).await;
            let count = stop_at(&machine, at);
            let splitting = pool.clone();
            let splitting = handle.spawn(Class::Issue, async move { splitting.split(options("copy")).await });
            let made = handle.timeout(Duration::from_secs(5), splitting).await;
            let is_over = matches!(made, Some(Ok(Ok(_)))) && count.load(Ordering::SeqCst) <= at;
            machine.disks.iter().for_each(|disk| disk.clear_faults());
            cut(&handle, &machine, Crash::Random).await;
            drop((fs, log, pool));
            let found = pools_on(&handle, &machine.paths).await;
            let is_split = found.iter().any(|(name, _)| name == "copy");
            if is_split {
                assert!(found.iter().any(|found| *found == ("copy".to_owned(), legs.len())), "{what}: {found:?}");
            }
            split += u32::from(is_split);
            whole += u32::from(!is_split);
            // The first pool sees its legs only as another pool's.
            let (mut pools, _) = find(&handle, &machine.paths).await;
            pools.retain(|pool| pool.name() == "written");
            let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
            let pool = cenote_spa::open(&handle, pools.remove(0), &how, write_options()).await;
            let pool = pool.unwrap_or_else(|error| panic!("{what}: {error}")).start(small()).await;
            let (fs, log) = opened_files(&pool).await.unwrap();
            assert_eq!(seen(&fs).await, tree, "{what}");
            drop((fs, log));
            let leaves = vdevs(&pool).await.leaves().len();
            let of_legs = if is_split { legs.len() } else { 0 };
            assert_eq!(leaves, machine.disks.len() - of_legs, "{what}: each disk is of one pool");
            pool.export().await.unwrap();
            let left = disks(&machine, |at| !is_split || !legs.contains(&at));
            assert_readable(&handle, &left.paths, &what).await;
            if at % 8 == 0 {
                zdb(&left, "written", &what);
            }
            if is_split {
                let gone = disks(&machine, |at| legs.contains(&at));
                let (_, report) = check(&handle, &gone.paths).await;
                assert_clean(&report, &format!("{what}: copy"));
                if at % 8 == 0 {
                    zdb(&gone, "copy", &what);
                }
                opened_as(&handle, &gone, "copy").await.export().await.unwrap();
            }
            is_over
        });
        if is_done {
            return (whole, split);
        }
    }
    unreachable!("a split ends")
}

#[test]
fn a_cut_at_any_write_leaves_each_disk_in_one_pool() {
    let (whole, split) = cut_at_each(&[(TopKind::Mirror, 2)], false);
    assert!(whole > 5 && split > 3, "{whole} as before, {split} split");
}

#[test]
fn a_cut_at_any_write_leaves_each_disk_of_several_mirrors_in_one_pool() {
    for (layout, has_log) in [(TWO, false), (LOGGED, true)] {
        let (whole, split) = cut_at_each(layout, has_log);
        assert!(whole > 5 && split > 3, "{layout:?}: {whole} as before, {split} split");
    }
}

/// The test above finds a pool that is split before it is marked.
#[test]
fn a_split_without_its_mark_is_found() {
    let mutant = cenote_taskq::mutant::Mutant::SplitUnmarked.name();
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["split::a_cut_at_any_write_leaves_each_disk_in_one_pool", "--exact"])
        .env_remove(cenote_testkit::PART_VARIABLE)
        .env(cenote_sim::MUTANT_VARIABLE, mutant)
        .output()
        .unwrap();
    assert!(!told.status.success(), "{mutant}: {}", String::from_utf8_lossy(&told.stdout));
}
