//! Blocks that are freed but still allocated in the space maps: only the lists below refer to them.
//!
//! ```text
//! sync_bplist      bpobj: frees put off to the next txg
//! free_bpobj       bpobj: blocks of destroyed snapshots and datasets
//! bptree_obj       roots of destroyed datasets, each with how far its walk has come     crate::resume
//! deleted_clones   ZAP of livelists of destroyed clones: a livelist is a ZAP of bpobjs
//! ```
//!
//! Lists are read in pieces, so the memory does not depend on the length of a (hostile) list.

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::{DataStream, DmuError, DmuErrorKind, ORDER, Object, Run, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::bpobj::{self, BpobjPhys};
use cenote_format::bptree::{BptreeEntry, BptreePhys};
use cenote_format::dsl::pool_directory;
use cenote_format::ids::{ObjectId, VdevId};
use cenote_spa::View;

use crate::error::FreeingError;
use crate::resume::Resume;
use crate::roots::Tree;

/// Bytes of a list of pointers read at a time.
const CHUNK_BYTES: u64 = 128 << 10;
/// Lists below one list at most; the real depth is small.
const LISTS_MAX: usize = 1 << 20;
/// Entries of one part of a livelist at most. OpenZFS begins a new part after 500 000 (`zfs_livelist_max_entries`).
const LIVELIST_ENTRIES_MAX: u64 = 1 << 24;
/// Frees of one part that wait for their allocation at most.
const LIVELIST_FREES_MAX: usize = 1 << 21;

/// The names of the lists of pointers.
pub(crate) const LISTS: [&str; 2] = [pool_directory::SYNC_BPOBJ, pool_directory::FREE_BPOBJ];

/// The pointers of a list and of those below it, a piece at a time.
pub(crate) struct PointerLists<'a> {
    pool: &'a View,
    pending: Vec<ObjectId>,
    seen: BTreeSet<ObjectId>,
    current: Option<DataStream>,
}

impl<'a> PointerLists<'a> {
    pub(crate) async fn open(pool: &'a View, list: Object) -> Result<Self, DmuError> {
        let mut lists = Self { pool, pending: Vec::new(), seen: BTreeSet::from([list.id()]), current: None };
        lists.begin(&list).await?;
        Ok(lists)
    }

    async fn begin(&mut self, list: &Object) -> Result<(), DmuError> {
        let phys = list.bonus(BpobjPhys::parse).map_err(|error| list.error(error))?;
        self.current = Some(list.stream(0..size_bytes(list, &phys), CHUNK_BYTES));
        let Some((object, count)) = phys.children.filter(|(_, count)| *count > 0) else { return Ok(()) };
        let array = self.pool.mos().object(object).await?;
        let size = count.min(LISTS_MAX as u64 + 1) * 8;
        let bytes = array.read(0, size as usize).await?;
        // Each list is in one list, once.
        for child in bpobj::children(&bytes, ORDER) {
            if !self.seen.insert(child) {
                return Err(array.error(DmuErrorKind::Corrupt(format!("list {child} is listed twice"))));
            }
            if self.seen.len() > LISTS_MAX {
                return Err(array.error(DmuErrorKind::Corrupt(format!("more than {LISTS_MAX} lists"))));
            }
            self.pending.push(child);
        }
        assert!(self.seen.len() <= LISTS_MAX && self.pending.len() < self.seen.len(), "a list is read once");
        Ok(())
    }

    /// The next pointers; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Blkptr>>, DmuError> {
        loop {
            if let Some(stream) = &mut self.current {
                match stream.next().await? {
                    Some(Run::Data { block, .. }) => return Ok(Some(bpobj::blkptrs(&block, ORDER).collect())),
                    Some(Run::Hole { .. }) => continue,
                    None => self.current = None,
                }
            }
            let Some(list) = self.pending.pop() else { return Ok(None) };
            let list = self.pool.mos().object(list).await?;
            self.begin(&list).await?;
        }
    }
}

