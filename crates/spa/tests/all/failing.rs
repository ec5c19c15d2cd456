//! Pools whose devices fail amid a txg's sync, wherever that is: nothing is lost when they come back, and whoever does not wait for
//! that finds the pool as of the last txg.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_dmu::Object;
use cenote_dmu::tx::{Cost, TxError};
use cenote_format::ids::{ObjectId, Txg};
use cenote_scan::VerifyReport;
use cenote_spa::{FailMode, ImportOptions, LiveHead, Pool, PropertyValue, TopKind, find, import};
use cenote_taskq::sim::disk::{Crash, Fault, Latency, Request, RequestKind, SimDiskOptions};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Handle, Runtime};
use cenote_testkit::Part;

use cenote_sim::Machine;

use cenote_sim::written::blocks::{Written, check_blocks, make_objects, write_blocks};
use cenote_sim::written::files::make_on;
use cenote_sim::written::*;

/// Layouts, and how many of the disks fail.
const CASES: &[(Layout, usize)] = &[
    (SINGLE, 1),
    (&[(TopKind::Mirror, 2)], 2),
    (&[(TopKind::Raidz { parity: 1 }, 3)], 2),
    (&[(TopKind::Single, 1), (TopKind::Mirror, 2)], 1),
];

/// The request with which the failure begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Point {
    /// The so many-th write.
    Write(u64),
    /// The so many-th flush.
    Flush(u64),
    /// The first write to a label's configuration.
    Label,
    /// The first write of an uberblock.
    Uberblock,
}

impl Point {
    /// Whether a request is the one: so many writes and flushes there were, with it.
    pub(crate) fn is_met(self, request: &Request, writes: u64, flushes: u64) -> bool {
        let within =
            |range: std::ops::Range<u64>| request.kind == RequestKind::Write && range.contains(&request.offset_bytes);
        match self {
            Self::Write(number) => writes == number,
            Self::Flush(number) => flushes == number,
            Self::Label => within(16 << 10..128 << 10),
            Self::Uberblock => within(128 << 10..256 << 10),
        }
    }
}

const POINTS: &[Point] = &[
    Point::Write(1),
    Point::Write(7),
    Point::Write(23),
    Point::Write(60),
    Point::Flush(1),
    Point::Flush(2),
    Point::Flush(3),
    Point::Label,
    Point::Uberblock,
];

/// How the disks fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// They answer everything with an error.
    Error,
    /// Writes end half-way, and so do reads.
    Short,
    /// They lose what was in their caches.
    LosesCache,
}

const HOWS: [How; 3] = [How::Error, How::Short, How::LosesCache];

/// Has disks fail from a point on, all at once, until it is set back.
fn arm(machine: &Machine, victims: usize, point: Point, how: How) -> Arc<AtomicBool> {
    let is_down = Arc::new(AtomicBool::new(false));
    let counts = Arc::new(Mutex::new((0, 0)));
    for disk in &machine.disks[..victims] {
        let (is_down, counts) = (is_down.clone(), counts.clone());
        let mut was_down = false;
        disk.set_faults(move |request: &Request, _| {
            let (writes, flushes) = &mut *counts.lock();
            *writes += u64::from(request.kind == RequestKind::Write);
            *flushes += u64::from(request.kind == RequestKind::Flush);
            if point.is_met(request, *writes, *flushes) && !was_down {
                is_down.store(true, Ordering::SeqCst);
            }
            was_down |= is_down.load(Ordering::SeqCst);
            match (is_down.load(Ordering::SeqCst), how, request.kind) {
                (false, ..) => Fault::None,
                (true, How::Short, RequestKind::Read | RequestKind::Write) => Fault::Short,
                (true, ..) => Fault::Error(std::io::ErrorKind::BrokenPipe),
            }
        });
    }
    is_down
}

pub(crate) struct Load {
    pub(crate) head: LiveHead,
    pub(crate) objects: Vec<Object>,
    pub(crate) ids: Vec<ObjectId>,
    pub(crate) written: Vec<Arc<Mutex<Written>>>,
}

impl Load {
    pub(crate) async fn new(pool: &Pool) -> Self {
        let head = pool.open_head("written").await.unwrap();
        let objects = make_objects(&head, 3).await;
        let ids = objects.iter().map(Object::id).collect();
        pool.sync().await.unwrap();
        Self { head, written: objects.iter().map(|_| Arc::default()).collect(), objects, ids }
    }

    pub(crate) fn start(&self, handle: &Handle, seed: u64) -> Vec<cenote_taskq::Join<()>> {
        let each = self.objects.iter().zip(&self.written).enumerate();
        let works = each.map(|(at, (object, written))| {
            write_blocks(self.head.clone(), object.clone(), seed << 8 | at as u64, 120, written.clone())
        });
        works.map(|work| handle.spawn(Class::Issue, work)).collect()
    }
}

