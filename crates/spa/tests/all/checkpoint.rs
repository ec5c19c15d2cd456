//! Goal: a checkpoint keeps the whole pool as it was, whatever is written after it; its space comes back when it is discarded; the pool can go back to
//! it; and a power cut leaves each step done or not done. Method: random changes on simulated disks, verified after each txg and read as of the
//! checkpoint, cuts at every write of each step, and `zdb`.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_format::ids::{ObjectId, Txg};
use cenote_sim::Machine;
use cenote_spa::{ImportOptions, Pool, SpaError, TopKind, View, find, import, open};
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Class, Handle, Rng, Runtime};

use cenote_sim::written::blocks::change_head;
use cenote_sim::written::*;

use crate::offline::{assert_refused, stop_at, zdb};

const MIRROR: Layout = &[(TopKind::Mirror, 2)];
const RAIDZ: Layout = &[(TopKind::Raidz { parity: 1 }, 3)];
/// More than [`change_head`] writes.
const OBJECT_BYTES: usize = 1_300_000;

/// The contents of the head's objects, as hashes.
type Contents = BTreeMap<u64, u64>;

async fn contents(view: &View) -> Contents {
    let dsl = view.dsl();
    let dataset = dsl.dataset("written").await.unwrap();
    let objset = dsl.open(&dataset).await.unwrap().unwrap();
    let mut found = Contents::new();
    for id in 100..200 {
        if let Ok(object) = objset.object(ObjectId(id)).await {
            let mut hasher = DefaultHasher::new();
            object.read(0, OBJECT_BYTES).await.unwrap().hash(&mut hasher);
            found.insert(id, hasher.finish());
        }
    }
    found
}

fn at_checkpoint() -> ImportOptions {
    ImportOptions { cache_bytes: 16 << 20, force: true, checkpoint: true, ..ImportOptions::default() }
}

/// The pool as of its checkpoint, to be read.
async fn as_kept(handle: &Handle, paths: &[PathBuf]) -> Result<View, SpaError> {
    let (mut pools, _) = find(handle, paths).await;
    import(handle, pools.remove(0), &at_checkpoint()).await
}

/// The pool, taken back to its checkpoint.
async fn rewound(handle: &Handle, paths: &[PathBuf]) -> Result<Pool, SpaError> {
    let (mut pools, _) = find(handle, paths).await;
    open(handle, pools.remove(0), &at_checkpoint(), write_options()).await
}

async fn change(pool: &Pool, rng: &mut Rng) -> Txg {
    let head = pool.open_head("written").await.unwrap();
    change_head(pool, head.head(), rng).await.unwrap();
    drop(head);
    pool.sync().await.unwrap()
}

/// A new pool with some objects.
async fn filled(handle: &Handle, machine: &Machine, layout: Layout, rng: &mut Rng) -> Pool {
    make(handle, options(machine.tops(handle, layout).await.unwrap(), 12)).await.export().await.unwrap();
    let pool = reopen(handle, &machine.paths).await.unwrap();
    for _ in 0..6 {
        change(&pool, rng).await;
    }
    pool
}

/// Has `zdb` look at the state that is kept.
fn zdb_of_kept(machine: &Machine, what: &str) {
    zdb(machine, what);
    if cenote_testkit::zdb::program("zdb").is_some() {
        let dir = tempfile::tempdir().unwrap();
        let devices = cenote_testkit::zdb::Devices::of(&machine.images_in(dir.path()).unwrap()).unwrap();
        let told = cenote_testkit::zdb::run(&devices, &["-k"], "written").unwrap();
        assert_eq!(told.status, Some(0), "{what}: {}", told.text);
    }
}

const KEPT: &str = "checkpoint::a_checkpoint_keeps_the_pool_and_its_space_comes_back";

