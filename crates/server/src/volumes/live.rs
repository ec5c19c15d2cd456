//! Volumes that clients write, in a pool that is open for writing.
//!
//! A volume is opened once for all connections (`open`), so that one reads and flushes the writes of another. `cenote_zvol::live` carries out
//! requests and determines when they are on disk.
//!
//! A snapshot, and a volume that Cenote cannot change yet, is exported as it is on disk. One with `readonly=on` refuses changes until that is off.

use std::sync::Arc;

use cenote_dmu::tx::TxError;
use cenote_inuse::OpenError;
use cenote_nbd::{BlockSizes, Export, ExportError, ExportErrorKind, ExportName, Exports, Extent, Piece};
use cenote_spa::SpaError;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Block, Either, boxed, race};
use cenote_zvol::VolumeError;
use cenote_zvol::live::{Clear, LiveVolume, LiveVolumeError};

use super::open::{Found, OpenVolumes};
use super::reading::{ReadOnly, pieces, sizes, statuses};
use super::zvol_state::ZvolState;
use super::{chosen, io_error, is_at_or_below, names, sorted};

/// The volumes at and below datasets of pools of this process, for writing.
pub struct LiveVolumes(Mutex<Vec<Below>>);

#[derive(Clone)]
struct Below {
    open: Arc<OpenVolumes>,
    dataset: String,
}

impl Below {
    async fn names(&self) -> Result<Vec<ExportName>, SpaError> {
        let below = self.dataset.clone();
        self.open
            .pool()
            .look(move |writer| Box::pin(async move { Ok(names(&writer.dsl().clone(), &below).await?) }))
            .await
    }
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

pub(super) fn live_error(error: &LiveVolumeError) -> ExportError {
    match error {
        LiveVolumeError::Tx(error) => tx_error(error),
        LiveVolumeError::Volume(error) => volume_error(error),
        LiveVolumeError::Replay(error) => ExportError::new(ExportErrorKind::Io, error.to_string()),
        LiveVolumeError::ReadOnly => ExportError::new(ExportErrorKind::ReadOnly, error.to_string()),
    }
}

pub(super) fn open_error(error: &OpenError) -> ExportError {
    match error {
        OpenError::Volume(_, error) => live_error(error),
        error => io_error(error),
    }
}

impl LiveVolumes {
    /// The volumes at and below these datasets.
    pub fn new(of: impl IntoIterator<Item = (Arc<OpenVolumes>, String)>) -> Self {
        Self(Mutex::new(of.into_iter().map(|(open, dataset)| Below { open, dataset }).collect()))
    }

    /// The names of all volumes and their snapshots. If there are several pools, one whose devices fail is left out.
    #[boxed]
    pub async fn names(&self) -> Result<Vec<ExportName>, SpaError> {
        let all = self.0.lock().clone();
        let mut listed = Vec::new();
        for below in &all {
            let failing = async {
                match all.len() {
                    1 => std::future::pending().await,
                    _ => below.open.pool().failed().await,
                }
            };
            match race(Box::pin(failing), Box::pin(below.names())).await {
                Either::Left(_) => {}
                Either::Right(names) => listed.extend(names?),
            }
        }
        Ok(sorted(listed))
    }

    /// Stops serving volumes of a pool.
    pub(crate) fn leave(&self, of: &Arc<OpenVolumes>) {
        self.0.lock().retain(|below| !Arc::ptr_eq(&below.open, of));
    }

    fn of(&self, name: &str) -> Option<Arc<OpenVolumes>> {
        let all = self.0.lock();
        all.iter().find(|below| is_at_or_below(name, &below.dataset)).map(|below| below.open.clone())
    }
}

impl Exports for LiveVolumes {
    #[boxed]
    async fn list(&self) -> Result<Vec<ExportName>, ExportError> {
        self.names().await.map_err(|error| io_error(&error))
    }

