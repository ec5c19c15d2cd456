//! Layouts of schedules, and the pools that they begin with.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use cenote_dmu::ObjectSpec;
use cenote_dmu::tx::{Cost, TxTunables};
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::ObjectId;
use cenote_sim::{Layout, Machine, disk, new_pool, options};
use cenote_spa::{TopKind, TopSpec};
use cenote_taskq::sim::disk::{Image, Latency, SimDiskOptions};
use cenote_taskq::{Handle, Runtime};
use cenote_vdev::config::AllocationClass;

use super::client::{BLOCK_BYTES, OBJECTS, POOL};
use crate::life::run;
use crate::stage::words;

/// The size of a disk in bytes: the smallest that a pool takes, and a draid, which keeps room for the time when it gets further children.
const DISK_BYTES: u64 = 64 << 20;
const DRAID_DISK_BYTES: u64 = 112 << 20;

/// A layout with the disks beside it.
pub(super) struct Shape {
    /// In a few words.
    pub(super) words: &'static str,
    /// The vdevs.
    pub(super) layout: Layout,
    /// Disks of a mirror for metadata alone, after these; none if 0.
    pub(super) special: usize,
    /// Hot spares that it is made with.
    pub(super) spares: usize,
    /// Blank disks that the machine has besides.
    pub(super) blanks: usize,
}

const fn shape(words: &'static str, layout: Layout, spares: usize, blanks: usize) -> Shape {
    Shape { words, layout, special: 0, spares, blanks }
}

/// All of them.
pub(super) const SHAPES: [Shape; 16] = [
    shape("mirror of 2", &[(TopKind::Mirror, 2)], 0, 1),
    shape("mirror of 2, a spare", &[(TopKind::Mirror, 2)], 1, 1),
    shape("mirror of 3", &[(TopKind::Mirror, 3)], 0, 1),
    shape("mirror of 3, 2 spares", &[(TopKind::Mirror, 3)], 2, 0),
    shape("2 mirrors of 2, a spare", &[(TopKind::Mirror, 2), (TopKind::Mirror, 2)], 1, 1),
    shape("raidz1 of 3", &[(TopKind::Raidz { parity: 1 }, 3)], 0, 1),
    shape("raidz1 of 4, a spare", &[(TopKind::Raidz { parity: 1 }, 4)], 1, 0),
    shape("raidz2 of 4", &[(TopKind::Raidz { parity: 2 }, 4)], 0, 1),
    shape("raidz2 of 5, 2 spares", &[(TopKind::Raidz { parity: 2 }, 5)], 2, 0),
    shape("raidz3 of 5, a spare", &[(TopKind::Raidz { parity: 3 }, 5)], 1, 1),
    shape("mirror of 2 and raidz1 of 3", &[(TopKind::Mirror, 2), (TopKind::Raidz { parity: 1 }, 3)], 0, 1),
    shape("draid1 of 4", &[(TopKind::Draid { parity: 1, data: Some(2), spares: 0 }, 4)], 0, 1),
    shape("draid1 of 5 with a spare", &[(TopKind::Draid { parity: 1, data: Some(2), spares: 1 }, 5)], 0, 1),
    shape("draid2 of 6", &[(TopKind::Draid { parity: 2, data: None, spares: 0 }, 6)], 1, 0),
    shape("draid2 of 7 with a spare", &[(TopKind::Draid { parity: 2, data: Some(3), spares: 1 }, 7)], 0, 1),
    shape("draid2 of 8 with 2 spares", &[(TopKind::Draid { parity: 2, data: Some(4), spares: 2 }, 8)], 0, 1),
];

const MIRRORS: Layout = &[(TopKind::Mirror, 2), (TopKind::Mirror, 2), (TopKind::Mirror, 2)];
const WIDE_MIRRORS: Layout = &[(TopKind::Mirror, 3), (TopKind::Mirror, 2), (TopKind::Mirror, 2)];
const RAIDZ1: (TopKind, usize) = (TopKind::Raidz { parity: 1 }, 3);

/// Further ones, for schedules of all kinds: vdevs that can be evacuated, split or expanded, with disks for that.
pub(super) const WIDE_SHAPES: [Shape; 14] = [
    shape("3 mirrors of 2", MIRRORS, 0, 1),
    shape("3 mirrors of 2, a spare", MIRRORS, 1, 1),
    shape("mirror of 3 and 2 of 2", WIDE_MIRRORS, 0, 1),
    shape("2 mirrors of 2, 2 blank disks", &[(TopKind::Mirror, 2), (TopKind::Mirror, 2)], 0, 2),
    Shape { special: 2, ..shape("mirror of 2, another for metadata, a spare", &[(TopKind::Mirror, 2)], 1, 1) },
    shape("mirror of 2, 2 spares", &[(TopKind::Mirror, 2)], 2, 0),
    shape("raidz1 of 3, 2 blank disks", &[RAIDZ1], 0, 2),
    shape("raidz1 of 3, a spare", &[RAIDZ1], 1, 1),
    shape("2 raidz1 of 3", &[RAIDZ1, RAIDZ1], 0, 2),
    shape("raidz2 of 4, 2 blank disks", &[(TopKind::Raidz { parity: 2 }, 4)], 0, 2),
    shape("raidz2 of 4, 2 spares", &[(TopKind::Raidz { parity: 2 }, 4)], 2, 1),
    shape("raidz3 of 7, 2 spares", &[(TopKind::Raidz { parity: 3 }, 7)], 2, 1),
    shape("draid3 of 8", &[(TopKind::Draid { parity: 3, data: Some(3), spares: 0 }, 8)], 0, 1),
    shape("draid3 of 9 with a spare", &[(TopKind::Draid { parity: 3, data: Some(4), spares: 1 }, 9)], 1, 0),
];

