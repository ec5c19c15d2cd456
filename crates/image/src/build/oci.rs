//! Images of containers: the choice of an image from an index, and its layers, one over the other.
//!
//! ```text
//! OCI layout, in a directory or an archive:
//!   oci-layout   index.json ─► manifest (of a platform; perhaps by way of another index) ─► config, layers
//!   blobs/sha256/…   each under its own hash
//! docker's archive (docker save, podman save):
//!   manifest.json ─► for each image: config, layers, and its tags
//! ```
//!
//! The maker of an image is not trusted: see [`Store`] for names. Nothing is read beyond the size in a descriptor; blobs must have the hash in
//! their names, and layers of docker's archives the one in the image's configuration.
//!
//! An image's own configuration states its platform. An index may also state it for a manifest, but need not; so if a platform is requested, the
//! configuration counts.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;

use super::part::Part;
use super::spool::{self, Room};
use super::store::Store;
use super::tarball::{Whiteouts, add_archive};
use super::tree::FileTree;
use crate::error::{Context as _, ImageError, Result, malformed, too_large, unsupported};

/// The largest index, manifest or configuration, in bytes: the limit of registries.
const DOCUMENT_MAX_BYTES: u64 = 4 << 20;
/// The maximum depth of indexes in indexes.
const DEPTH_MAX: u32 = 4;
/// The maximum number of images of an index that are examined.
const IMAGES_MAX: usize = 256;
/// The annotation with an image's tag.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The annotation with an image's full name, in docker's newer archives.
const IMAGE_NAME: &str = "io.containerd.image.name";

/// A reference to a blob.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    digest: String,
    #[serde(default)]
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// A platform in an index or an image's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    variant: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    config: Option<Descriptor>,
    layers: Vec<Descriptor>,
}

/// The relevant parts of an image's configuration.
#[derive(Debug, Deserialize)]
struct Config {
    #[serde(flatten)]
    platform: Platform,
    #[serde(default)]
    rootfs: RootFs,
}

#[derive(Debug, Default, Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

/// An image of docker's archive.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    layers: Vec<String>,
    repo_tags: Option<Vec<String>>,
}

/// The choice of an image.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Its tag.
    pub tag: Option<String>,
    /// `OS/ARCHITECTURE`, or with `/VARIANT`; by default, if there are several images, this machine's.
    pub platform: Option<String>,
}

impl Choice {
    /// True if it restricts the choice.
    pub(crate) const fn is_made(&self) -> bool {
        self.tag.is_some() || self.platform.is_some()
    }
}

/// The form of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// OCI's layout.
    Layout,
    /// Docker's archive.
    Docker,
}

impl Platform {
    /// Parses a person's notation: `linux/arm64`, `linux/arm/v7`.
    fn parse(text: &str) -> Result<Self> {
        let mut words = text.split('/');
        let (Some(os), Some(architecture), variant, None) = (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(ImageError::Choice(format!("'{text}' is no platform: one is written as linux/arm64")));
        };
        let variant = variant.map(str::to_owned);
        Ok(Self { os: os.to_owned(), architecture: as_images_name(architecture).to_owned(), variant })
    }

    /// This machine's platform, in the terms of images.
    fn of_this_machine() -> Self {
        let architecture = as_images_name(std::env::consts::ARCH).to_owned();
        Self { os: "linux".to_owned(), architecture, variant: None }
    }

    /// True if an image of platform `of` is for this platform. An image without a variant has the usual one.
    fn is_of(&self, of: &Self) -> bool {
        let usual = (of.architecture == "arm64").then_some("v8");
        let variant = of.variant.as_deref().or(usual);
        self.os == of.os
            && self.architecture == of.architecture
            && self.variant.as_deref().is_none_or(|wanted| variant == Some(wanted))
    }

    fn is_said(&self) -> bool {
        !self.os.is_empty() && !self.architecture.is_empty()
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variant = self.variant.iter().flat_map(|variant| ["/", variant]).collect::<String>();
        match self.is_said() {
            true => write!(f, "{}/{}{variant}", self.os, self.architecture),
            false => f.write_str("no platform that it says"),
        }
    }
}

