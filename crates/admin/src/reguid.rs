//! Another guid for a pool: `zpool reguid`.

use cenote_format::ids::Guid;
use cenote_spa::{Pool, SpaError};
use cenote_taskq::boxed;

use crate::error::AdminError;
use crate::request::{Line, Request, Users};

/// A pool that is to get another guid.
#[derive(Clone, Debug, Default)]
pub struct ReguidRequest {
    /// The pool.
    pub pool: String,
    /// The guid (`-g`); drawn by the machine if not given.
    pub guid: Option<u64>,
}

impl Request for ReguidRequest {
    type Made = Guid;

    fn subject(&self) -> &str {
        &self.pool
    }

    #[boxed]
    async fn run(&self, pool: &Pool, users: &dyn Users) -> Result<Guid, AdminError> {
        let old = pool.guid();
        let guid = Guid(self.guid.unwrap_or_else(|| pool.handle().random_u64() | 1));
        if guid == old || guid == Guid(0) {
            return Err(AdminError::Said(format!("cannot reguid '{}': the guid {guid} is in use", self.pool)));
        }
        users.guid_changes(old, guid)?;
        match pool.reguid(guid).await {
            Ok(()) => Ok(guid),
            Err(error) => {
                users.guid_changes(guid, old)?;
                Err(match error {
                    SpaError::Refused { what, .. } => {
                        AdminError::Said(format!("cannot reguid '{}': {what}", self.pool))
                    }
                    error => error.into(),
                })
            }
        }
    }

    fn history_line(&self) -> Option<Line> {
        let given = self.guid.map(|guid| guid.to_string());
        Some(Line::new("zpool reguid").option("-g", given.iter()).word(&self.pool))
    }

    fn changes_config(&self) -> bool {
        true
    }
}
