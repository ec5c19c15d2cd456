//! Scrubbing a block: every copy and column is read and verified, and those that are bad are written again.
//!
//! # Theory
//!
//! **Need.** A scrub, a resilver and self-healing do the same to a block; they differ in which blocks they come to, and when. The hard part
//! is not to write: a block that was freed meanwhile may have lost its place to another one, which a repair would destroy, and no checksum
//! of the old block would tell. On a leaf that lost a write, the *old* block verifies in the place of the new one.
//!
//! **The rule.** A block is written again only through a pipeline that has a [`Keeper`]: a txg whose blocks are not used again while it is
//! held. The caller's part is that the pointer is one of that txg, found in the tree of its root. Both together say that the place is the
//! block's, that the txg which wrote it is on disk, so that no write of it is under way, and that no other block gets the place before the
//! repair has ended. A walk of a view has such pointers. A reader of the open state has not: its block may be freed, or not on disk yet. So a
//! reader only tells of damage ([`Zio::when_damaged`]); who mends it looks the block up again, by its bookmark, in a txg that it keeps.
//!
//! **Life of one** ([`Zio::scrub_block`]).
//! ```text
//! each copy: every leaf or column is read ─► all right? ─ yes ─► done: nothing else is read or written
//!                                              │ no, and one copy is good
//!              hold the txg ─► each place: compare with the good bytes, write what differs, read it back     (`cenote_vdev`, `mend`)
//! ```
//! A gang is its headers, whose copies are all the same bytes, and its pieces, each a block with copies.
//!
//! **Invariants.**
//! 1. Only bytes that pass the pointer's checksum are written (asserted), and only while the txg is held.
//! 2. A pointer whose birth is later than the kept txg is none of its blocks: nothing is written for it.
//! 3. What was found bad is counted once for each leaf and block, by the reader or here.
//!
//! **Rejected.** *To ask the allocator whether the place is allocated*: it is, to the block that has it now. *To compare birth times with the
//! last txg on disk*: a pointer may have waited in a reader's hands for longer than freed space is kept.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use cenote_format::FormatError;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::gang::GangHeader;
use cenote_format::ids::{Guid, Txg};
use cenote_taskq::boxed;
use cenote_taskq::buf::{Block, Buf};
use cenote_vdev::error::VdevError;
use cenote_vdev::fault::{About, FaultKind};
use cenote_vdev::queue::QueueClass;
use cenote_vdev::tree::{CopiesReport, Damage, Mend, Mended, ReadContext as Place};

use crate::gang;
use crate::read::about;
use crate::{Bookmark, ReadContext, Zio, ZioError, ZioErrorKind};

/// Damaged blocks that are remembered until somebody wants to be told of them: a pool is read before it is open to be written.
const TOLD_LATE_MAX: usize = 256;

/// Keeps the blocks of a txg from being used again.
pub trait Keeper: Send + Sync {
    /// The txg.
    fn txg(&self) -> Txg;

    /// Whether its blocks are kept still.
    fn is_kept(&self) -> bool;

    /// Has them be kept for certain until what this returns is dropped, which is to be soon. `None` if they are not kept any more.
    fn hold(self: Arc<Self>) -> Option<Box<dyn Send>>;
}

/// A block that was read, though some copy or column of it was bad.
#[derive(Clone, Debug)]
pub struct Damaged {
    /// Its pointer.
    pub bp: Blkptr,
    /// Where it belongs.
    pub bookmark: Bookmark,
    /// The leaves that were charged with it.
    pub charged: Vec<Guid>,
}

/// The result of reading every copy of a block.
#[derive(Debug)]
pub struct Copies {
    /// The physical bytes, verified; always there in a result.
    pub physical: Option<Block>,
    /// Copies and columns read and compared.
    pub read_count: usize,
    /// The faults found, each with its place; the block was still readable.
    pub bad: Vec<String>,
}

/// Why something that is bad was not written again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmended {
    /// Nobody keeps blocks of this pipeline: its pool is only read.
    #[error("the pool is only read")]
    ReadOnly,
    /// The block is none of the txg that is kept, this one.
    #[error("it was born after txg {0}, which is kept")]
    Later(Txg),
    /// Places of the txg's blocks are used again.
    #[error("blocks of txg {0} are used again")]
    NotKept(Txg),
    /// Devices are being changed, or the pool is suspended: the same may be mended when that is over.
    #[error("{0}")]
    Refused(String),
    /// The vdev cannot be mended there.
    #[error("{0}")]
    Impossible(String),
}

