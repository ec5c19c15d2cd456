//! Bookmarks.

use std::fmt;
use std::time::SystemTime;

use cenote_spa::NewBookmark;

use crate::dataset::Dataset;
use crate::error::{Error, ErrorKind, Place};
use crate::metadata::seconds;
use crate::pool::Pool;
use crate::raise::Raise as _;
use crate::snapshot::Snapshot;

/// A bookmark, by its name: the txg and guid of a snapshot, without its blocks. The changes since it can be sent when the snapshot is destroyed.
///
/// ```
/// # use cenote::{CreateOptions, Error, Runtime, SendOptions};
/// # fn main() -> Result<(), Error> {
/// # let runtime = Runtime::simulated(1);
/// # runtime.add_disk("/a", 128 << 20);
/// # runtime.block_on(async {
/// # let pool = CreateOptions::new(["/a"]).create(&runtime, "tank").await?;
/// # let home = pool.create_filesystem("tank/home", &[]).await?;
/// let monday = home.snapshot("monday").await?;
/// monday.bookmark("sent").await?;
/// monday.destroy().await?;
/// let tuesday = home.snapshot("tuesday").await?;
/// SendOptions::new().since("#sent").send(&tuesday, &mut Vec::new()).await?;
/// assert_eq!(home.bookmarks().await?[0].name(), "tank/home#sent");
/// # pool.export().await
/// # })
/// # }
/// ```
#[derive(Clone)]
pub struct Bookmark {
    pool: Pool,
    name: String,
    guid: u64,
    txg: u64,
    created: SystemTime,
}

impl fmt::Debug for Bookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bookmark").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Pool {
    /// The bookmark of this name: `tank/home#sent`.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Misuse`](ErrorKind::Misuse) (it is no bookmark's name).
    pub async fn bookmark(&self, name: &str) -> Result<Bookmark, Error> {
        let Some((dataset, _)) = name.split_once('#') else {
            return Err(Error::misuse(format!("'{name}' is no bookmark")).of_dataset(name));
        };
        let found = self.dataset(dataset).await?.bookmarks().await?.into_iter().find(|found| found.name == name);
        found.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, Place::default(), format!("bookmark '{name}' does not exist"))
                .of_dataset(dataset)
        })
    }

    async fn make_bookmark(&self, source: &str, name: &str) -> Result<Bookmark, Error> {
        let dataset = source.split(['@', '#']).next().unwrap_or(source);
        let name = format!("{dataset}#{name}");
        let new = NewBookmark { name: name.clone(), source: source.to_owned() };
        cenote_admin::create_bookmarks(self.writable()?, vec![new]).await.raised()?;
        self.bookmark(&name).await
    }
}

impl Dataset {
    /// Its bookmarks, the oldest first.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn bookmarks(&self) -> Result<Vec<Bookmark>, Error> {
        let own = self.name().to_owned();
        let found =
            self.pool().look(move |dsl| Box::pin(async move { Ok(dsl.bookmarks(&dsl.dataset(&own).await?).await?) }));
        let mut found = found.await?;
        found.sort_by_key(|bookmark| bookmark.phys.creation_txg);
        let of = |found: cenote_dsl::Bookmark| Bookmark {
            pool: self.pool().clone(),
            guid: found.phys.guid.0,
            txg: found.phys.creation_txg.0,
            created: seconds(found.phys.creation_time),
            name: found.name,
        };
        Ok(found.into_iter().map(of).collect())
    }
}

impl Snapshot {
    /// Makes a bookmark of it, with this name after the `#`.
    ///
    /// # Errors
    /// [`Exists`](ErrorKind::Exists), [`Misuse`](ErrorKind::Misuse) (the name, or the pool lacks the feature `bookmarks`).
    pub async fn bookmark(&self, name: &str) -> Result<Bookmark, Error> {
        self.pool().make_bookmark(self.name(), name).await
    }
}

impl Bookmark {
    /// Its whole name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The guid of its snapshot.
    #[must_use]
    pub const fn guid(&self) -> u64 {
        self.guid
    }

    /// The txg of its snapshot.
    #[must_use]
    pub const fn txg(&self) -> u64 {
        self.txg
    }

    /// The time when its snapshot was taken.
    #[must_use]
    pub const fn created(&self) -> SystemTime {
        self.created
    }

    /// Makes another bookmark of the same snapshot, with this name after the `#`.
    ///
    /// # Errors
    /// As [`Snapshot::bookmark`].
    pub async fn bookmark(&self, name: &str) -> Result<Self, Error> {
        self.pool.make_bookmark(&self.name, name).await
    }

    /// Destroys it. One that does not exist any more is no error.
    ///
    /// # Errors
    /// [`ReadOnly`](ErrorKind::ReadOnly): the pool is.
    pub async fn destroy(self) -> Result<(), Error> {
        cenote_admin::destroy_bookmarks(self.pool.writable()?, vec![self.name]).await.raised()
    }
}
