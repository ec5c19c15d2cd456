//! Sources of files: a folder, an archive, or an image.

use std::path::{Path, PathBuf};

use cenote_props::WrongUse;

use super::{Budget, Choice, FileTree, Room, Whiteouts, add_archive, add_image, archive, is_layout};
use crate::ImageError;
use crate::error::{Context as _, Result};

/// The kind of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A folder of this machine.
    Folder,
    /// A tar archive.
    Archive,
    /// A folder with an OCI image layout.
    Image,
}

/// A source of files.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its kind.
    pub kind: SourceKind,
    /// Its place; `-` is standard input.
    pub path: PathBuf,
    /// Of an image layout, which image.
    pub choice: Choice,
    /// Memory for names, records and attributes of an archive's or image's files.
    pub memory_bytes: u64,
}

impl Source {
    /// The source at a place, of this kind, or of the one that it looks like.
    ///
    /// # Errors
    /// It is of another kind, or an image is chosen of what is no layout.
    pub fn new(path: &Path, kind: Option<SourceKind>, choice: Choice) -> Result<Self> {
        let is_dir = path.is_dir();
        let kind = kind.unwrap_or(match is_dir {
            true if is_layout(path) => SourceKind::Image,
            true => SourceKind::Folder,
            false => SourceKind::Archive,
        });
        let wrong = |what: &str| Err(ImageError::Choice(format!("'{}' is {what}", path.display())));
        match kind {
            SourceKind::Folder | SourceKind::Image if !is_dir => return wrong("no directory"),
            SourceKind::Image if !is_layout(path) => return wrong("no OCI image layout"),
            SourceKind::Archive if is_dir => return wrong("a directory"),
            SourceKind::Folder | SourceKind::Archive if choice.tag.is_some() || choice.platform.is_some() => {
                return Err(WrongUse::new("--tag and --platform are for OCI image layouts").into());
            }
            _ => {}
        }
        Ok(Self { kind, path: path.to_owned(), choice, memory_bytes: Budget::DEFAULT_BYTES })
    }

    /// All files of an archive or image, put together before any is written. `advance` is told of bytes that were read.
    ///
    /// # Errors
    /// The source cannot be read, is damaged, or takes more memory or room than there is.
    pub fn gathered(&self, room: &mut Room, advance: &mut dyn FnMut(u64)) -> Result<FileTree> {
        let mut tree = FileTree::new(Budget::new(self.memory_bytes));
        let from = || self.path.display().to_string();
        if self.kind == SourceKind::Image {
            add_image(&mut tree, &self.path, &self.choice, room, advance).with_context(from)?;
        } else {
            let file = archive(&self.path, room, advance).with_context(from)?;
            add_archive(&mut tree, file, Whiteouts::Ignore).with_context(from)?;
        }
        Ok(tree)
    }
}
