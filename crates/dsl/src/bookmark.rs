//! Bookmarks: the guid and txg of a snapshot, kept as a source of incremental streams after the snapshot is destroyed.
//!
//! ```text
//! head (a table of extra fields) ── bookmarks ─► ZAP: name ─► 3 words    guid, txg and time of the snapshot
//!                                                          or 12 words   and its sizes, what was freed of it, its set of IVs
//! ```
//! **Need.** An incremental stream starts at the txg of a snapshot, and needs nothing else of it. A bookmark keeps this txg, and (feature
//! `bookmark_written`) the sizes from which `written#` is computed.
//!
//! **Life of a bookmark.** It is created from a snapshot of the dataset or of its origins, or copied from a bookmark of these. It is
//! destroyed by name or with its dataset; a promotion moves it together with the snapshots of its time. Module `freed` maintains its
//! counts of freed blocks.
//!
//! **Invariants.** 1. A bookmark is written in the short form unless it needs the fields of the long one, so that older software can read
//! it. 2. The features count datasets with bookmarks (`bookmarks`), long bookmarks (`bookmark_v2`), those with sizes (`bookmark_written`)
//! and those with a list of redacted blocks ([`BookmarkCounts`]). 3. A ZAP of bookmarks is never empty.

use cenote_dmu::{ObjectSpec, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::dataset_field;
use cenote_format::dsl::{BookmarkFlags, BookmarkPhys, DatasetFlags};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::{NormFlags, ZapValue};
use cenote_taskq::boxed;

use crate::bpobj::EmptyRefs;
use crate::{Dataset, Dsl, DslError};

/// Bookmarks of one dataset at most, as a bound on memory.
const BOOKMARKS_MAX: usize = 1 << 22;
/// The maximum length of a chain of clones, as a bound on a walk.
const ORIGINS_MAX: usize = 1 << 22;
/// Words of the short form.
const SHORT_WORDS: usize = 3;

/// A bookmark of a dataset.
#[derive(Clone, Debug)]
pub struct Bookmark {
    /// The full name: `pool/a#name`.
    pub name: String,
    /// Its fields.
    pub phys: BookmarkPhys,
}

impl Bookmark {
    /// The part after `#`.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.name.split_once('#').map_or("", |(_, name)| name)
    }

    /// True if it records its snapshot's sizes, and how much of that was freed.
    #[must_use]
    pub const fn has_sizes(&self) -> bool {
        self.phys.flags.contains(BookmarkFlags::HAS_FREED_BEFORE_NEXT)
    }
}

/// Changes of the reference counts of the features that concern bookmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BookmarkCounts {
    /// Datasets with bookmarks.
    pub bookmarks: i64,
    /// Bookmarks of the long form.
    pub bookmark_v2: i64,
    /// Bookmarks that record sizes.
    pub bookmark_written: i64,
    /// Bookmarks with a list of redacted blocks.
    pub redaction_bookmarks: i64,
    /// Lists of redacted blocks that store their snapshots in a spill block.
    pub redaction_list_spill: i64,
    /// Datasets that were zapified.
    pub extensible_dataset: i64,
}

impl BookmarkCounts {
    /// Adds `by` for one bookmark: 1 or -1.
    fn count(&mut self, phys: &BookmarkPhys, is_long: bool, by: i64) {
        let written = phys.flags.contains(BookmarkFlags::HAS_FREED_BEFORE_NEXT);
        self.bookmark_v2 += by * i64::from(is_long);
        self.bookmark_written += by * i64::from(written);
        self.redaction_bookmarks += by * i64::from(phys.redaction_list.0 != 0);
    }

    /// Each feature's name and change.
    #[must_use]
    pub const fn changes(&self) -> [(&'static str, i64); 6] {
        [
            ("bookmarks", self.bookmarks),
            ("bookmark_v2", self.bookmark_v2),
            ("bookmark_written", self.bookmark_written),
            ("redaction_bookmarks", self.redaction_bookmarks),
            ("redaction_list_spill", self.redaction_list_spill),
            ("extensible_dataset", self.extensible_dataset),
        ]
    }
}

/// The parts of a bookmark that the pool's features allow.
#[derive(Clone, Copy, Debug)]
pub struct BookmarkForm {
    /// The set of IVs (feature `bookmark_v2`).
    pub has_ivset: bool,
    /// Sizes (feature `bookmark_written`).
    pub has_sizes: bool,
}

pub(crate) fn value(phys: &BookmarkPhys) -> ZapValue {
    ZapValue::from_u64s(&phys.words())
}

/// An entry of a table: its short name, its fields, and whether it has the long form.
pub(crate) type Entry = (String, BookmarkPhys, bool);

impl Dsl {
    /// The table of a head's bookmarks; `None` where it has none.
    #[boxed]
    pub(crate) async fn bookmark_table(&self, head: ObjectId) -> Result<Option<ObjectId>, DslError> {
        Ok(self.object_field(head, dataset_field::BOOKMARK_NAMES).await?.map(ObjectId))
    }

