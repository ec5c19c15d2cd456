//! Volumes that clients write, in a pool that is open for writing.
//!
//! A volume is opened once for all connections (`open`), so that one reads and flushes the writes of another. `cenote_zvol::live` carries out
//! requests and determines when they are on disk.
//!
//! A snapshot, and a volume that Cenote cannot change yet, is exported as it is on disk. One with `readonly=on` refuses changes until that is off.

use std::sync::Arc;

use cenote_nbd::{BlockSizes, Export, ExportError, ExportName, Exports, Extent, Piece};
use cenote_spa::SpaError;
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Block, Either, boxed, race};
use cenote_zvol::live::Clear;

use super::errors::live_error;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cenote_admin::VolumeShape;
    use cenote_dmu::tx::TxTunables;
    use cenote_nbd::Exports as _;
    use cenote_sim::{Machine, SINGLE, options};
    use cenote_taskq::sim::disk::SimDiskOptions;
    use cenote_taskq::{Class, Runtime};

    use super::*;

    /// A command has the head open when a suspension ends: clients wait for it, and have their volume again. One that stays too long costs the
    /// clients that are connected their export, and those that come later get the volume.
    #[test]
    fn a_volume_is_not_lost_to_a_command_that_uses_its_head_when_it_resumes() {
        let runtime = Runtime::simulated(5);
        let handle = runtime.handle();
        let disk = SimDiskOptions { size_bytes: 128 << 20, ..SimDiskOptions::default() };
        let machine = Machine::new(&runtime, 1, &disk);
        runtime.block_on(async {
            let tops = machine.tops(&handle, SINGLE).await.unwrap();
            let pool = cenote_sim::new_pool(&handle, options("p", tops, 12)).await.unwrap();
            let pool = pool.start(TxTunables::for_memory(64 << 20)).await;
            let shape = VolumeShape { size_bytes: 8 << 20, block_bytes: None, sparse: false };
            cenote_admin::create_volume(&pool, "p/v", shape, Vec::new(), false).await.unwrap();
            let volumes = OpenVolumes::new(pool.clone());
            let served = LiveVolumes::new([(volumes.clone(), "p".to_owned())]);
            let export = served.open("p/v").await.unwrap().unwrap();
            for (seconds, is_kept) in [(1, true), (600, false)] {
                let suspended = volumes.lock().await.suspend("p/v").await.unwrap().unwrap();
                let head = pool.open_head("p/v").await.unwrap();
                let clock = handle.clone();
                handle.detach(Class::Issue, async move {
                    clock.sleep(Duration::from_secs(seconds)).await;
                    drop(head);
                });
                assert_eq!(suspended.resume().await.is_ok(), is_kept);
                let written = export.write(0, vec![7; 4096].into(), true).await;
                assert_eq!(written.is_ok(), is_kept, "{written:?}");
            }
            assert!(served.open("p/v").await.is_err(), "the command has it still");
            handle.sleep(Duration::from_secs(600)).await;
            let again = served.open("p/v").await.unwrap().unwrap();
            again.write(0, vec![8; 4096].into(), true).await.unwrap();
            assert!(export.read(0, 512).await.is_err(), "a client that lost its export connects again");
            drop((export, again));
            volumes.close().await;
            pool.export().await.unwrap();
        });
    }
}
