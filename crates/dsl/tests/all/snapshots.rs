//! Goal: snapshots, and what is received, are right where several things happen at once, are refused or are interrupted. (Histories of verbs:
//! `histories`.)

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use cenote_admin::{
    AdminError, Reach, clone_dataset, create_filesystem, destroy, destroy_snapshots, hold, release, rollback,
    set_properties, take_snapshots,
};
use cenote_dmu::ObjectSpec;
use cenote_dmu::tx::{Cost, TxTunables};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::dataset_field;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::Guid;
use cenote_format::needs::Needs;
use cenote_sim::audit_space;
use cenote_spa::{
    Clock, ImportOptions, NewSnapshot, Pool, PropertyValue, ReceivePoint, ReceiveSpec, Resumable, TopKind,
    WriteOptions, find, open,
};
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Class, Handle, Rng, Runtime};

use cenote_sim::written::*;

/// A snapshot of a dataset that is written all the time has what was written before it was asked for, and nothing that came after its answer;
/// and it is there after a power cut that follows the answer.
#[test]
fn a_snapshot_has_what_was_written_before_it_was_asked_for() {
    let mut later_txgs = 0;
    for (seed, layout) in (0..4).zip([LAYOUTS[0], LAYOUTS[1], LAYOUTS[2], LAYOUTS[0]]) {
        let runtime = Runtime::simulated(100 + seed);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_of(&runtime, count, slow());
        let paths = machine.paths.clone();
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let pool = make(&handle, options(machine.tops(&handle, layout).await.unwrap(), 12)).await;
            pool.create_dataset("written/a", ObjsetType::Zfs).await.unwrap();
            let pool = pool.start(TxTunables::default()).await;
            let head = pool.open_head("written/a").await.unwrap();
            let spec = ObjectSpec::new(DmuType::UINT8_DATA, 4096);
            let tx = head.begin(Cost::default().with_objects(1)).await.unwrap();
            let object = head.objset().create_object(tx.txg(), &spec).unwrap();
            drop(tx);
            let id = object.id();
            let mut bounds: Vec<(String, u64, u64)> = Vec::new();
            let mut written = 0_u64;
            for round in 0..20_u64 {
                for _ in 0..rng.below(4) {
                    written += 1;
                    let tx = head.begin(Cost::default().with_bytes(4096)).await.unwrap();
                    object.write(tx.txg(), 0, &written.to_le_bytes()).await.unwrap();
                    drop(tx);
                    handle.sleep(Duration::from_millis(rng.below(40))).await;
                }
                let before = written;
                // Two at once, of one dataset: one of them is of a later txg.
                let names = [format!("written/a@{round}x"), format!("written/a@{round}y")];
                let [first, second] = names.clone().map(|name| {
                    let pool = pool.clone();
                    handle.spawn(Class::Background, async move {
                        let wanted = NewSnapshot { name, ..NewSnapshot::default() };
                        pool.take_snapshots(vec![wanted]).await.unwrap()
                    })
                });
                // Others go on meanwhile.
                written += 1;
                let tx = head.begin(Cost::default().with_bytes(4096)).await.unwrap();
                object.write(tx.txg(), 0, &written.to_le_bytes()).await.unwrap();
                drop(tx);
                let (first, second) = (first.await.unwrap(), second.await.unwrap());
                assert_ne!(first, second, "a dataset has one snapshot in a txg");
                later_txgs += u64::from(first.0.abs_diff(second.0) == 1);
                bounds.extend(names.into_iter().map(|name| (name, before, written)));
            }
            drop((object, head));
            machine.disks.iter().for_each(|disk| disk.crash(Crash::LoseAll));
            handle.sleep(Duration::from_secs(5)).await;
            machine.disks.iter().for_each(|disk| disk.power_on());
            drop(pool);
            let (_, report) = check(&handle, &paths).await;
            assert_clean(&report, &format!("seed {seed}"));
            let view = read(&handle, &paths).await;
            audit_space(&view).await.unwrap();
            for (name, before, after) in bounds {
                let dataset = view.dsl().dataset(&name).await.unwrap();
                let objset = view.dsl().open_as_is(&dataset).await.unwrap().unwrap();
                let object = objset.object(id).await.unwrap();
                let bytes = object.read(0, 8).await.unwrap();
                let found = u64::from_le_bytes(*bytes.first_chunk().unwrap());
                assert!((before..=after).contains(&found), "seed {seed}, {name}: {found} of {before} to {after}");
            }
        });
    }
    assert!(later_txgs > 0, "some had to wait for the next txg");
}

