//! A pool in a file, and writers.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use cenote_dmu::tx::{Cost, TxTunables};
use cenote_dmu::{Object, ObjectSpec};
use cenote_format::dmu_type::DmuType;
use cenote_kstat::Settings;
use cenote_spa::{
    AuxSpec, Clock, CreateOptions, DiskSpec, Host, ImportOptions, LiveHead, LogFigures, Pool, PropertyValue, TopKind,
    TopSpec, TxgRecord, WriteOptions, create_with_metaslabs, find, import, open,
};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::sim::disk::SimDiskOptions;
use cenote_taskq::sim::model::{Rotating, RotatingOptions};
use cenote_taskq::{
    Class, Device, Direct, Handle, Instant, OpenOptions, RamDevice, Rng, Runtime, RuntimeOptions, for_each_concurrent,
};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::disk::Disk;
use cenote_zpl::bulk::{BulkWriter, NodeSpec};

use crate::clock::{Took, Watch};

/// Memory of the cache.
const CACHE_BYTES: usize = 256 << 20;
/// Bytes that may be dirty, with the peer too: what is overwritten is more, or it would be overwritten in memory alone.
pub const DIRTY_MAX_BYTES: u64 = 256 << 20;
/// `compression=off`, as properties have it.
pub const COMPRESSION_OFF: u64 = 2;
/// Written at a time when a file is made.
const CHUNK_BYTES: usize = 4 << 20;

/// Different bytes that the raw device is written with, over and over.
const RAW_BYTES: u64 = 64 << 20;

/// The result of a round of writing.
pub struct Wrote {
    /// Operations that were answered.
    pub operations: u64,
    /// By the clock that the pool has, which on a modelled disk is not ours.
    pub seconds: f64,
    /// Seconds of processors, of the whole process.
    pub cpu_s: f64,
    /// The txgs that were written meanwhile.
    pub txgs: Vec<TxgRecord>,
}

/// Makes a file whose blocks are all there. A file of this size that has them is left as it is: virtual disks often give a machine so many
/// bytes and slow down after that.
pub fn filled(path: &Path, size_bytes: u64) -> Result<()> {
    if let Ok(found) = std::fs::metadata(path)
        && found.len() == size_bytes
        && found.blocks() * 512 >= size_bytes
    {
        return Ok(());
    }
    let mut file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
    let chunk = vec![0; CHUNK_BYTES];
    let mut left = size_bytes;
    while left > 0 {
        let len = left.min(CHUNK_BYTES as u64) as usize;
        file.write_all(&chunk[..len])?;
        left -= len as u64;
    }
    Ok(file.sync_all()?)
}

/// How a file is written that stands for the raw device.
#[derive(Clone, Copy, Debug)]
pub(super) enum RawOrder {
    /// All of it, once, from its beginning on.
    InSequence,
    /// So many blocks, anywhere.
    AtRandom(u64),
}

/// Writes a file in place, past the page cache, with so many requests at once and a flush at the end; blocks and seconds.
pub(super) fn raw_write(path: &Path, block_bytes: usize, depth: usize, order: RawOrder) -> Result<(u64, f64)> {
    let workers = match order {
        RawOrder::InSequence => Some(1),
        RawOrder::AtRandom(_) => None,
    };
    let runtime = Runtime::real(RuntimeOptions { workers, ..RuntimeOptions::default() })?;
    let handle = runtime.handle();
    let options = OpenOptions { write: true, direct: Direct::Always, ..OpenOptions::default() };
    let device = runtime.block_on(handle.open(path, options))?;
    let blocks = device.size_bytes() / block_bytes as u64;
    // As anyone's data, what is written lies in memory and not in a processor's cache.
    let data: Vec<Block> = (0..RAW_BYTES / block_bytes as u64).map(|seed| noise(block_bytes, seed)).collect();
    let writing = async move {
        let count = match order {
            RawOrder::InSequence => blocks,
            RawOrder::AtRandom(count) => count,
        };
        let mut rng = Rng::new(count);
        let order = (0..count).map(|index| match order {
            RawOrder::InSequence => (index, index),
            RawOrder::AtRandom(_) => (index, rng.below(blocks)),
        });
        let watch = Watch::start();
        let failed = AtomicU64::new(0);
        for_each_concurrent(depth, order, |(index, block)| {
            let (device, failed, data) = (&device, &failed, data[(index % data.len() as u64) as usize].clone());
            async move {
                let written = device.write(block * block_bytes as u64, data).await;
                failed.fetch_add(u64::from(written.is_err()), Ordering::Relaxed);
            }
        })
        .await;
        ensure!(failed.into_inner() == 0, "a write to the raw device failed");
        device.flush().await?;
        Ok((count, watch.took().wall_s))
    };
    runtime.block_on(handle.spawn(Class::Issue, writing)).map_err(|error| anyhow!("{error}"))?
}

