//! File systems in use.

use std::sync::Arc;

use cenote_dsl::Dataset;
use cenote_format::enums::ObjsetType;
use cenote_spa::{LiveHead, User};
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicBool, Ordering};
use cenote_taskq::{Class, Group, Join, boxed};
use cenote_zil::Log;
use cenote_zpl::{File, FileSystem, Properties, ZplError};

use crate::error::OpenError;
use crate::take::{Taken, take};
use crate::{Frozen, Opened, Report, Source, Use};

/// A file system that is open to be changed.
pub struct OpenFiles {
    filesystem: FileSystem,
    head: LiveHead,
    log: Arc<Log>,
    /// The property `readonly` is off.
    may_change: AtomicBool,
    /// Frees files without a name and without a user, in the background.
    reaper: Mutex<Option<Join<()>>>,
    /// The error that keeps it from that.
    freeing_error: Arc<Mutex<Option<Arc<ZplError>>>>,
    /// Files that were released, whose access times are being written.
    released: Group,
    report: Report,
}

impl Drop for OpenFiles {
    fn drop(&mut self) {
        self.filesystem.stop_reaping();
    }
}

/// Opens the file system of a dataset, with its properties. [`OpenFiles::obey`] begins to free what its last user left in the delete queue.
///
/// # Errors
/// It is no file system, cannot be read, or is in use. To be changed: also a snapshot, one with `readonly=on`, and one that cannot be changed yet.
#[boxed]
pub async fn open_files(
    source: Source<'_>,
    dataset: &Dataset,
    how: &Use,
) -> Result<(Opened<OpenFiles, FileSystem>, Properties), OpenError> {
    let (mut taken, mut properties) = take(source, dataset, ObjsetType::Zfs, how, None).await?;
    if let Taken::Head(head) = taken {
        match OpenFiles::open(head, &properties, how).await {
            Ok(files) => return Ok((Opened::Live(files), properties)),
            Err(ZplError::Unsupported(why)) if !how.is_for_changes => {
                (taken, properties) = take(source, dataset, ObjsetType::Zfs, how, Some(why.to_string())).await?;
            }
            Err(error) => return Err(OpenError::Zpl(dataset.name(), error)),
        }
    }
    let Taken::Frozen(Frozen { contents, hold, why }) = taken else {
        unreachable!("with a reason nothing else is taken")
    };
    let contents = FileSystem::open(contents).await.map_err(|error| OpenError::Zpl(dataset.name(), error))?;
    Ok((Opened::Frozen(Frozen { contents, hold, why }), properties))
}

impl OpenFiles {
    async fn open(head: LiveHead, properties: &Properties, how: &Use) -> Result<Self, ZplError> {
        let log = Arc::new(head.log(properties.sync));
        log.set_for_throughput(properties.is_for_throughput);
        let mut filesystem = FileSystem::open_logged(head.objset(), log.clone(), properties.files).await?;
        if how.user == User::Mount {
            // The kernel says when it forgets a node.
            filesystem = filesystem.keeping_until_forgotten();
        }
        let (reaper, freeing_error, released) = (Mutex::default(), Arc::default(), head.pool().handle().group());
        let may_change = AtomicBool::new(!properties.forbidden.write);
        Ok(Self { filesystem, head, log, may_change, reaper, freeing_error, released, report: how.report.clone() })
    }

    /// The file system.
    #[must_use]
    pub const fn filesystem(&self) -> &FileSystem {
        &self.filesystem
    }

    /// Its head dataset.
    #[must_use]
    pub const fn head(&self) -> &LiveHead {
        &self.head
    }

    /// Its intent log.
    #[must_use]
    pub const fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// True if the property `readonly` is on: then no user may change it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        !self.may_change.load(Ordering::Acquire)
    }

    /// Obeys these properties from the next request on. Unless they forbid changes, the delete queue is freed in the background from now on.
    pub fn obey(&self, properties: &Properties) {
        self.filesystem.set_options(properties.files);
        self.log.set_mode(properties.sync);
        self.log.set_for_throughput(properties.is_for_throughput);
        self.may_change.store(!properties.forbidden.write, Ordering::Release);
        let mut reaper = self.reaper.lock();
        if reaper.is_none() && !properties.forbidden.write {
            let reaping = reap(self.filesystem.clone(), self.freeing_error.clone(), self.report.clone());
            *reaper = Some(self.head.pool().handle().spawn(Class::Background, reaping));
        }
    }

    /// The error that keeps the space of removed files from being freed, if there is one.
    #[must_use]
    pub fn freeing_error(&self) -> Option<Arc<ZplError>> {
        self.freeing_error.lock().clone()
    }

    /// Releases a file that was opened: the time of its last access is written, later.
    pub fn release(&self, file: File) {
        if !file.has_unwritten_access() || self.is_read_only() {
            return;
        }
        let Ok(member) = self.released.enter() else { return };
        self.head.pool().handle().detach(Class::Background, async move {
            // A pool that is full, or is no longer written, prevents nobody from reading.
            drop(file.close().await);
            drop(member);
        });
    }

    /// Stops work in the background, before the dataset is rolled back for example. No request may come any more.
    #[boxed]
    pub async fn stop(&self) {
        self.released.close().await;
        self.filesystem.stop_reaping();
        let reaper = self.reaper.lock().take();
        if let Some(reaper) = reaper {
            // If it panicked the runtime has said so, and the queue is on disk.
            drop(reaper.await);
        }
    }

    /// Ends its use, when no request comes any more. Unless it is read-only, a little of the delete queue is freed; the rest is left to the next
    /// user.
    #[boxed]
    pub async fn close(&self) {
        self.stop().await;
        if !self.is_read_only()
            && let Err(error) = self.filesystem.reap_little().await
            && !matches!(error, ZplError::NoSpace | ZplError::Quota(_) | ZplError::Closed(_))
        {
            tell(&self.report, &error);
        }
    }
}

/// Frees the delete queue until the file system is closed.
async fn reap(filesystem: FileSystem, last: Arc<Mutex<Option<Arc<ZplError>>>>, report: Report) {
    let told = |error: Option<ZplError>| {
        error.iter().for_each(|error| tell(&report, error));
        *last.lock() = error.map(Arc::new);
    };
    filesystem.reap_until_stopped(told).await;
}

fn tell(report: &Report, error: &ZplError) {
    report(&format!("freeing what was removed: {error}"));
}
