//! Pools whose devices have missed something: that is known, shown and written down whatever it was that they missed, and nothing
//! goes on without the one device that has it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_format::ids::Txg;
use cenote_spa::{Condition, ImportOptions, Pool, SpaError, TopKind, View, device_condition, find, import};
use cenote_taskq::sim::disk::{Fault, Latency, Request, RequestKind, SimDisk};
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_testkit::zdb::{Devices, program, run};
use cenote_vdev::tree::{VdevState, VdevStatus};

use cenote_sim::Machine;

use cenote_sim::written::blocks::change_head;
use cenote_sim::written::*;

const MIRROR: Layout = &[(TopKind::Mirror, 2)];

/// The pool as an import sees it that only reads.
pub(crate) async fn seen(handle: &Handle, paths: &[PathBuf]) -> Result<View, SpaError> {
    let (mut pools, skipped) = find(handle, paths).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let options = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    import(handle, pools.remove(0), &options).await
}

pub(crate) fn leaf<'a>(status: &'a VdevStatus, name: &str) -> &'a VdevStatus {
    fn find<'a>(status: &'a VdevStatus, name: &str) -> Option<&'a VdevStatus> {
        (status.name == name).then_some(status).or_else(|| status.children.iter().find_map(|child| find(child, name)))
    }
    find(status, name).unwrap()
}

/// Asserts that a leaf, and all above it, are degraded since it has missed these txgs at least.
fn assert_degraded(status: &VdevStatus, name: &str, txgs: &[Txg], what: &str) {
    let leaf = leaf(status, name);
    assert!(txgs.iter().all(|txg| leaf.missed.contains(*txg)), "{what}: {name} missed {} of {txgs:?}", leaf.missed);
    let states = [leaf.state, status.children[leaf.top.0 as usize].state, status.state];
    assert_eq!(states, [VdevState::Degraded; 3], "{what}");
    assert_eq!(device_condition(status), Some(Condition::MissedTxgs), "{what}");
}

/// Runs a test on a mirror of two, which is exported.
fn on_mirror(seed: u64, test: impl AsyncFnOnce(&Handle, &Machine)) {
    let runtime = Runtime::simulated(seed);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        make(&handle, options(machine.tops(&handle, MIRROR).await.unwrap(), 12)).await.export().await.unwrap();
        test(&handle, &machine).await;
    });
}

async fn change_and_sync(pool: &Pool, rng: &mut Rng) -> Txg {
    let head = pool.open_head("written").await.unwrap();
    change_head(pool, &head, rng).await.unwrap();
    pool.sync().await.unwrap()
}

/// Which of a disk's bytes a write goes to.
fn is_in_label(request: &Request, within: std::ops::Range<u64>) -> bool {
    const LABEL_BYTES: u64 = 256 << 10;
    let at = match request.offset_bytes {
        at if at < 2 * LABEL_BYTES => at % LABEL_BYTES,
        at if at >= DISK_BYTES - 2 * LABEL_BYTES => (at - (DISK_BYTES - 2 * LABEL_BYTES)) % LABEL_BYTES,
        _ => return false,
    };
    request.kind == RequestKind::Write && within.contains(&at)
}

/// Has a disk refuse writes of these parts of its labels, while that is switched on.
fn refuse_labels(disk: &SimDisk, within: std::ops::Range<u64>) -> Arc<AtomicBool> {
    let is_on = Arc::new(AtomicBool::new(false));
    let switch = is_on.clone();
    disk.set_faults(move |request, _| match switch.load(Ordering::SeqCst) && is_in_label(request, within.clone()) {
        true => Fault::Error(std::io::ErrorKind::BrokenPipe),
        false => Fault::None,
    });
    is_on
}

/// The uberblocks, and the configuration that goes with them.
const PARTS: [(&str, std::ops::Range<u64>); 2] =
    [("uberblocks", 128 << 10..256 << 10), ("configurations", 16 << 10..128 << 10)];

/// Which leaf did not take a commit was dropped: it passed for whole, and for an older pool once the other leaf was gone.
#[test]
fn a_leaf_that_did_not_take_a_commit_has_missed_its_txg() {
    for (part, within) in PARTS {
        on_mirror(7, async |handle, machine| {
            let mut rng = Rng::new(1);
            let pool = reopen(handle, &machine.paths).await.unwrap();
            let is_on = refuse_labels(&machine.disks[1], within);
            is_on.store(true, Ordering::SeqCst);
            // The first txg of a pool that was opened writes configurations too.
            let missed = change_and_sync(&pool, &mut rng).await;
            is_on.store(false, Ordering::SeqCst);
            let errors = leaf(&pool.tree().unwrap().status(), "/disk1").errors;
            assert!(errors.write > 0 && errors.read == 0 && errors.checksum == 0, "{part}: {errors:?}");
            assert_degraded(&pool.tree().unwrap().status(), "/disk1", &[missed], part);
            // It is in the dirty time log from the next txg on, whatever becomes of the process.
            change_and_sync(&pool, &mut rng).await;
            drop(pool);
            let pool = seen(handle, &machine.paths).await.unwrap();
            assert_degraded(&pool.tree().status(), "/disk1", &[missed], part);
            assert!(pool.notes().iter().any(|note| note.contains("/disk1 has missed txgs")), "{:?}", pool.notes());
            pool.close().await;
            let (_, report) = check(handle, &machine.paths).await;
            assert_clean(&report, part);
        });
    }
}

