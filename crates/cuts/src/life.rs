//! A pool's life from its making through a number of cuts, and the verdict after each.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::tx::TxTunables;
use cenote_dsl::property::Source;
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_scan::{VerifyOptions, verify};
use cenote_spa::write::live::LivePool;
use cenote_spa::write::{AuxSpec, Clock, CreateOptions, Host, WriteOptions, create, open};
use cenote_spa::{FoundPool, ImportOptions, Pool, find, import};
use cenote_taskq::sim::disk::Image;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Either, Handle, Rng, Runtime, race};
use cenote_testkit::campaign::take_panics;
use cenote_zpl::live::{LiveFileSystem, LiveOptions, NewNode};
use cenote_zpl::write::{FileSystemMut, NodeSpec, XattrMode};
use cenote_zpl::{Cursor, FileSystem};
use cenote_zvol::Volume;
use cenote_zvol::write::{VolumeMut, VolumeSpec};

use crate::CUTS;
use crate::load::{
    Administrator, FileWriter, Noting, RangeWriter, Shared, Turn, dataset_name, key_bytes, name_bytes, object_len,
};
use crate::machine::{Machine, Shape};
use crate::model::{Datasets, Files, Log, Range, State, content};

/// Polls that a stretch of a life may take: many times what one takes.
pub const STEPS_MAX: u64 = 5_000_000;
/// The block cache's limit.
const CACHE_BYTES: usize = 8 << 20;
/// The power goes at latest this long after the load began.
const LOAD_MAX: Duration = Duration::from_millis(70);
/// Or this long after it came back.
const OPENING_MAX: Duration = Duration::from_millis(40);
/// What may be dirty, so that many txgs come and go.
const DIRTY_BYTES_MAX: u64 = 2 << 20;

const FILE_SYSTEMS: [&str; 2] = ["written/f0", "written/f1"];
/// Writers in each file system.
const WRITERS: usize = 2;
const VOLUME: &str = "written/v0";
const VOLUME_BYTES: u64 = 1 << 20;
const RANGES: u64 = 3;
/// No multiple of a block, so that writers meet in blocks.
const RANGE_BYTES: u64 = 130_000;

/// How a cut ended well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Changes that were made before it.
    pub changes: u64,
    /// Txgs that were synced before it.
    pub txgs: u64,
    /// The txg that is there is later than the last that was reported: the cut came between.
    pub is_later: bool,
    /// The power went while the pool was opened.
    pub was_opening: bool,
    /// Polls that it took.
    pub steps: u64,
}

/// Everything that is changed, as of the last cut and since.
struct Models {
    files: Vec<Shared<Files>>,
    ranges: Vec<Shared<Range>>,
    datasets: Shared<Datasets>,
}

fn shared<S: State>(base: S) -> Shared<S> {
    Arc::new(Mutex::new(Log::new(base)))
}

impl Models {
    fn fresh() -> Self {
        let range = |at| Range { offset_bytes: at * RANGE_BYTES, bytes: vec![0; RANGE_BYTES as usize] };
        Self {
            files: (0..FILE_SYSTEMS.len() * WRITERS).map(|_| shared(Files::default())).collect(),
            ranges: (0..RANGES).map(|at| shared(range(at))).collect(),
            datasets: shared(Datasets::default()),
        }
    }

    fn changes(&self) -> u64 {
        let files: usize = self.files.iter().map(|log| log.lock().len()).sum();
        let ranges: usize = self.ranges.iter().map(|log| log.lock().len()).sum();
        (files + ranges + self.datasets.lock().len()) as u64
    }
}

/// A pool between two cuts, and what comes after the last.
pub struct Life {
    shape: Shape,
    seed: u64,
    images: Vec<Image>,
    models: Models,
    txg: Txg,
    cuts: u64,
}

fn runtime(seed: u64) -> Runtime {
    let runtime = Runtime::simulated(seed);
    if let Some(sim) = runtime.sim() {
        sim.set_steps_max(STEPS_MAX);
    }
    runtime
}

