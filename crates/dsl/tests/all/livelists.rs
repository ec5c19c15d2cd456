//! Goal: a livelist has what its clone has, whatever the history, and a clone that is destroyed by it leaves nothing behind. Method: changes,
//! snapshots and clones at random, with lists so short that they are split and become one again; the lists are compared with the trees, and
//! judged by `verify` and by OpenZFS's `zdb`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cenote_admin::{Reach, clone_dataset, destroy, destroy_snapshots, promote, rollback, take_snapshots};
use cenote_dmu::tx::TxTunables;
use cenote_dmu::{Object, ObjectSpec, Zap};
use cenote_dsl::Dsl;
use cenote_format::bpobj::BpobjPhys;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{dir_field, pool_directory};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::ObjectId;
use cenote_format::zap::ZapValue;
use cenote_sim::audit_space;
use cenote_spa::features::FeatureState;
use cenote_spa::{FeatureName, Pool, PoolError, SpaError, View, find, import, open};
use cenote_taskq::sim::disk::Latency;
use cenote_taskq::{Handle, Rng, Runtime, RuntimeOptions};
use cenote_testkit::Golden;
use cenote_testkit::zdb::{Devices, program, run};

use cenote_sim::written::files::{change_files, contents, file_system, judge};
use cenote_sim::written::*;

/// Objects of a dataset.
const OBJECTS: u64 = 24;

async fn opened_to_list(handle: &Handle, paths: &[PathBuf], tunables: &[&str]) -> Pool {
    let (mut pools, skipped) = find(handle, paths).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    open(handle, pools.remove(0), &import_with(tunables), write_options()).await.unwrap()
}

async fn read(handle: &Handle, paths: &[PathBuf]) -> View {
    let (mut pools, _) = find(handle, paths).await;
    import(handle, pools.remove(0), &import_with(&[])).await.unwrap()
}

/// Makes objects.
async fn fill(pool: &Pool, name: &str, rng: &mut Rng) -> Vec<ObjectId> {
    let head = pool.open_head(name).await.unwrap();
    let mut objects = Vec::new();
    for _ in 0..OBJECTS {
        let object = head.objset.create_object(pool.txg(), &ObjectSpec::new(DmuType::UINT8_DATA, 4096)).unwrap();
        let mut bytes = vec![0; 80_000];
        rng.fill(&mut bytes);
        object.write(pool.txg(), 0, &bytes).await.unwrap();
        objects.push(object.id());
    }
    objects
}

/// Overwrites, frees, makes and removes this and that.
async fn change(pool: &Pool, name: &str, objects: &mut Vec<ObjectId>, rng: &mut Rng) {
    let head = pool.open_head(name).await.unwrap();
    let txg = pool.txg();
    for _ in 0..1 + rng.below(5) {
        let at = rng.below(objects.len() as u64) as usize;
        let object = head.objset.object(objects[at]).await.unwrap();
        match rng.below(8) {
            0 => object.free_blocks(txg, rng.below(20)..rng.below(30) + 20),
            1 if objects.len() > 6 => {
                object.free(txg);
                objects.swap_remove(at);
            }
            2 => {
                let spec = ObjectSpec::new(DmuType::UINT8_DATA, 512 << rng.below(6));
                objects.push(head.objset.create_object(txg, &spec).unwrap().id());
            }
            // Its data is in its pointer.
            3 => object.write(txg, 4096 * rng.below(20), &[7; 4096]).await.unwrap(),
            _ => {
                let mut bytes = vec![0; 1 + rng.below(20_000) as usize];
                rng.fill(&mut bytes);
                object.write(txg, rng.below(80_000), &bytes).await.unwrap();
            }
        }
    }
}

/// The first txgs of the lists of each clone's livelist.
async fn lists(dsl: &Dsl) -> BTreeMap<ObjectId, BTreeSet<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for dir in dsl.tree(dsl.root_dir().await.unwrap(), false).await.unwrap() {
        if let Some(livelist) = dsl.dir_field(&dir, dir_field::LIVELIST).await.unwrap() {
            let object = dsl.mos().object(ObjectId(livelist)).await.unwrap();
            let entries = Zap::open(object).await.unwrap().entries(1000).await.unwrap();
            found.insert(ObjectId(livelist), entries.iter().map(|entry| entry.name().to_vec()).collect());
        }
    }
    found
}