/// Of configurations alone that are old nothing is lost: the leaf has the newest uberblock, and all that it leads to.
#[test]
fn a_leaf_that_did_not_take_the_uberblock_of_an_export_is_known_for_it() {
    on_mirror(8, async |handle, machine| {
        let pool = reopen(handle, &machine.paths).await.unwrap();
        let missed = pool.txg();
        refuse_labels(&machine.disks[1], PARTS[0].1.clone()).store(true, Ordering::SeqCst);
        pool.export().await.unwrap();
        machine.disks[1].clear_faults();
        let pool = seen(handle, &machine.paths).await.unwrap();
        assert_degraded(&pool.tree().status(), "/disk1", &[missed], "exported");
        pool.close().await;
    });
}

/// The power goes after a commit that one leaf did not take: nothing is written down of it. It has all blocks, so the next commit
/// makes it whole; should it refuse that too, it is known for it.
#[test]
fn a_leaf_one_commit_behind_is_made_whole_by_the_next_or_known_for_refusing_that_too() {
    for refuses_again in [false, true] {
        on_mirror(9, async |handle, machine| {
            let mut rng = Rng::new(1);
            let pool = reopen(handle, &machine.paths).await.unwrap();
            change_and_sync(&pool, &mut rng).await;
            let is_on = refuse_labels(&machine.disks[1], PARTS[0].1.clone());
            is_on.store(true, Ordering::SeqCst);
            change_and_sync(&pool, &mut rng).await;
            drop(pool);
            is_on.store(refuses_again, Ordering::SeqCst);
            let pool = seen(handle, &machine.paths).await.unwrap();
            let note = "/disk1 did not take the last commit";
            assert!(pool.notes().iter().any(|line| line.contains(note)), "{:?}", pool.notes());
            pool.close().await;
            let pool = reopen(handle, &machine.paths).await.unwrap();
            let missed = change_and_sync(&pool, &mut rng).await;
            pool.export().await.unwrap();
            let pool = seen(handle, &machine.paths).await.unwrap();
            match refuses_again {
                true => assert_degraded(&pool.tree().status(), "/disk1", &[missed], "refused again"),
                false => assert_eq!(pool.tree().status().state, VdevState::Online, "{:?}", pool.notes()),
            }
            pool.close().await;
        });
    }
}

#[test]
fn a_commit_that_no_leaf_took_is_an_error_as_ever() {
    on_mirror(10, async |handle, machine| {
        let pool = reopen(handle, &machine.paths).await.unwrap();
        let last = Txg(pool.txg().0 - 1);
        for disk in &machine.disks {
            refuse_labels(disk, PARTS[0].1.clone()).store(true, Ordering::SeqCst);
        }
        let error = pool.sync().await.unwrap_err();
        assert!(error.to_string().contains("no device took the uberblock"), "{error}");
        drop(pool);
        let pool = seen(handle, &machine.paths).await.unwrap();
        assert_eq!(pool.txg(), last);
        pool.close().await;
    });
}

/// One leg did not take a block, the other could not make it stable: it is nowhere, though each leg alone looked dispensable.
#[test]
fn what_one_leg_has_not_and_the_other_cannot_flush_is_not_the_pool() {
    on_mirror(11, async |handle, machine| {
        let pool = reopen(handle, &machine.paths).await.unwrap();
        let head = pool.open_head("written").await.unwrap();
        change_head(&pool, &head, &mut Rng::new(3)).await.unwrap();
        let mut place = None;
        machine.disks[0].set_faults(move |request, _| {
            let is_write = request.kind == RequestKind::Write;
            let is_there = is_write && *place.get_or_insert(request.offset_bytes) == request.offset_bytes;
            if is_there { Fault::Error(std::io::ErrorKind::BrokenPipe) } else { Fault::None }
        });
        machine.disks[1].set_faults(|request, _| match request.kind {
            RequestKind::Flush => Fault::Error(std::io::ErrorKind::BrokenPipe),
            _ => Fault::None,
        });
        let error = pool.sync().await.unwrap_err();
        assert!(error.to_string().contains("could be flushed"), "{error}");
    });
}

/// A leaf put back from a copy knows nothing of what came after, and no log says so.
#[test]
fn a_leaf_put_back_from_an_old_copy_has_missed_what_came_since() {
    on_mirror(12, async |handle, machine| {
        let (copy, mut rng) = (machine.disks[1].image(), Rng::new(5));
        let pool = reopen(handle, &machine.paths).await.unwrap();
        let mut missed = Vec::new();
        for _ in 0..3 {
            missed.push(change_and_sync(&pool, &mut rng).await);
        }
        pool.export().await.unwrap();
        machine.disks[1].restore(&copy);
        let pool = seen(handle, &machine.paths).await.unwrap();
        assert_degraded(&pool.tree().status(), "/disk1", &missed, "as it is found");
        pool.close().await;
        // The next writer notes it in the dirty time log: the leaf's labels are new from then on.
        reopen(handle, &machine.paths).await.unwrap().export().await.unwrap();
        let pool = seen(handle, &machine.paths).await.unwrap();
        assert_degraded(&pool.tree().status(), "/disk1", &missed, "once it was written");
        pool.close().await;
    });
}

