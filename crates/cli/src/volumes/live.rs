//! Volumes that clients write, of a pool that is open for writing.
//!
//! A volume is opened once, however many connections use it (`open`), so that what one wrote another reads and flushes. A write goes to
//! the open txg; a flush waits for the last txg that the volume was written in, and so does a write that is to be durable at once:
//! there is no intent log yet. All who wait for one txg share its sync.
//!
//! What is not written (snapshots, volumes with `readonly=on`, those that cannot be written yet) is exported as it is on disk.

use std::sync::Arc;

use cenote_dmu::tx::{Cost, TxError};
use cenote_format::ids::Txg;
use cenote_nbd::{BlockSizes, Export, ExportError, ExportErrorKind, ExportName, Exports, Extent, Piece};
use cenote_spa::SpaError;
use cenote_spa::write::live::{LiveHead, LivePool};
use cenote_spa::write::{Head, PoolWriter};
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use cenote_taskq::{Block, BoxFuture};
use cenote_zvol::write::{Claim, VolumeError, VolumeMut};

use super::open::{Found, OpenVolumes};
use super::reading::{ReadOnly, Readable};
use super::{chosen, io_error, is_at_or_below, names};

/// One txg is held for so many bytes at most, so that a large request does not hold up the others' flushes.
const WRITE_STEP_BYTES: u64 = 4 << 20;
/// Blocks that are freed in one txg by one request at most. Each is a pointer in memory until the txg is written.
const FREE_STEP_BLOCKS: u64 = 64 << 10;

/// All volumes of a pool, or those below one dataset, to be written.
pub(crate) struct LiveVolumes {
    open: Arc<OpenVolumes>,
    below: String,
}

/// A volume that is written.
pub(super) struct Live {
    pool: LivePool,
    head: LiveHead,
    volume: VolumeMut,
    sync: SyncMode,
    /// The last txg that it was changed in.
    changed: AtomicU64,
}

/// The property `sync`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SyncMode {
    Standard,
    Always,
    Disabled,
}

fn tx_error(error: &TxError) -> ExportError {
    let kind = match error {
        TxError::NoSpace | TxError::Quota(_) => ExportErrorKind::NoSpace,
        TxError::Closed => ExportErrorKind::Shutdown,
        TxError::Suspended(_) => ExportErrorKind::Io,
    };
    ExportError::new(kind, error.to_string())
}

fn volume_error(error: &VolumeError) -> ExportError {
    let kind = match error {
        VolumeError::BeyondEnd { .. } => ExportErrorKind::NoSpace,
        VolumeError::BadSize { .. } | VolumeError::BadBlockSize(_) => ExportErrorKind::Invalid,
        VolumeError::Dmu(_) => ExportErrorKind::Io,
    };
    ExportError::new(kind, error.to_string())
}

impl LiveVolumes {
    /// The volumes at and below the dataset `below`.
    pub(crate) fn new(open: Arc<OpenVolumes>, below: impl Into<String>) -> Self {
        Self { open, below: below.into() }
    }

    /// The names of all volumes and their snapshots.
    pub(crate) async fn names(&self) -> Result<Vec<ExportName>, SpaError> {
        let below = self.below.clone();
        self.open
            .pool()
            .change(move |writer| {
                Box::pin(async move {
                    let listed = names(&writer.view().await?, &below).await;
                    listed.map_err(|error| SpaError::Dsl { pool: writer.name().to_owned(), error })
                })
            })
            .await
    }
}

impl Exports for LiveVolumes {
    fn list(&self) -> BoxFuture<'_, Result<Vec<ExportName>, ExportError>> {
        Box::pin(async move { self.names().await.map_err(|error| io_error(&error)) })
    }

    fn open<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Arc<dyn Export>>, ExportError>> {
        Box::pin(async move {
            let Some(name) = chosen(self, name).await?.filter(|name| is_at_or_below(name, &self.below)) else {
                return Ok(None);
            };
            Ok(self.open.lock().await.find(&name).await?.map(|found| match found {
                Found::Frozen(volume) => Arc::new(ReadOnly { volume, name }) as Arc<dyn Export>,
                Found::Written(live) => {
                    let size_bytes = live.volume.size_bytes();
                    Arc::new(LiveExport { live, size_bytes, name })
                }
            }))
        })
    }
}

/// A volume as one connection has it.
struct LiveExport {
    live: Arc<Live>,
    /// As it was when the connection came.
    size_bytes: u64,
    name: String,
}

impl Live {
    /// Opens a volume's head dataset, in a txg's sync. `sync` is the number of the property.
    pub(super) async fn open(
        pool: &LivePool,
        writer: &PoolWriter,
        name: &str,
        head: Head,
        sync: u64,
    ) -> Result<Self, ExportError> {
        let sync = match sync {
            1 => SyncMode::Always,
            2 => SyncMode::Disabled,
            _ => SyncMode::Standard,
        };
        let volume = VolumeMut::open(&head.objset).await.map_err(|error| volume_error(&error))?;
        let head = pool.adopt(writer, name, head).await.map_err(|error| io_error(&error))?;
        Ok(Self { pool: pool.clone(), head, volume, sync, changed: AtomicU64::new(0) })
    }

    /// Gives the volume another size, on disk when this returns. Clients that are connected see the old one, and nothing behind
    /// the new.
    pub(super) async fn resize(&self, size_bytes: u64) -> Result<(), ExportError> {
        let mut claim = self.volume.claim_all().await;
        let cost = Cost::objects(2).that_frees();
        let tx = self.head.begin(cost).await.map_err(|error| tx_error(&error))?;
        let txg = tx.txg();
        claim.resize(txg, size_bytes).await.map_err(|error| volume_error(&error))?;
        self.note(txg);
        drop((tx, claim));
        self.wait(txg).await
    }

