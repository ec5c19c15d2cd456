//! The checkpoint of a pool: its whole state is kept, and can be gone back to.
//!
//! # Theory
//!
//! **Need.** Before an upgrade, or a destruction that may be regretted, a person wants a state of the pool to go back to: datasets, properties and
//! features alike. Snapshots keep only contents.
//!
//! **On disk.** The entry `com.delphix:zpool_checkpoint` of the MOS's directory has the uberblock of the txg that is kept. A block that was born up to
//! it and is given up is not freed: its places go to the vdev's map of the checkpoint (`cenote_metaslab`'s `kept`), and stay allocated. Feature
//! `zpool_checkpoint` counts 1 from then on, until all of that is freed.
//!
//! **Life.**
//! ```text
//! take      between two txgs   the entry gets the uberblock of the last txg on disk, T. From the open txg T + 1 on what T has is kept
//! discard   a txg              the entry goes. Blocks are freed as usual from then on
//!           later txgs         the job [`crate::jobs::discard`] frees what was kept, slice by slice; the last one takes the feature's count back
//! rewind    at the opening     the pool is opened as of the entry's uberblock. That is written as the uberblock of the txg after the last one:
//!                              from then on the pool is the checkpoint's, which has none itself. Only then blocks are written, over what came after it
//! ```
//! **Invariants.** 1. No block that T has is freed in T + 1 before the checkpoint is taken there: it is taken in a txg that has given up nothing yet. 2. While
//! there is a checkpoint, or its discarding goes on, the vdevs stay as they are but for new ones: its uberblock knows no others. (Vdevs that were removed before
//! it are in it, with their mappings; what the pool gives up there is kept where it lies.) 3. Intent logs that nobody
//! has claimed are dropped by a rewind: their later blocks may be written over.
//!
//! **Crash.** Each step is one txg. A rewind is done when its uberblock is on disk, and nothing was written over before.
//!
//! **Rejected.** *Rewinding as an import as of an earlier txg*: the first txg after it would write over the later state while that is still the pool.

use cenote_dmu::Zap;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::Txg;
use cenote_format::uberblock::Uberblock;
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;
use cenote_vdev::commit::{Refusal as Unwritten, commit};

use crate::pool::Pool;
use crate::sync::Syncer;
use crate::{Refusal, SpaError};

/// A checkpoint is tried to be taken in so many txgs.
const TRIES: usize = 32;

fn discarding() -> SpaError {
    SpaError::refused(Refusal::Busy, "currently discarding checkpoint")
}

impl Pool {
    /// Keeps the pool as it is now, with all that was changed before the call. The txg that is kept is returned.
    ///
    /// # Errors
    /// There is a checkpoint, or one is being discarded; the pool has not the feature. The pool is closed or suspended.
    #[boxed]
    pub async fn take_checkpoint(&self) -> Result<Txg, SpaError> {
        for _ in 0..TRIES {
            self.sync().await?;
            let taken = self.change(|syncer| Box::pin(async move { syncer.enter_checkpoint().await })).await?;
            if let Some(txg) = taken {
                return Ok(txg);
            }
        }
        Err(SpaError::refused(Refusal::Busy, "the pool is changed all the time: try again"))
    }

    /// Gives the checkpoint up. What only it has is freed in the background.
    ///
    /// # Errors
    /// There is none. The pool is closed or suspended.
    #[boxed]
    pub async fn discard_checkpoint(&self) -> Result<(), SpaError> {
        self.change(|syncer| Box::pin(async move { syncer.drop_checkpoint().await })).await
    }
}

impl Syncer {
    /// True while what a discarded checkpoint has left is being freed.
    #[must_use]
    pub fn is_discarding(&self) -> bool {
        self.jobs.discard.is_under_way()
    }

    /// Refuses a change that a checkpoint, or its discarding, forbids.
    pub(crate) fn check_no_checkpoint(&self) -> Result<(), SpaError> {
        match (self.blocks.checkpoint, self.is_discarding()) {
            (Some(_), _) => Err(SpaError::refused(Refusal::Busy, "checkpoint exists")),
            (None, true) => Err(discarding()),
            (None, false) => Ok(()),
        }
    }

