//! The slices of [`super::deleted_clones`]: a destroyed clone's blocks, freed from txg to txg by its livelist.

use cenote_dmu::{SpaceDelta, Zap};
use cenote_dsl::{Dataset, DslError, EmptyRefs, UsedBy};
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::{ZapValue, int_key_name};

use crate::SpaError;
use crate::config::PoolState;
use crate::jobs::Slice;
use crate::sync::Syncer;

/// Blocks that are taken off a list at once: 2 MiB of it.
const BATCH: u64 = 1 << 14;

impl Syncer {
    /// Leaves the blocks of a clone that is destroyed in this txg to the background, by its livelist. False where it has none that can be used;
    /// then it has none any more.
    pub(crate) async fn leave_livelist(&mut self, txg: Txg, dataset: &Dataset) -> Result<bool, SpaError> {
        let dir = dataset.dir.object;
        let livelist = self.mos.dsl.livelist(dataset.object).await?;
        let space = match &livelist {
            Some(livelist) if self.mos.dsl.check_livelist(livelist.object).await.is_ok() => {
                self.mos.dsl.livelist_space(livelist.object).await.ok()
            }
            _ => None,
        };
        let own = (dataset.phys.unique_bytes.cast_signed(), dataset.dir.phys.compressed_bytes.cast_signed());
        let Some(space) = space.filter(|space| (space.used_bytes, space.compressed_bytes) == own) else {
            self.drop_livelist(dir).await?;
            return Ok(false);
        };
        let taken = self.mos.dsl.take_livelist(txg, dir).await?;
        let Some(livelist) = taken else { return Ok(false) };
        let table = match self.jobs.deleted_clones.table {
            Some(table) => table,
            None => self.make_deleted_clones(txg).await?,
        };
        let table = self.mos.objset.object(table).await?;
        let entry = ZapValue::from_u64(livelist.0);
        Zap::put_entry(&table, txg, &int_key_name(livelist.0), Some(&entry)).await?;
        // It can be freed though none of those before it can.
        self.jobs.deleted_clones.stands_still = false;
        self.jobs.deleted_clones.left_bytes =
            self.jobs.deleted_clones.left_bytes.saturating_add_signed(space.used_bytes);
        let free_dir = self.free_dir().await?;
        self.mos.dsl.charge(txg, free_dir, UsedBy::Head, space).await?;
        Ok(true)
    }

    async fn make_deleted_clones(&mut self, txg: Txg) -> Result<ObjectId, SpaError> {
        let table = Zap::create_object(&self.mos.objset, txg, DmuType::ZAP_METADATA, &[]).await;
        let table = table?.id();
        let entry = ZapValue::from_u64(table.0);
        Zap::put_entry(&self.mos.directory, txg, pool_directory::DELETED_CLONES, Some(&entry)).await?;
        self.jobs.deleted_clones.table = Some(table);
        Ok(table)
    }

    /// Frees blocks of destroyed clones for a slice. Before the datasets are written, since references to shared blocks may end with
    /// them.
    pub(crate) async fn free_live(&mut self, txg: Txg) -> Result<(), SpaError> {
        if !self.jobs.deleted_clones.goes_on() || self.state != PoolState::Active {
            return Ok(());
        }
        let now = self.handle.now();
        if self.jobs.deleted_clones.begun.replace(self.jobs.deleted_clones.begun.unwrap_or(now)).is_none() {
            self.jobs.deleted_clones.left_bytes = self.live_left_bytes().await.unwrap_or(0);
        }
        let mut slice = Slice::new(now, self.jobs.async_destroy.blocks_max);
        let (mut freed, mut refs) = (SpaceDelta::default(), EmptyRefs::default());
        while self.jobs.deleted_clones.goes_on() && !slice.is_over(self.handle.now()) {
            let next = match self.next_deleted().await {
                Ok(Some(next)) => next,
                Ok(None) => {
                    self.end_deleted_clones(txg).await?;
                    continue;
                }
                Err(error) => {
                    self.pass_over(None, &error);
                    continue;
                }
            };
            match self.take_live(txg, next, slice.blocks_left().min(BATCH), &mut refs).await {
                Ok(blocks) => {
                    // A list that is settled or goes is a step too: there may be very many that are empty.
                    slice.take(blocks.len().max(1));
                    blocks.iter().for_each(|bp| freed.add(self.blocks.writer.space_of(bp)));
                    self.free_blocks(txg, &blocks).await?;
                }
                Err(error) => self.pass_over(Some(next), &error),
            }
        }
        self.count_empty_refs(refs).await?;
        let free_dir = self.free_dir().await?;
        self.mos.dsl.charge(txg, free_dir, UsedBy::Head, freed.negated()).await?;
        let freed_bytes = freed.used_bytes.max(0).cast_unsigned();
        self.jobs.deleted_clones.done_bytes += freed_bytes;
        self.jobs.deleted_clones.left_bytes = self.jobs.deleted_clones.left_bytes.saturating_sub(freed_bytes);
        Ok(())
    }

