//! A life: creates a pool, cuts the power several times under load, and checks the pool after each cut.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::{SyncMode, TxTunables};
use cenote_format::dsl::dataset_field;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::Txg;
use cenote_spa::{AuxSpec, Clock, CreateOptions, Host, Pool, PropertyValue, WriteOptions, create, open};
use cenote_taskq::sim::disk::{Image, Late};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Either, Handle, Rng, Runtime, join_all, race};
use cenote_testkit::campaign::take_panics;
use cenote_zpl::bulk::{BulkWriter, NodeSpec};
use cenote_zpl::{FileSystem, FileSystemOptions, NewNode, XattrMode};
use cenote_zvol::live::LiveVolume;
use cenote_zvol::{Volume, VolumeSpec};

use crate::CUTS;
use crate::aim::Aim;
use crate::judge::{Behind, Expected, found, import_options, imported, judge};
use crate::load::{Administrator, FileWriter, Grower, Noting, RangeWriter, Turn};
use crate::machine::{Machine, Outage, Shape};
use crate::models::{Models, shared};
use crate::replayed::compare;
use crate::snapshots::{FAMILIES, Local, Snapshotter, receive_golden};
use crate::stage::{CACHE_BYTES, FILE_SYSTEMS, VOLUME, VOLUME_BLOCK_BYTES, WRITERS, dir_name, words};

/// Polls that a stretch of a life may take: many times what one takes.
pub const STEPS_MAX: u64 = 1_000_000;
/// The power goes at latest this long after the load began.
const LOAD_MAX: Duration = Duration::from_millis(70);
/// Where snapshots are taken it lasts longer, since a verb takes a txg or more, and those who write are slower.
const LOAD_SNAPSHOTS_MAX: Duration = Duration::from_millis(240);
const SLOWNESS: u64 = 12;
/// Of so many lives one has snapshots.
const SNAPSHOTS_IN: u64 = 4;
/// Or this long after it came back.
const OPENING_MAX: Duration = Duration::from_millis(40);
/// Late writes land at latest this long after the power came back, while the pool is imported and verified.
const LATE_MAX: Duration = Duration::from_millis(6);
/// Devices that fail for a while do so for this long at most.
const OUTAGE_MAX: Duration = Duration::from_millis(12);
/// Verbs about snapshots that each family sees before the first stretch, with those that turn out to be none.
const DRAWS_BEFORE: u64 = 24;
const SNAPSHOTS_SEED: u64 = 0x0073_6e61_7073;
/// Bound of dirty data (`zfs_dirty_data_max`), small so that many txgs come and go.
const DIRTY_BYTES_MAX: u64 = 2 << 20;

const VOLUME_BYTES: u64 = 1 << 20;
const RECORD_BYTES: u32 = 16 << 10;

/// How a cut ended well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Changes that were made before it.
    pub changes: u64,
    /// Of these, those that a client was told are on disk.
    pub promises: u64,
    /// Verbs about snapshots that were made before it, and changes of datasets for them.
    pub verbs: u64,
    /// Of these, streams that were received.
    pub streams: u64,
    /// Of those, streams that went on with what had been received in part.
    pub resumed: u64,
    /// Txgs that were synced before it.
    pub txgs: u64,
    /// The txg that is there is later than the last that was reported: the cut came between.
    pub is_later: bool,
    /// The power went while the pool was opened.
    pub was_opening: bool,
    /// Devices failed for a while before it.
    pub had_outage: bool,
    /// A device was away all the while before it.
    pub was_degraded: bool,
    /// A vdev was added before it.
    pub has_grown: bool,
    /// Writes that reached the devices when the pool was being imported again.
    pub late: u64,
    /// Ways in which it was judged: as it is, wound back, with a device lost.
    pub judgements: u64,
    /// Polls that it took.
    pub steps: u64,
}

