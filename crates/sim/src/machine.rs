//! Simulated disks.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::Duration;

use cenote_spa::{DiskSpec, TopKind, TopSpec};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sim::disk::{Image, Latency, SimDisk, SimDiskOptions};
use cenote_taskq::{Handle, OpenOptions, Runtime};
use cenote_vdev::config::AllocationClass;
use cenote_vdev::disk::Disk;

/// The memory for buffers that the process keeps between simulated pools.
const BUFFERS_KEPT_BYTES: usize = 64 << 20;

/// The disks of a simulated runtime.
pub struct Machine {
    /// The disks, in their order.
    pub disks: Vec<Arc<SimDisk>>,
    /// Their paths.
    pub paths: Vec<PathBuf>,
    /// The size of each in bytes.
    pub size_bytes: u64,
}

/// The environment variable that names a deliberate bug ([`cenote_taskq::mutant`]), to learn if a test sees it.
pub const MUTANT_VARIABLE: &str = "CENOTE_MUTANT";

/// Makes the bug alive that the environment names, once in a process, for which a campaign may choose another one later.
fn obey_environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok(name) = std::env::var(MUTANT_VARIABLE) else { return };
        let mutant = Mutant::ALL.iter().find(|mutant| mutant.name() == name);
        let mutant = mutant.unwrap_or_else(|| panic!("{MUTANT_VARIABLE}={name}: no deliberate bug has this name"));
        assert!(mutant::set(Some(*mutant)), "deliberate bugs are only in builds with debug assertions");
    });
}

impl Machine {
    /// Adds `count` disks to a simulated runtime. A deliberate bug that [`MUTANT_VARIABLE`] names is alive from then on.
    ///
    /// # Panics
    /// The runtime is not simulated.
    #[must_use]
    pub fn new(runtime: &Runtime, count: usize, options: &SimDiskOptions) -> Self {
        obey_environment();
        cenote_taskq::buf::set_buffer_pool_floor_bytes(BUFFERS_KEPT_BYTES);
        let handle = runtime.handle();
        let sim = runtime.sim().expect("a simulated runtime");
        let paths: Vec<PathBuf> = (0..count).map(|index| Self::name(index).into()).collect();
        let disks = paths.iter().map(|path| sim.add_disk(&handle, path, options.clone())).collect();
        Self { disks, paths, size_bytes: options.size_bytes }
    }

    /// Gives the disks these contents, in their order.
    pub fn restore(&self, images: &[Image]) {
        self.disks.iter().zip(images).for_each(|(disk, image)| disk.restore(image));
    }

    /// The contents that the disks have at this moment.
    #[must_use]
    pub fn images(&self) -> Vec<Image> {
        self.disks.iter().map(|disk| disk.image()).collect()
    }

    /// Some of these disks, as a machine of their own.
    #[must_use]
    pub fn part(&self, disks: Range<usize>) -> Self {
        Self {
            disks: self.disks[disks.clone()].to_vec(),
            paths: self.paths[disks].to_vec(),
            size_bytes: self.size_bytes,
        }
    }

    /// A disk's name, as messages have it.
    #[must_use]
    pub fn name(index: usize) -> String {
        format!("/disk{index}")
    }

    /// The vdevs of a pool on the first of these disks.
    ///
    /// # Errors
    /// As [`tops`].
    pub async fn tops(&self, handle: &Handle, layout: &[(TopKind, usize)]) -> io::Result<Vec<TopSpec>> {
        tops(handle, layout, &self.paths).await
    }

    /// Copies the disks to sparse files in a folder, for programs outside of the simulation.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn images_in(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        export(&self.images(), self.size_bytes, dir)
    }
}

/// Writes what is on disks to sparse files.
pub(crate) fn export(images: &[Image], size_bytes: u64, dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for (at, image) in images.iter().enumerate() {
        let path = dir.join(format!("disk{at}"));
        let mut file = File::create(&path)?;
        file.set_len(size_bytes)?;
        for (offset_bytes, page) in image.pages() {
            file.seek(SeekFrom::Start(offset_bytes))?;
            file.write_all(page)?;
        }
        files.push(path);
    }
    Ok(files)
}

/// A disk of a pool, opened to be written.
///
/// # Errors
/// It is not there, or cannot be opened.
pub async fn disk(handle: &Handle, path: &Path) -> io::Result<DiskSpec> {
    let device = handle.open(path, OpenOptions { write: true, ..OpenOptions::default() }).await?;
    Ok(DiskSpec { disk: Disk::whole(device), path: path.display().to_string(), is_file: true })
}

/// The vdevs of a pool on the first of these disks.
///
/// # Errors
/// A disk cannot be opened.
///
/// # Panics
/// There are fewer disks than the layout needs.
pub async fn tops(handle: &Handle, layout: &[(TopKind, usize)], paths: &[PathBuf]) -> io::Result<Vec<TopSpec>> {
    let mut paths = paths.iter();
    let mut tops = Vec::new();
    for (kind, count) in layout {
        let mut disks = Vec::new();
        for _ in 0..*count {
            disks.push(disk(handle, paths.next().expect("as many disks as the layout needs")).await?);
        }
        tops.push(TopSpec { kind: *kind, class: AllocationClass::Normal, disks });
    }
    Ok(tops)
}

/// Disks that take their time, each time another, so that a cut meets writes and flushes on their way.
#[must_use]
pub fn slow() -> Latency {
    Latency {
        write: Duration::from_micros(100),
        flush: Duration::from_micros(400),
        jitter: Duration::from_micros(400),
        ..Latency::default()
    }
}
