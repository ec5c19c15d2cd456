//! One visit: reads a block in all its copies, verifies it, and returns the ranges that it occupies and the pointers that it holds.

use std::sync::Arc;

use cenote_codec::crypt::DatasetKey;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{DnodePhys, SLOT_BYTES, dnodes_in_block};
use cenote_format::enums::Compress;
use cenote_format::gang::MIN_BYTES as GANG_HEADER_BYTES;
use cenote_format::ids::{BlockId, ObjectId, ObjsetId, Txg, VdevId};
use cenote_format::needs::Needs;
use cenote_format::objset::ObjsetPhys;
use cenote_format::zap::{Leaf, ZapShape};
use cenote_spa::{ScanReport, View};
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;
use cenote_vdev::queue::QueueClass;
use cenote_zio::{Bookmark, ReadContext, gang};

use crate::account::Claim;
use crate::error::VisitError;
use crate::resume::{OBJECTS_PER_BLOCK, Resume, SPILL_BLOCK};

/// The part of a tree that an earlier part of the walk has visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// None.
    Fresh,
    /// All that comes before a stop.
    From(Resume),
    /// The whole tree.
    Done,
}

/// The context that all blocks of one tree share.
#[derive(Clone)]
pub(crate) struct Origin {
    /// The tree's number in the view that is walked.
    pub(crate) tree: usize,
    pub(crate) objset: ObjsetId,
    pub(crate) key: Option<Arc<DatasetKey>>,
    /// Blocks born up to this txg belong to an older snapshot.
    pub(crate) min_txg: Txg,
    /// Data that was written after this txg came after the walk had begun, and is left out. None: all is walked.
    pub(crate) max_txg: Option<Txg>,
    /// How far a destroyed dataset's blocks are freed.
    pub(crate) resume: Option<Resume>,
    /// How far it was visited.
    pub(crate) start: Start,
    /// Blocks that were visited are gone through once more, for what is counted of them, and their data is not read again. Otherwise
    /// only those on the way to the stop are read.
    pub(crate) keeps_known: bool,
    /// Its blocks are in the order of bookmarks, so that a walk can stop at them.
    pub(crate) has_stops: bool,
}

/// A pointer to visit.
#[derive(Clone)]
pub(crate) struct Item {
    pub(crate) bp: Blkptr,
    pub(crate) bookmark: Bookmark,
    pub(crate) origin: Arc<Origin>,
    /// It was visited by an earlier part of the walk.
    pub(crate) is_known: bool,
}

impl Item {
    /// The root of a tree.
    pub(crate) fn root(bp: Blkptr, origin: Origin) -> Self {
        let is_known = origin.start != Start::Fresh;
        Self { bp, bookmark: Bookmark::objset(origin.objset), origin: Arc::new(origin), is_known }
    }
}

/// The result of a visit.
pub(crate) struct Visited {
    /// Every copy was bad, or the contents are not what they should be.
    pub(crate) error: Option<VisitError>,
    /// Copies or columns that were bad though the block could be read.
    pub(crate) bad_copies: Vec<String>,
    /// The ranges that it takes, copy by copy.
    pub(crate) claims: Vec<Claim>,
    /// Pointers within, to be visited if the claims hold.
    pub(crate) children: Vec<Item>,
    /// Features that the contents need.
    pub(crate) needs: Needs,
    /// The work that a scan did on it.
    pub(crate) scanned: ScanReport,
    /// A scan could not write it again since devices were being changed, or the pool is suspended: it is to be visited again.
    pub(crate) is_refused: bool,
}

impl Visited {
    /// Of a block that is not read: it is embedded, or cannot be.
    pub(crate) fn unread(error: Option<VisitError>) -> Self {
        Self {
            error,
            bad_copies: Vec::new(),
            claims: Vec::new(),
            children: Vec::new(),
            needs: Needs::empty(),
            scanned: ScanReport::default(),
            is_refused: false,
        }
    }
}

/// A scan, as its walk sees it.
pub(crate) trait ScanReader: Send + Sync {
    /// Whether all copies of the block are read.
    fn wants(&self, view: &View, item: &Item) -> bool;

    /// Visits a block, and has bad copies written again.
    #[boxed]
    async fn visit(&self, view: &View, item: &Item) -> Visited;
}

/// The blocks that a walk reads of those that it visits.
#[derive(Clone)]
pub(crate) enum Reads {
    /// Blocks that lead to others, and directories.
    Pointers,
    /// All, in all copies.
    All,
    /// Blocks that a scan asks for, in all copies, with bad ones written again; and blocks that lead to others.
    Scan(Arc<dyn ScanReader>),
}