/// Runs part of a life; panics and standing still are failures.
fn run<T>(runtime: &Runtime, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
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

fn host() -> Host {
    Host { id: 0, name: "here".into() }
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

async fn found(handle: &Handle, machine: &Machine) -> Result<FoundPool, String> {
    let (mut pools, skipped) = find(handle, &machine.paths).await;
    if pools.len() != 1 {
        return Err(format!("{} pools are found; {skipped:?}", pools.len()));
    }
    Ok(pools.remove(0))
}

fn import_options() -> ImportOptions {
    ImportOptions { cache_bytes: CACHE_BYTES, force: true, ..ImportOptions::default() }
}

impl Life {
    /// Makes the pool of the life with this number, and what is in it from the beginning.
    ///
    /// # Errors
    /// That failed.
    pub fn begin(number: u64) -> Result<Self, String> {
        take_panics();
        let seed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x6375_7473;
        let shape = Shape::draw(&mut Rng::new(seed));
        let runtime = runtime(seed);
        let machine = Machine::new(&runtime, &shape, &[]);
        let handle = runtime.handle();
        let made = run(&runtime, make(&handle, &machine, &shape));
        made.map_err(|error| format!("{}: making the pool: {error}", shape.words()))?;
        let images = machine.images();
        Ok(Self { shape, seed, images, models: Models::fresh(), txg: Txg(0), cuts: 0 })
    }

    /// Has the devices only say that they flush, from now on: for a test of the test.
    pub fn lose_flushes(&mut self) {
        self.shape.flushes_are_lost = true;
    }

    /// What it is, in a few words.
    #[must_use]
    pub fn words(&self) -> String {
        self.shape.words()
    }

    /// Lives on to the next cut, and judges what that has left.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn cut(&mut self) -> Result<Done, String> {
        self.cuts += 1;
        let about = format!("{}, cut {} of {CUTS}", self.shape.words(), self.cuts);
        let about = |error: String| format!("{about}: {error}");
        let mut rng = Rng::new(self.seed ^ self.cuts << 56);
        let (promised, was_opening, mut steps) = self.load(&mut rng).map_err(&about)?;
        let changes = self.models.changes();
        let runtime = runtime(self.seed ^ self.cuts);
        let machine = Machine::new(&runtime, &self.shape, &self.images);
        let handle = runtime.handle();
        let judged = run(&runtime, judge(&handle, &machine, &self.models, promised));
        let (txg, models) = judged.map_err(&about)?;
        steps += runtime.sim().map_or(0, |sim| sim.steps());
        let before = std::mem::replace(&mut self.txg, txg);
        self.models = models;
        let txgs = txg.0.saturating_sub(before.0);
        Ok(Done { changes, txgs, is_later: txg > promised, was_opening, steps })
    }

    /// Opens the pool and changes it until the power goes. The last txg that was reported synced, whether the pool was still
    /// being opened, and polls.
    fn load(&mut self, rng: &mut Rng) -> Result<(Txg, bool, u64), String> {
        let runtime = runtime(rng.next_u64());
        let machine = Machine::new(&runtime, &self.shape, &self.images);
        let handle = runtime.handle();
        let failures = Arc::new(Mutex::new(Vec::new()));
        let is_early = rng.chance(1, 6);
        let last = self.txg;
        let lived = run(&runtime, async {
            let opening = opened(&handle, &machine, &self.shape, &self.models, rng.next_u64(), &failures);
            let mut pool = None;
            if is_early {
                let span = Duration::from_nanos(1 + rng.below(OPENING_MAX.as_nanos() as u64));
                match race(opening, handle.sleep(span)).await {
                    Either::Left(opened) => pool = Some(opened?),
                    Either::Right(()) => {}
                }
            } else {
                pool = Some(opening.await?);
                handle.sleep(Duration::from_nanos(1 + rng.below(LOAD_MAX.as_nanos() as u64))).await;
            }
            let promised = pool.as_ref().map_or(last, |pool| pool.txgs().synced_txg());
            machine.cut(rng);
            // Nothing runs from here on: what was under way is dropped with the runtime.
            Ok((promised.max(last), pool.is_none()))
        });
        let (promised, was_opening) = lived?;
        if let Some(failure) = failures.lock().first() {
            return Err(format!("under load: {failure}"));
        }
        self.images = machine.images();
        Ok((promised, was_opening, runtime.sim().map_or(0, |sim| sim.steps())))
    }
}

async fn make(handle: &Handle, machine: &Machine, shape: &Shape) -> Result<(), String> {
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
    let mut pool = create(handle, options).await.map_err(words)?;
    pool.tune_space(|tunables| shape.tune(tunables));
    let root = pool.root().ok_or("no root")?.objset.clone();
    let spec = NodeSpec { mode: 0o755, ..NodeSpec::default() };
    FileSystemMut::create(&root, pool.txg(), &spec).await.map_err(words)?;
    pool.sync().await.map_err(words)?;
    for name in FILE_SYSTEMS {
        let head = pool.create_dataset(name, ObjsetType::Zfs).await.map_err(words)?;
        FileSystemMut::create(&head.objset, pool.txg(), &spec).await.map_err(words)?;
        pool.sync().await.map_err(words)?;
    }
    let head = pool.create_dataset(VOLUME, ObjsetType::Zvol).await.map_err(words)?;
    let spec = VolumeSpec { size_bytes: VOLUME_BYTES, block_bytes: 8 << 10 };
    VolumeMut::create(&head.objset, pool.txg(), &spec).await.map_err(words)?;
    pool.sync().await.map_err(words)?;
    let pool = LivePool::start(pool, TxTunables::default());
    for name in FILE_SYSTEMS {
        let head = pool.open_head(name).await.map_err(words)?;
        let fs = LiveFileSystem::open(head.objset(), Arc::new(head.clone()), LiveOptions::default()).await;
        let fs = fs.map_err(words)?;
        let new = NewNode { mode: 0o040_755, ..NewNode::default() };
        for dir in 0..WRITERS * 2 {
            fs.create(fs.root(), dir_name(dir).as_bytes(), &new).await.map_err(words)?;
        }
    }
    pool.export().await.map_err(words)
}

fn dir_name(number: usize) -> String {
    format!("d{number}")
}

/// Opens the pool and sets all to work that changes something.
async fn opened(
    handle: &Handle,
    machine: &Machine,
    shape: &Shape,
    models: &Models,
    seed: u64,
    failures: &Arc<Mutex<Vec<String>>>,
) -> Result<LivePool, String> {
    let mut rng = Rng::new(seed);
    let options = WriteOptions { clock: Clock::Now, host: host(), check: true };
    let found = found(handle, machine).await?;
    let writer = open(handle, found, &import_options(), options).await;
    let mut writer = writer.map_err(|error| format!("to be written: {error}"))?;
    writer.tune_space(|tunables| shape.tune(tunables));
    let tunables = TxTunables { zfs_dirty_data_max: DIRTY_BYTES_MAX, ..TxTunables::default() };
    let pool = LivePool::start(writer, tunables);
    let work = |what: &'static str, work: std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send>>| {
        let failures = failures.clone();
        handle.detach(Class::Issue, async move {
            if let Err(error) = work.await {
                failures.lock().push(format!("{what}: {error}"));
            }
        });
    };
    let mut heads = Vec::new();
    let mut writers = models.files.iter();
    for name in FILE_SYSTEMS {
        let head = pool.open_head(name).await.map_err(words)?;
        heads.push(head.clone());
        let xattrs = if shape.ashift == 9 { XattrMode::Dir } else { XattrMode::Sa };
        let options = LiveOptions { record_bytes: 16 << 10, xattrs, ..LiveOptions::default() };
        let turn = Turn::default();
        let source = Arc::new(Noting::new(head.clone(), turn.clone()));
        let fs = LiveFileSystem::open(head.objset(), source, options).await.map_err(words)?;
        for (at, log) in writers.by_ref().take(WRITERS).enumerate() {
            let first = fs.lookup(fs.root(), dir_name(at * 2).as_bytes()).await.map_err(words)?;
            let second = fs.lookup(fs.root(), dir_name(at * 2 + 1).as_bytes()).await.map_err(words)?;
            let writer = FileWriter {
                fs: fs.clone(),
                turn: turn.clone(),
                dirs: [first, second],
                log: log.clone(),
                rng: Rng::new(rng.next_u64()),
                pool: pool.clone(),
            };
            work("files", Box::pin(writer.run()));
        }
    }
    let head = pool.open_head(VOLUME).await.map_err(words)?;
    heads.push(head.clone());
    let volume = VolumeMut::open(head.objset()).await.map_err(words)?;
    for log in &models.ranges {
        let (volume, head) = (volume.clone(), head.clone());
        let writer = RangeWriter { volume, head, log: log.clone(), rng: Rng::new(rng.next_u64()) };
        work("a volume", Box::pin(writer.run()));
    }
    let log = models.datasets.clone();
    let administrator = Administrator { pool: pool.clone(), heads, log, rng: Rng::new(rng.next_u64()) };
    work("the pool", Box::pin(administrator.run()));
    Ok(pool)
}

