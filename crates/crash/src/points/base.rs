//! The pool that scripts begin with.

use std::sync::Arc;

use cenote_dmu::tx::{SyncMode, TxTunables};
use cenote_format::enums::ObjsetType;
use cenote_sim::{Machine, disk};
use cenote_spa::{Pool, TopKind, TopSpec};
use cenote_taskq::sim::disk::{Image, SimDiskOptions};
use cenote_taskq::{Handle, Rng, Runtime};
use cenote_vdev::config::AllocationClass;
use cenote_zpl::bulk::{BulkWriter, NodeSpec};
use cenote_zpl::{FileSystem, FileSystemOptions, NewNode};
use cenote_zvol::live::LiveVolume;
use cenote_zvol::{Volume, VolumeSpec};

use crate::judge::{found, import_options};
use crate::life::run;
use crate::load::{FileWriter, Noting, Shared, Turn};
use crate::model::{FileChange, Files, Log, Name, Range, RangeChange, State};
use crate::stage::{dir_name, words};

pub(super) const FILE_SYSTEM: &str = "written/f";
pub(super) const VOLUME: &str = "written/v";
const VOLUME_BLOCK_BYTES: u32 = 8 << 10;
const RANGE_BYTES: usize = 64 << 10;
const RECORD_BYTES: u32 = 16 << 10;

/// A file that is there, with data of several blocks and with attributes.
pub(super) const TARGET: Name = (0, 0);
/// Another one, in the other directory, without data.
pub(super) const SECOND: Name = (1, 1);
/// A second name of a third one.
pub(super) const LINKED: Name = (1, 2);

/// A layout, and which of its vdevs are log devices.
pub struct Shape {
    /// In a few words.
    pub words: &'static str,
    tops: &'static [(TopKind, usize, AllocationClass)],
    ashift: u32,
    /// `logbias=throughput`: all writes are logged by reference, beside a log device too.
    is_for_throughput: bool,
}

use AllocationClass::{Log as LogClass, Normal};

/// One of one vdev.
const fn plain(words: &'static str, tops: &'static [(TopKind, usize, AllocationClass)], ashift: u32) -> Shape {
    Shape { words, tops, ashift, is_for_throughput: false }
}

const SINGLE: &[(TopKind, usize, AllocationClass)] = &[(TopKind::Single, 1, Normal)];

/// Those that scripts are run on.
pub const SHAPES: &[Shape] = &[
    plain("single", SINGLE, 12),
    Shape { is_for_throughput: true, ..plain("single, throughput", SINGLE, 12) },
    Shape {
        is_for_throughput: true,
        ..plain("single, log, throughput", &[(TopKind::Single, 1, Normal), (TopKind::Single, 1, LogClass)], 12)
    },
    plain("mirror, log", &[(TopKind::Mirror, 2, Normal), (TopKind::Mirror, 2, LogClass)], 9),
    plain("raidz1", &[(TopKind::Raidz { parity: 1 }, 3, Normal)], 12),
];

impl Shape {
    fn disks(&self) -> usize {
        self.tops.iter().map(|(_, disks, _)| disks).sum()
    }

    async fn tops(&self, handle: &Handle, machine: &Machine) -> Result<Vec<TopSpec>, String> {
        let mut paths = machine.paths.iter();
        let mut tops = Vec::new();
        for (kind, count, class) in self.tops {
            let mut disks = Vec::new();
            for path in paths.by_ref().take(*count) {
                disks.push(disk(handle, path).await.map_err(words)?);
            }
            tops.push(TopSpec { kind: *kind, class: *class, disks });
        }
        Ok(tops)
    }
}

/// The files that are there at first.
pub(super) fn files() -> Files {
    let mut files = Files::default();
    changes().iter().for_each(|change| files.apply(change));
    files
}

fn changes() -> Vec<FileChange> {
    let third = (0, 3);
    vec![
        FileChange::Create(TARGET),
        FileChange::Write { name: TARGET, offset: 0, len: 40_000, seed: 2 },
        FileChange::SetXattr { name: TARGET, key: 2, len: 40, seed: 3 },
        FileChange::Create(SECOND),
        FileChange::Create(third),
        FileChange::Write { name: third, offset: 0, len: 900, seed: 4 },
        FileChange::Link { from: third, to: LINKED },
    ]
}

pub(super) fn range() -> Range {
    let bytes = vec![0; RANGE_BYTES];
    let mut range = Range { offset_bytes: 0, block_bytes: VOLUME_BLOCK_BYTES as usize, bytes };
    range.apply(&FILLED);
    range
}

const FILLED: RangeChange = RangeChange::Write { offset: 0, len: 50_000, seed: 4 };

/// A pool's disks, with all in it that is there at first, exported.
pub struct Base {
    pub(super) shape: &'static Shape,
    pub(super) images: Vec<Image>,
}

/// A pool that is open, and its datasets.
pub(super) struct Opened {
    pub(super) pool: Pool,
    pub(super) files: FileWriter,
    pub(super) volume: Arc<LiveVolume>,
}