async fn is_feature_used(view: &View) -> bool {
    let features = view.features().await.unwrap();
    let found = features.iter().find(|(name, _)| matches!(name, FeatureName::Known(it) if it.name == "livelist"));
    matches!(found, Some((_, FeatureState::Active)))
}

async fn is_whole(handle: &Handle, paths: &[PathBuf], what: &str) {
    let (_, report) = check(handle, paths).await;
    assert_clean(&report, what);
    let view = read(handle, paths).await;
    audit_space(&view).await.unwrap_or_else(|error| panic!("{what}: {error:#}"));
    view.close().await;
}

async fn work_off(pool: &Pool) {
    while pool.peek(|syncer| syncer.has_work()).await.unwrap() {
        pool.sync().await.unwrap();
    }
}

#[test]
fn livelists_have_what_their_clones_have_and_free_it() {
    let (mut most_lists, mut condensed, mut destroyed) = (0, 0, 0);
    for (seed, layout) in [(1, LAYOUTS[0]), (2, LAYOUTS[2]), (3, LAYOUTS[3])] {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let machine = machine_of(&runtime, layout.iter().map(|(_, count)| count).sum(), Latency::default());
        let paths = machine.paths.clone();
        let zdb = |what: &str| {
            if cenote_testkit::zdb::program("zdb").is_some() {
                let images = machine.images();
                let told = cenote_sim::zdb("written", &images, machine.size_bytes);
                told.unwrap_or_else(|error| panic!("seed {seed}, {what}: {error:#}"));
            }
        };
        let entries = format!("zfs_livelist_max_entries={}", 40 * seed);
        let tunables = [entries.as_str(), "zfs_livelist_min_percent_shared=0"];
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let pool = make(&handle, options(machine.tops(&handle, layout).await.unwrap(), 9)).await;
            pool.create_dataset("written/o", ObjsetType::Zfs).await.unwrap();
            let objects = fill(&pool, "written/o", &mut rng).await;
            let mut objects: BTreeMap<&str, Vec<ObjectId>> =
                ["written/o", "written/c", "written/d"].into_iter().map(|name| (name, objects.clone())).collect();
            pool.sync().await.unwrap();
            take_snapshots(&pool, &["written/o@1".into()], &[]).await.unwrap();
            pool.export().await.unwrap();
            let mut pool = opened_to_list(&handle, &paths, &tunables).await;
            for name in ["written/c", "written/d"] {
                clone_dataset(&pool, "written/o@1", name, vec![]).await.unwrap();
            }
            pool.sync().await.unwrap();
            let mut before = BTreeMap::new();
            for turn in 0..120 {
                let name = ["written/o", "written/c", "written/c", "written/d", "written/e"][rng.below(5) as usize];
                let is_there = objects.contains_key(name);
                match rng.below(12) {
                    0 if is_there => take_snapshots(&pool, &[format!("{name}@s{turn}")], &[]).await.unwrap(),
                    1 if is_there => {
                        let dsl = pool.dsl().unwrap();
                        let snapshots = dsl.snapshots(&dsl.dataset(name).await.unwrap()).await.unwrap();
                        // One that is a clone's origin stays.
                        for snapshot in snapshots.iter().take(1) {
                            let _ = destroy_snapshots(&pool, &[snapshot.name()], false, &|_| ()).await;
                        }
                    }
                    2..6 if name == "written/e" && !is_there => {
                        take_snapshots(&pool, &[format!("written/c@e{turn}")], &[]).await.unwrap();
                        clone_dataset(&pool, &format!("written/c@e{turn}"), name, vec![]).await.unwrap();
                        objects.insert(name, objects["written/c"].clone());
                    }
                    2..4 if name == "written/e" => {
                        destroy(&pool, name, Reach { recursive: true, clones: true }).await.unwrap();
                        objects.remove(name);
                        destroyed += 1;
                    }
                    _ if is_there => change(&pool, name, objects.get_mut(name).unwrap(), &mut rng).await,
                    _ => {}
                }
                if rng.chance(2, 3) || turn % 20 == 19 {
                    pool.sync().await.unwrap();
                    let now = lists(&pool.dsl().unwrap()).await;
                    most_lists = most_lists.max(now.values().map(BTreeSet::len).max().unwrap_or(0));
                    let is_condensed = |(list, firsts): (&ObjectId, &BTreeSet<_>)| {
                        now.get(list).is_some_and(|now| !now.is_superset(firsts))
                    };
                    condensed += before.iter().filter(|list| is_condensed(*list)).count();
                    before = now;
                }
                if turn % 20 == 19 {
                    is_whole(&handle, &paths, &format!("seed {seed}, turn {turn}")).await;
                }
                if rng.chance(1, 15) {
                    pool.sync().await.unwrap();
                    // As after a crash between two txgs.
                    drop(pool);
                    pool = opened_to_list(&handle, &paths, &tunables).await;
                }
            }
            work_off(&pool).await;
            pool.export().await.unwrap();
            zdb("with clones");
            let mut pool = opened_to_list(&handle, &paths, &tunables).await;
            let blocks = 1;
            pool.peek(move |syncer| syncer.set_async_block_max_blocks(blocks)).await.unwrap();
            for name in ["written/e", "written/d", "written/c"] {
                let is_there = pool.dsl().unwrap().dataset(name).await.is_ok();
                if is_there {
                    destroy(&pool, name, Reach { recursive: true, clones: true }).await.unwrap();
                    pool.sync().await.unwrap();
                }
            }
            let view = read(&handle, &paths).await;
            assert!(view.directory().find_u64(pool_directory::DELETED_CLONES).await.unwrap().is_some());
            assert!(is_feature_used(&view).await);
            view.close().await;
            let mut slices = 0;
            while pool.peek(|syncer| syncer.has_work()).await.unwrap() {
                let blocks = 1 + rng.below(30);
                pool.peek(move |syncer| syncer.set_async_block_max_blocks(blocks)).await.unwrap();
                pool.sync().await.unwrap();
                slices += 1;
                if slices == 3 {
                    drop(pool);
                    zdb("part-way");
                    pool = opened_to_list(&handle, &paths, &tunables).await;
                }
                if slices % 8 == 1 {
                    is_whole(&handle, &paths, &format!("seed {seed}, slice {slices}")).await;
                }
            }
            assert!(slices > 5, "seed {seed}: only {slices} slices");
            pool.export().await.unwrap();
            is_whole(&handle, &paths, &format!("seed {seed} at the end")).await;
            zdb("at the end");
            let view = read(&handle, &paths).await;
            assert!(view.directory().find_u64(pool_directory::DELETED_CLONES).await.unwrap().is_none());
            assert!(!is_feature_used(&view).await);
        });
    }
    let done = format!("{most_lists} lists, {condensed} condensed, {destroyed} destroyed");
    assert!(most_lists > 2 && condensed > 2 && destroyed > 0, "{done}");
}

