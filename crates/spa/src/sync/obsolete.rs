//! Recording what frees make obsolete of the mappings of removed vdevs: [`super::removed`] has the theory.

use std::ops::Range;

use cenote_dmu::Zap;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{ObjectId, VdevId};
use cenote_format::indirect::Removing;
use cenote_format::spacemap::{HISTOGRAM_BUCKETS, SPACE_MAP_SIZE_V0_BYTES, SpaceMapPhys, SpaceMapType};
use cenote_format::zap::ZapValue;
use cenote_metaslab::{Batch, SpaceMap};

use crate::SpaError;
use crate::sync::removed::{Given, in_order};
use crate::sync::rooms::InTxg;

/// Entry of a top-level vdev's ZAP: the map of what is obsolete of its mapping.
pub(crate) const OBSOLETE_MAP: &str = "com.delphix:indirect_obsolete_sm";
/// Entry of a top-level vdev's ZAP: no range of its mapping became obsolete without being noted.
pub(crate) const COUNTS_ARE_PRECISE: &str = "com.delphix:obsolete_counts_are_precise";
/// Blocks of an obsolete map (`zfs_vdev_standard_sm_blksz`).
const OBSOLETE_BLOCK_BYTES: u64 = 128 << 10;

impl InTxg<'_> {
    /// Records what frees have made obsolete since the last time.
    pub(super) async fn sync_obsolete(&mut self) -> Result<(), SpaError> {
        let Given { obsolete, settled_bytes } = self.blocks.space.removed.take();
        if settled_bytes > 0
            && let Some(removing) = &mut self.blocks.removing
        {
            removing.copied_bytes += settled_bytes;
            debug_assert!(removing.copied_bytes <= removing.to_copy_bytes, "no more is done than there was to do");
            self.save_removing().await?;
        }
        if !self.mos.features.has("obsolete_counts") {
            return Ok(());
        }
        for (vdev, ranges) in obsolete {
            self.append_obsolete(vdev, in_order(ranges)).await?;
        }
        Ok(())
    }

    /// Writes the state of the removal into the directory.
    pub(crate) async fn save_removing(&mut self) -> Result<(), SpaError> {
        let words = self.blocks.removing.as_ref().map(Removing::words);
        let value = words.as_ref().map(|words| ZapValue::from_u64s(words));
        Ok(Zap::put_entry(&self.mos.directory, self.txg, pool_directory::REMOVING, value.as_ref()).await?)
    }

    async fn append_obsolete(&mut self, vdev: VdevId, ranges: Vec<Range<u64>>) -> Result<(), SpaError> {
        let txg = self.txg;
        let mut changes = self.mos.space_changes(txg);
        let mut map = match self.obsolete_map(vdev).await? {
            Some(map) => map,
            None => {
                let map = SpaceMap::create(&mut changes, OBSOLETE_BLOCK_BYTES, 0, 0)?;
                let table = self.mos.objset.object(self.top(vdev)?.top_zap).await?;
                Zap::put_entry(&table, txg, OBSOLETE_MAP, Some(&ZapValue::from_u64(map.object.0))).await?;
                self.mos.features.change("obsolete_counts", 1);
                map
            }
        };
        let pass = u16::try_from(self.blocks.space_pass).unwrap_or(u16::MAX);
        let batch = Batch { txg, pass, two_words: self.mos.features.has("spacemap_v2") };
        map.append(&mut changes, batch, SpaceMapType::Alloc, None, ranges.into_iter())?;
        map.put_header(&mut changes)?;
        self.make_changes(changes).await
    }

    /// The map of what is obsolete of a vdev's mapping, if it has one.
    pub(crate) async fn obsolete_map(&self, vdev: VdevId) -> Result<Option<SpaceMap>, SpaError> {
        let table = Zap::open(self.mos.objset.object(self.top(vdev)?.top_zap).await?).await?;
        let Some(object) = table.find_u64(OBSOLETE_MAP).await?.filter(|object| *object != 0).map(ObjectId) else {
            return Ok(None);
        };
        let found = self.mos.objset.object(object).await?;
        let phys = found.bonus(SpaceMapPhys::parse)?;
        let has_histogram = found.phys().bonus.len() != SPACE_MAP_SIZE_V0_BYTES;
        Ok(Some(SpaceMap {
            object,
            block_size_bytes: found.block_bytes(),
            start_bytes: 0,
            shift: 0,
            length_bytes: phys.length_bytes,
            allocated_bytes: phys.allocated_bytes,
            histogram: has_histogram.then(|| phys.histogram.unwrap_or([0; HISTOGRAM_BUCKETS])),
        }))
    }
}
