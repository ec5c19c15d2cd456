//! Storing what has its place, in the background, with a bound on what is on its way.

use std::sync::Arc;

use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{Guid, Txg};
use cenote_taskq::{Class, Join, Semaphore};
use cenote_zio::{Allocator, Placed, Zio, ZioError};

use super::batch::{BATCH_BLOCKS_MAX, BATCH_BYTES};
use crate::tx::Dirty;
use crate::{Dmu, DmuErrorKind};

/// Bytes that are on their way to devices at once.
pub(super) const IN_FLIGHT_MAX_BYTES: u64 = 64 << 20;

/// Device writes under way.
pub(super) struct Stores {
    zio: Zio,
    allocator: Arc<dyn Allocator>,
    dmu: Dmu,
    in_flight: Arc<Semaphore>,
    /// Placed, and waiting for others that go with them.
    batch: Vec<Placed>,
    batch_bytes: u64,
    cleaned: Vec<Cleaned>,
    /// Blocks that are looked for in the cache until all is stored, and not after.
    pub(super) replaced: Vec<Blkptr>,
    joins: Vec<Join<Result<Vec<Guid>, ZioError>>>,
}

impl Stores {
    pub(super) fn new(dmu: &Dmu, allocator: &Arc<dyn Allocator>, in_flight: &Arc<Semaphore>) -> Self {
        Self {
            zio: dmu.zio().clone(),
            allocator: allocator.clone(),
            dmu: dmu.clone(),
            in_flight: in_flight.clone(),
            batch: Vec::new(),
            batch_bytes: 0,
            cleaned: Vec::new(),
            replaced: Vec::new(),
            joins: Vec::new(),
        }
    }

    /// Takes blocks to be stored, and begins with them: with others where they are small, and once there is room for them. The bytes of
    /// `cleaned` count as dirty until all of them, and the blocks taken before, are stored.
    pub(super) async fn take(&mut self, placed: Vec<Placed>, cleaned: impl IntoIterator<Item = Cleaned>) {
        self.batch_bytes += placed.iter().map(Placed::pending_bytes).sum::<u64>();
        match self.batch.is_empty() {
            true => self.batch = placed,
            false => self.batch.extend(placed),
        }
        self.cleaned.extend(cleaned);
        if self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_BLOCKS_MAX {
            self.send().await;
        }
    }

    /// Begins to store what waits.
    pub(super) async fn send(&mut self) {
        if self.batch.is_empty() && self.cleaned.is_empty() {
            return;
        }
        let (batch, cleaned) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.cleaned));
        let bytes = std::mem::take(&mut self.batch_bytes).min(IN_FLIGHT_MAX_BYTES);
        let permit = self.in_flight.acquire_owned(bytes).await;
        let (zio, allocator) = (self.zio.clone(), self.allocator.clone());
        self.joins.push(self.dmu.handle().spawn(Class::Sync, async move {
            let stored = zio.store_all(allocator.as_ref(), batch).await;
            drop((permit, cleaned));
            stored
        }));
    }

    pub(super) const fn dmu(&self) -> &Dmu {
        &self.dmu
    }

    /// Waits for all of them. Returns the leaves that have missed a block, and the replaced blocks.
    pub(super) async fn finish(mut self) -> Result<(Vec<Guid>, Vec<Blkptr>), DmuErrorKind> {
        self.send().await;
        let mut missed = Vec::new();
        for join in self.joins {
            let stored = join.await.map_err(|error| DmuErrorKind::Interrupted(error.to_string()))?;
            missed.extend(stored?);
        }
        missed.sort_unstable();
        missed.dedup();
        Ok((missed, self.replaced))
    }
}

/// Data that counts as dirty until this is dropped.
pub(super) struct Cleaned {
    dirty: Arc<Dirty>,
    txg: Txg,
    bytes: i64,
}

impl Cleaned {
    /// Data of that many bytes, which a txg has made dirty.
    pub(super) fn new(dirty: &Arc<Dirty>, txg: Txg, bytes: usize) -> Self {
        Self { dirty: dirty.clone(), txg, bytes: bytes as i64 }
    }
}

impl Drop for Cleaned {
    fn drop(&mut self) {
        self.dirty.change(self.txg, -self.bytes);
    }
}
