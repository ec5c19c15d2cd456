//! Pools on simulated disks with one volume.

use cenote_format::enums::ObjsetType;
use cenote_scan::{VerifyOptions, verify};
use cenote_spa::{Clock, Head, Host, ImportOptions, Pool, TopKind, WriteOptions, find, import, open};
use cenote_taskq::sim::disk::{Latency, SimDiskOptions};
use cenote_taskq::{Handle, Runtime};
use cenote_zvol::{Volume, VolumeSpec};

const DISK_BYTES: u64 = 96 << 20;
pub(crate) const VOLUME: &str = "pool/volume";

pub(crate) struct Machine {
    pub(crate) handle: Handle,
    disks: cenote_sim::Machine,
}

impl Machine {
    pub(crate) fn new(runtime: &Runtime, count: usize, latency: Latency) -> Self {
        let options = SimDiskOptions { size_bytes: DISK_BYTES, latency, ..SimDiskOptions::default() };
        Self { handle: runtime.handle(), disks: cenote_sim::Machine::new(runtime, count, &options) }
    }

    /// A pool of these disks, exported.
    pub(crate) async fn make(&self, kind: TopKind, ashift: u32) {
        let tops = self.disks.tops(&self.handle, &[(kind, self.disks.paths.len())]).await.unwrap();
        let pool = cenote_sim::new_pool(&self.handle, cenote_sim::options("pool", tops, ashift)).await.unwrap();
        pool.export().await.unwrap();
    }

    pub(crate) async fn open(&self) -> Pool {
        let (mut pools, skipped) = find(&self.handle, &self.disks.paths).await;
        assert_eq!(pools.len(), 1, "{skipped:?}");
        let how = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
        let options =
            WriteOptions { clock: Clock::Fixed(1_700_000_001), host: Host { id: 0, name: "here".into() }, check: true };
        open(&self.handle, pools.remove(0), &how, options).await.unwrap()
    }

    /// Makes the volume, in the open txg.
    pub(crate) async fn volume(&self, pool: &Pool, spec: &VolumeSpec) -> (Head, Volume) {
        let head = pool.create_dataset(VOLUME, ObjsetType::Zvol).await.unwrap();
        let volume = Volume::create(&head.objset, pool.txg(), spec).await.unwrap();
        (head, volume)
    }

    /// Checks the disk: the pool is whole, and the volume has these bytes.
    pub(crate) async fn judge(&self, expected: Option<&[u8]>) {
        let (mut pools, skipped) = find(&self.handle, &self.disks.paths).await;
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
