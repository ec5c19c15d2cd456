//! Devices, layouts, and the moment in which the power goes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_dmu::tx::SyncMode;
use cenote_format::ids::{Guid, Txg};
use cenote_metaslab::Tunables;
use cenote_sim::{Layout, disk, slow, tops};
use cenote_spa::{AddOptions, DiskSpec, TopKind, TopSpec};
use cenote_taskq::sim::disk::{Crash, Fault, Image, Late, Request, RequestKind, SimDisk, SimDiskOptions};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Handle, Rng, Runtime, oneshot};
use cenote_vdev::commit::{LeafCommit, commit};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::leaf::probe_device;
use cenote_vdev::ring::Ring;

use crate::DISK_BYTES;
use crate::aim::Aim;

/// Where the txgs begin that devices have from an earlier life.
const EARLIER_TXG: u64 = 1 << 30;

const LAYOUTS: [Layout; 8] = [
    &[(TopKind::Single, 1)],
    &[(TopKind::Single, 1), (TopKind::Single, 1)],
    &[(TopKind::Mirror, 2)],
    &[(TopKind::Mirror, 2), (TopKind::Mirror, 2)],
    &[(TopKind::Raidz { parity: 1 }, 3)],
    &[(TopKind::Raidz { parity: 2 }, 4)],
    &[(TopKind::Raidz { parity: 1 }, 3), (TopKind::Single, 1)],
    &[(TopKind::Draid { parity: 1, data: Some(2), spares: 0 }, 4)],
];

/// The shape of a life: its devices, and how its space is kept.
#[derive(Clone, Debug)]
pub struct Shape {
    layout: Layout,
    /// Disks of a log device, a mirror where there are two; none if there is no log device.
    log_disks: usize,
    /// Sector size of the pool as a power of two.
    pub ashift: u32,
    /// Features that the pool is made without.
    pub disabled_features: Vec<String>,
    /// The property `sync` of both file systems: what their clients may rely on.
    pub sync: [SyncMode; 2],
    /// The property `sync` of the volume.
    pub volume_sync: SyncMode,
    /// The property `logbias` of the file systems and of the volume: all writes are logged by reference.
    pub is_for_throughput: [bool; 3],
    sector_bytes: u32,
    write_cache: bool,
    /// Limits so small that logs are flushed and maps condensed all the time.
    has_small_logs: bool,
    /// Blocks from this size on are split.
    ganged_from_bytes: Option<u64>,
    /// Of the second file system.
    pub quota_bytes: Option<u64>,
    /// The medium's sectors.
    physical_bytes: u32,
    /// Torn writes leave garbage.
    has_garbage: bool,
    /// So many times of a hundred devices say that they have flushed, and have not: nothing can be promised on those, and the verdict
    /// has to say so.
    pub lost_flushes_percent: u64,
}

/// Devices that fail for a while.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// This one alone; all of them if there is none.
    only: Option<usize>,
    how: Failing,
}

/// How devices fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    /// They answer with errors.
    Errors,
    /// They were reset: what was in their caches is lost, and they answer with errors until they are back. The loss is told at least
    /// once, to a write or a flush: of one that nothing is told of nobody could know.
    Reset,
    /// Writes and flushes come half a second late.
    Slow,
}

impl Outage {
    /// Draws one of a device, or of all.
    #[must_use]
    pub fn draw(rng: &mut Rng, only: Option<usize>) -> Self {
        let how = [Failing::Errors, Failing::Reset, Failing::Slow][rng.below(3) as usize];
        Self { only, how }
    }

    /// Whether all devices lose what is in their caches. Until the first of them tells, what the txg under way has written and nobody
    /// has in memory any more cannot be read; then it is written again.
    #[must_use]
    pub fn loses_all_caches(&self) -> bool {
        self.only.is_none() && self.how == Failing::Reset
    }
}

fn draw_sync(rng: &mut Rng) -> SyncMode {
    match rng.below(6) {
        0 => SyncMode::Always,
        1 => SyncMode::Disabled,
        _ => SyncMode::Standard,
    }
}

/// A quota that the directories fit into, and of the files that are made later only a part.
fn quota_unit_bytes(layout: Layout) -> u64 {
    let has_parity = layout.iter().any(|(kind, _)| !matches!(kind, TopKind::Single | TopKind::Mirror));
    if has_parity { 512 << 10 } else { 128 << 10 }
}