    /// Bytes of all livelists in the table.
    async fn live_left_bytes(&self) -> Result<u64, DslError> {
        let Some(table) = self.jobs.deleted_clones.table else { return Ok(0) };
        let table = Zap::open(self.mos.objset.object(table).await?).await?;
        let (mut listing, mut bytes) = (table.listing(), 0_u64);
        while let Some(batch) = listing.next().await? {
            for livelist in batch.iter().filter_map(|entry| entry.value.as_u64()) {
                let space = self.mos.dsl.livelist_space(ObjectId(livelist)).await?;
                bytes = bytes.saturating_add_signed(space.used_bytes.max(0));
            }
        }
        Ok(bytes)
    }

    /// The next livelist to be freed; `None` if none is left. Where all that are left were passed over the job stands still.
    async fn next_deleted(&mut self) -> Result<Option<ObjectId>, DslError> {
        let Some(id) = self.jobs.deleted_clones.table else { return Ok(None) };
        let table = Zap::open(self.mos.objset.object(id).await?).await?;
        let mut listing = table.listing();
        while let Some(batch) = listing.next().await? {
            for entry in batch {
                let Some(livelist) = entry.value.as_u64().map(ObjectId) else {
                    return Err(DslError::Corrupt {
                        object: id.0,
                        what: "a deleted clone that is no object".to_owned(),
                    });
                };
                if !self.jobs.deleted_clones.passed_over.contains(&livelist) {
                    return Ok(Some(livelist));
                }
            }
        }
        match self.jobs.deleted_clones.passed_over.is_empty() {
            true => Ok(None),
            false => {
                let what = "the livelists that are left cannot be read".to_owned();
                Err(DslError::Corrupt { object: id.0, what })
            }
        }
    }

    /// Notes that a livelist, or with none the table, cannot be read.
    fn pass_over(&mut self, livelist: Option<ObjectId>, error: &DslError) {
        match livelist {
            Some(livelist) => drop(self.jobs.deleted_clones.passed_over.insert(livelist)),
            None => self.jobs.deleted_clones.stands_still = true,
        }
        if livelist.is_some() || self.jobs.deleted_clones.stalled.is_none() {
            let reason = format!("blocks of a destroyed clone are not freed: {error}");
            self.blocks.space.troubles.tell(reason.clone());
            self.jobs.deleted_clones.stalled = Some(reason);
        }
    }

    /// Takes blocks out of a livelist. One that has none any more goes, and with the last the table.
    async fn take_live(
        &mut self,
        txg: Txg,
        livelist: ObjectId,
        count_max: u64,
        refs: &mut EmptyRefs,
    ) -> Result<Vec<Blkptr>, DslError> {
        if let Some(blocks) = self.mos.dsl.take_live(txg, livelist, count_max, refs).await? {
            return Ok(blocks);
        }
        let Some(id) = self.jobs.deleted_clones.table else { return Ok(Vec::new()) };
        let table = self.mos.objset.object(id).await?;
        self.mos.dsl.free_livelist(txg, livelist, refs).await?;
        Zap::put_entry(&table, txg, &int_key_name(livelist.0), None).await?;
        self.mos.features.change("livelist", -1);
        if Zap::open(table).await?.entry_count()? == 0 {
            self.drop_deleted_clones(txg, id).await?;
        }
        Ok(Vec::new())
    }

    /// Ends the table, which had no entries when the pool was opened.
    async fn end_deleted_clones(&mut self, txg: Txg) -> Result<(), SpaError> {
        let Some(id) = self.jobs.deleted_clones.table else { return Ok(()) };
        Ok(self.drop_deleted_clones(txg, id).await?)
    }

    async fn drop_deleted_clones(&mut self, txg: Txg, table: ObjectId) -> Result<(), DslError> {
        Zap::put_entry(&self.mos.directory, txg, pool_directory::DELETED_CLONES, None).await?;
        self.mos.objset.object(table).await?.free(txg);
        self.jobs.deleted_clones.table = None;
        Ok(())
    }
}
