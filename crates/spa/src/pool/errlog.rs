//! The error log of a pool in use; the theory is in [`crate::errlog`].

use std::sync::Arc;
use std::time::Duration;

use cenote_format::dsl::pool_directory;
use cenote_format::ids::ObjsetId;
use cenote_taskq::{Class, boxed};
use cenote_zio::DataError;

use super::Pool;
use super::shared::Shared;
use crate::errlog::{HEAD_ERRLOG, LoggedError, head_of};
use crate::{ImportOptions, SpaError};

/// New errors are written to the log this long after the first of them, as the changes of a pool that is hardly used are.
const LOGGED_AFTER: Duration = Duration::from_secs(5);

impl Shared {
    /// Has errors written to the log when there are new ones.
    pub(super) fn log_errors_soon(self: &Arc<Self>, errors: &cenote_zio::DataErrors) {
        let shared = Arc::downgrade(self);
        errors.when_new(move || {
            let (Some(of), later) = (shared.upgrade(), shared.clone()) else { return };
            let handle = of.handle.clone();
            of.handle.detach(Class::Sync, async move {
                handle.sleep(LOGGED_AFTER).await;
                if let Some(shared) = later.upgrade() {
                    shared.want_txg();
                }
            });
        });
    }
}

impl Pool {
    /// Looks at blocks that another process could not read: bad copies are written again, and those without a good one are noted as errors, which the next
    /// txg enters into the log.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn look_at_damage(&self, damaged: &[DataError]) -> Result<(), SpaError> {
        let view = self.view(&ImportOptions::default()).await?;
        let counts = view.feature_counts(pool_directory::FEATURES_FOR_READ).await?;
        let is_by_head = counts.get(HEAD_ERRLOG).is_some_and(|count| *count > 0);
        for DataError { bookmark, birth } in damaged {
            let (level, block) = (i64::from(bookmark.level), bookmark.block.0);
            let mut error = LoggedError { objset: bookmark.objset, object: bookmark.object, level, block, birth: None };
            if is_by_head {
                let (head, is_known) = head_of(view.dsl(), bookmark.objset).await;
                (error.objset, error.birth) = (ObjsetId(head.0), is_known.then_some(*birth));
            }
            view.scrub_error(&error).await;
        }
        view.check()
    }

    /// Reads all blocks of the error log again, and drops those that can be read or that no dataset has any more. How many are left.
    ///
    /// # Errors
    /// The log cannot be read, or the pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn check_errors_again(&self) -> Result<u64, SpaError> {
        let view = self.view(&ImportOptions::default()).await?;
        let errors = view.all_logged_errors().await?;
        let mut well: Vec<LoggedError> = Vec::new();
        for error in &errors {
            if view.is_well(error).await {
                well.push(*error);
            }
        }
        view.check()?;
        let left = (errors.len() - well.len()) as u64;
        if well.is_empty() {
            return Ok(left);
        }
        let known = view.dmu().zio().data_errors();
        let mut forgotten = Vec::new();
        for error in known.known() {
            let (head, _) = head_of(view.dsl(), error.bookmark.objset).await;
            let bookmark = error.bookmark;
            let is_it = |well: &LoggedError| {
                (well.objset == bookmark.objset || well.objset.0 == head.0)
                    && (well.object, well.level, well.block)
                        == (bookmark.object, i64::from(bookmark.level), bookmark.block.0)
            };
            if well.iter().any(is_it) {
                forgotten.push(bookmark);
            }
        }
        known.forget(|bookmark| forgotten.contains(bookmark));
        drop(view);
        let dropped: Result<(), SpaError> =
            self.change(move |syncer| Box::pin(async move { Ok(syncer.in_txg().drop_errors(&well).await?) })).await;
        dropped.map(|()| left)
    }
}