impl Shape {
    /// Draws one.
    #[must_use]
    pub fn draw(rng: &mut Rng) -> Self {
        let layout = LAYOUTS[rng.below(LAYOUTS.len() as u64) as usize];
        let disabled = if rng.chance(1, 6) { vec!["log_spacemap".to_owned()] } else { Vec::new() };
        let ashift = if rng.chance(1, 3) { 9 } else { 12 };
        Self {
            layout,
            ashift,
            disabled_features: disabled,
            sync: [draw_sync(rng), draw_sync(rng)],
            volume_sync: draw_sync(rng),
            sector_bytes: if ashift == 12 && rng.chance(1, 3) { 4096 } else { 512 },
            write_cache: !rng.chance(1, 8),
            has_small_logs: rng.chance(2, 3),
            quota_bytes: rng.chance(1, 4).then(|| quota_unit_bytes(layout) << rng.below(3)),
            physical_bytes: if ashift == 12 { 4096 } else { 512 },
            has_garbage: rng.chance(1, 2),
            // More than a sector: a block of one sector cannot be split.
            ganged_from_bytes: rng.chance(1, 3).then(|| 1 << (13 + rng.below(3))),
            lost_flushes_percent: 0,
            is_for_throughput: [(); 3].map(|()| rng.chance(1, 3)),
            log_disks: if rng.chance(1, 3) { 1 + rng.below(2) as usize } else { 0 },
        }
    }

    /// The vdev that the pool gets while it is used, as redundant as the rest: its kind, and how many devices it takes.
    #[must_use]
    pub fn growth(&self) -> (TopKind, usize) {
        let has_single = self.layout.iter().any(|(kind, _)| *kind == TopKind::Single);
        if has_single { (TopKind::Single, 1) } else { (TopKind::Mirror, 2) }
    }

    /// Top-level vdevs that the pool is made with.
    #[must_use]
    pub const fn top_count(&self) -> usize {
        self.layout.len() + (self.log_disks > 0) as usize
    }

    /// The place of the log device among the top-level vdevs, if the pool is made with one.
    #[must_use]
    pub fn log_place(&self) -> Option<usize> {
        (self.log_disks > 0).then_some(self.layout.len())
    }

    /// Whether extended attributes are in directories of their own.
    #[must_use]
    pub const fn has_xattr_dirs(&self) -> bool {
        self.ashift == 9
    }

    /// See [`Life::have_large_sectors_below`](crate::life::Life::have_large_sectors_below).
    pub(crate) const fn has_large_sectors_below(&mut self) {
        (self.physical_bytes, self.has_garbage) = (4096, true);
    }

    /// Devices of vdevs that can do without one.
    #[must_use]
    pub fn redundant(&self) -> Vec<usize> {
        let mut first = 0;
        let mut found = Vec::new();
        for (kind, count) in self.layout {
            if *kind != TopKind::Single {
                found.extend(first..first + count);
            }
            first += count;
        }
        if self.log_disks > 1 {
            found.extend(first..first + self.log_disks);
        }
        found
    }

    /// The log device, if the pool has one.
    fn log_device(&self) -> Option<TopKind> {
        match self.log_disks {
            0 => None,
            1 => Some(TopKind::Single),
            _ => Some(TopKind::Mirror),
        }
    }

    /// Devices that the pool is made with, those of its log device last.
    fn disks(&self) -> usize {
        self.layout.iter().map(|(_, disks)| disks).sum::<usize>() + self.log_disks
    }

    /// In a few words.
    #[must_use]
    pub fn words(&self) -> String {
        let Self {
            layout, log_disks, ashift, sync, volume_sync, write_cache, has_small_logs, ganged_from_bytes, ..
        } = self;
        let through = self.is_for_throughput;
        let logs = if self.disabled_features.is_empty() { "logs" } else { "no logs" };
        format!(
            "{layout:?} log {log_disks} ashift {ashift}, {logs}{}, ganged from {ganged_from_bytes:?}, {}, sync {sync:?} \
             {volume_sync:?}, throughput {through:?}",
            if *has_small_logs { " (small)" } else { "" },
            if *write_cache { "write cache" } else { "no write cache" },
        )
    }