/// OpenZFS's #18754: the snapshots of one command had several creation times, where it took longer than a second.
#[test]
fn snapshots_of_one_command_have_one_creation_time_18754() {
    let runtime = Runtime::simulated(9);
    let handle = runtime.handle();
    let latency = Latency { read: Duration::from_secs(3), ..Latency::default() };
    let machine = machine_of(&runtime, 1, latency);
    runtime.block_on(async {
        let pool = make(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 12)).await;
        let names: Vec<String> = (0..40).map(|number| format!("written/d{number}")).collect();
        for name in &names {
            pool.create_dataset(name, ObjsetType::Zfs).await.unwrap();
        }
        pool.export().await.unwrap();
        let (mut pools, _) = find(&handle, &machine.paths).await;
        let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
        let told = WriteOptions { clock: Clock::Now, ..write_options() };
        let pool = open(&handle, pools.remove(0), &how, told).await.unwrap().start(TxTunables::default()).await;
        let begun = handle.unix_time().as_secs();
        take_snapshots(&pool, &names.iter().map(|name| format!("{name}@1")).collect::<Vec<_>>(), &[]).await.unwrap();
        assert!(
            handle.unix_time().as_secs() > begun + 2,
            "it takes seconds, not {}",
            handle.unix_time().as_secs() - begun
        );
        let dsl = pool.dsl().unwrap();
        let mut births = BTreeSet::new();
        for name in &names {
            let snapshot = dsl.dataset(&format!("{name}@1")).await.unwrap();
            births.insert((snapshot.phys.creation_time, snapshot.phys.creation_txg));
        }
        assert_eq!(births.len(), 1, "{births:?}");
        pool.export().await.unwrap();
    });
}

/// A pool on one disk with a file system `written/a`, for verbs that must not fail half-way.
fn with_pool<F>(seed: u64, work: impl FnOnce(Handle, Pool, Vec<PathBuf>) -> F)
where
    F: Future<Output = ()>,
{
    let runtime = Runtime::simulated(seed);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    let paths = machine.paths.clone();
    runtime.block_on(async {
        let pool = make(&handle, options(machine.tops(&handle, LAYOUTS[0]).await.unwrap(), 12)).await;
        for name in ["written/a", "written/a/b"] {
            pool.create_dataset(name, ObjsetType::Zfs).await.unwrap();
        }
        pool.sync().await.unwrap();
        work(handle.clone(), pool, paths).await;
    });
}

async fn take(pool: &Pool, names: &[&str]) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    take_snapshots(pool, &names, &[]).await.unwrap();
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

async fn is_there(pool: &Pool, name: &str) -> bool {
    pool.dsl().unwrap().dataset(name).await.is_ok()
}

/// A refused task leaves a pool that goes on, and is whole.
async fn goes_on(handle: &Handle, pool: Pool, paths: &[PathBuf], what: &str) {
    pool.create_dataset("written/after", ObjsetType::Zfs).await.unwrap();
    while pool.peek(|syncer| syncer.has_work()).await.unwrap() {
        pool.sync().await.unwrap();
    }
    pool.export().await.unwrap();
    let (_, report) = check(handle, paths).await;
    assert_clean(&report, what);
    let view = read(handle, paths).await;
    audit_space(&view).await.unwrap_or_else(|error| panic!("{what}: {error:#}"));
    view.close().await;
}

/// The receive of a snapshot `2`.
fn received_as(dataset: &str, kind: ObjsetType, from_guid: Option<Guid>) -> ReceiveSpec {
    ReceiveSpec {
        dataset: dataset.to_owned(),
        snapshot: "2".into(),
        kind,
        to_guid: Guid(77),
        from_guid,
        creation_time_s: 1,
        origin: None,
        is_forced: from_guid.is_some(),
        users_wait: false,
        needs: Needs::default(),
        enabled: Vec::new(),
        ignores_case: false,
        resumable: None,
        resumes: false,
        redacted: None,
        from_redacted: None,
        raw: None,
    }
}