#[test]
fn a_checkpoint_keeps_the_pool_and_its_space_comes_back() {
    for (seed, layout) in [SINGLE, MIRROR, RAIDZ].into_iter().enumerate() {
        let runtime = Runtime::simulated(seed as u64);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, layout[0].1, Latency::default());
        runtime.block_on(async {
            let paths = &machine.paths;
            let mut rng = Rng::new(seed as u64);
            let mut pool = filled(&handle, &machine, layout, &mut rng).await;
            assert_refused(pool.discard_checkpoint().await, "checkpoint does not exist");
            let kept = pool.take_checkpoint().await.unwrap();
            assert_refused(pool.take_checkpoint().await, "checkpoint exists");
            pool.sync().await.unwrap();
            let expected = contents(&as_kept(&handle, paths).await.unwrap()).await;
            assert!(!expected.is_empty());
            for round in 0..9 {
                let what = format!("{layout:?} round {round}");
                change(&pool, &mut rng).await;
                let (_, report) = check(&handle, paths).await;
                assert_clean(&report, &what);
                let view = as_kept(&handle, paths).await.unwrap();
                assert_eq!(view.txg(), kept);
                assert!(contents(&view).await == expected, "{what}: a block of the checkpoint was written over");
                drop(view);
                match round % 3 {
                    // A power cut at the end of a txg.
                    1 => drop(pool),
                    2 => pool.export().await.unwrap(),
                    _ => continue,
                }
                zdb_of_kept(&machine, &what);
                pool = reopen(&handle, paths).await.unwrap();
            }
            let left = |view: View| async move { view.space().await.unwrap().figures().checkpoint_bytes };
            assert!(left(read(&handle, paths).await).await > 0, "something is kept");
            pool.peek(|syncer| syncer.set_async_block_max_blocks(7)).await.unwrap();
            pool.discard_checkpoint().await.unwrap();
            assert_refused(pool.discard_checkpoint().await, "currently discarding checkpoint");
            assert_refused(pool.take_checkpoint().await, "currently discarding checkpoint");
            let mut rounds = 0;
            while pool.peek(|syncer| syncer.is_discarding()).await.unwrap() {
                pool.peek(|syncer| syncer.set_async_block_max_blocks(7)).await.unwrap();
                change(&pool, &mut rng).await;
                let what = format!("{layout:?} discarding, {rounds}");
                let (_, report) = check(&handle, paths).await;
                assert_clean(&report, &what);
                rounds += 1;
                if rounds % 4 == 2 {
                    drop(pool);
                    if rounds == 2 {
                        zdb(&machine, &what);
                    }
                    pool = reopen(&handle, paths).await.unwrap();
                }
            }
            assert!(rounds > 2, "{rounds} txgs");
            pool.sync().await.unwrap();
            assert!(as_kept(&handle, paths).await.is_err(), "there is none any more");
            assert_eq!(left(read(&handle, paths).await).await, 0);
            pool.take_checkpoint().await.unwrap();
            pool.export().await.unwrap();
            zdb_of_kept(&machine, "another one");
        });
    }
}

/// The test above finds the bug that it is about.
#[test]
fn a_block_of_the_checkpoint_that_is_freed_is_found() {
    let mutant = cenote_taskq::mutant::Mutant::CheckpointFreed.name();
    let told = std::process::Command::new(std::env::current_exe().unwrap())
        .args([KEPT, "--exact", "--nocapture"])
        .env_remove(cenote_testkit::PART_VARIABLE)
        .env(cenote_sim::MUTANT_VARIABLE, mutant)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(!told.status.success() && text.contains("a_checkpoint_keeps_the_pool"), "{mutant}: {text}");
    assert!(!text.contains("64-bit integer"), "{mutant}: {text}");
}

#[test]
fn a_pool_goes_back_to_its_checkpoint() {
    for (seed, layout) in [SINGLE, MIRROR, RAIDZ].into_iter().enumerate() {
        let runtime = Runtime::simulated(seed as u64);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, layout[0].1, Latency::default());
        runtime.block_on(async {
            let (what, paths) = (format!("{layout:?}"), &machine.paths);
            let mut rng = Rng::new(seed as u64);
            let pool = filled(&handle, &machine, layout, &mut rng).await;
            pool.take_checkpoint().await.unwrap();
            let mut last = Txg(0);
            for _ in 0..6 {
                last = change(&pool, &mut rng).await;
            }
            let expected = contents(&as_kept(&handle, paths).await.unwrap()).await;
            assert!(contents(&read(&handle, paths).await).await != expected);
            pool.export().await.unwrap();
            let pool = rewound(&handle, paths).await.unwrap();
            assert!(pool.txg() > last, "{what}: txgs go on");
            // It is over before a txg is written.
            drop(pool);
            assert!(contents(&read(&handle, paths).await).await == expected, "{what}");
            let (_, report) = check(&handle, paths).await;
            assert_clean(&report, &what);
            zdb(&machine, &what);
            assert!(rewound(&handle, paths).await.is_err(), "{what}: the checkpoint is the pool now, and is none");
            let pool = reopen(&handle, paths).await.unwrap();
            for _ in 0..4 {
                change(&pool, &mut rng).await;
                let (_, report) = check(&handle, paths).await;
                assert_clean(&report, &what);
            }
            pool.take_checkpoint().await.unwrap();
            pool.export().await.unwrap();
            zdb_of_kept(&machine, &what);
        });
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take,
    Discard,
    Rewind,
}

