//! Pools whose devices hang: one that others make up for is left out, one that nothing makes up for is waited for, and nothing is
//! lost either way.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cenote_dmu::tx::Cost;
use cenote_format::ids::Txg;
use cenote_spa::{AddOptions, AuxSpec, Clock, Host, ImportOptions, Pool, TopKind, WriteOptions, find, import, open};
use cenote_taskq::sim::disk::{Fault, Request, RequestKind, SimDisk};
use cenote_taskq::{Handle, Instant, Runtime};
use cenote_vdev::tree::{HangStatus, VdevState, VdevStatus};

use cenote_sim::{Machine, disk};

use cenote_testkit::Part;

use crate::failing::{Load, Point, assert_whole, check_reopened, comment, disks_of};
use cenote_sim::written::blocks::{Written, check_blocks};
use cenote_sim::written::*;

const REDUNDANT: &[Layout] =
    &[&[(TopKind::Mirror, 2)], &[(TopKind::Raidz { parity: 1 }, 3)], &[(TopKind::Mirror, 2), (TopKind::Single, 1)]];

const POINTS: &[Point] = &[
    Point::Write(1),
    Point::Write(23),
    Point::Flush(1),
    Point::Flush(2),
    Point::Flush(3),
    Point::Label,
    Point::Uberblock,
];

/// How a device answers, from some request on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Late {
    /// It answers nothing.
    Never,
    /// It answers nothing for this long, and then everything.
    By(Duration),
}

/// Longer than a device may take, and longer than all that a test does meanwhile.
const LATE: Duration = Duration::from_secs(2000);
/// Longer than a device may take.
const SLOW: Duration = Duration::from_secs(400);

/// Has a disk hang from a point on.
fn arm(handle: &Handle, disk: &SimDisk, point: Point, late: Late) {
    let (mut writes, mut flushes) = (0, 0);
    hang_from(handle, disk, late, move |request| {
        writes += u64::from(request.kind == RequestKind::Write);
        flushes += u64::from(request.kind == RequestKind::Flush);
        point.is_met(request, writes, flushes)
    });
}

/// Has the disk hang that is read first, from that read on. Which one is known once it was.
fn arm_first_read(handle: &Handle, disks: &[Arc<SimDisk>], late: Late) -> Arc<OnceLock<usize>> {
    let first = Arc::new(OnceLock::new());
    for (index, disk) in disks.iter().enumerate() {
        let first = first.clone();
        hang_from(handle, disk, late, move |request| {
            request.kind == RequestKind::Read && *first.get_or_init(|| index) == index
        });
    }
    first
}

/// Has a disk hang from the first request on that meets a condition.
fn hang_from(handle: &Handle, disk: &SimDisk, late: Late, mut is_met: impl FnMut(&Request) -> bool + Send + 'static) {
    let handle = handle.clone();
    let mut since = None::<Instant>;
    disk.set_faults(move |request: &Request, _| {
        if is_met(request) {
            since.get_or_insert_with(|| handle.now());
        }
        match (since, late) {
            (None, _) => Fault::None,
            (Some(_), Late::Never) => Fault::Hang,
            (Some(since), Late::By(span)) if handle.now() < since + span => Fault::Delay(since + span - handle.now()),
            (Some(_), Late::By(_)) => Fault::None,
        }
    });
}

fn leaf<'a>(status: &'a VdevStatus, name: &str) -> &'a VdevStatus {
    fn find<'a>(status: &'a VdevStatus, name: &str) -> Option<&'a VdevStatus> {
        (status.name == name).then_some(status).or_else(|| status.children.iter().find_map(|child| find(child, name)))
    }
    find(status, name).unwrap()
}

fn hang(pool: &Pool) -> Option<HangStatus> {
    hang_of(pool, 0)
}

fn hang_of(pool: &Pool, disk: usize) -> Option<HangStatus> {
    leaf(&pool.devices().unwrap(), &format!("/disk{disk}")).hang
}