/// Found by power cuts, regression: a volume that was received in part had no root while there was nothing in it, and nobody could go on with
/// it after a crash.
#[test]
fn what_is_received_has_a_root_before_its_first_record() {
    with_pool(5, async |handle, pool, paths| {
        for (name, kind) in [("written/v", ObjsetType::Zvol), ("written/f", ObjsetType::Zfs)] {
            let to_name = "elsewhere@2".to_owned();
            let resumable = Resumable { to_name, large_blocks: false, embedded: false, compressed: false };
            let spec = ReceiveSpec { resumable: Some(resumable), ..received_as(name, kind, None) };
            let receiving = pool.begin_receive(spec).await.unwrap();
            pool.sync().await.unwrap();
            let view = read(&handle, &paths).await;
            let begun = view.dsl().dataset(name).await.unwrap();
            assert!(begun.is_inconsistent() && !begun.phys.bp.is_hole(), "{name}");
            assert!(view.dsl().open_as_is(&begun).await.unwrap().is_some(), "{name}");
            view.close().await;
            receiving.give_up().await.unwrap();
            pool.abort_receive(name).await.unwrap();
        }
        goes_on(&handle, pool, &paths, "receives that are begun").await;
    });
}

/// Regression: a place was noted in a txg that was closed already, and the data before it was in the next one. A crash between the two lost that
/// data for good, since the receive went on behind it.
#[test]
fn a_place_to_go_on_from_is_not_noted_before_the_data() {
    with_pool(6, async |handle, pool, paths| {
        let pool = pool.start(TxTunables::default()).await;
        let to_name = "elsewhere@2".to_owned();
        let resumable = Resumable { to_name, large_blocks: false, embedded: false, compressed: false };
        let spec = ReceiveSpec { resumable: Some(resumable), ..received_as("written/f", ObjsetType::Zfs, None) };
        let receiving = pool.begin_receive(spec).await.unwrap();
        let (head, other) = (receiving.head().clone(), pool.open_head("written/a").await.unwrap());
        let held = other.begin(Cost::objects(1)).await.unwrap();
        let closed = held.txg();
        let syncing = handle.spawn(Class::Issue, {
            let pool = pool.clone();
            async move { pool.sync().await.map(drop) }
        });
        while pool.txg() == closed {
            handle.sleep(Duration::from_millis(1)).await;
        }
        let tx = head.begin(Cost::objects(1).with_bytes(4096)).await.unwrap();
        assert!(tx.txg() > closed);
        let object = head.objset().create_object(tx.txg(), &ObjectSpec::new(DmuType::UINT8_DATA, 4096)).unwrap();
        object.write(tx.txg(), 0, b"received").await.unwrap();
        let id = object.id();
        drop((tx, object, head));
        let noting = handle.spawn(Class::Issue, async move {
            receiving.note(ReceivePoint { object: id.0, offset_bytes: 0, bytes: 4096 }).await.map(|()| receiving)
        });
        handle.sleep(Duration::from_millis(1)).await;
        drop((held, other));
        syncing.await.unwrap().unwrap();
        let is_whole = async |what: &str| {
            let view = read(&handle, &paths).await;
            let dataset = view.dsl().dataset("written/f").await.unwrap();
            let noted = view.dsl().dataset_field(&dataset, dataset_field::RESUME_BYTES).await.unwrap();
            let is_noted = noted == Some(4096);
            let objset = view.dsl().open_as_is(&dataset).await.unwrap().unwrap();
            let is_there = objset.object(id).await.is_ok();
            assert!(is_there || !is_noted, "{what}: the place is noted, and the data before it is not there");
            view.close().await;
            is_there && is_noted
        };
        is_whole("the closed txg").await;
        let receiving = noting.await.unwrap().unwrap();
        assert!(is_whole("the next txg").await);
        receiving.give_up().await.unwrap();
        pool.abort_receive("written/f").await.unwrap();
        goes_on(&handle, pool, &paths, "a place that is noted").await;
    });
}

