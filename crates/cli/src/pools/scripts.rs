//! Scripts that `zpool status` and `zpool iostat` run for each device (`-c`), as OpenZFS's tools run them.
//!
//! They lie in `~/.zpool.d` and `/etc/zfs/zpool.d`, or where ZPOOL_SCRIPTS_PATH says, and are run by whoever asks, never by the process that has
//! the pool; for root only with ZPOOL_SCRIPTS_AS_ROOT. A script's environment names the device: VDEV_PATH, VDEV_UPATH (the disk below it),
//! VDEV_ENC_SYSFS_PATH (its place in an enclosure), POOL_NAME.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use cenote_listing::ScriptColumns;

/// The folder of a system's scripts.
const SYSTEM: &str = "/etc/zfs/zpool.d";
/// How many scripts run at once.
const AT_ONCE: usize = 16;

/// Whether a variable is set to a word for yes, as OpenZFS reads it; `None` if it is not there.
fn switch(name: &str) -> Option<bool> {
    let value = std::env::var_os(name)?;
    Some(["1", "YES", "yes", "ON", "on"].iter().any(|yes| value == *yes))
}

/// Refuses where scripts are not to be run.
///
/// # Errors
/// ZPOOL_SCRIPTS_ENABLED says no, or it is root who asks.
pub(crate) fn check() -> Result<()> {
    if switch("ZPOOL_SCRIPTS_ENABLED") == Some(false) {
        bail!("Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED.");
    }
    if rustix::process::geteuid().is_root() && switch("ZPOOL_SCRIPTS_AS_ROOT") != Some(true) {
        bail!("Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.");
    }
    Ok(())
}

/// The folders, in the order in which they are searched.
fn folders() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("ZPOOL_SCRIPTS_PATH") {
        return std::env::split_paths(&path).collect();
    }
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".zpool.d"));
    home.into_iter().chain([SYSTEM.into()]).collect()
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The scripts that there are, a line for each folder and each of them.
pub(crate) fn available(verb: &str) -> String {
    let mut text = format!("Available 'zpool {verb} -c' commands:\n");
    for folder in folders() {
        let found = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = found
            .filter(|entry| is_program(&entry.path()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names.iter().for_each(|name| text.push_str(&format!("\t{name}\n")));
    }
    text
}

/// The disk below a path: what its links lead to, without the number of a partition.
fn underlying(path: &str) -> String {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // A partition lies in the folder of its disk.
    let of_disk = std::fs::canonicalize(Path::new("/sys/class/block").join(&name)).ok();
    let disk = of_disk.filter(|at| at.join("partition").exists()).and_then(|at| {
        let disk = at.parent()?.file_name()?.to_string_lossy().into_owned();
        Some(format!("/dev/{disk}"))
    });
    disk.unwrap_or_else(|| real.display().to_string())
}

/// The folder of a disk's place in an enclosure; empty if it has none.
fn enclosure(disk: &str) -> String {
    let name = Path::new(disk).file_name().unwrap_or_default().to_os_string();
    let device = Path::new("/sys/block").join(name).join("device");
    let entries = std::fs::read_dir(device).into_iter().flatten().flatten();
    let mut places = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("enclosure_device"));
    places
        .find_map(|entry| std::fs::canonicalize(entry.path()).ok())
        .map_or_else(String::new, |path| path.display().to_string())
}

/// Runs scripts (names with commas between them) for devices, each a pool and a path. One that fails, or is none, tells nothing.
pub(crate) fn run(scripts: &str, devices: &[(String, String)]) -> ScriptColumns {
    let names = scripts.split(',').filter(|name| !name.is_empty() && !name.contains('/'));
    let folders = folders();
    let find = |name: &str| folders.iter().map(|folder| folder.join(name)).find(|path| is_program(path));
    let programs: Vec<PathBuf> = names.filter_map(find).collect();
    let mut found = ScriptColumns::default();
    for some in devices.chunks(AT_ONCE) {
        for program in &programs {
            let running: Vec<_> = some.iter().map(|(pool, path)| begin(program, pool, path)).collect();
            for ((pool, path), child) in some.iter().zip(running) {
                let output = child.and_then(|child| child.wait_with_output().ok());
                let told = output.filter(|output| output.status.success()).map(|output| output.stdout);
                found.add(pool, path, &String::from_utf8_lossy(&told.unwrap_or_default()));
            }
        }
    }
    found
}

fn begin(program: &Path, pool: &str, path: &str) -> Option<std::process::Child> {
    let disk = underlying(path);
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/bin:/sbin:/usr/bin:/usr/sbin").env("POOL_NAME", pool).env("VDEV_PATH", path);
    command.env("VDEV_ENC_SYSFS_PATH", enclosure(&disk)).env("VDEV_UPATH", disk);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()
}
