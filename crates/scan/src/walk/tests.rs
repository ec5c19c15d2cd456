//! Goal: a walk that stops and goes on visits each block once in one txg, and in a pool that changes all that was there all along.
//! Method: pools with random histories; a sink that records what it is given. Of a changing pool each view is also walked at once, so
//! that it is known which blocks all of them have. Cursors that are wrong on purpose show that the tests can see.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_admin::{Reach, clone_dataset, destroy, destroy_snapshots, promote, rollback, take_snapshots};
use cenote_dmu::ObjectSpec;
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_sim::{CACHE_BYTES, LAYOUTS, Machine, SINGLE};
use cenote_spa::{find, import};
use cenote_taskq::sim::disk::{Fault, Latency, RequestKind, SimDiskOptions};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Rng, Runtime, boxed};

use super::*;

/// A block: its first copy and its birth.
type Stored = (VdevId, u64, Txg);

/// Records what a walk gives.
#[derive(Default)]
struct Recorder {
    kept: Vec<(Bookmark, Option<Stored>)>,
    fresh: Vec<(Bookmark, Option<Stored>)>,
    known: Vec<Bookmark>,
    errors: Vec<String>,
    views: usize,
    /// The walk is ended after so many blocks.
    end: Option<(usize, WalkControl)>,
}

impl Recorder {
    fn stored(&self) -> BTreeSet<Stored> {
        self.kept.iter().filter_map(|(_, stored)| *stored).collect()
    }

    fn bookmarks(&self) -> Vec<Bookmark> {
        self.kept.iter().map(|(at, _)| *at).collect()
    }
}

impl Sink for Recorder {
    async fn take(&mut self, _: &View, item: &Item, visited: Visited) -> bool {
        self.errors.extend(visited.error.map(|error| format!("{}: {error}", item.bookmark)));
        if item.is_known {
            self.known.push(item.bookmark);
            return true;
        }
        let stored = item.bp.dvas().next().map(|dva| (dva.vdev, dva.offset_bytes, item.bp.birth()));
        self.fresh.push((item.bookmark, stored));
        if let Some((left, control)) = &mut self.end {
            *left = left.saturating_sub(1);
            if *left == 0 {
                control.cancel();
            }
        }
        true
    }

    async fn step(&mut self, cursor: &Cursor) {
        assert!(cursor.next.as_ref().is_none_or(Cursor::is_stop));
        self.kept.append(&mut self.fresh);
    }

    fn forget(&mut self) {
        self.fresh.clear();
    }

    fn moved(&mut self) {
        self.views += 1;
    }

    fn problems(&mut self, problems: Vec<String>) {
        self.errors.extend(problems);
    }