/// The pool as an import sees it: clean but for what the disk lacks and is known to lack.
async fn assert_disk_is_known_to_lack(handle: &Handle, machine: &Machine, what: &str) {
    let (mut pools, _) = find(handle, &machine.paths).await;
    let options = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    let pool = import(handle, pools.remove(0), &options).await.unwrap();
    assert!(!leaf(&pool.tree().status(), "/disk0").missed.is_empty(), "{what}: nothing is known to be missing");
    pool.close().await;
    let (_, report) = check(handle, &machine.paths).await;
    assert_whole(&report, what);
}

#[test]
fn a_device_that_hangs_is_left_out_where_others_have_the_same_and_is_known_to_lack_it() {
    for (at, layout) in REDUNDANT.iter().enumerate() {
        for (index, point) in POINTS.iter().enumerate() {
            let late = [Late::Never, Late::By(LATE)][(at + index) % 2];
            let (seed, what) = ((at * POINTS.len() + index) as u64, format!("{layout:?} {point:?} {late:?}"));
            if !Part::of_environment().has(seed) {
                continue;
            }
            let runtime = Runtime::simulated(seed);
            let handle = runtime.handle();
            let machine = machine_of(&runtime, disks_of(layout), slow());
            runtime.block_on(async {
                let pool = live(&handle, &machine, layout, small()).await;
                let load = Load::new(&pool).await;
                arm(&handle, &machine.disks[0], *point, late);
                let armed = handle.now();
                let writers = load.start(&handle, seed);
                comment(&pool, "while a disk hangs").await.unwrap();
                for writer in writers {
                    writer.await.unwrap();
                }
                pool.sync().await.unwrap();
                let told = pool.hung().await;
                assert!(told.message.starts_with("/disk0 hangs: it has not answered for 301 s"), "{what}: {told:?}");
                assert!(told.message.contains("goes on without it") && !told.is_fatal, "{what}: {told:?}");
                assert!(pool.suspended().is_none(), "{what}");
                let status = pool.devices().unwrap();
                assert_eq!(leaf(&status, "/disk0").state, VdevState::Faulted, "{what}");
                assert_eq!(status.state, VdevState::Degraded, "{what}");
                let silent = hang(&pool).and_then(|hang| hang.silent);
                assert!(silent.is_some_and(|silent| silent >= Duration::from_secs(300)), "{what}: {silent:?}");
                // Nothing is sent to it any more, whatever is written, nor once it has answered.
                let asked = machine.disks[0].counts();
                comment(&pool, "without it").await.unwrap();
                if let Late::By(span) = late {
                    handle.sleep_until(armed + span + SLOW).await;
                    assert_eq!(hang(&pool), Some(HangStatus { silent: None, is_given_up: true }), "{what}");
                }
                pool.resume().await.unwrap();
                comment(&pool, "still without it").await.unwrap();
                assert_eq!(machine.disks[0].counts(), asked, "{what}");
                let Load { head, ids, written, objects } = load;
                drop((head, objects));
                pool.export().await.unwrap();
                assert_eq!(machine.disks[0].counts(), asked, "{what}");
                machine.disks[0].clear_faults();
                let written: Vec<Written> = written.iter().map(|written| written.lock().clone()).collect();
                assert!(written.iter().all(|written| written.values().map(Vec::len).sum::<usize>() == 120), "{what}");
                let (_, report) = check(&handle, &machine.paths[1..]).await;
                assert!(report.errors.is_empty() && report.misuses.is_empty(), "{what}: {report}");
                assert_disk_is_known_to_lack(&handle, &machine, &what).await;
                check_reopened(&handle, &machine, &ids, &written, Txg(u64::MAX), &what).await;
            });
        }
    }
}

