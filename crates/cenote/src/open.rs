//! Datasets that a program has open.
//!
//! # Theory
//!
//! **Need.** Any number of handles refer to a dataset that is open, and go on with it when it is rolled back, renamed or given another size: by another
//! handle, or by a verb of this process. A receive into a dataset of which there are handles is refused: it is in use.
//!
//! **In memory.** A pool has its open datasets by their objects, which do not change with names. Each has a [`Seat`]: a call takes the dataset from
//! it, and waits while it is suspended. A handle of a file is a number among the [`KeptFiles`] of its file system, since the file is another one
//! after each suspension.
//!
//! **Invariants.** 1. A call enters a seat once, and enters no other while it is in one: a suspension waits for calls that have entered, and calls
//! for the suspension. 2. A file that is gone after a suspension is stale in each later call ([`ErrorKind::Stale`]).

use std::path::Path;
use std::sync::Arc;

use cenote_dsl::Dataset;
use cenote_inuse::{
    KeptFile, KeptFiles, OpenError, OpenFiles, Opened, Reopen, Seat, Source, Suspended, Use, Why, obey, open_files,
    open_volume,
};
use cenote_spa::User;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use cenote_taskq::sync::{Mutex, RwLock};
use cenote_taskq::{Handle, boxed};
use cenote_zpl::Properties;
use cenote_zvol::live::LiveVolume;

use crate::error::{Error, ErrorKind, Place};
use crate::raise::Raise as _;

/// A dataset that is open in a pool. It remains open until the pool is exported or the dataset is destroyed: the engine's structures of a dataset in
/// use exist once.
#[derive(Clone)]
pub(crate) enum Open {
    Files(Arc<Files>),
    Disk(Arc<Disk>),
}

/// The dataset of a seat.
struct Found {
    handle: Handle,
    /// The pool, if it is open to be changed: only then is anything suspended.
    pool: Option<cenote_spa::Pool>,
    /// As it was called when it was opened.
    dataset: Dataset,
    name: String,
}

/// A file system that is open.
pub(crate) struct Files {
    found: Found,
    seat: Seat<OpenedFiles>,
    properties: RwLock<Properties>,
    /// The number of the next handle of a file.
    next: AtomicU64,
    /// Handles that were dropped and may not be released yet.
    dropped: Mutex<Vec<u64>>,
}

/// The file system of a seat.
pub(crate) struct OpenedFiles {
    pub(crate) files: cenote_zpl::FileSystem,
    pub(crate) kept: KeptFiles<u64>,
    opened: Opened<OpenFiles, cenote_zpl::FileSystem>,
}

/// A volume that is open.
pub(crate) struct Disk {
    found: Found,
    seat: Seat<OpenedDisk>,
    /// Its size and that of its blocks in bytes, as they were seen last.
    sizes: RwLock<(u64, u64)>,
}

/// The volume of a seat.
pub(crate) struct OpenedDisk(Opened<LiveVolume, cenote_zvol::Volume>);

/// A suspended dataset that a program has open.
pub(crate) enum SuspendedOpen {
    Files(Suspended<Files>),
    Disk(Suspended<Disk>),
}

fn how() -> Use {
    // A program asks for errors of work in the background: `FileSystem::freeing_error`.
    Use { user: User::Library, is_for_changes: false, report: Arc::new(|_| ()) }
}

impl Found {
    fn new(source: Source<'_>, dataset: &Dataset) -> Self {
        let (handle, pool) = match source {
            Source::View(view) => (view.dmu().handle().clone(), None),
            Source::Pool(pool) => (pool.handle().clone(), Some(pool.clone())),
        };
        Self { handle, pool, name: dataset.name(), dataset: dataset.clone() }
    }

    /// The pool and the dataset, with the name that it has now.
    async fn again(&self) -> Result<(&cenote_spa::Pool, Dataset), OpenError> {
        let lost = || OpenError::Refused(self.name.clone(), Why::Lost);
        let pool = self.pool.as_ref().ok_or_else(lost)?;
        let object = self.dataset.object;
        let found = pool.look(move |syncer| {
            Box::pin(async move {
                let dsl = syncer.dsl().clone();
                Ok::<_, OpenError>(dsl.dataset(&dsl.dataset_name(object).await?).await?)
            })
        });
        Ok((pool, found.await?))
    }

