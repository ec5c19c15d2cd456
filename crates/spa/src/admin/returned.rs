//! Devices that were gone and are back, under any path: a label says which device of which pool it is.
//!
//! A cable is plugged in again, a disk moves to another slot, a system gives it another name. OpenZFS's daemon is told of each new disk and looks for
//! the pool that wants it; here the pool that wants one looks.
//!
//! **Invariants.** 1. Only a device that is wanted and not there is taken: not one that a person took offline, nor one that was judged to have failed.
//! 2. A device is taken if it is as new as the pool left it. An older copy of it, such as somebody's backup, would be overwritten: a person may give it
//! by `zpool online`.

use std::path::PathBuf;

use cenote_taskq::boxed;

use crate::SpaError;
use crate::find::find;
use crate::pool::Pool;

impl Pool {
    /// Takes back devices that the pool wants and does not have, if they are at one of these paths. Their paths; they lack what they have missed, and
    /// are resilvered.
    ///
    /// # Errors
    /// The pool is closed, suspended, or has failed.
    #[boxed]
    pub async fn take_back(&self, paths: &[PathBuf]) -> Result<Vec<PathBuf>, SpaError> {
        let wanted = self.peek(|syncer| syncer.gone_since()).await?;
        let mut taken = Vec::new();
        if wanted.is_empty() {
            return Ok(taken);
        }
        let (pools, _) = find(self.handle(), paths).await;
        let Some(found) = pools.into_iter().find(|found| found.guid == self.guid()) else { return Ok(taken) };
        for (guid, since) in wanted {
            let Some(leaf) = found.leaves.get(&guid).filter(|leaf| leaf.newest_txg().0 + 1 >= since.0) else {
                continue;
            };
            let path = leaf.disk.device().path().to_owned();
            if self.online_device(guid, vec![path.clone()]).await?.state.is_readable() {
                taken.push(path);
            }
        }
        assert!(taken.len() <= found.leaves.len(), "each is a device that was found");
        Ok(taken)
    }
}