/// Disks with this content; empty ones if there is none.
pub(super) fn machine(runtime: &Runtime, shape: &Shape, images: &[Image]) -> Machine {
    let options =
        SimDiskOptions { size_bytes: crate::DISK_BYTES, latency: cenote_sim::slow(), ..SimDiskOptions::default() };
    let machine = Machine::new(runtime, shape.disks(), &options);
    machine.restore(images);
    machine
}

impl Base {
    /// Makes it.
    ///
    /// # Errors
    /// That failed.
    pub fn make(shape: &'static Shape) -> Result<Self, String> {
        let runtime = Runtime::simulated(1);
        let machine = machine(&runtime, shape, &[]);
        let handle = runtime.handle();
        run(&runtime, make(&handle, &machine, shape))?;
        let images = machine.images();
        Ok(Self { shape, images })
    }
}

async fn make(handle: &Handle, machine: &Machine, shape: &Shape) -> Result<(), String> {
    let options = cenote_sim::options("written", shape.tops(handle, machine).await?, shape.ashift);
    let pool = cenote_sim::new_pool(handle, options).await.map_err(words)?;
    let Opened { pool, files, volume } = fill(pool, shape.is_for_throughput).await?;
    drop((files, volume));
    pool.export().await.map_err(words)
}

/// Makes the datasets of a new pool with all that is in them at first, and has txgs written in the background from then on.
pub(super) async fn fill(pool: Pool, is_for_throughput: bool) -> Result<Opened, String> {
    let head = pool.create_dataset(FILE_SYSTEM, ObjsetType::Zfs).await.map_err(words)?;
    let spec = NodeSpec { mode: 0o755, ..NodeSpec::default() };
    BulkWriter::create(&head.objset, pool.txg(), &spec).await.map_err(words)?;
    pool.sync().await.map_err(words)?;
    let head = pool.create_dataset(VOLUME, ObjsetType::Zvol).await.map_err(words)?;
    let spec = VolumeSpec { size_bytes: RANGE_BYTES as u64, block_bytes: VOLUME_BLOCK_BYTES };
    Volume::create(&head.objset, pool.txg(), &spec).await.map_err(words)?;
    pool.sync().await.map_err(words)?;
    let pool = pool.start(TxTunables::default()).await;
    let log = Arc::new(cenote_taskq::sync::Mutex::new(Log::new(Files::default())));
    let range = Range { bytes: vec![0; RANGE_BYTES], ..range() };
    let Opened { pool, files, volume } = datasets(pool, is_for_throughput, &log, true).await?;
    for change in changes() {
        files.make_noted(&change).await?;
    }
    let (at, len) = FILLED.place();
    let bytes = crate::model::content(4, len);
    volume.write(range.offset_bytes + at as u64, &bytes).await.map_err(words)?;
    pool.sync().await.map_err(words)?;
    Ok(Opened { pool, files, volume })
}

/// Opens the pool to be written, with its datasets, whose logs are replayed.
pub(super) async fn open(
    handle: &Handle,
    machine: &Machine,
    shape: &Shape,
    log: &Shared<Files>,
) -> Result<Opened, String> {
    let options = cenote_spa::WriteOptions { clock: cenote_spa::Clock::Now, host: crate::life::host(), check: true };
    let pool = cenote_spa::open(handle, found(handle, &machine.paths).await?, &import_options(), options).await;
    let pool = pool.map_err(|error| format!("to be written: {error}"))?;
    datasets(pool.start(TxTunables::default()).await, shape.is_for_throughput, log, false).await
}

/// Opens the datasets, which replays their logs.
pub(super) async fn datasets(
    pool: Pool,
    is_for_throughput: bool,
    log: &Shared<Files>,
    is_new: bool,
) -> Result<Opened, String> {
    let head = pool.open_head(FILE_SYSTEM).await.map_err(words)?;
    let turn = Turn::default();
    let source = Arc::new(Noting::new(head.clone(), turn.clone()));
    let zil = Arc::new(head.log_through(source, SyncMode::Standard));
    zil.set_for_throughput(is_for_throughput);
    let options = FileSystemOptions { record_bytes: RECORD_BYTES, ..FileSystemOptions::default() };
    let fs = FileSystem::open_logged(head.objset(), zil.clone(), options).await;
    let fs = fs.map_err(|error| format!("{FILE_SYSTEM}: {error}"))?;
    let mut dirs = [fs.root(); 2];
    for (at, dir) in dirs.iter_mut().enumerate() {
        let name = dir_name(at);
        if is_new {
            let new = NewNode { mode: 0o040_755, ..NewNode::default() };
            fs.create(fs.root(), name.as_bytes(), &new).await.map_err(words)?;
        }
        *dir = fs.lookup(fs.root(), name.as_bytes()).await.map_err(words)?;
    }
    let files = FileWriter { fs, turn, dirs, log: log.clone(), rng: Rng::new(0), zil, pool: pool.clone(), slowness: 1 };
    let head = pool.open_head(VOLUME).await.map_err(words)?;
    let volume = LiveVolume::open(head.objset(), head.log(SyncMode::Standard)).await.map_err(words)?;
    volume.replay().await.map_err(|error| format!("{VOLUME}: {error}"))?;
    volume.set_for_throughput(is_for_throughput);
    Ok(Opened { pool, files, volume: Arc::new(volume) })
}
