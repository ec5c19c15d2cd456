//! Livelists: lists of the blocks that a clone has and its origin has not, by which the clone is destroyed without a walk of its tree.
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
//! **Life of one.** A clone gets it, empty, when it is made, where the pool has the feature `livelist` (counted by their number). Each
//! txg that writes the clone enters the blocks that are new, then those that were given up, of all that was born after the origin; blocks
//! whose data is in the pointer take no space and are left out, as are those of intent logs, which are in no account. A list that
//! has got more new blocks than a limit is followed by the next, beginning with the txg; lists that have shrunk become one. When the clone shares
//! too little with its origin, is promoted, rolled back or received into, it does without from then on. One that is destroyed
//! leaves its livelist to the background.
//!
//! **Invariant.** A livelist's remaining blocks are those of the clone's head that are younger than the origin, without those whose data is
//! in the pointer (`cenote_sim::audit_space` checks it). That does not depend on snapshots of the clone: a block that went from the head is
//! a snapshot's, by the deadlist, until that is destroyed; and a clone with snapshots is not destroyed.
//!
//! **Faults** (a block that went, and for which there is no list; a list that is damaged) end the livelist in the same txg: the clone is
//! then destroyed by its tree. A damaged livelist keeps nobody from promoting or destroying its clone: of its objects those that can be
//! read are freed.
//!
//! **Bounds.** A list has at most [`ENTRIES_MAX`] entries. It is written anew as a whole when it is settled, and two lists when they
//! become one: at most twice so many entries of 128 bytes are read and written in one txg then (OpenZFS, which begins a new list
//! after 500 000, has far fewer). How many entries went is counted, and compared with what the list says of itself, before anything is
//! changed.

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::{Killed, Object, SpaceDelta, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::bpobj::{BpobjPhys, blkptrs};
use cenote_format::dsl::{DeadlistPhys, dir_field};
use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_taskq::boxed;
use cenote_taskq::mutant::{self, Mutant};

use crate::bpobj::EmptyRefs;
use crate::deadlist::Lists;
use crate::open::ORDER;
use crate::{Dsl, DslError};

/// Entries of one list at most. OpenZFS begins another one after 500 000.
const ENTRIES_MAX: u64 = 1 << 22;
/// Blocks that went and whose coming was not met yet, of one list. Each that went takes away one that came, so whole lists have no more.
const FREES_MAX: usize = 1 << 21;
/// Entries that are read at once: 2 MiB.
const BATCH: u64 = 1 << 14;

/// How long livelists and their lists get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivelistLimits {
    /// New blocks in a list, after which the next begins.
    pub entries_max: u64,
    /// Percentage of a clone that it has to share with its origin; with less the livelist goes.
    pub shared_pct_min: u64,
}

/// The livelist of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Livelist {
    /// Its object.
    pub object: ObjectId,
    /// The txg of the snapshot that the clone began as.
    pub origin_txg: Txg,
}

impl Livelist {
    /// Whether a block is among those that are listed.
    fn has(&self, bp: &Blkptr) -> bool {
        bp.logical_birth() > self.origin_txg && !bp.is_hole() && !bp.is_redacted() && !bp.is_embedded()
    }
}

impl LivelistLimits {
    /// Whether a clone that refers to so much, of which so much is its own, shares enough with its origin.
    fn is_shared_enough(&self, referenced_bytes: u64, own_bytes: u64) -> bool {
        let shared = u128::from(referenced_bytes.saturating_sub(own_bytes));
        // Whole percents, as OpenZFS counts them.
        let percent = (shared * 100).checked_div(u128::from(referenced_bytes));
        percent.is_none_or(|percent| percent > u128::from(self.shared_pct_min))
    }
}

