//! Snapshots.

use std::fmt;
use std::time::SystemTime;

use cenote_admin::{CloneRequest, DestroyRequest, RollbackRequest};

use crate::dataset::{Dataset, texts};
use crate::error::Error;
use crate::filesystem::FileSystem;
use crate::metadata::seconds;
use crate::pool::Pool;
use crate::raise::Raise as _;
use crate::volume::Volume;

/// A snapshot, by its name. Cheap to clone; it holds nothing in the pool.
#[derive(Clone)]
pub struct Snapshot {
    pool: Pool,
    name: String,
    guid: u64,
    txg: u64,
    created: SystemTime,
    referenced_bytes: u64,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Pool {
    /// The snapshot of this name: `tank/home@before`.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound), [`Misuse`](crate::ErrorKind::Misuse) (it is no snapshot's name).
    pub async fn snapshot(&self, name: &str) -> Result<Snapshot, Error> {
        let whole = name.to_owned();
        let found = self.look(move |dsl| Box::pin(async move { Ok(dsl.dataset(&whole).await?) })).await?;
        match found.is_snapshot() {
            true => Ok(Snapshot::of(self, &found)),
            false => Err(Error::misuse(format!("'{name}' is no snapshot")).of_dataset(name)),
        }
    }
}

impl Dataset {
    /// Takes a snapshot, with all that was written before. It is on disk when this returns.
    ///
    /// # Errors
    /// [`Exists`](crate::ErrorKind::Exists), [`Misuse`](crate::ErrorKind::Misuse) (the name), [`NoSpace`](crate::ErrorKind::NoSpace).
    pub async fn snapshot(&self, name: &str) -> Result<Snapshot, Error> {
        let whole = format!("{}@{name}", self.name());
        let pool = self.pool().writable()?;
        cenote_admin::take_snapshots(pool, std::slice::from_ref(&whole), &[]).await.raised()?;
        self.pool().snapshot(&whole).await
    }

    /// Its snapshots, the oldest first.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        let own = self.name().to_owned();
        let found =
            self.pool().look(move |dsl| Box::pin(async move { Ok(dsl.snapshots(&dsl.dataset(&own).await?).await?) }));
        let mut found = found.await?;
        found.sort_by_key(|snapshot| snapshot.phys.creation_txg);
        Ok(found.iter().map(|snapshot| Snapshot::of(self.pool(), snapshot)).collect())
    }
}

impl Snapshot {
    fn of(pool: &Pool, found: &cenote_dsl::Dataset) -> Self {
        Self {
            pool: pool.clone(),
            name: found.name(),
            guid: found.phys.guid.0,
            txg: found.phys.creation_txg.0,
            created: seconds(found.phys.creation_time),
            referenced_bytes: found.phys.referenced_bytes,
        }
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Its whole name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its guid, which it has in other pools too that received it.
    #[must_use]
    pub const fn guid(&self) -> u64 {
        self.guid
    }

    /// The txg that it is of.
    #[must_use]
    pub const fn txg(&self) -> u64 {
        self.txg
    }

    /// When it was taken.
    #[must_use]
    pub const fn created(&self) -> SystemTime {
        self.created
    }

    /// Bytes that it refers to.
    #[must_use]
    pub const fn referenced_bytes(&self) -> u64 {
        self.referenced_bytes
    }

    /// Opens it as a file system. It is not destroyed while it is open.
    ///
    /// # Errors
    /// As [`Pool::filesystem`].
    pub async fn filesystem(&self) -> Result<FileSystem, Error> {
        self.pool.filesystem(&self.name).await
    }

    /// Opens it as a volume.
    ///
    /// # Errors
    /// As [`Pool::volume`].
    pub async fn volume(&self) -> Result<Volume, Error> {
        self.pool.volume(&self.name).await
    }

    /// Makes a dataset that begins as this snapshot is, and shares its blocks.
    ///
    /// # Errors
    /// As [`Pool::create_filesystem`].
    pub async fn clone_to(&self, name: &str, properties: &[(&str, &str)]) -> Result<Dataset, Error> {
        let (snapshot, properties) = (self.name.clone(), texts(properties));
        let request = CloneRequest { snapshot, name: name.to_owned(), properties, ..CloneRequest::default() };
        self.pool.make(&request).await?;
        self.pool.dataset(name).await
    }

    /// Rolls its dataset back to this snapshot. Newer snapshots and bookmarks stand in the way. Calls of its open file system or volume wait
    /// meanwhile, and then go on with the snapshot's state; files that are gone are [`Stale`](crate::ErrorKind::Stale).
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy): there is something newer.
    pub async fn rollback(&self) -> Result<(), Error> {
        self.roll(false).await
    }

    /// As [`Self::rollback`]; snapshots and bookmarks that are newer are destroyed.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy): a newer snapshot is open, or has a clone.
    pub async fn rollback_over_newer(&self) -> Result<(), Error> {
        self.roll(true).await
    }

    async fn roll(&self, destroys_newer: bool) -> Result<(), Error> {
        let snapshot = self.name.clone();
        self.pool.make(&RollbackRequest { snapshot, destroys_newer, destroys_clones: false }).await
    }

    /// Destroys it. Blocks that it alone has are freed in the background.
    ///
    /// # Errors
    /// [`Busy`](crate::ErrorKind::Busy): it is open, or has a clone or a hold.
    pub async fn destroy(self) -> Result<(), Error> {
        self.pool.make(&DestroyRequest::new(self.name)).await.map(drop)
    }
}
