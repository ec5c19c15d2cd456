//! The block reference table (BRT): references that are added for the cloned blocks of an intent log.
//!
//! A record of a cloned range (`TX_CLONE_RANGE`) points to blocks of other files, which may free them before the record is replayed. So claiming
//! a log adds a reference to each of these blocks, and freeing the log gives it up. OpenZFS may free a log that was claimed here, and relies on it.

use std::collections::BTreeSet;

use cenote_dmu::{ObjectSpec, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::brt::{BrtVdevPhys, REGION_SIZE_BYTES, reference_count};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{Txg, VdevId};
use cenote_format::zap::ZapValue;

use super::brt::{ENDIAN_FEATURE, FEATURE, like};
use super::known::CloneTable;
use crate::SpaError;
use crate::sync::rooms::InTxg;

/// The block size of a table, as in OpenZFS: 8 KiB.
const BLOCK_SHIFT: u8 = 13;
/// The block size of the object with the regions' counts (`BRT_BLOCKSIZE`).
const COUNTS_BLOCK_BYTES: u32 = 32 << 10;

impl InTxg<'_> {
    /// Adds a reference to a block that is neither a hole, nor embedded, nor deduplicated.
    pub(crate) async fn add_clone(&mut self, txg: Txg, bp: &Blkptr) -> Result<(), SpaError> {
        debug_assert!(!bp.is_hole() && !bp.is_embedded() && !bp.dedup(), "what is cloned is in the reference table");
        let Some(first) = bp.dva(0) else { return Err(SpaError::contradiction("a cloned block without a place")) };
        let used_bytes = self.used_bytes(bp);
        let mut clones = self.take_clones().await?;
        let added = async {
            let table = match clones.0.remove(&first.vdev) {
                Some(table) => table,
                None => self.make_clone_table(txg, first.vdev).await?,
            };
            let table = clones.0.entry(first.vdev).or_insert(table);
            self.add_in(txg, table, first.vdev, first.offset_bytes, used_bytes).await
        };
        let added = added.await;
        self.blocks.shared.clones = Some(clones);
        added?;
        self.saved_changed(used_bytes.cast_signed());
        Ok(())
    }

    async fn add_in(
        &self,
        txg: Txg,
        table: &mut CloneTable,
        vdev: VdevId,
        offset: u64,
        used_bytes: u64,
    ) -> Result<(), SpaError> {
        let region = usize::try_from(offset / table.phys.region_size_bytes).unwrap_or(usize::MAX);
        if region >= table.regions.len() {
            // The vdev has grown since the table was made.
            let all = self.region_count(vdev, table.phys.region_size_bytes)?;
            if region >= all {
                return Err(SpaError::contradiction(format!(
                    "a cloned block at offset {offset} of vdev {vdev}, which ends before"
                )));
            }
            table.regions.resize(all, 0);
            table.phys.region_count = table.phys.region_count.max(all as u64);
        }
        let found = match table.regions[region] {
            0 => None,
            _ => table.entries.lookup_words(&[offset]).await?,
        };
        let value = match found {
            Some(value) => {
                let count = reference_count(&value, cenote_zio::ORDER)?;
                like(&value, count.saturating_add(1))
            }
            None => {
                let overflow =
                    || SpaError::contradiction(format!("over 65535 cloned blocks in the region at {offset}"));
                table.regions[region] = table.regions[region].checked_add(1).ok_or_else(overflow)?;
                table.changed_regions.insert(region);
                table.phys.entry_count = table.phys.entry_count.saturating_add(1);
                table.phys.used_bytes = table.phys.used_bytes.saturating_add(used_bytes);
                match self.mos.features.count(ENDIAN_FEATURE) {
                    0 => ZapValue::from_bytes(&cenote_zio::ORDER.bytes64(1)),
                    _ => ZapValue::from_u64(1),
                }
            }
        };
        table.phys.saved_bytes = table.phys.saved_bytes.saturating_add(used_bytes);
        table.is_changed = true;
        table.entries.set_words(&[offset], &value).await?;
        self.trim(txg, &mut table.entries).await
    }

    /// The number of regions of a vdev. Only whole metaslabs count: OpenZFS rejects a table with more regions.
    fn region_count(&self, vdev: VdevId, region_size_bytes: u64) -> Result<usize, SpaError> {
        let top = self.devices.root_vdev.config.children.iter().find(|top| top.id == u64::from(vdev.0));
        let top =
            top.ok_or_else(|| SpaError::contradiction(format!("a cloned block on vdev {vdev}, which is none")))?;
        let size_bytes = top.asize_bytes >> top.metaslab_shift << top.metaslab_shift;
        Ok(usize::try_from(size_bytes.div_ceil(region_size_bytes)).unwrap_or(usize::MAX))
    }

    /// Makes the table of a vdev that has none.
    async fn make_clone_table(&mut self, txg: Txg, vdev: VdevId) -> Result<CloneTable, SpaError> {
        if !self.mos.features.has(FEATURE) {
            return Err(SpaError::contradiction("a cloned block, though the feature block_cloning is not enabled"));
        }
        let regions = vec![0; self.region_count(vdev, REGION_SIZE_BYTES)?];
        let entries = self.make_table(txg, DmuType::ZAP_METADATA, BLOCK_SHIFT, false)?;
        let phys = BrtVdevPhys {
            entries: entries.object().id(),
            region_count: regions.len() as u64,
            byte_order: 0,
            entry_count: 0,
            region_size_bytes: REGION_SIZE_BYTES,
            used_bytes: 0,
            saved_bytes: 0,
        };
        let bonus = phys.emit(cenote_zio::ORDER).to_vec();
        let spec = ObjectSpec::new(DmuType::UINT64_METADATA, COUNTS_BLOCK_BYTES);
        let spec = spec.with_bonus(DmuType::UINT64_METADATA, bonus);
        let object = self.mos.objset.create_object(txg, &spec)?;
        let id = ZapValue::from_u64(object.id().0);
        Zap::put_entry(&self.mos.directory, txg, &pool_directory::brt(vdev.0), Some(&id)).await?;
        // All tables have the same form of counts: that of the first one.
        let is_first = self.mos.features.count(FEATURE) == 0;
        if self.mos.features.count(ENDIAN_FEATURE) > 0 || is_first && self.mos.features.has(ENDIAN_FEATURE) {
            self.mos.features.change(ENDIAN_FEATURE, 1);
        }
        self.mos.features.change(FEATURE, 1);
        let changed_regions = BTreeSet::new();
        Ok(CloneTable { object, entries, phys, regions, changed_regions, is_changed: true })
    }
}
