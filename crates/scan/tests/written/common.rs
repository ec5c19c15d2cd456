//! Pools on simulated disks, changes at random, and the judge.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cenote_dmu::{DmuError, Object, ObjectSpec};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::Txg;
use cenote_scan::{VerifyOptions, VerifyReport, verify};
use cenote_spa::{
    AuxSpec, Clock, CreateOptions, DiskSpec, Host, ImportOptions, Pool, TopKind, TopSpec, create, find, import,
};
use cenote_taskq::sim::disk::{Latency, SimDisk, SimDiskOptions};
use cenote_taskq::{Handle, OpenOptions, Rng, Runtime};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::disk::Disk;
use cenote_zpl::bulk::{BulkWriter, NodeSpec};

pub(crate) const DISK_BYTES: u64 = 80 << 20;

/// A pool's layout: kinds with their numbers of disks.
pub(crate) type Tops = &'static [(TopKind, usize)];

pub(crate) const SINGLE: Tops = &[(TopKind::Single, 1)];
pub(crate) const LAYOUTS: &[Tops] = &[
    SINGLE,
    &[(TopKind::Single, 1), (TopKind::Single, 1), (TopKind::Single, 1)],
    &[(TopKind::Mirror, 3)],
    &[(TopKind::Raidz { parity: 1 }, 3)],
    &[(TopKind::Raidz { parity: 2 }, 5)],
    &[(TopKind::Raidz { parity: 3 }, 4), (TopKind::Mirror, 2)],
    &[(TopKind::Draid { parity: 1, data: Some(2), spares: 0 }, 4)],
    &[(TopKind::Draid { parity: 2, data: None, spares: 0 }, 6)],
    &[(TopKind::Draid { parity: 1, data: Some(2), spares: 2 }, 7)],
];

pub(crate) struct Machine {
    pub(crate) disks: Vec<Arc<SimDisk>>,
    pub(crate) paths: Vec<PathBuf>,
}

impl Machine {
    pub(crate) fn new(runtime: &Runtime, count: usize, latency: Latency) -> Self {
        let handle = runtime.handle();
        let sim = runtime.sim().unwrap();
        let paths: Vec<PathBuf> = (0..count).map(|index| format!("/disk{index}").into()).collect();
        let options = || SimDiskOptions { size_bytes: DISK_BYTES, latency, ..SimDiskOptions::default() };
        let disks = paths.iter().map(|path| sim.add_disk(&handle, path, options())).collect();
        Self { disks, paths }
    }

    /// Copies the disks to files in a folder, for programs outside of the simulation.
    pub(crate) fn images_in(&self, dir: &Path) -> Vec<PathBuf> {
        let copy = |(number, disk): (usize, &Arc<SimDisk>)| {
            let path = dir.join(format!("{number}.img"));
            std::fs::write(&path, disk.peek(0, DISK_BYTES as usize)).unwrap();
            path
        };
        self.disks.iter().enumerate().map(copy).collect()
    }

    pub(crate) async fn tops(&self, handle: &Handle, layout: Tops) -> Vec<TopSpec> {
        let mut paths = self.paths.iter();
        let mut tops = Vec::new();
        for (kind, count) in layout {
            let mut disks = Vec::new();
            for path in paths.by_ref().take(*count) {
                let options = OpenOptions { write: true, ..OpenOptions::default() };
                let disk = Disk::whole(handle.open(path, options).await.unwrap());
                disks.push(DiskSpec { disk, path: path.display().to_string(), is_file: true });
            }
            tops.push(TopSpec { kind: *kind, class: AllocationClass::Normal, disks });
        }
        tops
    }
}

/// Disks that take their time, each time another, so that a cut meets writes and flushes on their way.
pub(crate) fn slow() -> Latency {
    Latency {
        write: Duration::from_micros(100),
        flush: Duration::from_micros(400),
        jitter: Duration::from_micros(400),
        ..Latency::default()
    }
}

pub(crate) fn options(tops: Vec<TopSpec>, ashift: u32) -> CreateOptions {
    CreateOptions {
        name: "written".into(),
        tops,
        auxiliaries: AuxSpec::default(),
        ashift: Some(ashift),
        disabled_features: Vec::new(),
        properties: Vec::new(),
        seed: Some(7),
        clock: Clock::Fixed(1_700_000_000),
        host: Host { id: 0, name: "here".into() },
        command: "zpool create written".into(),
        user: 0,
        cache_bytes: 16 << 20,
        check: true,
    }
}

pub(crate) async fn make(handle: &Handle, options: CreateOptions) -> Pool {
    let pool = create(handle, options).await.unwrap();
    let root = pool.root().unwrap().objset.clone();
    BulkWriter::create(&root, pool.txg(), &NodeSpec { mode: 0o755, ..NodeSpec::default() }).await.unwrap();
    pool.sync().await.unwrap();
    pool
}

pub(crate) async fn check(handle: &Handle, paths: &[PathBuf]) -> (Txg, VerifyReport) {
    let (mut pools, skipped) = find(handle, paths).await;
    assert_eq!(pools.len(), 1, "{skipped:?}");
    let options = ImportOptions { cache_bytes: 16 << 20, force: true, ..ImportOptions::default() };
    let pool = import(handle, pools.remove(0), &options).await.unwrap();
    let report = verify(handle, &pool, VerifyOptions::default(), &mut |_| true).await.unwrap();
    (pool.txg(), report)
}

pub(crate) fn assert_clean(report: &VerifyReport, what: &str) {
    assert!(report.is_clean(), "{what}: {report}");
}

/// Changes this and that in the open txg: objects grow, shrink, come and go.
pub(crate) async fn change(pool: &Pool, objects: &mut Vec<Object>, rng: &mut Rng) -> Result<(), DmuError> {
    let root = pool.root().unwrap().objset.clone();
    let txg = pool.txg();
    for _ in 0..1 + rng.below(4) {
        match rng.below(6) {
            0 | 1 => {
                let block = 512 << rng.below(9);
                let spec = ObjectSpec::new(DmuType::UINT8_DATA, block);
                objects.push(root.create_object(txg, &spec)?);
            }
            2 if !objects.is_empty() => {
                let object = objects.swap_remove(rng.below(objects.len() as u64) as usize);
                object.free(txg);
            }
            3 if !objects.is_empty() => {
                let object = &objects[rng.below(objects.len() as u64) as usize];
                let from = rng.below(64);
                object.free_blocks(txg, from..from + rng.below(2000));
            }
            _ if !objects.is_empty() => {
                let object = &objects[rng.below(objects.len() as u64) as usize];
                let mut bytes = vec![0; rng.below(200_000) as usize];
                if rng.chance(2, 3) {
                    rng.fill(&mut bytes);
                }
                let offset = if rng.chance(1, 8) { rng.below(1 << 34) } else { rng.below(1 << 20) };
                object.write(txg, offset, &bytes).await?;
            }
            _ => {}
        }
    }
    Ok(())
}