/// How much of a list's data is pointers.
fn size_bytes(list: &Object, phys: &BpobjPhys) -> u64 {
    let stored = list.last_block().0.saturating_add(1).saturating_mul(list.block_bytes());
    let size_bytes = phys.blkptr_count.saturating_mul(Blkptr::SIZE as u64).min(stored);
    assert!(size_bytes <= stored, "no list is longer than its object");
    size_bytes
}

/// The trees of destroyed datasets, each as far as it is not yet freed.
pub(crate) async fn destroyed(pool: &View, problems: &mut Vec<String>) -> Vec<Tree> {
    let mut roots = Vec::new();
    let tree = match pool.directory_object(pool_directory::BPTREE).await {
        Ok(Some(tree)) => tree,
        Ok(None) => return roots,
        Err(error) => {
            problems.push(format!("destroyed datasets: {error}"));
            return roots;
        }
    };
    let Ok(phys) = tree.bonus(BptreePhys::parse) else {
        problems.push("destroyed datasets: their list has no header".into());
        return roots;
    };
    if phys.end.saturating_sub(phys.begin) > LISTS_MAX as u64 {
        problems.push(format!("destroyed datasets: more than {LISTS_MAX}; the rest is reported as leaked"));
    }
    for index in phys.begin..phys.end.min(phys.begin.saturating_add(LISTS_MAX as u64)) {
        let at = index.saturating_mul(BptreeEntry::SIZE_BYTES as u64);
        let read = async {
            let entry = BptreeEntry::parse(&tree.read(at, BptreeEntry::SIZE_BYTES).await?, ORDER)?;
            Ok::<_, FreeingError>((entry.bp, entry.birth_txg, Resume::of(&entry.bookmark)?))
        };
        match read.await {
            // A root as old as the previous snapshot is that snapshot's; an entry that is done is marked so too.
            Ok((bp, birth_txg, _)) if bp.is_hole() || bp.birth() <= birth_txg => {}
            Ok((bp, birth_txg, resume)) => roots.push(Tree::destroyed(bp, birth_txg, resume)),
            Err(error) => problems.push(format!("destroyed dataset {index}: {error}")),
        }
    }
    assert!(roots.len() <= LISTS_MAX, "as many destroyed datasets as are looked at");
    roots
}

/// The parts of the livelists of destroyed clones: bpobjs.
pub(crate) async fn deleted_clones(pool: &View, problems: &mut Vec<String>) -> Vec<ObjectId> {
    let mut parts = Vec::new();
    if let Err(error) = collect_parts(pool, &mut parts).await {
        problems.push(format!("deleted clones: {error}"));
    }
    parts
}

async fn collect_parts(pool: &View, parts: &mut Vec<ObjectId>) -> Result<(), FreeingError> {
    let clones = pool.directory_object(pool_directory::DELETED_CLONES).await?;
    let Some(clones) = clones else { return Ok(()) };
    let mut seen = BTreeSet::new();
    let clones = Zap::open(clones).await?;
    let mut listing = clones.listing();
    while let Some(batch) = listing.next().await? {
        for livelist in batch.iter().filter_map(|entry| entry.value.as_u64()).map(ObjectId) {
            if !seen.insert(livelist) {
                return Err(FreeingError::ListedTwice { livelist });
            }
            let livelist = pool.mos().object(livelist).await?;
            let livelist = Zap::open(livelist).await?;
            let mut listing = livelist.listing();
            while let Some(batch) = listing.next().await? {
                parts.extend(batch.iter().filter_map(|entry| entry.value.as_u64()).map(ObjectId));
                if parts.len() > LISTS_MAX {
                    return Err(FreeingError::TooManyLists { lists_max: LISTS_MAX });
                }
            }
        }
    }
    Ok(())
}

/// A part of a livelist: a clone's allocations and frees, in order. Blocks that it allocated and did not free are still its own.
///
/// Read from the end, so that a free comes before its allocation. A block that was deduplicated or cloned may be there
/// several times; each free takes one allocation away.
pub(crate) struct LivelistPart {
    list: Object,
    /// The end of the entries that are not read yet.
    end_bytes: u64,
    frees: BTreeMap<Place, u64>,
}

/// A block's first copy, which is what the frees of a livelist are matched by. Pointers with their data inside have none.
type Place = Option<(VdevId, u64)>;

