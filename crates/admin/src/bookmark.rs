//! Bookmarks: made, and destroyed.

use cenote_props::WrongUse;
use cenote_spa::{NewBookmark, Pool, SpaError, SyncTask, Syncer};
use cenote_taskq::boxed;

use crate::error::AdminError;
use crate::request::{Line, Request, Users};

/// Makes bookmarks: all of them, or none ([`create_bookmarks`](crate::create_bookmarks)).
pub(crate) struct CreateBookmarks(pub(crate) Vec<NewBookmark>);

impl SyncTask for CreateBookmarks {
    type Made = ();
    type Error = AdminError;

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
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
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        for new in &self.0 {
            pool.create_bookmark(new).await?;
        }
        Ok(())
    }
}

/// Destroys bookmarks ([`destroy_bookmarks`](crate::destroy_bookmarks)).
pub(crate) struct DestroyBookmarks(pub(crate) Vec<String>);

impl SyncTask for DestroyBookmarks {
    type Made = ();
    type Error = AdminError;

    #[boxed]
    async fn check(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        for name in &self.0 {
            pool.find_bookmark(name).await?;
        }
        Ok(())
    }

    #[boxed]
    async fn sync(&mut self, pool: &mut Syncer) -> Result<(), AdminError> {
        for name in &self.0 {
            pool.destroy_bookmark(name).await?;
        }
        Ok(())
    }
}

/// The bookmarks of `zfs bookmark SOURCE BOOKMARK`, of which one may be given from the `@` or `#` on; with `is_recursive` also those of all
/// datasets below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookmarkRequest {
    source: String,
    bookmark: String,
    is_recursive: bool,
    line: Line,
}

impl BookmarkRequest {
    /// Of the words of a command.
    pub fn parse(source: &str, bookmark: &str, is_recursive: bool) -> Result<Self, WrongUse> {
        let line = Line::new("zfs bookmark").flag(is_recursive, "-r").words([source, bookmark]);
        let (source, bookmark) = full_names(source, bookmark)?;
        if is_recursive && snapshot_of(&source).is_none() {
            return Err(WrongUse::new("recursive bookmarks (-r) can only be created from a snapshot source"));
        }
        Ok(Self { source, bookmark, is_recursive, line })
    }

    /// All of them, of a pool.
    async fn all(&self, pool: &Pool) -> Result<Vec<NewBookmark>, AdminError> {
        let Self { source, bookmark, is_recursive, .. } = self;
        let dsl = pool.dsl()?;
        let snapshot = snapshot_of(source);
        let is_there = match (snapshot, source.split_once('#')) {
            (Some(_), _) => dsl.dataset(source).await.is_ok_and(|found| found.is_snapshot()),
            (None, Some((of, short))) => match dsl.dataset(of).await {
                Ok(head) => dsl.bookmark(&head, short).await?.is_some(),
                Err(_) => false,
            },
            (None, None) => false,
        };
        if !is_there {
            return Err(WrongUse::new(format!("cannot open '{source}': dataset does not exist")).into());
        }
        Ok(match (snapshot, is_recursive) {
            (Some((dataset, snapshot)), true) => {
                let short = bookmark.split_once('#').map_or("", |(_, short)| short);
                bookmarks_below(pool, dataset, snapshot, short).await?
            }
            _ => vec![NewBookmark { name: bookmark.clone(), source: source.clone() }],
        })
    }
}

impl Request for BookmarkRequest {
    type Made = ();

    fn subject(&self) -> &str {
        &self.source
    }

    #[boxed]
    async fn run(&self, pool: &Pool, _: &dyn Users) -> Result<(), AdminError> {
        pool.sync_task(CreateBookmarks(self.all(pool).await?)).await
    }

    fn history_line(&self) -> Option<Line> {
        Some(self.line.clone())
    }
}

/// The dataset and the snapshot of a source that is one.
fn snapshot_of(source: &str) -> Option<(&str, &str)> {
    source.split_once('@').filter(|(dataset, _)| !dataset.contains('#'))
}

/// Both names in full.
fn full_names(source: &str, bookmark: &str) -> Result<(String, String), WrongUse> {
    let Some(at) = source.find(['@', '#']) else {
        return Err(WrongUse::new(format!("invalid source name '{source}': must contain a '@' or '#'")));
    };
    let Some(pound) = bookmark.find('#') else {
        return Err(WrongUse::new(format!("invalid bookmark name '{bookmark}': must contain a '#'")));
    };
    match (at, pound) {
        (0, 0) => Err(WrongUse::new("either source or bookmark must be specified as full dataset paths")),
        (0, _) => Ok((format!("{}{source}", &bookmark[..pound]), bookmark.to_owned())),
        (_, 0) => Ok((source.to_owned(), format!("{}{bookmark}", &source[..at]))),
        _ => Ok((source.to_owned(), bookmark.to_owned())),
    }
}

/// The bookmarks that a recursive one comes to: for a dataset and each below it that has a snapshot of this name, a bookmark of it.
///
/// # Errors
/// There is no such dataset, or the MOS cannot be read.
async fn bookmarks_below(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_be_left_to_the_other_and_what_names_nothing_is_refused() {
        let names = |source, bookmark| full_names(source, bookmark).map_err(|error| error.to_string());
        let both = |source: &str, bookmark: &str| Ok((source.to_owned(), bookmark.to_owned()));
        assert_eq!(names("a/b@1", "#x"), both("a/b@1", "a/b#x"));
        assert_eq!(names("@1", "a#x"), both("a@1", "a#x"));
        assert_eq!(names("a#1", "a#x"), both("a#1", "a#x"));
        assert!(names("@1", "#x").unwrap_err().contains("full dataset paths"));
        assert!(names("a", "a#x").unwrap_err().contains("source name"));
        assert!(names("a@1", "x").unwrap_err().contains("bookmark name"));
        assert!(BookmarkRequest::parse("a#1", "#x", true).is_err());
    }
}