impl Shape {
    /// A draid with several distributed spares, so that one lies on a disk that another stands for.
    pub(super) fn has_spare_spaces(&self) -> bool {
        self.layout.iter().any(|(kind, _)| matches!(kind, TopKind::Draid { spares: 2.., .. }))
    }

    /// Disks that the vdevs have in the beginning.
    pub(super) fn used(&self) -> usize {
        self.layout.iter().map(|(_, count)| count).sum::<usize>() + self.special
    }

    /// Disks of the machine.
    pub(super) fn disks(&self) -> usize {
        self.used() + self.spares + self.blanks
    }

    /// The size of a disk in bytes.
    pub(super) fn disk_bytes(&self) -> u64 {
        let is_draid = matches!(self.layout[0].0, TopKind::Draid { .. });
        if is_draid { DRAID_DISK_BYTES } else { DISK_BYTES }
    }
}

const fn latency(read_us: u64, write_us: u64, flush_us: u64, jitter_us: u64) -> Latency {
    Latency {
        read: Duration::from_micros(read_us),
        write: Duration::from_micros(write_us),
        flush: Duration::from_micros(flush_us),
        jitter: Duration::from_micros(jitter_us),
    }
}

/// Solid-state disks.
pub(super) const FAST: Latency = latency(80, 100, 400, 400);
/// Disks so slow that scans take seconds, and steps meet them under way.
pub(super) const SLOW: Latency = latency(6_000, 4_000, 8_000, 12_000);

/// The disks of a shape in a simulated runtime.
pub(super) fn machine(runtime: &Runtime, shape: &Shape, latency: Latency) -> Machine {
    let options = SimDiskOptions { size_bytes: shape.disk_bytes(), latency, ..SimDiskOptions::default() };
    Machine::new(runtime, shape.disks(), &options)
}

/// The pool of a shape, as it is in the beginning.
pub(super) struct Base {
    /// The contents of the disks.
    pub(super) images: Vec<Image>,
    /// Objects of the client, which have no blocks yet.
    pub(super) objects: Vec<ObjectId>,
}

static BASES: OnceLock<Mutex<BTreeMap<&'static str, Arc<Base>>>> = OnceLock::new();

impl Base {
    /// That of a shape; the first call makes it.
    pub(super) fn of(shape: &'static Shape) -> Result<Arc<Self>, String> {
        let mut bases = BASES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(base) = bases.get(shape.words) {
            return Ok(base.clone());
        }
        let runtime = Runtime::simulated(1);
        let (handle, machine) = (runtime.handle(), machine(&runtime, shape, FAST));
        let objects = run(&runtime, make(&handle, &machine, shape));
        let objects = objects.map_err(|error| format!("making the {}: {error}", shape.words))?;
        let base = Arc::new(Self { images: machine.images(), objects });
        bases.insert(shape.words, base.clone());
        Ok(base)
    }
}

async fn make(handle: &Handle, machine: &Machine, shape: &Shape) -> Result<Vec<ObjectId>, String> {
    let mut tops = machine.tops(handle, shape.layout).await.map_err(words)?;
    if shape.special > 0 {
        let mut disks = Vec::new();
        for path in &machine.paths[shape.used() - shape.special..shape.used()] {
            disks.push(disk(handle, path).await.map_err(words)?);
        }
        tops.push(TopSpec { kind: TopKind::Mirror, class: AllocationClass::Special, disks });
    }
    let mut options = options(POOL, tops, 12);
    for path in &machine.paths[shape.used()..shape.used() + shape.spares] {
        options.auxiliaries.spares.push(disk(handle, path).await.map_err(words)?);
    }
    let pool = new_pool(handle, options).await.map_err(words)?.start(TxTunables::default()).await;
    let head = pool.open_head(POOL).await.map_err(words)?;
    let tx = head.begin(Cost::objects(OBJECTS as u64)).await.map_err(words)?;
    let spec = ObjectSpec::new(DmuType::UINT8_DATA, BLOCK_BYTES as u32);
    let mut objects = Vec::new();
    for _ in 0..OBJECTS {
        objects.push(head.objset().create_object(tx.txg(), &spec).map_err(words)?.id());
    }
    drop((tx, head));
    pool.export().await.map_err(words)?;
    Ok(objects)
}