/// Bytes that nothing compresses.
pub fn noise(len: usize, seed: u64) -> Block {
    let mut buf = Buf::unfilled(len);
    Rng::new(seed).fill(&mut buf);
    buf.freeze()
}

/// The properties of a pool to be made.
#[derive(Clone, Copy, Debug)]
pub struct PoolSpec {
    /// Bytes of its file.
    pub size_bytes: u64,
    /// With log space maps.
    pub has_log: bool,
    /// Metaslabs at least.
    pub metaslabs_min: u64,
    /// Bytes that may be dirty.
    pub dirty_max_bytes: u64,
}

/// Writing records over others at random.
#[derive(Clone, Copy, Debug)]
pub struct Overwrites {
    /// Bytes of a record, and of a write.
    pub record_bytes: u64,
    /// Bytes of the object.
    pub data_bytes: u64,
    /// For each record, how many were overwritten at random before the time begins.
    pub shreds: u64,
    /// Writers at once.
    pub tasks: u64,
    /// Seconds of writing, by the pool's clock.
    pub seconds: f64,
    /// The seed of which records are written, and with what.
    pub seed: u64,
}

/// A pool in a file that goes when this does, or on a modelled disk.
pub struct Rig {
    runtime: Runtime,
    path: PathBuf,
    pool: Option<Pool>,
    head: Option<LiveHead>,
    keeps_file: bool,
}

impl Rig {
    /// A new pool in a file in this folder.
    pub fn new(folder: &Path, spec: PoolSpec) -> Result<Self> {
        let path = folder.join("pool");
        filled(&path, spec.size_bytes)?;
        Self::made(Runtime::real(RuntimeOptions::default())?, path, spec, TxTunables::default())
    }

    /// The same, opened with these values of tunables.
    pub fn with_settings(folder: &Path, spec: PoolSpec, settings: Settings) -> Result<Self> {
        let path = folder.join("pool");
        filled(&path, spec.size_bytes)?;
        let (runtime, at) = (Runtime::real(RuntimeOptions::default())?, path.clone());
        let handle = runtime.handle();
        Self::begun(runtime, path, spec, TxTunables::default(), async move {
            let disk = handle.open(&at, OpenOptions { write: true, ..OpenOptions::default() }).await?;
            let pool = new_pool(&handle, vec![single(disk, &at)], spec).await?;
            opened_with(&handle, pool, std::slice::from_ref(&at), settings).await
        })
    }

    /// A new pool on a device in memory.
    pub fn in_memory(spec: PoolSpec) -> Result<Self> {
        let runtime = Runtime::real(RuntimeOptions::default())?;
        let handle = runtime.handle();
        let size_bytes = usize::try_from(spec.size_bytes)?;
        Self::begun(runtime, PathBuf::new(), spec, TxTunables::default(), async move {
            let disk = Device::from_driver(RamDevice::new("memory", vec![0; size_bytes]));
            new_pool(&handle, vec![single(disk, Path::new("memory"))], spec).await
        })
    }

    /// A new pool in a file of this folder that takes no more of it than is written, whose txgs end when they are asked to.
    pub fn by_hand(folder: &Path, size_bytes: u64) -> Result<Self> {
        let path = folder.join("pool");
        std::fs::File::create(&path)?.set_len(size_bytes)?;
        let spec = PoolSpec { size_bytes, has_log: true, metaslabs_min: 16, dirty_max_bytes: size_bytes / 4 };
        let tunables = TxTunables {
            zfs_txg_timeout: 24 * 3600,
            zfs_dirty_data_sync_percent: 100,
            zfs_delay_min_dirty_percent: 100,
            ..TxTunables::default()
        };
        Self::made(Runtime::real(RuntimeOptions::default())?, path, spec, tunables)
    }

    /// A new pool on a drive of this model, in virtual time: what only the processor does takes none.
    pub fn modelled(drive: RotatingOptions, spec: PoolSpec) -> Result<Self> {
        let (runtime, path) = (Runtime::simulated(1), PathBuf::from("/drive"));
        let sim = runtime.sim().context("it is simulated")?;
        sim.set_step_time_max(Duration::ZERO);
        sim.set_steps_max(u64::MAX);
        let options = SimDiskOptions { size_bytes: spec.size_bytes, rotational: true, ..SimDiskOptions::default() };
        sim.add_disk(&runtime.handle(), &path, options).set_model(Rotating::new(drive));
        Self::made(runtime, path, spec, TxTunables::default())
    }

    fn made(runtime: Runtime, path: PathBuf, spec: PoolSpec, tunables: TxTunables) -> Result<Self> {
        let (at, handle) = (path.clone(), runtime.handle());
        Self::begun(runtime, path, spec, tunables, async move {
            let disk = handle.open(&at, OpenOptions { write: true, ..OpenOptions::default() }).await?;
            new_pool(&handle, vec![single(disk, &at)], spec).await
        })
    }

