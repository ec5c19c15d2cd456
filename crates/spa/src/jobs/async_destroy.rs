//! Freeing destroyed datasets in the background (feature `async_destroy`).
//!
//! **On disk.** The directory's entry `bptree_obj` is a list of destroyed objsets: root, the txg of the snapshot before, and the stop
//! where the last slice ended. The bytes still to be freed count to the directory `$FREE`. The list goes with its last entry, and
//! with it the one use of the feature.
//!
//! **Life of a destroyed dataset.** The txg that takes its name away enters its root at the end of the list, and moves the bytes of its
//! blocks from its own directory to `$FREE`: that is short however large the dataset is. Each txg's slice frees blocks of the first
//! entry in the order of [`Doomed`], takes their bytes off `$FREE`, and writes the stop. OpenZFS goes on where Cenote stopped, and the
//! other way round.
//!
//! **A block that cannot be read** is not freed: the job writes the stop before that block, stands still until the pool is opened again,
//! and tells the owner. OpenZFS does so too (`zfs_free_leak_on_eio=0`).

use cenote_dmu::{DmuError, Object, ObjectSpec, SpaceDelta, Zap};
use cenote_dsl::{Dataset, LeftTree};
use cenote_format::blkptr::Blkptr;
use cenote_format::bptree::{BptreeEntry, BptreePhys};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{ZBookmark, pool_directory};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;
use cenote_zio::ORDER;

use super::doomed::{Doomed, Unreadable};
use super::{Job, Progress, Slice};
use crate::SpaError;
use crate::sync::mos::Mos;
use crate::sync::rooms::InTxg;

/// Bytes of a block of the list (`SPA_OLD_MAXBLOCKSIZE`).
const LIST_BLOCK_BYTES: u32 = 128 << 10;

/// The job, as it is while the pool is open.
#[derive(Debug, Default)]
pub(crate) struct AsyncDestroy {
    /// The list, if there is one.
    list: Option<ObjectId>,
    progress: Progress,
}

/// The list with its header.
struct List {
    object: Object,
    phys: BptreePhys,
}

impl List {
    async fn open(mos: &Mos, list: ObjectId) -> Result<Self, SpaError> {
        let object = mos.objset.object(list).await?;
        let phys = object.bonus(BptreePhys::parse);
        let phys = phys.map_err(|error| SpaError::contradiction(format!("the list of destroyed datasets: {error}")))?;
        Ok(Self { object, phys })
    }

    async fn put(&self, txg: Txg, index: u64, entry: &BptreeEntry) -> Result<(), SpaError> {
        let at = index.saturating_mul(BptreeEntry::SIZE_BYTES as u64);
        Ok(self.object.write(txg, at, &entry.emit(ORDER)).await?)
    }
}

impl AsyncDestroy {
    /// As the pool's directory has it.
    pub(crate) async fn open(directory: &Zap) -> Result<Self, DmuError> {
        let list = directory.find_u64(pool_directory::BPTREE).await?.map(ObjectId).filter(|list| list.0 != 0);
        Ok(Self { list, ..Self::default() })
    }

    /// The list, if there is one.
    pub(crate) const fn list(&self) -> Option<ObjectId> {
        self.list
    }

    /// Takes the blocks of a head dataset that is destroyed in this txg. False where the pool has not got the feature, or there are no
    /// blocks: nothing is changed then.
    pub(crate) async fn take_blocks(&mut self, rooms: &mut InTxg<'_>, dataset: &Dataset) -> Result<bool, SpaError> {
        if !rooms.mos.features.has("async_destroy") || dataset.phys.bp.is_hole() {
            return Ok(false);
        }
        let space = SpaceDelta {
            used_bytes: dataset.phys.unique_bytes.cast_signed(),
            compressed_bytes: dataset.dir.phys.compressed_bytes.cast_signed(),
            uncompressed_bytes: dataset.dir.phys.uncompressed_bytes.cast_signed(),
        };
        let tree = LeftTree { root: dataset.phys.bp, born_after: dataset.phys.prev_snapshot_txg, space };
        self.take_tree(rooms, &tree).await?;
        Ok(true)
    }

    /// Takes the blocks of a tree; the feature has to be there.
    pub(crate) async fn take_tree(&mut self, rooms: &mut InTxg<'_>, tree: &LeftTree) -> Result<(), SpaError> {
        let txg = rooms.txg;
        let mut list = match self.list {
            Some(list) => List::open(rooms.mos, list).await?,
            None => self.make_list(rooms).await?,
        };
        let LeftTree { root, born_after, space: used } = *tree;
        let entry = BptreeEntry { bp: root, birth_txg: born_after, bookmark: ZBookmark::default() };
        list.put(txg, list.phys.end, &entry).await?;
        list.phys.end += 1;
        change(&mut list.phys, used);
        self.put_header(txg, &list)?;
        rooms.mos.charge_free_dir(txg, used).await
    }

