//! Reading removed vdevs: where the mapping says, split by split.
//!
//! When a top-level vdev is removed, its allocated ranges are copied to other vdevs, and block pointers that name it stay as
//! they are. A mapping in the MOS says where each range went. A block may have been split, so that its parts lie on
//! different vdevs; the checksum covers only the whole.
//!
//! ```text
//!   block on the removed vdev   |-------------- offset, size ---------------|
//!   segments of the mapping     |--- vdev 2 ---|------ vdev 0 ------|- v. 2 -|     each on a mirror or a leaf
//! ```
//!
//! A vdev that took blocks may itself be removed later, so a segment may lead to another mapping.
//!
//! A single segment is verified copy by copy, like any mirror. Several are read from any copy and verified as a
//! whole; if that fails, all different copies of each are gathered and combinations tried.

use std::fmt;

use cenote_format::ids::VdevId;
use cenote_format::label::START_BYTES;
use cenote_taskq::boxed;
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::yield_now;

use super::copies::CopiesReport;
use super::node::{Kind, Node};
use super::{Check, Depth, Extent, Faults, ReadContext, Seen, Topology};
use crate::error::VdevError;
use crate::fault::{Compared, FaultKind};

/// How many segments one block may be split into, over all mappings: as many as it has 512-byte sectors is absurd, and this
/// is still far more than removal makes.
const SEGMENTS_MAX: usize = 4096;
/// How many mappings one range may lead through.
const CHAIN_MAX: usize = 64;
/// How many combinations of copies are tried (`zfs_reconstruct_indirect_combinations_max`).
const COMBINATIONS_MAX: u64 = 4096;
/// Combinations between two looks at what else is to do.
const COMBINATIONS_PER_TURN: u64 = 16;

/// Where a piece of a removed vdev's range went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset on the removed vdev.
    pub offset_bytes: u64,
    /// Length.
    pub size_bytes: u64,
    /// The vdev that it was copied to.
    pub target: VdevId,
    /// Offset there.
    pub target_offset_bytes: u64,
}

/// The mappings of removed vdevs, which the pool reads from its MOS.
pub trait IndirectMap: Send + Sync + fmt::Debug {
    /// The segments that cover a range of a removed vdev, ascending, cut to the range, without gaps.
    #[boxed]
    async fn segments(&self, vdev: VdevId, offset_bytes: u64, size_bytes: u64) -> Result<Vec<Segment>, VdevError>;
}

/// A piece of a block at its final place.
struct Piece<'a> {
    node: &'a Node,
    extent: Extent,
    /// Its place in the block.
    start: usize,
    /// All its different copies, with the leaves that have each; gathered when needed.
    copies: Vec<(Buf, Vec<&'a Node>)>,
}

impl Topology {
    /// Reads a range of a removed vdev.
    pub(super) async fn read_indirect(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        len: u64,
        check: Check<'_>,
        context: ReadContext<'_>,
    ) -> Result<Buf, VdevError> {
        let mut pieces = self.resolve(vdev, offset_bytes, len).await?;
        let mut faults = Faults::default();
        let verify_here = pieces.len() == 1;
        let mut block = Buf::zeroed(len as usize);
        let mut complete = true;
        for piece in &pieces {
            let check = verify_here.then_some(check);
            match self.read_nested(piece.node, piece.extent, check, context, Depth::START).await {
                Ok(buf) => block[piece.start..piece.start + buf.len()].copy_from_slice(&buf),
                Err(more) => {
                    faults.extend(more);
                    complete = false;
                }
            }
        }
        let passed = complete && (verify_here || check.passes(&block));
        if passed || (complete && self.try_copies(&mut pieces, &mut block, check, &mut faults, context).await) {
            block.truncate(check.size);
            return Ok(block);
        }
        let top = self.tops.get(vdev.0 as usize).ok_or(VdevError::NoSuchVdev(vdev))?;
        Err(self.unreadable(self.node(top.node), vdev, offset_bytes, check.size as u64, faults, context))
    }

