//! Blocks of indirect writes, made ready before the turn of their records: see [`crate::indirect`].

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use cenote_format::ids::Txg;
use cenote_taskq::{Class, Join, OwnedPermit};

use super::LogWriter;
use crate::data::{STORING_MAX_BYTES, Stored};
use crate::indirect::{LogTxg, WriteShape, parts};
use crate::itx::{Itx, ItxWrite, Payload};

/// Blocks of a burst that are made ready before their turn.
const AHEAD_MAX: usize = 16;

/// The blocks of a burst that are made ready, in the order of their records.
pub(crate) struct Prepared {
    log: Arc<LogWriter>,
    coming: VecDeque<(Txg, ItxWrite)>,
    begun: VecDeque<Option<Join<Option<Stored>>>>,
}

impl Prepared {
    /// Those of all indirect writes among these.
    pub(crate) fn new(log: &Arc<LogWriter>, itxs: &[Itx]) -> Self {
        let mut coming = VecDeque::new();
        for itx in itxs {
            if let Payload::Write(write @ ItxWrite { indirect: Some(block_bytes), .. }) = &itx.payload {
                coming.extend(
                    parts(&write.bytes, *block_bytes).map(|bytes| (itx.txg, ItxWrite { bytes, ..write.clone() })),
                );
            }
        }
        Self { log: log.clone(), coming, begun: VecDeque::new() }
    }

    /// The next part's; nothing where it is to be copied.
    pub(crate) async fn next(&mut self) -> Option<Stored> {
        while self.begun.len() < AHEAD_MAX
            && let Some((txg, part)) = self.coming.pop_front()
        {
            let made = self.log.clone().make_ready(txg, part);
            self.begun.push_back(self.log.detached().spawn(Class::Issue, made).ok());
        }
        assert!(self.begun.len() <= AHEAD_MAX, "blocks that are made ready are bounded");
        self.begun.pop_front().flatten()?.await.ok().flatten()
    }
}

impl LogWriter {
    /// True if a write is logged by reference.
    pub(crate) fn is_indirect(&self, len: u64, shape: &WriteShape) -> bool {
        let tunables = &self.io.tunables;
        if self.is_for_throughput.load(Ordering::Relaxed) {
            return true;
        }
        if self.io.allocator.has_log_devices() {
            return false;
        }
        let is_large = len >= tunables.zfs_immediate_write_sz && (len >= shape.block_bytes / 2 || !shape.is_awaited);
        let goes_to_special = || shape.block_bytes <= u64::from(shape.small_bytes);
        is_large && (!tunables.zil_special_is_slog || !self.io.allocator.has_special_devices() || goes_to_special())
    }

    /// Gives the block of a part of a write its place, and begins to store it. Nothing where it has to be copied.
    async fn make_ready(self: Arc<Self>, txg: Txg, part: ItxWrite) -> Option<Stored> {
        let data = self.data.lock().as_ref().and_then(Weak::upgrade)?;
        let room = part.indirect.unwrap_or(0).clamp(1, STORING_MAX_BYTES);
        let permit = self.io.storing.acquire_owned(room).await;
        let at = LogTxg { txgs: &self.txgs, txg };
        let block = data.block(part.object, part.generation, part.bytes, at).await.ok()??;
        let (pointer, store) = block.place(&self.io.allocator).await.ok()?;
        let Some(store) = store else { return Some(Stored { pointer, storing: None }) };
        let storing = self.clone().store(store, permit);
        let storing = Some(self.detached().spawn(Class::Issue, storing).ok()?);
        Some(Stored { pointer, storing })
    }

    /// Stores a block. Whether it is.
    async fn store(self: Arc<Self>, store: cenote_dmu::LogStore, permit: OwnedPermit) -> bool {
        let missed = |txg, leaves| self.io.missed(leaves, txg);
        let stored = self.handle.urgently(store.store(missed)).await;
        drop(permit);
        stored.is_ok()
    }
}
