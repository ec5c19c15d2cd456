//! The slices of [`super::async_destroy`]: a destroyed dataset's blocks, freed from txg to txg.

use crate::SpaError;
use crate::config::PoolState;
use crate::jobs::doomed::{Doomed, Unreadable};
use crate::jobs::{JobStatus, Slice};
use crate::sync::Syncer;
use cenote_dmu::{Object, ObjectSpec, SpaceDelta, Zap};
use cenote_dsl::{Dataset, LeftTree, UsedBy};
use cenote_format::bptree::{BptreeEntry, BptreePhys};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{ZBookmark, pool_directory};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_zio::ORDER;

/// Bytes of a block of the list (`SPA_OLD_MAXBLOCKSIZE`).
const LIST_BLOCK_BYTES: u32 = 128 << 10;

/// The list with its header.
struct List {
    object: Object,
    phys: BptreePhys,
}

impl Syncer {
    /// Background jobs that have work left.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobStatus> {
        let job = &self.jobs.async_destroy;
        let now = self.handle.now();
        let status = JobStatus {
            name: "async_destroy",
            left_bytes: job.left_bytes,
            done_bytes: job.done_bytes,
            took: job.begun.map(|begun| now - begun).unwrap_or_default(),
            stalled: job.stalled.clone(),
        };
        job.list
            .map(|_| status)
            .into_iter()
            .chain(self.jobs.free_list.status(now))
            .chain(self.jobs.deleted_clones.status(now))
            .collect()
    }

    /// Blocks of destroyed datasets that one txg frees at most (`zfs_async_block_max_blocks`; default 100 000).
    pub fn set_async_block_max_blocks(&mut self, blocks: u64) {
        self.jobs.async_destroy.blocks_max = blocks.max(1);
    }

    /// True if a background job goes on with the next txg.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.has_destroyed() || self.jobs.free_list.goes_on() || self.jobs.deleted_clones.goes_on()
    }

    fn has_destroyed(&self) -> bool {
        self.jobs.async_destroy.list.is_some() && self.jobs.async_destroy.stalled.is_none()
    }

    /// Leaves the blocks of a head dataset that is destroyed in this txg to the background. False where the pool has not got the
    /// feature, or there are no blocks: nothing is changed then.
    pub(crate) async fn leave_blocks(&mut self, txg: Txg, dataset: &Dataset) -> Result<bool, SpaError> {
        if !self.mos.features.has("async_destroy") || dataset.phys.bp.is_hole() {
            return Ok(false);
        }
        let space = SpaceDelta {
            used_bytes: dataset.phys.unique_bytes.cast_signed(),
            compressed_bytes: dataset.dir.phys.compressed_bytes.cast_signed(),
            uncompressed_bytes: dataset.dir.phys.uncompressed_bytes.cast_signed(),
        };
        let tree = LeftTree { root: dataset.phys.bp, born_after: dataset.phys.prev_snapshot_txg, space };
        self.leave_tree(txg, &tree).await?;
        Ok(true)
    }

    /// Leaves the blocks of a tree to the background; the feature has to be there.
    pub(crate) async fn leave_tree(&mut self, txg: Txg, tree: &LeftTree) -> Result<(), SpaError> {
        let mut list = match self.jobs.async_destroy.list {
            Some(list) => self.bptree(list).await?,
            None => self.make_bptree(txg).await?,
        };
        let LeftTree { root, born_after, space: used } = *tree;
        let entry = BptreeEntry { bp: root, birth_txg: born_after, bookmark: ZBookmark::default() };
        self.put_entry(txg, &list, list.phys.end, &entry).await?;
        list.phys.end += 1;
        change(&mut list.phys, used);
        self.put_bptree(txg, &list)?;
        let free_dir = self.free_dir().await?;
        Ok(self.mos.dsl.charge(txg, free_dir, UsedBy::Head, used).await?)
    }

    pub(crate) async fn free_dir(&self) -> Result<ObjectId, SpaError> {
        let root = self.mos.dsl.root_dir().await?;
        let dir = self.mos.dsl.child(&root, pool_directory::FREE_DIR).await?;
        Ok(dir
            .ok_or_else(|| SpaError::contradiction(format!("there is no directory '{}'", pool_directory::FREE_DIR)))?
            .object)
    }

    async fn bptree(&self, list: ObjectId) -> Result<List, SpaError> {
        let object = self.mos.objset.object(list).await?;
        let phys = object.bonus(BptreePhys::parse);
        let phys = phys.map_err(|error| SpaError::contradiction(format!("the list of destroyed datasets: {error}")))?;
        Ok(List { object, phys })
    }

    async fn make_bptree(&mut self, txg: Txg) -> Result<List, SpaError> {
        let phys = BptreePhys { begin: 0, end: 0, used_bytes: 0, compressed_bytes: 0, uncompressed_bytes: 0 };
        let spec = ObjectSpec::new(DmuType::UINT64_METADATA, LIST_BLOCK_BYTES)
            .with_bonus(DmuType::UINT64_METADATA, phys.emit(ORDER).to_vec());
        assert!(self.jobs.async_destroy.list.is_none(), "a pool has one list of destroyed datasets");
        let object = self.mos.objset.create_object(txg, &spec)?;
        let entry = ZapValue::from_u64(object.id().0);
        Zap::put_entry(&self.mos.directory, txg, pool_directory::BPTREE, Some(&entry)).await?;
        self.mos.features.change("async_destroy", 1);
        self.jobs.async_destroy.list = Some(object.id());
        Ok(List { object, phys })
    }

    fn put_bptree(&mut self, txg: Txg, list: &List) -> Result<(), SpaError> {
        self.jobs.async_destroy.left_bytes = list.phys.used_bytes;
        Ok(list.object.set_bonus(txg, &list.phys.emit(ORDER))?)
    }

    async fn put_entry(&self, txg: Txg, list: &List, index: u64, entry: &BptreeEntry) -> Result<(), SpaError> {
        let at = index.saturating_mul(BptreeEntry::SIZE_BYTES as u64);
        Ok(list.object.write(txg, at, &entry.emit(ORDER)).await?)
    }

    /// Frees blocks of destroyed datasets for a slice. Before the datasets are written, since references to shared blocks may end
    /// with them.
    pub(crate) async fn free_destroyed(&mut self, txg: Txg) -> Result<(), SpaError> {
        let Some(object) =
            self.jobs.async_destroy.list.filter(|_| self.has_destroyed() && self.state == PoolState::Active)
        else {
            return Ok(());
        };
        let now = self.handle.now();
        self.jobs.async_destroy.begun.get_or_insert(now);
        let mut slice = Slice::new(now, self.jobs.async_destroy.blocks_max);
        let mut list = self.bptree(object).await?;
        let mut freed = SpaceDelta::default();
        while list.phys.begin < list.phys.end && !slice.is_over(self.handle.now()) && self.has_destroyed() {
            let at = list.phys.begin.saturating_mul(BptreeEntry::SIZE_BYTES as u64);
            let bytes = list.object.read(at, BptreeEntry::SIZE_BYTES).await?;
            let mut entry = match BptreeEntry::parse(&bytes, ORDER) {
                Ok(entry) => entry,
                Err(error) => {
                    self.stall(format!("the list of destroyed datasets: {error}"));
                    break;
                }
            };
            let stop = self.free_entry(txg, &entry, &mut slice, &mut freed).await?;
            entry = match stop {
                Some(bookmark) => BptreeEntry { bookmark, ..entry },
                None => {
                    list.phys.begin += 1;
                    BptreeEntry {
                        bp: cenote_format::blkptr::Blkptr::HOLE,
                        birth_txg: Txg(0),
                        bookmark: ZBookmark::default(),
                    }
                }
            };
            let index = at / BptreeEntry::SIZE_BYTES as u64;
            self.put_entry(txg, &list, index, &entry).await?;
        }
        assert!(freed.used_bytes >= 0, "what is freed takes no space any more");
        change(&mut list.phys, freed.negated());
        self.jobs.async_destroy.done_bytes += freed.used_bytes.max(0).cast_unsigned();
        self.put_bptree(txg, &list)?;
        let free_dir = self.free_dir().await?;
        self.mos.dsl.charge(txg, free_dir, UsedBy::Head, freed.negated()).await?;
        if list.phys.begin >= list.phys.end {
            list.object.free(txg);
            Zap::put_entry(&self.mos.directory, txg, pool_directory::BPTREE, None).await?;
            self.mos.features.change("async_destroy", -1);
            self.jobs.async_destroy.list = None;
        }
        Ok(())
    }

    /// Frees blocks of one destroyed dataset. Returns the stop, if there is more.
    async fn free_entry(
        &mut self,
        txg: Txg,
        entry: &BptreeEntry,
        slice: &mut Slice,
        freed: &mut SpaceDelta,
    ) -> Result<Option<ZBookmark>, SpaError> {
        let dmu = self.blocks.writer.dmu().clone();
        let mut doomed = Doomed::new(dmu, entry.bp, entry.birth_txg, entry.bookmark);
        loop {
            let group = match doomed.next().await {
                Ok(Some(group)) => group,
                Ok(None) => return Ok(None),
                Err(Unreadable { stop, error }) => {
                    self.stall(format!("blocks of a destroyed dataset are not freed: {error}"));
                    return Ok(Some(stop));
                }
            };
            if let Some(stop) = group.stop.filter(|_| slice.is_over(self.handle.now())) {
                return Ok(Some(stop));
            }
            slice.take(group.blocks.len());
            group.blocks.iter().for_each(|bp| freed.add(self.blocks.writer.space_of(bp)));
            self.free_blocks(txg, &group.blocks).await?;
        }
    }

    /// The job stands still until the pool is opened again.
    fn stall(&mut self, reason: String) {
        assert!(self.jobs.async_destroy.list.is_some(), "a job that stands still has work left");
        self.blocks.space.troubles.tell(reason.clone());
        self.jobs.async_destroy.stalled = Some(reason);
    }
}

fn change(phys: &mut BptreePhys, delta: SpaceDelta) {
    phys.used_bytes = phys.used_bytes.saturating_add_signed(delta.used_bytes);
    phys.compressed_bytes = phys.compressed_bytes.saturating_add_signed(delta.compressed_bytes);
    phys.uncompressed_bytes = phys.uncompressed_bytes.saturating_add_signed(delta.uncompressed_bytes);
}
