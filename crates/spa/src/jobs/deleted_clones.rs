//! Freeing the blocks of destroyed clones by their livelists, in the background (feature `livelist`).
//!
//! **On disk.** The directory's entry `com.delphix:deleted_clones` is a table of livelists. The bytes of what is left of them count to the
//! directory `$FREE`. The table goes with its last livelist; each of them is a use of the feature.
//!
//! **Life of a destroyed clone.** The txg that takes its name away moves its livelist from its directory to the table: that is short however
//! large the clone is. Each txg's slice takes entries that cancel each other out of the first list (it is written anew then, once), takes blocks off its
//! end and frees them, and takes their bytes off `$FREE`. An empty list goes, so does a livelist without lists, and with the last livelist the table,
//! in the same txg: OpenZFS ends with an assertion where it finds a table without entries. OpenZFS, which frees a whole list in one txg, goes on where
//! Cenote stopped, and the other way round.
//!
//! **A livelist that does not have the bytes of its clone** is not used: the clone is destroyed by its tree.
//!
//! **If a livelist cannot be read**, its blocks are not freed: it is passed over until the pool is opened again, and the job tells the
//! owner; where no other livelist is left, the job stands still.

use std::collections::BTreeSet;

use cenote_dmu::{DmuError, SpaceDelta, Zap};
use cenote_dsl::{Dataset, DslError, EmptyRefs};
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::ObjectId;
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_taskq::boxed;

use super::{Job, Progress, Slice};
use crate::SpaError;
use crate::sync::mos::Mos;
use crate::sync::rooms::InTxg;

/// Blocks that are taken off a list at once: 2 MiB of it.
const BATCH: u64 = 1 << 14;

/// The job, as it is while the pool is open.
#[derive(Debug, Default)]
pub(crate) struct DeletedClones {
    /// The table, if there is one.
    table: Option<ObjectId>,
    progress: Progress,
    /// The bytes that are left are known: since the first slice.
    is_counted: bool,
    /// Livelists that could not be read; the progress says why the latest could not.
    passed_over: BTreeSet<ObjectId>,
    /// Nothing else is left.
    stands_still: bool,
}

impl DeletedClones {
    /// As the pool's directory has it.
    pub(crate) async fn open(directory: &Zap) -> Result<Self, DmuError> {
        let table = directory.find_u64(pool_directory::DELETED_CLONES).await?.map(ObjectId);
        Ok(Self { table: table.filter(|table| table.0 != 0), ..Self::default() })
    }

    /// The table.
    pub(crate) const fn table(&self) -> Option<ObjectId> {
        self.table
    }

    /// Takes the blocks of a clone that is destroyed in this txg, by its livelist. False where it has none that can be used;
    /// then it has none any more.
    pub(crate) async fn take_livelist(&mut self, rooms: &mut InTxg<'_>, dataset: &Dataset) -> Result<bool, SpaError> {
        let (txg, dir) = (rooms.txg, dataset.dir.object);
        let livelist = rooms.mos.dsl.livelist(dataset.object).await?;
        let space = match &livelist {
            Some(livelist) if rooms.mos.dsl.check_livelist(livelist.object).await.is_ok() => {
                rooms.mos.dsl.livelist_space(livelist.object).await.ok()
            }
            _ => None,
        };
        let own = (dataset.phys.unique_bytes.cast_signed(), dataset.dir.phys.compressed_bytes.cast_signed());
        let Some(space) = space.filter(|space| (space.used_bytes, space.compressed_bytes) == own) else {
            rooms.mos.drop_livelist(txg, dir).await?;
            return Ok(false);
        };
        let taken = rooms.mos.dsl.take_livelist(txg, dir).await?;
        let Some(livelist) = taken else { return Ok(false) };
        let table = match self.table {
            Some(table) => table,
            None => self.make_table(rooms).await?,
        };
        let table = rooms.mos.objset.object(table).await?;
        let entry = ZapValue::from_u64(livelist.0);
        Zap::put_entry(&table, txg, &int_key_name(livelist.0), Some(&entry)).await?;
        // It can be freed though none of those before it can.
        self.stands_still = false;
        self.progress.left_bytes = self.progress.left_bytes.saturating_add_signed(space.used_bytes);
        rooms.mos.charge_free_dir(txg, space).await?;
        Ok(true)
    }

    async fn make_table(&mut self, rooms: &mut InTxg<'_>) -> Result<ObjectId, SpaError> {
        let txg = rooms.txg;
        let table = Zap::create_object(&rooms.mos.objset, txg, DmuType::ZAP_METADATA, &[]).await?.id();
        let entry = ZapValue::from_u64(table.0);
        Zap::put_entry(&rooms.mos.directory, txg, pool_directory::DELETED_CLONES, Some(&entry)).await?;
        self.table = Some(table);
        Ok(table)
    }

