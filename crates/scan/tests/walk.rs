//! Goal: a verify can be stopped, paused and resumed, and says the same as one that was not; of a pool that is written meanwhile it reports no
//! damage that is not there. Method: pools in simulation, some with damaged sectors; reports are compared field by field.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_dmu::tx::{Cost, TxTunables};
use cenote_dmu::{Object, ObjectSpec};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::ObjsetType;
use cenote_scan::{
    Progress, Verification, VerifyError, VerifyOptions, VerifyReport, VerifyStop, ViewError, Views, WalkControl, verify,
};
use cenote_sim::{CACHE_BYTES, LAYOUTS, Layout, Machine, SINGLE};
use cenote_spa::{ImportOptions, LiveHead, Pool, SpaError, View, find, import};
use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::{BoxFuture, Class, Handle, Rng, Runtime};

const DISK_BYTES: u64 = 80 << 20;
const BLOCK_BYTES: u64 = 16 << 10;
const BLOCKS: u64 = 40;

fn machine_of(runtime: &Runtime, count: usize) -> Machine {
    Machine::new(runtime, count, &SimDiskOptions { size_bytes: DISK_BYTES, ..SimDiskOptions::default() })
}

async fn new_pool(handle: &Handle, machine: &Machine, layout: Layout) -> Pool {
    let tops = machine.tops(handle, layout).await.unwrap();
    cenote_sim::new_pool(handle, cenote_sim::options("pool", tops, 9)).await.unwrap()
}

/// Makes a pool with some thousand blocks, and exports it.
async fn make(handle: &Handle, machine: &Machine, layout: Layout, rng: &mut Rng) {
    filled(handle, machine, layout, rng).await.export().await.unwrap();
}

/// Makes a pool with some thousand blocks.
async fn filled(handle: &Handle, machine: &Machine, layout: Layout, rng: &mut Rng) -> Pool {
    let pool = new_pool(handle, machine, layout).await;
    for name in ["pool/a", "pool/b"] {
        pool.create_dataset(name, ObjsetType::Zfs).await.unwrap();
        for round in 0..3 {
            let (head, txg) = (pool.open_head(name).await.unwrap(), pool.txg());
            for _ in 0..40 {
                let spec = ObjectSpec::new(DmuType::UINT8_DATA, 512 << rng.below(3));
                let object = head.objset.create_object(txg, &spec).unwrap();
                let mut bytes = vec![0; 4000 + rng.below(9000) as usize];
                rng.fill(&mut bytes);
                object.write(txg, rng.below(1 << 18), &bytes).await.unwrap();
            }
            drop(head);
            cenote_admin::take_snapshots(&pool, &[format!("{name}@{round}")], &[]).await.unwrap();
        }
    }
    pool
}

async fn opened(handle: &Handle, machine: &Machine) -> View {
    let (mut pools, skipped) = find(handle, &machine.paths).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let options = ImportOptions { cache_bytes: CACHE_BYTES, force: true, ..ImportOptions::default() };
    import(handle, pools.remove(0), &options).await.unwrap()
}

/// All that a report says.
fn said(report: &VerifyReport) -> String {
    let mut problems = report.problems.clone();
    problems.sort();
    format!(
        "{:?}\n{} {:?}\n{} {:?}\n{} {:?}\n{} {:?}\n{} {:?} {}",
        report.statistics,
        report.error_count,
        report.errors,
        report.bad_copy_count,
        report.bad_copies,
        report.misuse_count,
        report.misuses,
        report.leaked_bytes,
        report.leaks,
        report.allocated_bytes,
        problems,
        report.is_clean(),
    )
}

fn verification<'a>(handle: &'a Handle, views: &'a dyn Views, from: Option<VerifyStop>) -> Verification<'a> {
    let (options, control) = (VerifyOptions::default(), WalkControl::new());
    Verification { handle, views, options, control, from }
}