/// A pool between two cuts, and what comes after the last.
pub struct Life {
    shape: Shape,
    seed: u64,
    images: Vec<Image>,
    /// As of the cut before: what a device has that was put back from a backup.
    earlier: Vec<Image>,
    /// A device that has missed something: another one of its vdev may not be lost any more, until there is resilvering.
    behind: Option<usize>,
    /// All devices have failed for a while: which of them has missed something is not known, so none is taken away any more.
    all_failed: bool,
    models: Models,
    /// Snapshots are taken, and what is done with them.
    has_snapshots: bool,
    txg: Txg,
    cuts: u64,
}

/// Whether snapshots are taken in the life of this number.
#[must_use]
pub const fn has_snapshots(number: u64) -> bool {
    number % SNAPSHOTS_IN == SNAPSHOTS_IN - 1
}

fn runtime(seed: u64) -> Runtime {
    let runtime = Runtime::simulated(seed);
    if let Some(sim) = runtime.sim() {
        sim.set_steps_max(STEPS_MAX);
    }
    runtime
}

/// Runs part of a life; panics and standing still are failures.
pub(crate) fn run<T>(runtime: &Runtime, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.try_block_on(work)));
    let panics = take_panics();
    if !panics.is_empty() {
        return Err(format!("panic: {}", panics.join("; ")));
    }
    match ended {
        Err(_) => Err("a panic without words".to_owned()),
        Ok(Err(deadlock)) => Err(deadlock.to_string()),
        Ok(Ok(result)) => result,
    }
}

pub(crate) fn host() -> Host {
    Host { id: 0, name: "here".into() }
}

impl Life {
    /// Makes the pool of the life with this number, and what is in it from the beginning.
    ///
    /// # Errors
    /// That failed.
    pub fn begin(number: u64) -> Result<Self, String> {
        Self::begin_with(number, true)
    }

    /// The same; snapshots are taken only if that is wanted.
    ///
    /// # Errors
    /// That failed.
    pub fn begin_with(number: u64, may_have_snapshots: bool) -> Result<Self, String> {
        take_panics();
        let seed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x6375_7473;
        let shape = Shape::draw(&mut Rng::new(seed));
        let runtime = runtime(seed);
        let machine = Machine::new(&runtime, &shape, &[]);
        let handle = runtime.handle();
        let has_snapshots = may_have_snapshots && has_snapshots(number);
        let made = run(&runtime, make(&handle, &machine, &shape, has_snapshots.then_some(seed)));
        let (txg, models) = made.map_err(|error| format!("{}: making the pool: {error}", shape.words()))?;
        let images = machine.images();
        machine.end(runtime, handle)?;
        let earlier = Vec::new();
        Ok(Self { shape, seed, images, earlier, behind: None, all_failed: false, models, has_snapshots, txg, cuts: 0 })
    }

    /// Has the devices only say that they flush, from now on, so many times of a hundred: for a test of the test.
    pub fn lose_flushes(&mut self, percent: u64) {
        self.shape.lost_flushes_percent = percent;
    }

    /// Gives the devices' medium sectors of 4096 bytes below those of 512 that they show, and torn writes that leave garbage: for a
    /// test of the test.
    pub fn have_large_sectors_below(&mut self) {
        self.shape.has_large_sectors_below();
    }

    /// The pool's devices as of the last cut.
    #[must_use]
    pub fn images(&self) -> &[Image] {
        &self.images
    }

    /// A description of its shape, in a few words.
    #[must_use]
    pub fn words(&self) -> String {
        self.shape.words()
    }