    fn closed(&self) -> Error {
        let what =
            format!("'{}' is not open any more: its pool was exported, or it could not be opened again", self.name);
        Error::new(ErrorKind::Closed, Place::default(), what).of_dataset(&self.name)
    }
}

impl Open {
    /// Opens a dataset or snapshot.
    pub(crate) async fn new(source: Source<'_>, dataset: &Dataset, is_volume: bool) -> Result<Self, Error> {
        let found = Found::new(source, dataset);
        if is_volume {
            let opened = OpenedDisk(open_volume(source, dataset, &how()).await.raised()?);
            let sizes = RwLock::new(opened.sizes());
            return Ok(Self::Disk(Arc::new(Disk { found, seat: Seat::new(Some(opened)), sizes })));
        }
        let (opened, properties) = OpenedFiles::open(source, dataset, &[]).await.raised()?;
        let (seat, next, dropped) = (Seat::new(Some(opened)), AtomicU64::new(0), Mutex::default());
        Ok(Self::Files(Arc::new(Files { found, seat, properties: RwLock::new(properties), next, dropped })))
    }

    /// True if no handle refers to it.
    pub(crate) fn is_unused(&self) -> bool {
        match self {
            Self::Files(files) => Arc::strong_count(files) == 1,
            Self::Disk(disk) => Arc::strong_count(disk) == 1,
        }
    }

    /// True if it could not be opened again: who has a handle gets errors.
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            Self::Files(files) => files.seat.is_closed(),
            Self::Disk(disk) => disk.seat.is_closed(),
        }
    }

    /// Obeys these properties from the next call on. One that is suspended reads its properties when it resumes.
    pub(crate) fn obey(&self, properties: &Properties) {
        match self {
            Self::Files(files) => {
                *files.properties.write() = *properties;
                files.seat.now().iter().filter_map(|opened| opened.live()).for_each(|live| live.obey(properties));
            }
            Self::Disk(disk) => {
                disk.seat.now().iter().filter_map(|opened| opened.live()).for_each(|live| obey(live, properties));
            }
        }
    }

    /// Suspends it, for a change of its dataset.
    pub(crate) async fn suspend(&self) -> Option<SuspendedOpen> {
        match self {
            Self::Files(files) => Suspended::begin(files.clone()).await.map(SuspendedOpen::Files),
            Self::Disk(disk) => Suspended::begin(disk.clone()).await.map(SuspendedOpen::Disk),
        }
    }

    /// Ends its use. Calls of handles that are left fail.
    pub(crate) async fn close(self) {
        match self {
            Self::Files(files) => {
                if let Some(opened) = files.seat.now() {
                    drop(opened.kept.close());
                    if let Some(live) = opened.live() {
                        live.close().await;
                    }
                }
                files.seat.close();
            }
            Self::Disk(disk) => disk.seat.close(),
        }
    }
}

impl SuspendedOpen {
    pub(crate) async fn resume(self) -> Result<(), OpenError> {
        match self {
            Self::Files(files) => files.resume().await,
            Self::Disk(disk) => disk.resume().await,
        }
    }
}

impl OpenedFiles {
    async fn open(
        source: Source<'_>,
        dataset: &Dataset,
        kept: &[KeptFile<u64>],
    ) -> Result<(Self, Properties), OpenError> {
        let (opened, properties) = open_files(source, dataset, &how()).await?;
        let files = match &opened {
            Opened::Live(live) => live.filesystem().clone(),
            Opened::Frozen(frozen) => frozen.contents.clone(),
        };
        let this = Self { files, kept: KeptFiles::default(), opened };
        this.kept.reopen(&this.files, kept).await;
        if let Some(live) = this.live() {
            live.obey(&properties);
        }
        Ok((this, properties))
    }

    /// None if it is read as it is on disk.
    pub(crate) const fn live(&self) -> Option<&OpenFiles> {
        self.opened.live()
    }
}

impl OpenedDisk {
    /// None if it is read as it is on disk.
    pub(crate) const fn live(&self) -> Option<&LiveVolume> {
        self.0.live()
    }

    pub(crate) const fn volume(&self) -> &cenote_zvol::Volume {
        match &self.0 {
            Opened::Live(live) => live.volume(),
            Opened::Frozen(frozen) => &frozen.contents,
        }
    }