#[test]
fn a_verify_that_stopped_and_went_on_reports_the_same() {
    let (mut stops, mut faults) = (0, 0);
    for seed in 0..6 {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 4);
        let mut rng = Rng::new(seed);
        runtime.block_on(async {
            let layout = [SINGLE, LAYOUTS[2]][seed as usize % 2];
            make(&handle, &machine, layout, &mut rng).await;
            // Sectors of the first MiB after the labels, where most blocks are; of the first pools none.
            for _ in 0..seed / 2 * 20 {
                let at = (4 << 20) + rng.below(4 << 11) * 512;
                machine.disks[0].poke(at, &[0x5a; 512]);
            }
            let view = opened(&handle, &machine).await;
            let whole = verify(&handle, &view, VerifyOptions::default(), &mut |_| true).await.unwrap();
            faults += whole.error_count + whole.bad_copy_count;
            let mut from = None;
            loop {
                let mut left = 1 + rng.below(4);
                let mut known = 0;
                let mut watch = |progress: Progress| {
                    // Calls while what is known is gone through do not count: it would never come further.
                    if progress.known_bytes == known {
                        left = left.saturating_sub(1);
                    }
                    known = progress.known_bytes;
                    left > 0
                };
                let report = verification(&handle, &view, from.take()).run(&mut watch).await.unwrap();
                let Some(stop) = &report.stop else {
                    assert_eq!(said(&report), said(&whole), "seed {seed}");
                    break;
                };
                assert!(report.problems.iter().any(|problem| problem.contains("ended early")), "{report}");
                assert!(stop.at().is_some() && stop.txg() == view.txg());
                stops += 1;
                from = Some(VerifyStop::from_json(&stop.to_json()).unwrap());
            }
            view.close().await;
        });
    }
    assert!(stops > 20 && faults > 30, "{stops} stops, {faults} faults");
}

/// Two states of a pool, of which the first is given up in the walk.
struct Two {
    first: View,
    later: View,
    views: AtomicU64,
    checks: AtomicU64,
}

impl Views for Two {
    fn view(&self) -> BoxFuture<'_, Result<View, ViewError>> {
        let view = if self.views.fetch_add(1, Ordering::Relaxed) == 0 { &self.first } else { &self.later };
        let view = view.clone();
        Box::pin(async move { Ok(view) })
    }

    /// The walk begins in the first view, and does not end a step.
    fn check(&self, view: &View) -> Result<(), SpaError> {
        if view.txg() == self.first.txg() && self.checks.fetch_add(1, Ordering::Relaxed) > 0 {
            return Err(SpaError::ViewGivenUp { pool: view.name().to_owned(), txg: view.txg() });
        }
        Ok(())
    }
}

/// A verify that goes through its known part once more meets the faults of blocks with pointers once more. If it ends before it has come to all of
/// them, or goes on in another view, it tells of them all the same.
#[test]
fn a_verify_that_ends_in_its_known_part_keeps_the_faults_found_there() {
    let runtime = Runtime::simulated(11);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1);
    let mut rng = Rng::new(11);
    runtime.block_on(async {
        let pool = filled(&handle, &machine, SINGLE, &mut rng).await;
        for _ in 0..160 {
            let at = (4 << 20) + rng.below(4 << 11) * 512;
            machine.disks[0].poke(at, &[0x5a; 512]);
        }
        let view = opened(&handle, &machine).await;
        let mut left = 6;
        let mut watch = |_| {
            left -= 1;
            left > 0
        };
        let before = verification(&handle, &view, None).run(&mut watch).await.unwrap();
        let stop = before.stop.clone().unwrap();
        let at_pointers = |report: &VerifyReport| {
            let all = report.errors.iter().chain(&report.bad_copies).filter_map(|block| block.bookmark);
            all.filter(|at| at.level != 0 || at.object.0 == 0).count()
        };
        assert!(at_pointers(&before) > 2, "{before}");

        // Ended in the known part: the place and all that is known of it stay.
        let ended = verification(&handle, &view, Some(stop.clone())).run(&mut |_| false).await.unwrap();
        assert_eq!(ended.stop.as_ref(), Some(&stop));
        assert_eq!((ended.error_count, ended.bad_copy_count), (before.error_count, before.bad_copy_count));
        assert_eq!((&ended.errors, &ended.bad_copies), (&before.errors, &before.bad_copies));

        // Given up in the known part: the rest is read as of a later txg.
        pool.create_dataset("pool/later", ObjsetType::Zfs).await.unwrap();
        pool.sync().await.unwrap();
        let later = opened(&handle, &machine).await;
        assert!(later.txg() > view.txg());
        let two = Two { first: view.clone(), later, views: AtomicU64::new(0), checks: AtomicU64::new(0) };
        let rest = verification(&handle, &two, Some(stop)).run(&mut |_| true).await.unwrap();
        assert!(rest.stop.is_none() && rest.moved.is_some() && two.views.load(Ordering::Relaxed) == 2, "{rest}");
        assert!(before.errors.iter().all(|block| rest.errors.contains(block)), "{rest}");
        assert!(before.bad_copies.iter().all(|block| rest.bad_copies.contains(block)), "{rest}");
        assert!(rest.error_count >= before.error_count && rest.bad_copy_count >= before.bad_copy_count);
        view.close().await;
        two.later.close().await;
        drop(pool);
    });
}