pub(crate) async fn check_reopened(
    handle: &Handle,
    machine: &Machine,
    ids: &[ObjectId],
    written: &[Written],
    at: Txg,
    what: &str,
) {
    let pool = reopened(handle, &machine.paths, small()).await;
    let head = pool.open_head("written").await.unwrap();
    for (id, written) in ids.iter().zip(written) {
        let object = head.objset().object(*id).await.unwrap();
        check_blocks(&object, written, at, what).await;
    }
    drop(head);
    pool.export().await.unwrap();
}

/// One way to fail at one point, on one layout or another.
struct Case {
    seed: u64,
    layout: Layout,
    victims: usize,
    point: Point,
    how: How,
    what: String,
}

/// Each way at each point, each on a machine of its own.
fn each_case(run: impl AsyncFn(&Handle, &Machine, Case)) {
    let part = Part::of_environment();
    for (at, (layout, victims)) in CASES.iter().enumerate() {
        for (index, point) in POINTS.iter().enumerate() {
            let (seed, how) = ((at * POINTS.len() + index) as u64, HOWS[(at + index) % HOWS.len()]);
            if !part.has(seed) {
                continue;
            }
            let what = format!("seed {seed}: {layout:?} {point:?} {how:?}");
            let case = Case { seed, layout, victims: *victims, point: *point, how, what };
            let runtime = Runtime::simulated(seed);
            let machine = machine_of(&runtime, disks_of(layout), slow());
            runtime.block_on(run(&runtime.handle(), &machine, case));
        }
    }
}

/// The disks do as they are told again.
fn mend(machine: &Machine, is_down: &AtomicBool) {
    is_down.store(false, Ordering::SeqCst);
    machine.disks.iter().for_each(|disk| disk.clear_faults());
}

/// As [`assert_clean`], but that a disk may lack what its dirty time log says it lacks: it failed the flush that another did.
pub(crate) fn assert_whole(report: &VerifyReport, what: &str) {
    let is_known = |bad: &str| bad.contains("stale (device missed the write)");
    let is_behind = !report.bad_copies.is_empty() && report.bad_copies.iter().all(|bad| is_known(&bad.to_string()));
    if is_behind {
        assert!(report.errors.is_empty() && report.misuses.is_empty(), "{what}: {report}");
        assert!(report.leaked_bytes == 0 && report.problems.is_empty(), "{what}: {report}");
    } else {
        assert_clean(report, what);
    }
}

pub(crate) fn disks_of(layout: Layout) -> usize {
    layout.iter().map(|(_, count)| count).sum()
}

/// Changes what labels say, so that the next txg writes them.
pub(crate) async fn comment(pool: &Pool, text: &str) -> Result<(), cenote_spa::SpaError> {
    let value = PropertyValue::Text(text.to_owned());
    pool.change(move |writer| Box::pin(async move { writer.set_pool_property("comment", Some(&value)).await })).await
}

#[test]
fn wherever_devices_fail_all_goes_on_when_they_are_back_and_nothing_is_lost() {
    each_case(async |handle, machine, Case { seed, layout, victims, point, how, what }| {
        let pool = live(handle, machine, layout, small()).await;
        let load = Load::new(&pool).await;
        let is_down = arm(machine, victims, point, how);
        let writers = load.start(handle, seed);
        let changed = {
            let pool = pool.clone();
            handle.spawn(Class::Issue, async move { comment(&pool, "while disks fail").await })
        };
        let (reason, mode) = pool.failed().await;
        assert!(!reason.is_empty() && mode == FailMode::Wait, "{what}");
        handle.sleep(Duration::from_millis(50)).await;
        let synced = pool.txgs().synced_txg();
        // As long as they fail nothing comes of it, however often it is tried.
        for _ in 0..2 {
            let error = pool.resume().await.unwrap_err();
            assert!(error.to_string().contains("suspended") || error.to_string().contains("write"), "{what}: {error}");
            handle.sleep(Duration::from_secs(60)).await;
            assert!(pool.suspended().is_some(), "{what}");
            assert_eq!(pool.txgs().synced_txg(), synced, "{what}");
        }
        if how == How::LosesCache {
            machine.disks[..victims].iter().for_each(|disk| disk.crash(Crash::Random));
            machine.disks[..victims].iter().for_each(|disk| disk.power_on());
        }
        mend(machine, &is_down);
        pool.resume().await.unwrap();
        for writer in writers {
            writer.await.unwrap();
        }
        changed.await.unwrap().unwrap();
        assert!(pool.suspended().is_none(), "{what}");
        let Load { head, ids, written, objects } = load;
        drop((head, objects));
        pool.export().await.unwrap();
        let (_, report) = check(handle, &machine.paths).await;
        assert_whole(&report, &what);
        let written: Vec<Written> = written.iter().map(|written| written.lock().clone()).collect();
        assert!(written.iter().all(|written| written.values().map(Vec::len).sum::<usize>() == 120), "{what}");
        check_reopened(handle, machine, &ids, &written, Txg(u64::MAX), &what).await;
    });
}

