//! Vdevs, spares and cache devices that are added to a pool while others write it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::Object;
use cenote_dmu::tx::Cost;
use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_scan::{VerifyOptions, verify};
use cenote_spa::{AddOptions, AuxSpec, ImportOptions, LiveHead, Pool, Rewind, TopKind, find, import};
use cenote_taskq::sim::disk::{Crash, Fault, RequestKind};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Either, Handle, Join, Rng, Runtime, race};
use cenote_vdev::commit::{LeafCommit, commit};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::leaf::probe_device;
use cenote_vdev::ring::Ring;

use crate::added::{allocated, disk, top};
use cenote_sim::written::blocks::{Written, check_blocks, content, make_objects, write_blocks};
use cenote_sim::written::*;

const BLOCK_BYTES: u64 = 16 << 10;
const MIRROR: Layout = &[(TopKind::Mirror, 2)];

/// Writers of objects of their own, and what they wrote.
struct Writers {
    objects: Vec<Object>,
    written: Vec<Arc<Mutex<Written>>>,
    joins: Vec<Join<()>>,
}

impl Writers {
    async fn start(head: &LiveHead, count: usize, blocks: u64) -> Self {
        let objects = make_objects(head, count).await;
        let written: Vec<Arc<Mutex<Written>>> = (0..count).map(|_| Arc::default()).collect();
        let join = |(at, (object, written)): (usize, (&Object, &Arc<Mutex<Written>>))| {
            let work = write_blocks(head.clone(), object.clone(), at as u64 + 1, blocks, written.clone());
            head.pool().handle().spawn(Class::Issue, work)
        };
        let joins = objects.iter().zip(&written).enumerate().map(join).collect();
        Self { objects, written, joins }
    }

    /// Waits until all is written, and compares.
    async fn end(self, what: &str) {
        for join in self.joins {
            join.await.unwrap();
        }
        for (object, written) in self.objects.iter().zip(&self.written) {
            let written = written.lock().clone();
            check_blocks(object, &written, Txg(u64::MAX), what).await;
        }
    }
}

async fn added(handle: &Handle, kind: TopKind, class: AllocationClass, paths: &[PathBuf]) -> AddOptions {
    AddOptions { tops: vec![top(handle, kind, class, paths).await], ashift: Some(12), ..AddOptions::default() }
}

/// Goal: whatever is added while others write, the pool is whole, and the new vdev takes its share from the next txg on.
#[test]
fn vdevs_are_added_while_blocks_are_written() {
    use AllocationClass::{Log, Normal, Special};
    let draid = TopKind::Draid { parity: 1, data: Some(2), spares: 1 };
    let cases = [
        (SINGLE, TopKind::Single, Normal, 1),
        (MIRROR, TopKind::Mirror, Normal, 2),
        (SINGLE, TopKind::Raidz { parity: 1 }, Normal, 3),
        (SINGLE, draid, Normal, 5),
        (SINGLE, TopKind::Mirror, Special, 2),
        (SINGLE, TopKind::Mirror, Log, 2),
    ];
    for (seed, (layout, kind, class, count)) in cases.into_iter().enumerate() {
        let what = format!("{layout:?} and {kind:?} {class:?}");
        let runtime = Runtime::simulated(seed as u64);
        let handle = runtime.handle();
        let old: usize = layout.iter().map(|(_, disks)| disks).sum();
        let machine = machine_of(&runtime, old + count + 2, slow());
        runtime.block_on(async {
            let pool = live(&handle, &machine, layout, small()).await;
            let head = pool.open_head("written").await.unwrap();
            let (before, referenced) = (head.space().available_bytes, head.space().referenced_bytes);
            let tops = layout.len() as u32;
            let writers = Writers::start(&head, 3, 300).await;
            handle.sleep(Duration::from_millis(20)).await;
            let mut options = added(&handle, kind, class, &machine.paths[old..old + count]).await;
            options.auxiliaries = AuxSpec {
                spares: vec![disk(&handle, &machine.paths[old + count]).await],
                caches: vec![disk(&handle, &machine.paths[old + count + 1]).await],
            };
            pool.add_vdevs(options).await.unwrap();
            if class == Normal {
                // Half of so small a pool is kept back.
                assert!(head.space().available_bytes > before + DISK_BYTES / 4, "{what}");
            }
            let status = pool.devices().unwrap();
            assert_eq!((status.children.len() as u32, status.state.name()), (tops + 1, "ONLINE"), "{what}");
            let mut objects: Vec<_> = writers.objects.iter().map(Object::id).collect();
            writers.end(&what).await;
            let last = Writers::start(&head, 1, 100).await;
            objects.extend(last.objects.iter().map(Object::id));
            last.end(&what).await;
            let view = pool.view(&ImportOptions::default()).await.unwrap();
            let spares = view.spares().await.unwrap();
            let caches = view.cache_devices().await.unwrap();
            assert_eq!((spares.len(), caches.len()), (1 + usize::from(kind == draid), 1), "{what}");
            // The auxiliary vdevs found, which shows them as there.
            let found = view.found().auxiliaries.clone();
            assert!(found.contains_key(&spares[0].guid) && found.contains_key(&caches[0].guid), "{what}");
            drop((view, head));
            pool.export().await.unwrap();
            let space = allocated(&handle, &machine.paths, &what).await;
            assert_eq!(space.len() as u32, tops + 1, "{what}");
            let of_new = space[&VdevId(tops)];
            assert!(if class == Log { of_new == 0 } else { of_new > 0 }, "{what}: {space:?}");
            // And it can be opened and written on.
            let pool = reopened(&handle, &machine.paths, small()).await;
            let head = pool.open_head("written").await.unwrap();
            // Blocks on the new vdev are subtracted from the accounts at the size at which they were added.
            for object in objects {
                let tx = head.begin(Cost::objects(1)).await.unwrap();
                head.objset().object(object).await.unwrap().free(tx.txg());
            }
            pool.sync().await.unwrap();
            let left = head.space().referenced_bytes.abs_diff(referenced);
            assert!(left < 128 << 10, "{what}: {left} bytes are counted that are nowhere");
            Writers::start(&head, 1, 50).await.end(&what).await;
            drop(head);
            pool.export().await.unwrap();
            allocated(&handle, &machine.paths, &what).await;
        });
    }
}

