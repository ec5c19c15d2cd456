//! Jobs, with the pools that they begin on.

use cenote_dmu::ObjectSpec;
use cenote_dmu::tx::TxTunables;
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::ObjsetType;
use cenote_sim::{Machine, disk};
use cenote_spa::{AddOptions, AuxSpec, Clock, FoundPool, ImportOptions, Offline, TopKind, WriteOptions, find};
use cenote_taskq::sim::disk::{Image, SimDiskOptions};
use cenote_taskq::{Handle, Rng, Runtime};

use super::super::base::{Opened, datasets, fill};
use super::drive::Driver;
use crate::judge::import_options;
use crate::life::{host, run};
use crate::load::Shared;
use crate::model::{FileChange, Files};
use crate::stage::words;

/// Seconds since 1970, whenever the pool is opened: times on disk are equal.
const NOW_S: u64 = 1_700_000_001;
/// Blocks that a job frees in a txg.
const FREED_MAX: u64 = 7;
/// A dataset that goes.
pub(super) const GOING: &str = "written/gone";
const GOING_BYTES: usize = 600_000;
/// Pages of a disk that are damaged before a scrub.
const DAMAGED: usize = 6;
/// Where metaslabs begin on a disk.
const DATA_BYTES: u64 = 4 << 20;

/// The job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Scrub,
    Resilver,
    /// A leg is attached, and rebuilt.
    Attach,
    /// The first disk is replaced, by a rebuild or a resilver.
    Replace {
        is_sequential: bool,
    },
    /// A spare stands for a disk that is faulted, and for good when that is detached.
    Spare,
    /// A spare of the draid stands for a disk that is faulted, and is free again when that is back.
    OwnSpare,
    Removal,
    CancelledRemoval,
    /// The mapping of a vdev that was removed is written anew, since a dataset goes.
    Condensing,
    Expansion,
    Initialize,
    Trim,
    Discard,
    Split,
    Destroy,
}

/// A job on a layout.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    pub(super) work: Work,
    layout: &'static [(TopKind, usize)],
    /// Disks beside those of the layout.
    further: usize,
    pub(super) disk_bytes: u64,
    tunables: &'static [&'static str],
}

const SINGLE: (TopKind, usize) = (TopKind::Single, 1);
const MIRROR: (TopKind, usize) = (TopKind::Mirror, 2);
const RAIDZ1: (TopKind, usize) = (TopKind::Raidz { parity: 1 }, 3);
const RAIDZ2: (TopKind, usize) = (TopKind::Raidz { parity: 2 }, 4);
const DRAID: (TopKind, usize) = (TopKind::Draid { parity: 1, data: Some(2), spares: 0 }, 4);
const SPARED: (TopKind, usize) = (TopKind::Draid { parity: 1, data: Some(2), spares: 1 }, 5);

const SCANNED: &[&str] = &["zfs_scan_checkpoint_intval=1"];
const REBUILT: &[&str] = &["zfs_rebuild_vdev_limit=262144", "zfs_scan_checkpoint_intval=1"];
const REMOVED: &[&str] = &["zfs_remove_max_copy_bytes=262144", "vdev_removal_max_span=4096"];
const REMOVED_SLOWLY: &[&str] = &["zfs_remove_max_copy_bytes=65536", "vdev_removal_max_span=4096"];
const CONDENSED: &[&str] = &[
    "zfs_remove_max_copy_bytes=262144",
    "vdev_removal_max_span=32768",
    "zfs_condense_min_mapping_bytes=0",
    "zfs_condense_indirect_obsolete_pct=3",
];
const EXPANDED: &[&str] = &["raidz_expand_max_copy_bytes=524288"];

const fn case(
    name: &'static str,
    work: Work,
    layout: &'static [(TopKind, usize)],
    further: usize,
    tunables: &'static [&'static str],
) -> Case {
    Case { name, work, layout, further, disk_bytes: crate::DISK_BYTES, tunables }
}

/// With room for the blocks of another vdev beside what a pool keeps back.
const fn large(case: Case) -> Case {
    Case { disk_bytes: 256 << 20, ..case }
}

const REBUILD: Work = Work::Replace { is_sequential: true };
const REPLACE: Work = Work::Replace { is_sequential: false };

