//! Files created for vdevs ([`Images`]), which a signal that ends the command removes.

use std::path::{Path, PathBuf};

use cenote_host::images::Images;
use cenote_host::layout::Layout;

use crate::error::{Result, ServerError, refused};
use crate::{Session, signals};

/// Files that were created for vdevs, and are removed unless they are kept.
pub struct ImageFiles {
    images: Images,
    watch: Option<signal_hook::iterator::Handle>,
}

impl ImageFiles {
    /// Creates the missing files, under their own names.
    pub fn here(layout: &Layout, size_bytes: Option<u64>) -> Result<Self> {
        let made = Self { images: Images::default(), watch: None };
        made.images.make_here(layout, size_bytes)?;
        Ok(made)
    }

    /// Creates the missing files, under names that mark them as unfinished. Signals that end the process remove them, and report the layout's
    /// other devices.
    pub fn unfinished(session: &Session, layout: &Layout, size_bytes: Option<u64>) -> Result<Self> {
        let mut made = Self { images: Images::default(), watch: None };
        made.watch(session, layout)?;
        made.images.make_unfinished(layout, size_bytes)?;
        Ok(made)
    }

    /// The present path of a vdev's file.
    pub fn place(&self, name: &Path) -> PathBuf {
        self.images.place(name)
    }

    /// An error with the files' final names: the user did not choose the temporary ones.
    pub fn named(&self, error: ServerError) -> ServerError {
        let text = error.chain();
        match self.images.named(&text) {
            named if named == text => error,
            named => refused(named),
        }
    }

    fn watch(&mut self, session: &Session, layout: &Layout) -> Result<()> {
        let mut signals = signals::ending()?;
        self.watch = Some(signals.handle());
        let images = self.images.clone();
        let there: Vec<PathBuf> = layout.paths().filter(|path| path.exists()).map(Path::to_owned).collect();
        let console = session.console().clone();
        // Detached: it ends with the watch, or with the process.
        drop(session.handle().spawn_blocking(move || {
            let Some(signal) = signals.forever().next() else { return };
            images.remove_and(|| {
                for path in &there {
                    let path = path.display();
                    console.warn(&format!(
                        "'{path}' may hold an unfinished pool: 'cenote zpool labelclear -f {path}' clears it"
                    ));
                }
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            });
        }));
        Ok(())
    }

    /// Gives the files their final names: the pool is complete.
    pub fn keep(self) -> Result<()> {
        Ok(self.images.keep()?)
    }
}

impl Drop for ImageFiles {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.close();
        }
        self.images.remove();
    }
}