#[test]
fn a_verify_that_stopped_is_not_clean() {
    let runtime = Runtime::simulated(12);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1);
    runtime.block_on(async {
        make(&handle, &machine, SINGLE, &mut Rng::new(12)).await;
        let view = opened(&handle, &machine).await;
        // Nothing but the stop says that it did not see all.
        let options = VerifyOptions { data: true, space: false };
        let report = verify(&handle, &view, options, &mut |_| false).await.unwrap();
        assert!(report.stop.is_some() && report.problems.is_empty() && report.error_count == 0, "{report}");
        assert!(!report.is_clean() && report.to_string() != "clean", "{report}");
        view.close().await;
    });
}

#[test]
fn one_control_steers_one_verify_after_another() {
    let runtime = Runtime::simulated(13);
    let handle = runtime.handle();
    let options = SimDiskOptions { size_bytes: DISK_BYTES, latency: cenote_sim::slow(), ..SimDiskOptions::default() };
    let machine = Machine::new(&runtime, 1, &options);
    runtime.block_on(async {
        make(&handle, &machine, SINGLE, &mut Rng::new(13)).await;
        let view = opened(&handle, &machine).await;
        let control = WalkControl::new();
        let mut blocks = Vec::new();
        for _ in 0..2 {
            let all = Verification { control: control.clone(), ..verification(&handle, &view, None) };
            let report = all.run(&mut |_| true).await.unwrap();
            assert!(report.is_clean(), "{report}");
            assert!(control.progress().took > Duration::ZERO, "{:?}", control.progress());
            blocks.push(control.progress().blocks);
        }
        assert_eq!(blocks[0], blocks[1], "the first does not count for the second");
        view.close().await;
    });
}

#[test]
fn a_stop_of_another_pool_or_state_or_with_other_options_is_refused() {
    let runtime = Runtime::simulated(9);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1);
    runtime.block_on(async {
        make(&handle, &machine, SINGLE, &mut Rng::new(9)).await;
        let view = opened(&handle, &machine).await;
        let report = verification(&handle, &view, None).run(&mut |_| false).await.unwrap();
        let stop = report.stop.unwrap();
        let changed = |from: &str, to: &str| {
            let text = stop.to_json();
            assert!(text.contains(from), "{text}");
            Some(VerifyStop::from_json(&text.replacen(from, to, 1)).unwrap())
        };
        let txg = format!("\"txg\":{}", view.txg());
        let later = format!("\"txg\":{}", view.txg().0 + 1);
        for (from, to) in [("\"pool_guid\":", "\"pool_guid\":1"), ("\"root\":[", "\"root\":[1"), (&txg, &later)] {
            let refused = verification(&handle, &view, changed(from, to)).run(&mut |_| true).await;
            let is_meant = matches!(refused, Err(VerifyError::OtherPool { .. } | VerifyError::OtherState { .. }));
            assert!(is_meant, "{from}: {:?}", refused.err());
        }
        let other = Verification {
            options: VerifyOptions { data: false, space: true },
            ..verification(&handle, &view, Some(stop.clone()))
        };
        assert!(matches!(other.run(&mut |_| true).await, Err(VerifyError::OtherOptions)));
        // A place in a tree that has another number.
        let elsewhere = verification(&handle, &view, changed("\"tree\":", "\"tree\":9")).run(&mut |_| true).await;
        assert!(matches!(elsewhere, Err(VerifyError::OtherState { .. })), "{:?}", elsewhere.err());
        view.close().await;
    });
}