/// All of them.
pub const CASES: &[Case] = &[
    case("scrub-mirror", Work::Scrub, &[MIRROR], 0, SCANNED),
    case("scrub-raidz1", Work::Scrub, &[RAIDZ1], 0, SCANNED),
    case("scrub-draid1", Work::Scrub, &[DRAID], 0, SCANNED),
    case("resilver-mirror", Work::Resilver, &[MIRROR], 0, SCANNED),
    case("resilver-raidz1", Work::Resilver, &[RAIDZ1], 0, SCANNED),
    case("rebuild-attached", Work::Attach, &[SINGLE], 1, REBUILT),
    case("rebuild-draid1", REBUILD, &[DRAID], 1, REBUILT),
    case("replace-mirror", REPLACE, &[MIRROR], 1, SCANNED),
    case("replace-raidz1", REPLACE, &[RAIDZ1], 1, SCANNED),
    case("spare-mirror", Work::Spare, &[MIRROR], 1, SCANNED),
    case("spare-draid1", Work::OwnSpare, &[SPARED], 0, REBUILT),
    large(case("removal", Work::Removal, &[SINGLE, SINGLE], 0, REMOVED)),
    large(case("removal-cancelled", Work::CancelledRemoval, &[SINGLE, SINGLE], 0, REMOVED_SLOWLY)),
    large(case("condensing", Work::Condensing, &[SINGLE, SINGLE], 0, CONDENSED)),
    case("expansion-raidz1", Work::Expansion, &[RAIDZ1], 1, EXPANDED),
    case("expansion-raidz2", Work::Expansion, &[RAIDZ2], 1, EXPANDED),
    case("initialize", Work::Initialize, &[MIRROR], 0, &[]),
    case("trim", Work::Trim, &[MIRROR], 0, &[]),
    case("checkpoint-discarded", Work::Discard, &[MIRROR], 0, &[]),
    case("split", Work::Split, &[MIRROR], 0, &[]),
    case("destroy", Work::Destroy, &[MIRROR], 0, &[]),
];

impl Case {
    fn layout_disks(&self) -> usize {
        self.layout.iter().map(|(_, disks)| disks).sum()
    }

    /// The place of the first disk that the layout has not.
    pub(super) fn new_disk(&self) -> usize {
        self.layout_disks()
    }

    /// Disks with this content; empty ones if there is none.
    pub(super) fn machine(&self, runtime: &Runtime, images: &[Image]) -> Machine {
        let options =
            SimDiskOptions { size_bytes: self.disk_bytes, latency: cenote_sim::slow(), ..SimDiskOptions::default() };
        let machine = Machine::new(runtime, self.layout_disks() + self.further, &options);
        machine.restore(images);
        machine
    }

    pub(super) fn import_options(&self) -> ImportOptions {
        let mut options = import_options();
        for given in self.tunables {
            options.tunables.set_from(given).expect("a tunable that there is");
        }
        options
    }

    /// Opens the pool to be written, with its datasets, whose logs are replayed; its jobs go on.
    pub(super) async fn open(&self, handle: &Handle, machine: &Machine, log: &Shared<Files>) -> Result<Opened, String> {
        let found = found_as(handle, machine, "written").await?;
        self.open_found(handle, found, log).await
    }

    pub(super) async fn open_found(
        &self,
        handle: &Handle,
        found: FoundPool,
        log: &Shared<Files>,
    ) -> Result<Opened, String> {
        let options = WriteOptions { clock: Clock::Fixed(NOW_S), host: host(), check: true };
        let pool = cenote_spa::open(handle, found, &self.import_options(), options).await;
        let pool = pool.map_err(|error| format!("to be written: {error}"))?;
        // A txg comes when somebody wants one.
        let pool = pool.start(TxTunables { zfs_txg_timeout: 3600, ..TxTunables::default() }).await;
        pool.peek(|syncer| syncer.set_async_block_max_blocks(FREED_MAX)).await.map_err(words)?;
        cenote_scan::attend(&pool);
        datasets(pool, false, log, false).await
    }

    /// Disks of a pool with all that is there at first, exported.
    ///
    /// # Errors
    /// That failed.
    pub(super) fn base(&self) -> Result<Vec<Image>, String> {
        let runtime = Runtime::simulated(1);
        let machine = self.machine(&runtime, &[]);
        let handle = runtime.handle();
        run(&runtime, self.make(&handle, &machine))?;
        let mut images = machine.images();
        if self.work == Work::Scrub {
            damage(&mut images[1]);
        }
        Ok(images)
    }

