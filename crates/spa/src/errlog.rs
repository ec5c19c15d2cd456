//! The pool's error log: blocks that could not be read, kept in the MOS.
//!
//! Two logs, of the last scrub and since. With the feature `head_errlog` errors are kept by head dataset; which of its
//! snapshots have the block follows from the block's birth.

use std::collections::BTreeSet;

use cenote_dmu::Zap;
use cenote_format::dsl::pool_directory;
use cenote_format::errlog::{ErrorBookmark, parse_bookmark};
use cenote_format::ids::{ObjectId, ObjsetId, Txg};
use cenote_taskq::boxed;

use crate::{SpaError, View};

/// Errors listed at most, and datasets that have some.
const ERRORS_MAX: usize = 1 << 20;
/// The feature under which errors are kept by head dataset.
const HEAD_ERRLOG: &str = "com.delphix:head_errlog";

/// An object with a block that could not be read.
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

impl View {
    /// The errors that the pool's logs record, each once.
    #[boxed]
    pub async fn logged_errors(&self) -> Result<Vec<LoggedError>, SpaError> {
        let mut found = BTreeSet::new();
        let counts = self.feature_counts(pool_directory::FEATURES_FOR_WRITE).await?;
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
        Ok(found.into_iter().collect())
    }

    /// How many errors the logs record.
    #[boxed]
    pub async fn error_count(&self) -> Result<u64, SpaError> {
        Ok(self.logged_errors().await?.len() as u64)
    }

    async fn log_entries(&self, object: ObjectId) -> Result<Vec<(String, Option<u64>)>, SpaError> {
        let entries = async {
            let zap = Zap::open(self.mos().object(object).await?).await?;
            zap.entries(ERRORS_MAX).await
        };
        let entries = entries.await.map_err(|error| self.dmu_error(error))?;
        Ok(entries
            .into_iter()
            .map(|entry| (String::from_utf8_lossy(entry.name()).into_owned(), entry.value.as_u64()))
            .collect())
    }
}
