//! A pool on a device in memory or in a file, with records to be sent.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, anyhow, ensure};
use cenote_admin::receive::{ReceiveRequest, Told, receive};
use cenote_admin::send::{SendFlags, send_whole};
use cenote_admin::{create_filesystem, take_snapshots};
use cenote_dmu::ObjectSpec;
use cenote_dmu::tx::{Cost, TxTunables};
use cenote_format::dmu_type::DmuType;
use cenote_kstat::Settings;
use cenote_spa::{ImportOptions, LiveHead, Pool, PropertyValue};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::{Class, Device, Direct, OpenOptions, RamDevice, Runtime, RuntimeOptions, for_each_concurrent};
use cenote_zpl::bulk::BulkWriter;

use cenote_bench::clock::{Took, Watch};
use cenote_bench::writing::rig::{COMPRESSION_OFF, PoolSpec, filled, new_pool, noise, opened, single};

/// Bytes of a request to the raw device, and how many there are at once.
const RAW_BYTES: usize = 1 << 20;
const RAW_DEPTH: usize = 8;
/// Different blocks that records are written with, over and over.
const BLOCKS: u64 = 64;

/// The dataset that is made, and the snapshot of it that is sent.
const SOURCE: &str = "bench/source";
const SNAPSHOT: &str = "bench/source@sent";
/// The dataset that is received.
const TARGET: &str = "bench/received";
const RECEIVED: &str = "bench/received@sent";

/// A pool.
pub(super) struct Rig {
    runtime: Runtime,
    path: PathBuf,
    pool: Option<Pool>,
}

/// Records of a dataset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Records {
    pub(super) record_bytes: u64,
    /// Of each object.
    pub(super) records: u64,
    pub(super) objects: u64,
}

impl Records {
    pub(super) const fn count(&self) -> u64 {
        self.records * self.objects
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.count() * self.record_bytes
    }
}

fn spec(size_bytes: u64) -> PoolSpec {
    PoolSpec {
        size_bytes,
        has_log: true,
        metaslabs_min: 16,
        dirty_max_bytes: cenote_bench::writing::rig::DIRTY_MAX_BYTES,
    }
}

fn tunables() -> TxTunables {
    TxTunables { zfs_dirty_data_max: cenote_bench::writing::rig::DIRTY_MAX_BYTES, ..TxTunables::default() }
}

impl Rig {
    /// A new pool on a device in memory.
    pub(super) fn in_memory(size_bytes: u64) -> Result<Self> {
        // Each page was written before: the system hands none out while it is measured.
        let disk = Device::from_driver(RamDevice::new("memory", vec![1; usize::try_from(size_bytes)?]));
        let runtime = Runtime::real(RuntimeOptions::default())?;
        Self::on(runtime, PathBuf::from("memory"), size_bytes, async move { Ok(disk) })
    }

    /// A new pool in a file of this folder. `is_sparse`: it takes as much as is written.
    pub(super) fn in_file(folder: &Path, size_bytes: u64, is_sparse: bool) -> Result<Self> {
        let path = folder.join("pool");
        match is_sparse {
            true => std::fs::File::create(&path)?.set_len(size_bytes)?,
            false => filled(&path, size_bytes)?,
        }
        let runtime = Runtime::real(RuntimeOptions::default())?;
        let (handle, at) = (runtime.handle(), path.clone());
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        Self::on(runtime, path, size_bytes, async move { Ok(handle.open(&at, options).await?) })
    }

    fn on(
        runtime: Runtime,
        path: PathBuf,
        size_bytes: u64,
        disk: impl Future<Output = Result<Device>> + Send + 'static,
    ) -> Result<Self> {
        let (handle, at) = (runtime.handle(), path.clone());
        let making = async move {
            let pool = new_pool(&handle, vec![single(disk.await?, &at)], spec(size_bytes)).await?;
            anyhow::Ok(pool.start(tunables()).await)
        };
        let made = runtime.block_on(runtime.handle().spawn(Class::Issue, making));
        let pool = made.map_err(|error| anyhow!("{error}"))??;
        Ok(Self { runtime, path, pool: Some(pool) })
    }