    async fn make_list(&mut self, rooms: &mut InTxg<'_>) -> Result<List, SpaError> {
        let phys = BptreePhys { begin: 0, end: 0, used_bytes: 0, compressed_bytes: 0, uncompressed_bytes: 0 };
        let spec = ObjectSpec::new(DmuType::UINT64_METADATA, LIST_BLOCK_BYTES)
            .with_bonus(DmuType::UINT64_METADATA, phys.emit(ORDER).to_vec());
        assert!(self.list.is_none(), "a pool has one list of destroyed datasets");
        let object = rooms.mos.objset.create_object(rooms.txg, &spec)?;
        let entry = ZapValue::from_u64(object.id().0);
        Zap::put_entry(&rooms.mos.directory, rooms.txg, pool_directory::BPTREE, Some(&entry)).await?;
        rooms.mos.features.change("async_destroy", 1);
        self.list = Some(object.id());
        Ok(List { object, phys })
    }

    fn put_header(&mut self, txg: Txg, list: &List) -> Result<(), SpaError> {
        self.progress.left_bytes = list.phys.used_bytes;
        Ok(list.object.set_bonus(txg, &list.phys.emit(ORDER))?)
    }

    async fn free_some(&mut self, rooms: &mut InTxg<'_>, slice: &mut Slice) -> Result<(), SpaError> {
        let Some(object) = self.list else { return Ok(()) };
        let txg = rooms.txg;
        let mut list = List::open(rooms.mos, object).await?;
        let mut freed = SpaceDelta::default();
        while list.phys.begin < list.phys.end && !slice.is_over(rooms.handle.now()) && self.goes_on() {
            let at = list.phys.begin.saturating_mul(BptreeEntry::SIZE_BYTES as u64);
            let bytes = list.object.read(at, BptreeEntry::SIZE_BYTES).await?;
            let mut entry = match BptreeEntry::parse(&bytes, ORDER) {
                Ok(entry) => entry,
                Err(error) => {
                    self.progress.stall(rooms, format!("the list of destroyed datasets: {error}"));
                    break;
                }
            };
            let stop = self.free_entry(rooms, &entry, slice, &mut freed).await?;
            self.progress.cursor = stop;
            entry = match stop {
                Some(bookmark) => BptreeEntry { bookmark, ..entry },
                None => {
                    list.phys.begin += 1;
                    BptreeEntry { bp: Blkptr::HOLE, birth_txg: Txg(0), bookmark: ZBookmark::default() }
                }
            };
            let index = at / BptreeEntry::SIZE_BYTES as u64;
            list.put(txg, index, &entry).await?;
        }
        assert!(freed.used_bytes >= 0, "what is freed takes no space any more");
        change(&mut list.phys, freed.negated());
        self.progress.done_bytes += freed.used_bytes.max(0).cast_unsigned();
        self.put_header(txg, &list)?;
        rooms.mos.charge_free_dir(txg, freed.negated()).await?;
        if list.phys.begin >= list.phys.end {
            list.object.free(txg);
            Zap::put_entry(&rooms.mos.directory, txg, pool_directory::BPTREE, None).await?;
            rooms.mos.features.change("async_destroy", -1);
            self.list = None;
        }
        Ok(())
    }

    /// Frees blocks of one destroyed dataset. Returns the stop, if there is more.
    async fn free_entry(
        &mut self,
        rooms: &mut InTxg<'_>,
        entry: &BptreeEntry,
        slice: &mut Slice,
        freed: &mut SpaceDelta,
    ) -> Result<Option<ZBookmark>, SpaError> {
        let dmu = rooms.blocks.writer.dmu().clone();
        let mut doomed = Doomed::new(dmu, entry.bp, entry.birth_txg, entry.bookmark);
        loop {
            let group = match doomed.next().await {
                Ok(Some(group)) => group,
                Ok(None) => return Ok(None),
                Err(Unreadable { stop, error }) => {
                    let reason = format!("blocks of a destroyed dataset are not freed: {error}");
                    self.progress.stall(rooms, reason);
                    return Ok(Some(stop));
                }
            };
            if let Some(stop) = group.stop.filter(|_| slice.is_over(rooms.handle.now())) {
                return Ok(Some(stop));
            }
            slice.take(group.blocks.len());
            group.blocks.iter().for_each(|bp| freed.add(rooms.blocks.writer.space_of(bp)));
            rooms.free_blocks(rooms.txg, &group.blocks).await?;
        }
    }
}

impl Job for AsyncDestroy {
    fn name(&self) -> &'static str {
        "async_destroy"
    }

    fn has_work(&self) -> bool {
        self.list.is_some()
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn progress_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }

    #[boxed]
    async fn slice(&mut self, rooms: &mut InTxg<'_>, slice: &mut Slice) -> Result<(), SpaError> {
        self.free_some(rooms, slice).await
    }
}

fn change(phys: &mut BptreePhys, delta: SpaceDelta) {
    phys.used_bytes = phys.used_bytes.saturating_add_signed(delta.used_bytes);
    phys.compressed_bytes = phys.compressed_bytes.saturating_add_signed(delta.compressed_bytes);
    phys.uncompressed_bytes = phys.uncompressed_bytes.saturating_add_signed(delta.uncompressed_bytes);
}