    /// Compares every copy of every piece with the block.
    pub(super) async fn indirect_copies(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        len: u64,
        check: Check<'_>,
        context: ReadContext<'_>,
    ) -> Result<CopiesReport, VdevError> {
        // The comparison below reports the faults, copy by copy; reported here too, they would be counted twice.
        let block = self.read_indirect(vdev, offset_bytes, len, check, context.speculative()).await?;
        let mut report = CopiesReport { block, read_count: 0, bad: Vec::new() };
        for piece in self.resolve(vdev, offset_bytes, len).await? {
            let end = (piece.start + piece.extent.len as usize).min(report.block.len());
            let truth = Buf::copied_from(&report.block[piece.start.min(end)..end]);
            self.compare_leaves(piece.node, piece.extent, &truth, &mut report, context).await;
        }
        // It was read from somewhere, even if no device gives it a second time.
        report.read_count = report.read_count.max(1);
        Ok(report)
    }

    /// The final places of a block, with the bytes that belong there.
    pub(super) async fn indirect_places(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        block: &Block,
    ) -> Result<Vec<(&Node, Extent, Block)>, VdevError> {
        let pieces = self.resolve(vdev, offset_bytes, block.len() as u64).await?;
        let bytes = |piece: &Piece<'_>| block.slice(piece.start..piece.start + piece.extent.len as usize);
        Ok(pieces.iter().map(|piece| (piece.node, piece.extent, bytes(piece))).collect())
    }