/// Regression: `online` and `clear` said that it is used again, and each request to it failed.
#[test]
fn a_device_that_hung_is_used_again_once_it_has_answered_and_not_before() {
    for is_cleared in [false, true] {
        let runtime = Runtime::simulated(u64::from(is_cleared));
        let handle = runtime.handle();
        let layout: Layout = &[(TopKind::Mirror, 2)];
        let machine = machine_of(&runtime, disks_of(layout), slow());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            arm(&handle, &machine.disks[0], Point::Write(1), Late::By(LATE));
            let armed = handle.now();
            comment(&pool, "while a disk hangs").await.unwrap();
            assert_eq!(leaf(&pool.devices().unwrap(), "/disk0").state, VdevState::Faulted);
            let guid = leaf(&pool.devices().unwrap(), "/disk0").guid;
            let asked = machine.disks[0].counts();
            for _ in 0..2 {
                let onlined = pool.online_device(guid, Vec::new()).await.unwrap();
                assert_eq!(onlined.state, VdevState::Faulted);
                assert!(onlined.reason.is_some_and(|reason| reason.contains("hangs")));
                comment(&pool, "still without it").await.unwrap();
            }
            assert_eq!(machine.disks[0].counts(), asked, "a device that has not answered is asked nothing");
            handle.sleep_until(armed + LATE + SLOW).await;
            if is_cleared {
                pool.clear_device(guid).await.unwrap();
            } else {
                assert!(pool.online_device(guid, Vec::new()).await.unwrap().state.is_readable());
            }
            comment(&pool, "with it").await.unwrap();
            pool.sync().await.unwrap();
            let status = pool.devices().unwrap();
            assert_ne!(machine.disks[0].counts(), asked);
            assert_eq!((leaf(&status, "/disk0").state, hang(&pool)), (VdevState::Degraded, None), "it lacks something");
            let (missed, errors) = (&leaf(&status, "/disk0").missed, leaf(&status, "/disk0").errors);
            assert!(!missed.is_empty(), "nothing has written what it lacks yet");
            comment(&pool, "once more").await.unwrap();
            let status = pool.devices().unwrap();
            assert_eq!((&leaf(&status, "/disk0").missed, leaf(&status, "/disk0").errors), (missed, errors));
            pool.export().await.unwrap();
            assert_disk_is_known_to_lack(&handle, &machine, "used again").await;
        });
    }
}

/// Regression: the spare stayed, since the device had never been closed.
#[test]
fn a_spare_goes_when_the_device_that_hung_is_online_again_and_has_everything() {
    let runtime = Runtime::simulated(3);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 3, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine.part(0..2), REDUNDANT[0], small()).await;
        let spares = vec![disk(&handle, &machine.paths[2]).await.unwrap()];
        let auxiliaries = AuxSpec { spares, caches: Vec::new() };
        pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() }).await.unwrap();
        arm(&handle, &machine.disks[0], Point::Write(1), Late::By(SLOW));
        let armed = handle.now();
        comment(&pool, "while a disk hangs").await.unwrap();
        let old = leaf(&pool.devices().unwrap(), "/disk0").guid;
        assert_eq!(pool.use_spares().await.unwrap().len(), 1);
        cenote_scan::attend(&pool);
        handle.sleep_until(armed + SLOW + SLOW).await;
        assert!(pool.online_device(old, Vec::new()).await.unwrap().state.is_readable());
        let mut count = 3;
        for _ in 0..100 {
            handle.sleep(Duration::from_secs(1)).await;
            pool.finish_replacing().await.unwrap();
            count = pool.devices().unwrap().leaves().len();
            if count == 2 {
                break;
            }
        }
        assert_eq!(count, 2, "{:?}", pool.devices());
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &machine.paths[..2]).await;
        assert_clean(&report, "without the spare");
    });
}

