//! The pools under test, in memory once, and what a walk of each whole pool reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cenote_taskq::buf::Block;
use cenote_testkit::Golden;
use cenote_zio::Bookmark;

const PAGE_BYTES: usize = 4096;

/// One device's content.
pub struct Image {
    /// Its path in the simulation.
    pub path: PathBuf,
    /// Its bytes.
    pub content: Block,
    /// Where it is not zero, by page.
    pub used_pages: Vec<u64>,
    /// Where labels stand: the start of the partition or device, and each label's address from there.
    pub labels: Vec<(u64, u64)>,
}

/// A block that a walk of the whole pool reads.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Which.
    pub bookmark: Bookmark,
    /// Its object type.
    pub object_type: u8,
}

/// A pool.
pub struct PoolImages {
    /// The theme's name.
    pub name: String,
    /// The devices.
    pub images: Vec<Image>,
    /// Keys of encrypted datasets.
    pub keys: Vec<(String, Vec<u8>)>,
    /// Every block that a clean walk reads, by object type, level (data or above) and whether the MOS has it, so that
    /// rare kinds are not lost among the many.
    pub targets: BTreeMap<(u8, bool, bool), Vec<Target>>,
    /// Steps that the clean walk took.
    pub clean_steps: u64,
}

/// Themes left out by default: they differ from others in size only.
const LARGE: &[&str] = &["bigdirs", "recordsizes", "compression"];

/// Loads the themes named, or all that are not large.
pub fn load(names: &[String]) -> Result<Vec<PoolImages>> {
    let mut pools = Vec::new();
    for theme in Golden::find()?.themes()? {
        let wanted = if names.is_empty() {
            !LARGE.contains(&theme.name())
        } else {
            names.iter().any(|name| name == theme.name())
        };
        if !wanted {
            continue;
        }
        let manifest = theme.manifest()?;
        let mut images = Vec::new();
        for path in theme.unpacked()?.images {
            images.push(image(theme.name(), &path)?);
        }
        let keys = manifest.keys.iter().map(|(name, key)| (name.clone(), key.bytes())).collect();
        let name = theme.name().to_owned();
        pools.push(PoolImages { name, images, keys, targets: BTreeMap::new(), clean_steps: 0 });
    }
    anyhow::ensure!(!pools.is_empty(), "no such golden pools");
    Ok(pools)
}

/// Reads an image. Pages of zeros are not touched, so they take no memory.
fn image(theme: &str, path: &Path) -> Result<Image> {
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    let len = usize::try_from(file.metadata()?.len())?;
    let mut content = vec![0; len];
    let mut used_pages = Vec::new();
    let mut page = vec![0; PAGE_BYTES];
    let mut at = 0;
    while at < len {
        let count = PAGE_BYTES.min(len - at);
        file.read_exact(&mut page[..count])?;
        if page[..count].iter().any(|byte| *byte != 0) {
            content[at..at + count].copy_from_slice(&page[..count]);
            used_pages.push((at / PAGE_BYTES) as u64);
        }
        at += count;
    }
    let name = path.file_name().unwrap_or_default();
    let path = Path::new("/").join(theme).join(name);
    Ok(Image { path, content: Block::from(content), used_pages, labels: Vec::new() })
}