#[test]
fn a_paused_verify_reads_nothing_and_then_reports_the_same() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1);
    runtime.block_on(async {
        make(&handle, &machine, SINGLE, &mut Rng::new(5)).await;
        let view = opened(&handle, &machine).await;
        let whole = verify(&handle, &view, VerifyOptions::default(), &mut |_| true).await.unwrap();
        let control = WalkControl::new();
        let (steered, of_task, views) = (control.clone(), handle.clone(), view.clone());
        let running = handle.spawn(Class::Issue, async move {
            let mut pauses = 0;
            let control = steered.clone();
            let all = Verification { control, ..verification(&of_task, &views, None) };
            let mut watch = |_| {
                pauses += 1;
                steered.pause();
                true
            };
            (all.run(&mut watch).await.unwrap(), pauses)
        });
        let mut rests = 0;
        let mut running = std::pin::pin!(running);
        let (report, pauses) = loop {
            let waited = handle.timeout(Duration::from_millis(10), &mut running).await;
            if let Some(done) = waited {
                break done.unwrap();
            }
            if control.is_at_rest() {
                let (reads, progress) = (machine.disks[0].counts().reads, control.progress());
                handle.sleep(Duration::from_secs(60)).await;
                assert_eq!(machine.disks[0].counts().reads, reads, "a walk that rests reads nothing");
                assert_eq!(control.progress(), progress);
                assert!(control.is_at_rest());
                rests += 1;
                control.resume();
            }
        };
        assert!(rests > 4 && rests <= pauses, "{rests} rests, {pauses} pauses");
        assert_eq!(said(&report), said(&whole));
        assert!(control.progress().took < Duration::from_secs(60), "pauses do not count: {:?}", control.progress());
        view.close().await;
    });
}

async fn overwrite(head: &LiveHead, object: &Object, seed: u64) {
    for block in 0..BLOCKS {
        let tx = head.begin(Cost::write(block * BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES)).await.unwrap();
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        Rng::new(seed << 32 | block).fill(&mut bytes);
        object.write(tx.txg(), block * BLOCK_BYTES, &bytes).await.unwrap();
    }
    head.pool().sync().await.unwrap();
}

#[test]
fn a_verify_of_a_pool_that_is_written_goes_on_where_its_view_was_given_up() {
    for (rounds, moves) in [(3, false), (60, true)] {
        let runtime = Runtime::simulated(rounds);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 1);
        runtime.block_on(async {
            let tunables = TxTunables { zfs_dirty_data_max: 2 << 20, ..TxTunables::default() };
            let pool = new_pool(&handle, &machine, SINGLE).await.start(tunables).await;
            let head = pool.open_head("pool").await.unwrap();
            let spec = ObjectSpec::new(DmuType::UINT8_DATA, BLOCK_BYTES as u32);
            let tx = head.begin(Cost::objects(2)).await.unwrap();
            let objects: Vec<Object> = (0..2).map(|_| head.objset().create_object(tx.txg(), &spec).unwrap()).collect();
            drop(tx);
            for object in &objects {
                overwrite(&head, object, 1).await;
            }
            let control = WalkControl::new();
            control.pause();
            let (steered, of_task, views) = (control.clone(), handle.clone(), pool.clone());
            let running = handle.spawn(Class::Issue, async move {
                let all = Verification { control: steered, ..verification(&of_task, &views, None) };
                all.run(&mut |_| true).await.unwrap()
            });
            while !control.is_at_rest() {
                handle.sleep(Duration::from_millis(10)).await;
            }
            // One object is written again and again, and the other stays.
            for round in 0..rounds {
                overwrite(&head, &objects[0], 2 + round).await;
            }
            control.resume();
            let report = running.await.unwrap();
            assert!(report.is_clean() && report.stop.is_none(), "{report}");
            assert_eq!((report.moved.is_some(), report.space.is_none()), (moves, moves));
            if let Some((first, last)) = report.moved {
                assert!(first < last && last <= pool.txgs().synced_txg());
            }
            assert!(report.statistics.total.count > 2 * BLOCKS, "all blocks were read");
            drop((objects, head));
            pool.export().await.unwrap();
            let (_, report) = cenote_sim::check(&handle, &machine.paths).await.unwrap();
            assert!(report.is_clean(), "{report}");
        });
    }
}