    /// Lives on to the next cut, and judges what that has left.
    ///
    /// # Errors
    /// The fault found in what the cut left, in words.
    pub fn cut(&mut self) -> Result<Done, String> {
        self.cuts += 1;
        let about = format!("{}, cut {} of {CUTS}", self.shape.words(), self.cuts);
        let about = |error: String| format!("{about}: {error}");
        let mut rng = Rng::new(self.seed ^ self.cuts << 56);
        let mut done = Done::default();
        let earlier = self.images.clone();
        let plan = self.plan(&mut rng).map_err(&about)?;
        (done.was_degraded, done.had_outage) = (plan.away.is_some(), plan.outage.is_some());
        let (promised, late) = self.load(&mut rng, &plan, &mut done).map_err(&about)?;
        done.late = late.iter().map(|late| late.len() as u64).sum();
        (done.changes, done.promises) = (self.models.changes(), self.models.promises());
        (done.verbs, done.streams, done.resumed) = self.models.verbs();
        done.has_grown = !self.models.grown.lock().is_empty();
        let behind = match self.behind {
            _ if self.all_failed => Behind::Any,
            Some(behind) => Behind::One(cenote_sim::Machine::name(behind)),
            None => Behind::None,
        };
        let expected = Expected { promised, behind, ..Expected::default() };
        if done.late > 0 {
            // The state found at the opening stays, although late writes land beside it.
            self.judged(&mut done, &self.images, None, &late, &expected)
                .map_err(|error| about(format!("late: {error}")))?;
            for (image, late) in self.images.iter_mut().zip(&late) {
                image.land(late);
            }
        }
        let (txg, models) = self.judged(&mut done, &self.images, None, &[], &expected).map_err(&about)?;
        if rng.chance(1, 3) && txg.0 >= self.txg.0 + 2 {
            // Blocks that txgs of this stretch freed are not used again for two txgs, so the pool can be wound back to them.
            let rewind = Some(Txg(txg.0 - 1 - rng.below(2)));
            let expected = Expected { rewind, log_went: models.grown.lock().newest().is_log_gone, ..expected.clone() };
            let wound = self.judged(&mut done, &self.images, None, &[], &expected);
            wound.map_err(|error| about(format!("wound back: {error}")))?;
        }
        if rng.chance(1, 2)
            && let Some(victim) = self.victim(&mut rng)
            && (promised > self.txg || self.txg_without(&earlier, victim).map_err(&about)? == self.txg)
        {
            // The other devices have the txg before this stretch too, or a later one.
            let lost = Some(cenote_sim::Machine::name(victim));
            let expected = Expected { lost, ..expected };
            let mut images = self.images.clone();
            let (without, how) = if rng.chance(1, 2) && !self.earlier.is_empty() {
                images[victim] = self.earlier[victim].clone();
                (None, "stale")
            } else {
                (Some(victim), "lost")
            };
            let judged = self.judged(&mut done, &images, without, &[], &expected);
            judged.map_err(|error| about(format!("with {} {how}: {error}", cenote_sim::Machine::name(victim))))?;
        }
        let (models, txg) = self.replay(&mut rng, &mut done, models, txg).map_err(&about)?;
        let before = std::mem::replace(&mut self.txg, txg);
        self.models = models;
        self.earlier = earlier;
        (done.txgs, done.is_later) = (txg.0.saturating_sub(before.0), txg > promised);
        Ok(done)
    }

    /// A device that the pool can do without.
    fn victim(&self, rng: &mut Rng) -> Option<usize> {
        let spare = self.shape.redundant();
        match self.behind {
            _ if self.all_failed => None,
            Some(behind) => Some(behind),
            None if spare.is_empty() => None,
            None => Some(spare[rng.below(spare.len() as u64) as usize]),
        }
    }

    /// Plans the faults of devices before the next cut.
    fn plan(&mut self, rng: &mut Rng) -> Result<Plan, String> {
        let mut plan = Plan::default();
        let victim = self.victim(rng);
        match rng.below(8) {
            0 => {
                if let Some(victim) = victim
                    && self.txg_without(&self.images, victim)? == self.txg
                {
                    plan.away = Some(victim);
                    self.behind = plan.away;
                }
            }
            1 | 2 => {
                let all = rng.chance(1, 2);
                let only = if all { None } else { victim };
                if all || only.is_some() {
                    plan.outage = Some((Outage::draw(rng, only), rng.duration(LOAD_MAX / 2), rng.duration(OUTAGE_MAX)));
                    self.behind = only.or(self.behind);
                    // Where one can be done without, some may have taken what others missed.
                    self.all_failed |= all && !self.shape.redundant().is_empty();
                }
            }
            _ => {}
        }
        Ok(plan)
    }