impl Unmended {
    fn of(error: &VdevError) -> Self {
        match error {
            VdevError::Suspended(_) => Self::Refused(error.to_string()),
            _ => Self::Impossible(error.to_string()),
        }
    }
}

/// The result of scrubbing a block.
#[derive(Debug)]
pub struct Scrubbed {
    /// The findings, before anything was written.
    pub copies: Copies,
    /// The bytes that were written again, leaf by leaf, and the faults that stay.
    pub mended: Mended,
    /// Why something that is bad was not written. Of several reasons, the one that passes.
    pub unmended: Option<Unmended>,
}

impl Scrubbed {
    /// Whether the block has all its redundancy now, as far as its devices are there.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.unmended.is_none() && self.mended.left.is_empty()
    }

    /// Whether something was not written that may be when devices are not changed any more, or the pool is not suspended: the block is to be
    /// visited again.
    #[must_use]
    pub const fn is_refused(&self) -> bool {
        matches!(self.unmended, Some(Unmended::Refused(_)))
    }

    fn leave(&mut self, reason: Unmended) {
        if !self.is_refused() {
            self.unmended = Some(reason);
        }
    }
}

/// All that was found of a block.
struct Found {
    copies: Copies,
    /// Bytes that verified, with the places where each of their copies belongs.
    truths: Vec<Truth>,
    /// Something was bad that writing may mend.
    is_damaged: bool,
    /// A copy was bad on a leaf that should have it.
    is_wrong: bool,
}

struct Truth {
    dvas: Vec<Dva>,
    bytes: Block,
    birth: Txg,
}

impl Found {
    fn new() -> Self {
        let copies = Copies { physical: None, read_count: 0, bad: Vec::new() };
        Self { copies, truths: Vec::new(), is_damaged: false, is_wrong: false }
    }

    /// Takes in what was read of one copy; its bytes.
    fn take(&mut self, read: Result<CopiesReport, VdevError>) -> Result<Buf, ZioErrorKind> {
        let is_mendable = |kind: FaultKind| kind.is_damage() || kind == FaultKind::Stale;
        match read {
            Ok(report) => {
                self.copies.read_count += report.read_count;
                self.copies.bad.extend(report.bad.iter().map(ToString::to_string));
                self.is_damaged |= report.bad.iter().any(|fault| is_mendable(fault.kind));
                self.is_wrong |= report.bad.iter().any(|fault| fault.kind.is_damage());
                Ok(report.block)
            }
            Err(last) => {
                self.is_damaged |= match &last {
                    VdevError::Unreadable { faults, .. } => faults.iter().any(|fault| is_mendable(fault.kind)),
                    _ => false,
                };
                self.is_wrong = true;
                let error = ZioErrorKind::NoGoodCopy { copies: 1, last };
                self.copies.bad.push(error.to_string());
                Err(error)
            }
        }
    }
}

type Finding<'a> = Pin<Box<dyn Future<Output = Result<Found, ZioErrorKind>> + Send + 'a>>;

impl Zio {
    /// Has `damaged` told of every block of which a reader found a copy or column bad; also of those that were found before, as many as are
    /// remembered. Only the first call has an effect.
    pub fn when_damaged(&self, damaged: impl Fn(Damaged) + Send + Sync + 'static) {
        let _ = self.shared.when_damaged.set(Box::new(damaged));
        let before = std::mem::take(&mut *self.shared.damaged_before.lock());
        if let Some(tell) = self.shared.when_damaged.get() {
            before.into_iter().for_each(tell);
        }
    }

    /// Tells of a block that a reader found damaged.
    pub(crate) fn found_damaged(&self, bp: &Blkptr, bookmark: Bookmark, damage: &Damage) {
        let damaged = Damaged { bp: *bp, bookmark, charged: damage.leaves() };
        if let Some(tell) = self.shared.when_damaged.get() {
            return tell(damaged);
        }
        let mut before = self.shared.damaged_before.lock();
        if before.len() < TOLD_LATE_MAX {
            before.push(damaged);
        }
    }

