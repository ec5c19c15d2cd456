//! Asking the real `zdb` about a pool, without a kernel module.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::gpt;

/// Where `zdb` is, if it is installed. Debian keeps it in a folder that is not on everyone's path.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// A pool's devices as `zdb` can take them: a folder of vdevs, partitions cut out into files of their own.
#[derive(Debug)]
pub struct Devices {
    dir: PathBuf,
    /// Holds what was cut out, for as long as it is needed.
    _cut: Option<TempDir>,
}

impl Devices {
    /// Images of one pool. They must lie in one folder that holds nothing else.
    pub fn of(images: &[PathBuf]) -> Result<Devices> {
        let first = images.first().context("no images")?;
        let dir = first.parent().context("an image has no folder")?.to_owned();
        let mut cut = None;
        for image in images {
            // Only a partitioned image needs its bytes in memory.
            if !begins_with_gpt(image)? {
                continue;
            }
            let bytes = fs::read(image)?;
            let Some(part) = gpt::first_partition(&bytes) else { bail!("{} has no partition", image.display()) };
            if cut.is_none() {
                cut = Some(tempfile::tempdir()?);
            }
            let target = cut.as_ref().expect("just made").path().join(image.file_name().expect("an image has a name"));
            fs::write(target, &bytes[part])?;
        }
        let dir = cut.as_ref().map_or(dir, |cut| cut.path().to_owned());
        Ok(Devices { dir, _cut: cut })
    }

    /// The folder to give to `-p`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

fn begins_with_gpt(image: &Path) -> Result<bool> {
    use std::io::Read;
    let mut head = Vec::new();
    fs::File::open(image)?.take(1024).read_to_end(&mut head)?;
    Ok(head.get(512..520) == Some(b"EFI PART"))
}

/// The output of a run of `zdb`.
#[derive(Debug)]
pub struct Output {
    /// Both output channels, one after the other.
    pub text: String,
    /// The exit status, where there was one.
    pub status: Option<i32>,
}

/// A library that makes `zdb` end when its work is done. `zdb -bcc` of a small pool takes a tenth of a second, and then six, two of them of
/// a processor, to take its empty cache apart in `kernel_fini`: after its last word, and with its status decided.
const WITHOUT_TEARDOWN: &str = "void kernel_fini(void) {}";

/// Where that library is; nowhere, and `zdb` is as slow as it is, where there is no C compiler.
fn without_teardown() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let make = || -> Option<PathBuf> {
        let name = format!("zdb-without-teardown-{}.so", std::env::consts::ARCH);
        let target = crate::repository_root().join("target");
        let library = target.join(name);
        // The loader splits a list at these.
        if library.to_str()?.contains([' ', ':']) {
            return None;
        }
        if !library.is_file() {
            fs::create_dir_all(&target).ok()?;
            let folder = tempfile::tempdir_in(&target).ok()?;
            let [source, made] = ["fini.c", "fini.so"].map(|name| folder.path().join(name));
            fs::write(&source, WITHOUT_TEARDOWN).ok()?;
            let mut cc = Command::new("cc");
            cc.args(["-shared", "-fPIC", "-o"]).arg(&made).arg(&source).stdin(Stdio::null());
            cc.output().ok().filter(|output| output.status.success())?;
            // Another process may do the same at this moment.
            fs::rename(made, &library).ok()?;
        }
        Some(library)
    };
    LIBRARY.get_or_init(make).as_deref()
}

/// `zdb`, if it is installed, which ends as soon as its work is done.
pub fn command() -> Option<Command> {
    let mut command = Command::new(program("zdb")?);
    if let Some(library) = without_teardown() {
        command.env("LD_PRELOAD", library);
    }
    command.stdin(Stdio::null());
    Some(command)
}

/// `zdb -e -p DIR OPTIONS POOL`.
pub fn run(devices: &Devices, options: &[&str], pool: &str) -> Result<Output> {
    let output = command()
        .context("zdb is not installed")?
        .arg("-e")
        .arg("-p")
        .arg(devices.dir())
        .args(options)
        .arg(pool)
        .output()
        .context("cannot run zdb")?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok(Output { text, status: output.status.code() })
}

/// The figures of `zdb -bcc` that another account of the same pool must agree with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockStatistics {
    /// Block pointers visited.
    pub bp_count: u64,
    /// Sum of logical sizes.
    pub bp_logical_bytes: u64,
    /// Sum of physical sizes.
    pub bp_physical_bytes: u64,
    /// Sum of allocated sizes.
    pub bp_allocated_bytes: u64,
    /// Allocated in the normal class.
    pub normal_bytes: u64,
    /// Whether space maps and block pointers agree.
    pub leak_free: bool,
}

impl BlockStatistics {
    /// Reads the figures from `zdb -bcc`'s text.
    pub fn parse(text: &str) -> Option<BlockStatistics> {
        let figure = |label: &str| -> Option<u64> {
            let line = text.lines().find(|line| line.trim_start().starts_with(label))?;
            line.split_once(':')?.1.split_whitespace().next()?.parse().ok()
        };
        Some(BlockStatistics {
            bp_count: figure("bp count:")?,
            bp_logical_bytes: figure("bp logical:")?,
            bp_physical_bytes: figure("bp physical:")?,
            bp_allocated_bytes: figure("bp allocated:")?,
            normal_bytes: figure("Normal class:")?,
            leak_free: text.contains("No leaks (block sum matches space maps exactly)"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Golden;

    #[test]
    fn block_statistics_are_read_from_recorded_text() {
        for theme in Golden::selection().unwrap().themes().unwrap() {
            let text = theme.zdb_text().unwrap();
            let statistics = BlockStatistics::parse(&text).unwrap_or_else(|| panic!("{}", theme.name()));
            assert!(statistics.bp_count > 0);
            assert!(statistics.bp_allocated_bytes >= statistics.normal_bytes / 2);
        }
    }

    #[test]
    fn zdb_agrees_with_its_own_record_of_a_partitioned_pool() {
        if program("zdb").is_none() {
            eprintln!("left out: zdb is not installed");
            return;
        }
        let theme = Golden::selection().unwrap().theme("basic_gpt").unwrap();
        let devices = Devices::of(&theme.unpacked().unwrap().images).unwrap();
        let output = run(&devices, &["-b"], &theme.manifest().unwrap().pools[0]).unwrap();
        let now = BlockStatistics::parse(&output.text).unwrap_or_else(|| panic!("{}", output.text));
        assert_eq!(Some(now), BlockStatistics::parse(&theme.zdb_text().unwrap()));
    }
}