    /// The txg that is there without a device. It is an earlier one than with it where the power went before any other device had the
    /// last uberblock. Nobody was promised that txg, but the models begin with it, and if the others went on without the device there
    /// would be two txgs with one number: so such a device is not taken away.
    fn txg_without(&self, images: &[Image], away: usize) -> Result<Txg, String> {
        let runtime = runtime(self.seed ^ self.cuts);
        let machine = Machine::new(&runtime, &self.shape, images).without(Some(away));
        let handle = runtime.handle();
        let expected = Expected::default();
        let without = run(&runtime, async { imported(&handle, &machine, &expected).await.map(|pool| pool.txg()) });
        let ended = machine.end(runtime, handle);
        let without = without.map_err(|error| format!("without {}: {error}", cenote_sim::Machine::name(away)))?;
        ended.map(|()| without)
    }

    /// Imports devices with this content, one of them left out, and judges what is there.
    fn judged(
        &self,
        done: &mut Done,
        images: &[Image],
        without: Option<usize>,
        late: &[Late],
        expected: &Expected,
    ) -> Result<(Txg, Models), String> {
        done.judgements += 1;
        let runtime = runtime(self.seed ^ self.cuts ^ done.judgements << 32);
        let machine = Machine::new(&runtime, &self.shape, images).without(without);
        let handle = runtime.handle();
        let mut rng = Rng::new(self.seed ^ done.judgements);
        let judged = run(&runtime, async {
            for (at, late) in late.iter().enumerate() {
                machine.land_later(&handle, at, late, rng.duration(LATE_MAX));
            }
            let pool = imported(&handle, &machine, expected).await?;
            judge(&handle, &pool, &self.shape, &self.models, expected).await
        });
        done.steps += runtime.sim().map_or(0, |sim| sim.steps());
        let ended = machine.end(runtime, handle);
        let judged = judged?;
        ended.map(|()| judged)
    }

    /// Has the intent logs replayed, and compares the files and the volume with the models. Now and then the power goes meanwhile, once
    /// before. Returns the models to go on with, and the txg of the pool, which is exported. `models` is as of the txg that was there after
    /// the cut.
    fn replay(&mut self, rng: &mut Rng, done: &mut Done, models: Models, txg: Txg) -> Result<(Models, Txg), String> {
        let is_lying = self.shape.lost_flushes_percent > 0;
        if rng.chance(1, 3) && !is_lying {
            let runtime = runtime(rng.next_u64());
            let machine = Machine::new(&runtime, &self.shape, &self.images);
            let handle = runtime.handle();
            let after = rng.duration(OPENING_MAX);
            let cut = run(&runtime, async {
                let replaying = async {
                    let (pool, ..) = replayed(&handle, &machine, &self.shape, true).await?;
                    pool.sync().await.map_err(words)
                };
                let ended = handle.timeout(after, replaying).await;
                machine.cut(rng, false);
                ended.transpose().map(drop)
            });
            cut.map_err(|error| format!("replaying, until a cut after {after:?}: {error}"))?;
            done.steps += runtime.sim().map_or(0, |sim| sim.steps());
            self.images = machine.images();
            machine.end(runtime, handle)?;
        }
        let runtime = runtime(rng.next_u64());
        let machine = Machine::new(&runtime, &self.shape, &self.images);
        let handle = runtime.handle();
        let compared = run(&runtime, async {
            let (pool, filesystems, volume) = replayed(&handle, &machine, &self.shape, false).await?;
            let compared = compare(&self.models, &filesystems, volume.volume(), txg).await?;
            drop((filesystems, volume));
            pool.export().await.map_err(words)?;
            let found = found(&handle, &machine.paths).await?;
            let txg = found.newest().map(|leaf| leaf.txg).ok_or_else(|| "no labels".to_owned())?;
            let Models { datasets, grown, families, .. } = models;
            Ok((Models { datasets, grown, families, ..compared }, txg))
        });
        done.steps += runtime.sim().map_or(0, |sim| sim.steps());
        self.images = machine.images();
        let ended = machine.end(runtime, handle);
        let compared = compared?;
        ended.map(|()| compared)
    }