impl Reads {
    /// Whether a visit reads the block.
    pub(crate) fn reads(&self, view: &View, item: &Item) -> bool {
        match self {
            Self::Pointers => is_read(item, false),
            Self::All => is_read(item, true),
            Self::Scan(scan) => is_tree(item) || is_read_again(&item.bookmark) || scan.wants(view, item),
        }
    }
}

/// Visits a block that is neither a hole nor embedded.
pub(crate) async fn visit(pool: View, item: Item, reads: Reads) -> Visited {
    assert!(!item.bp.is_hole() && !item.bp.is_embedded(), "a block that is visited is stored somewhere");
    let mut visited = Visited::unread(None);
    if let Reads::Scan(scan) = &reads {
        return scan.visit(&pool, &item).await;
    }
    match claims_of(&pool, &item.bp).await {
        Ok(claims) => visited.claims = claims,
        Err(error) => visited.error = Some(error),
    }
    if !reads.reads(&pool, &item) {
        return visited;
    }
    let (is_tree, tells) = (is_tree(&item), tells(&item));
    let context = ReadContext::new(item.bookmark, item.origin.key.as_deref()).of_class(QueueClass::Scrub);
    let zio = pool.dmu().zio();
    let copies = match zio.read_copies(&item.bp, context).await {
        Ok(copies) => copies,
        Err(error) => {
            visited.error = Some(error.into());
            return visited;
        }
    };
    visited.bad_copies = copies.bad;
    let Some(physical) = copies.physical else { return visited };
    // A checksum does not say whether the bytes can be decompressed. With the key at hand the MAC is checked too; without,
    // encrypted contents are left as they are.
    let is_compressed = item.bp.compress() != Some(Compress::Off);
    if is_tree || tells || is_compressed || item.bp.uses_crypt() && context.key.is_some() {
        let is_opaque = is_opaque(&item);
        let logical = if is_opaque { Ok(physical) } else { zio.logical_of(&item.bp, context, &physical) };
        match logical {
            Ok(logical) if is_tree => {
                if let Err(error) = children(&item, &logical, &mut visited) {
                    visited.error = Some(error);
                }
            }
            Ok(logical) if tells && !is_opaque => visited.needs = needs_of_contents(&item, &logical),
            Ok(_) => {}
            Err(error) => visited.error = Some(error.into()),
        }
    }
    debug_assert!(is_tree || visited.children.is_empty(), "data holds no pointers");
    visited
}

/// Whether a block at this place leads to others, in a sound pool; its pointer may say otherwise in a hostile one. A walk that goes through what was
/// visited once more reads these blocks again, whatever their pointers say, and only their faults are found again.
pub(crate) const fn is_read_again(at: &Bookmark) -> bool {
    at.level != 0 || at.object.0 == 0
}

/// Whether a visit reads the block. Data that was read already is read again only where its contents count.
pub(crate) fn is_read(item: &Item, data: bool) -> bool {
    is_tree(item) || is_read_again(&item.bookmark) || data && (tells(item) || !item.is_known)
}

fn tells(item: &Item) -> bool {
    Needs::are_in_contents(item.bp.dmu_type(), item.bp.level(), item.bp.lsize_bytes())
}

/// Whether a block holds pointers: indirect blocks, objsets and blocks of dnodes.
pub(crate) fn is_tree(item: &Item) -> bool {
    item.bp.level() > 0
        || item.bookmark.level == Bookmark::LEVEL_OBJSET
        || item.bookmark.object == ObjectId(0) && item.bp.dmu_type() == DmuType::DNODE
}

/// The features that the contents of a directory's block, or of a large micro ZAP, need. None for a block that cannot be decoded:
/// that is reported when the directory is read.
fn needs_of_contents(item: &Item, bytes: &Block) -> Needs {
    let order = item.bp.byte_order();
    if item.bookmark.block == BlockId(0) {
        return match ZapShape::of(bytes, order) {
            Ok(ZapShape::Micro) => Needs::of_micro_zap(bytes.len() as u64),
            Ok(ZapShape::Fat) | Err(_) => Needs::empty(),
        };
    }
    if item.bp.dmu_type() != DmuType::DIRECTORY_CONTENTS {
        return Needs::empty();
    }
    let Ok(leaf) = Leaf::parse(bytes, order) else { return Needs::empty() };
    // Stored with a zero at the end.
    let lengths = leaf.entries().flatten().map(|entry| usize::from(entry.name_count).saturating_sub(1));
    lengths.fold(Needs::empty(), |needs, len| needs | Needs::of_name(len))
}

/// Without its key an encrypted block stays as it is. One that holds pointers has them in the clear: only bonuses of dnodes are encrypted.
fn is_opaque(item: &Item) -> bool {
    item.bp.is_encrypted() && item.origin.key.is_none()
}