/// Imports what a cut has left, verifies it and compares it with the models as of its txg; models that go on from there.
async fn judge(handle: &Handle, machine: &Machine, models: &Models, promised: Txg) -> Result<(Txg, Models), String> {
    let pool = import(handle, found(handle, machine).await?, &import_options()).await;
    let pool = pool.map_err(|error| format!("not imported: {error}"))?;
    let txg = pool.txg();
    if txg < promised {
        return Err(format!("txg {promised} was reported synced, {txg} is there"));
    }
    let report = verify(handle, &pool, VerifyOptions::default(), &mut |_| true).await.map_err(words)?;
    if !report.is_clean() {
        return Err(format!("as of txg {txg}: {report}"));
    }
    let mut files = Vec::new();
    let mut logs = models.files.iter();
    for name in FILE_SYSTEMS {
        let fs = FileSystem::open(objset(&pool, name).await?).await.map_err(words)?;
        for (at, log) in logs.by_ref().take(WRITERS).enumerate() {
            let there = read_files(&fs, at).await.map_err(|error| format!("files of {name}: {error}"))?;
            let log = log.lock();
            let state = log.as_of(txg).into_iter().find(|state| files_of(state) == there);
            let state = state.ok_or_else(|| {
                let difference = first_difference(&files_of(&log.as_of(txg)[0]), &there);
                format!("writer {at} of {name} is not as of txg {txg}: {difference}; {}", log.tail(txg))
            })?;
            files.push(shared(state));
        }
    }
    let volume = Volume::open(objset(&pool, VOLUME).await?).await.map_err(words)?;
    let mut ranges = Vec::new();
    for log in &models.ranges {
        let log = log.lock().clone();
        let state = log.as_of(txg).remove(0);
        let there = volume.read(state.offset_bytes, state.bytes.len()).await.map_err(words)?;
        if there[..] != state.bytes[..] {
            let at = there.iter().zip(&state.bytes).position(|(there, wanted)| there != wanted).unwrap_or(0);
            let offset = state.offset_bytes;
            return Err(format!("the volume from {offset} on is not as of txg {txg} at +{at}: {}", log.tail(txg)));
        }
        ranges.push(shared(state));
    }
    let log = models.datasets.lock().clone();
    let state = log.as_of(txg).remove(0);
    check_datasets(&pool, &state).await.map_err(|error| format!("as of txg {txg}: {error}; {}", log.tail(txg)))?;
    Ok((txg, Models { files, ranges, datasets: shared(state) }))
}