    /// Opens the pool and changes it until the power goes. The last txg that was reported synced, and writes that are still to reach
    /// devices.
    fn load(&mut self, rng: &mut Rng, plan: &Plan, done: &mut Done) -> Result<(Txg, Vec<Late>), String> {
        let runtime = runtime(rng.next_u64());
        let machine = Machine::new(&runtime, &self.shape, &self.images).without(plan.away);
        let handle = runtime.handle();
        let failures = Arc::new(Mutex::new(Vec::new()));
        let is_early = rng.chance(1, 6) && plan.outage.is_none();
        // Devices that fail or lose flushes are asked for their faults instead.
        let has_faults = plan.outage.is_some() || self.shape.lost_flushes_percent > 0;
        let aim = (rng.chance(1, 3) && !has_faults).then(|| Aim::draw(rng));
        let has_late = rng.chance(1, 6);
        let last = self.txg;
        let load_max = if self.has_snapshots { LOAD_SNAPSHOTS_MAX } else { LOAD_MAX };
        let local = Local::default();
        let living = async {
            let ways = Ways {
                has_outage: plan.outage.is_some(),
                local: self.has_snapshots.then(|| local.clone()),
                failures: failures.clone(),
            };
            let opening = opened(&handle, &machine, &self.shape, &self.models, rng.next_u64(), &ways);
            let mut pool = None;
            if let Some(aim) = aim {
                let watched = machine.watch(aim);
                let mut reached = pin!(async {
                    let _ = watched.await;
                    handle.sleep(aim.after).await;
                });
                match race(reached.as_mut(), opening).await {
                    Either::Left(()) => {}
                    Either::Right(opened) => {
                        pool = Some(opened?);
                        race(reached, handle.sleep(load_max)).await;
                    }
                }
            } else if is_early {
                match race(opening, handle.sleep(rng.duration(OPENING_MAX))).await {
                    Either::Left(opened) => pool = Some(opened?),
                    Either::Right(()) => {}
                }
            } else {
                let opened = opening.await?;
                pool = Some(opened.clone());
                let lasts = rng.duration(load_max);
                if let Some((outage, after, for_long)) = plan.outage {
                    handle.sleep(after).await;
                    machine.fail(outage);
                    handle.sleep(for_long).await;
                    // The power may go before devices are back, or before the pool goes on.
                    if rng.chance(3, 4) {
                        machine.come_back(&self.shape);
                        let resumed = opened.clone();
                        let operator = handle.clone();
                        handle.detach(Class::Issue, async move {
                            while resumed.resume().await.is_err() {
                                operator.sleep(Duration::from_millis(1)).await;
                            }
                        });
                    }
                }
                handle.sleep(lasts).await;
            }
            let promised = pool.as_ref().map_or(last, |pool| pool.txgs().synced_txg());
            let records = pool.as_ref().map(Pool::history).unwrap_or_default();
            let late = machine.cut(rng, has_late);
            // Nothing runs from here on: what was under way is dropped with the runtime.
            Ok((promised.max(last), pool.is_none(), late, records))
        };
        let lived = run(&runtime, async {
            match race(pin!(living), pin!(local.go_on())).await {
                Either::Left(lived) => lived,
                Either::Right(never) => match never {},
            }
        });
        drop(local);
        let (promised, was_opening, late, records) = lived?;
        done.was_opening = was_opening;
        done.steps += runtime.sim().map_or(0, |sim| sim.steps());
        let is_told = |failure: &&String| {
            // Of a device that is known to have lost it already it is called stale.
            let is_lost =
                ["checksum error", "stale (device missed the write)"].iter().any(|word| failure.contains(word));
            plan.outage.is_some_and(|(outage, ..)| outage.loses_all_caches()) && is_lost
        };
        if let Some(failure) = failures.lock().iter().find(|failure| !is_told(failure)) {
            let faults =
                plan.outage.map(|(outage, after, lasts)| format!(" ({outage:?} after {after:?} for {lasts:?})"));
            return Err(format!("under load{}: {failure}", faults.unwrap_or_default()));
        }
        self.models.check_dirty(&records)?;
        self.images = machine.images();
        machine.end(runtime, handle)?;
        Ok((promised, late))
    }
}

/// The faults of devices before a cut.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// This one is not there.
    away: Option<usize>,
    /// Some fail: how, when after the load began, and for how long.
    outage: Option<(Outage, Duration, Duration)>,
}

