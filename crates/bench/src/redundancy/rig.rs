//! Pools on files, in memory, or on modelled drives, and the clients that use them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cenote_dmu::Object;
use cenote_dmu::tx::TxTunables;
use cenote_format::dsl::{ScanPhys, ScanState};
use cenote_format::ids::Guid;
use cenote_spa::{
    Clock, DiskSpec, Host, ImportOptions, LiveHead, Pool, ScrubSince, TopKind, TopSpec, WriteOptions, find, open,
    tunables,
};
use cenote_taskq::buf::Buf;
use cenote_taskq::sim::disk::{Counts, SimDisk, SimDiskOptions};
use cenote_taskq::sim::model::{Flash, FlashOptions, Rotating, RotatingOptions};
use cenote_taskq::{
    Class, Device, Direct, Handle, OpenOptions, RamDevice, Runtime, RuntimeOptions, for_each_concurrent,
};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::disk::Disk;

use crate::clock::{Took, Watch};
use crate::writing::rig::{DIRTY_MAX_BYTES, PoolSpec, fill, filled, new_object, new_pool, write_record};

/// Memory of a pool's cache.
pub(super) const CACHE_BYTES: usize = 256 << 20;
/// How often the end of long work is looked for.
const POLL: Duration = Duration::from_millis(2);
/// Bytes that the raw device reads or writes at once, and how many such requests.
const RAW_BYTES: u64 = 1 << 20;
const RAW_DEPTH: usize = 8;
/// Room of a modelled drive beside data: a transaction reserves far more than it writes.
const ROOM_BYTES: u64 = 1 << 30;
/// Where a pool's space begins on a device.
const SPACE_STARTS: u64 = 4 << 20;

/// A drive that is a model.
#[derive(Clone, Copy, Debug)]
pub(super) enum Model {
    /// With a head.
    Rotating(RotatingOptions),
    /// Without.
    Flash(FlashOptions),
}

/// The devices of a pool.
pub(super) struct Bed {
    pub(super) runtime: Runtime,
    pub(super) disks: Disks,
}

/// Devices, by number. Cheap to clone.
#[derive(Clone)]
pub(super) struct Disks {
    pub(super) handle: Handle,
    pub(super) paths: Vec<PathBuf>,
    /// Those in memory.
    memory: Vec<Device>,
    /// The models.
    models: Vec<Arc<SimDisk>>,
}

/// Counts of all requests of some drives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

impl Bed {
    /// So many files of this size in a folder, with all their blocks.
    pub(super) fn files(folder: &Path, count: usize, size_bytes: u64) -> Result<Self> {
        let paths: Vec<PathBuf> = (0..count).map(|index| folder.join(format!("disk{index}"))).collect();
        for path in &paths {
            filled(path, size_bytes)?;
        }
        let runtime = Runtime::real(RuntimeOptions::default())?;
        let handle = runtime.handle();
        Ok(Self { runtime, disks: Disks { handle, paths, memory: Vec::new(), models: Vec::new() } })
    }

    /// So many devices in memory.
    pub(super) fn memory(count: usize, size_bytes: u64) -> Result<Self> {
        let runtime = Runtime::real(RuntimeOptions::default())?;
        let handle = runtime.handle();
        let paths: Vec<PathBuf> = (0..count).map(|index| format!("/memory{index}").into()).collect();
        let size_bytes = usize::try_from(size_bytes)?;
        // Every page is there: what grows later is not the devices.
        let memory = paths.iter().map(|path| Device::from_driver(RamDevice::new(path, vec![1; size_bytes]))).collect();
        Ok(Self { runtime, disks: Disks { handle, paths, memory, models: Vec::new() } })
    }

    /// Drives of these models with room for so much data on each, in virtual time: what only the processor does takes none. Only what is written
    /// takes memory.
    pub(super) fn models(models: &[Model], data_bytes: u64) -> Result<Self> {
        let size_bytes = data_bytes * 2 + ROOM_BYTES;
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        let sim = runtime.sim().context("it is simulated")?;
        sim.set_step_time_max(Duration::ZERO);
        sim.set_steps_max(u64::MAX);
        let paths: Vec<PathBuf> = (0..models.len()).map(|index| format!("/drive{index}").into()).collect();
        let mut disks = Vec::new();
        for (model, path) in models.iter().zip(&paths) {
            let rotational = matches!(model, Model::Rotating(_));
            let options = SimDiskOptions { size_bytes, rotational, ..SimDiskOptions::default() };
            let disk = sim.add_disk(&handle, path, options);
            match *model {
                Model::Rotating(options) => disk.set_model(Rotating::new(options)),
                Model::Flash(options) => disk.set_model(Flash::new(options)),
            }
            disks.push(disk);
        }
        Ok(Self { runtime, disks: Disks { handle, paths, memory: Vec::new(), models: disks } })
    }