    /// Runs on a worker.
    pub(super) fn run<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let handle = self.runtime.handle();
        self.runtime.block_on(handle.spawn(Class::Issue, work)).map_err(|error| anyhow!("{error}"))?
    }

    pub(super) fn pool(&self) -> Result<Pool> {
        self.pool.clone().context("the pool is open")
    }

    /// The pool's file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Exports the pool, which stays in its file.
    pub(super) fn export(&mut self) -> Result<()> {
        let pool = self.pool.take().context("the pool is open")?;
        self.run(async move { Ok(pool.export().await?) })
    }

    /// Closes the pool and opens it again, with an empty cache.
    pub(super) fn reopen(&mut self) -> Result<()> {
        self.export()?;
        self.reopen_exported()
    }

    /// Opens a pool again that was exported.
    pub(super) fn reopen_exported(&mut self) -> Result<()> {
        let (handle, path) = (self.runtime.handle(), self.path.clone());
        let opening =
            async move { anyhow::Ok(opened(&handle, &[path], Settings::default()).await?.start(tunables()).await) };
        self.pool = Some(self.run(opening)?);
        Ok(())
    }

    /// Drops all blocks that are in the cache. It has the same size then as before.
    pub(super) fn empty_cache(&self) -> Result<()> {
        let pool = self.pool()?;
        self.run(async move {
            let view = pool.view(&ImportOptions::default()).await?;
            let limit_bytes = usize::try_from(view.cache().stats().limit_bytes)?;
            view.cache().set_limit_bytes(0);
            view.cache().set_limit_bytes(limit_bytes);
            view.close().await;
            Ok(())
        })
    }

    /// Makes the dataset that is sent, and its snapshot.
    pub(super) fn fill(&self, records: Records) -> Result<()> {
        let pool = self.pool()?;
        self.run(async move {
            create_filesystem(&pool, SOURCE, no_compression(), false).await?;
            let head = pool.open_head(SOURCE).await?;
            write_records(&head, records).await?;
            drop(head);
            take_snapshots(&pool, &[SNAPSHOT.to_owned()], &[]).await?;
            Ok(())
        })
    }

    /// Sends the snapshot to nowhere.
    pub(super) fn send(&self, flags: SendFlags) -> Result<Took> {
        self.send_named(SNAPSHOT, flags)
    }

    /// Sends on to nowhere what was received.
    pub(super) fn send_received(&self, flags: SendFlags) -> Result<Took> {
        self.send_named(RECEIVED, flags)
    }

    fn send_named(&self, snapshot: &'static str, flags: SendFlags) -> Result<Took> {
        let pool = self.pool()?;
        self.runtime.block_on(async {
            let view = pool.view(&ImportOptions::default()).await?;
            let watch = Watch::start();
            send_whole(&view, snapshot, flags, &mut std::io::sink()).await?;
            let took = watch.took();
            view.close().await;
            Ok(took)
        })
    }

    /// Sends the snapshot into memory.
    pub(super) fn stream(&self, flags: SendFlags) -> Result<Vec<u8>> {
        let pool = self.pool()?;
        self.runtime.block_on(async {
            let view = pool.view(&ImportOptions::default()).await?;
            let mut stream = Vec::new();
            send_whole(&view, SNAPSHOT, flags, &mut stream).await?;
            view.close().await;
            Ok(stream)
        })
    }

    /// Receives a stream as a new dataset, to the end: its snapshot is on the device then.
    pub(super) fn receive(&self, stream: Stream) -> Result<Took> {
        let pool = self.pool()?;
        self.run(async move {
            let request =
                ReceiveRequest { target: TARGET.into(), overrides: no_compression(), ..ReceiveRequest::default() };
            let watch = Watch::start();
            let mut told = |_: Told| {};
            let outcome = receive(&pool, &stream[..], &request, &mut told).await?;
            ensure!(!outcome.is_incomplete, "it was not received whole");
            Ok(watch.took())
        })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            let handle = self.runtime.handle();
            // An error of the export does not matter: the device goes.
            drop(self.runtime.block_on(handle.spawn(Class::Issue, pool.export())));
        }
    }
}

/// A stream that several rounds receive.
pub(super) type Stream = Arc<[u8]>;

/// `compression=off`.
pub(super) fn no_compression() -> Vec<(String, PropertyValue)> {
    vec![("compression".into(), PropertyValue::Number(COMPRESSION_OFF))]
}

/// Writes objects that are files of the root directory's owner.
pub(super) async fn write_records(head: &LiveHead, records: Records) -> Result<()> {
    let root = BulkWriter::open(head.objset()).await?.root();
    let bonus = head.objset().object(root).await?.phys().bonus.to_vec();
    let len = records.record_bytes;
    let spec = ObjectSpec::new(DmuType::PLAIN_FILE_CONTENTS, u32::try_from(len)?).with_bonus(DmuType::SA, bonus);
    let blocks: Vec<Block> = (0..BLOCKS).map(|seed| noise(len as usize, seed)).collect();
    for object in 0..records.objects {
        let tx = head.begin(Cost::objects(1)).await?;
        let made = head.objset().create_object(tx.txg(), &spec)?;
        drop(tx);
        for record in 0..records.records {
            let tx = head.begin(Cost::write(record * len, len, len)).await?;
            made.write_block(tx.txg(), record, blocks[((object + record) % BLOCKS) as usize].clone());
        }
    }
    Ok(())
}

/// Reads the first bytes of a file in sequence, past the page cache; seconds.
pub(super) fn raw_read(path: &Path, bytes: u64) -> Result<f64> {
    raw(path, bytes, None)
}

/// Writes them, with a flush at the end; seconds.
pub(super) fn raw_write(path: &Path, bytes: u64) -> Result<f64> {
    raw(path, bytes, Some((0..BLOCKS).map(|seed| noise(RAW_BYTES, seed)).collect()))
}

fn raw(path: &Path, bytes: u64, written: Option<Vec<Block>>) -> Result<f64> {
    let runtime = Runtime::real(RuntimeOptions { workers: Some(1), ..RuntimeOptions::default() })?;
    let handle = runtime.handle();
    let options = OpenOptions { write: written.is_some(), direct: Direct::Always, ..OpenOptions::default() };
    let device = runtime.block_on(handle.open(path, options))?;
    let working = async move {
        let (watch, failed) = (Watch::start(), AtomicU64::new(0));
        for_each_concurrent(RAW_DEPTH, 0..bytes / RAW_BYTES as u64, |index| {
            let (device, failed, written) = (&device, &failed, &written);
            async move {
                let at = index * RAW_BYTES as u64;
                let is_good = match written {
                    Some(blocks) => device.write(at, blocks[(index % BLOCKS) as usize].clone()).await.is_ok(),
                    None => device.read(at, Buf::unfilled(RAW_BYTES)).await.0.is_ok(),
                };
                failed.fetch_add(u64::from(!is_good), Ordering::Relaxed);
            }
        })
        .await;
        ensure!(failed.into_inner() == 0, "the raw device failed");
        if written.is_some() {
            device.flush().await?;
        }
        Ok(watch.took().wall_s)
    };
    runtime.block_on(handle.spawn(Class::Issue, working)).map_err(|error| anyhow!("{error}"))?
}