async fn objset(pool: &Pool, name: &str) -> Result<cenote_dmu::Objset, String> {
    let dataset = pool.dsl().dataset(name).await.map_err(words)?;
    pool.dsl().open(&dataset).await.map_err(words)?.ok_or_else(|| format!("{name} has no objset"))
}

/// Names with which file (by number, in the order of first names), content and attributes.
type Seen = BTreeMap<(u8, Vec<u8>), (usize, Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>)>;

fn files_of(state: &Files) -> Seen {
    let mut order = BTreeMap::new();
    let mut sorted: Vec<_> = state.names.iter().map(|(name, number)| ((name.0, name_bytes(*name)), *number)).collect();
    sorted.sort();
    let mut seen = Seen::new();
    for (name, number) in sorted {
        let count = order.len();
        let place = *order.entry(number).or_insert(count);
        let file = state.files.get(&number).cloned().unwrap_or_default();
        let xattrs = file.xattrs.into_iter().map(|(key, value)| (key_bytes(key), value)).collect();
        seen.insert(name, (place, file.bytes, xattrs));
    }
    seen
}

async fn read_files(fs: &FileSystem, writer: usize) -> Result<Seen, String> {
    let mut found: BTreeMap<(u8, Vec<u8>), ObjectId> = BTreeMap::new();
    for which in 0..2_u8 {
        let name = dir_name(writer * 2 + usize::from(which));
        let dir = fs.lookup(fs.root(), name.as_bytes()).await.map_err(words)?;
        let mut cursor = Cursor::default();
        loop {
            let entries = fs.list(dir, cursor, 100).await.map_err(words)?;
            let Some(last) = entries.last() else { break };
            cursor = last.next;
            found.extend(entries.into_iter().map(|entry| ((which, entry.name), entry.object)));
        }
    }
    let mut order: BTreeMap<ObjectId, usize> = BTreeMap::new();
    let mut links: BTreeMap<ObjectId, u64> = BTreeMap::new();
    found.values().for_each(|object| *links.entry(*object).or_default() += 1);
    let mut seen = Seen::new();
    for (name, object) in found {
        let count = order.len();
        let place = *order.entry(object).or_insert(count);
        let file = fs.open_file(object).await.map_err(words)?;
        let attributes = file.attributes();
        if Some(attributes.link_count) != links.get(&object).copied() {
            return Err(format!(
                "object {object} has {:?} names and counts {}",
                links.get(&object),
                attributes.link_count
            ));
        }
        let size = usize::try_from(attributes.size_bytes).map_err(words)?;
        let bytes = file.read(0, size).await.map_err(words)?.to_vec();
        let xattrs = fs.xattrs(object).await.map_err(words)?;
        seen.insert(name, (place, bytes, xattrs));
    }
    Ok(seen)
}

