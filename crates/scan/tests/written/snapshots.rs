//! Goal: snapshots, clones and what is left when they go are right in contents and in space, whatever the history. Method: verbs and writes
//! at random beside a plain model; the pool is read as it is on disk, and what it says of space is compared with all trees.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use cenote_admin::{
    AdminError, Reach, clone_dataset, create_bookmarks, create_filesystem, destroy, destroy_bookmarks,
    destroy_snapshots, hold, promote, release, rollback, set_properties, take_snapshots,
};
use cenote_dmu::ObjectSpec;
use cenote_dmu::tx::{Cost, TxTunables};
use cenote_dsl::name::is_at_or_below;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::dataset_field;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{Guid, ObjectId};
use cenote_format::needs::Needs;
use cenote_sim::audit_space;
use cenote_spa::{
    ImportOptions, NewBookmark, NewSnapshot, Pool, PropertyValue, ReceivePoint, ReceiveSpec, Resumable, TopKind, View,
    find, import, open,
};
use cenote_taskq::sim::disk::{Crash, Latency};
use cenote_taskq::{Class, Handle, Rng, Runtime};

use crate::common::*;
use crate::reopened::write_options;

/// Objects of a dataset, and their bytes.
type Contents = BTreeMap<u64, Vec<u8>>;

/// Heads and snapshots by name; the snapshots in the order in which they were taken.
#[derive(Clone, Default)]
struct Model {
    heads: BTreeMap<String, Contents>,
    snapshots: Vec<(String, Contents)>,
    /// Clones, and the snapshots that they began as.
    origins: BTreeMap<String, String>,
    holds: BTreeSet<(String, String)>,
    /// Snapshots that go with their last hold or clone.
    deferred: BTreeSet<String>,
    /// Bookmarks, and when their snapshots were taken.
    bookmarks: BTreeMap<String, u64>,
}

impl Model {
    fn has_snapshots(&self, head: &str) -> bool {
        self.snapshots.iter().any(|(name, _)| of(name) == head)
    }

    fn is_kept(&self, snapshot: &str) -> bool {
        self.origins.values().any(|origin| origin == snapshot) || self.holds.iter().any(|(held, _)| held == snapshot)
    }

    fn remove(&mut self, snapshot: &str) {
        self.snapshots.retain(|(name, _)| name != snapshot);
        self.deferred.remove(snapshot);
    }

    fn rename(&mut self, new_name: impl Fn(&String) -> String) {
        self.snapshots.iter_mut().for_each(|(name, _)| *name = new_name(name));
        self.holds = self.holds.iter().map(|(name, tag)| (new_name(name), tag.clone())).collect();
        self.deferred = self.deferred.iter().map(&new_name).collect();
        self.origins.values_mut().for_each(|origin| *origin = new_name(origin));
    }

    /// Snapshots that were to go, and that nothing keeps any more.
    fn settle(&mut self) {
        for snapshot in self.deferred.clone() {
            if !self.is_kept(&snapshot) {
                self.remove(&snapshot);
            }
        }
    }
}

/// The head of a snapshot or a bookmark.
fn of(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap()
}

/// When a snapshot was taken: its name keeps that when it gets another.
fn taken(snapshot: &str) -> u64 {
    let (_, name) = snapshot.split_once("@s").unwrap();
    name.split('r').next().unwrap().parse().unwrap()
}

fn any<'a, T>(all: impl ExactSizeIterator<Item = &'a T>, rng: &mut Rng) -> Option<&'a T> {
    let mut all = all;
    let count = all.len() as u64;
    if count == 0 { None } else { all.nth(rng.below(count) as usize) }
}

async fn read(handle: &Handle, paths: &[PathBuf]) -> View {
    let (mut pools, _) = find(handle, paths).await;
    let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    import(handle, pools.remove(0), &how).await.unwrap()
}

async fn reopened(handle: &Handle, paths: &[PathBuf]) -> Pool {
    let (mut pools, _) = find(handle, paths).await;
    let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    open(handle, pools.remove(0), &how, write_options()).await.unwrap()
}