/// The settings of a pool at work.
struct Ways {
    /// Devices fail for a while.
    has_outage: bool,
    /// Takes those who take snapshots, if any do.
    local: Option<Local>,
    /// Takes what fails.
    failures: Arc<Mutex<Vec<String>>>,
}

trait Durations {
    /// Up to this long, and not nothing.
    fn duration(&mut self, max: Duration) -> Duration;
}

impl Durations for Rng {
    fn duration(&mut self, max: Duration) -> Duration {
        Duration::from_nanos(1 + self.below(max.as_nanos() as u64))
    }
}

/// Makes the pool, with some snapshots and what was made of them; a txg from which on all of it is there.
async fn make(
    handle: &Handle,
    machine: &Machine,
    shape: &Shape,
    snapshots: Option<u64>,
) -> Result<(Txg, Models), String> {
    let options = CreateOptions {
        name: "written".into(),
        tops: machine.tops(handle, shape).await?,
        auxiliaries: AuxSpec::default(),
        ashift: Some(shape.ashift),
        disabled_features: shape.disabled_features.clone(),
        properties: Vec::new(),
        seed: Some(7),
        clock: Clock::Now,
        host: host(),
        command: "zpool create written".into(),
        user: 0,
        cache_bytes: CACHE_BYTES,
        check: true,
    };
    let pool = create(handle, options).await.map_err(words)?;
    tune(&pool, shape).await?;
    let root = pool.root().ok_or("no root")?.objset.clone();
    let spec = NodeSpec { mode: 0o755, ..NodeSpec::default() };
    BulkWriter::create(&root, pool.txg(), &spec).await.map_err(words)?;
    pool.sync().await.map_err(words)?;
    for name in FILE_SYSTEMS {
        let head = pool.create_dataset(name, ObjsetType::Zfs).await.map_err(words)?;
        BulkWriter::create(&head.objset, pool.txg(), &spec).await.map_err(words)?;
        pool.sync().await.map_err(words)?;
    }
    for name in (0..FAMILIES).flat_map(|family| [format!("written/s{family}"), format!("written/s{family}/a")]) {
        let head = pool.create_dataset(&name, ObjsetType::Zfs).await.map_err(words)?;
        BulkWriter::create(&head.objset, pool.txg(), &spec).await.map_err(words)?;
    }
    let head = pool.create_dataset(VOLUME, ObjsetType::Zvol).await.map_err(words)?;
    let spec = VolumeSpec { size_bytes: VOLUME_BYTES, block_bytes: VOLUME_BLOCK_BYTES };
    Volume::create(&head.objset, pool.txg(), &spec).await.map_err(words)?;
    pool.sync().await.map_err(words)?;
    let pool = pool.start(TxTunables::default()).await;
    for name in FILE_SYSTEMS {
        let head = pool.open_head(name).await.map_err(words)?;
        let fs = FileSystem::open_head(head.objset(), Arc::new(head.clone()), FileSystemOptions::default()).await;
        let fs = fs.map_err(words)?;
        let new = NewNode { mode: 0o040_755, ..NewNode::default() };
        for dir in 0..WRITERS * 2 {
            fs.create(fs.root(), dir_name(dir).as_bytes(), &new).await.map_err(words)?;
        }
    }
    if let Some(quota_bytes) = shape.quota_bytes {
        let change = pool.change(move |writer| {
            let value = PropertyValue::Number(quota_bytes);
            Box::pin(async move { writer.change_property(FILE_SYSTEMS[1], "quota", Some(&value)).await })
        });
        change.await.map_err(words)?;
    }
    pool.sync().await.map_err(words)?;
    let mut models = Models::fresh();
    let mut rng = Rng::new(snapshots.unwrap_or_default() ^ SNAPSHOTS_SEED);
    let draws = if snapshots.is_some() { DRAWS_BEFORE } else { 0 };
    if snapshots.is_some() {
        let mut family = models.families[0].lock().newest();
        receive_golden(&pool, &mut family).await?;
        models.families[0] = shared(family);
    }
    let earlier = models.families.iter().enumerate().map(|(family, log)| {
        let (pool, log, in_use) = (pool.clone(), log.clone(), models.in_use(family));
        let snapshotter = Snapshotter { pool, family, log, in_use, has_outage: false, rng: Rng::new(rng.next_u64()) };
        snapshotter.run(draws)
    });
    join_all(earlier).await.into_iter().collect::<Result<(), String>>()?;
    models.families = models.families.iter().map(|log| shared(log.lock().newest())).collect();
    pool.sync().await.map_err(words)?;
    pool.audit().await.map_err(words)?;
    pool.export().await.map_err(words)?;
    // The last txg says that it is exported, and that one is written into all labels.
    machine.growth(shape).used_before(handle, &machine.paths[0]).await?;
    let found = found(handle, &machine.paths).await?;
    let txg = found.newest().map(|leaf| leaf.txg).ok_or_else(|| "no labels".to_owned())?;
    Ok((txg, models))
}