    /// Turns what numbers of space accounting it turns.
    pub fn tune(&self, tunables: &mut Tunables) {
        if self.has_small_logs {
            tunables.zfs_unflushed_log_block_max = 3;
            tunables.zfs_unflushed_log_block_min = 1;
            tunables.zfs_unflushed_log_txg_max = 4;
            tunables.zfs_metaslab_condense_pct = 110;
            (tunables.metaslab_unload_delay, tunables.metaslab_unload_delay_ms) = (1, 0);
        }
        if let Some(bytes) = self.ganged_from_bytes {
            (tunables.metaslab_force_ganging, tunables.metaslab_force_ganging_pct) = (bytes, 30);
        }
    }
}

/// A vdev that a pool gets while it is used.
pub struct Growth {
    kind: TopKind,
    ashift: u32,
    paths: Vec<PathBuf>,
}

impl Growth {
    async fn disks(&self, handle: &Handle) -> Result<Vec<DiskSpec>, String> {
        let mut disks = Vec::new();
        for path in &self.paths {
            disks.push(disk(handle, path).await.map_err(|error| error.to_string())?);
        }
        Ok(disks)
    }

    /// As an addition.
    ///
    /// # Errors
    /// A device cannot be opened.
    pub async fn options(&self, handle: &Handle) -> Result<AddOptions, String> {
        let disks = self.disks(handle).await?;
        let top = TopSpec { kind: self.kind, class: AllocationClass::Normal, disks };
        Ok(AddOptions { tops: vec![top], ashift: Some(self.ashift), ..AddOptions::default() })
    }