async fn write(pool: &Pool, name: &str, contents: &mut Contents, rng: &mut Rng) {
    let head = pool.open_head(name).await.unwrap();
    let txg = pool.txg();
    for _ in 0..1 + rng.below(6) {
        let object = any(contents.keys(), rng).copied();
        match (rng.below(6), object) {
            (0, _) | (_, None) => {
                let spec = ObjectSpec::new(DmuType::UINT8_DATA, 512 << rng.below(6));
                contents.insert(head.objset.create_object(txg, &spec).unwrap().id().0, Vec::new());
            }
            (1, Some(object)) => {
                head.objset.object(ObjectId(object)).await.unwrap().free(txg);
                contents.remove(&object);
            }
            (_, Some(object)) => {
                let bytes = contents.get_mut(&object).unwrap();
                let reach = 8 + rng.below(10);
                let at = rng.below(1 << reach) as usize;
                let mut new = vec![0; 1 + rng.below(20_000) as usize];
                if rng.chance(3, 4) {
                    rng.fill(&mut new);
                }
                bytes.resize(bytes.len().max(at + new.len()), 0);
                bytes[at..at + new.len()].copy_from_slice(&new);
                head.objset.object(ObjectId(object)).await.unwrap().write(txg, at as u64, &new).await.unwrap();
            }
        }
    }
}

