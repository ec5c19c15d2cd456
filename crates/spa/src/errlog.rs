//! The pool's error log: blocks that could not be read, kept in the MOS.
//!
//! # Theory
//!
//! **Need.** A file that cannot be read is named to whoever looks after the pool, also when the process that met the error has gone, and
//! also by OpenZFS's tools.
//!
//! **On disk.** Two logs, of the last scrub and since ([`cenote_format::errlog`]). With the feature `head_errlog` errors are kept by head
//! dataset, with the block's birth: which of the head's snapshots have the block follows from that.
//!
//! **Life of an entry.**
//! 1. A read fails for good: the pipeline notes the block ([`cenote_zio::DataErrors`]). Reports of this process have it from then on.
//! 2. The next txg enters what is new into the log (`sync::errlog`). A pool that is written in the background gets such a txg soon.
//! 3. `zpool clear` reads each block again (`pool::errlog`). An entry goes whose block can be read again, or which no dataset has any more.
//! 4. A scrub of the whole pool, or of the errors (`zpool scrub -e`), enters what it finds into the log of the scrub, which takes the place of the other one at
//!    its end (`sync::scan`). So what is not found any more goes.
//!
//! **Invariants.**
//! 1. A log has [`LOGGED_MAX`] entries at most, so damage does not fill the MOS.
//! 2. An error log that cannot be written fails no txg: it is told.
//! 3. An entry is dropped only after its block was read, or found to be in no dataset; by a scrub, only at its end.
//!
//! **Crash.** The errors since the last txg are lost; who reads the blocks again finds them again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cenote_dmu::{Object, Objset, Zap};
use cenote_dsl::{Dataset, Dsl};
use cenote_format::dsl::pool_directory;
use cenote_format::errlog::{ErrorBookmark, parse_bookmark};
use cenote_format::ids::{BlockId, ObjectId, ObjsetId, Txg};
use cenote_taskq::boxed;
use cenote_vdev::queue::QueueClass;
use cenote_zio::{Bookmark, DataError};

use crate::{SpaError, View};

/// Errors listed at most, and datasets that have some.
const ERRORS_MAX: usize = 1 << 20;
/// Of so many errors at most it is looked whether their blocks are in use still.
const CHECKED_MAX: usize = 1 << 12;
/// Heads at most in which a block is looked for: clones of clones.
const HEADS_MAX: usize = 1 << 10;
/// Entries that are written to a log at most.
pub(crate) const LOGGED_MAX: u64 = 1 << 16;
/// The feature under which errors are kept by head dataset.
pub(crate) const HEAD_ERRLOG: &str = "com.delphix:head_errlog";

/// A block that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoggedError {
    /// The dataset; 0 for the MOS.
    pub objset: ObjsetId,
    /// The object.
    pub object: ObjectId,
    /// The block's level.
    pub level: i64,
    /// The block.
    pub block: u64,
    /// The block's birth, where it is recorded.
    pub birth: Option<Txg>,
}

/// The head of the dataset that this number names. Without one, the number itself.
pub(crate) async fn head_of(dsl: &Dsl, objset: ObjsetId) -> (ObjectId, bool) {
    let dataset = ObjectId(objset.0);
    let head = async {
        let phys = dsl.dataset_phys(dataset).await.ok()?;
        Some(dsl.dir_phys(phys.dir).await.ok()?.head_dataset)
    };
    match head.await {
        Some(head) if objset.0 != 0 => (head, true),
        _ => (dataset, objset.0 == 0),
    }
}

impl View {
    /// The errors that the pool's logs record, and those that this process has met, each once. Of those whose block was freed or written anew
    /// everywhere nothing is said.
    #[boxed]
    pub async fn logged_errors(&self) -> Result<Vec<LoggedError>, SpaError> {
        let all = self.all_logged_errors().await?;
        if all.len() > CHECKED_MAX {
            return Ok(all);
        }
        let mut found = Vec::new();
        for error in all {
            if !self.affected(&error).await.is_empty() {
                found.push(error);
            }
        }
        Ok(found)
    }