    /// Notes that the volume was changed in a txg, before whoever changed it is told that it was.
    fn note(&self, txg: Txg) {
        if self.changed.load(Ordering::Acquire) < txg.0 {
            self.changed.fetch_max(txg.0, Ordering::AcqRel);
        }
    }

    async fn claim(&self, offset_bytes: u64, len_bytes: u64) -> Result<Claim, ExportError> {
        self.volume.claim(offset_bytes, len_bytes).await.map_err(|error| volume_error(&error))
    }

    async fn wait(&self, txg: Txg) -> Result<(), ExportError> {
        self.pool.wait_synced(txg).await.map_err(|error| io_error(&error))
    }

    /// The end of a request that has changed something.
    async fn settle(&self, fua: bool) -> Result<(), ExportError> {
        let must_wait = match self.sync {
            SyncMode::Standard => fua,
            SyncMode::Always => true,
            SyncMode::Disabled => false,
        };
        // Others may have changed more since: then that is waited for too, which is the same sync most of the time.
        if must_wait { self.wait(Txg(self.changed.load(Ordering::Acquire))).await } else { Ok(()) }
    }

    async fn write(&self, offset_bytes: u64, data: &[u8]) -> Result<(), ExportError> {
        let block_bytes = self.volume.block_size_bytes();
        let claim = self.claim(offset_bytes, data.len() as u64).await?;
        let mut at = offset_bytes;
        let mut rest = data;
        while !rest.is_empty() {
            // Up to the end of a block, so that none is written twice.
            let end = (at + WRITE_STEP_BYTES).next_multiple_of(block_bytes);
            let (part, later) = rest.split_at(rest.len().min((end - at) as usize));
            let cost = Cost::write(at, part.len() as u64, block_bytes);
            let tx = self.head.begin(cost).await.map_err(|error| tx_error(&error))?;
            claim.write(tx.txg(), at, part).await.map_err(|error| volume_error(&error))?;
            self.note(tx.txg());
            drop(tx);
            at += part.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Frees a range, or has it be zeros, step by step.
    async fn clear(&self, offset_bytes: u64, length_bytes: u32, how: Clear) -> Result<(), ExportError> {
        let block_bytes = self.volume.block_size_bytes();
        let step = match how {
            Clear::Written => WRITE_STEP_BYTES,
            Clear::Freed | Clear::Discarded => FREE_STEP_BLOCKS * block_bytes,
        };
        let (mut at, end) = (offset_bytes, offset_bytes + u64::from(length_bytes));
        while at < end {
            let next = (at + step).next_multiple_of(block_bytes).min(end);
            let claim = self.claim(at, next - at).await?;
            let cost = match how {
                Clear::Written => Cost::write(at, next - at, block_bytes),
                // The blocks at both ends.
                Clear::Freed => Cost { write_bytes: 2 * block_bytes, objects: 1, frees: true },
                Clear::Discarded => Cost::objects(1).that_frees(),
            };
            let tx = self.head.begin(cost).await.map_err(|error| tx_error(&error))?;
            let cleared = match how {
                Clear::Written => claim.write_zeros(tx.txg()).await,
                Clear::Freed => claim.clear(tx.txg()).await,
                Clear::Discarded => {
                    claim.discard(tx.txg());
                    Ok(())
                }
            };
            cleared.map_err(|error| volume_error(&error))?;
            self.note(tx.txg());
            at = next;
        }
        Ok(())
    }
}

/// How a range is cleared.
#[derive(Clone, Copy)]
enum Clear {
    /// Zeros are written.
    Written,
    /// Whole blocks are freed, the rest is zeros.
    Freed,
    /// Whole blocks are freed.
    Discarded,
}

impl Export for LiveExport {
    fn description(&self) -> String {
        self.name.clone()
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_sizes(&self) -> BlockSizes {
        self.live.volume.sizes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read(&self, offset_bytes: u64, length_bytes: u32) -> BoxFuture<'_, Result<Vec<Piece>, ExportError>> {
        Box::pin(async move {
            let mut pieces = self.live.volume.pieces(offset_bytes, length_bytes).await?;
            // What was cut off meanwhile is zeros to a client that has not noticed.
            let found: u64 = pieces.iter().map(Piece::length_bytes).sum();
            if found < u64::from(length_bytes) {
                pieces.push(Piece::Zeros(u64::from(length_bytes) - found));
            }
            Ok(pieces)
        })
    }

    fn block_status(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, ExportError>> {
        Box::pin(self.live.volume.statuses(offset_bytes, length_bytes, extents_max))
    }

    fn write(&self, offset_bytes: u64, data: Block, fua: bool) -> BoxFuture<'_, Result<(), ExportError>> {
        Box::pin(async move {
            self.live.write(offset_bytes, &data).await?;
            drop(data);
            self.live.settle(fua).await
        })
    }

    fn write_zeros(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        may_free: bool,
        fua: bool,
    ) -> BoxFuture<'_, Result<(), ExportError>> {
        Box::pin(async move {
            let how = if may_free { Clear::Freed } else { Clear::Written };
            self.live.clear(offset_bytes, length_bytes, how).await?;
            self.live.settle(fua).await
        })
    }

    fn trim(&self, offset_bytes: u64, length_bytes: u32, fua: bool) -> BoxFuture<'_, Result<(), ExportError>> {
        Box::pin(async move {
            self.live.clear(offset_bytes, length_bytes, Clear::Discarded).await?;
            self.live.settle(fua).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), ExportError>> {
        Box::pin(async move {
            match self.live.sync {
                SyncMode::Disabled => Ok(()),
                SyncMode::Standard | SyncMode::Always => {
                    self.live.wait(Txg(self.live.changed.load(Ordering::Acquire))).await
                }
            }
        })
    }
}