    fn figures(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// A pool with a random history.
struct History {
    handle: Handle,
    pool: Pool,
    rng: Rng,
    heads: Vec<String>,
    snapshots: Vec<String>,
    next: u64,
}

impl History {
    async fn begin(handle: &Handle, machine: &Machine, seed: u64) -> Self {
        let layout = if seed.is_multiple_of(2) { SINGLE } else { LAYOUTS[2] };
        let tops = machine.tops(handle, layout).await.unwrap();
        let pool = cenote_sim::new_pool(handle, cenote_sim::options("pool", tops, 9)).await.unwrap();
        let heads: Vec<String> = ["pool/a", "pool/b", "pool/a/below"].map(str::to_owned).to_vec();
        for head in &heads {
            pool.create_dataset(head, ObjsetType::Zfs).await.unwrap();
        }
        let mut history =
            Self { handle: handle.clone(), pool, rng: Rng::new(seed), heads, snapshots: Vec::new(), next: 0 };
        for _ in 0..12 {
            history.step().await;
        }
        history.write("pool/b", 40).await;
        history.pool.sync().await.unwrap();
        history
    }

    fn any(rng: &mut Rng, of: &[String]) -> Option<String> {
        if of.is_empty() { None } else { Some(of[rng.below(of.len() as u64) as usize].clone()) }
    }

    async fn write(&mut self, name: &str, objects: u64) {
        let head = self.pool.open_head(name).await.unwrap();
        let txg = self.pool.txg();
        for _ in 0..objects {
            let object = match head.objset.object(ObjectId(2 + self.rng.below(50))).await {
                Ok(object) if self.rng.chance(2, 3) => object,
                _ => {
                    let spec = ObjectSpec::new(DmuType::UINT8_DATA, 512 << self.rng.below(4));
                    head.objset.create_object(txg, &spec).unwrap()
                }
            };
            if self.rng.chance(1, 12) {
                object.free(txg);
                continue;
            }
            let mut bytes = vec![0; 1 + self.rng.below(9000) as usize];
            self.rng.fill(&mut bytes);
            let reach = if self.rng.chance(1, 5) { 30 } else { 14 };
            object.write(txg, self.rng.below(1 << reach), &bytes).await.unwrap();
        }
    }

    /// One change at random; those that the pool's state forbids are none.
    async fn step(&mut self) {
        let (head, snapshot) =
            (Self::any(&mut self.rng, &self.heads).unwrap(), Self::any(&mut self.rng, &self.snapshots));
        self.next += 1;
        let (pool, next) = (self.pool.clone(), self.next);
        match (self.rng.below(12), snapshot) {
            (0..=2, _) => {
                let name = format!("{head}@s{next}");
                take_snapshots(&pool, std::slice::from_ref(&name), &[]).await.unwrap();
                self.snapshots.push(name);
            }
            (3..=5, Some(snapshot)) => {
                let gone = destroy_snapshots(&pool, std::slice::from_ref(&snapshot), false, &|_| ()).await;
                if gone.is_ok() {
                    self.snapshots.retain(|name| *name != snapshot);
                }
            }
            (6, Some(snapshot)) if self.heads.len() < 6 => {
                let name = format!("pool/c{next}");
                clone_dataset(&pool, &snapshot, &name, Vec::new()).await.unwrap();
                self.heads.push(name);
            }
            (7, Some(snapshot)) => drop(rollback(&pool, &snapshot, false).await),
            (8, _) if promote(&pool, &head).await.is_ok() => {
                let view = pool.view(&ImportOptions::default()).await.unwrap();
                self.snapshots.clear();
                for head in &self.heads {
                    let dataset = view.dsl().dataset(head).await.unwrap();
                    let names = view.dsl().snapshots(&dataset).await.unwrap();
                    self.snapshots.extend(names.into_iter().map(|dataset| dataset.name()));
                }
            }
            (9, _) if head.starts_with("pool/c") => {
                let reach = Reach { recursive: false, clones: false };
                if destroy(&pool, &head, reach).await.is_ok() {
                    self.heads.retain(|name| *name != head);
                }
            }
            _ => self.write(&head, 3).await,
        }
    }

    /// A view of a txg of its own.
    async fn view(&mut self) -> View {
        self.write("pool/b", 1).await;
        self.pool.view(&ImportOptions::default()).await.unwrap()
    }
}

fn with_history(seed: u64, test: impl AsyncFnOnce(History)) {
    let runtime = Runtime::simulated(seed);
    let handle = runtime.handle();
    let options = SimDiskOptions { size_bytes: 96 << 20, latency: Latency::default(), ..SimDiskOptions::default() };
    let machine = Machine::new(&runtime, 4, &options);
    runtime.block_on(async { test(History::begin(&handle, &machine, seed).await).await });
}

/// Walks a view from the cursor on, or from the beginning; `end`: for so many blocks.
async fn part(
    handle: &Handle,
    view: &View,
    cursor: Option<Cursor>,
    keeps_known: bool,
    end: Option<usize>,
) -> (Recorder, Cursor) {
    let trees = roots::objsets(view).await.trees;
    let cursor = cursor.unwrap_or_else(|| Cursor::at_start(view, &trees));
    let control = WalkControl::new();
    let mut sink = Recorder { end: end.map(|end| (end, control.clone())), ..Recorder::default() };
    let mut watch = |_| true;
    let mut walk = Walk::new((handle, view, &control), cursor, Reads::All, &mut watch);
    walk.step_blocks = 7;
    let ended = walk.run((view.clone(), trees), keeps_known, &mut sink).await;
    let cursor = walk.cursor;
    assert_eq!(matches!(ended, Ended::Whole(_)), cursor.next.is_none());
    (sink, cursor)
}

#[test]
fn a_walk_that_stops_anywhere_visits_each_block_once() {
    for seed in 0..4 {
        with_history(seed, async |mut history| {
            let view = history.view().await;
            let handle = history.handle.clone();
            let all = part(&handle, &view, None, false, None).await.0;
            let all = all.bookmarks();
            assert!(all.len() > 300, "{}", all.len());
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "each once");
            for keeps_known in [false, true] {
                let (mut came, mut cursor, mut parts) = (Vec::new(), None, 0);
                loop {
                    let most = if keeps_known { 90 } else { 40 };
                    let end = 1 + history.rng.below(most) as usize;
                    let (sink, next) = part(&handle, &view, cursor, keeps_known, Some(end)).await;
                    assert!(sink.errors.is_empty(), "{:?}", sink.errors);
                    if keeps_known {
                        assert_eq!(sink.known, came, "seed {seed}: what is known is what came");
                    }
                    came.extend(sink.bookmarks());
                    assert_eq!(came, all[..came.len()], "seed {seed}, after {} blocks", came.len());
                    (cursor, parts) = (Some(next.clone()), parts + 1);
                    if next.next.is_none() {
                        break;
                    }
                    assert_eq!(next.next, all.get(came.len()).copied(), "the cursor is the next block");
                }
                assert_eq!(came.len(), all.len(), "seed {seed}");
                assert!(parts > 3, "it hardly stopped");
            }
        });
    }
}

#[test]
fn a_cursor_that_runs_a_block_ahead_is_seen() {
    with_history(1, async |mut history| {
        let view = history.view().await;
        let handle = history.handle.clone();
        let all = part(&handle, &view, None, false, None).await.0.bookmarks();
        let mut seen = 0;
        for end in [20, 90, 150, 250] {
            let (first, mut cursor) = part(&handle, &view, None, false, Some(end)).await;
            let came = first.bookmarks();
            let ahead = all[came.len() + 1..].iter().find(|at| Cursor::is_stop(at)).unwrap();
            if Some(ahead.objset) != cursor.next.map(|at| at.objset) {
                continue;
            }
            cursor.next = Some(*ahead);
            let (rest, _) = part(&handle, &view, Some(cursor), false, None).await;
            let came: Vec<Bookmark> = came.into_iter().chain(rest.bookmarks()).collect();
            assert!(came.len() < all.len(), "a block was left out");
            seen += 1;
        }
        assert!(seen > 1, "no cursor was changed");
    });
}

/// A pool that changes before each view, and the blocks that each view had. Views are given up at random.
struct Changing {
    history: cenote_taskq::AsyncMutex<History>,
    truths: Mutex<Vec<BTreeSet<Stored>>>,
    /// Whether the last view was given up; not two one after another.
    checks: Mutex<(Rng, bool)>,
}

impl Views for Arc<Changing> {
    #[boxed]
    async fn view(&self) -> Result<View, ViewError> {
        let mut history = self.history.lock().await;
        for _ in 0..history.rng.below(3) {
            history.step().await;
        }
        let view = history.view().await;
        let truth = part(&history.handle, &view, None, false, None).await.0;
        self.truths.lock().push(truth.stored());
        Ok(view)
    }

