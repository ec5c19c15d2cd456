//! The pool under test, on its image or on a copy of it in memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use cenote_spa::{ImportOptions, Pool, find, import};
use cenote_taskq::{Device, Handle, IoChoice, RamDevice, Runtime, RuntimeOptions};
use cenote_vdev::disk::Disk;
use cenote_zpl::{File, FileSystem};

/// An imported pool and what runs it.
pub(crate) struct Bench {
    pub(crate) runtime: Runtime,
    pub(crate) pool: Pool,
}

/// The small-record file of the pool that `make-pool` makes.
pub(crate) const SMALL: (&str, &str) = ("bench/small", "f");
/// The large-record file.
pub(crate) const LARGE: (&str, &str) = ("bench/large", "f");

impl Bench {
    /// Imports the pool on `image`, which is read into memory first if a device of memory is wanted.
    pub(crate) fn open(image: &Path, memory: bool, workers: usize, cache_bytes: usize) -> Result<Self> {
        let runtime = Runtime::real(RuntimeOptions { workers: Some(workers), io: IoChoice::Auto })?;
        let handle = runtime.handle();
        let pool = runtime.block_on(async {
            let (mut found, skipped) = find(&handle, &[PathBuf::from(image)]).await;
            let Some(mut pool) = found.pop() else { bail!("no pool: {skipped:?}") };
            if memory {
                for leaf in pool.leaves.values_mut() {
                    let mut bytes = std::fs::read(image)?.split_off(leaf.disk.start_bytes() as usize);
                    bytes.truncate(leaf.disk.size_bytes() as usize);
                    leaf.disk = Disk::whole(Device::from_driver(RamDevice::new("memory", bytes)));
                }
            }
            let options = ImportOptions { force: true, cache_bytes, skip_activity_check: true, ..Default::default() };
            Ok(import(&handle, pool, &options).await?)
        })?;
        Ok(Self { runtime, pool })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.runtime.handle()
    }

    /// Opens a file by dataset and name.
    pub(crate) fn file(&self, (dataset, name): (&str, &str)) -> Result<File> {
        self.runtime.block_on(async {
            let dataset = self.pool.dsl().dataset(dataset).await.context("run make-pool for the pool's image")?;
            let objset = self.pool.dsl().open(&dataset).await?.ok_or_else(|| anyhow!("an empty dataset"))?;
            let files = FileSystem::open(objset).await?;
            let id = files.lookup(files.root(), name.as_bytes()).await?;
            Ok(files.open_file(id).await?)
        })
    }
}
