//! Devices of log vdevs that lack something: what is made good for them, and by whom.
//!
//! No resilver is for them, since no pointer leads to blocks of intent logs. A leaf that was away, or is new, lacks what its siblings hold until nothing of
//! that is allocated any more ([`Syncer::mend_log_dtls`](crate::sync::Syncer::mend_log_dtls)): some txgs later, where nobody changes the pool too. A task has
//! these txgs written, and takes the old side of a replacement out then.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_taskq::{Class, boxed};

use super::Pool;
use crate::SpaError;
use crate::admin::attach::LogLeaves;

/// The time between the first txgs that the task asks for.
const TXG_AFTER: Duration = Duration::from_millis(200);
/// So many are asked for this soon, as many as a new leaf lacks from the start and some for the frees.
const SOON: usize = 8;
/// The time between later ones: a log is in use, or a device fails in each txg (`zfs_txg_timeout` of OpenZFS).
const LATER: Duration = Duration::from_secs(5);

impl Pool {
    /// Has leaves of log vdevs made whole, if one lacks something: when the pool is opened, and as devices come.
    pub(crate) fn attend_log_leaves(&self) {
        let is_background = self.shared.is_background.load(Ordering::Acquire);
        if !is_background || self.shared.attends_logs.swap(true, Ordering::AcqRel) {
            return;
        }
        let (handle, weak) = (self.handle().clone(), self.downgrade());
        handle.clone().detach(Class::Background, async move {
            let mut txgs = 0;
            // In between nobody but the pool's owners keeps it.
            while let Some(pool) = weak.upgrade() {
                let found = pool.go_on_with_log_leaves().await;
                if !matches!(found, Ok(LogLeaves::Lack)) {
                    let was_there = pool.shared.attends_logs.swap(false, Ordering::AcqRel);
                    debug_assert!(was_there, "the task that ends was there");
                    // A device that came meanwhile relied on this task.
                    let lacks = pool.peek(|syncer| syncer.log_leaves() == LogLeaves::Lack).await;
                    if !lacks.is_ok_and(|lacks| lacks) || pool.shared.attends_logs.swap(true, Ordering::AcqRel) {
                        break;
                    }
                }
                drop(pool);
                txgs += 1;
                handle.sleep(if txgs < SOON { TXG_AFTER } else { LATER }).await;
            }
        });
    }

    /// Takes a step for leaves of log vdevs: has a txg written while one lacks something, and takes out what new ones replace when none does. Gives what was
    /// found before.
    ///
    /// # Errors
    /// The MOS cannot be changed. The pool is closed or suspended.
    #[boxed]
    pub async fn go_on_with_log_leaves(&self) -> Result<LogLeaves, SpaError> {
        let found = self.peek(|syncer| syncer.log_leaves()).await?;
        match found {
            LogLeaves::Lack => drop(self.sync().await?),
            LogLeaves::AreNew => drop(self.finish_replacing().await?),
            LogLeaves::Whole => {}
        }
        Ok(found)
    }
}
