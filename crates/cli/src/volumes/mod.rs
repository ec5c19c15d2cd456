//! The volumes of a pool, and their snapshots, as NBD exports.
//!
//! An export's name is the dataset's: `tank/vm/disk0`, `tank/vm/disk0@monday`. Volumes are opened as clients ask for them,
//! so a pool with thousands serves as quickly as one with a few.

use std::sync::Arc;

use cenote_dmu::DmuError;
use cenote_dsl::DslError;
use cenote_format::enums::ObjsetType;
use cenote_nbd::{BlockSizes, Export, ExportError, ExportErrorKind, ExportName, Exports, Extent, Piece};
use cenote_spa::Pool;
use cenote_taskq::BoxFuture;
use cenote_zvol::Volume;

/// All volumes of a pool, or those below one dataset.
pub(crate) struct PoolVolumes {
    pool: Pool,
    below: String,
}

impl PoolVolumes {
    /// The volumes at and below the dataset `below`.
    pub(crate) fn new(pool: Pool, below: impl Into<String>) -> Self {
        Self { pool, below: below.into() }
    }

    /// The names of all volumes and their snapshots.
    pub(crate) async fn names(&self) -> Result<Vec<ExportName>, DslError> {
        let dsl = self.pool.dsl();
        let mut names = Vec::new();
        for dir in dsl.tree(dsl.dir(&self.below).await?, false).await? {
            let Some(head) = dsl.head(&dir).await? else { continue };
            if head.is_inconsistent() || dsl.kind(&head).await? != ObjsetType::Zvol {
                continue;
            }
            names.push(ExportName { name: head.name(), description: "volume".into() });
            for snapshot in dsl.snapshots(&head).await? {
                names.push(ExportName { name: snapshot.name(), description: "snapshot of a volume".into() });
            }
        }
        names.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(names)
    }

    async fn volume(&self, name: &str) -> Result<Option<Volume>, ExportError> {
        let dsl = self.pool.dsl();
        let dataset = match dsl.dataset(name).await {
            Ok(dataset) => dataset,
            Err(DslError::NoSuchDataset(_) | DslError::BadName { .. }) => return Ok(None),
            Err(error) => return Err(io_error(&error)),
        };
        let is_below = dataset.dir.name == self.below || dataset.dir.name.starts_with(&format!("{}/", self.below));
        if !is_below || dsl.kind(&dataset).await.map_err(|error| io_error(&error))? != ObjsetType::Zvol {
            return Ok(None);
        }
        let Some(objset) = dsl.open(&dataset).await.map_err(|error| io_error(&error))? else { return Ok(None) };
        Ok(Some(Volume::open(objset).await.map_err(|error| io_error(&error))?))
    }
}

fn io_error(error: &impl std::fmt::Display) -> ExportError {
    ExportError::new(ExportErrorKind::Io, error.to_string())
}

impl Exports for PoolVolumes {
    fn list(&self) -> BoxFuture<'_, Result<Vec<ExportName>, ExportError>> {
        Box::pin(async move { self.names().await.map_err(|error| io_error(&error)) })
    }

    fn open<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Arc<dyn Export>>, ExportError>> {
        Box::pin(async move {
            // Asked for the default: the only volume, if there is but one.
            let only;
            let name = if name.is_empty() {
                let names = self.names().await.map_err(|error| io_error(&error))?;
                let [export] = &names[..] else { return Ok(None) };
                only = export.name.clone();
                &only
            } else {
                name
            };
            let volume = self.volume(name).await?;
            Ok(volume.map(|volume| Arc::new(VolumeExport { volume, name: name.to_owned() }) as Arc<dyn Export>))
        })
    }
}

struct VolumeExport {
    volume: Volume,
    name: String,
}

impl VolumeExport {
    async fn pieces(&self, offset_bytes: u64, length_bytes: u32) -> Result<Vec<Piece>, DmuError> {
        let end = offset_bytes + u64::from(length_bytes);
        let mut pieces = Vec::new();
        let mut at = offset_bytes;
        while at < end {
            let (range, is_hole) = self.volume.extent(at, end).await?;
            let length = (range.end - at).max(1).min(end - at);
            if is_hole {
                pieces.push(Piece::Zeros(length));
            } else {
                pieces.push(Piece::Data(self.volume.read(at, length as usize).await?));
            }
            at += length;
        }
        Ok(pieces)
    }
}

impl Export for VolumeExport {
    fn description(&self) -> String {
        self.name.clone()
    }

    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    fn block_sizes(&self) -> BlockSizes {
        let block = u32::try_from(self.volume.block_size_bytes()).ok().filter(|size| size.is_power_of_two());
        BlockSizes { preferred_bytes: block.unwrap_or(4096).max(512), ..BlockSizes::default() }
    }

    fn read(&self, offset_bytes: u64, length_bytes: u32) -> BoxFuture<'_, Result<Vec<Piece>, ExportError>> {
        Box::pin(async move { self.pieces(offset_bytes, length_bytes).await.map_err(|error| io_error(&error)) })
    }

    fn block_status(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, ExportError>> {
        Box::pin(async move {
            let end = offset_bytes + u64::from(length_bytes);
            let mut extents: Vec<Extent> = Vec::new();
            let mut at = offset_bytes;
            while at < end && extents.len() < extents_max.max(1) {
                let (range, is_hole) = self.volume.extent(at, end).await.map_err(|error| io_error(&error))?;
                let length_bytes = (range.end - at).max(1).min(end - at);
                extents.push(Extent { length_bytes, is_hole, is_zero: is_hole });
                at += length_bytes;
            }
            Ok(extents)
        })
    }
}