/// Found by a hostile reader, regression: between the last record and the end others could destroy what was received, receive into the same
/// dataset, and rename it.
#[test]
fn what_was_received_is_in_use_until_the_end() {
    with_pool(2, async |handle, pool, paths| {
        take(&pool, &["written/a@1"]).await;
        let source = pool.dsl().unwrap().dataset("written/a@1").await.unwrap();
        let spec = received_as("written/a", ObjsetType::Zfs, Some(source.phys.guid));
        let received = pool.begin_receive(spec.clone()).await.unwrap().sync_and_close().await.unwrap();
        assert_eq!(received.replacing().as_deref(), Some("written/a/%recv"));
        assert!(pool.abort_receive("written/a").await.unwrap_err().to_string().contains("busy"));
        let other = ReceiveSpec { snapshot: "3".into(), to_guid: Guid(78), ..spec.clone() };
        assert!(pool.begin_receive(other).await.is_err(), "one receive into a dataset at a time");
        pool.rename_dataset("written/a", "written/renamed").await.unwrap();
        received.end().await.unwrap();
        let taken = pool.dsl().unwrap().dataset("written/renamed@2").await.unwrap();
        assert_eq!(taken.phys.guid, Guid(77));
        assert!(pool.dsl().unwrap().dataset("written/renamed/%recv").await.is_err());
        // One that is given up goes by its object too.
        let spec = ReceiveSpec { dataset: "written/renamed".into(), snapshot: "4".into(), to_guid: Guid(79), ..spec };
        let received = pool.begin_receive(spec).await.unwrap().sync_and_close().await.unwrap();
        pool.rename_dataset("written/renamed", "written/again").await.unwrap();
        received.give_up().await.unwrap();
        assert!(pool.dsl().unwrap().dataset("written/again/%recv").await.is_err());
        goes_on(&handle, pool, &paths, "receives and renames").await;
    });
}

#[test]
fn names_that_are_given_twice_are_refused_or_done_once_and_the_pool_goes_on() {
    with_pool(1, async |handle, pool, paths| {
        take(&pool, &["written/a@1", "written/a@1", "written/a/b@1"]).await;
        let twice = owned(&["written/a@1", "written/a/b@1", "written/a@1"]);
        let refused = hold(&pool, "t", &twice).await.unwrap_err().to_string();
        assert_eq!(refused, "cannot hold snapshot 'written/a@1': tag already exists on this dataset");
        hold(&pool, "t", &twice[..2]).await.unwrap();
        let refused = release(&pool, "t", &twice).await.unwrap_err().to_string();
        assert_eq!(refused, "cannot release hold from snapshot 'written/a@1': no such tag on this dataset");
        // None of it was done.
        let refused =
            destroy_snapshots(&pool, &owned(&["written/a/b@1"]), false, &|_| ()).await.unwrap_err().to_string();
        assert!(refused.contains("it's being held. Run 'zfs holds -r written/a/b@1' to see holders."), "{refused}");
        release(&pool, "t", &twice[..2]).await.unwrap();
        let two = take_snapshots(&pool, &owned(&["written/a@2", "written/a@3"]), &[]).await.unwrap_err().to_string();
        assert!(two.contains("multiple snapshots of same fs not allowed"), "{two}");
        destroy_snapshots(&pool, &twice, false, &|_| ()).await.unwrap();
        assert!(!is_there(&pool, "written/a@1").await && !is_there(&pool, "written/a@2").await);
        goes_on(&handle, pool, &paths, "names given twice").await;
    });
}

#[test]
fn a_deferred_origin_that_goes_with_its_last_clone_goes_in_a_tree_too() {
    for (seed, tree) in ["written/a", "written/top", "written/c"].into_iter().enumerate() {
        with_pool(seed as u64, async |handle, pool, paths| {
            pool.create_dataset("written/top", ObjsetType::Zfs).await.unwrap();
            pool.create_dataset("written/top/o", ObjsetType::Zfs).await.unwrap();
            take(&pool, &["written/a@1", "written/top/o@1"]).await;
            for (origin, clone) in [
                ("written/a@1", "written/c"),
                ("written/a@1", "written/d"),
                ("written/top/o@1", "written/top/p"),
                ("written/top/o@1", "written/top/q"),
            ] {
                clone_dataset(&pool, origin, clone, Vec::new()).await.unwrap();
            }
            destroy_snapshots(&pool, &owned(&["written/a@1", "written/top/o@1"]), true, &|_| ()).await.unwrap();
            take(&pool, &["written/c@x", "written/d@x", "written/top/p@x"]).await;
            destroy(&pool, tree, Reach { recursive: true, clones: tree == "written/a" }).await.unwrap();
            assert_eq!(is_there(&pool, "written/a@1").await, tree != "written/a", "{tree}");
            assert_eq!(is_there(&pool, "written/top/o@1").await, tree != "written/top", "{tree}");
            assert!(!is_there(&pool, tree).await);
            goes_on(&handle, pool, &paths, tree).await;
        });
    }
}