/// A block's first copy, by which entries of one block are found.
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
    /// The livelist of a head dataset, if it is a clone that keeps one.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn livelist(&self, head: ObjectId) -> Result<Option<Livelist>, DslError> {
        let dir = self.dataset_phys(head).await?.dir;
        let origin = self.dir_phys(dir).await?.origin;
        // Of a dataset that is no clone of another's snapshot the table need not be read.
        if origin.0 == 0 || self.shared.open.is_some() && origin == self.origin() {
            return Ok(None);
        }
        let Some(object) = self.object_field(dir, dir_field::LIVELIST).await? else { return Ok(None) };
        let origin_txg = self.dataset_phys(origin).await?.creation_txg;
        Ok(Some(Livelist { object: ObjectId(object), origin_txg }))
    }

    /// Gives a clone that was made in this txg an empty livelist. Whether its directory has become a table of extra fields by that.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn add_livelist(&self, txg: Txg, dir: ObjectId) -> Result<bool, DslError> {
        let livelist = self.create_deadlist(txg, &[]).await?;
        self.put_dataset_field(txg, dir, dir_field::LIVELIST, &ZapValue::from_u64(livelist.0)).await
    }

    /// Has a clone keep no livelist any more. Its object, which is left as it is; `None` if there was none.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn take_livelist(&self, txg: Txg, dir: ObjectId) -> Result<Option<ObjectId>, DslError> {
        let Some(list) = self.object_field(dir, dir_field::LIVELIST).await? else { return Ok(None) };
        Zap::put_entry(&self.mos().object(dir).await?, txg, dir_field::LIVELIST, None).await?;
        Ok(Some(ObjectId(list)))
    }

    /// Frees the livelist of a clone, but not the blocks in it. Whether there was one. Of a damaged one, objects that cannot be read are left.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn drop_livelist(&self, txg: Txg, dir: ObjectId, refs: &mut EmptyRefs) -> Result<bool, DslError> {
        let Some(livelist) = self.take_livelist(txg, dir).await? else { return Ok(false) };
        if let Ok((object, lists)) = self.open_deadlist_to_change(livelist).await {
            for list in lists.into_values() {
                // A list that stands there twice is gone the second time.
                if Some(list) == self.empty_bpobj() || self.open_live(list).await.is_ok() {
                    self.free_list(txg, list, refs).await?;
                }
            }
            object.free(txg);
        }
        Ok(true)
    }

    /// Checks that a livelist is one that entries can be put into, before its clone is changed.
    ///
    /// # Errors
    /// It is none, or cannot be read.
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

    /// Opens a list of a livelist, which is not the one that stands for all empty ones.
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

    /// A list of its own for an entry of a livelist.
    async fn make_live(&self, txg: Txg, livelist: &Object, first: Txg) -> Result<ObjectId, DslError> {
        let list = self.create_bpobj_with(txg, BpobjPhys { freed_count: Some(0), ..Self::empty_phys() })?;
        Zap::put_entry(livelist, txg, &int_key_name(first.0), Some(&ZapValue::from_u64(list.0))).await?;
        Ok(list)
    }

    /// Enters what the sync of a clone has made and given up. False if that cannot be: the livelist has to go then.
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

    /// Has the first two neighbouring lists become one of which not more is left than goes into one. Not the last two, of which entries were
    /// put into the second until this txg.
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
                // Each that went takes away one that came, too.
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

    /// Whether a clone shares enough with its origin for a livelist to be of use.
    pub(crate) async fn is_livelist_of_use(&self, head: ObjectId, limits: &LivelistLimits) -> Result<bool, DslError> {
        let phys = self.dataset_phys(head).await?;
        let [own_bytes, ..] = self.dir_phys(phys.dir).await?.used_breakdown_bytes;
        Ok(limits.is_shared_enough(phys.referenced_bytes, own_bytes))
    }

    /// The bytes of what is left of a livelist.
    ///
    /// # Errors
    /// It is none, or the MOS cannot be read.
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

    /// Which entries of a list are left once each that went has taken away one that came.
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

    /// Appends what is left of a list to another one.
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

    /// Has one list stand in the place of some that follow each other in a livelist, with what is left of them. When that fails, nothing has
    /// changed.
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

    /// A step of freeing a livelist: its first list is settled, or blocks are taken out of it to be freed, at most so many, or it goes because it
    /// has none. `None` when the livelist has no lists any more.
    ///
    /// # Errors
    /// It is none, or the MOS cannot be changed.
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
        // 75.9 % are 75.
        assert!(!limits.is_shared_enough(1000, 241));
        assert!(!limits.is_shared_enough(1000, 2000));
        assert!(!limits.is_shared_enough(u64::MAX, u64::MAX));
    }
}
