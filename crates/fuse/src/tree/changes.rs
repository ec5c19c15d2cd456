//! Finds what the client must forget when a head gets another state: that of a snapshot to which it is rolled back, or of a dataset that was
//! received.
//!
//! Both states share what the snapshot has that they come from. Only blocks of the meta-dnode that one of them has written since can hold
//! dnodes that differ, so only these are compared. The client may have stale attributes and data of each object whose dnode differs, and stale
//! names in each such directory.

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::{DmuError, DmuErrorKind, Object};
use cenote_dsl::Dataset;
use cenote_format::blkptr::Blkptr;
use cenote_format::dnode::{SLOT_BYTES, dnodes_in_block};
use cenote_format::ids::{BlockId, ObjectId, Txg};
use cenote_inuse::OpenError;
use cenote_zpl::{Cursor, FileKind, FileSystem, ZplError};

use crate::source::Source;

/// Entries of a directory that are read at once.
const ENTRIES_AT_ONCE: usize = 1024;

/// The differences between a head and the state that it gets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Objects whose dnodes differ, or that only one of the two has.
    pub(crate) objects: BTreeSet<ObjectId>,
    /// Of those: object numbers that are not the same file in both. The value is the file in the head before; `None` if it has none.
    gone: BTreeMap<ObjectId, Option<(FileKind, u64)>>,
    /// Directory and name of each entry that leads to another file afterwards, or that only one of the two has.
    pub(crate) names: Vec<(ObjectId, Vec<u8>)>,
}

impl Changes {
    /// The objects that are not the same files any more. This looks at the head as it is then, since the change may have been
    /// refused.
    pub(crate) async fn stale(&self, filesystem: &FileSystem) -> BTreeSet<ObjectId> {
        let mut stale = BTreeSet::new();
        for (object, before) in &self.gone {
            // An object that only the other state has is unknown to the client.
            if before.is_some() && what(filesystem, *object).await != *before {
                stale.insert(*object);
            }
        }
        stale
    }
}

/// Compares a head, whose changes are all on disk, with a snapshot of it, or with a dataset that began as a clone of one or empty.
pub(crate) async fn between(source: &Source, head: &Dataset, other: &Dataset) -> Result<Changes, OpenError> {
    let (now, then) = (source.filesystem(head).await?, source.filesystem(other).await?);
    let failed = |error| OpenError::Zpl(head.name(), error);
    // Nothing that is older differs between the two.
    let since = if other.is_snapshot() { other.phys.creation_txg } else { other.phys.prev_snapshot_txg };
    let mut changes = Changes { objects: changed(&now, &then, since).await.map_err(failed)?, ..Changes::default() };
    let mut directories = BTreeMap::new();
    for object in &changes.objects {
        let (one, other) = (what(&now, *object).await, what(&then, *object).await);
        let is_directory = |found: Option<(FileKind, u64)>| found.is_some_and(|(kind, _)| kind == FileKind::Directory);
        if one != other {
            changes.gone.insert(*object, one);
        }
        directories.insert(*object, (is_directory(one), is_directory(other)));
    }
    for (directory, (is_now, was_then)) in directories {
        if is_now {
            differing(&now, &then, directory, &changes.gone, &mut changes.names).await.map_err(failed)?;
        }
        // Names that only the other state has: the client may have cached that they are absent.
        if was_then {
            differing(&then, &now, directory, &changes.gone, &mut changes.names).await.map_err(failed)?;
        }
    }
    Ok(changes)
}

/// Kind and generation of a file; `None` if the object is no file or cannot be read.
async fn what(filesystem: &FileSystem, object: ObjectId) -> Option<(FileKind, u64)> {
    let attributes = filesystem.attributes(object).await.ok()?;
    Some((attributes.kind, attributes.generation))
}

/// Adds the names of a directory in one state that lead to another file, or to none, in the other state.
async fn differing(
    here: &FileSystem,
    there: &FileSystem,
    directory: ObjectId,
    gone: &BTreeMap<ObjectId, Option<(FileKind, u64)>>,
    names: &mut Vec<(ObjectId, Vec<u8>)>,
) -> Result<(), ZplError> {
    let mut cursor = Cursor::START;
    loop {
        let listed = here.list(directory, cursor, ENTRIES_AT_ONCE).await?;
        let Some(last) = listed.last() else { return Ok(()) };
        cursor = last.next;
        for entry in listed {
            let same = there.lookup(directory, &entry.name).await.is_ok_and(|other| other == entry.object);
            if !same || gone.contains_key(&entry.object) {
                names.push((directory, entry.name));
            }
        }
    }
}