impl LivelistPart {
    pub(crate) async fn open(pool: &View, object: ObjectId) -> Result<Self, DmuError> {
        let list = pool.mos().object(object).await?;
        let phys = list.bonus(BpobjPhys::parse).map_err(|error| list.error(error))?;
        if phys.blkptr_count > LIVELIST_ENTRIES_MAX {
            let what = format!("a livelist of {} entries in one part", phys.blkptr_count);
            return Err(list.error(DmuErrorKind::Corrupt(what)));
        }
        if phys.children.is_some_and(|(_, count)| count > 0) {
            return Err(list.error(DmuErrorKind::Corrupt("a livelist with lists below it".into())));
        }
        let end_bytes = size_bytes(&list, &phys) / Blkptr::SIZE as u64 * Blkptr::SIZE as u64;
        assert!(end_bytes <= LIVELIST_ENTRIES_MAX * Blkptr::SIZE as u64, "a part is bounded");
        Ok(Self { list, end_bytes, frees: BTreeMap::new() })
    }

    /// More pointers to what is still allocated; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Blkptr>>, DmuError> {
        if self.end_bytes == 0 {
            return Ok(None);
        }
        let start = (self.end_bytes - 1) / CHUNK_BYTES * CHUNK_BYTES;
        assert!(start < self.end_bytes && self.end_bytes - start <= CHUNK_BYTES, "each entry is read once");
        let bytes = self.list.read(start, (self.end_bytes - start) as usize).await?;
        self.end_bytes = start;
        let mut kept = Vec::new();
        for bp in Blkptr::array(&bytes, ORDER).rev() {
            if let Some(bp) = take(&mut self.frees, bp) {
                kept.push(bp);
            }
        }
        if self.frees.len() > LIVELIST_FREES_MAX {
            return Err(self.list.error(DmuErrorKind::Corrupt("a livelist of frees without allocations".into())));
        }
        Ok(Some(kept))
    }
}

/// Takes the next entry from the end: gives back an allocation that nothing after it frees.
fn take(frees: &mut BTreeMap<Place, u64>, bp: Blkptr) -> Option<Blkptr> {
    let place = bp.dvas().next().map(|dva| (dva.vdev, dva.offset_bytes));
    if bp.is_livelist_free() {
        *frees.entry(place).or_default() += 1;
        return None;
    }
    let Some(count) = frees.get_mut(&place) else { return Some(bp) };
    assert!(*count > 0, "a free takes one allocation away");
    *count -= 1;
    if *count == 0 {
        frees.remove(&place);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An entry of a livelist: place and whether it is a free.
    fn entry(place: u64, is_free: bool) -> Blkptr {
        let mut bytes = [0; Blkptr::SIZE];
        bytes[0..8].copy_from_slice(&1_u64.to_le_bytes());
        bytes[8..16].copy_from_slice(&place.to_le_bytes());
        bytes[80..88].copy_from_slice(&7_u64.to_le_bytes());
        bytes[88] = u8::from(is_free);
        Blkptr::from_array(&bytes, ORDER)
    }

    proptest! {
        /// However allocations and frees of blocks are mixed, a block is left as often as it was allocated and not freed.
        #[test]
        fn a_livelist_leaves_what_was_not_freed(steps in prop::collection::vec((0_u64..6, any::<bool>()), 0..60)) {
            let mut held: BTreeMap<u64, u64> = BTreeMap::new();
            let mut list = Vec::new();
            for (place, is_free) in steps {
                let count = held.entry(place).or_default();
                if is_free && *count > 0 {
                    *count -= 1;
                    list.push(entry(place, true));
                } else {
                    *count += 1;
                    list.push(entry(place, false));
                }
            }
            let (mut frees, mut left) = (BTreeMap::new(), BTreeMap::new());
            for bp in list.into_iter().rev() {
                if let Some(bp) = take(&mut frees, bp) {
                    *left.entry(bp.dvas().next().unwrap().offset_bytes >> 9).or_default() += 1_u64;
                }
            }
            held.retain(|_, count| *count > 0);
            prop_assert_eq!(left, held);
            prop_assert!(frees.is_empty());
        }
    }
}