    fn check(&self, view: &View) -> Result<(), SpaError> {
        let mut checks = self.checks.lock();
        checks.1 = !checks.1 && checks.0.chance(1, 8);
        match checks.1 {
            true => Err(SpaError::ViewGivenUp { pool: view.name().to_owned(), txg: view.txg() }),
            false => Ok(()),
        }
    }

    fn steps(&self) -> Option<u64> {
        Some(2)
    }
}

#[test]
fn a_walk_of_a_pool_that_changes_visits_all_that_was_there_all_along() {
    let mut later = 0;
    for seed in 0..3 {
        with_history(seed, async |history| {
            let handle = history.handle.clone();
            let checks = Mutex::new((Rng::new(seed), false));
            let views = Arc::new(Changing {
                history: cenote_taskq::AsyncMutex::new(history),
                truths: Mutex::default(),
                checks,
            });
            let view = views.view().await.unwrap();
            let trees = roots::objsets(&view).await.trees;
            let (control, mut sink, mut watch) = (WalkControl::new(), Recorder::default(), |_| true);
            let cursor = Cursor::at_start(&view, &trees);
            let mut walk = Walk::new((&handle, &views, &control), cursor, Reads::All, &mut watch);
            walk.step_blocks = 30;
            let ended = walk.run((view, trees), false, &mut sink).await;
            assert!(matches!(ended, Ended::Whole(_)), "seed {seed}");
            assert!(walk.cursor.has_moved() && sink.views > 5, "seed {seed}: {} views", sink.views);
            assert!(sink.errors.is_empty(), "seed {seed}: {:?}", sink.errors);
            let (came, truths) = (sink.stored(), views.truths.lock());
            let (first, others) = truths.split_first().unwrap();
            let all_along: Vec<_> =
                first.iter().filter(|block| others.iter().all(|truth| truth.contains(block))).collect();
            let missed = all_along.iter().filter(|block| !came.contains(block)).count();
            assert_eq!(missed, 0, "seed {seed}: of {} blocks in {} views", all_along.len(), truths.len());
            assert!(all_along.len() > 100, "seed {seed}: {} blocks", all_along.len());
            later += sink.views;
        });
    }
    assert!(later > 20, "{later} views of later txgs");
}

/// Walks a pool that changes, a part in each view; `tamper`: what is done to the cursor between. How many blocks it missed.
async fn missed(mut history: History, tamper: impl Fn(&mut Cursor)) -> usize {
    let handle = history.handle.clone();
    let (mut cursor, mut came, mut all_along) = (None, BTreeSet::new(), None::<BTreeSet<Stored>>);
    loop {
        for _ in 0..3 {
            history.step().await;
        }
        let view = history.view().await;
        let truth = part(&handle, &view, None, false, None).await.0.stored();
        all_along = Some(all_along.map_or(truth.clone(), |all| &all & &truth));
        let end = 20 + history.rng.below(60) as usize;
        let (sink, mut next) = part(&handle, &view, cursor.take(), false, Some(end)).await;
        assert!(sink.errors.is_empty(), "{:?}", sink.errors);
        came.extend(sink.stored());
        if next.next.is_none() {
            return all_along.unwrap_or_default().difference(&came).count();
        }
        tamper(&mut next);
        cursor = Some(next);
    }
}

#[test]
fn blocks_of_destroyed_snapshots_and_new_ones_are_seen_to_be_missed() {
    let (mut left_to_others, mut younger) = (0, 0);
    for seed in 0..3 {
        with_history(seed, async |history| {
            assert_eq!(missed(history, |_| ()).await, 0, "seed {seed}");
        });
        // A walk that takes a tree for done, though a snapshot before it has left blocks to it.
        with_history(seed, async |history| {
            left_to_others += missed(history, |cursor| {
                cursor.walked.iter_mut().for_each(|walked| walked.born_after = Txg(0));
            })
            .await;
        });
        // A walk that takes its beginning for earlier than it was.
        with_history(seed, async |history| {
            younger += missed(history, |cursor| cursor.first_txg = Txg(cursor.first_txg.0 / 2)).await;
        });
    }
    assert!(left_to_others > 0 && younger > 0, "{left_to_others} and {younger} blocks are seen to be missed");
}

#[test]
fn a_walk_ends_though_a_snapshot_goes_before_each_of_its_views() {
    with_history(0, async |mut history| {
        let handle = history.handle.clone();
        let mut rotated = Vec::new();
        for number in 0..60 {
            history.write("pool/a", 2).await;
            let name = format!("pool/a@rotated{number}");
            take_snapshots(&history.pool, std::slice::from_ref(&name), &[]).await.unwrap();
            rotated.push(name);
        }
        let (mut cursor, mut parts) = (None, 0);
        loop {
            // Every second one, so that each leaves blocks to one that stays.
            if parts * 2 < rotated.len() {
                let gone = std::slice::from_ref(&rotated[parts * 2]);
                destroy_snapshots(&history.pool, gone, false, &|_| ()).await.unwrap();
            }
            let view = history.view().await;
            let (sink, next) = part(&handle, &view, cursor.take(), false, Some(70)).await;
            assert!(sink.errors.is_empty(), "{:?}", sink.errors);
            parts += 1;
            if next.next.is_none() {
                break;
            }
            cursor = Some(next);
            assert!(parts < 29, "it is still not done while snapshots go");
        }
        assert!(parts > 3, "{parts} parts");
    });
}

/// A pool whose disks fail once it has gone on: the first view is given up, and of the next the datasets cannot be listed.
struct Failing {
    history: cenote_taskq::AsyncMutex<History>,
    machine: Machine,
    first: Txg,
}

impl Views for Failing {
    #[boxed]
    async fn view(&self) -> Result<View, ViewError> {
        let mut history = self.history.lock().await;
        history.write("pool/b", 5).await;
        history.pool.sync().await?;
        let view = imported(&history.handle, &self.machine).await;
        assert!(view.txg() > self.first);
        for disk in &self.machine.disks {
            disk.set_faults(|request, _| match request.kind {
                RequestKind::Read => Fault::Error(std::io::ErrorKind::Other),
                _ => Fault::None,
            });
        }
        Ok(view)
    }

