//! Holds of snapshots.

use std::time::SystemTime;

use crate::error::Error;
use crate::metadata::seconds;
use crate::raise::Raise as _;
use crate::snapshot::Snapshot;

/// A hold of a snapshot: while there is one, the snapshot is not destroyed.
///
/// ```
/// # use cenote::{CreateOptions, Error, ErrorKind, Runtime};
/// # fn main() -> Result<(), Error> {
/// # let runtime = Runtime::simulated(1);
/// # runtime.add_disk("/a", 128 << 20);
/// # runtime.block_on(async {
/// # let pool = CreateOptions::new(["/a"]).create(&runtime, "tank").await?;
/// # let home = pool.create_filesystem("tank/home", &[]).await?;
/// let monday = home.snapshot("monday").await?;
/// monday.hold("backup").await?;
/// assert_eq!(monday.clone().destroy().await.unwrap_err().kind(), ErrorKind::Busy);
/// assert_eq!(monday.holds().await?[0].tag, "backup");
/// monday.release("backup").await?;
/// monday.destroy().await?;
/// # pool.export().await
/// # })
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// The tag that tells it from others.
    pub tag: String,
    /// The time when it was placed.
    pub placed: SystemTime,
}

impl Snapshot {
    /// Holds it: it is not destroyed before [`release`](Self::release) with the same tag.
    ///
    /// # Errors
    /// [`Exists`](crate::ErrorKind::Exists): it has a hold of this tag.
    pub async fn hold(&self, tag: &str) -> Result<(), Error> {
        let (pool, name) = (self.pool().writable()?, self.name().to_owned());
        cenote_admin::hold(pool, tag, &[name]).await.raised()
    }

    /// Releases a hold.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound): it has no hold of this tag.
    pub async fn release(&self, tag: &str) -> Result<(), Error> {
        let (pool, name) = (self.pool().writable()?, self.name().to_owned());
        cenote_admin::release(pool, tag, &[name]).await.raised()
    }

    /// Its holds, in the order of their tags.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound): it was destroyed or renamed.
    pub async fn holds(&self) -> Result<Vec<Hold>, Error> {
        let own = self.name().to_owned();
        let found =
            self.pool().look(move |dsl| Box::pin(async move { Ok(dsl.holds(&dsl.dataset(&own).await?).await?) }));
        let of = |hold: cenote_dsl::Hold| Hold { tag: hold.tag, placed: seconds(hold.time_s) };
        Ok(found.await?.into_iter().map(of).collect())
    }
}
