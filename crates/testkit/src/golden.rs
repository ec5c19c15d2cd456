//! Finding golden pools and handing out their files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::manifest::{File, Manifest};
use crate::{cache, repository_root};

/// A folder of themes.
#[derive(Debug, Clone)]
pub struct Golden {
    root: PathBuf,
}

/// One theme: the images of a pool (seldom several pools) and what is known of it.
#[derive(Debug, Clone)]
pub struct Theme {
    name: String,
    dir: PathBuf,
}

/// A theme's images, unpacked and read-only.
#[derive(Debug, Clone)]
pub struct Unpacked {
    /// The folder that holds the images and nothing else.
    pub dir: PathBuf,
    /// The images in the manifest's order.
    pub images: Vec<PathBuf>,
}

/// A writable copy of a theme's images; gone when it is dropped.
#[derive(Debug)]
pub struct Scratch {
    dir: TempDir,
    /// The images in the manifest's order.
    pub images: Vec<PathBuf>,
}

impl Scratch {
    /// The folder that holds the images and nothing else.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// The theme of that name in the set that [`Golden::find`] picks.
///
/// # Panics
///
/// If it is not there; a test that can do without uses [`theme_if_present`].
pub fn theme(name: &str) -> Theme {
    Golden::find().and_then(|golden| golden.theme(name)).unwrap_or_else(|error| panic!("golden pool {name}: {error:#}"))
}

/// The theme of that name, or `None`, with a note on stderr, where the set at hand does not hold it.
pub fn theme_if_present(name: &str) -> Option<Theme> {
    let golden = Golden::find().ok()?;
    let theme = golden.theme(name).ok();
    if theme.is_none() {
        eprintln!("left out: golden pool {name} is not in {}", golden.root().display());
    }
    theme
}

impl Golden {
    /// The largest set at hand: `CENOTE_GOLDEN`, else `../shared/golden`, else the repository's own.
    ///
    /// A set named by the environment must exist: falling back in silence would test less than was asked for.
    pub fn find() -> Result<Golden> {
        if let Some(dir) = std::env::var_os("CENOTE_GOLDEN") {
            let dir = PathBuf::from(dir);
            let dir = if dir.is_absolute() { dir } else { repository_root().join(dir) };
            return Golden::at(&dir).context("CENOTE_GOLDEN does not name golden pools");
        }
        Golden::at(&repository_root().join("../shared/golden")).or_else(|_| Golden::selection())
    }

    /// The selection in the repository.
    pub fn selection() -> Result<Golden> {
        Golden::at(&repository_root().join("testdata/golden"))
    }

    /// The set in a folder, which must hold at least one theme.
    pub fn at(dir: &Path) -> Result<Golden> {
        let root = fs::canonicalize(dir).with_context(|| format!("no folder {}", dir.display()))?;
        let golden = Golden { root };
        if golden.themes()?.is_empty() {
            bail!("{} holds no golden pools", golden.root.display());
        }
        Ok(golden)
    }

    /// The set's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// All themes, sorted by name.
    pub fn themes(&self) -> Result<Vec<Theme>> {
        let mut themes = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let dir = entry.path();
            if dir.join("manifest.json.zst").is_file() {
                themes.push(Theme { name: entry.file_name().to_string_lossy().into_owned(), dir });
            }
        }
        themes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(themes)
    }

    /// The theme of that name.
    pub fn theme(&self, name: &str) -> Result<Theme> {
        let dir = self.root.join(name);
        if !dir.join("manifest.json.zst").is_file() {
            bail!("{} has no theme {name}", self.root.display());
        }
        Ok(Theme { name: name.to_owned(), dir })
    }
}

impl Theme {
    /// The theme's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder with the packed files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The manifest, typed.
    pub fn manifest(&self) -> Result<Manifest> {
        serde_json::from_slice(&self.member("manifest.json")?)
            .with_context(|| format!("manifest of {} is not understood", self.name))
    }

    /// The manifest as it is written.
    pub fn manifest_json(&self) -> Result<Value> {
        Ok(serde_json::from_slice(&self.member("manifest.json")?)?)
    }

