//! Datasets that a program has open.

use std::sync::Arc;

use cenote_dsl::Dataset;
use cenote_inuse::{OpenFiles, Opened, Source, Use, obey, open_files, open_volume};
use cenote_spa::User;
use cenote_taskq::sync::RwLock;
use cenote_zpl::Properties;
use cenote_zvol::live::LiveVolume;

use crate::error::Error;
use crate::raise::Raise as _;

/// A dataset that is open in a pool. It remains open until the pool is exported or the dataset is destroyed, renamed or rolled back: the
/// engine's structures of a dataset in use exist once.
#[derive(Clone)]
pub(crate) enum Open {
    Files(Arc<Files>),
    Disk(Arc<Disk>),
}

/// A file system that is open.
pub(crate) struct Files {
    pub(crate) files: cenote_zpl::FileSystem,
    name: String,
    opened: Opened<OpenFiles, cenote_zpl::FileSystem>,
    properties: RwLock<Properties>,
}

/// A volume that is open.
pub(crate) struct Disk {
    name: String,
    opened: Opened<LiveVolume, cenote_zvol::Volume>,
}

impl Open {
    /// Opens a dataset or snapshot.
    pub(crate) async fn new(source: Source<'_>, dataset: &Dataset, is_volume: bool) -> Result<Self, Error> {
        // A program asks for errors of work in the background: `FileSystem::freeing_error`.
        let how = Use { user: User::Library, is_for_changes: false, report: Arc::new(|_| ()) };
        let name = dataset.name();
        if is_volume {
            let opened = open_volume(source, dataset, &how).await.raised()?;
            return Ok(Self::Disk(Arc::new(Disk { name, opened })));
        }
        let (opened, properties) = open_files(source, dataset, &how).await.raised()?;
        let files = match &opened {
            Opened::Live(live) => live.filesystem().clone(),
            Opened::Frozen(frozen) => frozen.contents.clone(),
        };
        let open = Self::Files(Arc::new(Files { files, name, opened, properties: RwLock::new(properties) }));
        open.obey(&properties);
        Ok(open)
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Files(files) => &files.name,
            Self::Disk(disk) => &disk.name,
        }
    }

    /// True if no handle refers to it.
    pub(crate) fn is_unused(&self) -> bool {
        match self {
            Self::Files(files) => Arc::strong_count(files) == 1,
            Self::Disk(disk) => Arc::strong_count(disk) == 1,
        }
    }

    /// Obeys these properties from the next call on.
    pub(crate) fn obey(&self, properties: &Properties) {
        match self {
            Self::Files(files) => {
                *files.properties.write() = *properties;
                files.live().into_iter().for_each(|live| live.obey(properties));
            }
            Self::Disk(disk) => disk.live().into_iter().for_each(|live| obey(live, properties)),
        }
    }

    /// Ends its use.
    pub(crate) async fn close(self) {
        if let Self::Files(files) = self
            && let Some(live) = files.live()
        {
            live.close().await;
        }
    }
}

impl Files {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// None if it is read as it is on disk.
    pub(crate) fn live(&self) -> Option<&OpenFiles> {
        self.opened.live()
    }

    pub(crate) fn properties(&self) -> Properties {
        *self.properties.read()
    }
}

impl Disk {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// None if it is read as it is on disk.
    pub(crate) fn live(&self) -> Option<&LiveVolume> {
        self.opened.live()
    }

    pub(crate) fn volume(&self) -> &cenote_zvol::Volume {
        match &self.opened {
            Opened::Live(live) => live.volume(),
            Opened::Frozen(frozen) => &frozen.contents,
        }
    }
}
