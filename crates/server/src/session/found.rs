//! A search for pools, and its hints if it found none: devices that could not be opened, and files that contain something else.

use std::path::{Path, PathBuf};

use cenote_format::foreign::{Foreign, ForeignKind};
use cenote_spa::{FoundPool, SkipReason, Skipped, find, foreign};
use cenote_taskq::{Handle, OpenOptions, boxed};

use super::Session;
use crate::error::{Result, refused};

/// The maximum number of files and devices that hints name; there may be thousands.
const TOLD_MAX: usize = 8;

/// The result of a search for pools.
pub struct Found {
    /// The pools.
    pub pools: Vec<FoundPool>,
    skipped: Vec<Skipped>,
    /// Files and devices that were named directly, not by their folder.
    named: Vec<PathBuf>,
    /// Folders were named to search in.
    is_of_folders: bool,
}

impl Found {
    /// The number of devices that could not be opened for lack of permission.
    pub fn denied(&self) -> usize {
        self.denied_paths().count()
    }

    fn denied_paths(&self) -> impl Iterator<Item = &Path> {
        let is_denied = |skipped: &&Skipped| matches!(skipped.reason, SkipReason::Denied);
        self.skipped.iter().filter(is_denied).map(|skipped| skipped.path.as_path())
    }

    /// Possible reasons why pools are missing, one line each.
    #[boxed]
    pub async fn hints(&self, handle: &Handle) -> Vec<String> {
        let mut lines = Vec::new();
        let (count, first) = (self.denied(), self.denied_paths().next());
        if let Some(first) = first {
            let devices = if count == 1 { "device" } else { "devices" };
            let place = format!("{}'{}'", if count == 1 { "" } else { "first " }, first.display());
            let advice = match rustix::process::geteuid().is_root() {
                true => "this system keeps them from root too, as containers do",
                false => "run this as root, or as a user who may read",
            };
            lines.push(format!("{count} {devices} could not be opened: permission denied ({place}); {advice}"));
        }
        let mut told = 0;
        for path in self.skipped.iter().filter(|skipped| skipped.reason == SkipReason::NoLabel).map(|it| &it.path) {
            let is_named = self.named.contains(path);
            // In a folder, only files that may contain a pool are reported.
            if told == TOLD_MAX || !(is_named || self.is_of_folders) {
                continue;
            }
            let held = content(handle, path).await;
            // A folder may be full of archives that have nothing to do with pools.
            let is_packed = |found: &Foreign| match found.kind {
                ForeignKind::Container => true,
                ForeignKind::Packed => is_called_image(path),
                _ => false,
            };
            if held.first().is_some_and(is_packed) || is_named && self.pools.is_empty() {
                lines.push(describe(path, held.first()));
                told += 1;
            }
        }
        lines
    }
}

impl Session {
    /// Searches for pools in the given places, or in the usual ones.
    ///
    /// # Errors
    /// A file or device that was named directly cannot be opened.
    #[boxed]
    pub async fn search_pools(&self) -> Result<Found> {
        let paths = self.paths().await?;
        // The paths searched are absolute.
        let given: Vec<PathBuf> = self.options.paths.iter().filter_map(|path| std::path::absolute(path).ok()).collect();
        let (named, folders): (Vec<_>, Vec<_>) = given.into_iter().partition(|path| paths.contains(path));
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
        Ok(Found { pools, skipped, named, is_of_folders: !folders.is_empty() })
    }
}

/// A line that says what a file or device without labels contains instead.
#[boxed]
pub async fn no_label(handle: &Handle, path: &Path) -> String {
    describe(path, content(handle, path).await.first())
}

async fn content(handle: &Handle, path: &Path) -> Vec<Foreign> {
    match handle.open(path, OpenOptions::default()).await {
        Ok(device) => foreign(&device).await.unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

fn describe(path: &Path, found: Option<&Foreign>) -> String {
    let name = path.display();
    match found {
        Some(found) => format!("'{name}' {found}{}", advice(path, *found)),
        None => format!("'{name}' has no label of a pool"),
    }
}

/// True if a compressed file is named like a disk image: `disk.img.gz`.
fn is_called_image(path: &Path) -> bool {
    let stem = path.file_stem().map(Path::new);
    let extension = stem.and_then(Path::extension).and_then(|text| text.to_str()).unwrap_or_default();
    ["img", "raw", "dd", "image", "disk", "bin", "zfs", "zpool"]
        .iter()
        .any(|known| extension.eq_ignore_ascii_case(known))
}

/// Advice on how to obtain a raw image.
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