/// Goal: no block of the txg that adds a vdev is on it, so the pool can be wound back to the txg before.
#[test]
fn a_pool_that_has_grown_can_be_wound_back_and_lacks_nothing() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 2, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let writers = Writers::start(&head, 2, 60).await;
        handle.sleep(Duration::from_millis(10)).await;
        let options = added(&handle, TopKind::Single, AllocationClass::Normal, &machine.paths[1..]).await;
        let before = pool.txgs().synced_txg();
        pool.add_vdevs(options).await.unwrap();
        let grown = pool.txgs().synced_txg();
        // The power goes when the txg that added it is the newest, or nearly.
        machine.disks.iter().for_each(|disk| disk.crash(Crash::KeepAll));
        drop((writers, head, pool));
        machine.disks.iter().for_each(|disk| disk.power_on());
        let (mut pools, _) = find(&handle, &machine.paths).await;
        let found = pools.remove(0);
        for (txg, count) in [(before, 1), (grown, 2)] {
            let how = ImportOptions { force: true, rewind: Rewind::ToTxg(txg), ..ImportOptions::default() };
            let pool = import(&handle, found.clone(), &how).await.unwrap();
            assert_eq!((pool.txg() <= txg, pool.vdevs().children.len()), (true, count), "txg {txg}");
        }
    });
}

/// Goal: who reads the pool as of a txg before an addition is not disturbed by it.
#[test]
fn a_view_of_before_reads_on_while_the_pool_has_grown() {
    let runtime = Runtime::simulated(6);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 3, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let head = pool.open_head("written").await.unwrap();
        Writers::start(&head, 2, 60).await.end("before").await;
        let view = pool.view(&ImportOptions::default()).await.unwrap();
        let options = added(&handle, TopKind::Mirror, AllocationClass::Normal, &machine.paths[1..]).await;
        pool.add_vdevs(options).await.unwrap();
        Writers::start(&head, 2, 60).await.end("after").await;
        for (view, tops) in [(view, 1), (pool.view(&ImportOptions::default()).await.unwrap(), 2)] {
            assert_eq!(view.vdevs().children.len(), tops);
            let report = verify(&handle, &view, VerifyOptions::default(), &mut |_| true).await.unwrap();
            assert_clean(&report, &format!("with {tops} vdevs"));
            view.check().unwrap();
        }
        drop(head);
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &machine.paths).await;
        assert_clean(&report, "in the end");
    });
}