#[test]
fn a_pool_that_is_cut_while_it_is_suspended_is_as_of_the_last_txg() {
    each_case(async |handle, machine, Case { seed, layout, victims, point, how, what }| {
        let pool = live(handle, machine, layout, small()).await;
        let load = Load::new(&pool).await;
        let is_down = arm(machine, victims, point, how);
        drop(load.start(handle, seed));
        let changing = pool.clone();
        handle.detach(Class::Issue, async move { drop(comment(&changing, "never").await) });
        pool.failed().await;
        handle.sleep(Duration::from_millis(50)).await;
        let promised = pool.txgs().synced_txg();
        machine.disks.iter().for_each(|disk| disk.crash(Crash::Random));
        mend(machine, &is_down);
        machine.disks.iter().for_each(|disk| disk.power_on());
        let (txg, report) = check(handle, &machine.paths).await;
        assert!(txg >= promised, "{what}: {promised} was promised, {txg} is there");
        assert_clean(&report, &what);
        let written: Vec<Written> = load.written.iter().map(|written| written.lock().clone()).collect();
        check_reopened(handle, machine, &load.ids, &written, txg, &what).await;
    });
}

/// A pool on one disk that is suspended, with a load that waits in it.
async fn suspended(handle: &Handle, machine: &Machine, failmode: u64) -> (Pool, Load, Arc<AtomicBool>) {
    let pool = live(handle, machine, SINGLE, small()).await;
    let number = PropertyValue::Number(failmode);
    let set =
        pool.change(move |writer| Box::pin(async move { writer.set_pool_property("failmode", Some(&number)).await }));
    set.await.unwrap();
    let load = Load::new(&pool).await;
    // With the first write after some of the load is in memory: before that is on the disk, and perhaps nowhere else.
    let is_down = Arc::new(AtomicBool::new(false));
    let (down, written) = (is_down.clone(), load.written.clone());
    let mut was_down = false;
    machine.disks[0].set_faults(move |request: &Request, _| {
        if !was_down && request.kind == RequestKind::Write && written.iter().any(|some| !some.lock().is_empty()) {
            was_down = true;
            down.store(true, Ordering::SeqCst);
        }
        if down.load(Ordering::SeqCst) { Fault::Error(std::io::ErrorKind::BrokenPipe) } else { Fault::None }
    });
    drop(load.start(handle, 1));
    pool.failed().await;
    handle.sleep(Duration::from_millis(50)).await;
    (pool, load, is_down)
}

#[test]
fn with_failmode_continue_writers_are_refused_readers_are_not_and_what_was_dirty_is_written() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, slow());
    runtime.block_on(async {
        let (pool, load, is_down) = suspended(&handle, &machine, 1).await;
        assert_eq!(pool.failed().await.1, FailMode::Continue);
        let refused = load.head.begin(Cost::objects(1)).await.unwrap_err();
        assert!(matches!(refused, TxError::Suspended(_)), "{refused}");
        assert!(pool.sync().await.unwrap_err().to_string().contains("suspended"));
        assert!(comment(&pool, "no").await.unwrap_err().to_string().contains("suspended"));
        // Data in memory can be read as ever.
        let written: Vec<Written> = load.written.iter().map(|written| written.lock().clone()).collect();
        for (object, written) in load.objects.iter().zip(&written) {
            check_blocks(object, written, Txg(u64::MAX), "suspended").await;
        }
        assert!(written.iter().any(|written| !written.is_empty()));
        mend(&machine, &is_down);
        pool.resume().await.unwrap();
        pool.sync().await.unwrap();
        let Load { head, ids, objects, .. } = load;
        drop((head, objects));
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &machine.paths).await;
        assert_clean(&report, "continued");
        check_reopened(&handle, &machine, &ids, &written, Txg(u64::MAX), "continued").await;
    });
}

#[test]
fn with_failmode_panic_whoever_has_the_pool_is_told_to_end() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, slow());
    runtime.block_on(async {
        let (pool, _load, _) = suspended(&handle, &machine, 2).await;
        let (reason, mode) = pool.failed().await;
        assert_eq!(mode, FailMode::Panic);
        assert!(reason.contains("/disk0") && reason.contains("write error"), "{reason}");
        // It is kept in the pool.
        machine.disks[0].clear_faults();
        drop(pool);
        let again = reopened(&handle, &machine.paths, small()).await;
        machine.disks[0].set_faults(|_, _| Fault::Error(std::io::ErrorKind::BrokenPipe));
        let changing = again.clone();
        handle.detach(Class::Issue, async move { drop(comment(&changing, "no").await) });
        assert_eq!(again.failed().await.1, FailMode::Panic);
    });
}