    /// Of a pool that is made so.
    fn begun(
        runtime: Runtime,
        path: PathBuf,
        spec: PoolSpec,
        tunables: TxTunables,
        making: impl Future<Output = Result<Pool>> + Send + 'static,
    ) -> Result<Self> {
        let making = async move {
            let tunables = TxTunables { zfs_dirty_data_max: spec.dirty_max_bytes, ..tunables };
            let pool = making.await?.start(tunables).await;
            let head = pool.open_head("bench").await?;
            anyhow::Ok((pool, head))
        };
        let made =
            runtime.block_on(runtime.handle().spawn(Class::Issue, making)).map_err(|error| anyhow!("{error}"))?;
        let (pool, head) = made?;
        Ok(Self { runtime, path, pool: Some(pool), head: Some(head), keeps_file: false })
    }

    /// The file stays, for the next round.
    pub const fn keep_file(mut self) -> Self {
        self.keeps_file = true;
        self
    }

    /// Runs on a worker.
    pub fn run<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let handle = self.runtime.handle();
        self.runtime.block_on(handle.spawn(Class::Issue, work)).map_err(|error| anyhow!("{error}"))?
    }

    /// The runtime of its pool.
    pub const fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Its file system, open.
    ///
    /// # Errors
    /// The pool was exported.
    pub fn head(&self) -> Result<LiveHead> {
        self.head.clone().context("the pool is open")
    }

    /// Writes so many bytes of a new object, a record at a time.
    pub(super) fn sequential(&self, record_bytes: u64, data_bytes: u64) -> Result<Wrote> {
        let head = self.head()?;
        self.run(async move {
            let object = new_object(&head, record_bytes).await?;
            let began = Began::now(&head);
            fill(&head, &object, record_bytes, data_bytes).await?;
            began.ended(&head, data_bytes / record_bytes).await
        })
    }

    /// Overwrites records of an object at random, by several tasks at once.
    pub fn overwrite(&self, work: Overwrites) -> Result<Wrote> {
        let head = self.head()?;
        self.run(async move {
            let object = new_object(&head, work.record_bytes).await?;
            fill(&head, &object, work.record_bytes, work.data_bytes).await?;
            let records = work.data_bytes / work.record_bytes;
            let mut rng = Rng::new(work.seed);
            let data = noise(work.record_bytes as usize, work.seed);
            for _ in 0..records * work.shreds {
                write_record(&head, &object, rng.below(records), &data).await?;
            }
            head.pool().sync().await?;
            timed_overwrites(&head, &object, work).await
        })
    }
}

/// A pool that was exported and opened for writing again.
pub(super) struct Reopened {
    pub(super) figures: LogFigures,
    /// From the import on until it could be written to.
    pub(super) took: Took,
    /// The same without the logs: two imports, as opening makes, that replay nothing.
    pub(super) without: Took,
}