    /// The same with those whose block is gone.
    #[boxed]
    pub(crate) async fn all_logged_errors(&self) -> Result<Vec<LoggedError>, SpaError> {
        let mut found = BTreeSet::new();
        // A system without the feature reads no such pool at all.
        let counts = self.feature_counts(pool_directory::FEATURES_FOR_READ).await?;
        let is_by_head = counts.get(HEAD_ERRLOG).is_some_and(|count| *count > 0);
        for entry in [pool_directory::ERRLOG_LAST, pool_directory::ERRLOG_SCRUB] {
            let Some(id) = self.directory_number(entry).await?.filter(|id| *id != 0) else { continue };
            for (name, value) in self.log_entries(ObjectId(id)).await? {
                if !is_by_head {
                    found.extend(parse_bookmark(name.as_bytes()).map(|block| LoggedError {
                        objset: block.objset,
                        object: block.object,
                        level: block.level,
                        block: block.block,
                        birth: None,
                    }));
                    continue;
                }
                let (Ok(head), Some(list)) = (u64::from_str_radix(&name, 16), value) else { continue };
                for (name, _) in self.log_entries(ObjectId(list)).await? {
                    found.extend(ErrorBookmark::from_name(name.as_bytes()).map(|block| LoggedError {
                        objset: ObjsetId(head),
                        object: block.object,
                        level: block.level,
                        block: block.block,
                        birth: Some(block.birth),
                    }));
                    if found.len() >= ERRORS_MAX {
                        return Ok(found.into_iter().collect());
                    }
                }
            }
        }
        let mut heads = BTreeMap::new();
        for error in self.dmu().zio().data_errors().known() {
            let mut objset = error.bookmark.objset;
            let mut birth = None;
            if is_by_head {
                let (head, is_known) = match heads.get(&objset) {
                    Some(head) => *head,
                    None => head_of(self.dsl(), objset).await,
                };
                heads.insert(objset, (head, is_known));
                objset = ObjsetId(head.0);
                birth = Some(if is_known { error.birth } else { Txg(0) });
            }
            let (level, block) = (i64::from(error.bookmark.level), error.bookmark.block.0);
            found.insert(LoggedError { objset, object: error.bookmark.object, level, block, birth });
        }
        Ok(found.into_iter().collect())
    }

    /// Whether the logs have any entries, with those whose blocks are gone.
    ///
    /// # Errors
    /// The logs cannot be read.
    #[boxed]
    pub async fn has_logged_errors(&self) -> Result<bool, SpaError> {
        Ok(!self.all_logged_errors().await?.is_empty())
    }

    /// How many errors the logs record.
    #[boxed]
    pub async fn error_count(&self) -> Result<u64, SpaError> {
        Ok(self.logged_errors().await?.len() as u64)
    }

    /// The datasets in which a logged block is still, by the numbers of their objects: the head that the log names, and the heads that share it as
    /// clones, with their snapshots. An error whose birth is not known is in the dataset that the log names. None where the block is nowhere any
    /// more.
    #[boxed]
    pub async fn affected(&self, error: &LoggedError) -> Vec<ObjectId> {
        let named = ObjectId(error.objset.0);
        let Some(birth) = error.birth.filter(|birth| birth.0 != 0 && named.0 != 0) else { return vec![named] };
        let Ok(name) = self.dsl().dataset_name(named).await else { return Vec::new() };
        let Ok(head) = self.dsl().dataset(&name).await else { return vec![named] };
        let mut heads = self.with_origins_since(head, birth).await;
        let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
        while let Some(head) = heads.pop_front() {
            if seen.len() >= HEADS_MAX || !seen.insert(head.object) {
                continue;
            }
            if self.may_have(&head, error, birth).await {
                found.push(head.object);
            }
            let Ok(snapshots) = self.dsl().snapshots(&head).await else {
                if head.object == named && !found.contains(&named) {
                    found.push(named);
                }
                continue;
            };
            for snapshot in snapshots.into_iter().filter(|of| of.phys.creation_txg >= birth) {
                if !self.may_have(&snapshot, error, birth).await {
                    continue;
                }
                found.push(snapshot.object);
                // Clones that cannot be told are not named.
                for clone in self.dsl().clones(&snapshot).await.unwrap_or_default() {
                    heads.extend(self.dsl().dataset(&clone).await.ok());
                }
            }
        }
        found
    }

    /// A head, and those of whose snapshots it is a clone, as far as these were taken in a txg or later.
    async fn with_origins_since(&self, head: Dataset, txg: Txg) -> VecDeque<Dataset> {
        let mut heads = VecDeque::from([head]);
        while heads.len() < HEADS_MAX {
            let Some(origin) = heads.back().map(|last| last.dir.phys.origin).filter(|origin| origin.0 != 0) else {
                break;
            };
            let Ok(phys) = self.dsl().dataset_phys(origin).await else { break };
            let (head, _) = head_of(self.dsl(), ObjsetId(origin.0)).await;
            let Ok(name) = self.dsl().dataset_name(head).await else { break };
            match self.dsl().dataset(&name).await {
                Ok(head) if phys.creation_txg >= txg => heads.push_back(head),
                _ => break,
            }
        }
        heads
    }