#[test]
fn a_device_that_hangs_and_nothing_makes_up_for_is_waited_for_and_the_pool_goes_on_when_it_answers() {
    for (seed, point) in (0..).zip(POINTS) {
        let what = format!("{point:?}");
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 1, slow());
        runtime.block_on(async {
            let pool = live(&handle, &machine, SINGLE, small()).await;
            let load = Load::new(&pool).await;
            arm(&handle, &machine.disks[0], *point, Late::By(SLOW));
            let writers = load.start(&handle, seed);
            let changed = {
                let pool = pool.clone();
                handle.spawn(cenote_taskq::Class::Issue, async move { comment(&pool, "while it hangs").await })
            };
            let (reason, _) = pool.failed().await;
            assert!(reason.contains("/disk0 hangs: it has not answered for 301 s"), "{what}: {reason}");
            assert!(pool.hung().await.message.contains("the pool waits for it"), "{what}");
            // The requests may still be done: the pool does not issue them twice.
            let error = pool.resume().await.unwrap_err().to_string();
            assert!(error.contains("/disk0 hangs"), "{what}: {error}");
            assert!(pool.suspended().is_some() && hang(&pool).is_some_and(|hang| !hang.is_given_up), "{what}");
            // It goes on by itself.
            assert!(pool.passed().await, "{what}");
            for writer in writers {
                writer.await.unwrap();
            }
            changed.await.unwrap().unwrap();
            assert!(pool.suspended().is_none() && hang(&pool).is_none(), "{what}");
            let Load { head, ids, written, objects } = load;
            drop((head, objects));
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &machine.paths).await;
            assert_clean(&report, &what);
            let written: Vec<Written> = written.iter().map(|written| written.lock().clone()).collect();
            assert!(written.iter().all(|written| written.values().map(Vec::len).sum::<usize>() == 120), "{what}");
            check_reopened(&handle, &machine, &ids, &written, Txg(u64::MAX), &what).await;
        });
    }
}

#[test]
fn a_read_that_hangs_costs_the_device_its_place_where_it_can_be_done_without_and_else_time() {
    for (layout, late) in [(REDUNDANT[0], Late::Never), (REDUNDANT[1], Late::Never), (SINGLE, Late::By(SLOW))] {
        let what = format!("{layout:?}");
        let runtime = Runtime::simulated(3);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, disks_of(layout), slow());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            let load = Load::new(&pool).await;
            for writer in load.start(&handle, 3) {
                writer.await.unwrap();
            }
            let Load { head, ids, written, objects } = load;
            drop((head, objects));
            pool.export().await.unwrap();
            let pool = reopened(&handle, &machine.paths, small()).await;
            let head = pool.open_head("written").await.unwrap();
            let first = arm_first_read(&handle, &machine.disks, late);
            for (id, written) in ids.iter().zip(&written) {
                let written = written.lock().clone();
                check_blocks(&head.objset().object(*id).await.unwrap(), &written, Txg(u64::MAX), &what).await;
            }
            handle.sleep(SLOW).await;
            assert!(pool.suspended().is_none(), "{what}");
            let disk = *first.get().expect("a disk was read");
            let is_given_up = hang_of(&pool, disk).is_some_and(|hang| hang.is_given_up);
            assert_eq!(is_given_up, layout != SINGLE, "{what} disk {disk}");
            // It is written to as ever, with or without the device.
            drop(head.begin(Cost::objects(1)).await.unwrap());
            comment(&pool, "after").await.unwrap();
            drop(head);
            pool.export().await.unwrap();
            machine.disks[disk].clear_faults();
            let (_, report) = check(&handle, &machine.paths).await;
            assert_whole(&report, &what);
        });
    }
}