    /// Gives its devices an earlier life in a pool that got much further: rings of uberblocks that lead to something, and that look
    /// newer than any of this pool's.
    ///
    /// # Errors
    /// A device fails, or none of the pool's has an uberblock.
    pub async fn used_before(&self, handle: &Handle, of: &Path) -> Result<(), String> {
        let report = probe_device(disk(handle, of).await.map_err(|error| error.to_string())?.disk.device()).await;
        let found = report.labelled().find_map(|label| label.uberblocks.first().map(|copy| copy.uberblock));
        let mut uberblock = found.ok_or("no uberblock")?;
        let leaf = |spec: DiskSpec| LeafCommit {
            guid: Guid(1),
            disk: spec.disk,
            top: None,
            ashift: self.ashift,
            config: None,
            takes_uberblock: true,
        };
        let leaves: Vec<LeafCommit> = self.disks(handle).await?.into_iter().map(leaf).collect();
        let mut ring = Ring::default();
        for txg in EARLIER_TXG..EARLIER_TXG + 8 {
            uberblock.txg = Txg(txg);
            commit(&leaves, &uberblock, &mut ring).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// The devices of one stretch of a life, between two cuts.
pub struct Machine {
    disks: Vec<Arc<SimDisk>>,
    has_garbage: bool,
    /// Not there.
    away: Option<usize>,
    /// Devices that were reset and have not told it yet.
    untold: Arc<Mutex<BTreeSet<usize>>>,
    /// Where they are found.
    pub paths: Vec<PathBuf>,
}

impl Machine {
    /// Devices with this content; empty ones if there is none.
    #[must_use]
    pub fn new(runtime: &Runtime, shape: &Shape, images: &[Image]) -> Self {
        let count = shape.disks() + shape.growth().1;
        let options = SimDiskOptions {
            size_bytes: DISK_BYTES,
            sector_bytes: shape.sector_bytes,
            physical_sector_bytes: shape.physical_bytes,
            write_cache: shape.write_cache,
            latency: slow(),
            ..SimDiskOptions::default()
        };
        let machine = cenote_sim::Machine::new(runtime, count, &options);
        machine.restore(images);
        let cenote_sim::Machine { disks, paths, .. } = machine;
        let untold = Arc::default();
        let machine = Self { disks, has_garbage: shape.has_garbage, away: None, untold, paths };
        machine.come_back(shape);
        machine
    }

    /// The same without one of them.
    #[must_use]
    pub fn without(mut self, away: Option<usize>) -> Self {
        if let Some(away) = away {
            self.away = Some(away);
            self.paths.remove(away);
        }
        self
    }

    /// Devices fail from now on, until they [come back](Machine::come_back).
    pub fn fail(&self, outage: Outage) {
        for (at, disk) in self.disks.iter().enumerate() {
            if outage.only.is_some_and(|only| only != at) {
                continue;
            }
            if outage.how == Failing::Reset {
                disk.crash(Crash::Random);
                disk.power_on();
                self.untold.lock().insert(at);
            }
            let untold = Arc::clone(&self.untold);
            disk.set_faults(move |request, _| match (outage.how, request.kind) {
                (Failing::Slow, RequestKind::Write | RequestKind::Flush) => Fault::Delay(Duration::from_millis(500)),
                (Failing::Slow, RequestKind::Read) => Fault::None,
                (Failing::Errors | Failing::Reset, kind) => {
                    if kind != RequestKind::Read {
                        untold.lock().remove(&at);
                    }
                    Fault::Error(std::io::ErrorKind::BrokenPipe)
                }
            });
        }
    }

    /// Devices do what they are asked again; flushes as the shape says.
    pub fn come_back(&self, shape: &Shape) {
        let percent = shape.lost_flushes_percent;
        for (at, disk) in self.disks.iter().enumerate() {
            disk.clear_faults();
            if percent == 0 && !self.untold.lock().contains(&at) {
                continue;
            }
            let untold = Arc::clone(&self.untold);
            disk.set_faults(move |request: &Request, rng| match request.kind {
                RequestKind::Read => Fault::None,
                _ if untold.lock().remove(&at) => Fault::Error(std::io::ErrorKind::BrokenPipe),
                RequestKind::Flush if percent > 0 && rng.chance(percent, 100) => Fault::Lost,
                _ => Fault::None,
            });
        }
    }

    /// Watches the devices for an aim, in place of faults. The receiver has a value once it is reached.
    #[must_use]
    pub fn watch(&self, aim: Aim) -> oneshot::Receiver<()> {
        aim.watch(&self.disks)
    }

    /// Has late writes reach a device after a while.
    pub fn land_later(&self, handle: &Handle, at: usize, late: &Late, after: Duration) {
        let (Some(disk), late, clock) = (self.disks.get(at).cloned(), late.clone(), handle.clone()) else { return };
        handle.detach(Class::Interrupt, async move {
            clock.sleep(after).await;
            disk.land(&late);
        });
    }

    /// The vdevs of a pool on them.
    ///
    /// # Errors
    /// A device cannot be opened.
    pub async fn tops(&self, handle: &Handle, shape: &Shape) -> Result<Vec<TopSpec>, String> {
        let mut made = tops(handle, shape.layout, &self.paths).await.map_err(|error| error.to_string())?;
        if let Some(kind) = shape.log_device() {
            let mut disks = Vec::new();
            for path in &self.paths[shape.disks() - shape.log_disks..shape.disks()] {
                disks.push(disk(handle, path).await.map_err(|error| error.to_string())?);
            }
            made.push(TopSpec { kind, class: AllocationClass::Log, disks });
        }
        Ok(made)
    }

    /// The vdev that the pool gets while it is used.
    #[must_use]
    pub fn growth(&self, shape: &Shape) -> Growth {
        let (kind, count) = shape.growth();
        // Only devices before them are ever away.
        Growth { kind, ashift: shape.ashift, paths: self.paths[self.paths.len() - count..].to_vec() }
    }

    /// The power goes. Each device keeps what it likes of what was not stable; some of it may reach it only later (`has_late`).
    pub fn cut(&self, rng: &mut Rng, has_late: bool) -> Vec<Late> {
        let mut all = Vec::new();
        // Now and then everything is torn on all of them: what is written to several places at once is then sound in none.
        let is_all_torn = rng.chance(1, 6);
        for (at, disk) in self.disks.iter().enumerate() {
            let crash = match rng.below(8) {
                _ if is_all_torn => Crash::Torn,
                0 => Crash::LoseAll,
                1 => Crash::KeepAll,
                _ if self.has_garbage => Crash::Garbage,
                _ => Crash::Random,
            };
            all.push(match Some(at) == self.away {
                true => Late::default(),
                false if has_late => disk.crash_with_late(crash),
                false => {
                    disk.crash(crash);
                    Late::default()
                }
            });
        }
        all
    }

    /// Ends the machine, which stands still, and what runs on it.
    ///
    /// # Errors
    /// Something still has a device: what is dropped at any moment leaves nothing in memory.
    pub fn end(self, runtime: Runtime, handle: Handle) -> Result<(), String> {
        let disks: Vec<Weak<SimDisk>> = self.disks.iter().map(Arc::downgrade).collect();
        drop((self, handle, runtime));
        let left = disks.iter().filter(|disk| disk.strong_count() > 0).count();
        if left > 0 { Err(format!("{left} devices are still in memory after all has ended")) } else { Ok(()) }
    }

    /// The disks' contents now.
    #[must_use]
    pub fn images(&self) -> Vec<Image> {
        self.disks.iter().map(|disk| disk.image()).collect()
    }
}