/// An architecture by its name in images.
fn as_images_name(architecture: &str) -> &str {
    match architecture {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// True if a directory is an image layout.
pub(crate) fn is_layout(dir: &Path) -> bool {
    dir.join("oci-layout").is_file() && dir.join("index.json").is_file()
}

/// The form of the image in an archive; `None` if it looks like an archive of files.
pub(crate) fn form_of(store: &Store) -> Option<Form> {
    if store.has("oci-layout") && store.has("index.json") {
        return Some(Form::Layout);
    }
    // Other archives may contain a file with this name.
    let images = docker_images(store).ok().filter(|images| !images.is_empty())?;
    let is_there = |image: &DockerImage| store.has(&image.config) && image.layers.iter().all(|layer| store.has(layer));
    images.iter().all(is_there).then_some(Form::Docker)
}

/// Adds all layers of an image to a tree. Returns the image's name and platform for people. `progress` gets the bytes decompressed.
///
/// # Errors
/// There is no such image, or a part of it is damaged.
pub(crate) fn add_image(
    tree: &mut FileTree,
    store: &Store,
    form: Form,
    choice: &Choice,
    room: &mut Room,
    progress: &mut dyn FnMut(u64),
) -> Result<String> {
    let wanted = choice.platform.as_deref().map(Platform::parse).transpose()?;
    match form {
        Form::Layout => add_of_layout(tree, store, choice, wanted.as_ref(), room, progress),
        Form::Docker => add_of_docker(tree, store, choice, wanted.as_ref(), room, progress),
    }
}

fn add_of_layout(
    tree: &mut FileTree,
    store: &Store,
    choice: &Choice,
    wanted: Option<&Platform>,
    room: &mut Room,
    progress: &mut dyn FnMut(u64),
) -> Result<String> {
    let index = store.open("index.json").and_then(|part| part.document(DOCUMENT_MAX_BYTES));
    let index: Index = index.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)).context("index.json")?;
    let chosen = choose(store, index, choice, wanted, 0)?;
    for layer in &chosen.manifest.layers {
        if !layer.media_type.contains("tar") || layer.media_type.contains("encrypted") {
            return Err(unsupported(format!("a layer of the type '{}'", layer.media_type)));
        }
        let at = || format!("layer {}", layer.digest);
        let (part, hash) = blob(store, layer).with_context(at)?;
        let file = spool::blob(&part, &hash, layer.size, room, progress).with_context(at)?;
        add_archive(tree, file, Whiteouts::Apply).with_context(at)?;
    }
    Ok(chosen.name)
}

fn docker_images(store: &Store) -> Result<Vec<DockerImage>> {
    let bytes = store.open("manifest.json").and_then(|part| part.document(DOCUMENT_MAX_BYTES));
    bytes.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)).context("manifest.json")
}

fn add_of_docker(
    tree: &mut FileTree,
    store: &Store,
    choice: &Choice,
    wanted: Option<&Platform>,
    room: &mut Room,
    progress: &mut dyn FnMut(u64),
) -> Result<String> {
    let mut images = Vec::new();
    for image in docker_images(store)?.into_iter().take(IMAGES_MAX) {
        let config = store.open(&image.config).and_then(|part| part.document(DOCUMENT_MAX_BYTES));
        let config: Config = config
            .and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
            .with_context(|| format!("the configuration '{}'", image.config))?;
        images.push((image, config));
    }
    let described = |(image, config): &(DockerImage, Config)| {
        let tags = image.repo_tags.iter().flatten().cloned().collect::<Vec<_>>().join(", ");
        let name = if tags.is_empty() { image.config.trim_end_matches(".json").to_owned() } else { tags };
        format!("{name} ({})", config.platform)
    };
    let all: Vec<String> = images.iter().map(described).collect();
    if let Some(tag) = &choice.tag {
        images.retain(|(image, _)| image.repo_tags.iter().flatten().any(|name| is_called(name, tag)));
    }
    if let Some(wanted) = wanted {
        images.retain(|(_, config)| wanted.is_of(&config.platform));
    } else if images.len() > 1 && images.iter().any(|(_, config)| Platform::of_this_machine().is_of(&config.platform)) {
        images.retain(|(_, config)| Platform::of_this_machine().is_of(&config.platform));
    }
    let name = images.first().map(described);
    let (Some((image, config)), Some(name), true) = (images.first(), name, images.len() == 1) else {
        return Err(not_one(images.is_empty(), &all));
    };
    if config.rootfs.diff_ids.len() != image.layers.len() {
        let (layers, hashes) = (image.layers.len(), config.rootfs.diff_ids.len());
        return Err(malformed(format!("the image has {layers} layers, and its configuration tells of {hashes}")));
    }
    for (layer, digest) in image.layers.iter().zip(&config.rootfs.diff_ids) {
        let at = || format!("layer '{layer}'");
        let part = store.open(layer).with_context(at)?;
        let file = spool::layer(&part, &hash_of(digest)?, room, progress).with_context(at)?;
        add_archive(tree, file, Whiteouts::Apply).with_context(at)?;
    }
    Ok(name)
}