/// By its dirty time log OpenZFS resilvers a leaf when it imports the pool. Left out where `zdb` is not installed.
#[test]
fn zdb_finds_each_missed_txg_in_the_dirty_time_log() {
    if program("zdb").is_none() {
        eprintln!("left out: zdb is not installed");
        return;
    }
    for syncs in [0, 1, 4] {
        on_mirror(14, async |handle, machine| {
            let (pool, mut rng) = (reopen(handle, &machine.paths[1..]).await.unwrap(), Rng::new(6));
            let first = pool.txg();
            for _ in 0..syncs {
                change_and_sync(&pool, &mut rng).await;
            }
            // The export's txg is missed too.
            let end = pool.txg().0 + 1;
            pool.export().await.unwrap();
            let dir = tempfile::tempdir().unwrap();
            let devices = Devices::of(&machine.images_in(dir.path()).unwrap()).unwrap();
            let told = run(&devices, &["-ddd"], "written").unwrap();
            let wanted = format!("missing [{first},{end}) length {}", end - first.0);
            assert_eq!(told.status, Some(0), "{}", told.text);
            assert!(told.text.contains(&wanted) && told.text.matches("missing [").count() == 1, "{}", told.text);
        });
    }
}

/// A leaf was away, came back and was written on: the pool is not healthy, and the other leaf is all that has what was written
/// meanwhile. Without that one nothing is written, unless someone says so.
#[test]
fn nobody_writes_while_the_one_leaf_is_away_that_has_what_another_missed() {
    const RAIDZ: Layout = &[(TopKind::Raidz { parity: 1 }, 4)];
    const THREE: Layout = &[(TopKind::Mirror, 3)];
    let (mut refused, mut gone_on) = (0, 0);
    for layout in [MIRROR, THREE, RAIDZ] {
        let count: usize = layout.iter().map(|(_, count)| count).sum();
        let runtime = Runtime::simulated(13);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, count, Latency::default());
        let what = format!("{layout:?}");
        runtime.block_on(async {
            make(&handle, options(machine.tops(&handle, layout).await.unwrap(), 12)).await.export().await.unwrap();
            let mut rng = Rng::new(2);
            let pool = reopen(&handle, &machine.paths[1..]).await.unwrap();
            let missed = change_and_sync(&pool, &mut rng).await;
            pool.export().await.unwrap();
            let pool = seen(&handle, &machine.paths).await.unwrap();
            assert_degraded(&pool.tree().status(), "/disk0", &[missed], &what);
            pool.close().await;
            // Back again, and written for so long that nothing of the pool's own is from then.
            let pool = reopen(&handle, &machine.paths).await.unwrap();
            for _ in 0..4 {
                change_and_sync(&pool, &mut rng).await;
            }
            pool.export().await.unwrap();
            let pool = seen(&handle, &machine.paths).await.unwrap();
            assert_degraded(&pool.tree().status(), "/disk0", &[missed], &what);
            pool.close().await;
            let mut without = machine.paths.clone();
            without.remove(1);
            match reopen(&handle, &without).await.map(drop) {
                // Of three legs the third has all.
                Ok(()) => assert_eq!(layout, THREE),
                Err(SpaError::LeftAlone { missing, txgs, .. }) => {
                    refused += 1;
                    assert!(missing == ["/disk1"] && txgs.contains(&missed.to_string()), "{what}: {missing:?}: {txgs}");
                }
                Err(error) => {
                    assert!(error.to_string().contains("on a device that is missing: /disk1"), "{what}: {error}");
                    return;
                }
            }
            let pool = seen(&handle, &without).await.unwrap();
            let (status, lost) = (pool.tree().status(), layout != THREE);
            let wanted = if lost { Condition::LostTxgs } else { Condition::MissingDevice };
            assert_eq!(device_condition(&status), Some(wanted), "{what}");
            assert_eq!(status.children[0].missed.contains(missed), lost, "{what}: {}", status.children[0].missed);
            pool.close().await;
            // Someone who knows better says so.
            let (mut pools, _) = find(&handle, &without).await;
            let how =
                ImportOptions { cache_bytes: 16 << 20, force: true, missing_tops: true, ..ImportOptions::default() };
            match cenote_spa::open(&handle, pools.remove(0), &how, write_options()).await {
                Ok(pool) => {
                    gone_on += 1;
                    pool.export().await.unwrap();
                }
                // The pool's own metadata may be among the lost blocks.
                Err(error) => assert!(!matches!(error, SpaError::LeftAlone { .. }), "{what}: {error}"),
            }
        });
    }
    assert!(refused > 0, "nothing was refused for it");
    assert!(gone_on > 0, "nobody could go on");
}