/// Goal: what cannot be added is refused, and the pool goes on as it was.
#[test]
fn what_cannot_be_added_to_a_pool_in_use_is_refused_and_nothing_changes() {
    let runtime = Runtime::simulated(7);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 4, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let writers = Writers::start(&head, 2, 100).await;
        let single = |at: usize| added(&handle, TopKind::Single, AllocationClass::Normal, &machine.paths[at..=at]);
        let refused = |error: cenote_spa::SpaError, words: &str| {
            let error = error.to_string();
            assert!(error.contains(words), "{error}");
        };
        let other = AddOptions { ashift: Some(9), ..single(1).await };
        refused(pool.add_vdevs(other).await.unwrap_err(), "mismatched ashift");
        refused(pool.add_vdevs(AddOptions::default()).await.unwrap_err(), "no vdevs are named");
        // A device that does not take its labels.
        machine.disks[2].set_faults(|request, _| match request.kind {
            RequestKind::Read => Fault::None,
            _ => Fault::Error(std::io::ErrorKind::BrokenPipe),
        });
        refused(pool.add_vdevs(single(2).await).await.unwrap_err(), "/disk2");
        // One that does not answer holds up who adds it, and not the pool.
        machine.disks[3].set_faults(|_, _| Fault::Hang);
        let adding = Box::pin(pool.add_vdevs(single(3).await));
        let hangs = match race(adding, handle.sleep(Duration::from_secs(2))).await {
            Either::Left(_) => false,
            Either::Right(()) => true,
        };
        assert!(hangs);
        pool.sync().await.unwrap();
        assert_eq!((pool.suspended(), pool.devices().unwrap().children.len()), (None, 1));
        writers.end("refused").await;
        // And a good one is taken after all that.
        pool.add_vdevs(single(1).await).await.unwrap();
        drop(head);
        pool.export().await.unwrap();
        assert_eq!(allocated(&handle, &machine.paths[..2], "refused").await.len(), 2);
    });
}

/// Goal: additions that come at once are made one after the other, or refused; the pool has those that were made.
#[test]
fn additions_that_come_at_once_do_not_meet() {
    let runtime = Runtime::simulated(8);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 5, slow());
    runtime.block_on(async {
        let pool = live(&handle, &machine, SINGLE, small()).await;
        let head = pool.open_head("written").await.unwrap();
        let writers = Writers::start(&head, 2, 200).await;
        let mut joins = Vec::new();
        for at in 1..5 {
            let options = added(&handle, TopKind::Single, AllocationClass::Normal, &machine.paths[at..=at]).await;
            let pool = pool.clone();
            joins.push(handle.spawn(Class::Issue, async move { pool.add_vdevs(options).await }));
        }
        let mut made = 0;
        for join in joins {
            match join.await.unwrap() {
                Ok(_) => made += 1,
                Err(error) => assert!(error.to_string().contains("has got other vdevs meanwhile"), "{error}"),
            }
        }
        assert!(made > 0);
        writers.end("at once").await;
        drop(head);
        pool.export().await.unwrap();
        assert_eq!(allocated(&handle, &machine.paths, "at once").await.len(), 1 + made);
    });
}

/// Goal: a pool whose devices fail takes an addition when they are back; the new devices may be the ones that fail.
#[test]
fn an_addition_outlasts_devices_that_fail_for_a_while() {
    for (seed, failing) in [(0, [0, 0]), (1, [1, 2]), (2, [1, 1]), (3, [0, 2])] {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 3, slow());
        runtime.block_on(async {
            let pool = live(&handle, &machine, SINGLE, small()).await;
            let head = pool.open_head("written").await.unwrap();
            let writers = Writers::start(&head, 2, 200).await;
            handle.sleep(Duration::from_millis(5)).await;
            let options = added(&handle, TopKind::Mirror, AllocationClass::Normal, &machine.paths[1..]).await;
            let adding = {
                let pool = pool.clone();
                handle.spawn(Class::Issue, async move { pool.add_vdevs(options).await })
            };
            // Labels are there by then, and the txg is on its way.
            handle.sleep(Duration::from_micros(2500)).await;
            for at in failing {
                machine.disks[at].set_faults(|_, _| Fault::Error(std::io::ErrorKind::BrokenPipe));
            }
            handle.sleep(Duration::from_millis(300)).await;
            machine.disks.iter().for_each(|disk| disk.clear_faults());
            while pool.resume().await.is_err() {
                handle.sleep(Duration::from_millis(1)).await;
            }
            adding.await.unwrap().unwrap();
            writers.end(&format!("{failing:?}")).await;
            drop(head);
            pool.export().await.unwrap();
            let found = allocated_or_behind(&handle, &machine.paths).await;
            assert_eq!(found, 2, "{failing:?}");
        });
    }
}