    /// Runs on a worker.
    pub(super) fn run<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let handle = self.runtime.handle();
        self.runtime.block_on(handle.spawn(Class::Issue, work)).map_err(|error| anyhow!("{error}"))?
    }
}

impl Disks {
    async fn device(&self, index: usize) -> Result<Device> {
        if let Some(device) = self.memory.get(index) {
            return Ok(device.clone());
        }
        let direct = if self.models.is_empty() { Direct::Always } else { Direct::Auto };
        let options = OpenOptions { write: true, direct, ..OpenOptions::default() };
        Ok(self.handle.open(&self.paths[index], options).await?)
    }

    /// A device as a pool's disk.
    pub(super) async fn disk(&self, index: usize) -> Result<DiskSpec> {
        let (disk, path) = (Disk::whole(self.device(index).await?), self.paths[index].display().to_string());
        Ok(DiskSpec { disk, path, is_file: true })
    }

    /// A new pool of these vdevs on the first devices, whose txgs are written in the background and whose scans are attended to. Those that are not
    /// in memory are opened with these tunables, each as `NAME=VALUE`.
    pub(super) async fn pool(&self, layout: &[(TopKind, usize)], given: &[&str], cache_bytes: usize) -> Result<Pool> {
        let (mut tops, mut next) = (Vec::new(), 0);
        for (kind, count) in layout {
            let mut disks = Vec::new();
            for index in next..next + count {
                disks.push(self.disk(index).await?);
            }
            next += count;
            tops.push(TopSpec { kind: *kind, class: AllocationClass::Normal, disks });
        }
        let spec = PoolSpec { size_bytes: 0, has_log: true, metaslabs_min: 16, dirty_max_bytes: DIRTY_MAX_BYTES };
        let pool = new_pool(&self.handle, tops, spec).await?;
        if !self.memory.is_empty() {
            return Ok(started(pool).await);
        }
        pool.export().await?;
        self.opened(next, given, cache_bytes).await
    }

    /// The pool on the first devices, opened with these tunables.
    pub(super) async fn opened(&self, count: usize, given: &[&str], cache_bytes: usize) -> Result<Pool> {
        let mut settings = tunables::settings();
        for value in given {
            settings.set_from(value).map_err(|error| anyhow!("{value}: {error}"))?;
        }
        let found = find(&self.handle, &self.paths[..count]).await.0.pop().context("the pool is there")?;
        let how = ImportOptions { cache_bytes, tunables: settings, ..ImportOptions::default() };
        let host = Host { id: 0, name: "bench".into() };
        let pool = open(&self.handle, found, &how, WriteOptions { clock: Clock::Now, host, check: false }).await?;
        Ok(started(pool).await)
    }

    /// All requests of some devices that are models so far.
    pub(super) fn traffic(&self, which: &[usize]) -> Traffic {
        let counts = which.iter().map(|index| self.models[*index].counts());
        counts.fold(Traffic::default(), |sum, counts: Counts| Traffic {
            read_bytes: sum.read_bytes + counts.read_bytes,
            written_bytes: sum.written_bytes + counts.written_bytes,
        })
    }

    /// Reads so many bytes of each of the first devices in sequence, all devices at once; bytes a second.
    pub(super) async fn raw_read(&self, count: usize, bytes_each: u64) -> Result<f64> {
        let begun = self.handle.now();
        let mut joins = Vec::new();
        for index in 0..count {
            let device = self.device(index).await?;
            joins.push(self.handle.spawn(Class::Issue, async move {
                let failed = std::sync::atomic::AtomicBool::new(false);
                let places = (0..bytes_each / RAW_BYTES).map(|at| SPACE_STARTS + at * RAW_BYTES);
                for_each_concurrent(RAW_DEPTH, places, |at| {
                    let (device, failed) = (&device, &failed);
                    async move {
                        let (read, _) = device.read(at, Buf::unfilled(RAW_BYTES as usize)).await;
                        failed.fetch_or(read.is_err(), std::sync::atomic::Ordering::Relaxed);
                    }
                })
                .await;
                !failed.into_inner()
            }));
        }
        for join in joins {
            ensure!(join.await.map_err(|error| anyhow!("{error}"))?, "a read of the raw device failed");
        }
        Ok((bytes_each * count as u64) as f64 / (self.handle.now() - begun).as_secs_f64())
    }

