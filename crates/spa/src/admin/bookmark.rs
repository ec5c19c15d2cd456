//! Bookmarks: made from snapshots and from other bookmarks, and destroyed.

use cenote_dsl::name::check_new_bookmark;
use cenote_dsl::{Bookmark, BookmarkCounts, BookmarkForm, Dataset, DslError, EmptyRefs, redaction_snapshots_max};
use cenote_format::dsl::{BookmarkPhys, RedactBlock, dir_field};
use cenote_format::ids::ObjectId;
use cenote_taskq::boxed;

use crate::sync::Syncer;
use crate::{Refusal, SpaError};

/// A bookmark that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBookmark {
    /// Its full name: `pool/dataset#bookmark`.
    pub name: String,
    /// The full name of the snapshot or the bookmark that it is made of.
    pub source: String,
}

/// The snapshot or bookmark that a new bookmark is made of.
enum Source {
    Snapshot(Box<Dataset>),
    Bookmark(Bookmark),
}

impl Syncer {
    /// The head of a bookmark's full name, and the short name.
    async fn head_of_bookmark(&self, name: &str) -> Result<Option<(Dataset, String)>, SpaError> {
        let Some((of, short)) = name.split_once('#') else { return Ok(None) };
        match self.dsl().dataset(of).await {
            Ok(head) => Ok(Some((head, short.to_owned()))),
            Err(DslError::NoSuchDataset(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The bookmark of this full name.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn find_bookmark(&self, name: &str) -> Result<Option<(Dataset, Bookmark)>, SpaError> {
        let Some((head, short)) = self.head_of_bookmark(name).await? else { return Ok(None) };
        let found = self.dsl().bookmark(&head, &short).await?;
        Ok(found.map(|bookmark| (head, bookmark)))
    }

    /// Whether a bookmark can be made.
    ///
    /// # Errors
    /// The feature is not enabled; a name is none, or is taken; there is no such dataset, snapshot or bookmark, or it is none that came before
    /// the dataset that is to have the bookmark.
    #[boxed]
    pub async fn check_bookmark(&self, new: &NewBookmark) -> Result<(), SpaError> {
        self.bookmark_source(new).await.map(drop)
    }

    #[boxed]
    async fn bookmark_source(&self, new: &NewBookmark) -> Result<(Dataset, Source), SpaError> {
        let name = &new.name;
        let cannot = |kind, why: &str| Err(SpaError::refused(kind, format!("cannot create bookmark '{name}': {why}")));
        if !self.mos.features.has("bookmarks") {
            return cannot(Refusal::NeedsFeature, "bookmark feature not enabled");
        }
        if check_new_bookmark(name).is_err() {
            return cannot(Refusal::Invalid, "invalid argument");
        }
        let pool = |name: &str| name.split(['/', '@', '#']).next().unwrap_or_default().to_owned();
        if pool(&new.source) != pool(name) {
            return cannot(Refusal::Invalid, "bookmark is in a different pool");
        }
        let dsl = self.dsl().clone();
        let Some((head, short)) = self.head_of_bookmark(name).await? else {
            return cannot(Refusal::NotThere, "dataset does not exist");
        };
        if dsl.bookmark(&head, &short).await?.is_some() {
            return cannot(Refusal::Exists, "bookmark exists");
        }
        let (dir, txg, source) = if new.source.contains('#') {
            let Some((of, bookmark)) = self.find_bookmark(&new.source).await? else {
                return cannot(Refusal::NotThere, "dataset does not exist");
            };
            (of.dir.object, bookmark.phys.creation_txg, Source::Bookmark(bookmark))
        } else {
            let snapshot = match dsl.dataset(&new.source).await {
                Ok(snapshot) if snapshot.is_snapshot() => snapshot,
                Ok(_) => return cannot(Refusal::Invalid, "invalid argument"),
                Err(DslError::NoSuchDataset(_)) => return cannot(Refusal::NotThere, "dataset does not exist"),
                Err(DslError::BadName { .. }) => return cannot(Refusal::Invalid, "invalid argument"),
                Err(error) => return Err(error.into()),
            };
            (snapshot.dir.object, snapshot.phys.creation_txg, Source::Snapshot(Box::new(snapshot)))
        };
        if let Source::Snapshot(snapshot) = &source {
            let redacted = dsl.redaction_snapshots(snapshot).await?;
            let limit = redaction_snapshots_max(self.mos.features.has("redaction_list_spill"));
            if redacted.is_some_and(|snapshots| snapshots.len() > limit) {
                let why = "the snapshot is redacted with respect to too many others (feature 'redaction_list_spill')";
                return cannot(Refusal::NeedsFeature, why);
            }
        }
        if !dsl.is_earlier(&head, dir, txg).await? {
            return cannot(Refusal::Invalid, "source is not an ancestor of the new bookmark's dataset");
        }
        Ok((head, source))
    }

    /// Makes a bookmark, of which [`Self::check_bookmark`] has said that it can be.
    ///
    /// # Errors
    /// As there, or the MOS cannot be changed.
    #[boxed]
    pub async fn create_bookmark(&mut self, new: &NewBookmark) -> Result<(), SpaError> {
        self.make_bookmark(new, None).await.map(drop)
    }

    /// Makes a redaction bookmark of a snapshot, by snapshots with these guids; [`Self::check_bookmark`] and
    /// [`Self::redaction_snapshots_max`] have said that it can be. Returns its list, which is empty and not complete.
    ///
    /// # Errors
    /// As [`Self::create_bookmark`].
    #[boxed]
    pub async fn create_redaction_bookmark(
        &mut self,
        new: &NewBookmark,
        snapshots: &[u64],
    ) -> Result<ObjectId, SpaError> {
        self.make_bookmark(new, Some(snapshots)).await
    }

    /// The snapshots that a redaction bookmark can be about in this pool; `None` where it can have none.
    #[must_use]
    pub fn redaction_snapshots_max(&self) -> Option<usize> {
        let has = |name| self.mos.features.has(name);
        has("redaction_bookmarks").then(|| redaction_snapshots_max(has("redaction_list_spill")))
    }

    /// Adds runs of blocks to the list of a redaction bookmark, and notes how far it came.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn add_redaction(
        &mut self,
        list: ObjectId,
        blocks: &[RedactBlock],
        last: (u64, u64),
    ) -> Result<(), SpaError> {
        Ok(self.mos.dsl.add_redaction(self.txg, list, blocks, last).await?)
    }

    async fn make_bookmark(&mut self, new: &NewBookmark, by: Option<&[u64]>) -> Result<ObjectId, SpaError> {
        let (head, source) = self.bookmark_source(new).await?;
        let (_, short) = new.name.split_once('#').expect("checked: it is a bookmark's name");
        let mut counts = BookmarkCounts::default();
        let (phys, of) = match &source {
            Source::Snapshot(snapshot) => (self.fields_of_new(snapshot, by, &mut counts).await?, snapshot.object),
            // A list of redacted blocks is one bookmark's: the copy is a plain one.
            Source::Bookmark(bookmark) => {
                (BookmarkPhys { redaction_list: ObjectId(0), ..bookmark.phys.clone() }, ObjectId(0))
            }
        };
        self.mos.dsl.add_bookmark(self.txg, head.object, short, &phys, &mut counts).await?;
        self.count_bookmarks(&counts);
        let (txg, list) = (phys.creation_txg, phys.redaction_list);
        let text = match source {
            Source::Snapshot(_) => format!("name={short} creation_txg={txg} target_snap={of} redact_obj={list}"),
            Source::Bookmark(_) => format!("name={short} creation_txg={txg} source_guid={}", phys.guid.0),
        };
        self.record_event("bookmark", &text, Some((&head.dir.name, head.object))).await?;
        Ok(list)
    }

    #[boxed]
    async fn fields_of_new(
        &self,
        snapshot: &Dataset,
        by: Option<&[u64]>,
        counts: &mut BookmarkCounts,
    ) -> Result<BookmarkPhys, SpaError> {
        let encrypted = self.mos.dsl.dir_field(&snapshot.dir, dir_field::CRYPTO_KEY_OBJECT).await;
        let encrypted = encrypted?.is_some();
        let form = BookmarkForm {
            has_ivset: encrypted && self.mos.features.has("bookmark_v2"),
            has_sizes: self.mos.features.has("bookmark_written"),
        };
        let mut phys = self.mos.dsl.bookmark_fields(snapshot.object, form).await?;
        let redacted = self.mos.dsl.redaction_snapshots(snapshot).await?;
        if let Some(snapshots) = redacted.as_deref().or(by) {
            // The blocks that a redacted snapshot lacks are not known any more: the list of its bookmark says by what it was redacted.
            let list = self.mos.dsl.create_redaction_list(self.txg, snapshots, redacted.is_some(), counts).await;
            phys.redaction_list = list?;
        }
        Ok(phys)
    }

    /// Destroys the bookmark of this full name. One that is not there is gone already.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn destroy_bookmark(&mut self, name: &str) -> Result<(), SpaError> {
        let Some((head, bookmark)) = self.find_bookmark(name).await? else { return Ok(()) };
        if self.is_long_held(bookmark.phys.redaction_list) {
            let what = format!("cannot destroy bookmark '{name}': 'zfs redact' is making it");
            return Err(SpaError::refused(Refusal::Busy, what));
        }
        let (mut counts, mut refs) = (BookmarkCounts::default(), EmptyRefs::default());
        let short = bookmark.short_name();
        self.mos.dsl.destroy_bookmark(self.txg, head.object, short, &mut counts, &mut refs).await?;
        self.count_bookmarks(&counts);
        self.mos.count_empty_refs(self.txg, refs).await?;
        self.record_event("remove bookmark", &format!("name={short}"), Some((&head.dir.name, head.object))).await
    }

    /// Takes in what a change of bookmarks changes in the counts of features.
    pub(crate) fn count_bookmarks(&mut self, counts: &BookmarkCounts) {
        for (feature, change) in counts.changes().into_iter().filter(|(_, change)| *change != 0) {
            self.mos.features.change(feature, change);
        }
    }
}
