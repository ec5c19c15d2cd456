//! Claiming the logs of a pool that is opened to be written.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::Objset;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::ids::{BlockId, ObjectId, Txg, VdevId};
use cenote_format::zil::ZilHeader;
use cenote_metaslab::{AllocError, Extent};
use cenote_taskq::for_each_concurrent;
use cenote_taskq::mutant::{self, Mutant};
use cenote_zil::{Chain, Content, End};
use cenote_zio::{Bookmark, Keeper, ReadContext};

use super::{TXGS_AHEAD_MAX, holds_something, unclaimed};
use crate::SpaError;
use crate::refcount::is_data;
use crate::sync::Syncer;
use crate::sync::rooms::InTxg;
use crate::sync::space::extent;

/// Blocks of a log that are mended at once.
const MENDED_AT_ONCE: usize = 16;

/// The blocks and datasets that were claimed so far.
#[derive(Default)]
struct Claimed {
    /// Places, so that none is claimed twice.
    places: BTreeSet<(VdevId, u64)>,
    /// The newest birth.
    newest: Txg,
    /// The datasets whose headers have changed.
    heads: BTreeSet<ObjectId>,
}

/// How far one log was claimed.
#[derive(Default)]
struct Reached {
    blocks: u64,
    last_block: u64,
    records: u64,
    last_record: u64,
}

impl Syncer {
    /// Claims all logs with records, and writes the txgs needed for that; none if no log has records. `missing_log`: logs that cannot be
    /// read are discarded (`zpool import -m`). `rewound`: the pool was wound back to its checkpoint of this txg, and all logs are discarded that nobody
    /// had claimed by then, since their later blocks may be something else now. Then datasets go that a receive has left which cannot be gone on with: nobody is in the middle of
    /// one when a pool is opened.
    pub(crate) async fn claim_logs(&mut self, missing_log: bool, rewound: Option<Txg>) -> Result<(), SpaError> {
        let (txg, synced) = (self.txg, Txg(self.txg.0 - 1));
        assert!(self.devices.synced.is_none() || rewound.is_some(), "logs are claimed in the first txg");
        assert!(
            !self.blocks.space.with(|allocator| allocator.is_dirty(txg)),
            "logs are claimed before anything takes space"
        );
        let dmu = self.blocks.writer.dmu().clone();
        let mut claimed = Claimed::default();
        let mut half_received = Vec::new();
        for log in unclaimed(&self.dsl().clone(), &dmu, &mut half_received).await? {
            let header = log.objset.zil_header();
            let mut chain = Chain::new(dmu.zio(), header);
            let first = chain.next().await;
            let is_given_up = rewound.is_some() || missing_log && matches!(chain.end(), Some(End::Device(_)));
            if !is_given_up && !holds_something(first.as_ref(), synced) {
                continue;
            }
            let head = self.open_header(&log.name).await?;
            claimed.heads.insert(head.dataset);
            if is_given_up {
                self.in_txg().give_up_log(txg, &head.objset, &header, rewound).await?;
                continue;
            }
            let reached = self.in_txg().claim_log(txg, &log.objset, header, &mut claimed).await?;
            head.objset.change_zil_header(txg, |header| {
                header.claim_txg = txg;
                header.claim_block_seq = reached.last_block;
                header.claim_record_seq = reached.last_record;
                header.flags |= ZilHeader::CLAIM_RECORD_SEQ_VALID;
                if reached.records > 0 || reached.blocks > 1 {
                    header.flags |= ZilHeader::REPLAY_NEEDED;
                }
            });
        }
        assert!(claimed.newest.0 <= synced.0.saturating_add(TXGS_AHEAD_MAX), "births that are claimed are bounded");
        while !claimed.heads.is_empty() && (self.txg == txg || self.txg <= claimed.newest) {
            self.sync().await?;
        }
        self.mos.dsl.retain_heads(|head| !claimed.heads.contains(&head.dataset));
        self.clear_interrupted(half_received).await
    }
}

impl Syncer {
    /// Gives up all logs that nobody has claimed, of a pool that was split off: they go on in the pool that it was split from.
    pub(crate) async fn give_up_logs(&mut self) -> Result<(), SpaError> {
        let (txg, dmu) = (self.txg, self.blocks.writer.dmu().clone());
        let synced = Txg(txg.0 - 1);
        for log in unclaimed(&self.dsl().clone(), &dmu, &mut Vec::new()).await? {
            let header = log.objset.zil_header();
            let head = self.open_header(&log.name).await?;
            self.in_txg().give_up_log(txg, &head.objset, &header, Some(synced)).await?;
        }
        Ok(())
    }
}