/// The pointers in a block whose physical bytes are these.
pub(crate) fn pointers(pool: &View, item: &Item, physical: &Block, visited: &mut Visited) {
    let context = ReadContext::new(item.bookmark, item.origin.key.as_deref()).of_class(QueueClass::Scrub);
    let logical = match is_opaque(item) {
        true => Ok(physical.clone()),
        false => pool.dmu().zio().logical_of(&item.bp, context, physical),
    };
    let found = logical.map_err(VisitError::from).and_then(|logical| children(item, &logical, visited));
    visited.error = found.err();
}

/// The pointers in a block that are born late enough to belong to this walk, and the features that its dnodes need.
fn children(item: &Item, bytes: &Block, visited: &mut Visited) -> Result<(), VisitError> {
    let Visited { children: into, needs, .. } = visited;
    let order = item.bp.byte_order();
    let bookmark = item.bookmark;
    let resume = item.origin.resume;
    if bookmark.level == Bookmark::LEVEL_OBJSET {
        let phys = ObjsetPhys::parse(bytes, order)?;
        *needs |= Needs::of_objset(phys.flags);
        // Bookmarks are compared by the numbers of objects that a block of dnodes has in all of OpenZFS's pools. In another tree a walk
        // does not stop.
        let without_stops;
        let has_stops = u64::from(phys.meta_dnode.data_block_bytes()) == OBJECTS_PER_BLOCK * SLOT_BYTES as u64;
        let item = if has_stops {
            item
        } else {
            let origin = Origin { start: Start::Fresh, has_stops, ..Origin::clone(&item.origin) };
            without_stops = Item { origin: Arc::new(origin), ..item.clone() };
            &without_stops
        };
        dnode_pointers(item, ObjectId(0), &phys.meta_dnode, into);
        // By number, as objects come.
        let special = [&phys.projectused_dnode, &phys.groupused_dnode, &phys.userused_dnode];
        for (index, dnode) in (0..3).rev().zip(special) {
            if let Some(dnode) = dnode {
                dnode_pointers(item, ObjectId(u64::MAX - index), dnode, into);
            }
        }
        return Ok(());
    }
    if bookmark.level > 0 {
        let count = bytes.len() as u64 / Blkptr::SIZE as u64;
        let first = bookmark.block.0.saturating_mul(count);
        for (index, bp) in Blkptr::array(bytes, order).enumerate() {
            let block = BlockId(first.saturating_add(index as u64));
            let below = Bookmark { level: bookmark.level - 1, block, ..bookmark };
            push(item, bp, below, count.max(1).ilog2(), into);
        }
        return Ok(());
    }
    if resume.is_some_and(|resume| resume.is_at(bookmark.object.0, 0, bookmark.block.0)) {
        return Ok(());
    }
    let slots = bytes.len() as u64 / SLOT_BYTES as u64;
    let mut problem = Ok(());
    for (slot, dnode) in dnodes_in_block(bytes, order) {
        let object = ObjectId(bookmark.block.0.saturating_mul(slots).saturating_add(slot as u64));
        match dnode {
            Ok(view) => {
                *needs |= Needs::of_slots(view.slots());
                dnode_pointers(item, object, &view.to_value(), into);
            }
            Err(source) => problem = Err(VisitError::Dnode { object, source }),
        }
    }
    problem
}

fn dnode_pointers(item: &Item, object: ObjectId, dnode: &DnodePhys, into: &mut Vec<Item>) {
    let objset = item.origin.objset;
    if item.origin.resume.is_some_and(|resume| resume.is_past_object(object.0)) {
        return;
    }
    let shift = dnode.blkptrs_per_indirect_shift();
    let level = i8::try_from(dnode.levels).unwrap_or(i8::MAX) - 1;
    for (index, bp) in dnode.blkptrs().iter().enumerate() {
        push(item, *bp, Bookmark { objset, object, level, block: BlockId(index as u64) }, shift, into);
    }
    if let Some(spill) = dnode.spill {
        // A spill block has no place in the tree of blocks; its id is out of the way of any.
        push(item, spill, Bookmark { objset, object, level: 0, block: BlockId(SPILL_BLOCK) }, shift, into);
    }
}

/// `shift`: pointers in an indirect block of the object, as a power of two.
fn push(parent: &Item, bp: Blkptr, bookmark: Bookmark, shift: u32, into: &mut Vec<Item>) {
    let origin = &parent.origin;
    if bp.is_hole() || bp.is_redacted() || bp.birth() <= origin.min_txg {
        return;
    }
    let (object, level, block) = (bookmark.object.0, bookmark.level.unsigned_abs(), bookmark.block.0);
    if origin.resume.is_some_and(|resume| resume.is_past(object, level, block, shift)) {
        return;
    }
    let (is_known, is_known_below) = match origin.start {
        Start::Fresh => (false, false),
        Start::From(stop) => (stop.is_before(object, level, block, shift), stop.is_past(object, level, block, shift)),
        Start::Done => (true, true),
    };
    if is_known_below && !origin.keeps_known {
        return;
    }
    let item = Item { bp, bookmark, origin: origin.clone(), is_known };
    // By what is on disk: a cloned or deduplicated block is older than the pointer, and the walk may not have met it elsewhere.
    if origin.max_txg.is_some_and(|max_txg| bp.physical_birth() > max_txg) && !is_tree(&item) {
        return;
    }
    into.push(item);
}

