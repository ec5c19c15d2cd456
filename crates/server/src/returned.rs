//! Devices of a pool in use that were gone and are back, under any path, hot spares and cache devices too: they are looked for, and taken back by themselves.
//!
//! While a pool lacks a device that it wants, the disks beside its other devices are looked at, and those of `/dev` if one of its devices is there.
//! A disk that is looked at is not read again for [`REST`], so that disks which sleep are not woken every time.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cenote_host::{DEFAULT_DIRS, search};
use cenote_spa::Pool;
use cenote_taskq::Instant;

use crate::error::Result;

/// A disk that was looked at is left alone for so long, unless it is another one now.
const REST: Duration = Duration::from_secs(60);
/// At one look of so many, spares and cache devices are looked for, too: nothing waits for them.
const AUXILIARIES_IN: u32 = 6;
/// Disks that are looked at, at once: in a folder of thousands of images the others come later.
const LOOKS_MAX: usize = 256;

/// The node of a disk: its device and number, and the device that it stands for.
type Node = (u64, u64, u64);

/// The disks that were looked at.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    seen: BTreeMap<PathBuf, (Node, Instant)>,
    looks: u32,
}

impl Lookout {
    /// Takes devices back that are there again. `own`: the paths of the pool's devices. The paths of those that are back.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    pub(crate) async fn take_back(&mut self, pool: &Pool, own: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let mut absent: BTreeSet<PathBuf> =
            pool.absent_devices().await?.into_iter().map(|(_, path)| path.into()).collect();
        self.looks = (self.looks + 1) % AUXILIARIES_IN;
        if self.looks == 0 {
            absent.extend(pool.absent_auxiliaries().await?.into_iter().map(|(_, path)| PathBuf::from(path)));
        }
        if absent.is_empty() {
            self.seen.clear();
            return Ok(Vec::new());
        }
        let now = pool.handle().now();
        self.seen.retain(|_, (_, at)| now - *at < REST);
        let used = own.iter().filter(|path| !absent.contains(*path)).collect::<BTreeSet<_>>();
        let mut folders: BTreeSet<&Path> = own.iter().chain(&absent).filter_map(|path| path.parent()).collect();
        if own.iter().any(|path| path.starts_with("/dev")) {
            folders.extend(DEFAULT_DIRS.map(Path::new));
        }
        let mut beside = Vec::new();
        for folder in folders.into_iter().filter(|folder| folder.is_dir()) {
            // A folder that cannot be listed hides none of the others.
            beside.extend(search(pool.handle(), &[folder.to_owned()]).await.unwrap_or_default());
        }
        let mut looks = Vec::new();
        for path in beside {
            let Ok(metadata) = std::fs::metadata(&path) else { continue };
            let node = (metadata.dev(), metadata.ino(), metadata.rdev());
            if used.contains(&path) || self.seen.get(&path).is_some_and(|(seen, _)| *seen == node) {
                continue;
            }
            self.seen.insert(path.clone(), (node, now));
            looks.push(path);
            if looks.len() == LOOKS_MAX {
                break;
            }
        }
        assert!(looks.len() <= LOOKS_MAX, "the others come later");
        if looks.is_empty() { Ok(Vec::new()) } else { Ok(pool.take_back(&looks).await?) }
    }
}