/// A clone does without a livelist when it shares little with its origin, is promoted or goes back, and is destroyed by its tree then.
#[test]
fn clones_lose_their_livelists_as_in_openzfs() {
    let runtime = Runtime::simulated(1);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    let paths = machine.paths.clone();
    runtime.block_on(async {
        let mut rng = Rng::new(1);
        let pool = make(&handle, options(machine.tops(&handle, LAYOUTS[0]).await.unwrap(), 9)).await;
        pool.create_dataset("written/o", ObjsetType::Zfs).await.unwrap();
        let mut objects = fill(&pool, "written/o", &mut rng).await;
        pool.sync().await.unwrap();
        take_snapshots(&pool, &["written/o@1".into()], &[]).await.unwrap();
        let has = async |name: &str| {
            let dsl = pool.dsl().unwrap();
            let dataset = dsl.dataset(name).await.unwrap();
            dsl.dir_field(&dataset.dir, dir_field::LIVELIST).await.unwrap().is_some()
        };
        for name in ["written/a", "written/b", "written/c"] {
            clone_dataset(&pool, "written/o@1", name, vec![]).await.unwrap();
            assert!(has(name).await);
        }
        pool.sync().await.unwrap();
        // Little by little, up to a quarter.
        let head = pool.open_head("written/a").await.unwrap();
        for (count, object) in objects.iter().enumerate() {
            let object = head.objset.object(*object).await.unwrap();
            let mut bytes = vec![0; 80_000];
            rng.fill(&mut bytes);
            object.write(pool.txg(), 0, &bytes).await.unwrap();
            pool.sync().await.unwrap();
            if count == 1 {
                assert!(has("written/a").await, "most of it is shared");
            }
        }
        drop(head);
        assert!(!has("written/a").await, "most of it is not shared");
        take_snapshots(&pool, &["written/b@1".into()], &[]).await.unwrap();
        change(&pool, "written/b", &mut objects, &mut rng).await;
        pool.sync().await.unwrap();
        assert!(has("written/b").await);
        rollback(&pool, "written/b@1", false).await.unwrap();
        assert!(!has("written/b").await);
        promote(&pool, "written/c").await.unwrap();
        assert!(!has("written/c").await);
        work_off(&pool).await;
        pool.export().await.unwrap();
        is_whole(&handle, &paths, "without livelists").await;
        let view = read(&handle, &paths).await;
        assert!(!is_feature_used(&view).await);
    });
}