/// Objects whose dnodes differ between two states, which share what is not newer than `since`.
async fn changed(now: &FileSystem, then: &FileSystem, since: Txg) -> Result<BTreeSet<ObjectId>, ZplError> {
    let objset = now.objset().id();
    let failed = |kind| DmuError { objset, object: ObjectId(0), kind };
    let (now, then) = (now.objset().meta_dnode(), then.objset().meta_dnode());
    let mut objects = BTreeSet::new();
    let mut ranges = rewritten(&now, &then, since).await.map_err(failed)?;
    ranges.extend(rewritten(&then, &now, since).await.map_err(failed)?);
    ranges.sort_unstable();
    let mut done = 0;
    for (first, end) in ranges {
        for block in first.max(done)..end {
            let block = BlockId(block);
            let slots = (now.block_bytes() / SLOT_BYTES as u64).max(1);
            let [here, there] = [dnodes(&now, block).await?, dnodes(&then, block).await?];
            let differ = here.iter().filter(|(slot, bytes)| there.get(slot) != Some(bytes));
            let gone = there.keys().filter(|slot| !here.contains_key(slot));
            let all = differ.map(|(slot, _)| slot).chain(gone);
            objects.extend(all.map(|slot| ObjectId(block.0.saturating_mul(slots).saturating_add(*slot as u64))));
        }
        done = done.max(end);
    }
    objects.remove(&ObjectId(0));
    Ok(objects)
}

/// The dnodes of a block, by their first slots.
async fn dnodes(meta: &Object, block: BlockId) -> Result<BTreeMap<usize, Vec<u8>>, ZplError> {
    let Some((bytes, order)) = meta.block(block).await? else { return Ok(BTreeMap::new()) };
    let dnode = |(slot, view): (usize, Result<cenote_format::dnode::DnodeView<'_>, _>)| {
        let slots = view.map_or(1, |view| view.slots());
        (slot, bytes[slot * SLOT_BYTES..(slot + slots) * SLOT_BYTES].to_vec())
    };
    Ok(dnodes_in_block(&bytes, order).map(dnode).collect())
}

/// Ranges of meta-dnode blocks of one state that were born after a txg, or that are holes where the other state may have blocks.
async fn rewritten(now: &Object, other: &Object, since: Txg) -> Result<Vec<(u64, u64)>, DmuErrorKind> {
    let phys = now.phys();
    let (shift, top) = (phys.blkptrs_per_indirect_shift(), phys.levels.saturating_sub(1));
    let other_end = other.phys().max_block_id.saturating_add(1);
    let mut left: Vec<(Blkptr, u8, u64)> =
        phys.blkptrs().iter().enumerate().map(|(index, bp)| (*bp, top, index as u64)).collect();
    let covered = (left.len() as u64).saturating_mul(span(shift, top));
    // The other state may have blocks beyond the end of this tree.
    let mut found = vec![(covered, other_end)];
    while let Some((bp, level, block)) = left.pop() {
        let span = span(shift, level);
        if bp.is_hole() {
            // A hole may have no birth (without the feature hole_birth), so its age is unknown.
            let first = block.saturating_mul(span);
            found.push((first, first.saturating_add(span).min(other_end)));
            continue;
        }
        if bp.birth() <= since {
            continue;
        }
        if bp.level() != level {
            let found = bp.level();
            return Err(DmuErrorKind::Corrupt(format!("a pointer of level {found} at level {level}")));
        }
        if level == 0 {
            found.push((block, block.saturating_add(1)));
            continue;
        }
        let bytes = now.dmu().read(&bp, now.context(level, BlockId(block))).await?;
        let base = block.saturating_mul(bytes.len() as u64 / Blkptr::SIZE as u64);
        let below = Blkptr::array(&bytes, bp.byte_order()).enumerate();
        left.extend(below.map(|(index, bp)| (bp, level - 1, base.saturating_add(index as u64))));
    }
    Ok(found)
}

/// The number of level 0 blocks below a pointer of this level.
fn span(shift: u32, level: u8) -> u64 {
    1_u64.checked_shl(u32::from(level).saturating_mul(shift)).unwrap_or(u64::MAX)
}