    fn sizes(&self) -> (u64, u64) {
        (self.volume().size_bytes(), self.volume().block_size_bytes())
    }
}

impl Files {
    pub(crate) fn name(&self) -> &str {
        &self.found.name
    }

    pub(crate) fn properties(&self) -> Properties {
        *self.properties.read()
    }

    /// The runtime.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.found.handle
    }

    /// The file system, for one call; waits while it is suspended.
    pub(crate) async fn enter(&self) -> Result<Arc<OpenedFiles>, Error> {
        self.seat.settled().await.ok_or_else(|| self.found.closed())
    }

    /// The file system, unless it is suspended.
    pub(crate) fn now(&self) -> Option<Arc<OpenedFiles>> {
        self.seat.now()
    }

    /// Keeps a file that was opened, for a handle with the number that comes back.
    pub(crate) fn keep(&self, opened: &OpenedFiles, file: cenote_zpl::File) -> u64 {
        self.release_dropped(opened);
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        opened.kept.keep(key, file);
        key
    }

    /// A handle was dropped.
    pub(crate) fn release(&self, key: u64) {
        self.dropped.lock().push(key);
        // Of one that is suspended they are released with the next handle.
        if let Some(opened) = self.now() {
            self.release_dropped(&opened);
        }
    }

    fn release_dropped(&self, opened: &OpenedFiles) {
        let dropped = std::mem::take(&mut *self.dropped.lock());
        for file in dropped.into_iter().filter_map(|key| opened.kept.release(key)) {
            if let (Some(live), Some(file)) = (opened.live(), Arc::into_inner(file)) {
                live.release(file);
            }
        }
    }

    /// A file is gone since its handle was made.
    pub(crate) fn stale(&self, path: &Path) -> Error {
        let what = "the file is gone: its dataset was rolled back";
        Error::new(ErrorKind::Stale, Place::default(), what).of_dataset(self.name()).of_path(path)
    }
}

impl Reopen for Files {
    type Opened = OpenedFiles;
    type Kept = Vec<KeptFile<u64>>;

    fn seat(&self) -> &Seat<OpenedFiles> {
        &self.seat
    }

    fn handle(&self) -> &Handle {
        &self.found.handle
    }

    #[boxed]
    async fn stop(&self, opened: Option<&OpenedFiles>) -> Vec<KeptFile<u64>> {
        let Some(opened) = opened else { return Vec::new() };
        self.release_dropped(opened);
        let kept = opened.kept.close();
        if let Some(live) = opened.live() {
            live.stop().await;
        }
        kept
    }

    #[boxed]
    async fn reopen(&self, kept: &Vec<KeptFile<u64>>) -> Result<OpenedFiles, OpenError> {
        let (pool, dataset) = self.found.again().await?;
        let (opened, properties) = OpenedFiles::open(Source::Pool(pool), &dataset, kept).await?;
        *self.properties.write() = properties;
        Ok(opened)
    }
}

impl Disk {
    pub(crate) fn name(&self) -> &str {
        &self.found.name
    }

    /// The volume, for one call; waits while it is suspended.
    pub(crate) async fn enter(&self) -> Result<Arc<OpenedDisk>, Error> {
        self.seat.settled().await.ok_or_else(|| self.found.closed())
    }

    /// The volume, unless it is suspended.
    pub(crate) fn now(&self) -> Option<Arc<OpenedDisk>> {
        self.seat.now()
    }

    /// Its size and that of its blocks in bytes: while it is suspended, as they were before.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        if let Some(opened) = self.now() {
            *self.sizes.write() = opened.sizes();
        }
        *self.sizes.read()
    }
}

impl Reopen for Disk {
    type Opened = OpenedDisk;
    type Kept = ();

    fn seat(&self) -> &Seat<OpenedDisk> {
        &self.seat
    }

    fn handle(&self) -> &Handle {
        &self.found.handle
    }

    #[boxed]
    async fn stop(&self, _: Option<&OpenedDisk>) {}

    #[boxed]
    async fn reopen(&self, (): &()) -> Result<OpenedDisk, OpenError> {
        let (pool, dataset) = self.found.again().await?;
        Ok(OpenedDisk(open_volume(Source::Pool(pool), &dataset, &how()).await?))
    }
}
