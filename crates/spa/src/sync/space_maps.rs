//! Changes that space accounting makes in the MOS: space maps, logs, and the objects that list them.

use crate::space::{CHECKPOINT_MAP, UNFLUSHED_TXGS};
use crate::sync::Syncer;
use crate::sync::changes::{Change, ChangeList};
use crate::sync::mos::Mos;
use crate::sync::rooms::InTxg;
use crate::sync::txg::PASSES_MAX;
use crate::{PoolError, SpaError};
use cenote_dmu::{ObjectSpec, Objset, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_format::spacemap::{HISTOGRAM_BUCKETS, SPACE_MAP_SIZE_V0_BYTES, SpaceMapPhys};
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_metaslab::{MetaslabId, ObjectError, SpaceStore};
use cenote_vdev::config::VdevConfig;

/// Indirect blocks of space maps, as a power of two (`space_map_ibs`).
const INDIRECT_SHIFT: u8 = 14;

/// Takes changes down, to be made when the allocator's lock is not held.
pub(crate) struct Changes {
    mos: Objset,
    txg: Txg,
    list: ChangeList,
    /// Whether space maps have histograms (feature `spacemap_histogram`).
    has_histograms: bool,
    /// Space maps with histograms made.
    made: i64,
}

impl Changes {
    fn new(mos: Objset, txg: Txg, has_histograms: bool) -> Self {
        Self { mos, txg, list: ChangeList::default(), has_histograms, made: 0 }
    }
}

impl SpaceStore for Changes {
    fn has_histograms(&self) -> bool {
        self.has_histograms
    }

    fn create(&mut self, block_size_bytes: u64) -> Result<ObjectId, ObjectError> {
        let histogram = self.has_histograms.then_some([0; HISTOGRAM_BUCKETS]);
        let empty = SpaceMapPhys { object: 0, length_bytes: 0, allocated_bytes: 0, histogram };
        let block = u32::try_from(block_size_bytes).map_err(ObjectError::new)?;
        let mut spec = ObjectSpec::new(DmuType::SPACE_MAP, block)
            .with_bonus(DmuType::SPACE_MAP_HEADER, empty.emit(cenote_zio::ORDER));
        spec.indirect_shift = INDIRECT_SHIFT;
        let object = self.mos.create_object(self.txg, &spec).map_err(ObjectError::new)?;
        self.made += i64::from(self.has_histograms);
        Ok(object.id())
    }

    fn write(&mut self, object: ObjectId, offset_bytes: u64, bytes: &[u8]) -> Result<(), ObjectError> {
        self.list.write(object, offset_bytes, bytes);
        Ok(())
    }

    fn truncate(&mut self, object: ObjectId) -> Result<(), ObjectError> {
        self.list.push(Change::Truncate(object));
        Ok(())
    }

    fn free(&mut self, object: ObjectId) -> Result<(), ObjectError> {
        self.list.push(Change::Free(object));
        Ok(())
    }

    fn set_header(&mut self, object: ObjectId, header: &SpaceMapPhys) -> Result<(), ObjectError> {
        self.list.push(Change::Header { object, header: Box::new(header.clone()) });
        Ok(())
    }

    fn set_metaslab_object(&mut self, metaslab: MetaslabId, object: ObjectId) -> Result<(), ObjectError> {
        assert_ne!(object, ObjectId(0), "a metaslab that gets a map gets an object");
        self.list.push(Change::MetaslabObject { metaslab, object });
        Ok(())
    }

    fn set_unflushed_txg(&mut self, metaslab: MetaslabId, txg: Txg) -> Result<(), ObjectError> {
        assert_eq!(txg, self.txg, "a metaslab is flushed in the txg that syncs");
        self.list.push(Change::UnflushedTxg { metaslab, txg });
        Ok(())
    }

    fn set_checkpoint_map(&mut self, vdev: VdevId, object: Option<ObjectId>) -> Result<(), ObjectError> {
        self.list.push(Change::CheckpointMap { vdev, object });
        Ok(())
    }

    fn set_log(&mut self, txg: Txg, object: Option<ObjectId>) -> Result<(), ObjectError> {
        assert!(object.is_none() || txg == self.txg, "a log is made in the txg that it is of");
        self.list.push(Change::Log { txg, object });
        Ok(())
    }
}

impl Mos {
    /// A list of changes of this txg, empty.
    pub(crate) fn space_changes(&self, txg: Txg) -> Changes {
        Changes::new(self.objset.clone(), txg, self.features.has("spacemap_histogram"))
    }
}

impl Syncer {
    /// Turns numbers of space accounting, from now on.
    pub fn tune_space(&mut self, tune: impl FnOnce(&mut cenote_metaslab::Tunables)) {
        self.blocks.space.with(|allocator| tune(allocator.tunables()));
    }

    /// The space accounting work of the last txg.
    pub(crate) fn space_work(&self) -> cenote_metaslab::TxgWork {
        self.blocks.space.with(|allocator| allocator.work().clone())
    }
}

impl InTxg<'_> {
    /// Writes what was allocated and freed since the last time into space maps and logs. The first time in a txg some metaslabs
    /// are flushed and condensed too.
    pub(crate) async fn sync_space(&mut self, txg: Txg) -> Result<(), SpaError> {
        self.frees_done().await?;
        self.sync_obsolete().await?;
        let mut changes = self.mos.space_changes(txg);
        self.blocks.space_pass += 1;
        assert!(self.blocks.space_pass <= PASSES_MAX + 1, "space is entered once a pass, and once for the datasets");
        if self.blocks.space_pass == 1 {
            let failed = self.blocks.space.check_maps().await;
            failed.map_err(|_| SpaError::contradiction("a metaslab that is to be flushed is not there"))?;
        }
        let pass = u16::try_from(self.blocks.space_pass).unwrap_or(u16::MAX);
        self.blocks.space.with(|allocator| allocator.sync(&mut changes, txg, pass))?;
        self.make_changes(changes).await
    }

    /// Ends the txg's log.
    pub(crate) async fn close_space(&mut self, txg: Txg) -> Result<(), SpaError> {
        let mut changes = self.mos.space_changes(txg);
        self.blocks.space.with(|allocator| allocator.close_txg(&mut changes))?;
        self.make_changes(changes).await
    }

    pub(crate) async fn make_changes(&mut self, changes: Changes) -> Result<(), SpaError> {
        let txg = changes.txg;
        assert_eq!(txg, self.txg, "space accounting changes the MOS in the txg that syncs");
        if changes.made != 0 {
            self.mos.features.change("spacemap_histogram", changes.made);
        }
        for change in changes.list.into_changes() {
            self.make_change(txg, change).await?;
        }
        Ok(())
    }

    /// Makes a change. A read that fails suspends the pool, where it can be suspended, and the change is made again.
    async fn make_change(&mut self, txg: Txg, change: Change) -> Result<(), SpaError> {
        if !matches!(change, Change::Write { .. } | Change::Header { .. }) {
            return self.make_change_once(txg, &change).await;
        }
        loop {
            // Both begin with reading, and can be made again.
            let error = match self.make_change_once(txg, &change).await {
                Err(error @ SpaError::Pool { error: PoolError::Dmu(_), .. }) => error,
                made => return made,
            };
            if !self.blocks.space.suspend(format!("a space map that is to be written cannot be read: {error}")).await {
                return Err(error);
            }
        }
    }

    async fn make_change_once(&mut self, txg: Txg, change: &Change) -> Result<(), SpaError> {
        let mos = self.mos.objset.clone();
        match change {
            Change::Write { object, offset_bytes, bytes } => {
                let object = mos.object(*object).await?;
                Ok(object.write(txg, *offset_bytes, bytes).await?)
            }
            Change::Truncate(object) => {
                mos.object(*object).await?.truncate(txg);
                Ok(())
            }
            Change::Free(object) => {
                let object = mos.object(*object).await?;
                // One that a version without the feature made never counted.
                if object.phys().bonus.len() != SPACE_MAP_SIZE_V0_BYTES {
                    self.mos.features.change("spacemap_histogram", -1);
                }
                object.free(txg);
                Ok(())
            }
            Change::Header { object, header } => {
                let object = mos.object(*object).await?;
                Ok(object.set_bonus(txg, &header.emit(cenote_zio::ORDER))?)
            }
            Change::MetaslabObject { metaslab, object } => {
                let array = self.top(metaslab.vdev)?.metaslab_array;
                self.put_word(txg, array, metaslab.index, object.0).await
            }
            Change::UnflushedTxg { metaslab, txg: unflushed } => {
                let object = self.unflushed_object(txg, metaslab.vdev).await?;
                self.put_word(txg, object, metaslab.index, unflushed.0).await
            }
            Change::CheckpointMap { vdev, object } => {
                let value = object.as_ref().map(|object| ZapValue::from_u64(object.0));
                let zap = mos.object(self.top(*vdev)?.top_zap).await?;
                Ok(Zap::put_entry(&zap, txg, CHECKPOINT_MAP, value.as_ref()).await?)
            }
            Change::Log { txg: of, object } => {
                let zap = self.log_zap(txg).await?;
                let value = object.as_ref().map(|object| ZapValue::from_u64(object.0));
                let zap = mos.object(zap).await?;
                Ok(Zap::put_entry(&zap, txg, &int_key_name(of.0), value.as_ref()).await?)
            }
        }
    }

    async fn put_word(&self, txg: Txg, object: ObjectId, index: u64, word: u64) -> Result<(), SpaError> {
        let object = self.mos.objset.object(object).await?;
        Ok(object.write(txg, index * 8, &word.to_le_bytes()).await?)
    }

    /// The object with the metaslabs' unflushed txgs, made if there is none.
    async fn unflushed_object(&mut self, txg: Txg, vdev: VdevId) -> Result<ObjectId, SpaError> {
        if let Some(object) = self.blocks.unflushed_txgs.get(&vdev) {
            return Ok(*object);
        }
        let spec = ObjectSpec::new(DmuType::UINT64_METADATA, 128 << 10);
        let object = self.mos.objset.create_object(txg, &spec)?.id();
        let zap = self.mos.objset.object(self.top(vdev)?.top_zap).await?;
        Zap::put_entry(&zap, txg, UNFLUSHED_TXGS, Some(&ZapValue::from_u64(object.0))).await?;
        self.blocks.unflushed_txgs.insert(vdev, object);
        Ok(object)
    }

    pub(crate) fn top(&self, vdev: VdevId) -> Result<&VdevConfig, SpaError> {
        self.devices.root_vdev.top(vdev).ok_or_else(|| SpaError::contradiction(format!("there is no vdev {vdev}")))
    }

    /// The ZAP of log space maps, made with the first.
    async fn log_zap(&mut self, txg: Txg) -> Result<ObjectId, SpaError> {
        let mut directory = cenote_dmu::Zap::open(self.mos.directory.clone()).await?;
        let found = directory.lookup(pool_directory::LOG_SPACEMAP_ZAP.as_bytes()).await?;
        if let Some(object) = found.and_then(|value| value.as_u64()) {
            return Ok(ObjectId(object));
        }
        let zap = Zap::create_object(&self.mos.objset, txg, DmuType::ZAP_METADATA, &[]).await?.id();
        directory.insert_u64(pool_directory::LOG_SPACEMAP_ZAP, zap.0).await?;
        directory.flush(txg).await?;
        self.mos.features.change("log_spacemap", 1);
        Ok(zap)
    }
}
