//! Goal: contents, names and accounts of space are right after each verb of any history, and after a power cut in any verb they are those of
//! before it or of after it. Method: writes and verbs at random beside a plain model; the pool is read as it is on disk, and what it says of space is
//! compared with all trees. The disks' events of a verb are recorded, so that a cut at any moment of it can be judged while the history goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_admin::{
    AdminError, Reach, clone_dataset, create_bookmarks, destroy, destroy_bookmarks, destroy_snapshots, hold, promote,
    release, rollback, take_snapshots,
};
use cenote_dmu::ObjectSpec;
use cenote_dsl::name::is_at_or_below;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::DatasetFlags;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::ObjectId;
use cenote_sim::{Machine, audit_space};
use cenote_spa::{NewBookmark, Pool, PropertyValue, View, find, open};
use cenote_taskq::sim::disk::{Crash, Image, Latency};
use cenote_taskq::sim::history::History as Events;
use cenote_taskq::{Handle, Rng, Runtime};

use cenote_sim::written::*;

/// Datasets at most, so that a long history fits on its disks.
const HEADS_MAX: usize = 8;
/// Objects of a dataset at most.
const OBJECTS_MAX: usize = 12;

/// Objects of a dataset, and their bytes.
type Contents = BTreeMap<u64, Arc<Vec<u8>>>;

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

    /// The names, links, holds and marks that there must be.
    fn links(&self) -> BTreeSet<String> {
        let heads = self.heads.keys().map(|head| format!("dataset {head}"));
        let origins = self.origins.iter().map(|(clone, origin)| format!("{clone} is a clone of {origin}"));
        let snapshots = self.snapshots.iter().map(|(name, _)| format!("snapshot {name}"));
        let holds = self.holds.iter().map(|(name, tag)| format!("{name} is held by {tag}"));
        let deferred = self.deferred.iter().map(|name| format!("{name} goes when it can"));
        let bookmarks = self.bookmarks.keys().map(|name| format!("bookmark {name}"));
        heads.chain(origins).chain(snapshots).chain(holds).chain(deferred).chain(bookmarks).collect()
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

async fn write(pool: &Pool, name: &str, contents: &mut Contents, rng: &mut Rng) {
    let head = pool.open_head(name).await.unwrap();
    let txg = pool.txg();
    for _ in 0..1 + rng.below(6) {
        let object = any(contents.keys(), rng).copied();
        match (rng.below(6), object) {
            (0, _) | (_, None) if contents.len() < OBJECTS_MAX => {
                let spec = ObjectSpec::new(DmuType::UINT8_DATA, 512 << rng.below(6));
                contents.insert(head.objset.create_object(txg, &spec).unwrap().id().0, Arc::default());
            }
            (1, Some(object)) => {
                head.objset.object(ObjectId(object)).await.unwrap().free(txg);
                contents.remove(&object);
            }
            (_, None) => {}
            (_, Some(object)) => {
                let bytes = Arc::make_mut(contents.get_mut(&object).unwrap());
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
    match (rng.below(23), snapshot) {
        (0..=5, _) => write(pool, &head, model.heads.get_mut(&head).unwrap(), rng).await,
        (6..=8, _) => {
            let some: Vec<String> = model.heads.keys().filter(|_| rng.chance(1, 2)).cloned().collect();
            let names: Vec<String> = some.iter().map(|head| format!("{head}@s{next}")).collect();
            take_snapshots(pool, &names, &[("test:number".to_owned(), next.to_string())]).await?;
            for (head, name) in some.iter().zip(names) {
                model.snapshots.push((name, model.heads[head].clone()));
            }
        }
        (9, Some(snapshot)) if model.heads.len() < HEADS_MAX => {
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
        // One with datasets below it keeps its name here.
        (22, _) if model.origins.contains_key(&head) && head != "written/a" => {
            let new = format!("written/n{next}");
            pool.rename_dataset(&head, &new).await?;
            let renamed = |full: &String| match full.strip_prefix(&head) {
                Some(rest) if of(full) == head => format!("{new}{rest}"),
                _ => full.clone(),
            };
            model.rename(renamed);
            let Model { heads, origins, bookmarks, .. } = model;
            *heads = std::mem::take(heads).into_iter().map(|(name, it)| (renamed(&name), it)).collect();
            *origins = std::mem::take(origins).into_iter().map(|(name, it)| (renamed(&name), it)).collect();
            *bookmarks = std::mem::take(bookmarks).into_iter().map(|(name, it)| (renamed(&name), it)).collect();
        }
        _ => {}
    }
    Ok(())
}

/// Why the pool on disk is not that of the model: names, links, contents.
async fn difference(view: &View, model: &Model) -> Option<String> {
    let dsl = view.dsl();
    let mut links = BTreeSet::new();
    for dir in dsl.tree(dsl.root_dir().await.unwrap(), false).await.unwrap() {
        let Some(head) = dsl.head(&dir).await.unwrap() else { continue };
        if dir.name == "written" || dir.name.contains('$') {
            continue;
        }
        links.insert(format!("dataset {}", dir.name));
        let origin = match dir.phys.origin.0 {
            0 => None,
            _ => Some(dsl.dataset_name(dir.phys.origin).await.unwrap()),
        };
        // All that is no clone is one of the pool's own origin.
        if let Some(origin) = origin.filter(|origin| !origin.contains('$')) {
            links.insert(format!("{} is a clone of {origin}", dir.name));
        }
        for snapshot in dsl.snapshots(&head).await.unwrap() {
            let name = snapshot.name();
            for hold in dsl.holds(&snapshot).await.unwrap() {
                links.insert(format!("{name} is held by {}", hold.tag));
            }
            if snapshot.phys.flags.contains(DatasetFlags::DEFER_DESTROY) {
                links.insert(format!("{name} goes when it can"));
            }
            links.insert(format!("snapshot {name}"));
        }
        for bookmark in dsl.bookmarks(&head).await.unwrap() {
            if !bookmark.has_sizes() {
                return Some(format!("{} has no sizes", bookmark.name));
            }
            links.insert(format!("bookmark {}", bookmark.name));
        }
    }
    let wanted = model.links();
    if links != wanted {
        let (more, less): (Vec<_>, Vec<_>) = (links.difference(&wanted).collect(), wanted.difference(&links).collect());
        return Some(format!("there are {more:?}, and there are not {less:?}"));
    }
    let all = model.heads.iter().chain(model.snapshots.iter().map(|(name, contents)| (name, contents)));
    for (name, contents) in all {
        let dataset = dsl.dataset(name).await.unwrap();
        let objset = dsl.open(&dataset).await.unwrap().unwrap();
        for (object, bytes) in contents {
            let object = match objset.object(ObjectId(*object)).await {
                Ok(object) => object,
                Err(error) => return Some(format!("{name}: {error}")),
            };
            let id = object.id();
            // All that it has: an earlier state may be the beginning of a later one.
            let has = ((object.last_block().0 + 1) * object.block_bytes()) as usize;
            let found = match object.read(0, has.max(bytes.len())).await {
                Ok(found) => found.to_vec(),
                Err(error) => return Some(format!("{name}: object {id}: {error}")),
            };
            let (own, more) = found.split_at(bytes.len());
            if own != &bytes[..] || more.iter().any(|byte| *byte != 0) {
                let at = own.iter().zip(&**bytes).position(|(found, wanted)| found != wanted).unwrap_or(bytes.len());
                return Some(format!("{name}: object {id} is other than it was written, from byte {at} on"));
            }
        }
    }
    None
}

/// Where a history stands.
struct History {
    runtime: Runtime,
    machine: Machine,
    pool: Option<Pool>,
    model: Model,
    next: u64,
    rng: Rng,
}

impl History {
    fn begin(seed: u64, layout: Layout) -> Self {
        let runtime = Runtime::simulated(seed);
        let handle = runtime.handle();
        let count = layout.iter().map(|(_, count)| count).sum();
        let machine = machine_of(&runtime, count, Latency::default());
        let mut model = Model::default();
        let pool = runtime.block_on(async {
            let ashift = 9 + (seed % 2) as u32 * 3;
            let pool = make(&handle, options(machine.tops(&handle, layout).await.unwrap(), ashift)).await;
            for name in ["written/a", "written/b", "written/a/below"] {
                pool.create_dataset(name, ObjsetType::Zfs).await.unwrap();
                model.heads.insert(name.to_owned(), Contents::new());
            }
            if seed % 2 == 1 {
                // Counts are kept then, and audited.
                for property in ["filesystem_limit", "snapshot_limit"] {
                    pool.change_property("written/a", property, Some(&PropertyValue::Number(100_000))).await.unwrap();
                }
            }
            pool.sync().await.unwrap();
            pool
        });
        Self { runtime, machine, pool: Some(pool), model, next: 0, rng: Rng::new(seed) }
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    /// Makes a verb, and has it on disk.
    fn step(&mut self, what: &str) {
        let Self { runtime, pool, model, next, rng, .. } = self;
        let pool = pool.as_ref().unwrap();
        let made = runtime.block_on(step(pool, model, next, rng));
        made.unwrap_or_else(|error| panic!("{what}: {error}"));
    }

    fn sync(&self) {
        self.runtime.block_on(self.pool().sync()).unwrap();
    }

    /// As after a crash between two txgs.
    fn reopen(&mut self) {
        drop(self.pool.take());
        let handle = self.runtime.handle();
        // So that clones keep their livelists, and those have several lists.
        let how = import_with(&["zfs_livelist_min_percent_shared=0", "zfs_livelist_max_entries=50"]);
        self.pool = Some(self.runtime.block_on(async {
            let (mut pools, _) = find(&handle, &self.machine.paths).await;
            open(&handle, pools.remove(0), &how, write_options()).await.unwrap()
        }));
    }

    /// Compares the pool on disk with the model; `is_whole`: verifies it too.
    fn compare(&self, is_whole: bool, what: &str) {
        self.runtime.block_on(judge(&self.runtime.handle(), &self.machine, &[&self.model], is_whole, what));
    }

    /// Cuts the power at any moment of what was recorded, and judges what is left: the contents of the disks, and which of the two models they have.
    fn cut(&mut self, events: &Events, before: &Model, what: &str) -> (Vec<Image>, usize) {
        let mut moments = events.moments();
        for _ in 0..self.rng.below(events.now() as u64 + 1) {
            moments.advance();
        }
        let how = [Crash::Random, Crash::Torn, Crash::LoseAll, Crash::KeepMore][self.rng.below(4) as usize];
        let images = moments.crashed(how, &mut Rng::new(self.rng.next_u64()));
        let runtime = Runtime::simulated(self.rng.next_u64());
        let machine = machine_of(&runtime, images.len(), Latency::default());
        machine.restore(&images);
        let what = format!("{what}, cut at moment {} of {} ({how:?})", moments.now(), events.now());
        let which = runtime.block_on(judge(&runtime.handle(), &machine, &[before, &self.model], true, &what));
        (images, which)
    }

    /// Until nothing is left to be done in the background; then the pool is exported and judged, by `zdb` too.
    fn end(mut self, what: &str) {
        let pool = self.pool.take().unwrap();
        self.runtime.block_on(async {
            while pool.peek(|syncer| syncer.has_work()).await.unwrap() {
                pool.sync().await.unwrap();
            }
            pool.export().await.unwrap();
        });
        self.compare(true, &format!("{what} at the end"));
        if cenote_testkit::zdb::program("zdb").is_some() {
            let images = self.machine.images();
            cenote_sim::zdb("written", &images, self.machine.size_bytes).unwrap();
        }
    }
}

/// Judges the pool on disk: all accounts of space are exact, and it is as one of the models has it; which. `is_whole`: it is verified too.
async fn judge(handle: &Handle, machine: &Machine, models: &[&Model], is_whole: bool, what: &str) -> usize {
    if is_whole {
        let (_, report) = check(handle, &machine.paths).await;
        assert_clean(&report, what);
    }
    let view = read(handle, &machine.paths).await;
    audit_space(&view).await.unwrap_or_else(|error| panic!("{what}: {error:#}"));
    let mut differences = Vec::new();
    for (which, model) in models.iter().enumerate() {
        match difference(&view, model).await {
            Some(difference) => differences.push(difference),
            None => {
                view.close().await;
                return which;
            }
        }
    }
    panic!("{what}: {}", differences.join("; or "));
}

#[test]
fn histories_of_snapshots_and_clones_add_up() {
    let layouts = [LAYOUTS[0], LAYOUTS[2], LAYOUTS[0], LAYOUTS[3]];
    let mut verbs = 0;
    for seed in seeds(4) {
        let layout = layouts[seed as usize];
        let mut history = History::begin(seed, layout);
        for turn in 0..120 {
            let what = format!("seed {seed}, turn {turn}");
            history.step(&what);
            verbs += 1;
            if history.rng.chance(1, 3) {
                history.sync();
                if history.rng.chance(1, 4) {
                    history.compare(true, &what);
                }
                if history.rng.chance(1, 10) {
                    history.reopen();
                }
            }
        }
        history.end(&format!("seed {seed}"));
    }
    assert!(verbs >= 100);
}

/// One history: after each verb the pool is judged as it is on disk, and after one in `cut_every` as a power cut at some moment of the verb leaves it.
/// The history goes on with what some of the cuts left.
fn cut_in_verbs(seed: u64, layout: Layout, verbs: u64, cut_every: u64) {
    let (mut history, mut undone, mut gone_on) = (History::begin(seed, layout), 0, 0);
    for turn in 0..verbs {
        let what = format!("seed {seed}, verb {turn}");
        let before = history.model.clone();
        let is_cut = turn % cut_every == 0;
        let events = Events::new();
        if is_cut {
            history.machine.disks.iter().for_each(|disk| disk.record(&events));
        }
        history.step(&what);
        history.sync();
        history.compare(is_cut, &what);
        if is_cut {
            let (images, which) = history.cut(&events, &before, &what);
            undone += u64::from(which == 0 && before.links() != history.model.links());
            if history.rng.chance(1, 4) {
                drop(history.pool.take());
                history.machine.restore(&images);
                if which == 0 {
                    history.model = before;
                }
                history.reopen();
                gone_on += 1;
            }
        }
        if turn % 1000 == 999 {
            println!("seed {seed}: {} verbs, {undone} undone by their cuts, {gone_on} cuts gone on with", turn + 1);
        }
    }
    history.end(&format!("seed {seed}"));
}

#[test]
fn a_power_cut_in_any_verb_leaves_the_pool_of_before_or_of_after_it() {
    for (seed, layout) in seeds(4).map(|index| (100 + index, LAYOUTS[index as usize])) {
        cut_in_verbs(seed, layout, 40, 1);
    }
}

/// The campaign of docs/robustness.md: `SEED=N cargo test -p cenote-dsl --test all -- --ignored --nocapture ten_thousand`. With `CENOTE_MUTANT=NAME` the
/// engine has a deliberate bug, and the test fails as soon as it sees it.
#[test]
#[ignore = "a campaign of 40 minutes; docs/robustness.md has its command, docs/robustness-results.md its last result"]
fn a_history_of_ten_thousand_verbs_adds_up_and_is_cut() {
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    cut_in_verbs(seed, LAYOUTS[seed as usize % LAYOUTS.len()], 10_000, 6);
}