/// The pool is as before or after a step, whole, whatever write the power goes at.
#[test]
fn a_cut_at_any_write_leaves_a_step_done_or_not_done() {
    for step in [Step::Take, Step::Discard, Step::Rewind] {
        let (mut as_before, mut as_after) = (0, 0);
        for at in 0.. {
            let what = format!("{step:?} cut at {at}");
            let runtime = Runtime::simulated(at);
            let handle = runtime.handle();
            let machine = machine_of(&runtime, 2, slow());
            let is_done = runtime.block_on(async {
                let paths = &machine.paths;
                let mut rng = Rng::new(5);
                let pool = filled(&handle, &machine, MIRROR, &mut rng).await;
                let mut kept = Contents::new();
                if !matches!(step, Step::Take) {
                    pool.take_checkpoint().await.unwrap();
                    change(&pool, &mut rng).await;
                    change(&pool, &mut rng).await;
                    kept = contents(&as_kept(&handle, paths).await.unwrap()).await;
                }
                pool.sync().await.unwrap();
                let before = contents(&read(&handle, paths).await).await;
                let pool = match step {
                    Step::Rewind => {
                        pool.export().await.unwrap();
                        None
                    }
                    _ => Some(pool),
                };
                let count = stop_at(&machine, at);
                let (task, places, in_use) = (handle.clone(), paths.clone(), pool.clone());
                let changing = handle.spawn(Class::Issue, async move {
                    match (step, in_use) {
                        (Step::Take, Some(pool)) => {
                            pool.take_checkpoint().await?;
                            pool.sync().await.map(drop)
                        }
                        (_, Some(pool)) => {
                            pool.discard_checkpoint().await?;
                            pool.sync().await?;
                            pool.sync().await.map(drop)
                        }
                        (_, None) => rewound(&task, &places).await?.sync().await.map(drop),
                    }
                });
                let made = handle.timeout(Duration::from_secs(30), changing).await;
                let is_over = matches!(made, Some(Ok(Ok(())))) && count.load(Ordering::SeqCst) <= at;
                machine.disks.iter().for_each(|disk| disk.clear_faults());
                let how = [Crash::LoseAll, Crash::KeepAll, Crash::Random][at as usize % 3];
                cut(&handle, &machine, how).await;
                drop(pool);
                let now = contents(&read(&handle, paths).await).await;
                let view = as_kept(&handle, paths).await;
                let has_checkpoint = view.is_ok();
                if let Ok(view) = view {
                    let found = contents(&view).await;
                    assert!(found == if matches!(step, Step::Take) { before.clone() } else { kept.clone() }, "{what}");
                }
                let is_after = match step {
                    Step::Take => has_checkpoint,
                    Step::Discard => !has_checkpoint,
                    Step::Rewind => {
                        assert!(has_checkpoint == (now == before), "{what}");
                        now == kept
                    }
                };
                let right = if matches!(step, Step::Rewind) && is_after { &kept } else { &before };
                assert!(now == *right, "{what}: it is neither as before nor as after");
                as_before += u32::from(!is_after);
                as_after += u32::from(is_after);
                let (_, report) = check(&handle, paths).await;
                assert_clean(&report, &what);
                let pool = reopen(&handle, paths).await.unwrap();
                change(&pool, &mut rng).await;
                pool.export().await.unwrap();
                let (_, report) = check(&handle, paths).await;
                assert_clean(&report, &what);
                is_over
            });
            if is_done {
                break;
            }
        }
        assert!(as_before > 0 && as_after > 2, "{step:?}: {as_before} as before, {as_after} as after");
    }
}

