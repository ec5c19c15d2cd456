//! Livelists: lists of the blocks that a clone has and its origin does not, with which the clone is destroyed without a walk of its tree.
//!
//! ```text
//! clone's directory (zapified) ── livelist (ZAP, like a deadlist: txg in hexadecimal ─► bpobj)
//!                                   0a30 ─► A B C  F(B)        blocks born after txg 0xa30, up to the next
//!                                   0b02 ─► D E    F(E)  F(D)  in the order in which they were allocated (A) and freed (F)
//! ```
//! An entry records that the clone allocated a block (A) or freed it (F). It is the block's pointer, without the fields that only readers
//! need; the lowest bit of the fill count is set for a free. Both entries are in the list of the block's birth. Read a list from its end: each
//! free cancels one earlier allocation of the same place. The allocations that remain are the clone's own blocks.
//!
//! **Life of a livelist.** A new clone gets an empty one if the pool has the feature `livelist`, which counts livelists. Each txg that writes
//! the clone appends the new blocks and then those given up, if they were born after the origin. Embedded blocks take no space and are left out,
//! as are those of intent logs, which are in no account. When the last list has more new blocks than a limit, another is begun with the current
//! txg; neighbouring lists that have shrunk are merged. A clone loses its livelist when it shares too little with its origin, is promoted,
//! rolled back or received into. A destroyed clone leaves its livelist to be freed in the background.
//!
//! **Invariant.** A livelist's remaining blocks are those of the clone's head that are younger than the origin, without embedded ones
//! (`cenote_sim::audit_space` checks it). Snapshots of the clone do not change this: a block that the head gave up is the snapshot's, by the
//! deadlist, until the snapshot is destroyed; and a clone with snapshots is not destroyed.
//!
//! **Faults** (a free whose block belongs to no list; a damaged list) end the livelist in the same txg; the clone is then destroyed by a walk of
//! its tree. A damaged livelist does not prevent promoting or destroying its clone: those of its objects that can be read are freed.
//!
//! **Bounds.** A list has at most [`ENTRIES_MAX`] entries. Settling a list rewrites it as a whole, and two lists where they
//! become one: at most twice that many entries of 128 bytes are read and written in one txg (OpenZFS begins a new list after 500 000, so its
//! lists have far fewer). The frees are counted, and compared with
//! the count in the list's header, before anything is changed.

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::{Killed, ORDER, Object, SpaceDelta, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::bpobj::{BpobjPhys, blkptrs};
use cenote_format::dsl::{DeadlistPhys, dir_field};
use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_taskq::boxed;
use cenote_taskq::mutant::{self, Mutant};

use crate::bpobj::EmptyRefs;
use crate::deadlist::Lists;
use crate::{Dsl, DslError};

/// Entries of one list at most. OpenZFS begins another list after 500 000.
const ENTRIES_MAX: u64 = 1 << 22;
/// Frees of one list, at most, whose allocations have not been read yet. Each cancels an allocation, so a valid list has no more.
const FREES_MAX: usize = 1 << 21;
/// Entries that are read together: 2 MiB.
const BATCH: u64 = 1 << 14;

/// Limits on livelists and their lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivelistLimits {
    /// New blocks in a list after which the next list is begun.
    pub entries_max: u64,
    /// A clone that shares no more than this percentage with its origin loses its livelist.
    pub shared_pct_min: u64,
}

/// The livelist of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Livelist {
    /// Its object.
    pub object: ObjectId,
    /// The txg of the clone's origin.
    pub origin_txg: Txg,
}

impl Livelist {
    /// True if the livelist lists such a block.
    fn has(&self, bp: &Blkptr) -> bool {
        bp.logical_birth() > self.origin_txg && !bp.is_hole() && !bp.is_redacted() && !bp.is_embedded()
    }
}

impl LivelistLimits {
    /// True if a clone shares enough with its origin: of `referenced_bytes`, `own_bytes` are its own.
    fn is_shared_enough(&self, referenced_bytes: u64, own_bytes: u64) -> bool {
        let shared = u128::from(referenced_bytes.saturating_sub(own_bytes));
        // Whole percents, as OpenZFS counts them.
        let percent = (shared * 100).checked_div(u128::from(referenced_bytes));
        percent.is_none_or(|percent| percent > u128::from(self.shared_pct_min))
    }
}