    async fn make(&self, handle: &Handle, machine: &Machine) -> Result<(), String> {
        let tops = cenote_sim::tops(handle, self.layout, &machine.paths).await.map_err(words)?;
        let options = cenote_sim::options("written", tops, 12);
        let pool = cenote_sim::new_pool(handle, options).await.map_err(words)?;
        let gone = pool.create_dataset(GOING, ObjsetType::Zfs).await.map_err(words)?;
        let object = gone.objset.create_object(pool.txg(), &ObjectSpec::new(DmuType::UINT8_DATA, 16 << 10));
        let mut bytes = vec![0; GOING_BYTES];
        Rng::new(9).fill(&mut bytes);
        object.map_err(words)?.write(pool.txg(), 0, &bytes).await.map_err(words)?;
        drop(gone);
        pool.sync().await.map_err(words)?;
        let Opened { pool, files, volume } = fill(pool, false).await?;
        for change in more() {
            files.make_noted(&change).await?;
        }
        pool.sync().await.map_err(words)?;
        let driver = Driver { handle, machine, case: self, pool: &pool };
        match self.work {
            Work::Resilver => {
                let away = driver.device(1).await?;
                pool.offline_device(away, Offline::default()).await.map_err(words)?;
                for at in 0..4 {
                    let change = FileChange::Write { name: (1, 4), offset: at * 70_000, len: 60_000, seed: 77 };
                    files.make_noted(&change).await?;
                    pool.sync().await.map_err(words)?;
                }
            }
            Work::Spare => {
                let spares = vec![disk(handle, &machine.paths[self.new_disk()]).await.map_err(words)?];
                let auxiliaries = AuxSpec { spares, caches: Vec::new() };
                let added = pool.add_vdevs(AddOptions { auxiliaries, ..AddOptions::default() });
                added.await.map_err(words)?;
            }
            Work::Condensing => {
                driver.remove_first().await?;
                while driver.removal_state().await? == Some(1) {
                    pool.sync().await.map_err(words)?;
                }
            }
            Work::Discard => {
                pool.take_checkpoint().await.map_err(words)?;
                for at in 0..3 {
                    let change = FileChange::Write { name: (1, 4), offset: at * 70_000, len: 60_000, seed: 77 };
                    files.make_noted(&change).await?;
                    pool.sync().await.map_err(words)?;
                }
            }
            _ => {}
        }
        drop((files, volume));
        pool.export().await.map_err(words)
    }
}

/// Files beside those of scripts, so that there is something to do.
fn more() -> Vec<FileChange> {
    let write = |name, len, seed| [FileChange::Create(name), FileChange::Write { name, offset: 0, len, seed }];
    [write((0, 4), 300_000, 12), write((1, 4), 280_000, 13)].concat()
}

/// What files hold at first.
pub(super) fn files(work: Work) -> Files {
    use crate::model::State as _;
    let mut files = super::super::base::files();
    more().iter().for_each(|change| files.apply(change));
    let rounds = match work {
        Work::Resilver => 4,
        Work::Discard => 3,
        _ => 0,
    };
    for at in 0..rounds {
        files.apply(&FileChange::Write { name: (1, 4), offset: at * 70_000, len: 60_000, seed: 77 });
    }
    files
}

/// Some pages have noise: fewer than a disk may have before it counts as degraded.
fn damage(image: &mut Image) {
    let pages: Vec<u64> = image.pages().map(|(offset, _)| offset).filter(|offset| *offset > DATA_BYTES).collect();
    let end = pages.last().copied().unwrap_or(0).saturating_sub(512 << 10);
    let pages: Vec<u64> = pages.into_iter().filter(|offset| *offset < end).collect();
    let mut noise = vec![0; 4096];
    for (seed, offset) in (1..).zip(pages.iter().step_by((pages.len() / DAMAGED).max(1)).take(DAMAGED)) {
        Rng::new(seed).fill(&mut noise);
        image.write(*offset, &noise);
    }
}

/// The pool of this name on the disks.
pub(super) async fn found_as(handle: &Handle, machine: &Machine, name: &str) -> Result<FoundPool, String> {
    let (pools, skipped) = find(handle, &machine.paths).await;
    let names: Vec<String> = pools.iter().map(|pool| pool.name().to_owned()).collect();
    let found = pools.into_iter().find(|pool| pool.name() == name);
    found.ok_or_else(|| format!("no pool {name} is found, but {names:?}; {skipped:?}"))
}