    /// Copies so many bytes of one device to another, in sequence, and flushes; bytes a second.
    pub(super) async fn raw_copy(&self, from: usize, to: usize, bytes: u64) -> Result<f64> {
        let (source, target) = (self.device(from).await?, self.device(to).await?);
        let begun = self.handle.now();
        let failed = std::sync::atomic::AtomicBool::new(false);
        let places = (0..bytes / RAW_BYTES).map(|at| SPACE_STARTS + at * RAW_BYTES);
        for_each_concurrent(RAW_DEPTH, places, |at| {
            let (source, target, failed) = (&source, &target, &failed);
            async move {
                let (read, buf) = source.read(at, Buf::unfilled(RAW_BYTES as usize)).await;
                let is_copied = read.is_ok() && target.write(at, buf.freeze()).await.is_ok();
                failed.fetch_or(!is_copied, std::sync::atomic::Ordering::Relaxed);
            }
        })
        .await;
        ensure!(!failed.into_inner(), "a copy of the raw device failed");
        target.flush().await?;
        Ok(bytes as f64 / (self.handle.now() - begun).as_secs_f64())
    }
}

async fn started(pool: Pool) -> Pool {
    let tunables = TxTunables { zfs_dirty_data_max: DIRTY_MAX_BYTES, ..TxTunables::default() };
    let pool = pool.start(tunables).await;
    cenote_scan::attend(&pool);
    pool
}

/// An object of a pool with records of one size.
#[derive(Clone)]
pub(super) struct Data {
    pub(super) head: LiveHead,
    pub(super) object: Object,
    pub(super) record_bytes: u64,
    pub(super) records: u64,
}

impl Data {
    /// A new object that is filled in sequence and on the devices.
    pub(super) async fn filled(pool: &Pool, record_bytes: u64, data_bytes: u64) -> Result<Self> {
        let head = pool.open_head("bench").await?;
        let object = new_object(&head, record_bytes).await?;
        fill(&head, &object, record_bytes, data_bytes).await?;
        pool.sync().await?;
        Ok(Self { head, object, record_bytes, records: data_bytes / record_bytes })
    }

    /// Writes a record.
    pub(super) async fn write(&self, record: u64, data: &cenote_taskq::buf::Block) -> Result<()> {
        write_record(&self.head, &self.object, record, data).await
    }
}

/// The end of a scan, and the time that it took by the pool's clock and by the machine's.
pub(super) struct Scanned {
    pub(super) phys: ScanPhys,
    pub(super) seconds: f64,
    pub(super) took: Took,
}

impl Scanned {
    /// Bytes of blocks a second.
    pub(super) fn bytes_per_s(&self) -> f64 {
        self.phys.examined_bytes as f64 / self.seconds
    }
}

/// Scrubs a pool.
pub(super) async fn scrubbed(pool: &Pool) -> Result<Scanned> {
    let (begun, watch) = (pool.handle().now(), Watch::start());
    pool.scrub(ScrubSince::Ever).await?;
    let phys = scan_ended(pool).await?;
    Ok(Scanned { phys, seconds: (pool.handle().now() - begun).as_secs_f64(), took: watch.took() })
}

/// Waits until no scan is under way.
pub(super) async fn scan_ended(pool: &Pool) -> Result<ScanPhys> {
    loop {
        let scan = pool.scan().await?.context("a scan was begun")?;
        if scan.state == ScanState::FINISHED {
            ensure!(scan.error_count == 0, "the scan found errors");
            return Ok(scan);
        }
        ensure!(scan.state == ScanState::SCANNING, "the scan was given up");
        pool.handle().sleep(POLL).await;
    }
}

/// Waits until no leaf lacks anything and nothing is replaced any more.
pub(super) async fn whole(pool: &Pool) -> Result<()> {
    for _ in 0..10_000_000_u64 {
        let is_busy = pool.peek(|syncer| syncer.is_rebuilding() || syncer.is_replacing()).await?;
        let status = pool.tree().context("the pool is open")?.status();
        if !is_busy && status.leaves().iter().all(|leaf| leaf.missed.is_empty()) {
            return Ok(());
        }
        pool.handle().sleep(POLL).await;
    }
    bail!("a leaf lacks something still")
}

/// Waits until the background job of this name has no work left.
pub(super) async fn job_ended(pool: &Pool, name: &str) {
    while pool.jobs().iter().any(|job| job.name == name) {
        pool.handle().sleep(POLL).await;
    }
}

/// The guid of the leaf on a device.
pub(super) async fn leaf(pool: &Pool, path: &Path) -> Result<Guid> {
    let view = pool.view(&ImportOptions::default()).await?;
    let path = path.display().to_string();
    let found = view.vdevs().leaves().into_iter().find(|leaf| leaf.path.as_deref() == Some(path.as_str()));
    Ok(found.with_context(|| format!("{path} is in the pool"))?.guid)
}

/// The guid of a top-level vdev.
pub(super) async fn top(pool: &Pool, index: usize) -> Result<Guid> {
    let view = pool.view(&ImportOptions::default()).await?;
    Ok(view.vdevs().children.get(index).context("there are as many vdevs")?.guid)
}