/// Top-level vdevs of the pool on disk, of which every block can be read; a leg of a mirror may have missed something.
async fn allocated_or_behind(handle: &Handle, paths: &[PathBuf]) -> usize {
    let (_, report) = check(handle, paths).await;
    assert_eq!((report.error_count, report.leaked_bytes, report.misuse_count), (0, 0, 0), "{report}");
    let (mut pools, _) = find(handle, paths).await;
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    import(handle, pools.remove(0), &options).await.unwrap().vdevs().children.len()
}

/// Wherever the power goes while vdevs are added to a pool in use, the pool is there with them or without, with them where the addition
/// was said to be done, and has what was said to be on disk.
#[test]
fn a_power_cut_while_a_pool_in_use_grows_leaves_the_old_pool_or_the_new_one() {
    let (mut old, mut new) = (0, 0);
    for seed in seeds(40) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, 4, slow());
        runtime.block_on(async {
            let pool = live(&handle, &machine, MIRROR, small()).await;
            let head = pool.open_head("written").await.unwrap();
            let object = make_objects(&head, 1).await.remove(0);
            let tx = head.begin(Cost::write(0, BLOCK_BYTES, BLOCK_BYTES)).await.unwrap();
            object.write(tx.txg(), 0, &content(seed)).await.unwrap();
            drop(tx);
            pool.sync().await.unwrap();
            used_before(&handle, &machine.paths[0], &machine.paths[2..]).await;
            let writers = Writers::start(&head, 2, 10_000).await;
            let mut rng = Rng::new(seed);
            handle.sleep(Duration::from_micros(rng.below(3000))).await;
            let options = added(&handle, TopKind::Mirror, AllocationClass::Normal, &machine.paths[2..]).await;
            let is_done = Arc::new(Mutex::new(false));
            let (done, of) = (is_done.clone(), pool.clone());
            let adding = handle.spawn(Class::Issue, async move {
                if of.add_vdevs(options).await.is_ok() {
                    *done.lock() = true;
                }
            });
            handle.sleep(Duration::from_micros(rng.below(30_000))).await;
            let was_done = *is_done.lock();
            let crash = if seed % 2 == 0 { Crash::Random } else { Crash::Torn };
            machine.disks.iter().for_each(|disk| disk.crash(crash));
            abandon(&pool).await;
            drop((adding, writers, head, pool, object));
            handle.sleep(Duration::from_secs(20)).await;
            machine.disks.iter().for_each(|disk| disk.power_on());
            let found = allocated(&handle, &machine.paths, &format!("seed {seed} after the cut")).await;
            match found.len() {
                1 => old += 1,
                _ => new += 1,
            }
            assert!(found.len() == 2 || !was_done, "seed {seed}: it was said to be done");
            let pool = reopened(&handle, &machine.paths, small()).await;
            let head = pool.open_head("written").await.unwrap();
            Writers::start(&head, 1, 50).await.end("written on").await;
            drop(head);
            pool.export().await.unwrap();
            let after = allocated(&handle, &machine.paths, &format!("seed {seed} written on")).await;
            assert_eq!(after.len(), found.len());
        });
    }
    assert!(old > 0 && new > 0, "cut {old} times before, {new} after");
}

/// Gives devices an earlier life in another pool that got further: uberblocks that lead to something, and look newer than any here.
async fn used_before(handle: &Handle, of: &Path, paths: &[PathBuf]) {
    let report = probe_device(disk(handle, of).await.disk.device()).await;
    let mut uberblock = report.labelled().next().unwrap().uberblocks[0].uberblock;
    uberblock.txg = Txg(1 << 30);
    let mut leaves = Vec::new();
    for path in paths {
        let disk = disk(handle, path).await.disk;
        let (guid, top, config) = (Guid(1), None, None);
        leaves.push(LeafCommit { guid, disk, top, ashift: 12, config, takes_uberblock: true });
    }
    commit(&leaves, &uberblock, &mut Ring::default()).await.unwrap();
}

/// Without power nothing of a pool is left to wait for.
async fn abandon(pool: &Pool) {
    let _ = pool.handle().timeout(Duration::from_secs(1), pool.failed()).await;
    pool.abandon();
}
