//! OCI image layouts: which image, and its layers, one over the other.
//!
//! ```text
//! DIR/oci-layout   DIR/index.json ─► manifest (of a platform; perhaps by way of another index) ─► config, layers
//! DIR/blobs/sha256/…   each under its own hash
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::spool;
use super::tarball::{Whiteouts, add_archive};
use super::tree::FileTree;

/// An index or manifest at most.
const DOCUMENT_MAX_BYTES: u64 = 16 << 20;
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
pub(crate) struct Choice {
    /// Its tag.
    pub(crate) tag: Option<String>,
    /// `OS/ARCHITECTURE`; this machine's if nothing is said and there is more than one.
    pub(crate) platform: Option<String>,
}

/// Whether a directory is an image layout.
pub(crate) fn is_layout(dir: &Path) -> bool {
    dir.join("oci-layout").is_file() && dir.join("index.json").is_file()
}

/// Takes all layers of an image into a tree. `progress` is told of bytes that are unpacked.
///
/// # Errors
/// The layout has no such image, or something in it is damaged.
pub(crate) fn add_image(tree: &mut FileTree, dir: &Path, choice: &Choice, progress: &mut dyn FnMut(u64)) -> Result<()> {
    let path = dir.join("index.json");
    let index: Index = serde_json::from_slice(&document(&path)?).with_context(|| path.display().to_string())?;
    let manifest = choose(dir, index, choice, 0)?;
    for layer in &manifest.layers {
        if !layer.media_type.contains("tar") {
            bail!("not supported yet: a layer of the type '{}'", layer.media_type);
        }
        let (path, hash) = place(dir, layer)?;
        let file =
            spool::blob(&path, &hash, layer.size, progress).with_context(|| format!("layer {}", layer.digest))?;
        add_archive(tree, file, Whiteouts::Apply).with_context(|| format!("layer {}", layer.digest))?;
    }
    Ok(())
}

fn document(path: &Path) -> Result<Vec<u8>> {
    let size = fs::metadata(path).with_context(|| path.display().to_string())?.len();
    if size > DOCUMENT_MAX_BYTES {
        bail!("{} is too large to be an index", path.display());
    }
    fs::read(path).with_context(|| path.display().to_string())
}

/// Where a blob is, and its hash.
fn place(dir: &Path, blob: &Descriptor) -> Result<(PathBuf, Vec<u8>)> {
    let Some(hex) = blob.digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64) else {
        bail!("not supported yet: a digest of the form '{}'", blob.digest);
    };
    let hash: Option<Vec<u8>> =
        (0..32).map(|at| hex.get(2 * at..2 * at + 2).and_then(|byte| u8::from_str_radix(byte, 16).ok())).collect();
    let hash = hash.with_context(|| format!("'{}' is no digest", blob.digest))?;
    Ok((dir.join("blobs/sha256").join(hex), hash))
}

fn read_blob(dir: &Path, blob: &Descriptor) -> Result<Vec<u8>> {
    use sha2::{Digest as _, Sha256};
    let (path, hash) = place(dir, blob)?;
    let bytes = document(&path)?;
    if Sha256::digest(&bytes).as_slice() != hash {
        bail!("{} is damaged: its SHA-256 is not its name", path.display());
    }
    Ok(bytes)
}

fn choose(dir: &Path, index: Index, choice: &Choice, depth: u32) -> Result<Manifest> {
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
        // What is said of an image's platform is said with the manifest; an index without it may lead to several.
        let platforms: Vec<String> = found.iter().map(described).collect();
        found.retain(is_wanted);
        if found.is_empty() {
            bail!("no image for {wanted}; there is: {}", platforms.join(", "));
        }
    }
    let [image] = &found[..] else {
        let names: Vec<String> = found.iter().map(described).collect();
        match names.is_empty() {
            true => bail!("the layout has no such image"),
            false => bail!("several images: say which with --tag or --platform: {}", names.join(", ")),
        }
    };
    let bytes = read_blob(dir, image)?;
    if image.media_type.contains("index") || image.media_type.contains("manifest.list") {
        if depth == DEPTH_MAX {
            bail!("indexes lead to indexes without end");
        }
        return choose(dir, serde_json::from_slice(&bytes)?, choice, depth + 1);
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