/// Gives the pool's allocator the tunables of a shape.
async fn tune(pool: &Pool, shape: &Shape) -> Result<(), String> {
    let shape = shape.clone();
    pool.peek(move |syncer| syncer.tune_space(|tunables| shape.tune(tunables))).await.map_err(words)
}

/// Opens the pool to be written, and its datasets, so that their logs are replayed; in many txgs if `in_many` is set.
async fn replayed(
    handle: &Handle,
    machine: &Machine,
    shape: &Shape,
    in_many: bool,
) -> Result<(Pool, Vec<FileSystem>, LiveVolume), String> {
    let options = WriteOptions { clock: Clock::Now, host: host(), check: true };
    let pool = open(handle, found(handle, &machine.paths).await?, &import_options(), options).await;
    let pool = pool.map_err(|error| format!("to be replayed: {error}"))?;
    nothing_interrupted(&pool).await?;
    tune(&pool, shape).await?;
    let pool = pool.start(TxTunables::default()).await;
    if in_many {
        let synced = pool.clone();
        // Until the power goes.
        handle.detach(Class::Sync, async move { while synced.sync().await.is_ok() {} });
    }
    let mut filesystems = Vec::new();
    for name in FILE_SYSTEMS {
        let head = pool.open_head(name).await.map_err(words)?;
        let xattrs = if shape.has_xattr_dirs() { XattrMode::Dir } else { XattrMode::Sa };
        let options = FileSystemOptions { record_bytes: RECORD_BYTES, xattrs, ..FileSystemOptions::default() };
        let log = Arc::new(head.log(SyncMode::Standard));
        let fs = FileSystem::open_logged(head.objset(), log, options).await;
        filesystems.push(fs.map_err(|error| format!("{name}: {error}"))?);
    }
    let head = pool.open_head(VOLUME).await.map_err(words)?;
    let volume = LiveVolume::open(head.objset(), head.log(shape.volume_sync)).await.map_err(words)?;
    volume.replay().await.map_err(|error| format!("{VOLUME}: {error}"))?;
    Ok((pool, filesystems, volume))
}

/// A pool that is open for writing has no dataset that a receive has left and that cannot be gone on with.
async fn nothing_interrupted(pool: &Pool) -> Result<(), String> {
    let dsl = pool.dsl().map_err(words)?;
    for dir in dsl.tree(dsl.root_dir().await.map_err(words)?, true).await.map_err(words)? {
        let Some(head) = dsl.head(&dir).await.map_err(words)? else { continue };
        let goes_on = dsl.dataset_field(&head, dataset_field::RESUME_TO_GUID).await.map_err(words)?.is_some();
        if head.is_inconsistent() && !goes_on {
            return Err(format!("{} was received in part, cannot be gone on with, and is there", dir.name));
        }
    }
    Ok(())
}