    /// Keeps the last txg on disk. None where something was given up since.
    async fn enter_checkpoint(&mut self) -> Result<Option<Txg>, SpaError> {
        if !self.mos.features.has("zpool_checkpoint") {
            let what = "the feature zpool_checkpoint is not enabled: 'zpool upgrade' or 'zpool set feature@zpool_checkpoint=enabled'";
            return Err(SpaError::refused(Refusal::NeedsFeature, what));
        }
        self.check_no_checkpoint()?;
        if self.jobs.expansion.running.is_some() {
            return Err(SpaError::refused(Refusal::Busy, "raidz expansion is in progress"));
        }
        if self.jobs.evacuation.running.is_some() {
            return Err(SpaError::refused(Refusal::Busy, "device removal in progress"));
        }
        let Some(root) = self.devices.synced.filter(|_| self.blocks.given_up == self.blocks.given_up_before) else {
            return Ok(None);
        };
        let (txg, kept) = (self.txg, root.txg);
        assert_eq!(Txg(kept.0 + 1), txg, "the checkpoint is the txg before the open one");
        let kept_root = Uberblock { checkpoint_txg: kept, ..root };
        let words: Vec<u64> = kept_root
            .emit()
            .chunks_exact(8)
            .map(|word| cenote_zio::ORDER.u64(word.try_into().expect("a word has eight bytes")))
            .collect();
        let value = ZapValue::from_u64s(&words);
        Zap::put_entry(&self.mos.directory, txg, pool_directory::CHECKPOINT, Some(&value)).await?;
        self.mos.features.change("zpool_checkpoint", 1);
        self.blocks.checkpoint = Some(kept);
        self.record_event("spa checkpoint", &format!("checkpointed uberblock txg={kept}"), None).await?;
        Ok(Some(kept))
    }

    async fn drop_checkpoint(&mut self) -> Result<(), SpaError> {
        if self.blocks.checkpoint.is_none() {
            return Err(match self.is_discarding() {
                true => discarding(),
                false => SpaError::refused(Refusal::NotThere, "checkpoint does not exist"),
            });
        }
        let txg = self.txg;
        Zap::put_entry(&self.mos.directory, txg, pool_directory::CHECKPOINT, None).await?;
        self.blocks.checkpoint = None;
        self.jobs.discard.begin(&self.blocks.space);
        let what = "started discarding checkpointed state from the pool";
        self.record_event("spa discard checkpoint", what, None).await
    }

    /// Makes the pool that of its checkpoint, as of which it was opened: this is the checkpoint's uberblock, and `last` the newest on disk.
    pub(crate) async fn rewind(&mut self, kept: Uberblock, last: Uberblock) -> Result<(), SpaError> {
        assert!(self.devices.synced.is_none(), "a pool is wound back before anything is written");
        assert!(kept.txg < last.txg, "a checkpoint is older than what came after it");
        let txg = Txg(last.txg.0 + 1);
        let root = Uberblock {
            txg,
            timestamp_s: self.time_s().max(last.timestamp_s),
            checkpoint_txg: kept.txg,
            mmp: Some(self.devices.multihost.fields()),
            ..kept
        };
        let leaves = self.leaf_commits(txg, false);
        self.devices.ring.is_multihost = self.devices.multihost.is_shown();
        self.devices.multihost.attempt(root);
        let unwritten = commit(&leaves, &root, &mut self.devices.ring).await.map_err(SpaError::devices)?;
        self.devices.multihost.committed(root, &leaves);
        for Unwritten { guid, error } in unwritten {
            self.devices.tree.missed_commit(guid, txg, &error);
            let missed = self.devices.root_vdev.unnoted.entry(guid).or_default();
            missed.insert(txg.0..txg.0.saturating_add(1));
        }
        self.devices.synced = Some(root);
        self.devices.root_vdev.late = None;
        self.txg = Txg(txg.0 + 1);
        Ok(())
    }
}