/// A clone of OpenZFS's is changed, then destroyed by the livelist that both have written.
#[test]
fn livelists_of_openzfs_are_gone_on_with() {
    let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
    let handle = runtime.handle();
    let theme = Golden::selection().unwrap().theme("snapshots").unwrap();
    let name = theme.manifest().unwrap().pools[0].clone();
    let scratch = theme.scratch().unwrap();
    let images = &scratch.images;
    let tunables = ["zfs_livelist_min_percent_shared=0", "zfs_livelist_max_entries=20"];
    let listed = |what: &str| {
        if program("zdb").is_some() {
            let told = run(&Devices::of(images).unwrap(), &["-d"], &name).unwrap();
            assert!(told.status == Some(0) && !told.text.contains("Discrepancy"), "{what}: {}", told.text);
        }
    };
    runtime.block_on(async {
        let mut rng = Rng::new(3);
        let view = read(&handle, images).await;
        let dsl = view.dsl();
        let mut clones = Vec::new();
        for dir in dsl.tree(dsl.root_dir().await.unwrap(), false).await.unwrap() {
            if dsl.dir_field(&dir, dir_field::LIVELIST).await.unwrap().is_some() {
                clones.push(dir.name);
            }
        }
        let before = lists(view.dsl()).await;
        view.close().await;
        assert_eq!((clones.len(), before.len()), (1, 1), "{clones:?}");
        let clone = &clones[0];
        let mut files = None;
        for round in 0..3 {
            let pool = opened_to_list(&handle, images, &tunables).await.start(TxTunables::default()).await;
            let fs = file_system(&pool, clone).await;
            let found = contents(&fs).await;
            let files = files.get_or_insert_with(|| found.clone());
            assert!(*files == found, "round {round}: {clone} is not as it was left");
            change_files(&fs, files, &mut rng).await;
            drop(fs);
            pool.export().await.unwrap();
            judge(&handle, images, &name, &format!("round {round}")).await;
            listed(&format!("round {round}"));
            let view = read(&handle, images).await;
            audit_space(&view).await.unwrap();
            assert!(lists(view.dsl()).await.len() == 1, "the clone has lost its livelist");
            view.close().await;
        }
        let pool = opened_to_list(&handle, images, &tunables).await;
        let blocks = 1;
        pool.peek(move |syncer| syncer.set_async_block_max_blocks(blocks)).await.unwrap();
        destroy(&pool, clone, Reach { recursive: true, clones: false }).await.unwrap();
        pool.sync().await.unwrap();
        assert!(pool.jobs().iter().any(|job| job.name == "livelist"), "{:?}", pool.jobs());
        work_off(&pool).await;
        pool.export().await.unwrap();
        judge(&handle, images, &name, "without the clone").await;
        let view = read(&handle, images).await;
        assert!(!is_feature_used(&view).await);
        view.close().await;
    });
}

