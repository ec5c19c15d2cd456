//! Files that are made for vdevs.
//!
//! A pool that is being made is in files with another name, `NAME.unfinished`, and they get their own when it is whole. So what
//! has the name that was asked for is a whole pool, whatever ended the command. What fails removes its files; so does an
//! interrupt or a termination; a kill leaves them, and the next command that makes the same files removes them, unless
//! somebody still writes them.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};

use cenote_taskq::sync::Mutex;
use rustix::fs::{FlockOperation, flock};

use crate::context::Context;
use crate::signals;
use crate::vdevspec::Layout;

const UNFINISHED: &str = ".unfinished";

/// A file: its name, and where it is until it is finished.
#[derive(Clone, Debug)]
struct Item {
    name: PathBuf,
    place: PathBuf,
}

/// Files that were made for vdevs, and go away again unless they are kept.
pub(crate) struct Made {
    items: Arc<Mutex<Vec<Item>>>,
    watch: Option<signal_hook::iterator::Handle>,
}

impl Made {
    /// Makes the files that do not exist, under their own names.
    pub(crate) fn here(layout: &Layout, size_bytes: Option<u64>) -> Result<Self> {
        let mut made = Self { items: Arc::default(), watch: None };
        made.make(layout, size_bytes, Path::to_owned)?;
        Ok(made)
    }

    /// Makes the files that do not exist, under names that say that they are unfinished. Signals that end the process remove them,
    /// and have what else the layout names told.
    pub(crate) fn unfinished(context: &Context, layout: &Layout, size_bytes: Option<u64>) -> Result<Self> {
        let mut made = Self { items: Arc::default(), watch: None };
        made.watch(context, layout)?;
        made.make(layout, size_bytes, |path| {
            let mut place = OsString::from(path);
            place.push(UNFINISHED);
            place.into()
        })?;
        Ok(made)
    }

    fn make(&mut self, layout: &Layout, size_bytes: Option<u64>, place_of: impl Fn(&Path) -> PathBuf) -> Result<()> {
        for path in layout.paths().filter(|path| !path.exists()) {
            let Some(size_bytes) = size_bytes else {
                bail!("cannot open '{}': no such device (--size makes files)", path.display());
            };
            let place = place_of(path);
            let shown = || format!("cannot make '{}'", place.display());
            remove_left(&place).with_context(shown)?;
            // Under the lock, so that no signal finds a file that is not noted.
            let mut items = self.items.lock();
            // Files that only their owners may read are in there too.
            let options = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&place);
            let file = options.with_context(shown)?;
            items.push(Item { name: path.to_owned(), place: place.clone() });
            file.set_len(size_bytes).with_context(shown)?;
        }
        Ok(())
    }

    /// Where a vdev's file is now.
    pub(crate) fn place(&self, name: &Path) -> PathBuf {
        let items = self.items.lock();
        items.iter().find(|item| item.name == name).map_or_else(|| name.to_owned(), |item| item.place.clone())
    }

    fn watch(&mut self, context: &Context, layout: &Layout) -> Result<()> {
        let mut signals = signals::ending()?;
        self.watch = Some(signals.handle());
        let items = Arc::clone(&self.items);
        let there: Vec<PathBuf> = layout.paths().filter(|path| path.exists()).map(Path::to_owned).collect();
        let output = context.output().clone();
        // Detached: it ends with the watch, or with the process.
        drop(context.handle().spawn_blocking(move || {
            let Some(signal) = signals.forever().next() else { return };
            let items = items.lock();
            remove(&items);
            for path in &there {
                let path = path.display();
                output.err(format!(
                    "'{path}' may hold an unfinished pool: 'cenote zpool labelclear -f {path}' clears it"
                ));
            }
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }));
        Ok(())
    }

    /// Gives the files their names: the pool is whole.
    pub(crate) fn keep(self) -> Result<()> {
        for item in std::mem::take(&mut *self.items.lock()) {
            if item.place != item.name {
                fs::rename(&item.place, &item.name).with_context(|| {
                    format!("cannot rename '{}' to '{}'", item.place.display(), item.name.display())
                })?;
            }
        }
        Ok(())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.close();
        }
        remove(&self.items.lock());
    }
}

fn remove(items: &[Item]) {
    // What was made for nothing is in nobody's way.
    items.iter().for_each(|item| drop(fs::remove_file(&item.place)));
}

/// Removes what a command left that was killed.
fn remove_left(place: &Path) -> Result<()> {
    let file = match File::open(place) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("it is in use by another process");
    }
    Ok(fs::remove_file(place)?)
}