    /// Whether a logged block is in a dataset. Where that cannot be read, it is not well.
    async fn may_have(&self, dataset: &Dataset, error: &LoggedError, birth: Txg) -> bool {
        self.born(dataset, error).await.is_none_or(|there| there == birth)
    }

    /// The birth of the block that is in the place of a logged one; 0 if there is none. `None` if that cannot be told.
    async fn born(&self, dataset: &Dataset, error: &LoggedError) -> Option<Txg> {
        let objset = self.dsl().open(dataset).await.ok()??;
        Some(pointer(&objset, error).await.ok()??.logical_birth())
    }

    /// Reads a logged block again, where it is still.
    #[boxed]
    pub(crate) async fn is_well(&self, error: &LoggedError) -> bool {
        if error.objset.0 == 0 {
            return is_readable(self.mos(), error).await;
        }
        let datasets = self.affected(error).await;
        for object in datasets {
            // A dataset that is gone has no bad blocks.
            let Ok(name) = self.dsl().dataset_name(object).await else { continue };
            let opened = match self.dsl().dataset(&name).await {
                Ok(dataset) => self.dsl().open(&dataset).await,
                Err(_) => return false,
            };
            match opened {
                Ok(Some(objset)) => {
                    if !is_readable(&objset, error).await {
                        return false;
                    }
                }
                Ok(None) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// The entries of the log of the next dataset at or behind this cursor, as [`crate::ScanWork::Errors`] has it, and the cursor behind them. None at the
    /// log's end. Only of pools with the feature `head_errlog`.
    ///
    /// # Errors
    /// The log cannot be read.
    #[boxed]
    pub async fn errors_from(&self, cursor: u64) -> Result<Option<(Vec<LoggedError>, u64)>, SpaError> {
        let Some(id) = self.directory_number(pool_directory::ERRLOG_LAST).await?.filter(|id| *id != 0) else {
            return Ok(None);
        };
        let next = async {
            let log = Zap::open(self.mos().object(ObjectId(id)).await?).await?;
            let mut listing = log.listing();
            while let Some(batch) = listing.next().await? {
                if let Some(entry) = batch.into_iter().find(|entry| !log.is_before_cursor(entry, cursor)) {
                    return Ok(Some((log.cursor_after(&entry), entry)));
                }
            }
            Ok(None)
        };
        let Some((after, entry)) = next.await.map_err(|error: cenote_dmu::DmuError| self.error(error))? else {
            return Ok(None);
        };
        let name = String::from_utf8_lossy(entry.name()).into_owned();
        let (Ok(head), Some(list)) = (u64::from_str_radix(&name, 16), entry.value.as_u64()) else {
            return Ok(Some((Vec::new(), after)));
        };
        let entries = self.log_entries(ObjectId(list)).await?;
        let errors = entries.iter().filter_map(|(name, _)| ErrorBookmark::from_name(name.as_bytes()));
        let errors = errors.map(|block| LoggedError {
            objset: ObjsetId(head),
            object: block.object,
            level: block.level,
            block: block.block,
            birth: Some(block.birth),
        });
        Ok(Some((errors.collect(), after)))
    }

    /// Reads all copies of a logged block wherever it is still, and has bad copies written again. Where it cannot be told how it is, or no copy is
    /// good, it is noted as an error once more.
    #[boxed]
    pub async fn scrub_error(&self, error: &LoggedError) -> ErrorScrubbed {
        let scrubbed = match error.objset.0 {
            0 => scrub_in(self.mos(), error).await,
            _ => self.scrub_in_datasets(error).await,
        };
        let bookmark = Bookmark {
            objset: error.objset,
            object: error.object,
            level: i8::try_from(error.level).unwrap_or(i8::MIN),
            block: BlockId(error.block),
        };
        if scrubbed == ErrorScrubbed::Bad {
            let birth = error.birth.unwrap_or_default();
            self.dmu().zio().data_errors().note_again(DataError { bookmark, birth });
        }
        scrubbed
    }

    async fn scrub_in_datasets(&self, error: &LoggedError) -> ErrorScrubbed {
        let mut worst = ErrorScrubbed::Well;
        for object in self.affected(error).await {
            // One that is gone has no bad blocks.
            let Ok(name) = self.dsl().dataset_name(object).await else { continue };
            let opened = match self.dsl().dataset(&name).await {
                Ok(dataset) => self.dsl().open(&dataset).await,
                Err(error) => Err(error),
            };
            worst = worst.max(match opened {
                Ok(Some(objset)) => scrub_in(&objset, error).await,
                Ok(None) => ErrorScrubbed::Well,
                Err(_) => ErrorScrubbed::Bad,
            });
        }
        worst
    }

    async fn log_entries(&self, object: ObjectId) -> Result<Vec<(String, Option<u64>)>, SpaError> {
        let entries = async {
            let zap = Zap::open(self.mos().object(object).await?).await?;
            zap.entries(ERRORS_MAX).await
        };
        let entries = entries.await.map_err(|error| self.error(error))?;
        Ok(entries
            .into_iter()
            .map(|entry| (String::from_utf8_lossy(entry.name()).into_owned(), entry.value.as_u64()))
            .collect())
    }
}

/// How a logged block is, as a scrub of it has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorScrubbed {
    /// Nobody has it any more, or a copy everywhere is good.
    Well,
    /// No copy is good, or that cannot be told.
    Bad,
    /// A copy is good, and a bad one could not be written again since devices are being changed, or the pool is suspended: it is to be visited again.
    Refused,
}

/// The object of a logged error.
#[boxed]
async fn object(objset: &Objset, error: &LoggedError) -> Result<Object, cenote_dmu::DmuError> {
    match error.object.0 {
        0 => Ok(objset.meta_dnode()),
        _ => objset.object(error.object).await,
    }
}

/// The pointer to the block that is in the place of a logged one. `None` where the place is no block of an object.
async fn pointer(
    objset: &Objset,
    error: &LoggedError,
) -> Result<Option<cenote_format::blkptr::Blkptr>, cenote_dmu::DmuError> {
    let Ok(level) = u8::try_from(error.level) else { return Ok(None) };
    match object(objset, error).await {
        Ok(object) if object.phys().levels > level => object.pointer(level, BlockId(error.block)).await.map(Some),
        Ok(_) => Ok(Some(cenote_format::blkptr::Blkptr::HOLE)),
        Err(error) if error.is_absent() => Ok(Some(cenote_format::blkptr::Blkptr::HOLE)),
        Err(error) => Err(error),
    }
}

/// The same of one dataset.
async fn scrub_in(objset: &Objset, error: &LoggedError) -> ErrorScrubbed {
    let (pointer, context) = match pointer(objset, error).await {
        Ok(Some(pointer)) => {
            let level = pointer.level();
            (pointer, objset.context(error.object, level, BlockId(error.block)))
        }
        // The root, which could be read.
        Ok(None) => return ErrorScrubbed::Well,
        Err(_) => return ErrorScrubbed::Bad,
    };
    if pointer.is_hole() || pointer.is_embedded() || pointer.is_redacted() {
        return ErrorScrubbed::Well;
    }
    if error.birth.is_some_and(|birth| birth.0 != 0 && birth != pointer.logical_birth()) {
        return ErrorScrubbed::Well;
    }
    match objset.dmu().zio().scrub_block(&pointer, context.of_class(QueueClass::Scrub)).await {
        Ok(scrubbed) if scrubbed.is_refused() => ErrorScrubbed::Refused,
        Ok(_) => ErrorScrubbed::Well,
        Err(_) => ErrorScrubbed::Bad,
    }
}

/// Reads the block that is in the place of a logged one, past the cache. True if it can be, or nothing or another one is there. Its errors are known: they are
/// counted no more, but those of gangs.
async fn is_readable(objset: &Objset, error: &LoggedError) -> bool {
    let pointer = match pointer(objset, error).await {
        Ok(Some(pointer)) => pointer,
        // The root of an objset that could be opened.
        Ok(None) => return true,
        Err(_) => return false,
    };
    if pointer.is_hole() || pointer.is_embedded() || pointer.is_redacted() {
        return true;
    }
    if error.birth.is_some_and(|birth| birth.0 != 0 && birth != pointer.logical_birth()) {
        return true;
    }
    let zio = objset.dmu().zio();
    if pointer.dvas().all(|dva| !dva.gang) {
        return zio.read_speculative(&pointer).await.is_ok();
    }
    let context = objset.context(error.object, pointer.level(), BlockId(error.block));
    zio.read_physical(&pointer, context).await.is_ok()
}