/// The pool has the rest of a clone that OpenZFS was destroying.
#[test]
fn a_destroy_that_openzfs_has_begun_is_ended() {
    let runtime = Runtime::real(RuntimeOptions::default()).unwrap();
    let handle = runtime.handle();
    let theme = Golden::selection().unwrap().theme("destroying").unwrap();
    let name = theme.manifest().unwrap().pools[0].clone();
    let scratch = theme.scratch().unwrap();
    let images = &scratch.images;
    runtime.block_on(async {
        let pool = opened_to_list(&handle, images, &[]).await;
        assert!(pool.jobs().iter().any(|job| job.name == "livelist"), "{:?}", pool.jobs());
        work_off(&pool).await;
        assert_eq!(pool.jobs(), []);
        pool.export().await.unwrap();
        judge(&handle, images, &name, "at the end").await;
        let view = read(&handle, images).await;
        assert!(view.directory().find_u64(pool_directory::DELETED_CLONES).await.unwrap().is_none());
        assert!(!is_feature_used(&view).await);
        view.close().await;
    });
}

/// Found by a reader: the table of destroyed clones went a step after its last entry, and a slice could end between the two. OpenZFS ends with an
/// assertion where it opens such a pool.
#[test]
fn the_table_of_destroyed_clones_goes_with_its_last_entry() {
    let runtime = Runtime::simulated(5);
    let handle = runtime.handle();
    let machine = machine_of(&runtime, 1, Latency::default());
    let paths = machine.paths.clone();
    runtime.block_on(async {
        let pool = make(&handle, options(machine.tops(&handle, LAYOUTS[0]).await.unwrap(), 9)).await;
        pool.create_dataset("written/o", ObjsetType::Zfs).await.unwrap();
        pool.sync().await.unwrap();
        take_snapshots(&pool, &["written/o@1".into()], &[]).await.unwrap();
        let names: Vec<String> = (0..3).map(|number| format!("written/c{number}")).collect();
        for name in &names {
            clone_dataset(&pool, "written/o@1", name, vec![]).await.unwrap();
        }
        pool.peek(|syncer| syncer.set_async_block_max_blocks(1)).await.unwrap();
        for name in &names {
            destroy(&pool, name, Reach { recursive: false, clones: false }).await.unwrap();
        }
        let mut slices = 0;
        while pool.peek(|syncer| syncer.has_work()).await.unwrap() {
            pool.sync().await.unwrap();
            pool.audit().await.unwrap();
            slices += 1;
        }
        assert!(slices > 1, "each step is a slice: {slices}");
        pool.export().await.unwrap();
        is_whole(&handle, &paths, "at the end").await;
    });
}

/// The ways in which a livelist is damaged below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    /// A list that cannot count what went.
    Uncounted,
    /// A list that is another kind of object.
    NoList,
    /// A list that is not there.
    NoObject,
    /// One list under two txgs.
    Twice,
    /// A list that says that more went than did.
    Miscounted,
    /// A livelist that is another kind of object.
    NoLivelist,
}

/// Damages the livelist of a clone as if it had been found so.
async fn damage(pool: &Pool, name: &'static str, how: Damage) {
    let damaged = pool.change(move |syncer| {
        Box::pin(async move {
            let (dsl, txg) = (syncer.dsl().clone(), syncer.txg());
            let mos = dsl.mos();
            let dir = dsl.dir(name).await.unwrap();
            let livelist = dsl.dir_field(&dir, dir_field::LIVELIST).await.unwrap().unwrap();
            let livelist = mos.object(ObjectId(livelist)).await.unwrap();
            let entries = Zap::open(livelist.clone()).await.unwrap().entries(10).await.unwrap();
            let (key, list) = (entries[0].name().to_vec(), entries[0].value.clone());
            let key = String::from_utf8(key).unwrap();
            let bonus =
                |bytes: usize| ObjectSpec::new(DmuType::BPOBJ, 4096).with_bonus(DmuType::BPOBJ_HDR, vec![0; bytes]);
            let put = async |object: &Object, key: &str, value: ZapValue| {
                Zap::put_entry(object, txg, key, Some(&value)).await.unwrap();
            };
            match how {
                Damage::Uncounted => {
                    let list = mos.create_object(txg, &bonus(48)).unwrap().id();
                    put(&livelist, &key, ZapValue::from_u64(list.0)).await;
                }
                Damage::NoList => put(&livelist, &key, ZapValue::from_u64(1)).await,
                Damage::NoObject => put(&livelist, &key, ZapValue::from_u64(1 << 20)).await,
                Damage::Twice => put(&livelist, "ffffffff", list).await,
                Damage::Miscounted => {
                    let list = mos.object(ObjectId(list.as_u64().unwrap())).await.unwrap();
                    let mut phys = list.bonus(BpobjPhys::parse).unwrap();
                    phys.freed_count = phys.freed_count.map(|count| count + 1);
                    list.set_bonus(txg, &phys.emit(cenote_dmu::ORDER)).unwrap();
                }
                Damage::NoLivelist => {
                    put(&mos.object(dir.object).await.unwrap(), dir_field::LIVELIST, ZapValue::from_u64(1)).await;
                }
            }
            Ok::<_, SpaError>(())
        })
    });
    damaged.await.unwrap();
    pool.sync().await.unwrap();
}