/// True if a requested tag matches an image's: the whole name, or the part after the last colon.
fn is_called(name: &str, tag: &str) -> bool {
    name == tag || name.rsplit_once(':').is_some_and(|(_, last)| last == tag) || name.ends_with(&format!("/{tag}"))
}

/// No image matches the request, or several do.
fn not_one(is_none: bool, there: &[String]) -> ImageError {
    let there = there.join(", ");
    ImageError::Choice(match is_none {
        true if there.is_empty() => "there is no image in it".to_owned(),
        true => format!("no image is as --tag and --platform say; there is: {there}"),
        false => format!("several images: say which with --tag or --platform: {there}"),
    })
}

/// The hash of a digest.
fn hash_of(digest: &str) -> Result<Vec<u8>> {
    let Some(hex) = digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64) else {
        return Err(unsupported(format!("a digest of the form '{digest}'")));
    };
    let hash: Option<Vec<u8>> =
        (0..32).map(|at| hex.get(2 * at..2 * at + 2).and_then(|byte| u8::from_str_radix(byte, 16).ok())).collect();
    hash.with_context(|| format!("'{digest}' is no digest"))
}

/// A blob's file, and the hash that it must have.
fn blob(store: &Store, blob: &Descriptor) -> Result<(Part, Vec<u8>)> {
    let hash = hash_of(&blob.digest)?;
    let name = format!("blobs/{}", blob.digest.replacen(':', "/", 1));
    let part = store.open(&name).with_context(|| format!("the blob {}", blob.digest))?;
    Ok((part, hash))
}

fn read_blob(store: &Store, of: &Descriptor) -> Result<Vec<u8>> {
    use sha2::{Digest as _, Sha256};
    let (part, hash) = blob(store, of)?;
    let bytes = part.document(DOCUMENT_MAX_BYTES.min(of.size));
    let bytes = bytes.with_context(|| format!("the blob {}", of.digest))?;
    if Sha256::digest(&bytes).as_slice() != hash {
        return Err(malformed(format!("the blob {} is damaged: its SHA-256 is not its name", of.digest)));
    }
    Ok(bytes)
}

/// The chosen image.
struct Chosen {
    name: String,
    manifest: Manifest,
}

impl Descriptor {
    fn is_index(&self) -> bool {
        self.media_type.contains("index") || self.media_type.contains("manifest.list")
    }

    /// True for a statement about an image, which an index lists under a platform that does not exist.
    fn is_statement(&self) -> bool {
        self.platform.as_ref().is_some_and(|platform| platform.os == "unknown")
    }

    fn name(&self) -> Option<&str> {
        [IMAGE_NAME, REF_NAME].into_iter().find_map(|key| Some(self.annotations.get(key)?.as_str()))
    }
}

fn manifest_of(store: &Store, image: &Descriptor) -> Result<Manifest> {
    let bytes = read_blob(store, image)?;
    serde_json::from_slice(&bytes).with_context(|| format!("manifest {}", image.digest))
}

/// The platform in the configuration of an image.
fn platform_of(store: &Store, manifest: &Manifest) -> Result<Platform> {
    let Some(config) = &manifest.config else { return Ok(Platform::default()) };
    let bytes = read_blob(store, config)?;
    let config: Config =
        serde_json::from_slice(&bytes).with_context(|| format!("the configuration {}", config.digest))?;
    Ok(config.platform)
}

