//! A search for pools, and its hints where it found none: devices that could not be opened, and files that hold something else.

use std::path::{Path, PathBuf};

use cenote_format::foreign::{Foreign, ForeignKind};
use cenote_spa::{FoundPool, SkipReason, Skipped, find, foreign};
use cenote_taskq::{Handle, OpenOptions, boxed};

use super::Session;
use crate::error::{Result, refused};

/// Files and devices that are told of one by one; there may be thousands.
const TOLD_MAX: usize = 8;

/// The result of a search for pools.
pub struct Found {
    /// The pools.
    pub pools: Vec<FoundPool>,
    skipped: Vec<Skipped>,
    /// Files and devices that were named themselves, not by a folder that they are in.
    named: Vec<PathBuf>,
}

impl Found {
    /// How many devices could not be opened for want of permission.
    pub fn denied(&self) -> usize {
        self.denied_paths().count()
    }

    fn denied_paths(&self) -> impl Iterator<Item = &Path> {
        let is_denied = |skipped: &&Skipped| matches!(skipped.reason, SkipReason::Denied);
        self.skipped.iter().filter(is_denied).map(|skipped| skipped.path.as_path())
    }

    /// Why there may be less than was hoped for, a line each.
    #[boxed]
    pub async fn hints(&self, handle: &Handle) -> Vec<String> {
        let mut lines = Vec::new();
        let (count, first) = (self.denied(), self.denied_paths().next());
        if let Some(first) = first {
            let devices = if count == 1 { "device" } else { "devices" };
            let place = format!("{}'{}'", if count == 1 { "" } else { "first " }, first.display());
            lines.push(format!(
                "{count} {devices} could not be opened: permission denied ({place}); run this as root, or as a user who may read"
            ));
        }
        for path in self.named.iter().filter(|path| self.pools.is_empty() && self.is_skipped(path)).take(TOLD_MAX) {
            lines.push(no_label(handle, path).await);
        }
        lines
    }

    fn is_skipped(&self, path: &Path) -> bool {
        self.skipped.iter().any(|skipped| skipped.path == path)
    }
}

impl Session {
    /// Looks for pools where it was said, or in the usual places.
    ///
    /// # Errors
    /// A file or device that was named itself cannot be opened.
    #[boxed]
    pub async fn search_pools(&self) -> Result<Found> {
        let paths = self.paths().await?;
        let mut named = self.options.paths.clone();
        named.retain(|path| paths.contains(path));
        let (pools, skipped) = find(self.handle(), &paths).await;
        for Skipped { path, reason } in skipped.iter().filter(|skipped| named.contains(&skipped.path)) {
            match reason {
                SkipReason::NoLabel => {}
                SkipReason::Denied => {
                    return Err(refused(format!("cannot open '{}': permission denied", path.display())));
                }
                SkipReason::Failed(reason) => {
                    return Err(refused(format!("cannot open '{}': {reason}", path.display())));
                }
            }
        }
        Ok(Found { pools, skipped, named })
    }
}

/// A line that says of a file or device without labels what it holds instead.
#[boxed]
pub async fn no_label(handle: &Handle, path: &Path) -> String {
    let name = path.display();
    let held = match handle.open(path, OpenOptions::default()).await {
        Ok(device) => foreign(&device).await.unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    match held.first() {
        Some(found) => format!("'{name}' {found}{}", advice(path, *found)),
        None => format!("'{name}' has no label of a pool"),
    }
}

/// How to get at a raw image.
fn advice(path: &Path, found: Foreign) -> String {
    let path = path.display();
    match (found.kind, found.name) {
        (ForeignKind::Container, "simg") => format!(": convert it with 'simg2img {path} {path}.raw'"),
        (ForeignKind::Container, "ewf") => format!(": convert it with 'ewfexport -f raw {path}'"),
        (ForeignKind::Container, _) => format!(": convert it with 'qemu-img convert -O raw {path} {path}.raw'"),
        (ForeignKind::Packed, "zstd") => format!(": unpack it with 'zstd -d {path}'"),
        (ForeignKind::Packed, "gzip") => format!(": unpack it with 'gzip -dk {path}'"),
        (ForeignKind::Packed, "xz") => format!(": unpack it with 'xz -dk {path}'"),
        (ForeignKind::Packed, "bzip2") => format!(": unpack it with 'bzip2 -dk {path}'"),
        (ForeignKind::Packed, "lz4") => format!(": unpack it with 'lz4 -d {path}'"),
        _ => String::new(),
    }
}