#[test]
fn a_suspended_pool_that_is_given_up_tells_everyone_and_is_whole_as_of_the_last_txg() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, slow());
    runtime.block_on(async {
        let (pool, load, _) = suspended(&handle, &machine, 0).await;
        let promised = pool.txgs().synced_txg();
        let waiting = load.head.clone();
        let begun = handle.spawn(Class::Issue, async move { waiting.begin(Cost::objects(1)).await.map(drop) });
        handle.sleep(Duration::from_secs(1)).await;
        pool.abandon();
        assert!(matches!(begun.await.unwrap(), Err(TxError::Suspended(_))));
        assert!(pool.sync().await.unwrap_err().to_string().contains("suspended"));
        let written: BTreeMap<_, _> =
            load.ids.iter().copied().zip(load.written.iter().map(|written| written.lock().clone())).collect();
        drop(load);
        assert!(pool.export().await.is_err());
        machine.disks[0].clear_faults();
        let (txg, report) = check(&handle, &machine.paths).await;
        assert!(txg >= promised);
        assert_clean(&report, "given up");
        let (ids, written): (Vec<_>, Vec<_>) = written.into_iter().unzip();
        check_reopened(&handle, &machine, &ids, &written, txg, "given up").await;
    });
}

#[test]
fn a_device_that_is_smaller_than_the_pool_says_is_not_used_and_a_larger_one_is() {
    let cases: [(Layout, u64); 4] = [
        (SINGLE, DISK_BYTES / 2),
        (&[(TopKind::Mirror, 2)], DISK_BYTES / 2),
        (&[(TopKind::Raidz { parity: 1 }, 3)], DISK_BYTES / 2),
        (SINGLE, DISK_BYTES * 2),
    ];
    for (layout, size_bytes) in cases {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, disks_of(layout), slow());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            let load = Load::new(&pool).await;
            drop(load);
            pool.export().await.unwrap();
            let other = SimDiskOptions { size_bytes, ..SimDiskOptions::default() };
            let mut paths = machine.paths.clone();
            paths[0] = "/other".into();
            runtime.sim().unwrap().add_disk(&handle, &paths[0], other).restore(&machine.disks[0].image());
            let (mut pools, _) = find(&handle, &paths).await;
            let how = ImportOptions { cache_bytes: 16 << 20, ..ImportOptions::default() };
            let imported = import(&handle, pools.remove(0), &how).await;
            if size_bytes < DISK_BYTES && layout == SINGLE {
                let error = imported.err().unwrap().to_string();
                assert!(error.contains("/other is too small: the pool has"), "{error}");
                return;
            }
            drop(imported.unwrap());
            let pool = reopened(&handle, &paths, small()).await;
            let load = Load::new(&pool).await;
            load.start(&handle, 1).pop().unwrap().await.unwrap();
            drop(load);
            pool.export().await.unwrap();
            let (_, report) = check(&handle, &paths).await;
            assert!(
                report.errors.is_empty() && report.leaked_bytes == 0,
                "{layout:?} {size_bytes}: {:?}",
                report.errors
            );
        });
    }
}

/// A damaged block of the history failed the pool for all its users, at the next command that was noted in it.
#[test]
fn a_history_that_cannot_be_written_is_told_and_fails_nothing() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        make_on(&handle, &machine, &[(TopKind::Single, 1)], false).await;
        let view = crate::health::seen(&handle, &machine.paths).await.unwrap();
        let history = view.directory_object("history").await.unwrap().unwrap();
        let pointer = history.pointer(0, cenote_format::ids::BlockId(0)).await.unwrap();
        let places: Vec<_> = pointer.dvas().map(|dva| dva.offset_bytes).collect();
        drop((history, view));
        for place in places {
            machine.disks[0].poke(cenote_format::label::START_BYTES + place, &[0xaa; 512]);
        }
        let pool = opened_pool(&handle, &machine.paths, import_with(&[])).await.unwrap();
        pool.create_dataset("written/new", cenote_format::enums::ObjsetType::Zfs).await.unwrap();
        let told = pool.troubled().await;
        assert!(told.contains("history lacks what was done"), "{told}");
        assert!(pool.failure().is_none());
        pool.sync().await.unwrap();
        pool.export().await.unwrap();
        // And what could not be read stands in the error log.
        let view = crate::health::seen(&handle, &machine.paths).await.unwrap();
        let logged = view.logged_errors().await.unwrap();
        assert_eq!(
            logged.iter().map(|error| (error.objset.0, error.level, error.block)).collect::<Vec<_>>(),
            [(0, 0, 0)]
        );
    });
}