#[test]
fn properties_that_no_table_can_have_are_refused_before_anything_is_changed() {
    with_pool(3, async |handle, pool, paths| {
        let (name, value) = (format!("a:{}", "n".repeat(253)), "v".repeat(8191));
        for (name, value) in [(format!("{name}n"), "1".to_owned()), ("a:b".to_owned(), format!("{value}v"))] {
            let set = [(name.clone(), value.clone())];
            let refused = take_snapshots(&pool, &owned(&["written/a@1"]), &set).await.unwrap_err().to_string();
            assert!(refused.contains("too long"), "{}", &refused[..100]);
            let settings = [(name, PropertyValue::Text(value))];
            assert!(set_properties(&pool, &owned(&["written/a"]), &settings).await.is_err());
            assert!(create_filesystem(&pool, "written/new", settings.to_vec(), false).await.is_err());
            take(&pool, &["written/a@0"]).await;
            assert!(clone_dataset(&pool, "written/a@0", "written/c", settings.to_vec()).await.is_err());
            destroy_snapshots(&pool, &owned(&["written/a@0"]), false, &|_| ()).await.unwrap();
        }
        // A quota that the clone's own reservation exceeds is refused with the rest.
        take(&pool, &["written/a@0"]).await;
        let number = |name: &str, number| (name.to_owned(), PropertyValue::Number(number));
        let settings = vec![number("refreservation", 8 << 20), number("quota", 1 << 20)];
        assert!(clone_dataset(&pool, "written/a@0", "written/c", settings).await.is_err());
        assert!(!is_there(&pool, "written/c").await);
        take_snapshots(&pool, &owned(&["written/a@1"]), &[(name.clone(), value.clone())]).await.unwrap();
        set_properties(&pool, &owned(&["written/a"]), &[(name, PropertyValue::Text(value))]).await.unwrap();
        goes_on(&handle, pool, &paths, "properties").await;
    });
}

#[test]
fn a_snapshot_that_somebody_reads_is_not_destroyed() {
    with_pool(4, async |handle, pool, paths| {
        take(&pool, &["written/a@1", "written/a/b@0"]).await;
        take(&pool, &["written/a@2", "written/a/b@1"]).await;
        clone_dataset(&pool, "written/a@2", "written/c", Vec::new()).await.unwrap();
        hold(&pool, "t", &owned(&["written/a@1"])).await.unwrap();
        // Both go with the last hold or clone.
        destroy_snapshots(&pool, &owned(&["written/a@1", "written/a@2"]), true, &|_| ()).await.unwrap();
        let mut read = Vec::new();
        for name in ["written/a@1", "written/a@2", "written/a/b@1"] {
            let snapshot = pool.dsl().unwrap().dataset(name).await.unwrap();
            read.push(pool.long_hold(snapshot.object, snapshot.phys.guid).await.unwrap());
            let other = Guid(snapshot.phys.guid.0 ^ 1);
            assert!(pool.long_hold(snapshot.object, other).await.is_err(), "it is not there any more");
        }
        let busy = |refused: Result<(), AdminError>, name: &str| {
            let said = refused.unwrap_err().to_string();
            assert_eq!(said, format!("cannot destroy snapshot {name}: dataset is busy"));
        };
        let leaf = || owned(&["written/a/b@1"]);
        busy(destroy_snapshots(&pool, &leaf(), false, &|_| ()).await, "written/a/b@1");
        busy(destroy_snapshots(&pool, &leaf(), true, &|_| ()).await, "written/a/b@1");
        busy(destroy(&pool, "written/a/b", Reach { recursive: true, clones: false }).await, "written/a/b@1");
        busy(release(&pool, "t", &owned(&["written/a@1"])).await, "written/a@1");
        busy(destroy(&pool, "written/c", Reach::default()).await, "written/a@2");
        busy(rollback(&pool, "written/a/b@0", true).await, "written/a/b@1");
        for name in ["written/a@1", "written/a@2", "written/a/b@1", "written/c"] {
            assert!(is_there(&pool, name).await, "{name}");
        }
        drop(read);
        release(&pool, "t", &owned(&["written/a@1"])).await.unwrap();
        destroy(&pool, "written/c", Reach::default()).await.unwrap();
        destroy_snapshots(&pool, &leaf(), false, &|_| ()).await.unwrap();
        for name in ["written/a@1", "written/a@2", "written/a/b@1", "written/c"] {
            assert!(!is_there(&pool, name).await, "{name}");
        }
        goes_on(&handle, pool, &paths, "snapshots that were read").await;
    });
}