    /// Reads every copy of the block, with every mirror child and parity column of each, and says which are bad. The
    /// physical bytes are from the first good copy.
    #[boxed]
    pub async fn read_copies(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Copies, ZioError> {
        let place = Place::new(bp.physical_birth()).of_class(context.class);
        Ok(self.find_copies(bp, context, place).await?.copies)
    }

    /// The same, and has what is bad written again if this pipeline keeps the txg that the pointer is of ([`Zio::while_kept`]).
    ///
    /// # Errors
    /// No copy is good.
    #[boxed]
    pub async fn scrub_block(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Scrubbed, ZioError> {
        let damage = Damage::of(about(bp, context.bookmark));
        let place = Place::new(bp.physical_birth()).of_class(context.class).noting(&damage);
        let found = self.find_copies(bp, context, place).await?;
        let about = about(bp, context.bookmark);
        Ok(self.mend(found, about, context.class, Some(damage.leaves()), false).await)
    }

    /// The same in a resilver: leaves that have missed the block are not read, and are written. Where something else is bad, all is compared and mended.
    ///
    /// # Errors
    /// No copy is good.
    #[boxed]
    pub async fn resilver_block(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Scrubbed, ZioError> {
        let damage = Damage::of(about(bp, context.bookmark));
        let place = Place::new(bp.physical_birth()).of_class(context.class).noting(&damage);
        let found = match self.find_copies(bp, context, place.past_lacking()).await {
            Ok(found) => found,
            // A leaf that has missed the block may have it all the same.
            Err(_) => self.find_copies(bp, context, place).await?,
        };
        let is_resilver = !found.is_wrong;
        let about = about(bp, context.bookmark);
        Ok(self.mend(found, about, context.class, Some(damage.leaves()), is_resilver).await)
    }

    /// The same for a block that a reader has found damaged: what the reader charged leaves with is not counted again, and without `charged`
    /// nothing is counted.
    ///
    /// # Errors
    /// No copy is good any more.
    #[boxed]
    pub async fn mend_block(
        &self,
        bp: &Blkptr,
        context: ReadContext<'_>,
        charged: Option<Vec<Guid>>,
    ) -> Result<Scrubbed, ZioError> {
        let place = Place::new(bp.physical_birth()).of_class(context.class).speculative();
        let found = self.find_copies(bp, context.ahead().of_class(context.class), place).await?;
        Ok(self.mend(found, about(bp, context.bookmark), context.class, charged, false).await)
    }

    async fn find_copies(&self, bp: &Blkptr, context: ReadContext<'_>, place: Place<'_>) -> Result<Found, ZioError> {
        let fail = |kind: ZioErrorKind| self.failed(bp, context, kind);
        self.check_readable(bp).map_err(fail)?;
        let mut headers_left = gang::headers_max(usize::try_from(bp.psize_bytes()).unwrap_or(usize::MAX));
        let found = self.copies_of(bp, place, 0, &mut headers_left).await.map_err(fail)?;
        assert!(found.copies.read_count > 0, "a block that is readable was read from somewhere");
        Ok(found)
    }

    fn copies_of<'a>(
        &'a self,
        bp: &'a Blkptr,
        place: Place<'a>,
        depth: usize,
        headers_left: &'a mut usize,
    ) -> Finding<'a> {
        Box::pin(async move {
            if bp.is_gang() {
                return self.copies_of_gang(bp, place, depth, headers_left).await;
            }
            let unknown = || ZioErrorKind::UnknownAlgorithm { what: "checksum", number: bp.checksum_number() };
            let kind = bp.checksum().ok_or_else(unknown)?;
            let verify = |bytes: &[u8]| self.checksum_matches(bp, kind, bytes);
            let place = place.of_birth(bp.physical_birth());
            let (mut found, mut last) = (Found::new(), ZioErrorKind::Hole);
            for dva in bp.dvas() {
                let read = self.tree().read_copies(dva.vdev, dva.offset_bytes, bp.psize_bytes(), &verify, &place).await;
                match found.take(read) {
                    Ok(buf) => found.copies.physical = found.copies.physical.take().or_else(|| Some(buf.freeze())),
                    Err(error) => last = error,
                }
            }
            let Some(bytes) = found.copies.physical.clone() else { return Err(last) };
            place.right(&bytes);
            found.truths.push(Truth { dvas: bp.dvas().collect(), bytes, birth: bp.physical_birth() });
            Ok(found)
        })
    }

    async fn copies_of_gang(
        &self,
        bp: &Blkptr,
        place: Place<'_>,
        depth: usize,
        headers_left: &mut usize,
    ) -> Result<Found, ZioErrorKind> {
        let malformed = |what| ZioErrorKind::from(FormatError::malformed("gang header", 0, what));
        if depth >= gang::DEPTH_MAX {
            return Err(malformed("headers nested deeper than any block needs"));
        }
        let (mut found, mut last) = (Found::new(), ZioErrorKind::Hole);
        let mut header: Option<Block> = None;
        let place = place.of_birth(bp.physical_birth());
        let dvas: Vec<Dva> = bp.dvas().collect();
        let Some(left) = headers_left.checked_sub(dvas.len()) else {
            return Err(malformed("more headers than any block needs"));
        };
        *headers_left = left;
        // A first copy that can be had says how long they are.
        let mut size_bytes = None;
        for dva in &dvas {
            if let Ok(bytes) = gang::header_bytes(self, bp, *dva, place.speculative().unnoted()).await {
                size_bytes = Some(bytes.len() as u64);
                break;
            }
        }
        let size_bytes = size_bytes.unwrap_or(gang::OLD_HEADER_BYTES);
        let verify = |bytes: &[u8]| gang::is_header(bp, bytes);
        for dva in &dvas {
            let read = self.tree().read_copies(dva.vdev, dva.offset_bytes, size_bytes, &verify, &place).await;
            match found.take(read) {
                Ok(buf) => header = header.take().or_else(|| Some(buf.freeze())),
                Err(error) => last = error,
            }
        }
        let Some(header) = header else { return Err(last) };
        place.right(&header);
        let pieces = GangHeader::parse(&header, bp.byte_order())?;
        found.truths.push(Truth { dvas, bytes: header, birth: bp.physical_birth() });
        let mut physical = Buf::unfilled(usize::try_from(bp.psize_bytes()).unwrap_or(usize::MAX));
        let mut at = 0_usize;
        for piece in pieces.children().filter(|piece| !piece.is_hole()) {
            if piece.is_embedded() || piece.is_redacted() {
                return Err(malformed("a piece is no plain block"));
            }
            let size = usize::try_from(piece.psize_bytes()).unwrap_or(usize::MAX);
            let end = at.checked_add(size).filter(|end| *end <= physical.len());
            let Some(end) = end else { return Err(malformed("the pieces exceed the block's size")) };
            let below = self.copies_of(piece, place, depth + 1, headers_left).await?;
            let Some(bytes) = &below.copies.physical else { return Err(ZioErrorKind::Hole) };
            physical[at..end].copy_from_slice(bytes);
            at = end;
            found.copies.read_count += below.copies.read_count;
            found.copies.bad.extend(below.copies.bad);
            found.truths.extend(below.truths);
            found.is_damaged |= below.is_damaged;
            found.is_wrong |= below.is_wrong;
        }
        if at != physical.len() {
            return Err(malformed("the pieces do not add up to the block's size"));
        }
        found.copies.physical = Some(physical.freeze());
        Ok(found)
    }

    /// Has all places of what was found be right, if something is not.
    async fn mend(
        &self,
        found: Found,
        about: About,
        class: QueueClass,
        charged: Option<Vec<Guid>>,
        is_resilver: bool,
    ) -> Scrubbed {
        let Found { copies, truths, is_damaged, .. } = found;
        let mut scrubbed = Scrubbed { copies, mended: Mended::default(), unmended: None };
        if !is_damaged {
            return scrubbed;
        }
        let Some(keeper) = &self.keeper else {
            scrubbed.leave(Unmended::ReadOnly);
            return scrubbed;
        };
        for Truth { dvas, bytes, birth } in truths {
            for dva in dvas {
                if birth > keeper.txg() {
                    scrubbed.leave(Unmended::Later(keeper.txg()));
                    continue;
                }
                let Some(hold) = keeper.clone().hold() else {
                    scrubbed.leave(Unmended::NotKept(keeper.txg()));
                    return scrubbed;
                };
                let block = self.in_sectors(dva.vdev, &bytes);
                let size_bytes = bytes.len() as u64;
                let mend = Mend {
                    vdev: dva.vdev,
                    offset_bytes: dva.offset_bytes,
                    block,
                    size_bytes,
                    birth,
                    class,
                    is_resilver,
                    charged: charged.clone(),
                    about,
                };
                match self.tree().mend(mend, hold).await {
                    Ok(mended) => scrubbed.mended.absorb(mended),
                    Err(error) => scrubbed.leave(Unmended::of(&error)),
                }
            }
        }
        scrubbed
    }
}