/// The ranges that a block takes: each of its copies; of a gang, each copy of the header, and the pieces once, since all
/// copies of a header point to the same pieces; on a removed vdev, where its mapping leads.
pub(crate) async fn claims_of(pool: &View, bp: &Blkptr) -> Result<Vec<Claim>, VisitError> {
    let mut claims = Vec::new();
    let mut pending = vec![(*bp, 0)];
    while let Some((bp, depth)) = pending.pop() {
        let mut header_at = None;
        for dva in bp.dvas() {
            let size_bytes = if dva.gang { gang_header_asize(pool, dva)? } else { dva.asize_bytes };
            place(pool, dva.vdev, dva.offset_bytes, size_bytes, &mut claims).await?;
            if dva.gang {
                header_at.get_or_insert(dva);
            }
        }
        let Some(first) = header_at else { continue };
        if depth > gang::DEPTH_MAX {
            return Err(VisitError::GangTooDeep { header: first });
        }
        let mut header = gang::read_header(pool.dmu().zio(), &bp, first).await;
        for dva in bp.dvas().skip(1) {
            if header.is_err() {
                header = gang::read_header(pool.dmu().zio(), &bp, dva).await;
            }
        }
        let header = header?;
        // The sum of the pieces' sizes bounds their number: at most as many as the block has sectors, on each level.
        let psize_bytes = bp.psize_bytes();
        let pieces_bytes = header.children().fold(0, |sum: u64, piece| sum.saturating_add(piece.psize_bytes()));
        if pieces_bytes > psize_bytes {
            return Err(VisitError::GangTooLarge { header: first, pieces_bytes, psize_bytes });
        }
        pending.extend(header.children().map(|piece| (*piece, depth + 1)));
    }
    debug_assert!(claims.iter().all(|claim| claim.range.start <= claim.range.end), "a claim is a range of its vdev");
    Ok(claims)
}

/// The range of one plain copy.
pub(crate) async fn claim_of_copy(pool: &View, dva: Dva) -> Result<Vec<Claim>, VisitError> {
    let mut claims = Vec::new();
    place(pool, dva.vdev, dva.offset_bytes, dva.asize_bytes, &mut claims).await?;
    Ok(claims)
}

fn gang_header_asize(pool: &View, dva: Dva) -> Result<u64, VisitError> {
    let asize = pool.tree().psize_to_asize(dva.vdev, GANG_HEADER_BYTES as u64, Txg(0));
    asize.ok_or(VisitError::NoSuchVdev { vdev: dva.vdev })
}

/// Where a range lies in the end: a removed vdev's ranges lie where they were copied to.
async fn place(
    pool: &View,
    vdev: VdevId,
    offset_bytes: u64,
    size_bytes: u64,
    into: &mut Vec<Claim>,
) -> Result<(), VisitError> {
    let ranges = pool.placed(vdev, offset_bytes, size_bytes).await?;
    into.extend(ranges.into_iter().map(|(vdev, range)| Claim { vdev, range }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data that was cloned after the walk had begun is as old as what it was cloned from.
    #[test]
    fn only_data_that_was_written_later_is_left_out() {
        let origin = Origin {
            tree: 0,
            objset: ObjsetId(54),
            key: None,
            min_txg: Txg(3),
            max_txg: Some(Txg(10)),
            resume: None,
            start: Start::Fresh,
            keeps_known: false,
            has_stops: true,
        };
        let parent = Item::root(Blkptr::from_words([1; 16]), origin);
        let at = Bookmark { objset: ObjsetId(54), object: ObjectId(7), level: 0, block: BlockId(0) };
        let is_visited = |logical, physical| {
            let mut bp = Blkptr::from_words([0; 16]);
            bp.set_dva(0, Some(Dva { vdev: VdevId(0), offset_bytes: 4096, asize_bytes: 512, gang: false }));
            bp.set_births(Txg(logical), Txg(physical));
            let mut into = Vec::new();
            push(&parent, bp, at, 10, &mut into);
            !into.is_empty()
        };
        assert!(is_visited(10, 10) && !is_visited(11, 11), "by its birth");
        assert!(is_visited(12, 8), "cloned or deduplicated");
        assert!(!is_visited(3, 3), "the snapshot's");
    }
}