    /// All bookmarks of a head, in no order.
    #[boxed]
    pub(crate) async fn bookmark_entries(&self, head: ObjectId) -> Result<Vec<Entry>, DslError> {
        let mut found = Vec::new();
        let Some(object) = self.bookmark_table(head).await? else { return Ok(found) };
        let zap = Zap::open(self.mos_object(object).await?).await?;
        for entry in zap.entries(BOOKMARKS_MAX).await? {
            let words: Vec<u64> = entry.value.integers().collect();
            let phys = BookmarkPhys::from_words(&words);
            let phys = phys.map_err(|error| DslError::Format { object: object.0, error })?;
            found.push((String::from_utf8_lossy(entry.name()).into_owned(), phys, words.len() > SHORT_WORDS));
        }
        Ok(found)
    }

    /// The bookmarks of a head, sorted by name.
    #[boxed]
    pub async fn bookmarks(&self, head: &Dataset) -> Result<Vec<Bookmark>, DslError> {
        let full = |(name, phys, _): Entry| Bookmark { name: format!("{}#{name}", head.dir.name), phys };
        let mut found: Vec<Bookmark> = self.bookmark_entries(head.object).await?.into_iter().map(full).collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// A head's bookmark with this short name. In a case-insensitive dataset, a name that differs only in case matches too.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn bookmark(&self, head: &Dataset, name: &str) -> Result<Option<Bookmark>, DslError> {
        let full = |name: &str, phys| Bookmark { name: format!("{}#{name}", head.dir.name), phys };
        if head.phys.flags.contains(DatasetFlags::CASE_INSENSITIVE) {
            let all = self.bookmark_entries(head.object).await?;
            let found = all.into_iter().find(|(other, ..)| other.eq_ignore_ascii_case(name));
            return Ok(found.map(|(name, phys, _)| full(&name, phys)));
        }
        let Some(table) = self.bookmark_table(head.object).await? else { return Ok(None) };
        let found = Zap::open(self.mos_object(table).await?).await?.lookup(name.as_bytes()).await?;
        let Some(found) = found else { return Ok(None) };
        let phys = BookmarkPhys::from_words(&found.integers().collect::<Vec<u64>>());
        let phys = phys.map_err(|error| DslError::Format { object: table.0, error })?;
        Ok(Some(full(name, phys)))
    }

    /// True if the snapshot or bookmark of directory `dir` with txg `txg` is earlier than a dataset in its line: in the same directory, or in
    /// one that it is a clone of.
    ///
    /// # Errors
    /// The MOS cannot be read, or contradicts itself.
    #[boxed]
    pub async fn is_earlier(&self, later: &Dataset, dir: ObjectId, txg: Txg) -> Result<bool, DslError> {
        let mut later = later.clone();
        for _ in 0..ORIGINS_MAX {
            if later.is_snapshot() && txg >= later.phys.creation_txg {
                return Ok(false);
            }
            if later.dir.object == dir {
                return Ok(true);
            }
            let origin = later.dir.phys.origin;
            if origin.0 == 0 {
                return Ok(false);
            }
            // Only that it is a snapshot matters, not its name.
            let found = self.dataset_object(origin, later.dir.clone(), Some(String::new())).await?;
            later = Dataset { dir: self.dir_object(found.phys.dir, String::new()).await?, ..found };
            if later.dir.object == dir && later.phys.creation_txg == txg {
                return Ok(true);
            }
        }
        Err(DslError::Corrupt { object: later.object.0, what: "too many origins one before the other".to_owned() })
    }

