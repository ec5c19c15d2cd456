//! The block reference table (BRT): references to cloned blocks that are given up.
//!
//! The structures are those of `cenote_format::brt`. A block has an entry while it is referred to more than once; the entry
//! counts the references beyond the first. With a vdev's last entry its objects go, and one use of the feature.

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::Zap;
use cenote_format::blkptr::Blkptr;
use cenote_format::brt::{BrtVdevPhys, reference_count, region_counts};
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_format::zap::ZapValue;
use cenote_vdev::config::VdevConfig;

use crate::SpaError;
use crate::refcount::known::{CloneTable, Clones};
use crate::sync::rooms::InTxg;

pub(super) const FEATURE: &str = "block_cloning";
/// In use by each vdev's table whose counts are integers.
pub(super) const ENDIAN_FEATURE: &str = "block_cloning_endian";
/// Regions are no smaller, so that their counts are few: 2 MiB for a TB at most.
const REGION_MIN_BYTES: u64 = 1 << 20;

/// The value of an entry, in the form that it had.
pub(super) fn like(before: &ZapValue, count: u64) -> ZapValue {
    if before.as_bytes().is_some() {
        ZapValue::from_bytes(&cenote_zio::ORDER.bytes64(count))
    } else {
        ZapValue::from_u64(count)
    }
}

impl InTxg<'_> {
    /// Whether any block of the pool is cloned.
    pub(crate) fn may_have_clones(&self) -> bool {
        self.mos.features.count(FEATURE) != 0
    }

    /// Takes away a reference to a block that may have been cloned; false if it is in no table, and so free.
    pub(super) async fn give_up_clone(&mut self, txg: Txg, bp: &Blkptr) -> Result<bool, SpaError> {
        if !self.may_have_clones() {
            return Ok(false);
        }
        let Some(first) = bp.dva(0) else { return Ok(false) };
        let mut clones = self.take_clones().await?;
        let used_bytes = self.used_bytes(bp);
        let kept = match clones.0.get_mut(&first.vdev) {
            Some(table) => self.give_up_in(txg, table, first.offset_bytes, used_bytes).await,
            None => Ok(false),
        };
        self.blocks.shared.clones = Some(clones);
        if *kept.as_ref().unwrap_or(&false) {
            self.saved_changed(-used_bytes.cast_signed());
        }
        kept
    }

    async fn give_up_in(
        &self,
        txg: Txg,
        table: &mut CloneTable,
        offset: u64,
        used_bytes: u64,
    ) -> Result<bool, SpaError> {
        let Some(region) = table.region_of(offset) else { return Ok(false) };
        let corrupt =
            |what: &str| SpaError::contradiction(format!("the block reference table {what}, at offset {offset}"));
        let found = table.entries.lookup_words(&[offset]).await?;
        let Some(value) = found else { return Ok(false) };
        let count = reference_count(&value, cenote_zio::ORDER)?;
        let left = count.checked_sub(1).ok_or_else(|| corrupt("has an entry without references"))?;
        let phys = &mut table.phys;
        phys.saved_bytes = phys.saved_bytes.saturating_sub(used_bytes);
        if left > 0 {
            table.entries.set_words(&[offset], &like(&value, left)).await?;
        } else {
            phys.entry_count = phys.entry_count.checked_sub(1).ok_or_else(|| corrupt("has more than it counts"))?;
            phys.used_bytes = phys.used_bytes.saturating_sub(used_bytes);
            table.regions[region] -= 1;
            table.changed_regions.insert(region);
            table.entries.remove_words(&[offset]).await?;
        }
        table.is_changed = true;
        self.trim(txg, &mut table.entries).await?;
        Ok(true)
    }

    /// Takes the tables out of `shared`; the caller puts them back.
    pub(super) async fn take_clones(&mut self) -> Result<Clones, SpaError> {
        let clones = match self.blocks.shared.clones.take() {
            Some(clones) => clones,
            None => self.load_clones().await?,
        };
        assert!(self.blocks.shared.clones.is_none(), "the tables of clones are in one place");
        Ok(clones)
    }

    async fn load_clones(&self) -> Result<Clones, SpaError> {
        let mut directory = Zap::open(self.mos.directory.clone()).await?;
        let mut tables = BTreeMap::new();
        for top in &self.devices.root_vdev.config.children {
            let Ok(id) = u32::try_from(top.id) else { continue };
            let found = self.number_in(&mut directory, &pool_directory::brt(id)).await?;
            if let Some(object) = found {
                tables.insert(VdevId(id), self.load_table(top, ObjectId(object)).await?);
            }
        }
        Ok(Clones(tables))
    }

    async fn load_table(&self, top: &VdevConfig, object: ObjectId) -> Result<CloneTable, SpaError> {
        let object = self.mos.objset.object(object).await?;
        let phys = BrtVdevPhys::parse(&object.phys().bonus, cenote_zio::ORDER)?;
        if phys.endian()? != cenote_zio::ORDER {
            return SpaError::unwritable("freeing blocks that a big-endian machine cloned");
        }
        if phys.region_size_bytes < REGION_MIN_BYTES {
            return SpaError::unwritable(format!(
                "a block reference table in regions of {} bytes",
                phys.region_size_bytes
            ));
        }
        // Regions beyond the end of the vdev cannot have blocks of it.
        let regions = phys.region_count.min(top.asize_bytes.div_ceil(phys.region_size_bytes));
        let bytes = object.read(0, usize::try_from(regions).unwrap_or(0) * 2).await?;
        let regions = region_counts(&bytes, cenote_zio::ORDER).collect();
        let entries = self.zap_at(phys.entries).await?;
        Ok(CloneTable { object, entries, phys, regions, changed_regions: BTreeSet::new(), is_changed: false })
    }

    /// Writes the tables that have changed, and does away with those that have no entries any more.
    pub(super) async fn save_clones(&mut self, txg: Txg) -> Result<(), SpaError> {
        let Some(mut clones) = self.blocks.shared.clones.take() else { return Ok(()) };
        let mut gone = Vec::new();
        for (vdev, table) in clones.0.iter_mut().filter(|(_, table)| table.is_changed) {
            let entries = table.entries.entry_count()?;
            if table.phys.entry_count == 0 && entries == 0 {
                gone.push(*vdev);
                continue;
            }
            table.entries.flush(txg).await?;
            for region in std::mem::take(&mut table.changed_regions) {
                let count = table.regions[region].to_le_bytes();
                table.object.write(txg, region as u64 * 2, &count).await?;
            }
            let bonus = table.phys.emit(cenote_zio::ORDER);
            table.object.set_bonus(txg, &bonus)?;
            table.is_changed = false;
        }
        debug_assert!(
            clones.0.iter().all(|(vdev, table)| !table.is_changed || gone.contains(vdev)),
            "the tables of clones are on disk with their txg, or go"
        );
        for vdev in gone {
            let Some(table) = clones.0.remove(&vdev) else { continue };
            table.entries.object().free(txg);
            table.object.free(txg);
            Zap::put_entry(&self.mos.directory, txg, &pool_directory::brt(vdev.0), None).await?;
            self.mos.features.change(FEATURE, -1);
            if self.mos.features.count(ENDIAN_FEATURE) > 0 {
                self.mos.features.change(ENDIAN_FEATURE, -1);
            }
        }
        self.blocks.shared.clones = Some(clones);
        Ok(())
    }
}