/// Changes of vdevs are refused while there is a checkpoint, and made when it is gone.
#[test]
fn vdevs_stay_as_they_are_while_there_is_a_checkpoint() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 3, Latency::default());
    runtime.block_on(async {
        let used = machine.part(0..2);
        let mut rng = Rng::new(3);
        let pool = filled(&handle, &used, MIRROR, &mut rng).await;
        pool.take_checkpoint().await.unwrap();
        let leaf = crate::offline::leaf_of(&pool, "/disk0").await;
        assert_refused(pool.detach_device(leaf).await, "checkpoint exists");
        assert_refused(pool.remove_vdev(leaf).await, "checkpoint exists");
        assert_refused(pool.reguid(cenote_format::ids::Guid(77)).await, "checkpoint exists");
        pool.discard_checkpoint().await.unwrap();
        pool.sync().await.unwrap();
        pool.sync().await.unwrap();
        pool.detach_device(leaf).await.unwrap();
        pool.export().await.unwrap();
    });
}

/// A removal does not begin while there is a checkpoint. A pool with a removed vdev takes one, which keeps blocks of that vdev where they are now, and can
/// be gone back to.
#[test]
fn a_checkpoint_keeps_what_a_removed_vdev_had() {
    let runtime = Runtime::simulated(90);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 4, Latency::default());
    let mut rng = Rng::new(90);
    runtime.block_on(async {
        let pool = live(&handle, &machine, &[(TopKind::Single, 1); 4], small()).await;
        for _ in 0..6 {
            change(&pool, &mut rng).await;
        }
        let guid = crate::offline::leaf_of(&pool, "/disk1").await;
        pool.take_checkpoint().await.unwrap();
        assert_refused(pool.remove_vdev(guid).await, "checkpoint");
        pool.discard_checkpoint().await.unwrap();
        for _ in 0..60 {
            handle.sleep(Duration::from_secs(1)).await;
            if !pool.peek(|syncer| syncer.is_discarding()).await.unwrap() {
                break;
            }
        }
        pool.remove_vdev(guid).await.unwrap();
        for _ in 0..200 {
            handle.sleep(Duration::from_millis(50)).await;
            if pool.removal().await.unwrap().is_some_and(|removal| removal.state == 2) {
                break;
            }
        }
        for _ in 0..3 {
            change(&pool, &mut rng).await;
        }
        pool.take_checkpoint().await.unwrap();
        assert_refused(pool.remove_vdev(crate::offline::leaf_of(&pool, "/disk2").await).await, "checkpoint");
        pool.export().await.unwrap();
        let mut left = machine.part(0..1);
        for at in 2..4 {
            left.disks.push(machine.disks[at].clone());
            left.paths.push(machine.paths[at].clone());
        }
        let paths = &left.paths;
        let expected = contents(&as_kept(&handle, paths).await.unwrap()).await;
        assert!(!expected.is_empty());
        for round in 0..6 {
            let what = format!("round {round}");
            let pool = reopen(&handle, paths).await.unwrap();
            change(&pool, &mut rng).await;
            change(&pool, &mut rng).await;
            if round % 2 == 0 {
                pool.export().await.unwrap();
            } else {
                drop(pool);
            }
            let (_, report) = check(&handle, paths).await;
            assert_clean(&report, &what);
            assert!(contents(&as_kept(&handle, paths).await.unwrap()).await == expected, "{what}");
            zdb_of_kept(&left, &what);
        }
        let images = left.images();
        let pool = rewound(&handle, paths).await.unwrap();
        drop(pool);
        assert!(contents(&read(&handle, paths).await).await == expected);
        zdb(&left, "rewound");
        let pool = reopen(&handle, paths).await.unwrap();
        change(&pool, &mut rng).await;
        pool.export().await.unwrap();
        zdb(&left, "rewound and written");
        left.restore(&images);
        let pool = reopen(&handle, paths).await.unwrap();
        pool.discard_checkpoint().await.unwrap();
        while pool.peek(|syncer| syncer.is_discarding()).await.unwrap() {
            change(&pool, &mut rng).await;
        }
        pool.export().await.unwrap();
        let (_, report) = check(&handle, paths).await;
        assert_clean(&report, "discarded");
        zdb(&left, "discarded");
    });
}