    /// The fields of a new bookmark of a snapshot, without a list of redacted blocks.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn bookmark_fields(&self, snapshot: ObjectId, form: BookmarkForm) -> Result<BookmarkPhys, DslError> {
        let phys = self.dataset_phys(snapshot).await?;
        let mut ivset_guid = 0;
        if form.has_ivset {
            ivset_guid = self.object_field(snapshot, dataset_field::IVSET_GUID).await?.unwrap_or(0);
        }
        let mut made = BookmarkPhys {
            guid: phys.guid,
            creation_txg: phys.creation_txg,
            creation_time: phys.creation_time,
            redaction_list: ObjectId(0),
            flags: BookmarkFlags::empty(),
            referenced_bytes: 0,
            compressed_bytes: 0,
            uncompressed_bytes: 0,
            referenced_freed_bytes: 0,
            compressed_freed_bytes: 0,
            uncompressed_freed_bytes: 0,
            ivset_guid,
        };
        if form.has_sizes {
            made.flags = BookmarkFlags::HAS_FREED_BEFORE_NEXT | BookmarkFlags::SNAPSHOT_EXISTS;
            made.referenced_bytes = phys.referenced_bytes;
            made.compressed_bytes = phys.compressed_bytes;
            made.uncompressed_bytes = phys.uncompressed_bytes;
            let next = self.dataset_phys(phys.next_snapshot).await?;
            let freed = self.deadlist_sizes(next.deadlist, None).await?;
            made.referenced_freed_bytes = freed.used_bytes;
            made.compressed_freed_bytes = freed.compressed_bytes;
            made.uncompressed_freed_bytes = freed.uncompressed_bytes;
        }
        Ok(made)
    }

    /// Adds a bookmark to a head, which has none of this name. `counts` records how the features' counts change.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn add_bookmark(
        &self,
        txg: Txg,
        head: ObjectId,
        name: &str,
        phys: &BookmarkPhys,
        counts: &mut BookmarkCounts,
    ) -> Result<(), DslError> {
        let table = match self.bookmark_table(head).await? {
            Some(table) => self.mos().object(table).await?,
            None => {
                let table = self.mos().create_object(txg, &ObjectSpec::new(DmuType::ZAP_METADATA, 512))?;
                Zap::create_with(table.clone(), NormFlags::TO_UPPER)?.flush(txg).await?;
                let field = ZapValue::from_u64(table.id().0);
                let zapified = self.put_dataset_field(txg, head, dataset_field::BOOKMARK_NAMES, &field).await?;
                counts.extensible_dataset += i64::from(zapified);
                counts.bookmarks += 1;
                table
            }
        };
        let mut zap = Zap::open(table).await?;
        zap.insert(name.as_bytes(), &value(phys)).await?;
        zap.flush(txg).await?;
        counts.count(phys, phys.words().len() > SHORT_WORDS, 1);
        self.forget_kept(head);
        Ok(())
    }

    /// Removes a bookmark from a head, and with the last one their table.
    #[boxed]
    pub(crate) async fn take_bookmark_out(
        &self,
        txg: Txg,
        head: ObjectId,
        name: &str,
        counts: &mut BookmarkCounts,
    ) -> Result<BookmarkPhys, DslError> {
        let absent = || DslError::NoSuchDataset(format!("#{name}"));
        let table = self.bookmark_table(head).await?.ok_or_else(absent)?;
        let table = self.mos().object(table).await?;
        let mut zap = Zap::open(table.clone()).await?;
        let words: Vec<u64> = zap.remove(name.as_bytes()).await?.integers().collect();
        let phys = BookmarkPhys::from_words(&words);
        let phys = phys.map_err(|error| DslError::Format { object: table.id().0, error })?;
        counts.count(&phys, words.len() > SHORT_WORDS, -1);
        if zap.entry_count()? > 0 {
            zap.flush(txg).await?;
        } else {
            table.free(txg);
            Zap::put_entry(&self.mos().object(head).await?, txg, dataset_field::BOOKMARK_NAMES, None).await?;
            counts.bookmarks -= 1;
        }
        self.forget_kept(head);
        Ok(phys)
    }

    /// Destroys a bookmark of a head. `refs` records references to the pool's empty list that are added or released.
    ///
    /// # Errors
    /// There is none of this name, or the MOS cannot be changed.
    #[boxed]
    pub async fn destroy_bookmark(
        &self,
        txg: Txg,
        head: ObjectId,
        name: &str,
        counts: &mut BookmarkCounts,
        refs: &mut EmptyRefs,
    ) -> Result<(), DslError> {
        let gone = self.take_bookmark_out(txg, head, name, counts).await?;
        self.free_redaction_list(txg, &gone, counts).await?;
        self.release_key(txg, head, &gone, refs).await
    }

    /// Destroys all bookmarks of a head that is being destroyed.
    #[boxed]
    pub(crate) async fn destroy_bookmarks(
        &self,
        txg: Txg,
        head: ObjectId,
        counts: &mut BookmarkCounts,
    ) -> Result<(), DslError> {
        self.forget_kept(head);
        let Some(table) = self.bookmark_table(head).await? else { return Ok(()) };
        for (_, phys, is_long) in self.bookmark_entries(head).await? {
            counts.count(&phys, is_long, -1);
            self.free_redaction_list(txg, &phys, counts).await?;
        }
        self.mos().object(table).await?.free(txg);
        counts.bookmarks -= 1;
        Ok(())
    }
}