#[test]
fn a_device_that_hangs_while_the_other_has_missed_something_is_waited_for() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, REDUNDANT[0], small()).await;
        let load = Load::new(&pool).await;
        // The second refuses one place, also when it is written once more: what that was is on the first alone.
        let mut refused = None;
        machine.disks[1].set_faults(move |request: &Request, _| match request.kind {
            RequestKind::Write if *refused.get_or_insert(request.offset_bytes) == request.offset_bytes => {
                Fault::Error(std::io::ErrorKind::BrokenPipe)
            }
            _ => Fault::None,
        });
        comment(&pool, "missed by one").await.unwrap();
        arm(&handle, &machine.disks[0], Point::Write(1), Late::By(SLOW));
        let writers = load.start(&handle, 1);
        let (reason, _) = pool.failed().await;
        assert!(reason.contains("/disk0 hangs"), "{reason}");
        assert!(pool.passed().await);
        for writer in writers {
            writer.await.unwrap();
        }
        let Load { head, ids, written, objects } = load;
        drop((head, objects));
        pool.export().await.unwrap();
        let written: Vec<Written> = written.iter().map(|written| written.lock().clone()).collect();
        check_reopened(&handle, &machine, &ids, &written, Txg(u64::MAX), "the other is stale").await;
    });
}

/// Three txgs of a mirror, one disk of which takes that long for each flush: whether nothing was said of it.
fn is_in_time(flush: Duration) -> bool {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, REDUNDANT[0], small()).await;
        let load = Load::new(&pool).await;
        machine.disks[0].set_faults(
            move |request: &Request, _| {
                if request.kind == RequestKind::Flush { Fault::Delay(flush) } else { Fault::None }
            },
        );
        for number in 0..3 {
            comment(&pool, &format!("slow {number}")).await.unwrap();
        }
        let is_in_time = hang(&pool).is_none() && pool.suspended().is_none();
        machine.disks[0].clear_faults();
        drop(load);
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &machine.paths).await;
        assert_whole(&report, "slow");
        is_in_time
    })
}

#[test]
fn requests_that_are_answered_in_time_are_not_late_however_many_there_are() {
    assert!(is_in_time(Duration::from_secs(290)));
}

#[test]
fn what_has_come_when_it_is_looked_at_again_is_not_late_as_after_the_process_was_stopped() {
    assert!(is_in_time(Duration::from_millis(300_500)));
    assert!(!is_in_time(Duration::from_millis(301_500)));
}

/// A mirror that is opened with these tunables, one disk of which hangs in a txg.
async fn hanging_with(handle: &Handle, machine: &Machine, set: &[(&str, &str)]) -> Pool {
    live(handle, machine, REDUNDANT[0], small()).await.export().await.unwrap();
    let (mut pools, _) = find(handle, &machine.paths).await;
    let tunables = cenote_spa::tunables::settings();
    let mut how = ImportOptions { cache_bytes: 16 << 20, force: true, tunables, ..ImportOptions::default() };
    set.iter().for_each(|(name, value)| how.tunables.set(name, value).unwrap());
    let options = WriteOptions { clock: Clock::Now, host: Host { id: 0, name: "here".into() }, check: true };
    let pool = open(handle, pools.remove(0), &how, options).await.unwrap().start(small()).await;
    arm(handle, &machine.disks[0], Point::Write(1), Late::By(SLOW));
    pool
}

#[test]
fn with_failmode_panic_a_hang_is_fatal_and_with_the_deadman_off_it_is_waited_for_in_silence() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, slow());
    runtime.block_on(async {
        let pool = hanging_with(&handle, &machine, &[("zfs_deadman_failmode", "panic")]).await;
        comment(&pool, "fatal").await.unwrap();
        assert!(pool.hung().await.is_fatal);
        drop(pool);
    });
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, slow());
    runtime.block_on(async {
        let pool = hanging_with(&handle, &machine, &[("zfs_deadman_enabled", "0")]).await;
        let begun = handle.now();
        comment(&pool, "waited for").await.unwrap();
        assert!(handle.now() - begun >= SLOW);
        assert!(hang(&pool).is_none() && pool.suspended().is_none());
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &machine.paths).await;
        assert_clean(&report, "waited for");
    });
}
