//! Jobs, with the pools that they begin on.

use cenote_dmu::tx::TxTunables;
use cenote_sim::Machine;
use cenote_spa::{Clock, FoundPool, ImportOptions, TopKind, WriteOptions, find};
use cenote_taskq::sim::disk::{Image, SimDiskOptions};
use cenote_taskq::{Handle, Runtime};

use super::super::base::{Opened, datasets};
use crate::judge::import_options;
use crate::life::host;
use crate::load::Shared;
use crate::model::Files;
use crate::stage::words;

/// Seconds since 1970, whenever the pool is opened: times on disk are equal.
const NOW_S: u64 = 1_700_000_001;
/// Blocks that a job frees in a txg.
const FREED_MAX: u64 = 7;
/// A dataset that goes.
pub(super) const GOING: &str = "written/gone";

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
    pub(super) layout: &'static [(TopKind, usize)],
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
}

/// The pool of this name on the disks.
pub(super) async fn found_as(handle: &Handle, machine: &Machine, name: &str) -> Result<FoundPool, String> {
    let (pools, skipped) = find(handle, &machine.paths).await;
    let names: Vec<String> = pools.iter().map(|pool| pool.name().to_owned()).collect();
    let found = pools.into_iter().find(|pool| pool.name() == name);
    found.ok_or_else(|| format!("no pool {name} is found, but {names:?}; {skipped:?}"))
}