fn choose(store: &Store, index: Index, choice: &Choice, wanted: Option<&Platform>, depth: u32) -> Result<Chosen> {
    let mut found = index.manifests;
    found.retain(|image| !image.is_statement());
    if found.len() > IMAGES_MAX {
        return Err(too_large(format!("an index of {} images (limit: {IMAGES_MAX})", found.len())));
    }
    let all: Vec<String> = found.iter().map(described).collect();
    if let Some(tag) = choice.tag.as_ref().filter(|_| depth == 0) {
        let names = |image: &Descriptor| [IMAGE_NAME, REF_NAME].map(|key| image.annotations.get(key).cloned());
        found.retain(|image| names(image).iter().flatten().any(|name| is_called(name, tag)));
    }
    // One image may have several tags.
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|image| seen.insert(image.digest.clone()));
    let usual = Platform::of_this_machine();
    let asked = wanted.or((found.len() > 1).then_some(&usual));
    if let Some(asked) = asked {
        let mut kept = Vec::new();
        for image in found {
            let platform = match &image.platform {
                Some(platform) => Some(platform.clone()),
                // The index may contain several.
                None if image.is_index() => None,
                None => Some(platform_of(store, &manifest_of(store, &image)?)?),
            };
            if platform.is_none_or(|platform| asked.is_of(&platform)) {
                kept.push(image);
            }
        }
        if kept.is_empty() {
            return Err(ImageError::Choice(format!("no image for {asked}; there is: {}", all.join(", "))));
        }
        found = kept;
    }
    let [image] = &found[..] else {
        return Err(not_one(
            found.is_empty(),
            &if found.is_empty() { all } else { found.iter().map(described).collect() },
        ));
    };
    if image.is_index() {
        if depth == DEPTH_MAX {
            return Err(malformed("indexes lead to indexes without end"));
        }
        let below = serde_json::from_slice(&read_blob(store, image)?)?;
        let chosen = choose(store, below, choice, wanted, depth + 1)?;
        let name = image.name().map(|name| format!("{name}, ")).unwrap_or_default() + &chosen.name;
        return Ok(Chosen { name, ..chosen });
    }
    let manifest = manifest_of(store, image)?;
    let platform = platform_of(store, &manifest);
    // Without a request it is only reported.
    let platform = if asked.is_some() { platform? } else { platform.unwrap_or_default() };
    if let Some(asked) = asked.filter(|asked| !asked.is_of(&platform)) {
        let digest = &image.digest;
        return Err(ImageError::Choice(format!(
            "no image for {asked}: the configuration of the image {digest} says {platform}, whatever the index says"
        )));
    }
    let name = format!("{} ({platform})", image.name().unwrap_or(&image.digest));
    Ok(Chosen { name, manifest })
}

fn described(image: &Descriptor) -> String {
    let platform = image.platform.as_ref().map(ToString::to_string);
    let words: Vec<String> = image.name().map(str::to_owned).into_iter().chain(platform).collect();
    if words.is_empty() { image.digest.clone() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_is_the_one_that_was_asked_for_with_the_usual_variant() {
        let platform = |text: &str| Platform::parse(text).unwrap();
        for (wanted, of, is) in [
            ("linux/amd64", "linux/amd64", true),
            ("linux/x86_64", "linux/amd64", true),
            ("linux/arm64", "linux/amd64", false),
            ("linux/arm64", "linux/arm64/v8", true),
            ("linux/arm64/v8", "linux/arm64", true),
            ("linux/arm64/v9", "linux/arm64", false),
            ("linux/arm/v7", "linux/arm/v6", false),
            ("linux/arm/v7", "linux/arm", false),
            ("windows/amd64", "linux/amd64", false),
        ] {
            assert_eq!(platform(wanted).is_of(&platform(of)), is, "{wanted} {of}");
        }
        assert!(!platform("linux/amd64").is_of(&Platform::default()), "one that says nothing is none");
        for wrong in ["linux", "linux/arm/v7/x", ""] {
            assert!(Platform::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_tag_is_meant_by_all_of_it_or_by_its_end() {
        assert!(is_called("docker.io/library/busybox:1.36", "1.36"));
        assert!(is_called("docker.io/library/busybox:1.36", "busybox:1.36"));
        assert!(!is_called("docker.io/library/busybox:1.36", "box:1.36"));
    }
}
