//! Pools on simulated disks with one volume.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_format::enums::ObjsetType;
use cenote_scan::{VerifyOptions, verify};
use cenote_spa::{
    AuxSpec, Clock, CreateOptions, DiskSpec, Head, Host, ImportOptions, Pool, TopKind, TopSpec, WriteOptions, create,
    find, import, open,
};
use cenote_taskq::sim::disk::{Latency, SimDisk, SimDiskOptions};
use cenote_taskq::{Handle, OpenOptions, Runtime};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::disk::Disk;
use cenote_zvol::{Volume, VolumeSpec};

const DISK_BYTES: u64 = 96 << 20;
pub(crate) const VOLUME: &str = "pool/volume";

pub(crate) struct Machine {
    pub(crate) handle: Handle,
    pub(crate) _disks: Vec<Arc<SimDisk>>,
    pub(crate) paths: Vec<PathBuf>,
}

fn host() -> Host {
    Host { id: 0, name: "here".into() }
}

impl Machine {
    pub(crate) fn new(runtime: &Runtime, count: usize, latency: Latency) -> Self {
        let (handle, sim) = (runtime.handle(), runtime.sim().unwrap());
        let paths: Vec<PathBuf> = (0..count).map(|index| format!("/disk{index}").into()).collect();
        let options = || SimDiskOptions { size_bytes: DISK_BYTES, latency, ..SimDiskOptions::default() };
        let disks = paths.iter().map(|path| sim.add_disk(&handle, path, options())).collect();
        Self { handle, _disks: disks, paths }
    }

    /// A pool of these disks, exported.
    pub(crate) async fn make(&self, kind: TopKind, ashift: u32) {
        let mut disks = Vec::new();
        for path in &self.paths {
            let options = OpenOptions { write: true, ..OpenOptions::default() };
            let disk = Disk::whole(self.handle.open(path, options).await.unwrap());
            disks.push(DiskSpec { disk, path: path.display().to_string(), is_file: true });
        }
        let options = CreateOptions {
            name: "pool".into(),
            tops: vec![TopSpec { kind, class: AllocationClass::Normal, disks }],
            auxiliaries: AuxSpec::default(),
            ashift: Some(ashift),
            disabled_features: Vec::new(),
            properties: Vec::new(),
            seed: Some(7),
            clock: Clock::Fixed(1_700_000_000),
            host: host(),
            command: "zpool create pool".into(),
            user: 0,
            cache_bytes: 16 << 20,
            check: true,
        };
        let pool = create(&self.handle, options).await.unwrap();
        let root = pool.root().unwrap().objset.clone();
        // Something has to be in the root file system for it to be one that is opened; a volume's parent needs no files.
        cenote_dmu::Zap::create_object(&root, pool.txg(), cenote_format::dmu_type::DmuType::MASTER_NODE, &[])
            .await
            .unwrap();
        pool.sync().await.unwrap();
        pool.export().await.unwrap();
    }

    pub(crate) async fn open(&self) -> Pool {
        let (mut pools, skipped) = find(&self.handle, &self.paths).await;
        assert_eq!(pools.len(), 1, "{skipped:?}");
        let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
        let options = WriteOptions { clock: Clock::Fixed(1_700_000_001), host: host(), check: true };
        open(&self.handle, pools.remove(0), &how, options).await.unwrap()
    }

    /// Makes the volume, in the open txg.
    pub(crate) async fn volume(&self, pool: &Pool, spec: &VolumeSpec) -> (Head, Volume) {
        let head = pool.create_dataset(VOLUME, ObjsetType::Zvol).await.unwrap();
        let volume = Volume::create(&head.objset, pool.txg(), spec).await.unwrap();
        (head, volume)
    }

    /// What is on disk: the pool is whole, and the volume has these bytes.
    pub(crate) async fn judge(&self, expected: Option<&[u8]>) {
        let (mut pools, skipped) = find(&self.handle, &self.paths).await;
        assert_eq!(pools.len(), 1, "{skipped:?}");
        let options = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
        let pool = import(&self.handle, pools.remove(0), &options).await.unwrap();
        let report = verify(&self.handle, &pool, VerifyOptions::default(), &mut |_| true).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        if let Some(expected) = expected {
            let dataset = pool.dsl().dataset(VOLUME).await.unwrap();
            let volume = Volume::open(&pool.dsl().open(&dataset).await.unwrap().unwrap()).await.unwrap();
            assert_eq!(volume.size_bytes(), expected.len() as u64);
            let read = volume.read(0, expected.len()).await.unwrap();
            assert!(*read == *expected, "first difference at {:?}", first_difference(&read, expected));
        }
        pool.close().await;
    }
}

pub(crate) fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    one.iter().zip(other).position(|(one, other)| one != other).or((one.len() != other.len()).then_some(usize::MAX))
}
