//! Bookmarks: what remains of a snapshot when only its time is wanted.

use cenote_dmu::Zap;
use cenote_format::dsl::dataset_field;
use cenote_format::dsl::{BookmarkPhys, RedactionListPhys};
use cenote_format::ids::ObjectId;

use crate::{Dataset, Dsl, DslError};

/// Bookmarks of one dataset at most, as a bound on memory.
const BOOKMARKS_MAX: usize = 1 << 22;

/// A bookmark of a dataset.
#[derive(Clone, Debug)]
pub struct Bookmark {
    /// The full name: `pool/a#name`.
    pub name: String,
    /// Its fields.
    pub phys: BookmarkPhys,
}

impl Dsl {
    /// The bookmarks of a head, sorted by name.
    pub async fn bookmarks(&self, head: &Dataset) -> Result<Vec<Bookmark>, DslError> {
        let mut found = Vec::new();
        let Some(object) = self.dataset_field(head, dataset_field::BOOKMARK_NAMES).await? else { return Ok(found) };
        let zap = Zap::open(self.mos_object(ObjectId(object)).await?).await?;
        for entry in zap.entries(BOOKMARKS_MAX).await? {
            let words: Vec<u64> = entry.value.integers().collect();
            let phys = BookmarkPhys::from_words(&words).map_err(|error| DslError::Format { object, error })?;
            found.push(Bookmark { name: format!("{}#{}", head.dir.name, String::from_utf8_lossy(entry.name())), phys });
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The guids of the snapshots that a redaction bookmark was made for; `None` if it is no such bookmark.
    pub async fn bookmark_redaction(&self, bookmark: &Bookmark) -> Result<Option<Vec<u64>>, DslError> {
        let object = bookmark.phys.redaction_list;
        if object.0 == 0 {
            return Ok(None);
        }
        let dnode = self.mos_object(object).await?;
        let phys = RedactionListPhys::parse(&dnode.phys().bonus, dnode.byte_order())
            .map_err(|error| DslError::Format { object: object.0, error })?;
        Ok(Some(phys.snapshots.iter().map(|guid| guid.0).collect()))
    }
}
