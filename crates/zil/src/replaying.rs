//! The source of txgs during replay: it stores the replay position together with the effects of the records.
//!
//! **Space.** The log that is replayed has taken its space already, and what it says was acknowledged. So its changes ask for no account: a
//! pool that is full of the log must be able to replay it. Where space is short the txgs of a replay are small, so that each can be written
//! with what is kept back for syncs (module `room`), and each frees the log blocks behind the position ([`Replaying::passed`]).

use std::sync::Arc;

use cenote_dmu::Objset;
use cenote_dmu::tx::{Cost, Tx, TxError, TxgSource};
use cenote_format::ids::Txg;
use cenote_format::zil::LogBlockId;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use cenote_taskq::{BoxFuture, boxed};

use crate::chain::{Content, Link};
use crate::{Log, Marking, Position, Survey};

/// Says that no record's position goes into the txgs that are begun.
const NONE: u64 = 0;

/// The txgs of a dataset during its replay; nothing else changes the dataset meanwhile.
pub struct Replaying {
    log: Arc<Log>,
    objset: Objset,
    /// The record whose position goes into the next txg that is begun.
    within: AtomicU64,
    /// Txgs that were begun for it.
    begun: AtomicU64,
    /// The last txg that anything was changed in.
    last: AtomicU64,
}

impl Replaying {
    /// Of a dataset whose changes otherwise go to `log`.
    #[must_use]
    pub const fn new(log: Arc<Log>, objset: Objset) -> Self {
        let (within, begun, last) = (AtomicU64::new(NONE), AtomicU64::new(0), AtomicU64::new(0));
        Self { log, objset, within, begun, last }
    }

    /// Replays the record of this number: `effect` makes its changes in txgs of this source.
    ///
    /// # Errors
    /// Those of the effect; the position is as before then.
    pub async fn replay<E: From<TxError>>(
        &self,
        sequence: u64,
        marking: Marking,
        effect: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        if self.log.replay_is_full() {
            self.sync_replayed().await?;
        }
        let before = self.objset.zil_header().replay_seq;
        assert!(before < sequence, "records are replayed once, in order");
        assert_eq!(self.within.load(Ordering::Relaxed), NONE, "records are replayed one after the other");
        self.begun.store(0, Ordering::Relaxed);
        self.within.store(if marking == Marking::Within { sequence } else { NONE }, Ordering::Relaxed);
        let result = effect.await;
        self.within.store(NONE, Ordering::Relaxed);
        let begun = self.begun.load(Ordering::Relaxed);
        match result {
            Ok(()) if begun == 1 => {
                assert_eq!(self.objset.zil_header().replay_seq, sequence, "the position went along with the effect");
            }
            Ok(()) => {
                assert_eq!(begun, 0, "record {sequence} is replayed in one change, which its position goes along with");
                self.mark(sequence).await?;
            }
            Err(error) => {
                if begun > 0 {
                    self.mark(before).await?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    async fn mark(&self, sequence: u64) -> Result<(), TxError> {
        let tx = TxgSource::begin(self, Cost::objects(1)).await?;
        self.objset.change_zil_header(tx.txg(), |header| header.replay_seq = sequence);
        Ok(())
    }

    /// All records of a log block are replayed, or need not be: it is freed in the txg whose header names the next one.
    ///
    /// # Errors
    /// Those of [`TxgSource::begin`].
    #[boxed]
    pub async fn passed(&self, link: &Link, survey: &Survey) -> Result<(), TxError> {
        let header = self.objset.zil_header();
        let position = Position::of(&header);
        assert!(
            !link.content.iter().flat_map(Content::records).any(|record| position.is_left(&record)),
            "a block is freed when the position is behind its records (invariant 9)"
        );
        // The last with records stays until the log is destroyed: a walk, ours or OpenZFS's, has to find the record that the claim ends
        // with, and the last block that was claimed may never have been written.
        let records = link.content.iter().flat_map(Content::raw_records);
        let is_last = link.next.is_hole()
            || LogBlockId::of(&link.next).sequence >= header.claim_block_seq
            || records.last().is_some_and(|record| record.sequence >= header.claim_record_seq);
        // Nor does any go that follows one which stays.
        if is_last || header.log != link.pointer || !self.log.frees_passed() {
            return Ok(());
        }
        let tx = TxgSource::begin_apart(self, Cost::objects(1)).await?;
        self.objset.change_zil_header(tx.txg(), |header| header.log = link.next);
        self.log.free_passed(tx.txg(), survey.passed(link, header.claim_txg));
        Ok(())
    }

    /// Whether space is so short that what the replay has removed should be freed on the way.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.log.replay_is_short()
    }

    /// Waits until all that was replayed so far is on disk: objects that were freed are gone then.
    ///
    /// # Errors
    /// A txg could not be written.
    #[boxed]
    pub async fn sync_replayed(&self) -> Result<(), TxError> {
        match self.last.load(Ordering::Relaxed) {
            0 => Ok(()),
            txg => TxgSource::wait_synced(self.log.as_ref(), Txg(txg)).await,
        }
    }

    /// Ends the replay: all records are replayed, and the log is destroyed.
    ///
    /// # Errors
    /// A txg could not be written.
    #[boxed]
    pub async fn end(&self) -> Result<(), TxError> {
        self.log.log_replayed(Txg(self.last.load(Ordering::Relaxed))).await
    }
}

impl TxgSource for Replaying {
    #[boxed]
    async fn begin(&self, cost: Cost) -> Result<Tx, TxError> {
        let tx = self.begin_apart(cost).await?;
        let within = self.within.load(Ordering::Relaxed);
        if within != NONE {
            self.begun.fetch_add(1, Ordering::Relaxed);
            self.objset.change_zil_header(tx.txg(), |header| header.replay_seq = within);
        }
        Ok(tx)
    }

    #[boxed]
    async fn begin_apart(&self, cost: Cost) -> Result<Tx, TxError> {
        let tx = self.log.begin_replayed(cost).await?;
        self.last.fetch_max(tx.txg().0, Ordering::Relaxed);
        Ok(tx)
    }

    fn wait_synced(&self, txg: Txg) -> BoxFuture<'_, Result<(), TxError>> {
        TxgSource::wait_synced(self.log.as_ref(), txg)
    }
}