/// Opens the pool and sets all to work that changes something.
async fn opened(
    handle: &Handle,
    machine: &Machine,
    shape: &Shape,
    models: &Models,
    seed: u64,
    ways: &Ways,
) -> Result<Pool, String> {
    let mut rng = Rng::new(seed);
    let options = WriteOptions { clock: Clock::Now, host: host(), check: true };
    let found = found(handle, &machine.paths).await?;
    let writer = open(handle, found, &import_options(), options).await;
    let writer = writer.map_err(|error| format!("to be written: {error}"))?;
    nothing_interrupted(&writer).await?;
    tune(&writer, shape).await?;
    let tunables = TxTunables { zfs_dirty_data_max: DIRTY_BYTES_MAX, ..TxTunables::default() };
    let pool = writer.start(tunables).await;
    let work = |what: &'static str, work: std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send>>| {
        let failures = ways.failures.clone();
        handle.detach(Class::Issue, async move {
            if let Err(error) = work.await {
                failures.lock().push(format!("{what}: {error}"));
            }
        });
    };
    let slowness = if ways.local.is_some() { SLOWNESS } else { 1 };
    let mut heads = Vec::new();
    let mut writers = models.files.iter();
    for ((name, sync), is_for_throughput) in FILE_SYSTEMS.into_iter().zip(shape.sync).zip(shape.is_for_throughput) {
        let head = pool.open_head(name).await.map_err(words)?;
        heads.push(head.clone());
        let xattrs = if shape.has_xattr_dirs() { XattrMode::Dir } else { XattrMode::Sa };
        let options = FileSystemOptions { record_bytes: RECORD_BYTES, xattrs, ..FileSystemOptions::default() };
        let turn = Turn::default();
        let zil = Arc::new(head.log_through(Arc::new(Noting::new(head.clone(), turn.clone())), sync));
        let fs = FileSystem::open_logged(head.objset(), zil.clone(), options).await.map_err(words)?;
        zil.set_for_throughput(is_for_throughput);
        for (at, log) in writers.by_ref().take(WRITERS).enumerate() {
            let first = fs.lookup(fs.root(), dir_name(at * 2).as_bytes()).await.map_err(words)?;
            let second = fs.lookup(fs.root(), dir_name(at * 2 + 1).as_bytes()).await.map_err(words)?;
            let writer = FileWriter {
                fs: fs.clone(),
                turn: turn.clone(),
                dirs: [first, second],
                log: log.clone(),
                rng: Rng::new(rng.next_u64()),
                zil: zil.clone(),
                pool: pool.clone(),
                slowness,
            };
            work("files", Box::pin(writer.run()));
        }
    }
    let head = pool.open_head(VOLUME).await.map_err(words)?;
    heads.push(head.clone());
    let volume = LiveVolume::open(head.objset(), head.log(shape.volume_sync)).await.map_err(words)?;
    volume.replay().await.map_err(words)?;
    volume.set_for_throughput(shape.is_for_throughput[2]);
    let volume = Arc::new(volume);
    for log in &models.ranges {
        let (volume, sync) = (volume.clone(), shape.volume_sync);
        let writer = RangeWriter {
            volume,
            handle: handle.clone(),
            sync,
            log: log.clone(),
            rng: Rng::new(rng.next_u64()),
            slowness,
        };
        work("a volume", Box::pin(writer.run()));
    }
    let log = models.datasets.clone();
    let administrator = Administrator { pool: pool.clone(), heads, log, rng: Rng::new(rng.next_u64()) };
    work("the pool", Box::pin(administrator.run()));
    let (growth, log) = (machine.growth(shape), models.grown.clone());
    let grower =
        Grower { pool: pool.clone(), growth, log_device: shape.log_place(), log, rng: Rng::new(rng.next_u64()) };
    work("the vdevs", Box::pin(grower.run()));
    for (family, log) in models.families.iter().enumerate() {
        let (pool, log, in_use) = (pool.clone(), log.clone(), models.in_use(family));
        let (has_outage, rng) = (ways.has_outage, Rng::new(rng.next_u64()));
        let snapshotter = Snapshotter { pool, family, log, in_use, has_outage, rng };
        let failures = ways.failures.clone();
        let Some(local) = &ways.local else { break };
        local.push(async move {
            if let Err(error) = snapshotter.run(u64::MAX).await {
                failures.lock().push(format!("snapshots: {error}"));
            }
        });
    }
    Ok(pool)
}
