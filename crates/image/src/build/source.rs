//! Sources of files: a folder, an archive, or an image.

use std::path::{Path, PathBuf};

use cenote_props::WrongUse;

use super::oci::{self, Form, add_image};
use super::store::Store;
use super::{Budget, Choice, FileTree, Room, Whiteouts, add_archive, archive, is_layout};
use crate::ImageError;
use crate::error::{Context as _, Result, malformed};

/// The kind of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A folder of this machine.
    Folder,
    /// An archive: of an image if it looks like one, otherwise of files.
    AnyArchive,
    /// A tar archive of files.
    Archive,
    /// An OCI image layout: in a folder, or in an archive.
    Image,
    /// Docker's archive of images.
    Docker,
}

/// A source of files.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its kind.
    pub kind: SourceKind,
    /// Its place; `-` is standard input.
    pub path: PathBuf,
    /// For an image layout, the choice of an image.
    pub choice: Choice,
    /// Memory for names, records and attributes of an archive's or image's files.
    pub memory_bytes: u64,
}

impl Source {
    /// The source at a place, of this kind, or of the kind that it looks like.
    ///
    /// # Errors
    /// It is of another kind, or an image is chosen although it is not a layout.
    pub fn new(path: &Path, kind: Option<SourceKind>, choice: Choice) -> Result<Self> {
        let is_dir = path.is_dir();
        let kind = kind.unwrap_or(match is_dir {
            true if is_layout(path) => SourceKind::Image,
            true => SourceKind::Folder,
            false => SourceKind::AnyArchive,
        });
        let wrong = |what: &str| Err(ImageError::Choice(format!("'{}' is {what}", path.display())));
        match kind {
            SourceKind::Folder if !is_dir => return wrong("no directory"),
            SourceKind::Image if is_dir && !is_layout(path) => return wrong("no OCI image layout"),
            SourceKind::Archive | SourceKind::Docker if is_dir => return wrong("a directory"),
            SourceKind::Folder | SourceKind::Archive if choice.is_made() => return Err(no_choice()),
            _ => {}
        }
        Ok(Self { kind, path: path.to_owned(), choice, memory_bytes: Budget::DEFAULT_BYTES })
    }

    /// All files of an archive or image, combined before any is written; and an image's name and platform. `advance` gets the bytes read.
    ///
    /// # Errors
    /// The source cannot be read, is damaged, is of another kind, or needs more memory or room than available.
    pub fn gathered(&self, room: &mut Room, advance: &mut dyn FnMut(u64)) -> Result<(FileTree, Option<String>)> {
        let mut tree = FileTree::new(Budget::new(self.memory_bytes));
        let name = self.gather(&mut tree, room, advance).with_context(|| self.path.display().to_string())?;
        Ok((tree, name))
    }

    fn gather(&self, tree: &mut FileTree, room: &mut Room, advance: &mut dyn FnMut(u64)) -> Result<Option<String>> {
        if self.kind == SourceKind::Image && self.path.is_dir() {
            let store = Store::directory(&self.path)?;
            return add_image(tree, &store, Form::Layout, &self.choice, room, advance).map(Some);
        }
        let file = archive(&self.path, room, advance)?;
        if self.kind != SourceKind::Archive {
            let image = Store::archive(&file)?.and_then(|store| Some((oci::form_of(&store)?, store)));
            match (image, self.kind) {
                (Some((Form::Layout, store)), SourceKind::AnyArchive | SourceKind::Image) => {
                    return add_image(tree, &store, Form::Layout, &self.choice, room, advance).map(Some);
                }
                // Docker's newer archives are layouts as well.
                (Some((_, store)), SourceKind::AnyArchive | SourceKind::Docker) if store.has("manifest.json") => {
                    return add_image(tree, &store, Form::Docker, &self.choice, room, advance).map(Some);
                }
                (_, SourceKind::Image) => return Err(malformed("is no archive of an OCI image layout")),
                (_, SourceKind::Docker) => return Err(malformed("is no archive as 'docker save' writes it")),
                _ if self.choice.is_made() => return Err(no_choice()),
                _ => {}
            }
        }
        add_archive(tree, file, Whiteouts::Ignore)?;
        Ok(None)
    }
}

/// An image was chosen although the source has none.
fn no_choice() -> ImageError {
    WrongUse::new("--tag and --platform are for images of containers").into()
}