/// The table of a deadlist has an entry for each earlier snapshot. The 2047th made it a fat ZAP before the object had its bonus, so the txg
/// failed, and the pool could not be written any more.
#[test]
fn a_dataset_has_more_snapshots_than_a_micro_zap_has_entries() {
    const COUNT: usize = 2055;
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    // Each table is as long as there are snapshots before it.
    let machine = machine_of(&runtime, 2, Latency::default());
    runtime.block_on(async {
        let two = &[(TopKind::Single, 1), (TopKind::Single, 1)];
        let pool = make(&handle, options(machine.tops(&handle, two).await.unwrap(), 9)).await;
        pool.create_dataset("written/a", ObjsetType::Zfs).await.unwrap();
        for number in 0..COUNT {
            take_snapshots(&pool, &[format!("written/a@{number}")], &[]).await.unwrap();
        }
        let range: Vec<String> = (10..COUNT - 3).map(|number| format!("written/a@{number}")).collect();
        let last = &range[range.len() - 1..];
        hold(&pool, "t", last).await.unwrap();
        let steps = Mutex::new(Vec::new());
        let told = |count| steps.lock().unwrap().push(count);
        assert!(destroy_snapshots(&pool, &range, false, &told).await.is_err());
        assert!(is_there(&pool, &range[0]).await, "all are checked before the first one goes");
        release(&pool, "t", last).await.unwrap();
        assert!(steps.lock().unwrap().is_empty(), "no step was made");
        destroy_snapshots(&pool, &range, false, &told).await.unwrap();
        let steps = steps.into_inner().unwrap();
        assert!(steps.len() > 2 && steps.iter().sum::<usize>() == range.len(), "{steps:?}");
        while pool.peek(|syncer| syncer.has_work()).await.unwrap() {
            pool.sync().await.unwrap();
        }
        pool.export().await.unwrap();
        let (_, report) = check(&handle, &machine.paths).await;
        assert_clean(&report, "after many snapshots");
    });
}

/// A snapshot takes nothing of the space that is kept back: where there is no other it is refused, and room can be made.
#[test]
fn a_full_pool_refuses_snapshots_and_destroys_datasets() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    runtime.block_on(async {
        let pool = make(&handle, options(machine.tops(&handle, SINGLE).await.unwrap(), 12)).await;
        pool.create_dataset("written/a", ObjsetType::Zfs).await.unwrap();
        // As much as 30 snapshots are taken for is more than the last write that is refused.
        let all: Vec<String> = (0..30).map(|number| format!("written/s{number}@1")).collect();
        for snapshot in &all {
            pool.create_dataset(snapshot.split_once('@').unwrap().0, ObjsetType::Zfs).await.unwrap();
        }
        pool.sync().await.unwrap();
        let pool = pool.start(TxTunables::default()).await;
        let head = pool.open_head("written/a").await.unwrap();
        let object = cenote_sim::written::blocks::make_objects(&head, 1).await.remove(0);
        let (step, mut rng) = (128 << 10, Rng::new(1));
        for number in 0.. {
            let Ok(tx) = head.begin(Cost::write(number * step, step, step)).await else { break };
            let mut bytes = vec![0; step as usize];
            rng.fill(&mut bytes);
            object.write(tx.txg(), number * step, &bytes).await.unwrap();
            drop(tx);
            pool.sync().await.unwrap();
        }
        drop((head, object));
        let refused = take_snapshots(&pool, &all, &[]).await.unwrap_err().to_string();
        assert!(refused.contains("cannot create snapshot 'written/s0@1': out of space"), "{refused}");
        destroy(&pool, "written/a", Reach::default()).await.unwrap();
        while pool.peek(|syncer| syncer.has_work()).await.unwrap() {
            pool.sync().await.unwrap();
        }
        for _ in 0..4 {
            pool.sync().await.unwrap();
        }
        take_snapshots(&pool, &all, &[]).await.unwrap();
        pool.export().await.unwrap();
    });
}
