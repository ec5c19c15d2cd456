//! Image files that are made for vdevs.
//!
//! A pool that is being made is in files with another name, `NAME.unfinished`, and they get their own when it is whole. So a file with the
//! name that was asked for belongs to a whole pool, whatever ended the process. A failure removes the files; a kill leaves them, and
//! whoever makes the same files next removes them, unless somebody still writes them.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_taskq::sync::Mutex;
use rustix::fs::{FlockOperation, flock};

use crate::HostError;
use crate::error::At as _;
use crate::layout::Layout;

const UNFINISHED: &str = ".unfinished";

/// A file: its name, and where it is until it is finished.
#[derive(Clone, Debug)]
struct Item {
    name: PathBuf,
    place: PathBuf,
}

/// Files that are made for vdevs. Clones are of the same files.
#[derive(Clone, Debug, Default)]
pub struct Images(Arc<Mutex<Vec<Item>>>);

impl Images {
    /// Makes the files of a layout that do not exist, under their own names.
    ///
    /// # Errors
    /// There are some and no size is given; or one cannot be made. Those that were made are removed then.
    pub fn make_here(&self, layout: &Layout, size_bytes: Option<u64>) -> Result<(), HostError> {
        self.make(layout, size_bytes, Path::to_owned)
    }

    /// Makes the files of a layout that do not exist, under names that say that they are unfinished.
    pub fn make_unfinished(&self, layout: &Layout, size_bytes: Option<u64>) -> Result<(), HostError> {
        self.make(layout, size_bytes, |path| {
            let mut place = OsString::from(path);
            place.push(UNFINISHED);
            place.into()
        })
    }

    fn make(
        &self,
        layout: &Layout,
        size_bytes: Option<u64>,
        place_of: impl Fn(&Path) -> PathBuf,
    ) -> Result<(), HostError> {
        for path in layout.paths().filter(|path| !path.exists()) {
            let Some(size_bytes) = size_bytes else { return Err(HostError::NoSuchDevice(path.to_owned())) };
            let place = place_of(path);
            remove_left(&place, path)?;
            // Under the lock, so that no signal finds a file that is not noted.
            let mut items = self.0.lock();
            // Files that only their owners may read are in there too.
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&place).when("make", path)?;
            items.push(Item { name: path.to_owned(), place: place.clone() });
            file.set_len(size_bytes).when("make", path)?;
        }
        Ok(())
    }

    /// The place of a vdev's file now.
    #[must_use]
    pub fn place(&self, name: &Path) -> PathBuf {
        let items = self.0.lock();
        items.iter().find(|item| item.name == name).map_or_else(|| name.to_owned(), |item| item.place.clone())
    }

    /// A text with the names that files are to have, in place of those that they have until they are finished.
    #[must_use]
    pub fn named(&self, text: &str) -> String {
        let items = self.0.lock();
        let unfinished = items.iter().filter(|item| item.place != item.name);
        unfinished.fold(text.to_owned(), |text, item| {
            text.replace(&*item.place.to_string_lossy(), &item.name.to_string_lossy())
        })
    }

    /// Gives the files their names: the pool is whole.
    pub fn keep(&self) -> Result<(), HostError> {
        for item in std::mem::take(&mut *self.0.lock()) {
            if item.place != item.name {
                fs::rename(&item.place, &item.name).when("make", &item.name)?;
            }
        }
        Ok(())
    }

    /// Removes the files that were not kept.
    pub fn remove(&self) {
        self.remove_and(|| {});
    }

    /// Removes them, and makes none before `end` has returned.
    pub fn remove_and(&self, end: impl FnOnce()) {
        let items = self.0.lock();
        // Files that were made for nothing are in nobody's way.
        items.iter().for_each(|item| drop(fs::remove_file(&item.place)));
        end();
    }
}

/// Removes what a process left that was killed. `name` is what the file is to be called.
fn remove_left(place: &Path, name: &Path) -> Result<(), HostError> {
    let file = match File::open(place) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file.when("make", name)?,
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(HostError::InUse(format!("cannot make '{}': it is in use by another process", name.display())));
    }
    fs::remove_file(place).when("make", name)
}