fn first_difference(wanted: &Seen, there: &Seen) -> String {
    for name in wanted.keys().chain(there.keys()) {
        let at = format!("{}/{}", name.0, String::from_utf8_lossy(&name.1));
        match (wanted.get(name), there.get(name)) {
            (Some(wanted), Some(there)) if wanted != there => {
                let place = wanted.1.iter().zip(&there.1).position(|(wanted, there)| wanted != there);
                return format!(
                    "{at}: file {} of {} bytes with {} attributes, not file {} of {} bytes with {} attributes; first \
                     other byte {place:?}",
                    there.0,
                    there.1.len(),
                    there.2.len(),
                    wanted.0,
                    wanted.1.len(),
                    wanted.2.len()
                );
            }
            (Some(_), None) => return format!("{at} is not there"),
            (None, Some(_)) => return format!("{at} should not be there"),
            _ => {}
        }
    }
    "nothing".to_owned()
}

async fn check_datasets(pool: &Pool, state: &Datasets) -> Result<(), String> {
    let dsl = pool.dsl();
    let root = dsl.root_dir().await.map_err(words)?;
    let mut names: Vec<String> =
        dsl.children(&root, false).await.map_err(words)?.into_iter().map(|child| child.0).collect();
    names.sort();
    let mut wanted: Vec<String> = state.datasets.keys().map(|number| dataset_name(*number)).collect();
    wanted.extend(FILE_SYSTEMS.iter().chain([&VOLUME]).map(|name| (*name).to_owned()));
    let mut wanted: Vec<&str> = wanted.iter().filter_map(|name| name.strip_prefix("written/")).collect();
    wanted.sort_unstable();
    if names != wanted {
        return Err(format!("datasets {names:?} instead of {wanted:?}"));
    }
    for (number, dataset) in &state.datasets {
        let name = dataset_name(*number);
        let dir = dsl.dir(&name).await.map_err(words)?;
        for property in ["copies", "atime", "quota", "compression"] {
            let there = if property == "quota" {
                (dir.phys.quota_bytes != 0).then_some(dir.phys.quota_bytes)
            } else {
                let found = dsl.property(&dir, property, true).await.map_err(words)?;
                let own = found.filter(|found| found.source == Source::Local);
                own.and_then(|found| found.value.number())
            };
            let wanted = dataset.properties.get(property).copied();
            if there != wanted {
                return Err(format!("{name} has {property} {there:?} instead of {wanted:?}"));
            }
        }
        let objset = objset(pool, &name).await?;
        let mut objects = Vec::new();
        let mut from = ObjectId(0);
        while let Some(next) = objset.next_objects(from).await.map_err(words)? {
            for (_, dnode) in next.objects {
                let dnode = dnode.map_err(words)?;
                if dnode.phys().object_type == DmuType::UINT8_DATA {
                    objects.push(dnode);
                }
            }
            from = next.next;
        }
        if objects.len() != dataset.objects.len() {
            return Err(format!("{name} has {} objects instead of {}", objects.len(), dataset.objects.len()));
        }
        for (dnode, (_, seed)) in objects.iter().zip(&dataset.objects) {
            let wanted = content(*seed, object_len(*seed));
            let there = dnode.read(0, wanted.len()).await.map_err(words)?;
            if there[..] != wanted[..] {
                return Err(format!("object {} of {name} has other content", dnode.id()));
            }
        }
    }
    let comment = pool.config().str("comment");
    let wanted = state.comment.map(|comment| comment.to_string());
    if comment != wanted.as_deref() {
        return Err(format!("comment {comment:?} instead of {wanted:?}"));
    }
    Ok(())
}
