//! Devices, layouts, and the moment in which the power goes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cenote_metaslab::Tunables;
use cenote_spa::write::{DiskSpec, TopKind, TopSpec};
use cenote_taskq::sim::disk::{Crash, Fault, Image, Latency, Request, RequestKind, SimDisk, SimDiskOptions};
use cenote_taskq::{Handle, OpenOptions, Rng, Runtime};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::disk::Disk;

const DISK_BYTES: u64 = 80 << 20;

/// A pool's layout: kinds with their numbers of disks.
type Tops = &'static [(TopKind, usize)];

const LAYOUTS: [Tops; 8] = [
    &[(TopKind::Single, 1)],
    &[(TopKind::Single, 1), (TopKind::Single, 1)],
    &[(TopKind::Mirror, 2)],
    &[(TopKind::Mirror, 2), (TopKind::Mirror, 2)],
    &[(TopKind::Raidz { parity: 1 }, 3)],
    &[(TopKind::Raidz { parity: 2 }, 4)],
    &[(TopKind::Raidz { parity: 1 }, 3), (TopKind::Single, 1)],
    &[(TopKind::Draid { parity: 1, data: Some(2), spares: 0 }, 4)],
];

/// What a life's devices are, and how its space is kept.
#[derive(Clone, Debug)]
pub struct Shape {
    layout: Tops,
    /// Sector size of the pool as a power of two.
    pub ashift: u32,
    /// Features that the pool is made without.
    pub disabled_features: Vec<String>,
    sector_bytes: u32,
    write_cache: bool,
    /// Limits so small that logs are flushed and maps condensed all the time.
    has_small_logs: bool,
    /// Blocks from this size on are split.
    ganged_from_bytes: Option<u64>,
    /// Devices say that they have flushed, and have not: nothing can be promised on those, and the verdict has to say so.
    pub flushes_are_lost: bool,
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
            sector_bytes: if ashift == 12 && rng.chance(1, 3) { 4096 } else { 512 },
            write_cache: !rng.chance(1, 8),
            has_small_logs: rng.chance(2, 3),
            // What is as small as can be cannot be split.
            ganged_from_bytes: rng.chance(1, 3).then(|| 1 << (13 + rng.below(3))),
            flushes_are_lost: false,
        }
    }

    /// In a few words.
    #[must_use]
    pub fn words(&self) -> String {
        let Self { layout, ashift, write_cache, has_small_logs, ganged_from_bytes, .. } = self;
        let logs = if self.disabled_features.is_empty() { "logs" } else { "no logs" };
        format!(
            "{layout:?} ashift {ashift}, {logs}{}, ganged from {ganged_from_bytes:?}, {}",
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

/// The devices of one stretch of a life, between two cuts.
pub struct Machine {
    disks: Vec<Arc<SimDisk>>,
    /// Where they are found.
    pub paths: Vec<PathBuf>,
}

impl Machine {
    /// Devices with this content; empty ones if there is none.
    #[must_use]
    pub fn new(runtime: &Runtime, shape: &Shape, images: &[Image]) -> Self {
        let handle = runtime.handle();
        let count = shape.layout.iter().map(|(_, disks)| disks).sum();
        let paths: Vec<PathBuf> = (0..count).map(|index| format!("/disk{index}").into()).collect();
        let latency = Latency {
            write: Duration::from_micros(100),
            flush: Duration::from_micros(400),
            jitter: Duration::from_micros(400),
            ..Latency::default()
        };
        let options = || SimDiskOptions {
            size_bytes: DISK_BYTES,
            sector_bytes: shape.sector_bytes,
            write_cache: shape.write_cache,
            latency,
            ..SimDiskOptions::default()
        };
        let add = |path| runtime.sim().map(|sim| sim.add_disk(&handle, path, options()));
        let disks: Vec<_> = paths.iter().filter_map(add).collect();
        disks.iter().zip(images).for_each(|(disk, image)| disk.restore(image));
        if shape.flushes_are_lost {
            let lost = |request: &Request| request.kind == RequestKind::Flush;
            disks.iter().for_each(|disk| {
                disk.set_faults(move |request, _| if lost(request) { Fault::Lost } else { Fault::None });
            });
        }
        Self { disks, paths }
    }

    /// The vdevs of a pool on them.
    ///
    /// # Errors
    /// A device cannot be opened.
    pub async fn tops(&self, handle: &Handle, shape: &Shape) -> Result<Vec<TopSpec>, String> {
        let mut paths = self.paths.iter();
        let mut tops = Vec::new();
        for (kind, count) in shape.layout {
            let mut disks = Vec::new();
            for path in paths.by_ref().take(*count) {
                let options = OpenOptions { write: true, ..OpenOptions::default() };
                let device = handle.open(path, options).await.map_err(|error| error.to_string())?;
                disks.push(DiskSpec { disk: Disk::whole(device), path: path.display().to_string(), is_file: true });
            }
            tops.push(TopSpec { kind: *kind, class: AllocationClass::Normal, disks });
        }
        Ok(tops)
    }

    /// The power goes. Each device keeps what it likes of what was not stable.
    pub fn cut(&self, rng: &mut Rng) {
        for disk in &self.disks {
            disk.crash(match rng.below(8) {
                0 => Crash::LoseAll,
                1 => Crash::KeepAll,
                _ => Crash::Random,
            });
        }
    }

    /// What is on them now.
    #[must_use]
    pub fn images(&self) -> Vec<Image> {
        self.disks.iter().map(|disk| disk.image()).collect()
    }
}