impl Rig {
    /// Exports the pool, which then stays in its file, and opens it for writing again.
    pub(super) fn reopened(&mut self) -> Result<Reopened> {
        drop(self.head.take());
        let pool = self.pool.take().context("the pool is open")?;
        let (handle, path) = (self.runtime.handle(), self.path.clone());
        self.run(async move {
            pool.export().await?;
            let how = ImportOptions { cache_bytes: CACHE_BYTES, ..ImportOptions::default() };
            let find = async || find(&handle, std::slice::from_ref(&path)).await.0.pop().context("the pool is there");
            let watch = Watch::start();
            let mut figures = LogFigures::default();
            for _ in 0..2 {
                let pool = import(&handle, find().await?, &how).await?;
                figures = pool.log_figures().await?;
                pool.close().await;
            }
            let without = watch.took();
            let watch = Watch::start();
            let host = Host { id: 0, name: "bench".into() };
            let options = WriteOptions { clock: Clock::Now, host, check: false };
            let writer = open(&handle, find().await?, &how, options).await?;
            let took = watch.took();
            drop(writer);
            Ok(Reopened { figures, took, without })
        })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.head.take());
        if let Some(pool) = self.pool.take() {
            let handle = self.runtime.handle();
            // The outcome of the export does not matter: the file goes.
            drop(self.runtime.block_on(handle.spawn(Class::Issue, pool.export())));
        }
        if !self.keeps_file {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// A vdev of one device.
#[must_use]
pub fn single(device: Device, path: &Path) -> TopSpec {
    let disk = DiskSpec { disk: Disk::whole(device), path: path.display().to_string(), is_file: true };
    TopSpec { kind: TopKind::Single, class: AllocationClass::Normal, disks: vec![disk] }
}

/// A new pool with a root directory, in which nothing is compressed.
pub async fn new_pool(handle: &Handle, tops: Vec<TopSpec>, spec: PoolSpec) -> Result<Pool> {
    let options = CreateOptions {
        name: "bench".into(),
        tops,
        auxiliaries: AuxSpec::default(),
        ashift: Some(12),
        disabled_features: if spec.has_log { Vec::new() } else { vec!["log_spacemap".into()] },
        properties: Vec::new(),
        seed: Some(1),
        clock: Clock::Now,
        host: Host { id: 0, name: "bench".into() },
        command: "cenote bench write".into(),
        user: 0,
        cache_bytes: CACHE_BYTES,
        check: false,
    };
    let pool = create_with_metaslabs(handle, options, spec.metaslabs_min).await?;
    let root = pool.root().context("a new pool has a root")?.clone();
    BulkWriter::create(&root.objset, pool.txg(), &NodeSpec { mode: 0o755, ..NodeSpec::default() }).await?;
    pool.set_property(&root, "compression", &PropertyValue::Number(COMPRESSION_OFF)).await?;
    pool.sync().await?;
    Ok(pool)
}

/// A pool that is closed and opened again, from these devices, with these values of tunables.
pub async fn opened_with(handle: &Handle, pool: Pool, paths: &[PathBuf], settings: Settings) -> Result<Pool> {
    pool.export().await?;
    opened(handle, paths, settings).await
}

/// A pool that is opened from these devices, with these values of tunables.
pub async fn opened(handle: &Handle, paths: &[PathBuf], settings: Settings) -> Result<Pool> {
    let found = find(handle, paths).await.0.pop().context("the pool is there")?;
    let how = ImportOptions { cache_bytes: CACHE_BYTES, tunables: settings, ..ImportOptions::default() };
    let host = Host { id: 0, name: "bench".into() };
    Ok(open(handle, found, &how, WriteOptions { clock: Clock::Now, host, check: false }).await?)
}

pub(crate) async fn new_object(head: &LiveHead, record_bytes: u64) -> Result<Object> {
    let tx = head.begin(Cost::objects(1)).await?;
    let spec = ObjectSpec::new(DmuType::UINT8_DATA, u32::try_from(record_bytes)?);
    Ok(head.objset().create_object(tx.txg(), &spec)?)
}

pub(crate) async fn write_record(head: &LiveHead, object: &Object, record: u64, data: &Block) -> Result<()> {
    let len = data.len() as u64;
    let tx = head.begin(Cost::write(record * len, len, len)).await?;
    // A writer has bytes of its own, which are copied once.
    let mut copy = Buf::unfilled(data.len());
    copy.copy_from_slice(data);
    object.write_block(tx.txg(), record, copy.freeze());
    Ok(())
}

pub(crate) async fn fill(head: &LiveHead, object: &Object, record_bytes: u64, data_bytes: u64) -> Result<()> {
    let data = noise(record_bytes as usize, 7);
    for record in 0..data_bytes / record_bytes {
        write_record(head, object, record, &data).await?;
    }
    Ok(())
}

async fn timed_overwrites(head: &LiveHead, object: &Object, work: Overwrites) -> Result<Wrote> {
    let Overwrites { record_bytes, data_bytes, tasks, seconds, seed, .. } = work;
    let handle = head.pool().handle().clone();
    let records = data_bytes / record_bytes;
    let (count, began) = (Arc::new(AtomicU64::new(0)), Began::now(head));
    let first = head.pool().txgs().open_txg();
    let end = handle.now() + Duration::from_secs_f64(seconds);
    let writers: Vec<_> = (0..tasks)
        .map(|task| {
            let (head, object, count, clock) = (head.clone(), object.clone(), count.clone(), handle.clone());
            let data = noise(record_bytes as usize, seed ^ task);
            let mut rng = Rng::new(seed << 8 | task);
            handle.spawn(Class::Issue, async move {
                while clock.now() < end {
                    write_record(&head, &object, rng.below(records), &data).await?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for writer in writers {
        writer.await.map_err(|error| anyhow!("{error}"))??;
    }
    let operations = count.load(Ordering::Relaxed);
    let mut wrote = began.ended(head, operations).await?;
    wrote.txgs.retain(|txg| txg.txg >= first);
    Ok(wrote)
}

/// When something that is measured began.
struct Began {
    at: Instant,
    watch: Watch,
}

impl Began {
    fn now(head: &LiveHead) -> Self {
        Self { at: head.pool().handle().now(), watch: Watch::start() }
    }

    /// Ends with a sync, which belongs to it.
    async fn ended(self, head: &LiveHead, operations: u64) -> Result<Wrote> {
        head.pool().sync().await?;
        let seconds = (head.pool().handle().now() - self.at).as_secs_f64();
        Ok(Wrote { operations, seconds, cpu_s: self.watch.took().cpu_s, txgs: head.pool().history() })
    }
}
