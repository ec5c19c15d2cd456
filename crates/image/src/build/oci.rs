//! OCI image layouts: which image, and its layers, one over the other.
//!
//! ```text
//! DIR/oci-layout   DIR/index.json ─► manifest (of a platform; perhaps by way of another index) ─► config, layers
//! DIR/blobs/sha256/…   each under its own hash
//! ```
//!
//! The maker of a layout is not trusted: directories are held open, blobs are regular files in them and no links, and nothing is
//! read beyond the size that the descriptor gives.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use serde::Deserialize;

use super::spool::{self, Room};
use super::tarball::{Whiteouts, add_archive};
use super::tree::FileTree;
use crate::error::{Context as _, ImageError, Result, malformed, too_large, unsupported};

/// The largest index or manifest, in bytes: the limit of registries.
const DOCUMENT_MAX_BYTES: u64 = 4 << 20;
/// Indexes of indexes at most.
const DEPTH_MAX: u32 = 4;
/// The annotation with an image's tag.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// A reference to a blob.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Debug, Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    layers: Vec<Descriptor>,
}

/// Which image of a layout is meant.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Its tag.
    pub tag: Option<String>,
    /// `OS/ARCHITECTURE`; this machine's if nothing is said and there is more than one.
    pub platform: Option<String>,
}

/// Whether a directory is an image layout.
pub fn is_layout(dir: &Path) -> bool {
    dir.join("oci-layout").is_file() && dir.join("index.json").is_file()
}

/// Takes all layers of an image into a tree. `progress` is told of bytes that are unpacked.
///
/// # Errors
/// The layout has no such image, or something in it is damaged.
pub fn add_image(
    tree: &mut FileTree,
    dir: &Path,
    choice: &Choice,
    room: &mut Room,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let layout = Layout::open(dir)?;
    let index = spool::regular(&layout.root, "index.json").and_then(|file| document(file, DOCUMENT_MAX_BYTES));
    let index: Index = index.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)).context("index.json")?;
    let manifest = choose(&layout, index, choice, 0)?;
    for layer in &manifest.layers {
        if !layer.media_type.contains("tar") {
            return Err(unsupported(format!("a layer of the type '{}'", layer.media_type)));
        }
        let (file, hash) = layout.open_blob(layer)?;
        let file = spool::blob(file, &hash, layer.size, room, progress);
        let file = file.with_context(|| format!("layer {}", layer.digest))?;
        add_archive(tree, file, Whiteouts::Apply).with_context(|| format!("layer {}", layer.digest))?;
    }
    Ok(())
}

/// A layout whose directories are held open.
struct Layout {
    root: File,
    blobs: File,
}

impl Layout {
    fn open(dir: &Path) -> Result<Self> {
        let root = File::open(dir)?;
        let enter = |at: &File, name: &str| -> Result<File> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = openat(at, name, flags, Mode::empty()).map_err(std::io::Error::from);
            Ok(opened.with_context(|| format!("the directory '{name}' of the layout"))?.into())
        };
        let blobs = enter(&enter(&root, "blobs")?, "sha256")?;
        Ok(Self { root, blobs })
    }

    /// A blob's file, and the hash that it should have.
    fn open_blob(&self, blob: &Descriptor) -> Result<(File, Vec<u8>)> {
        let (name, hash) = place(blob)?;
        let file = spool::regular(&self.blobs, name).with_context(|| format!("the blob {}", blob.digest))?;
        Ok((file, hash))
    }
}

/// All of a file of no more than `size_bytes`.
fn document(file: File, size_bytes: u64) -> Result<Vec<u8>> {
    if size_bytes > DOCUMENT_MAX_BYTES || file.metadata()?.len() > size_bytes {
        return Err(too_large("is too large for an index, or larger than its descriptor says"));
    }
    let mut bytes = Vec::new();
    file.take(size_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A blob's file name, and its hash.
fn place(blob: &Descriptor) -> Result<(&str, Vec<u8>)> {
    let Some(hex) = blob.digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64) else {
        return Err(unsupported(format!("a digest of the form '{}'", blob.digest)));
    };
    let hash: Option<Vec<u8>> =
        (0..32).map(|at| hex.get(2 * at..2 * at + 2).and_then(|byte| u8::from_str_radix(byte, 16).ok())).collect();
    let hash = hash.with_context(|| format!("'{}' is no digest", blob.digest))?;
    Ok((hex, hash))
}

fn read_blob(layout: &Layout, blob: &Descriptor) -> Result<Vec<u8>> {
    use sha2::{Digest as _, Sha256};
    let (file, hash) = layout.open_blob(blob)?;
    let bytes = document(file, blob.size).with_context(|| format!("the blob {}", blob.digest))?;
    if Sha256::digest(&bytes).as_slice() != hash {
        return Err(malformed(format!("the blob {} is damaged: its SHA-256 is not its name", blob.digest)));
    }
    Ok(bytes)
}

fn choose(layout: &Layout, index: Index, choice: &Choice, depth: u32) -> Result<Manifest> {
    let mut found = index.manifests;
    if let Some(tag) = choice.tag.as_ref().filter(|_| depth == 0) {
        found.retain(|image| image.annotations.get(REF_NAME) == Some(tag));
    }
    if found.len() > 1 || choice.platform.is_some() {
        let wanted = choice.platform.clone().unwrap_or_else(this_platform);
        let is_wanted = |image: &Descriptor| {
            image
                .platform
                .as_ref()
                .is_none_or(|platform| format!("{}/{}", platform.os, platform.architecture) == wanted)
        };
        // An index states an image's platform beside the manifest; one without it may lead to several.
        let platforms: Vec<String> = found.iter().map(described).collect();
        found.retain(is_wanted);
        if found.is_empty() {
            return Err(ImageError::Choice(format!("no image for {wanted}; there is: {}", platforms.join(", "))));
        }
    }
    let [image] = &found[..] else {
        let names: Vec<String> = found.iter().map(described).collect();
        match names.is_empty() {
            true => return Err(ImageError::Choice("the layout has no such image".into())),
            false => {
                return Err(ImageError::Choice(format!(
                    "several images: say which with --tag or --platform: {}",
                    names.join(", ")
                )));
            }
        }
    };
    let bytes = read_blob(layout, image)?;
    if image.media_type.contains("index") || image.media_type.contains("manifest.list") {
        if depth == DEPTH_MAX {
            return Err(malformed("indexes lead to indexes without end"));
        }
        return choose(layout, serde_json::from_slice(&bytes)?, choice, depth + 1);
    }
    serde_json::from_slice(&bytes).with_context(|| format!("manifest {}", image.digest))
}

fn described(image: &Descriptor) -> String {
    let platform = image.platform.as_ref().map(|platform| format!("{}/{}", platform.os, platform.architecture));
    let tag = image.annotations.get(REF_NAME).cloned();
    let words: Vec<String> = tag.into_iter().chain(platform).collect();
    if words.is_empty() { image.digest.clone() } else { words.join(" ") }
}

/// This machine's platform as images name it.
fn this_platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("linux/{architecture}")
}