impl InTxg<'_> {
    /// A log on a device that is away: its first block was taken by a txg that is on disk, the others are free as it is. Or one of a checkpoint: all of
    /// its blocks were taken that were born up to then, and are whole.
    async fn give_up_log(
        &mut self,
        txg: Txg,
        objset: &Objset,
        header: &ZilHeader,
        rewound: Option<Txg>,
    ) -> Result<(), SpaError> {
        let mut taken = vec![header.log];
        let mut chain = Chain::new(objset.dmu().zio(), *header);
        while rewound.is_some()
            && let Some(link) = chain.next().await
        {
            taken.push(link.pointer);
        }
        let newest = rewound.unwrap_or(Txg(txg.0 - 1));
        taken.retain(|block| !block.is_hole() && block.birth() <= newest);
        let mut places = BTreeSet::new();
        taken.retain(|block| block.dvas().next().is_some_and(|dva| places.insert((dva.vdev, dva.offset_bytes))));
        self.free_blocks(txg, &taken).await?;
        objset.change_zil_header(txg, |header| *header = ZilHeader::default());
        Ok(())
    }

    async fn claim_log(
        &mut self,
        txg: Txg,
        objset: &Objset,
        header: ZilHeader,
        claimed: &mut Claimed,
    ) -> Result<Reached, SpaError> {
        let mut chain = Chain::new(objset.dmu().zio(), header);
        let (mut reached, mut blocks, mut is_damaged) = (Reached::default(), Vec::new(), false);
        while let Some(link) = chain.next().await {
            if !self.claim_block(txg, &link.pointer, claimed).await? {
                break;
            }
            is_damaged |= link.is_damaged;
            if link.content.is_some() {
                blocks.push(link.pointer);
            }
            reached.last_block = link.sequence();
            reached.blocks += 1;
            if let Some(content) = &link.content
                && !self.claim_records(txg, objset, content, claimed, &mut reached).await?
            {
                break;
            }
        }
        if is_damaged {
            mend(objset, blocks).await;
        }
        Ok(reached)
    }

    /// False where a record ends the log.
    async fn claim_records(
        &mut self,
        txg: Txg,
        objset: &Objset,
        content: &Content,
        claimed: &mut Claimed,
        reached: &mut Reached,
    ) -> Result<bool, SpaError> {
        for record in content.raw_records() {
            // The chain has read the pointers of all records that it gives.
            let pointer = record.write_pointer()?;
            if let Some(pointer) = pointer.filter(|pointer| !pointer.is_hole() && pointer.birth() >= txg)
                && !(is_readable(objset, &pointer).await && self.claim_block(txg, &pointer, claimed).await?)
            {
                return Ok(false);
            }
            let cloned = record.cloned_blocks()?;
            if !self.claim_clones(txg, record.txg, &cloned).await? {
                return Ok(false);
            }
            reached.last_record = record.sequence;
            reached.records += 1;
        }
        Ok(true)
    }

    /// Adds a BRT reference to each block of a cloned range, so that none is freed before the record is replayed. False if a block was born after
    /// the last txg on disk; then no reference is added.
    ///
    /// `made` is the record's txg. A record whose txg is on disk is not replayed, and the blocks that it cloned may have been freed since, so it
    /// is not checked that they are allocated. It gets its references all the same, because freeing the log gives up those of all records.
    ///
    /// # Errors
    /// A block is metadata, or lies in space that is not allocated: the pool is damaged. Nothing has been written to it yet.
    async fn claim_clones(&mut self, txg: Txg, made: Txg, blocks: &[Blkptr]) -> Result<bool, SpaError> {
        let stored = blocks.iter().filter(|block| !block.is_hole() && !block.is_embedded());
        if stored.clone().any(|block| block.physical_birth() >= txg) {
            return Ok(false);
        }
        for block in stored.clone() {
            if !is_data(block) {
                return Err(SpaError::contradiction("an intent log has cloned a block of metadata"));
            }
            if made < txg {
                continue;
            }
            for dva in self.places_of(block).await? {
                self.check_taken(txg, dva).await?;
            }
        }
        for block in stored {
            self.add_clone(txg, block).await?;
        }
        Ok(true)
    }

    async fn check_taken(&self, txg: Txg, dva: Dva) -> Result<(), SpaError> {
        for place in self.blocks.space.removed.places(extent(dva))? {
            self.check_place_taken(txg, dva, &place).await?;
        }
        Ok(())
    }

    async fn check_place_taken(&self, txg: Txg, dva: Dva, extent: &Extent) -> Result<(), SpaError> {
        loop {
            match self.blocks.space.with(|allocator| allocator.is_allocated(extent)) {
                Ok(true) => return Ok(()),
                Err(AllocError::NeedsLoad(id)) => {
                    let loaded = self.blocks.space.load(id, txg).await;
                    loaded.map_err(|error| SpaError::contradiction(format!("claiming intent logs: {error}")))?;
                }
                Ok(false) | Err(_) => {
                    let place = format!("at {:#x} of vdev {}", dva.offset_bytes, dva.vdev);
                    return Err(SpaError::contradiction(format!(
                        "an intent log has cloned a block {place}, where none is"
                    )));
                }
            }
        }
    }

    /// Allocates the DVAs of a block, if no txg on disk has them allocated; returns false if they cannot belong to it.
    async fn claim_block(&mut self, txg: Txg, pointer: &Blkptr, claimed: &mut Claimed) -> Result<bool, SpaError> {
        if pointer.birth() < txg {
            return Ok(true);
        }
        if pointer.birth().0 - txg.0 >= TXGS_AHEAD_MAX {
            return Ok(false);
        }
        let mut taken: Vec<Dva> = Vec::new();
        for dva in self.places_of(pointer).await? {
            if claimed.places.contains(&(dva.vdev, dva.offset_bytes)) {
                continue;
            }
            if !self.claim_place(txg, dva).await? {
                for dva in taken {
                    claimed.places.remove(&(dva.vdev, dva.offset_bytes));
                    self.blocks.space.with(|allocator| allocator.unallocate(txg, &extent(dva)))?;
                }
                return Ok(false);
            }
            claimed.places.insert((dva.vdev, dva.offset_bytes));
            taken.push(dva);
        }
        claimed.newest = claimed.newest.max(pointer.birth());
        Ok(true)
    }

    async fn claim_place(&self, txg: Txg, dva: Dva) -> Result<bool, SpaError> {
        if mutant::is(Mutant::LogUnclaimed) {
            return Ok(true);
        }
        loop {
            match self.blocks.space.with(|allocator| allocator.claim(txg, &extent(dva))) {
                Ok(()) => return Ok(true),
                Err(AllocError::NeedsLoad(id)) => {
                    let loaded = self.blocks.space.load(id, txg).await;
                    loaded.map_err(|error| SpaError::contradiction(format!("claiming intent logs: {error}")))?;
                }
                Err(_) => return Ok(false),
            }
        }
    }
}

