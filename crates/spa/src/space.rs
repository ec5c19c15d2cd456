//! The pool's space: where its maps are, and reading them.

use std::fmt::Display;
use std::sync::Arc;

use cenote_dmu::{Objset, Zap};
use cenote_format::Endian;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_format::spacemap::SpaceMapPhys;
use cenote_metaslab::{ObjectError, PoolSpace, SpaceObjects, VdevMaps};
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;
use cenote_vdev::config::{VdevConfig, VdevKind};

use crate::{SpaError, View};

/// Entry of a top-level vdev's ZAP: each metaslab's first txg that is only in the logs.
pub(crate) const UNFLUSHED_TXGS: &str = "com.delphix:ms_unflushed_phys_txgs";
/// Entry of a top-level vdev's ZAP: what it is for, where it does not serve everything.
pub(crate) const ALLOCATION_BIAS: &str = "org.zfsonlinux:allocation_bias";
/// Entry of a top-level vdev's ZAP: what the checkpoint keeps.
pub(crate) const CHECKPOINT_MAP: &str = "com.delphix:pool_checkpoint_sm";
/// Log space maps at most: one a txg, retired after some thousands.
const LOGS_MAX: usize = 1 << 20;

/// The MOS's objects, as space maps are read from them.
pub(crate) struct MosObjects(pub(crate) Objset);

impl SpaceObjects for MosObjects {
    #[boxed]
    async fn bonus(&self, object: ObjectId) -> Result<(Vec<u8>, Endian), ObjectError> {
        let dnode = self.0.object(object).await.map_err(ObjectError::new)?;
        let phys = dnode.phys();
        Ok((phys.bonus.to_vec(), phys.endian))
    }

    #[boxed]
    async fn block_bytes(&self, object: ObjectId) -> Result<u64, ObjectError> {
        let dnode = self.0.object(object).await.map_err(ObjectError::new)?;
        Ok(dnode.block_bytes())
    }

    #[boxed]
    async fn read(&self, object: ObjectId, offset_bytes: u64, len: usize) -> Result<Block, ObjectError> {
        let dnode = self.0.object(object).await.map_err(ObjectError::new)?;
        dnode.read(offset_bytes, len).await.map_err(ObjectError::new)
    }
}

/// Where the space maps of a vdev are, as its configuration says.
pub(crate) fn vdev_maps_of(vdev: VdevId, top: &VdevConfig) -> VdevMaps {
    VdevMaps {
        vdev,
        class: top.class,
        ashift: top.ashift,
        metaslab_shift: top.metaslab_shift,
        granule_bytes: match top.kind {
            VdevKind::Draid { parity, data, .. } => parity.saturating_add(data).checked_shl(top.ashift).unwrap_or(1),
            _ => 1,
        },
        asize_bytes: top.asize_bytes,
        metaslab_array: top.metaslab_array,
        unflushed_txgs: None,
        checkpoint_map: None,
    }
}

/// How much there is to replay before a pool can be written to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogFigures {
    /// Log space maps.
    pub logs: u64,
    /// Bytes of entries in them, 16 each.
    pub entry_bytes: u64,
}

impl View {
    /// The figures of the log space maps, by their headers.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn log_figures(&self) -> Result<LogFigures, SpaError> {
        let objects = MosObjects(self.mos().clone());
        let mut figures = LogFigures::default();
        for (txg, object) in self.log_space_maps().await? {
            let fail = |error: &dyn Display| self.corrupt(format!("log space map of txg {txg}: {error}"));
            let (bonus, order) = objects.bonus(object).await.map_err(|error| fail(&error))?;
            let phys = SpaceMapPhys::parse(&bonus, order).map_err(|error| fail(&error))?;
            figures.logs += 1;
            figures.entry_bytes = figures.entry_bytes.saturating_add(phys.length_bytes);
        }
        Ok(figures)
    }

    /// Loads all space maps and logs. Expensive on large pools: seconds.
    #[boxed]
    pub async fn space(&self) -> Result<PoolSpace, SpaError> {
        let vdevs = self.vdev_maps().await?;
        let logs = self.log_space_maps().await?;
        let objects = Arc::new(MosObjects(self.mos().clone()));
        Ok(cenote_metaslab::load(self.dmu().handle(), objects, vdevs, logs).await)
    }

    /// Where the space maps of each top-level vdev are.
    pub(crate) async fn vdev_maps(&self) -> Result<Vec<VdevMaps>, SpaError> {
        let mut vdevs = Vec::new();
        for top in &self.vdevs().children {
            if matches!(top.kind, VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect(_)) {
                continue;
            }
            let (mut unflushed_txgs, mut checkpoint_map) = (None, None);
            if top.top_zap.0 != 0 {
                let dnode = self.mos().object(top.top_zap).await.map_err(|error| self.error(error))?;
                let zap = Zap::open(dnode).await.map_err(|error| self.error(error))?;
                let find = async |name| zap.find_u64(name).await.map_err(|error| self.error(error));
                unflushed_txgs = find(UNFLUSHED_TXGS).await?.map(ObjectId);
                checkpoint_map = find(CHECKPOINT_MAP).await?.map(ObjectId);
            }
            let vdev = VdevId(u32::try_from(top.id).unwrap_or(u32::MAX));
            vdevs.push(VdevMaps { unflushed_txgs, checkpoint_map, ..vdev_maps_of(vdev, top) });
        }
        Ok(vdevs)
    }

    /// The log space maps, by txg.
    pub(crate) async fn log_space_maps(&self) -> Result<Vec<(Txg, ObjectId)>, SpaError> {
        let Some(dnode) = self.directory_object(pool_directory::LOG_SPACEMAP_ZAP).await? else { return Ok(Vec::new()) };
        let zap = Zap::open(dnode).await.map_err(|error| self.error(error))?;
        let entries = zap.entries(LOGS_MAX).await.map_err(|error| self.error(error))?;
        entries
            .into_iter()
            .map(|entry| {
                let txg = std::str::from_utf8(entry.name()).ok().and_then(|name| u64::from_str_radix(name, 16).ok());
                match (txg, entry.value.as_u64()) {
                    (Some(txg), Some(object)) => Ok((Txg(txg), ObjectId(object))),
                    _ => Err(self.corrupt("an entry of the log space maps is no txg and object")),
                }
            })
            .collect()
    }
}
