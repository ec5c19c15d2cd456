//! The loads: each makes what it wants in a folder of its own, measures, and removes that again.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::databases;

const BLOCK_BYTES: usize = 4096;

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// `stat` of names that the kernel has forgotten.
    LookUp,
    /// `stat` of names that are not there and were never asked for.
    Absent,
    /// `fchmod` of one open file.
    Fchmod,
    /// `pwrite` of whole pages of one open file that is there in full.
    Pwrite,
    /// `mkdir` in one directory.
    Mkdir,
    /// A file made, written and closed, in one directory.
    Create,
    /// A directory listed, and each name looked at.
    StatWalk,
    /// Pages of a large file at random.
    RandomWrite,
    /// dbench's own load.
    Dbench,
    /// SQLite's transactions, of one client.
    Sqlite,
    /// PostgreSQL's, of four.
    Postgresql,
}

impl Work {
    /// Whether more is better.
    pub(super) const fn is_rate(self) -> bool {
        !matches!(self, Self::LookUp | Self::Absent | Self::Fchmod | Self::Pwrite | Self::Mkdir)
    }

    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::LookUp | Self::Absent | Self::Fchmod | Self::Pwrite | Self::Mkdir => "us",
            Self::Create | Self::StatWalk | Self::RandomWrite | Self::Sqlite | Self::Postgresql => "a second",
            Self::Dbench => "MB/s",
        }
    }

    /// Whether its time is mostly that of syncs.
    pub(super) const fn syncs(self) -> bool {
        matches!(self, Self::Sqlite | Self::Postgresql)
    }

    /// The reason why it cannot be measured on this machine.
    pub(super) fn missing(self) -> Option<&'static str> {
        match self {
            Self::Dbench => (!has_dbench()).then_some("dbench is not installed"),
            Self::Sqlite => databases::sqlite_missing(),
            Self::Postgresql => databases::postgresql_missing(),
            _ => None,
        }
    }
}

/// A load in a tree.
pub(super) struct Workload<'a> {
    /// The tree.
    pub(super) at: &'a Path,
    pub(super) round: u32,
    pub(super) quick: bool,
    pub(super) seconds: f64,
}

fn has_dbench() -> bool {
    Command::new("dbench").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Has the kernel forget names and inodes, so far as nothing is dirty; pages stay.
fn forget_names() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "2").context("/proc/sys/vm/drop_caches")
}

/// Microseconds of each of `count` calls.
fn each(count: usize, mut call: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    for index in 0..count {
        call(index)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / count as f64)
}

fn a_second(us: f64) -> f64 {
    1e6 / us
}

/// A file of so many bytes, none of them zero.
fn filled(path: &Path, bytes: usize) -> Result<File> {
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    let piece = vec![0x5a; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let len = left.min(piece.len());
        file.write_all(&piece[..len])?;
        left -= len;
    }
    Ok(file)
}

fn create_files(folder: &Path, count: usize) -> Result<f64> {
    let data = [0xa5; BLOCK_BYTES];
    each(count, |index| {
        let path = folder.join(format!("file {index}"));
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(file.write_all(&data)?)
    })
}

/// The next of a series of numbers without a pattern.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

impl Workload<'_> {
    fn count(&self, count: usize) -> usize {
        if self.quick { count / 4 } else { count }
    }

    /// Runs the load; returns its result, in its unit.
    pub(super) fn run(&self, work: Work) -> Result<f64> {
        let folder: PathBuf = self.at.join(format!("{work:?} {}", self.round));
        fs::create_dir(&folder)?;
        let found = self.measure(work, &folder)?;
        fs::remove_dir_all(&folder)?;
        Ok(found)
    }

    fn measure(&self, work: Work, folder: &Path) -> Result<f64> {
        match work {
            Work::LookUp => {
                let count = self.count(4000);
                create_files(folder, count)?;
                forget_names()?;
                // The way there is no part of it.
                fs::metadata(folder)?;
                each(count, |index| {
                    fs::metadata(folder.join(format!("file {index}")))?;
                    Ok(())
                })
            }
            Work::Absent => each(self.count(20_000), |index| {
                ensure!(fs::metadata(folder.join(format!("none {index}"))).is_err(), "it is there");
                Ok(())
            }),
            Work::Fchmod => {
                let file = filled(&folder.join("f"), BLOCK_BYTES)?;
                let modes = [0o600, 0o644].map(fs::Permissions::from_mode);
                each(self.count(20_000), |index| Ok(file.set_permissions(modes[index % 2].clone())?))
            }
            Work::Pwrite => {
                let blocks = 256;
                let file = filled(&folder.join("f"), blocks * BLOCK_BYTES)?;
                let data = [0xa5; BLOCK_BYTES];
                each(self.count(20_000), |index| Ok(file.write_all_at(&data, (index % blocks * BLOCK_BYTES) as u64)?))
            }
            Work::Mkdir => each(self.count(4000), |index| Ok(fs::create_dir(folder.join(format!("dir {index}")))?)),
            Work::Create => Ok(a_second(create_files(folder, self.count(8000))?)),
            Work::StatWalk => {
                let count = self.count(20_000);
                create_files(folder, count)?;
                forget_names()?;
                let (start, mut seen) = (Instant::now(), 0);
                for entry in fs::read_dir(folder)? {
                    let bytes = entry?.metadata()?.len();
                    ensure!(bytes == BLOCK_BYTES as u64, "a file of {bytes} bytes");
                    seen += 1;
                }
                ensure!(seen == count, "{seen} of {count} names");
                Ok(seen as f64 / start.elapsed().as_secs_f64())
            }
            Work::RandomWrite => {
                let bytes = if self.quick { 64 << 20 } else { 256 << 20 };
                let file = filled(&folder.join("f"), bytes)?;
                file.sync_all()?;
                let data = [0xa5; BLOCK_BYTES];
                let mut state = 0x9e37_79b9_7f4a_7c15 + u64::from(self.round);
                let (start, mut count) = (Instant::now(), 0_u64);
                while start.elapsed().as_secs_f64() < self.seconds {
                    for _ in 0..64 {
                        let block = next(&mut state) % (bytes / BLOCK_BYTES) as u64;
                        file.write_all_at(&data, block * BLOCK_BYTES as u64)?;
                    }
                    count += 64;
                }
                Ok(count as f64 / start.elapsed().as_secs_f64())
            }
            Work::Sqlite => databases::sqlite(folder, self.count(8000)),
            Work::Postgresql => databases::postgresql(folder, self.seconds),
            Work::Dbench => {
                let seconds = (self.seconds.ceil() as u64).max(3).to_string();
                let output = Command::new("dbench").arg("-D").arg(folder).args(["-t", &seconds, "4"]).output()?;
                let said = String::from_utf8_lossy(&output.stdout);
                ensure!(output.status.success(), "dbench: {said}{}", String::from_utf8_lossy(&output.stderr));
                let rate = said.lines().rev().find_map(|line| line.strip_prefix("Throughput ")?.split(' ').next());
                Ok(rate.context("dbench says no throughput")?.parse()?)
            }
        }
    }
}
