//! The machine that figures belong to.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Names and values, for a person; with the device that `image` lies on, if there is one.
#[must_use]
pub fn machine(image: Option<&Path>) -> Vec<(String, String)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split(':').nth(1).unwrap_or_default().trim().to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all: Vec<(String, String)> = [
        ("processor", field(&cpus, "model name")),
        ("cores", cores.to_string()),
        ("memory", field(&read("/proc/meminfo"), "MemTotal")),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("load when it began", read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(", ")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    if let Some(device) = image.and_then(device_of) {
        all.push(("device of the image".into(), device));
    }
    all
}

/// The block device below a file, as the kernel describes it.
fn device_of(path: &Path) -> Option<String> {
    let device = std::fs::metadata(path).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let folder = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // A partition's queue is that of the disk above it.
    let disk = if folder.join("queue").exists() { folder.clone() } else { folder.parent()?.to_owned() };
    let word = |name: &str| std::fs::read_to_string(disk.join(name)).unwrap_or_default().trim().to_owned();
    let name = disk.file_name()?.to_string_lossy().into_owned();
    let kind = if word("queue/rotational") == "1" { "rotating" } else { "solid-state" };
    let model = word("device/model");
    let scheduler = word("queue/scheduler");
    Some(format!("{name}, {kind}, scheduler {scheduler}{}{model}", if model.is_empty() { "" } else { ", " }))
}