    #[boxed]
    async fn open(&self, name: &str) -> Result<Option<Arc<dyn Export>>, ExportError> {
        let Some(name) = chosen(self, name).await? else { return Ok(None) };
        let Some(open) = self.of(&name) else { return Ok(None) };
        let found = open.lock().await.find(&name).await?;
        let Some(found) = found else { return Ok(None) };
        let export = match found {
            Found::Frozen(volume) => Arc::new(ReadOnly { volume, name }) as Arc<dyn Export>,
            Found::Live(zvol) => {
                let live = zvol.share().await?;
                let (size_bytes, block_sizes) = (live.volume().size_bytes(), sizes(live.volume()));
                Arc::new(LiveExport { zvol, size_bytes, block_sizes, name })
            }
        };
        Ok(Some(open.give(export)))
    }
}

/// Changes the size of a volume. It is on disk when this returns.
pub(super) async fn resize(live: &LiveVolume, size_bytes: u64) -> Result<(), ExportError> {
    live.resize(size_bytes).await.map(drop).map_err(|error| live_error(&error))
}

/// A volume for one connection.
struct LiveExport {
    zvol: Arc<ZvolState>,
    /// Fixed when the connection was made, like the block sizes.
    size_bytes: u64,
    block_sizes: BlockSizes,
    name: String,
}

impl LiveExport {
    async fn clear(&self, offset_bytes: u64, length_bytes: u32, how: Clear, fua: bool) -> Result<(), ExportError> {
        let live = self.zvol.share().await?;
        let cleared = live.clear(offset_bytes, u64::from(length_bytes), how).await;
        cleared.map_err(|error| live_error(&error))?;
        live.commit_if_sync(fua).await.map_err(|error| live_error(&error))
    }
}

impl Export for LiveExport {
    fn description(&self) -> String {
        self.name.clone()
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_sizes(&self) -> BlockSizes {
        self.block_sizes
    }

    fn is_read_only(&self) -> bool {
        self.zvol.now().is_some_and(|live| live.is_read_only())
    }

    #[boxed]
    async fn read(&self, offset_bytes: u64, length_bytes: u32) -> Result<Vec<Piece>, ExportError> {
        let live = self.zvol.share().await?;
        let mut pieces = pieces(live.volume(), offset_bytes, length_bytes).await?;
        // A range that was truncated meanwhile reads as zeros for a client that does not know.
        let found: u64 = pieces.iter().map(Piece::length_bytes).sum();
        live.count_read(found);
        if found < u64::from(length_bytes) {
            pieces.push(Piece::Zeros(u64::from(length_bytes) - found));
        }
        Ok(pieces)
    }

    #[boxed]
    async fn block_status(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        extents_max: usize,
    ) -> Result<Vec<Extent>, ExportError> {
        let live = self.zvol.share().await?;
        statuses(live.volume(), offset_bytes, length_bytes, extents_max).await
    }

    #[boxed]
    async fn write(&self, offset_bytes: u64, data: Block, fua: bool) -> Result<(), ExportError> {
        let live = self.zvol.share().await?;
        live.write(offset_bytes, &data).await.map_err(|error| live_error(&error))?;
        drop(data);
        live.commit_if_sync(fua).await.map_err(|error| live_error(&error))
    }

    #[boxed]
    async fn write_zeros(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        may_free: bool,
        fua: bool,
    ) -> Result<(), ExportError> {
        let how = if may_free { Clear::Freed } else { Clear::Written };
        self.clear(offset_bytes, length_bytes, how, fua).await
    }

    #[boxed]
    async fn trim(&self, offset_bytes: u64, length_bytes: u32, fua: bool) -> Result<(), ExportError> {
        self.clear(offset_bytes, length_bytes, Clear::Discarded, fua).await
    }

    #[boxed]
    async fn flush(&self) -> Result<(), ExportError> {
        self.zvol.share().await?.flush().await.map_err(|error| live_error(&error))
    }
}
