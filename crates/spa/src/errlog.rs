//! The pool's error log: blocks that could not be read, kept in the MOS.

use cenote_dmu::zap::Zap;
use cenote_format::dsl::pool_directory;

use crate::{Pool, SpaError};

/// Errors listed at most.
const ERRORS_MAX: usize = 1 << 20;

impl Pool {
    /// How many errors the pool's error logs record: of the last scrub, and since.
    pub async fn error_count(&self) -> Result<u64, SpaError> {
        let mut count = 0;
        for entry in [pool_directory::ERRLOG_LAST, pool_directory::ERRLOG_SCRUB] {
            let id = self.directory().find_u64(entry).await.map_err(|error| self.dmu_error(error))?;
            let Some(id) = id.filter(|id| *id != 0) else { continue };
            let dnode = self.mos().object(cenote_format::ids::ObjectId(id)).await;
            let zap = Zap::open(dnode.map_err(|error| self.dmu_error(error))?).await;
            let zap = zap.map_err(|error| self.dmu_error(error))?;
            count += zap.entries(ERRORS_MAX).await.map_err(|error| self.dmu_error(error))?.len() as u64;
        }
        Ok(count)
    }
}