    /// `zdb`'s account of the pool.
    pub fn zdb_text(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.member("zdb.txt")?).into_owned())
    }

    /// `zstream dump -v`'s account of the streams.
    pub fn zstream_text(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.member("zstream.txt")?).into_owned())
    }

    /// Any file of the theme, unpacked: `manifest.json`, `a.img`, `streams/full.zfs`.
    pub fn member(&self, name: &str) -> Result<Vec<u8>> {
        cache::unpack_bytes(&self.dir.join(format!("{name}.zst")))
    }

    /// All images, unpacked, read-only, kept between runs.
    pub fn unpacked(&self) -> Result<Unpacked> {
        let files = self.manifest()?.images;
        let dir = cache::unpacked_dir(&self.name, &self.dir, &files)?;
        let images = files.iter().map(|file| dir.join(&file.file)).collect();
        Ok(Unpacked { dir, images })
    }

    /// One image's bytes. They are mostly zeros and some hundred megabytes at most.
    pub fn image_bytes(&self, file: &str) -> Result<Vec<u8>> {
        self.member(file)
    }

    /// A writable copy of all images.
    pub fn scratch(&self) -> Result<Scratch> {
        let dir = tempfile::tempdir()?;
        let mut images = Vec::new();
        for File { file, .. } in self.manifest()?.images {
            let target = dir.path().join(&file);
            cache::unpack_file(&self.dir.join(format!("{file}.zst")), &target)?;
            images.push(target);
        }
        Ok(Scratch { dir, images })
    }

    /// The send streams that are there, in the manifest's order. (The repository's selection leaves some out.)
    pub fn streams(&self) -> Result<Vec<File>> {
        let mut streams = self.manifest()?.streams;
        streams.retain(|stream| self.dir.join("streams").join(format!("{}.zst", stream.file)).is_file());
        Ok(streams)
    }

    /// A stream's bytes.
    pub fn stream_bytes(&self, file: &str) -> Result<Vec<u8>> {
        self.member(&format!("streams/{file}"))
    }

    /// Writes the key files into a folder and returns encryption root and path of each.
    pub fn write_keys(&self, dir: &Path) -> Result<Vec<(String, PathBuf)>> {
        let mut keys = Vec::new();
        for (dataset, key) in &self.manifest()?.keys {
            let path = dir.join(format!("{}.key", dataset.replace('/', "%")));
            fs::write(&path, key.bytes())?;
            // As keys should be: others' cannot read them, and no command says that they can.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            keys.push((dataset.clone(), path));
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sha2::{Digest, Sha256};

    use super::*;
    use crate::manifest::hex;

    #[test]
    fn every_manifest_of_the_selection_is_understood() {
        let golden = Golden::selection().unwrap();
        for theme in golden.themes().unwrap() {
            let manifest = theme.manifest().unwrap();
            assert_eq!(manifest.format, 1);
            assert_eq!(manifest.theme, theme.name());
            assert!(!manifest.images.is_empty(), "{}", theme.name());
            assert!(!manifest.contents().datasets.is_empty(), "{}", theme.name());
            assert!(theme.zdb_text().unwrap().contains("zdb"), "{}", theme.name());
        }
    }

    #[test]
    fn unpacking_twice_gives_the_same_read_only_images() {
        let theme = Golden::selection().unwrap().theme("basic_gpt").unwrap();
        let first = theme.unpacked().unwrap();
        let again = theme.unpacked().unwrap();
        assert_eq!(first.dir, again.dir);
        for (image, file) in first.images.iter().zip(theme.manifest().unwrap().images) {
            let bytes = fs::read(image).unwrap();
            assert_eq!(bytes, theme.image_bytes(&file.file).unwrap());
            assert_eq!(hex(&Sha256::digest(&bytes)), file.sha256);
            assert!(fs::metadata(image).unwrap().permissions().readonly());
        }
    }

    #[test]
    fn a_scratch_copy_can_be_written_and_leaves_no_trace() {
        let theme = Golden::selection().unwrap().theme("basic_gpt").unwrap();
        let scratch = theme.scratch().unwrap();
        let dir = scratch.dir().to_owned();
        fs::write(&scratch.images[0], b"spoiled").unwrap();
        drop(scratch);
        assert!(!dir.exists());
        assert_ne!(fs::read(&theme.unpacked().unwrap().images[0]).unwrap(), b"spoiled");
    }

    #[test]
    fn streams_have_the_hash_that_the_manifest_states() {
        let theme = Golden::selection().unwrap().theme("streams").unwrap();
        let streams = theme.streams().unwrap();
        assert!(!streams.is_empty());
        for stream in streams {
            let bytes = theme.stream_bytes(&stream.file).unwrap();
            assert_eq!(hex(&Sha256::digest(&bytes)), stream.sha256, "{}", stream.file);
        }
    }

    #[test]
    fn a_folder_without_pools_is_refused() {
        assert!(Golden::at(tempfile::tempdir().unwrap().path()).is_err());
    }
}