    async fn free_some(&mut self, rooms: &mut InTxg<'_>, slice: &mut Slice) -> Result<(), SpaError> {
        let txg = rooms.txg;
        if !std::mem::replace(&mut self.is_counted, true) {
            self.progress.left_bytes = self.live_left_bytes(rooms.mos).await.unwrap_or(0);
        }
        let (mut freed, mut refs) = (SpaceDelta::default(), EmptyRefs::default());
        while self.goes_on() && !slice.is_over(rooms.handle.now()) {
            let next = match self.next_deleted(rooms.mos).await {
                Ok(Some(next)) => next,
                Ok(None) => {
                    self.end_table(rooms).await?;
                    continue;
                }
                Err(error) => {
                    self.pass_over(rooms, None, &error);
                    continue;
                }
            };
            match self.take_live(rooms, next, slice.blocks_left().min(BATCH), &mut refs).await {
                Ok(blocks) => {
                    // A list that is settled or goes is a step too: there may be very many that are empty.
                    slice.take(blocks.len().max(1));
                    blocks.iter().for_each(|bp| freed.add(rooms.blocks.writer.space_of(bp)));
                    rooms.free_blocks(txg, &blocks).await?;
                }
                Err(error) => self.pass_over(rooms, Some(next), &error),
            }
        }
        rooms.mos.count_empty_refs(txg, refs).await?;
        rooms.mos.charge_free_dir(txg, freed.negated()).await?;
        let freed_bytes = freed.used_bytes.max(0).cast_unsigned();
        self.progress.done_bytes += freed_bytes;
        self.progress.left_bytes = self.progress.left_bytes.saturating_sub(freed_bytes);
        Ok(())
    }

    /// Bytes of all livelists in the table.
    async fn live_left_bytes(&self, mos: &Mos) -> Result<u64, DslError> {
        let Some(table) = self.table else { return Ok(0) };
        let table = Zap::open(mos.objset.object(table).await?).await?;
        let (mut listing, mut bytes) = (table.listing(), 0_u64);
        while let Some(batch) = listing.next().await? {
            for livelist in batch.iter().filter_map(|entry| entry.value.as_u64()) {
                let space = mos.dsl.livelist_space(ObjectId(livelist)).await?;
                bytes = bytes.saturating_add_signed(space.used_bytes.max(0));
            }
        }
        Ok(bytes)
    }

    /// The next livelist to be freed; `None` if none is left. Where all that are left were passed over the job stands still.
    async fn next_deleted(&mut self, mos: &Mos) -> Result<Option<ObjectId>, DslError> {
        let Some(id) = self.table else { return Ok(None) };
        let table = Zap::open(mos.objset.object(id).await?).await?;
        let mut listing = table.listing();
        while let Some(batch) = listing.next().await? {
            for entry in batch {
                let Some(livelist) = entry.value.as_u64().map(ObjectId) else {
                    return Err(DslError::Corrupt {
                        object: id.0,
                        what: "a deleted clone that is no object".to_owned(),
                    });
                };
                if !self.passed_over.contains(&livelist) {
                    return Ok(Some(livelist));
                }
            }
        }
        match self.passed_over.is_empty() {
            true => Ok(None),
            false => {
                let what = "the livelists that are left cannot be read".to_owned();
                Err(DslError::Corrupt { object: id.0, what })
            }
        }
    }

    /// Notes that a livelist, or with none the table, cannot be read.
    fn pass_over(&mut self, rooms: &InTxg<'_>, livelist: Option<ObjectId>, error: &DslError) {
        match livelist {
            Some(livelist) => drop(self.passed_over.insert(livelist)),
            None => self.stands_still = true,
        }
        if livelist.is_some() || self.progress.stalled.is_none() {
            let reason = format!("blocks of a destroyed clone are not freed: {error}");
            rooms.blocks.space.troubles.tell(reason.clone());
            self.progress.stalled = Some(reason);
        }
    }

    /// Takes blocks out of a livelist. One that has none any more goes, and with the last the table.
    async fn take_live(
        &mut self,
        rooms: &mut InTxg<'_>,
        livelist: ObjectId,
        count_max: u64,
        refs: &mut EmptyRefs,
    ) -> Result<Vec<Blkptr>, DslError> {
        let txg = rooms.txg;
        if let Some(blocks) = rooms.mos.dsl.take_live(txg, livelist, count_max, refs).await? {
            return Ok(blocks);
        }
        let Some(id) = self.table else { return Ok(Vec::new()) };
        let table = rooms.mos.objset.object(id).await?;
        rooms.mos.dsl.free_livelist(txg, livelist, refs).await?;
        Zap::put_entry(&table, txg, &int_key_name(livelist.0), None).await?;
        rooms.mos.features.change("livelist", -1);
        if Zap::open(table).await?.entry_count()? == 0 {
            self.drop_table(rooms, id).await?;
        }
        Ok(Vec::new())
    }

    /// Ends the table, which had no entries when the pool was opened.
    async fn end_table(&mut self, rooms: &mut InTxg<'_>) -> Result<(), SpaError> {
        let Some(id) = self.table else { return Ok(()) };
        Ok(self.drop_table(rooms, id).await?)
    }

    async fn drop_table(&mut self, rooms: &mut InTxg<'_>, table: ObjectId) -> Result<(), DslError> {
        Zap::put_entry(&rooms.mos.directory, rooms.txg, pool_directory::DELETED_CLONES, None).await?;
        rooms.mos.objset.object(table).await?.free(rooms.txg);
        self.table = None;
        Ok(())
    }
}

impl Job for DeletedClones {
    fn name(&self) -> &'static str {
        "livelist"
    }

    fn has_work(&self) -> bool {
        self.table.is_some()
    }

    /// A livelist that was passed over does not stop the others.
    fn is_stuck(&self) -> bool {
        self.stands_still
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
