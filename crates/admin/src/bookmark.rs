//! Bookmarks: made, and destroyed.

use cenote_spa::{NewBookmark, Pool, SpaError, SyncTask, Syncer};
use cenote_taskq::BoxFuture;

use crate::error::AdminError;

/// Makes bookmarks: all of them, or none ([`create_bookmarks`](crate::create_bookmarks)).
pub(crate) struct CreateBookmarks(pub(crate) Vec<NewBookmark>);

impl SyncTask for CreateBookmarks {
    type Made = ();
    type Error = AdminError;

    fn check<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            // Each that is refused is named, as in OpenZFS.
            let mut refused = Vec::new();
            for new in &self.0 {
                match pool.check_bookmark(new).await {
                    Err(SpaError::Refused { why, what }) => refused.push((why, what)),
                    checked => checked?,
                }
            }
            let Some((why, _)) = refused.first() else { return Ok(()) };
            let what: Vec<&str> = refused.iter().map(|(_, what)| what.as_str()).collect();
            Err(SpaError::Refused { why: *why, what: what.join("\n") }.into())
        })
    }

    fn sync<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            for new in &self.0 {
                pool.create_bookmark(new).await?;
            }
            Ok(())
        })
    }
}

/// Destroys bookmarks ([`destroy_bookmarks`](crate::destroy_bookmarks)).
pub(crate) struct DestroyBookmarks(pub(crate) Vec<String>);

impl SyncTask for DestroyBookmarks {
    type Made = ();
    type Error = AdminError;

    fn check<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            for name in &self.0 {
                pool.find_bookmark(name).await?;
            }
            Ok(())
        })
    }

    fn sync<'a>(&'a mut self, pool: &'a mut Syncer) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            for name in &self.0 {
                pool.destroy_bookmark(name).await?;
            }
            Ok(())
        })
    }
}

/// The bookmarks that a recursive one comes to: for a dataset and each below it that has a snapshot of this name, a bookmark of it.
///
/// # Errors
/// There is no such dataset, or the MOS cannot be read.
pub async fn bookmarks_below(
    pool: &Pool,
    dataset: &str,
    snapshot: &str,
    bookmark: &str,
) -> Result<Vec<NewBookmark>, AdminError> {
    let (dsl, mut found) = (pool.dsl()?, Vec::new());
    for dir in dsl.tree(dsl.dir(dataset).await?, false).await? {
        let Some(head) = dsl.head(&dir).await? else { continue };
        if dsl.snapshot_object(&head, snapshot).await?.is_some() {
            let (name, source) = (format!("{}#{bookmark}", dir.name), format!("{}@{snapshot}", dir.name));
            found.push(NewBookmark { name, source });
        }
    }
    Ok(found)
}