    /// The final places of a range, in its order.
    async fn resolve(&self, vdev: VdevId, offset_bytes: u64, len: u64) -> Result<Vec<Piece<'_>>, VdevError> {
        let map = self.common.indirect.get().ok_or_else(|| bad_mapping(vdev, "it is not loaded yet"))?;
        // Ranges still to be looked up, the next one last.
        let mut todo = vec![(vdev, offset_bytes, len, 0)];
        let mut pieces = Vec::new();
        let mut start = 0;
        while let Some((vdev, offset, len, links)) = todo.pop() {
            if pieces.len() + todo.len() >= SEGMENTS_MAX {
                return Err(bad_mapping(vdev, "a block is split into too many pieces"));
            }
            let top = self.tops.get(vdev.0 as usize).ok_or(VdevError::NoSuchVdev(vdev))?;
            let node = self.node(top.node);
            match &node.kind {
                Kind::Indirect => {
                    if links >= CHAIN_MAX {
                        return Err(bad_mapping(vdev, "mappings lead through each other without end"));
                    }
                    let segments = map.segments(vdev, offset, len).await?;
                    check_cover(vdev, offset, len, &segments)?;
                    let next = segments.iter().rev();
                    todo.extend(next.map(|s| (s.target, s.target_offset_bytes, s.size_bytes, links + 1)));
                }
                Kind::Leaf(_) | Kind::Mirror if !self.has_stripe(node) => {
                    let address = offset
                        .checked_add(START_BYTES)
                        .ok_or_else(|| bad_mapping(vdev, "a target lies beyond any device"))?;
                    pieces.push(Piece { node, extent: Extent { address, len }, start, copies: Vec::new() });
                    start += len as usize;
                }
                Kind::Missing => return Err(VdevError::Missing(vdev)),
                Kind::Leaf(_) | Kind::Mirror | Kind::Raidz(_) | Kind::Draid(_) => {
                    return Err(bad_mapping(vdev, "blocks are never moved to raidz or draid"));
                }
                Kind::Hole | Kind::DraidSpare { .. } => return Err(VdevError::NoSuchVdev(vdev)),
            }
        }
        Ok(pieces)
    }

    /// Whether a vdev is a stripe or a mirror of some. As deep as the configuration, which is bounded.
    fn has_stripe(&self, node: &Node) -> bool {
        matches!(node.kind, Kind::Raidz(_) | Kind::Draid(_))
            || node.children.iter().any(|child| self.has_stripe(self.node(*child)))
    }

    /// Tries combinations of the pieces' copies until the block verifies, and reports the copies that were wrong.
    async fn try_copies<'a>(
        &'a self,
        pieces: &mut [Piece<'a>],
        block: &mut Buf,
        check: Check<'_>,
        faults: &mut Faults,
        context: ReadContext<'_>,
    ) -> bool {
        for piece in pieces.iter_mut() {
            for leaf in self.holders_at(piece.node, piece.extent.address) {
                match self.read_one(leaf, piece.extent, None, context).await {
                    Ok(buf) => match piece.copies.iter_mut().find(|(known, _)| known[..] == buf[..]) {
                        Some((_, leaves)) => leaves.push(leaf),
                        None => piece.copies.push((buf, vec![leaf])),
                    },
                    Err(more) => faults.extend(more),
                }
            }
            if piece.copies.is_empty() {
                return false;
            }
        }
        let mut choice = vec![0; pieces.len()];
        for attempt in 1..=COMBINATIONS_MAX {
            let is_copy = |(piece, chosen): (&Piece<'_>, &usize)| *chosen < piece.copies.len();
            debug_assert!(pieces.iter().zip(&choice).all(is_copy), "each choice is among the copies of its piece");
            for (piece, chosen) in pieces.iter().zip(&choice) {
                let (bytes, _) = &piece.copies[*chosen];
                block[piece.start..piece.start + bytes.len()].copy_from_slice(bytes);
            }
            if check.passes(block) {
                self.report_unchosen(pieces, Some(&choice), faults, context);
                return true;
            }
            if !next_choice(&mut choice, |index| pieces[index].copies.len()) {
                break;
            }
            if attempt % COMBINATIONS_PER_TURN == 0 {
                yield_now().await;
            }
        }
        self.report_unchosen(pieces, None, faults, context);
        false
    }

    /// Reports the copies that are not those chosen; all of them where none was found to be right.
    fn report_unchosen(
        &self,
        pieces: &[Piece<'_>],
        choice: Option<&[usize]>,
        faults: &mut Faults,
        context: ReadContext<'_>,
    ) {
        debug_assert!(choice.is_none_or(|choice| choice.len() == pieces.len()), "each piece has one copy chosen");
        for (index, piece) in pieces.iter().enumerate() {
            let chosen = choice.map(|choice| choice[index]);
            let good = chosen.map(|chosen| &piece.copies[chosen].0);
            for (_, (bad, leaves)) in piece.copies.iter().enumerate().filter(|(copy, _)| Some(*copy) != chosen) {
                let compared = good.map(|good| Compared::whole(good, bad));
                for leaf in leaves {
                    let seen = Seen::Compared(compared.as_slice());
                    faults.add(self.report_seen(leaf, piece.extent, FaultKind::Checksum, context, seen));
                }
            }
        }
    }
}

fn bad_mapping(vdev: VdevId, reason: &str) -> VdevError {
    VdevError::BadMapping { vdev, reason: reason.into() }
}

/// Whether the segments are exactly the range.
fn check_cover(vdev: VdevId, offset_bytes: u64, len: u64, segments: &[Segment]) -> Result<(), VdevError> {
    let mut next = offset_bytes;
    for segment in segments {
        if segment.offset_bytes != next || segment.size_bytes == 0 {
            return Err(VdevError::Unmapped { vdev, offset_bytes: next });
        }
        next = next
            .checked_add(segment.size_bytes)
            .filter(|end| *end <= offset_bytes.saturating_add(len))
            .ok_or_else(|| bad_mapping(vdev, "a segment reaches beyond the range that was asked for"))?;
    }
    if next == offset_bytes.saturating_add(len) {
        Ok(())
    } else {
        Err(VdevError::Unmapped { vdev, offset_bytes: next })
    }
}

/// Steps a number with a digit for each piece, the last digit fastest; `false` after the last.
fn next_choice(choice: &mut [usize], base: impl Fn(usize) -> usize) -> bool {
    for index in (0..choice.len()).rev() {
        choice[index] += 1;
        if choice[index] < base(index) {
            return true;
        }
        choice[index] = 0;
    }
    false
}