/// One verb at random.
async fn step(pool: &Pool, model: &mut Model, next: &mut u64, rng: &mut Rng) -> Result<(), AdminError> {
    let head = any(model.heads.keys(), rng).cloned().expect("there is a head");
    let snapshot = any(model.snapshots.iter(), rng).map(|(name, _)| name.clone());
    *next += 1;
    match (rng.below(22), snapshot) {
        (0..=5, _) => write(pool, &head, model.heads.get_mut(&head).unwrap(), rng).await,
        (6..=8, _) => {
            let some: Vec<String> = model.heads.keys().filter(|_| rng.chance(1, 2)).cloned().collect();
            let names: Vec<String> = some.iter().map(|head| format!("{head}@s{next}")).collect();
            take_snapshots(pool, &names, &[("test:number".to_owned(), next.to_string())]).await?;
            for (head, name) in some.iter().zip(names) {
                model.snapshots.push((name, model.heads[head].clone()));
            }
        }
        (9, Some(snapshot)) => {
            let name = format!("written/c{next}");
            clone_dataset(pool, &snapshot, &name, Vec::new()).await?;
            let (_, contents) = model.snapshots.iter().find(|(other, _)| *other == snapshot).unwrap();
            model.heads.insert(name.clone(), contents.clone());
            model.origins.insert(name, snapshot);
        }
        (10..=12, Some(_)) => {
            let some: Vec<String> =
                model.snapshots.iter().filter(|_| rng.chance(1, 4)).map(|(name, _)| name.clone()).collect();
            let is_deferred = rng.chance(1, 3);
            let are_kept = some.iter().any(|name| model.is_kept(name));
            let destroyed = destroy_snapshots(pool, &some, is_deferred, &|_| ()).await;
            assert_eq!(destroyed.is_ok(), is_deferred || !are_kept, "{some:?}: {destroyed:?}");
            if destroyed.is_ok() {
                for name in some {
                    if model.is_kept(&name) {
                        model.deferred.insert(name);
                    } else {
                        model.remove(&name);
                    }
                }
            }
        }
        (13, Some(snapshot)) => {
            let newer: Vec<String> = model
                .snapshots
                .iter()
                .map(|(name, _)| name.clone())
                .filter(|name| of(name) == of(&snapshot))
                .skip_while(|name| *name != snapshot)
                .skip(1)
                .collect();
            let destroys = rng.chance(1, 2);
            let after = |name: &String, when: &u64| of(name) == of(&snapshot) && *when > taken(&snapshot);
            let are_newer = !newer.is_empty() || model.bookmarks.iter().any(|(name, when)| after(name, when));
            let may = !are_newer || (destroys && !newer.iter().any(|name| model.is_kept(name)));
            let went = rollback(pool, &snapshot, destroys).await;
            assert_eq!(went.is_ok(), may, "{snapshot}: {went:?}");
            if may {
                newer.iter().for_each(|name| model.remove(name));
                model.bookmarks.retain(|name, when| !after(name, when));
                let (_, contents) = model.snapshots.iter().find(|(other, _)| *other == snapshot).unwrap();
                model.heads.insert(of(&snapshot).to_owned(), contents.clone());
            }
        }
        (14, Some(snapshot)) => {
            let hold_of = any(model.holds.iter(), rng).cloned();
            match hold_of.filter(|_| rng.chance(1, 2)) {
                Some((snapshot, tag)) => {
                    release(pool, &tag, std::slice::from_ref(&snapshot)).await?;
                    model.holds.remove(&(snapshot, tag));
                    model.settle();
                }
                None => {
                    let tag = format!("t{}", rng.below(3));
                    let is_new = !model.holds.contains(&(snapshot.clone(), tag.clone()));
                    let held = hold(pool, &tag, std::slice::from_ref(&snapshot)).await;
                    assert_eq!(held.is_ok(), is_new, "{held:?}");
                    model.holds.insert((snapshot, tag));
                }
            }
        }
        // One with datasets below it stays.
        (15, _) if model.origins.contains_key(&head) && head != "written/a" => {
            let has_snapshots = model.has_snapshots(&head);
            let recursive = rng.chance(1, 2);
            let own: Vec<String> =
                model.snapshots.iter().map(|(name, _)| name.clone()).filter(|name| of(name) == head).collect();
            let may = !has_snapshots || (recursive && !own.iter().any(|name| model.is_kept(name)));
            let gone = destroy(pool, &head, Reach { recursive, clones: false }).await;
            assert_eq!(gone.is_ok(), may, "{head}: {gone:?}");
            if may {
                own.iter().for_each(|name| model.remove(name));
                model.heads.remove(&head);
                model.bookmarks.retain(|name, _| of(name) != head);
                model.origins.remove(&head);
                model.settle();
            }
        }
        (16, _) => {
            let Some(origin) = model.origins.get(&head).cloned() else { return Ok(()) };
            let of_origin = of(&origin).to_owned();
            promote(pool, &head).await?;
            // The origin and the snapshots before it are the clone's now.
            let last = model.snapshots.iter().position(|(name, _)| *name == origin).unwrap();
            let moved: Vec<String> = model.snapshots[..=last]
                .iter()
                .map(|(name, _)| name.clone())
                .filter(|name| of(name) == of_origin)
                .collect();
            let new_name = |name: &String| match moved.contains(name) {
                true => name.replacen(&of_origin, &head, 1),
                false => name.clone(),
            };
            let moves = |name: &str, when: u64| of(name) == of_origin && when <= taken(&origin);
            let bookmarks = std::mem::take(&mut model.bookmarks).into_iter().map(|(name, when)| {
                let name = if moves(&name, when) { name.replacen(&of_origin, &head, 1) } else { name };
                (name, when)
            });
            model.bookmarks = bookmarks.collect();
            let above = model.origins.remove(&head).map(|_| model.origins.remove(&of_origin));
            model.rename(new_name);
            if let Some(above) = above.flatten() {
                model.origins.insert(head.clone(), new_name(&above));
            }
            model.origins.insert(of_origin.clone(), new_name(&origin));
        }
        (17..=18, Some(snapshot)) => {
            // Of a clone's time before it was one, too.
            let clone = any(model.origins.iter().collect::<Vec<_>>().iter(), rng).copied();
            let (head, source) = match clone.filter(|_| rng.chance(1, 4)) {
                Some((clone, origin)) => (clone.clone(), origin.clone()),
                None => (of(&snapshot).to_owned(), snapshot),
            };
            let name = format!("{head}#b{next}");
            let when = taken(&source);
            create_bookmarks(pool, vec![NewBookmark { name: name.clone(), source }]).await?;
            model.bookmarks.insert(name, when);
        }
        (19, _) => {
            let Some(source) = any(model.bookmarks.keys(), rng).cloned() else { return Ok(()) };
            let name = format!("{}#c{next}", of(&source));
            create_bookmarks(pool, vec![NewBookmark { name: name.clone(), source: source.clone() }]).await?;
            model.bookmarks.insert(name, model.bookmarks[&source]);
        }
        (20, _) => {
            let some: Vec<String> = model.bookmarks.keys().filter(|_| rng.chance(1, 4)).cloned().collect();
            model.bookmarks.retain(|name, _| !some.contains(name));
            destroy_bookmarks(pool, some).await?;
        }
        (21, Some(snapshot)) => {
            let (head, name) = snapshot.split_once('@').unwrap();
            let new = format!("s{}r{next}", taken(&snapshot));
            let recursive = rng.chance(1, 2);
            pool.rename_snapshots(head, name, &new, recursive).await?;
            let renamed = |full: &String| {
                let (of, old) = full.split_once('@').unwrap();
                let is_meant = old == name && (of == head || recursive && is_at_or_below(of, head));
                if is_meant { format!("{of}@{new}") } else { full.clone() }
            };
            model.rename(renamed);
        }
        _ => {}
    }
    Ok(())
}