/// A block of a log that was claimed: nobody has begun to replay the log, so its place stays the block's until the claim is on disk and after.
struct Kept(Txg);

impl Keeper for Kept {
    fn txg(&self) -> Txg {
        self.0
    }

    fn is_kept(&self) -> bool {
        true
    }

    fn hold(self: Arc<Self>) -> Option<Box<dyn Send>> {
        Some(Box::new(()))
    }
}

/// Has the claimed blocks of a log be on all their devices. Some may lack them through no fault of theirs, since the power went while they were
/// written: until the log is replayed, what its client was told is stable has the redundancy of all else. Where a device lacks one, each is
/// looked at: most were read from one device alone. A failure is left to the replay, which has a good copy.
async fn mend(objset: &Objset, blocks: Vec<Blkptr>) {
    let bookmark = Bookmark { level: Bookmark::LEVEL_ZIL, ..Bookmark::objset(objset.id()) };
    for_each_concurrent(MENDED_AT_ONCE, blocks, |block| async move {
        let zio = objset.dmu().zio().clone().while_kept(Arc::new(Kept(block.physical_birth())));
        drop(zio.mend_block(&block, ReadContext::new(bookmark, None), None).await);
    })
    .await;
}

/// Whether the block of an indirect write can be read (without the key). If it cannot, the write was not acknowledged, since a client is
/// answered only when the block is stable.
async fn is_readable(objset: &Objset, pointer: &Blkptr) -> bool {
    if pointer.is_embedded() {
        return true;
    }
    let context = objset.context(ObjectId(0), 0, BlockId(0));
    for dva in pointer.dvas() {
        if objset.dmu().zio().read_copy(pointer, dva, context).await.is_ok() {
            return true;
        }
    }
    false
}