/// A block's first copy, by which its entries are matched.
fn place(bp: &Blkptr) -> Option<(VdevId, u64)> {
    bp.dvas().next().map(|dva| (dva.vdev, dva.offset_bytes))
}

/// Reads entries of a list.
async fn read_entries(list: &Object, from: u64, until: u64) -> Result<Vec<Blkptr>, DslError> {
    let size = Blkptr::SIZE as u64;
    let bytes = list.read(from * size, ((until - from) * size) as usize).await?;
    Ok(blkptrs(&bytes, ORDER).collect())
}

impl Dsl {
    /// The livelist of a head dataset, if it is a clone with one.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn livelist(&self, head: ObjectId) -> Result<Option<Livelist>, DslError> {
        let dir = self.dataset_phys(head).await?.dir;
        let origin = self.dir_phys(dir).await?.origin;
        // The directory of a dataset that is not a clone of another need not be read for it.
        if origin.0 == 0 || self.shared.open.is_some() && origin == self.origin() {
            return Ok(None);
        }
        let Some(object) = self.object_field(dir, dir_field::LIVELIST).await? else { return Ok(None) };
        let origin_txg = self.dataset_phys(origin).await?.creation_txg;
        Ok(Some(Livelist { object: ObjectId(object), origin_txg }))
    }

    /// Gives a new clone an empty livelist. Returns true if this zapified its directory.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn add_livelist(&self, txg: Txg, dir: ObjectId) -> Result<bool, DslError> {
        let livelist = self.create_deadlist(txg, &[]).await?;
        self.put_dataset_field(txg, dir, dir_field::LIVELIST, &ZapValue::from_u64(livelist.0)).await
    }

    /// Removes the livelist from a clone. Returns the livelist's object, which is not changed; `None` if there was none.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn take_livelist(&self, txg: Txg, dir: ObjectId) -> Result<Option<ObjectId>, DslError> {
        let Some(list) = self.object_field(dir, dir_field::LIVELIST).await? else { return Ok(None) };
        Zap::put_entry(&self.mos().object(dir).await?, txg, dir_field::LIVELIST, None).await?;
        Ok(Some(ObjectId(list)))
    }

    /// Frees the livelist of a clone, but not the blocks in it. Returns true if there was one. If it is damaged, unreadable objects are left.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn drop_livelist(&self, txg: Txg, dir: ObjectId, refs: &mut EmptyRefs) -> Result<bool, DslError> {
        let Some(livelist) = self.take_livelist(txg, dir).await? else { return Ok(false) };
        if let Ok((object, lists)) = self.open_deadlist_to_change(livelist).await {
            for list in lists.into_values() {
                // The second entry for one list finds it freed.
                if Some(list) == self.empty_bpobj() || self.open_live(list).await.is_ok() {
                    self.free_list(txg, list, refs).await?;
                }
            }
            object.free(txg);
        }
        Ok(true)
    }

    /// Checks, before its clone is changed, that a livelist can take entries.
    ///
    /// # Errors
    /// It is not a livelist, or cannot be read.
    #[boxed]
    pub async fn check_livelist(&self, livelist: ObjectId) -> Result<(), DslError> {
        let mut seen = BTreeSet::new();
        for list in self.open_deadlist(livelist).await?.1.into_values() {
            if Some(list) == self.empty_bpobj() {
                continue;
            }
            self.open_live(list).await?;
            if !seen.insert(list) {
                let what = "a list of a livelist stands in it twice".to_owned();
                return Err(DslError::Corrupt { object: list.0, what });
            }
        }
        Ok(())
    }

    /// Opens a list of a livelist, other than the shared empty one.
    async fn open_live(&self, list: ObjectId) -> Result<(Object, BpobjPhys), DslError> {
        let object = self.mos().object(list).await?;
        let phys = Self::bpobj_phys(&object)?;
        let stored_bytes = object.last_block().0.saturating_add(1).saturating_mul(object.block_bytes());
        let what = if phys.children.is_some_and(|(array, count)| array.0 != 0 || count > 0) {
            "a list of a livelist has others below it"
        } else if phys.freed_count.is_none() {
            "a list of a livelist does not count what went"
        } else if phys.freed_count.unwrap_or(0) > phys.blkptr_count {
            "of a list of a livelist more went than stands in it"
        } else if phys.blkptr_count > ENTRIES_MAX || phys.blkptr_count * Blkptr::SIZE as u64 > stored_bytes {
            "a list of a livelist is shorter than it says, or too long"
        } else {
            return Ok((object, phys));
        };
        Err(DslError::Corrupt { object: list.0, what: what.to_owned() })
    }

    /// Gives an entry of a livelist a list of its own.
    async fn make_live(&self, txg: Txg, livelist: &Object, first: Txg) -> Result<ObjectId, DslError> {
        let list = self.create_bpobj_with(txg, BpobjPhys { freed_count: Some(0), ..Self::empty_phys() })?;
        Zap::put_entry(livelist, txg, &int_key_name(first.0), Some(&ZapValue::from_u64(list.0))).await?;
        Ok(list)
    }

    /// Appends the blocks that a sync of a clone made and gave up. False if that fails: the caller then drops the livelist.
    pub(crate) async fn enter_in_livelist(
        &self,
        txg: Txg,
        livelist: &Livelist,
        limits: &LivelistLimits,
        changes: (&[Blkptr], &Killed),
        refs: &mut EmptyRefs,
    ) -> bool {
        // A list that is damaged or cannot be read is of no use, and must not end the sync.
        self.enter_changes(txg, livelist, limits, changes, refs).await.is_ok()
    }

    async fn enter_changes(
        &self,
        txg: Txg,
        livelist: &Livelist,
        limits: &LivelistLimits,
        (new, killed): (&[Blkptr], &Killed),
        refs: &mut EmptyRefs,
    ) -> Result<(), DslError> {
        debug_assert!(new.iter().all(|bp| bp.logical_birth() == txg && livelist.has(bp)), "what is new is listed");
        let mut gone: Vec<Blkptr> = killed.iter().filter(|bp| livelist.has(bp)).copied().collect();
        if mutant::is(Mutant::LivelistFreeForgotten) {
            gone.pop();
        }
        let (object, mut lists) = self.load_deadlist(livelist.object).await?;
        let first = Txg(txg.0 - 1);
        let has_room = match lists.last_key_value() {
            None => false,
            Some((last, _)) if *last >= first => true,
            Some((_, list)) if Some(*list) == self.empty_bpobj() => true,
            Some((_, list)) => {
                let phys = self.open_live(*list).await?.1;
                phys.blkptr_count - phys.freed_count.unwrap_or(0) <= limits.entries_max
            }
        };
        if !has_room {
            lists.insert(first, self.make_live(txg, &object, first).await?);
            self.condense(txg, &object, &mut lists, limits, refs).await?;
        }
        let mut parts: BTreeMap<Txg, [Vec<Blkptr>; 2]> = BTreeMap::new();
        for (part, blocks) in [new, &gone].into_iter().enumerate() {
            for bp in blocks {
                let Some((first, _)) = lists.range(..bp.logical_birth()).next_back() else {
                    let what = "a block went that is older than all lists of the livelist".to_owned();
                    return Err(DslError::Corrupt { object: livelist.object.0, what });
                };
                parts.entry(*first).or_default()[part].push(*bp);
            }
        }
        for (first, [new, gone]) in parts {
            let mut list = lists[&first];
            if Some(list) == self.empty_bpobj() {
                list = self.make_live(txg, &object, first).await?;
                lists.insert(first, list);
                refs.released += 1;
            }
            let list = self.open_live(list).await?.0;
            self.append_entries(txg, &list, &new, false).await?;
            self.append_entries(txg, &list, &gone, true).await?;
        }
        let mut space = self.space_of_all(new);
        space.add(self.space_of_all(&gone).negated());
        self.change_deadlist(txg, &object, space).await?;
        self.keep_loaded(livelist.object, lists);
        Ok(())
    }

    /// Merges the first two neighbouring lists whose remaining entries fit in one list. Leaves out the last list, which this txg began.
    async fn condense(
        &self,
        txg: Txg,
        livelist: &Object,
        lists: &mut Lists,
        limits: &LivelistLimits,
        refs: &mut EmptyRefs,
    ) -> Result<(), DslError> {
        let all: Vec<(Txg, ObjectId)> = lists.iter().map(|(first, list)| (*first, *list)).collect();
        for pair in all[..all.len().saturating_sub(1)].windows(2) {
            let mut left = 0_u64;
            for (_, list) in pair.iter().filter(|(_, list)| Some(*list) != self.empty_bpobj()) {
                let phys = self.open_live(*list).await?.1;
                // Each free cancels an allocation as well.
                left += phys.blkptr_count.saturating_sub(2 * phys.freed_count.unwrap_or(0));
            }
            if left < limits.entries_max {
                let settled = self.settle(txg, livelist, pair, refs).await?;
                lists.insert(pair[0].0, settled.id());
                lists.remove(&pair[1].0);
                return Ok(());
            }
        }
        Ok(())
    }

    /// True if a clone shares enough with its origin to keep its livelist.
    pub(crate) async fn is_livelist_of_use(&self, head: ObjectId, limits: &LivelistLimits) -> Result<bool, DslError> {
        let phys = self.dataset_phys(head).await?;
        let [own_bytes, ..] = self.dir_phys(phys.dir).await?.used_breakdown_bytes;
        Ok(limits.is_shared_enough(phys.referenced_bytes, own_bytes))
    }

    /// The bytes of a livelist's remaining blocks.
    ///
    /// # Errors
    /// It is not a livelist, or the MOS cannot be read.
    #[boxed]
    pub async fn livelist_space(&self, livelist: ObjectId) -> Result<SpaceDelta, DslError> {
        let object = self.mos().object(livelist).await?;
        let phys = DeadlistPhys::parse(&object.phys().bonus, ORDER);
        let phys = phys.map_err(|error| DslError::Format { object: livelist.0, error })?;
        Ok(SpaceDelta {
            used_bytes: phys.used_bytes.cast_signed(),
            compressed_bytes: phys.compressed_bytes.cast_signed(),
            uncompressed_bytes: phys.uncompressed_bytes.cast_signed(),
        })
    }

    /// For each entry of a list, true if it is an allocation that no free cancels.
    async fn left_of(&self, list: &Object, phys: &BpobjPhys) -> Result<Vec<bool>, DslError> {
        let corrupt = |what: &str| DslError::Corrupt { object: list.id().0, what: what.to_owned() };
        let mut is_left = vec![false; phys.blkptr_count as usize];
        let (mut gone, mut gone_count): (BTreeMap<_, u64>, u64) = (BTreeMap::new(), 0);
        let mut end = phys.blkptr_count;
        while end > 0 {
            let from = (end - 1) / BATCH * BATCH;
            let blocks = read_entries(list, from, end).await?;
            for (is_left, bp) in is_left[from as usize..].iter_mut().zip(&blocks).rev() {
                let Some(place) = place(bp).filter(|_| !bp.is_hole() && !bp.is_embedded()) else {
                    return Err(corrupt("a list of a livelist has what lies nowhere"));
                };
                let of_place = gone.entry(place).or_default();
                gone_count += u64::from(bp.is_livelist_free());
                match bp.is_livelist_free() {
                    true => *of_place += 1,
                    false if *of_place > 0 => *of_place -= 1,
                    false => *is_left = true,
                }
                if *of_place == 0 {
                    gone.remove(&place);
                }
            }
            if gone.len() > FREES_MAX {
                return Err(corrupt("a list of a livelist has too much that went before it came"));
            }
            end = from;
        }
        if !gone.is_empty() {
            return Err(corrupt("a list of a livelist has what went and never came"));
        }
        match Some(gone_count) == phys.freed_count {
            true => Ok(is_left),
            false => Err(corrupt("a list of a livelist miscounts what went")),
        }
    }

    /// Appends the remaining entries of a list to another list.
    async fn append_left(&self, txg: Txg, from: &Object, is_left: &[bool], into: &Object) -> Result<(), DslError> {
        for (batch, is_left) in (0..).zip(is_left.chunks(BATCH as usize)) {
            let first = batch * BATCH;
            let blocks = read_entries(from, first, first + is_left.len() as u64).await?;
            let left = blocks.into_iter().zip(is_left).filter(|(_, is_left)| **is_left);
            let left: Vec<Blkptr> = left.map(|(bp, _)| bp).collect();
            self.append_entries(txg, into, &left, false).await?;
        }
        Ok(())
    }

    /// Replaces neighbouring lists of a livelist by one with their remaining entries. If reading or writing the entries fails, the livelist is
    /// as before.
    async fn settle(
        &self,
        txg: Txg,
        livelist: &Object,
        lists: &[(Txg, ObjectId)],
        refs: &mut EmptyRefs,
    ) -> Result<Object, DslError> {
        let mut left = Vec::new();
        for (_, list) in lists.iter().filter(|(_, list)| Some(*list) != self.empty_bpobj()) {
            let (list, phys) = self.open_live(*list).await?;
            let is_left = self.left_of(&list, &phys).await?;
            left.push((list, is_left));
        }
        let list = self.create_bpobj_with(txg, BpobjPhys { freed_count: Some(0), ..Self::empty_phys() })?;
        let settled = self.mos().object(list).await?;
        for (list, is_left) in &left {
            if let Err(error) = self.append_left(txg, list, is_left, &settled).await {
                settled.free(txg);
                return Err(error);
            }
        }
        for (at, (first, list)) in lists.iter().enumerate() {
            let entry = (at == 0).then(|| ZapValue::from_u64(settled.id().0));
            Zap::put_entry(livelist, txg, &int_key_name(first.0), entry.as_ref()).await?;
            self.free_list(txg, *list, refs).await?;
        }
        Ok(settled)
    }

    /// Does one step of freeing a livelist: settles its first list, removes at most `count_max` blocks from it for the caller to free, or frees
    /// it because it is empty. `None` if the livelist has no lists.
    ///
    /// # Errors
    /// It is not a livelist, or the MOS cannot be changed.
    #[boxed]
    pub async fn take_live(
        &self,
        txg: Txg,
        livelist: ObjectId,
        count_max: u64,
        refs: &mut EmptyRefs,
    ) -> Result<Option<Vec<Blkptr>>, DslError> {
        let (object, lists) = self.open_deadlist_to_change(livelist).await?;
        let Some((first, list)) = lists.into_iter().next() else { return Ok(None) };
        if Some(list) != self.empty_bpobj() {
            let (list_object, phys) = self.open_live(list).await?;
            if phys.freed_count.unwrap_or(0) > 0 {
                self.settle(txg, &object, &[(first, list)], refs).await?;
                return Ok(Some(Vec::new()));
            }
            let blocks = self.take_blocks(txg, &list_object, count_max).await?;
            if blocks.iter().any(|bp| bp.is_livelist_free() || bp.is_hole() || bp.is_embedded()) {
                let what = "a list of a livelist has what its own counts exclude".to_owned();
                return Err(DslError::Corrupt { object: list.0, what });
            }
            if !blocks.is_empty() {
                self.change_deadlist(txg, &object, self.space_of_all(&blocks).negated()).await?;
                return Ok(Some(blocks));
            }
        }
        Zap::put_entry(&object, txg, &int_key_name(first.0), None).await?;
        self.free_list(txg, list, refs).await?;
        Ok(Some(Vec::new()))
    }

    /// Frees a livelist without lists.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn free_livelist(&self, txg: Txg, livelist: ObjectId, refs: &mut EmptyRefs) -> Result<(), DslError> {
        self.free_deadlist(txg, livelist, refs).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_shares_enough_as_openzfs_counts_it() {
        let limits = LivelistLimits { entries_max: 500_000, shared_pct_min: 75 };
        assert!(limits.is_shared_enough(0, 0));
        assert!(limits.is_shared_enough(1000, 240));
        // 75.9 % count as 75.
        assert!(!limits.is_shared_enough(1000, 241));
        assert!(!limits.is_shared_enough(1000, 2000));
        assert!(!limits.is_shared_enough(u64::MAX, u64::MAX));
    }
}
