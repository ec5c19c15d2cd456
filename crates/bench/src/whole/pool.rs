//! The pool under test, on its image or on a copy of it in memory, and the data in it that is read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use cenote_dmu::{DataStream, Object, Objset, Zfetch};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::ObjectId;
use cenote_spa::{ImportOptions, View, find, import};
use cenote_taskq::buf::Block;
use cenote_taskq::{Device, Handle, IoChoice, RamDevice, Runtime, RuntimeOptions};
use cenote_vdev::disk::Disk;
use cenote_zpl::{File, FileSystem};

/// Where the pool lies.
#[derive(Clone)]
pub(super) enum Place {
    /// On its image.
    Image(PathBuf),
    /// On a device of memory with the content of the image, which is looked at for its labels only.
    Memory(PathBuf, Device),
}

impl Place {
    /// The place in memory that the single leaf on `image` is copied to.
    pub(super) fn copied(image: &Path) -> Result<Self> {
        let runtime = runtime(1)?;
        let handle = runtime.handle();
        let (start, size) = runtime.block_on(async {
            let (mut found, skipped) = find(&handle, &[PathBuf::from(image)]).await;
            let Some(pool) = found.pop() else { bail!("{}: no pool ({skipped:?})", image.display()) };
            let mut leaves = pool.leaves.values();
            let (Some(leaf), None) = (leaves.next(), leaves.next()) else { bail!("more leaves than one") };
            Ok((leaf.disk.start_bytes(), leaf.disk.size_bytes()))
        })?;
        let mut bytes = vec![0; usize::try_from(size)?];
        std::os::unix::fs::FileExt::read_exact_at(&std::fs::File::open(image)?, &mut bytes, start)?;
        Ok(Self::Memory(image.to_owned(), Device::from_driver(RamDevice::new("memory", bytes))))
    }
}

fn runtime(workers: usize) -> Result<Runtime> {
    Ok(Runtime::real(RuntimeOptions { workers: Some(workers), io: IoChoice::Auto })?)
}

/// An imported pool and what runs it.
pub(super) struct Bench {
    pub(super) runtime: Runtime,
    pub(super) pool: View,
}

/// Which of a pool's data is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// The file of small records that `make-pool` makes, or the object of a peer's pool.
    Small,
    /// The file of large records that `make-pool` makes, or the object of a peer's pool.
    Large,
}

impl Which {
    const fn dataset(self) -> &'static str {
        match self {
            Self::Small => "bench/small",
            Self::Large => "bench/large",
        }
    }
}

/// The dataset of a peer's pool. It holds an object, no file system.
const PEER_DATASET: &str = "peerbench/bench";

impl Bench {
    /// Imports the pool at `place`.
    pub(super) fn open(place: &Place, workers: usize, cache_bytes: usize) -> Result<Self> {
        let runtime = runtime(workers)?;
        let handle = runtime.handle();
        let pool = runtime.block_on(async {
            let (Place::Image(image) | Place::Memory(image, _)) = place;
            let (mut found, skipped) = find(&handle, std::slice::from_ref(image)).await;
            let Some(mut pool) = found.pop() else { bail!("{}: no pool ({skipped:?})", image.display()) };
            if let Place::Memory(_, device) = place {
                pool.leaves.values_mut().for_each(|leaf| leaf.disk = Disk::whole(device.clone()));
            }
            // A peer program destroys its pool when it has done; the blocks are all there.
            let options = ImportOptions {
                force: true,
                destroyed: true,
                cache_bytes,
                skip_activity_check: true,
                ..Default::default()
            };
            Ok(import(&handle, pool, &options).await?)
        })?;
        Ok(Self { runtime, pool })
    }

    pub(super) fn handle(&self) -> Handle {
        self.runtime.handle()
    }

    async fn objset(&self, dataset: &str) -> Result<Objset> {
        let dataset = self.pool.dsl().dataset(dataset).await?;
        self.pool.dsl().open(&dataset).await?.ok_or_else(|| anyhow!("an empty dataset"))
    }

    /// Opens the data to be read.
    pub(super) fn data(&self, which: Which) -> Result<Data> {
        self.runtime.block_on(async {
            if self.pool.name() == PEER_DATASET.split('/').next().unwrap_or_default() {
                let objset = self.objset(PEER_DATASET).await?;
                let batch = objset.next_objects(ObjectId(1)).await?.context("an objset without objects")?;
                let mut dnodes = batch.objects.into_iter().filter_map(|(_, dnode)| dnode.ok());
                let dnode = dnodes.find(|dnode| dnode.phys().object_type == DmuType::ZVOL).context("no object")?;
                return Ok(Data::Object { ahead: dnode.zfetch(), dnode });
            }
            let objset =
                self.objset(which.dataset()).await.context("crates/bench/make-pool makes the pool for this")?;
            let files = FileSystem::open(objset).await?;
            let id = files.lookup(files.root(), b"f").await?;
            Ok(Data::File(files.open_file(id).await?))
        })
    }
}

/// The data that is read.
#[derive(Clone)]
pub(super) enum Data {
    /// A file.
    File(File),
    /// An object that is no file.
    Object { dnode: Object, ahead: Arc<Zfetch> },
}

impl Data {
    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Self::File(file) => file.size_bytes(),
            Self::Object { dnode, .. } => (dnode.last_block().0 + 1) * dnode.block_bytes(),
        }
    }

    pub(super) async fn read(&self, offset_bytes: u64, len: usize) -> Result<Block> {
        Ok(match self {
            Self::File(file) => file.read(offset_bytes, len).await?,
            Self::Object { dnode, ahead } => dnode.read_prefetching(offset_bytes, len, ahead).await?,
        })
    }

    pub(super) async fn read_direct(&self, offset_bytes: u64, len: usize) -> Result<Block> {
        Ok(match self {
            Self::File(file) => file.read_direct(offset_bytes, len).await?,
            Self::Object { dnode, .. } => dnode.read_direct(offset_bytes, len).await?,
        })
    }

    /// The same for a reader of its own, for which nothing is loaded ahead unless `ahead`.
    pub(super) fn reopened(&self, ahead: bool) -> Self {
        match self {
            Self::File(file) => Self::File(file.reopened(ahead)),
            Self::Object { dnode, .. } => Self::Object { dnode: dnode.clone(), ahead: dnode.zfetch() },
        }
    }

    pub(super) fn stream(&self, window_bytes: u64) -> DataStream {
        match self {
            Self::File(file) => file.stream(window_bytes),
            Self::Object { dnode, .. } => dnode.stream(0..self.size_bytes(), window_bytes),
        }
    }
}