/// The pool on disk is the model: names, contents, and all accounts of space.
async fn compare(handle: &Handle, paths: &[PathBuf], model: &Model, what: &str) {
    let (_, report) = check(handle, paths).await;
    assert_clean(&report, what);
    let view = read(handle, paths).await;
    audit_space(&view).await.unwrap_or_else(|error| panic!("{what}: {error:#}"));
    let dsl = view.dsl();
    let all = model.heads.iter().chain(model.snapshots.iter().map(|(name, contents)| (name, contents)));
    for (name, contents) in all {
        let dataset = dsl.dataset(name).await.unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
        let objset = dsl.open(&dataset).await.unwrap().unwrap();
        for (object, bytes) in contents {
            let object = objset.object(ObjectId(*object)).await.unwrap();
            let found = object.read(0, bytes.len()).await.unwrap();
            assert!(found.to_vec() == *bytes, "{what}: {name}, object {}", object.id());
        }
        if !dataset.is_snapshot() {
            let mut names: Vec<String> = dsl.snapshots(&dataset).await.unwrap().iter().map(|it| it.name()).collect();
            let mut expected: Vec<String> =
                model.snapshots.iter().map(|(name, _)| name.clone()).filter(|snapshot| of(snapshot) == name).collect();
            names.sort();
            expected.sort();
            assert_eq!(names, expected, "{what}: {name}");
            let bookmarks = dsl.bookmarks(&dataset).await.unwrap();
            let names: Vec<&String> = bookmarks.iter().map(|bookmark| &bookmark.name).collect();
            let expected: Vec<&String> = model.bookmarks.keys().filter(|bookmark| of(bookmark) == name).collect();
            assert_eq!(names, expected, "{what}: {name}");
            for bookmark in &bookmarks {
                assert!(bookmark.has_sizes(), "{what}: {}", bookmark.name);
            }
        }
    }
    view.close().await;
}

#[test]
fn histories_of_snapshots_and_clones_add_up() {
    let layouts = [LAYOUTS[0], LAYOUTS[2], LAYOUTS[0], LAYOUTS[3]];
    let mut verbs = 0;
    for (seed, layout) in (0..4).zip(layouts.into_iter().cycle()) {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_of(&runtime, count, Latency::default());
        let paths = machine.paths.clone();
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let mut pool =
                make(&handle, options(machine.tops(&handle, layout).await.unwrap(), 9 + (seed % 2) as u32 * 3)).await;
            let mut model = Model::default();
            for name in ["written/a", "written/b", "written/a/below"] {
                pool.create_dataset(name, ObjsetType::Zfs).await.unwrap();
                model.heads.insert(name.to_owned(), Contents::new());
            }
            if seed % 2 == 1 {
                // Counts are kept then, and audited.
                for property in ["filesystem_limit", "snapshot_limit"] {
                    pool.change_property("written/a", property, Some(&PropertyValue::Number(1000))).await.unwrap();
                }
            }
            pool.sync().await.unwrap();
            let mut next = 0;
            for turn in 0..120 {
                step(&pool, &mut model, &mut next, &mut rng)
                    .await
                    .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                verbs += 1;
                if rng.chance(1, 3) {
                    pool.sync().await.unwrap();
                    if rng.chance(1, 4) {
                        compare(&handle, &paths, &model, &format!("seed {seed}, turn {turn}")).await;
                    }
                    if rng.chance(1, 10) {
                        // As after a crash between two txgs.
                        drop(pool);
                        pool = reopened(&handle, &paths).await;
                    }
                }
            }
            while pool.peek(|syncer| syncer.has_work()).await.unwrap() {
                pool.sync().await.unwrap();
            }
            pool.export().await.unwrap();
            compare(&handle, &paths, &model, &format!("seed {seed} at the end")).await;
            if cenote_testkit::zdb::program("zdb").is_some() {
                let images: Vec<_> = machine.disks.iter().map(|disk| disk.image()).collect();
                cenote_sim::zdb("written", &images, machine.size_bytes).unwrap();
            }
        });
    }
    assert!(verbs >= 400);
}

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
                let objset = view.dsl().open(&dataset).await.unwrap().unwrap();
                let object = objset.object(id).await.unwrap();
                let bytes = object.read(0, 8).await.unwrap();
                let found = u64::from_le_bytes(*bytes.first_chunk().unwrap());
                assert!((before..=after).contains(&found), "seed {seed}, {name}: {found} of {before} to {after}");
            }
        });
    }
    assert!(later_txgs > 0, "some had to wait for the next txg");
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
            assert!(view.dsl().open(&begun).await.unwrap().is_some(), "{name}");
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
            let objset = view.dsl().open(&dataset).await.unwrap().unwrap();
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
            pool.create_dataset(of(snapshot), ObjsetType::Zfs).await.unwrap();
        }
        pool.sync().await.unwrap();
        let pool = pool.start(TxTunables::default()).await;
        let head = pool.open_head("written/a").await.unwrap();
        let object = crate::live::make_objects(&head, 1).await.remove(0);
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