/// Found by a reader: lists that cannot be what they say ended the process, or made the pool fail when their clone was changed, promoted or destroyed.
#[test]
fn damaged_livelists_keep_nobody_from_promoting_or_destroying_a_clone() {
    use Damage::{Miscounted, NoList, NoLivelist, NoObject, Twice, Uncounted};
    for how in [Uncounted, NoList, NoObject, Twice, Miscounted, NoLivelist] {
        for turn in 0..3 {
            let what = format!("{how:?}, turn {turn}");
            let runtime = Runtime::simulated(turn);
            let handle = runtime.handle();
            let machine = machine_of(&runtime, 1, Latency::default());
            let paths = machine.paths.clone();
            runtime.block_on(async {
                let mut rng = Rng::new(turn);
                let pool = make(&handle, options(machine.tops(&handle, LAYOUTS[0]).await.unwrap(), 9)).await;
                pool.create_dataset("written/o", ObjsetType::Zfs).await.unwrap();
                let mut objects = fill(&pool, "written/o", &mut rng).await;
                pool.sync().await.unwrap();
                take_snapshots(&pool, &["written/o@1".into()], &[]).await.unwrap();
                pool.export().await.unwrap();
                let tunables = ["zfs_livelist_min_percent_shared=0", "zfs_livelist_max_entries=30"];
                let pool = opened_to_list(&handle, &paths, &tunables).await;
                clone_dataset(&pool, "written/o@1", "written/c", vec![]).await.unwrap();
                for _ in 0..4 {
                    change(&pool, "written/c", &mut objects, &mut rng).await;
                    pool.sync().await.unwrap();
                }
                damage(&pool, "written/c", how).await;
                drop(pool);
                let pool = opened_to_list(&handle, &paths, &tunables).await;
                match turn {
                    // That is seen when lists are condensed, and then the livelist goes.
                    0 if how == Miscounted => {
                        for _ in 0..40 {
                            change(&pool, "written/c", &mut objects, &mut rng).await;
                            pool.sync().await.unwrap();
                        }
                        assert_eq!(lists(&pool.dsl().unwrap()).await.len(), 0, "{what}");
                    }
                    0 => {
                        let refused = pool.open_head("written/c").await.map(drop);
                        assert!(
                            matches!(refused, Err(SpaError::Pool { error: PoolError::Unsupported(_), .. })),
                            "{what}: {refused:?}"
                        );
                    }
                    1 => promote(&pool, "written/c").await.unwrap(),
                    _ => {}
                }
                let name = if turn == 1 { "written/o" } else { "written/c" };
                destroy(&pool, name, Reach { recursive: true, clones: false }).await.unwrap();
                work_off(&pool).await;
                pool.sync().await.unwrap();
                if turn < 2 || how != Miscounted {
                    assert_eq!(pool.jobs(), [], "{what}");
                }
                pool.export().await.unwrap();
                let (_, report) = check(&handle, &paths).await;
                // A list that nothing frees any more still has its blocks.
                assert!(report.is_clean() || how == Miscounted, "{what}: {report}");
            });
        }
    }
}