    fn check(&self, view: &View) -> Result<(), SpaError> {
        match view.txg() == self.first {
            true => Err(SpaError::ViewGivenUp { pool: view.name().to_owned(), txg: view.txg() }),
            false => Ok(()),
        }
    }
}

/// The pool as another process opens it, with nothing of it in memory.
async fn imported(handle: &Handle, machine: &Machine) -> View {
    let (mut pools, skipped) = find(handle, &machine.paths).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let options = ImportOptions { cache_bytes: CACHE_BYTES, force: true, ..ImportOptions::default() };
    import(handle, pools.remove(0), &options).await.unwrap()
}

#[test]
fn a_walk_whose_next_view_has_datasets_that_cannot_be_listed_stops() {
    let runtime = Runtime::simulated(2);
    let handle = runtime.handle();
    let options = SimDiskOptions { size_bytes: 96 << 20, latency: Latency::default(), ..SimDiskOptions::default() };
    let machine = Machine::new(&runtime, 4, &options);
    runtime.block_on(async {
        let mut history = History::begin(&handle, &machine, 2).await;
        for number in 0..40 {
            history.pool.create_dataset(&format!("pool/more{number}"), ObjsetType::Zfs).await.unwrap();
        }
        history.view().await;
        let view = imported(&handle, &machine).await;
        let all = part(&handle, &view, None, false, None).await.0.bookmarks();
        // In the first dataset: the MOS, which would meet the errors too, is done.
        let end = all.iter().position(|at| at.objset.0 != 0).unwrap() + 20;
        let cursor = part(&handle, &view, None, false, Some(end)).await.1;
        assert!(cursor.tree > 0 && cursor.next.is_some(), "{cursor:?}");
        let trees = roots::objsets(&view).await.trees;
        let first = view.txg();
        let views = Failing { history: cenote_taskq::AsyncMutex::new(history), machine, first };
        let (control, mut sink, mut watch) = (WalkControl::new(), Recorder::default(), |_| true);
        let mut walk = Walk::new((&handle, &views, &control), cursor.clone(), Reads::All, &mut watch);
        let ended = walk.run((view, trees), false, &mut sink).await;
        let Ended::Stopped(Some(why)) = ended else { panic!("datasets that are not listed count as destroyed") };
        assert!(why.to_string().starts_with("looking for datasets: "), "{why}");
        assert_eq!((walk.cursor.next, &walk.cursor.walked), (cursor.next, &cursor.walked), "it goes on from here");
        for disk in &views.machine.disks {
            disk.clear_faults();
        }
    });
}
