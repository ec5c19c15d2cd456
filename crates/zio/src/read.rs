//! Reading: copies in turn, each verified, then made logical.

use cenote_codec::checksum;
use cenote_format::blkptr::{Blkptr, DVAS_PER_BLKPTR, Dva};
use cenote_format::dmu_type::DmuType;
use cenote_format::endian::Endian;
use cenote_format::enums::Checksum;
use cenote_format::ids::{BlockId, ObjsetId, VdevId};
use cenote_taskq::boxed;
use cenote_taskq::buf::{Block, Buf};
use cenote_vdev::fault::About;
use cenote_vdev::queue::QueueClass;
use cenote_vdev::tree::{Damage, ReadContext as Place};

use crate::gang;
use crate::mutation::handed_out;
use crate::transform;
use crate::{Bookmark, ReadContext, Zio, ZioError, ZioErrorKind};

/// The place of a log block in messages: its first copy's offset stands for the block's number.
pub(crate) fn log_bookmark(bp: &Blkptr) -> Bookmark {
    let at = BlockId(bp.dva(0).map_or(0, |dva| dva.offset_bytes));
    Bookmark { level: Bookmark::LEVEL_ZIL, block: at, ..Bookmark::objset(ObjsetId(0)) }
}

/// The byte order of this machine.
const NATIVE: Endian = if cfg!(target_endian = "little") { Endian::Little } else { Endian::Big };

/// The block, for those who are told of its damage. A gang has parts of several checksums: none is named.
pub(crate) fn about(bp: &Blkptr, bookmark: Bookmark) -> About {
    let Bookmark { objset, object, level, block } = bookmark;
    let checksum = bp.checksum().filter(|_| !bp.is_gang()).map(Checksum::name);
    About { objset, object, level: i64::from(level), block, checksum, is_swapped: bp.byte_order() != NATIVE }
}

impl Zio {
    /// The logical bytes of the block that `bp` points to (`bp.lsize_bytes()` of them), verified.
    ///
    /// Multi-byte fields within are in the order `bp.byte_order()`. Fails for holes and redacted blocks, which have no
    /// bytes. Cancel safe.
    #[boxed]
    pub async fn read(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Block, ZioError> {
        let fail = |kind: ZioErrorKind| self.failed(bp, context, kind);
        if bp.is_embedded() {
            return transform::embedded(bp).map(|block| handed_out(bp, context.bookmark, block)).map_err(fail);
        }
        self.check_readable(bp).map_err(fail)?;
        if transform::needs_key(bp) && context.key.is_none() {
            return Err(fail(ZioErrorKind::KeyNotLoaded));
        }
        let physical = self.read_patiently(bp, context).await.map_err(fail)?;
        let logical = transform::to_logical(bp, context, physical).map_err(fail)?;
        Ok(handed_out(bp, context.bookmark, logical))
    }

    /// The physical bytes of the block (`bp.psize_bytes()` of them: compressed and encrypted as they lie on disk),
    /// verified. For raw sends, scrubs and tools.
    #[boxed]
    pub async fn read_physical(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Block, ZioError> {
        let fail = |kind: ZioErrorKind| self.failed(bp, context, kind);
        self.check_readable(bp).map_err(fail)?;
        Ok(self.read_patiently(bp, context).await.map_err(fail)?.freeze())
    }

    /// The bytes of a data block as they were before encryption (`bp.psize_bytes()` of them), authenticated, and compressed
    /// as the pointer says. For streams that carry compressed blocks.
    #[boxed]
    pub async fn read_compressed(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Block, ZioError> {
        let fail = |kind: ZioErrorKind| self.failed(bp, context, kind);
        self.check_readable(bp).map_err(fail)?;
        if transform::needs_key(bp) && context.key.is_none() {
            return Err(fail(ZioErrorKind::KeyNotLoaded));
        }
        let physical = self.read_patiently(bp, context).await.map_err(fail)?;
        Ok(transform::opened(bp, context, physical).map_err(fail)?.freeze())
    }

    /// True if the first copy of `next` begins where that of `bp` ends, as they were written together: [`Zio::read_neighbours`] may read both.
    #[must_use]
    pub fn are_neighbours(bp: &Blkptr, next: &Blkptr) -> bool {
        let Some((one, other)) = bp.dva(0).zip(next.dva(0)) else { return false };
        // On a vdev with parity a block takes more than its bytes, and its columns depend on where it begins.
        let is_plain = |bp: &Blkptr, dva: &Dva| !dva.gang && !bp.is_embedded() && dva.asize_bytes == bp.psize_bytes();
        is_plain(bp, &one)
            && is_plain(next, &other)
            && one.vdev == other.vdev
            && one.offset_bytes.checked_add(one.asize_bytes) == Some(other.offset_bytes)
            && bp.physical_birth() == next.physical_birth()
    }

    /// The physical bytes of blocks each of which is a neighbour of the one before ([`Zio::are_neighbours`]), verified, by one read. `None`
    /// where that is not to be had, or a device gave something else first: each must then be read by itself, which finds out what is wrong,
    /// and counts it.
    ///
    /// The blocks share one piece of memory.
    #[boxed]
    pub async fn read_neighbours(&self, bps: &[Blkptr], class: QueueClass) -> Option<Vec<Block>> {
        let first = bps.first()?;
        if !bps.iter().zip(bps.iter().skip(1)).all(|(bp, next)| Self::are_neighbours(bp, next)) {
            return None;
        }
        let dva = first.dva(0).filter(|dva| !dva.gang && !first.is_embedded())?;
        if bps.iter().any(|bp| bp.checksum().is_none() || self.check_readable(bp).is_err()) {
            return None;
        }
        let size_bytes = bps.iter().try_fold(0_u64, |sum, bp| sum.checked_add(bp.psize_bytes()))?;
        let pieces = || {
            bps.iter().scan(0, |at, bp| {
                let start = *at;
                *at += bp.psize_bytes() as usize;
                Some((bp, start..*at))
            })
        };
        let verify = |bytes: &[u8]| {
            pieces().all(|(bp, piece)| {
                let checksum = bp.checksum().zip(bytes.get(piece));
                checksum.is_some_and(|(kind, bytes)| self.checksum_matches(bp, kind, bytes))
            })
        };
        // A failure is not counted here, and shows once more where each is read by itself.
        let mut place = Place::new(first.physical_birth()).of_class(class).speculative();
        if bps.iter().any(|bp| bp.dva(1).is_some()) {
            place = place.elsewhere();
        }
        let faults = self.shared.tree.speculative_faults();
        let read = self.shared.tree.read(dva.vdev, dva.offset_bytes, size_bytes, &verify, &place).await;
        let bytes = read.ok()?.freeze();
        if self.shared.tree.speculative_faults() != faults {
            return None;
        }
        assert_eq!(bytes.len() as u64, size_bytes, "what verifies is as long as its pointers say");
        Some(pieces().map(|(_, piece)| bytes.slice(piece)).collect())
    }

    /// Turns the physical bytes of [`Zio::read_physical`] into the logical ones, as [`Zio::read`] does.
    pub fn logical_of(&self, bp: &Blkptr, context: ReadContext<'_>, physical: &Block) -> Result<Block, ZioError> {
        let fail = |kind: ZioErrorKind| self.failed(bp, context, kind);
        if transform::needs_key(bp) && context.key.is_none() {
            return Err(fail(ZioErrorKind::KeyNotLoaded));
        }
        let logical = transform::to_logical(bp, context, Buf::copied_from(physical)).map_err(fail)?;
        Ok(handed_out(bp, context.bookmark, logical))
    }

    /// Raises the priority of a prefetch read, since a reader now waits for the block.
    pub fn hurry(&self, bp: &Blkptr) {
        if bp.is_embedded() || bp.is_hole() || bp.is_redacted() {
            return;
        }
        for dva in bp.dvas().filter(|dva| !dva.gang) {
            self.shared.tree.hurry(dva.vdev, dva.offset_bytes, bp.psize_bytes(), bp.physical_birth());
        }
    }

    pub(crate) fn check_readable(&self, bp: &Blkptr) -> Result<(), ZioErrorKind> {
        if bp.is_redacted() {
            return Err(ZioErrorKind::Redacted);
        }
        if bp.is_hole() {
            return Err(ZioErrorKind::Hole);
        }
        bp.verify().map_err(ZioErrorKind::Format)
    }

    /// The copies, the one with the shortest expected read time first. A single copy, or those of a gang, are in the pointer's order.
    fn copies_in_order(&self, bp: &Blkptr) -> ([Option<Dva>; DVAS_PER_BLKPTR], usize) {
        let mut order = [None; DVAS_PER_BLKPTR];
        let mut places = [(VdevId(0), 0); DVAS_PER_BLKPTR];
        let (mut count, mut is_gang) = (0, false);
        for dva in bp.dvas() {
            order[count] = Some(dva);
            places[count] = (dva.vdev, dva.offset_bytes);
            is_gang |= dva.gang;
            count += 1;
        }
        if count > 1 && !is_gang {
            let best = self.shared.tree.best_copy(&places[..count], bp.psize_bytes());
            assert!(best < count, "the best copy is one of the block's");
            order[..=best].rotate_right(1);
        }
        (order, count)
    }

    /// As [`Zio::read_verified`]. If writes of the pool wait for failed devices, so do its reads. Reads of the MOS always wait, since a
    /// sync cannot be undone. A read that a device failed once is repeated once.
    #[boxed]
    pub(crate) async fn read_patiently(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Buf, ZioErrorKind> {
        let is_needed = context.bookmark.objset == ObjsetId(0);
        let mut is_again = false;
        loop {
            let damage = Damage::of(about(bp, context.bookmark));
            let place = Place::new(bp.physical_birth()).of_class(context.class).noting(&damage);
            let read = self.read_verified(bp, place).await;
            if read.is_ok() && damage.is_found() {
                self.found_damaged(bp, context.bookmark, &damage);
            }
            let error = match read {
                Err(error) if error.is_of_devices() && self.tree().suspension().is_some() => error,
                result => return result,
            };
            let has_waited = self.tree().wait_for_reads(is_needed).await;
            if !has_waited && std::mem::replace(&mut is_again, true) {
                return Err(error);
            }
        }
    }

    /// The physical bytes from the first copy that verifies.
    ///
    /// While there is another copy, a read does not wait long for a device that hangs. Only if no copy was good, and one of them was given
    /// up early, all copies are read again with the time limit of an only copy.
    pub(crate) async fn read_verified(&self, bp: &Blkptr, place: Place<'_>) -> Result<Buf, ZioErrorKind> {
        let place = place.of_birth(bp.physical_birth());
        let (order, count) = self.copies_in_order(bp);
        if count > 1 {
            match self.first_good(bp, &order, &place.elsewhere()).await {
                Err((_, true)) => {}
                Err((error, false)) => return Err(error),
                Ok(buf) => return Ok(buf),
            }
        }
        self.first_good(bp, &order, &place).await.map_err(|(error, _)| error)
    }

    /// The first of these copies that verifies; with the error, whether a device was given up on that had not failed.
    async fn first_good(
        &self,
        bp: &Blkptr,
        order: &[Option<Dva>],
        place: &Place<'_>,
    ) -> Result<Buf, (ZioErrorKind, bool)> {
        let unknown = || ZioErrorKind::UnknownAlgorithm { what: "checksum", number: bp.checksum_number() };
        let kind = bp.checksum().ok_or_else(|| (unknown(), false))?;
        let verify = |bytes: &[u8]| self.checksum_matches(bp, kind, bytes);
        let (mut last, mut copies, mut is_overdue) = (None, 0, false);
        for &dva in order.iter().flatten() {
            copies += 1;
            let result = if dva.gang {
                gang::read(self, bp, dva, *place).await
            } else {
                let tree = &self.shared.tree;
                let read = tree.read(dva.vdev, dva.offset_bytes, bp.psize_bytes(), &verify, place).await;
                read.map_err(|last| {
                    is_overdue |= last.is_overdue();
                    ZioErrorKind::NoGoodCopy { copies: 1, last }
                })
            };
            match result {
                Ok(buf) => {
                    assert_eq!(
                        buf.len() as u64,
                        bp.psize_bytes(),
                        "a copy that verifies is as long as its pointer says"
                    );
                    // The pieces of a gang have told of theirs.
                    if !dva.gang {
                        place.right(&buf);
                    }
                    return Ok(buf);
                }
                Err(error) => last = Some(error),
            }
        }
        let error = match last {
            Some(ZioErrorKind::NoGoodCopy { last, .. }) => ZioErrorKind::NoGoodCopy { copies, last },
            Some(other) => other,
            None => ZioErrorKind::Hole,
        };
        Err((error, is_overdue))
    }

    /// Reads one given copy and says whether it verifies; for tools and for checks of every copy. Gangs are followed.
    #[boxed]
    pub async fn read_copy(&self, bp: &Blkptr, dva: Dva, context: ReadContext<'_>) -> Result<Block, ZioError> {
        let fail = |kind: ZioErrorKind| ZioError::new(context.bookmark, kind);
        let kind = bp
            .checksum()
            .ok_or(ZioErrorKind::UnknownAlgorithm { what: "checksum", number: bp.checksum_number() })
            .map_err(fail)?;
        let place = Place::new(bp.physical_birth()).of_class(context.class);
        if dva.gang {
            return Ok(gang::read(self, bp, dva, place).await.map_err(fail)?.freeze());
        }
        let verify = |bytes: &[u8]| self.checksum_matches(bp, kind, bytes);
        let read = self.shared.tree.read(dva.vdev, dva.offset_bytes, bp.psize_bytes(), &verify, &place).await;
        Ok(read.map_err(|last| fail(ZioErrorKind::NoGoodCopy { copies: 1, last }))?.freeze())
    }

    /// Reads a block that may well not be there (the end of an intent log's chain): nothing is counted as a fault. True if some device gave
    /// something else, or nothing.
    ///
    /// # Errors
    /// No copy verifies, or no device gives one.
    #[boxed]
    pub async fn read_speculative(&self, bp: &Blkptr) -> Result<(Block, bool), ZioError> {
        let damage = Damage::default();
        let place = Place::new(bp.physical_birth()).speculative().noting(&damage);
        let bookmark = log_bookmark(bp);
        let fail = |kind: ZioErrorKind| ZioError::new(bookmark, kind);
        self.check_readable(bp).map_err(fail)?;
        let unknown = || ZioErrorKind::UnknownAlgorithm { what: "checksum", number: bp.checksum_number() };
        let kind = bp.checksum().ok_or_else(|| fail(unknown()))?;
        let verify = |bytes: &[u8]| self.checksum_matches(bp, kind, bytes);
        let mut last = ZioErrorKind::Hole;
        for dva in bp.dvas() {
            let tree = &self.shared.tree;
            match tree.read(dva.vdev, dva.offset_bytes, bp.psize_bytes(), &verify, &place).await {
                Ok(buf) => return Ok((handed_out(bp, bookmark, buf.freeze()), damage.is_found())),
                Err(error) => last = ZioErrorKind::NoGoodCopy { copies: 1, last: error },
            }
        }
        Err(fail(last))
    }

    /// The physical bytes of a block that may well not be there, and these with the bytes behind it on its vdev, `size_bytes` in all. `None` where
    /// they are not to be had together: the block does not verify, its vdev does not keep neighbours together, or has not so many bytes.
    ///
    /// Only the block is verified. The bytes behind it are of any age, and may be anything; [`Zio::verified`] finds out.
    #[boxed]
    pub async fn read_with_following(&self, bp: &Blkptr, size_bytes: u64) -> Option<(Block, Block)> {
        let dva = bp.dva(0).filter(|dva| !dva.gang && !bp.is_embedded())?;
        let (tree, psize) = (&self.shared.tree, usize::try_from(bp.psize_bytes()).ok()?);
        if !tree.keeps_neighbours(dva.vdev) || self.check_readable(bp).is_err() {
            return None;
        }
        let kind = bp.checksum()?;
        let verify = |bytes: &[u8]| bytes.get(..psize).is_some_and(|bytes| self.checksum_matches(bp, kind, bytes));
        let place = Place::new(bp.physical_birth()).speculative();
        let read = tree.read(dva.vdev, dva.offset_bytes, size_bytes.max(bp.psize_bytes()), &verify, &place).await;
        let bytes = read.ok()?.freeze();
        Some((handed_out(bp, log_bookmark(bp), Block::copied_from(&bytes[..psize])), bytes))
    }

    /// The physical bytes of a block, if these are they: a copy.
    #[must_use]
    pub fn verified(&self, bp: &Blkptr, bytes: &[u8]) -> Option<Block> {
        let is_whole = bytes.len() as u64 == bp.psize_bytes() && self.check_readable(bp).is_ok();
        let is_it = is_whole && self.checksum_matches(bp, bp.checksum()?, bytes);
        is_it.then(|| handed_out(bp, log_bookmark(bp), Block::copied_from(bytes)))
    }

    /// Whether `bytes` have the checksum that `bp` names.
    pub(crate) fn checksum_matches(&self, bp: &Blkptr, kind: Checksum, bytes: &[u8]) -> bool {
        // The last two words of an encrypted block's checksum hold its MAC; an objset's MACs lie inside it.
        let encrypted = bp.uses_crypt() && bp.dmu_type() != DmuType::OBJSET;
        let words = bp.checksum_words();
        let result = match kind {
            Checksum::Zilog | Checksum::Zilog2 => {
                checksum::embedded::verify_zilog(kind, bytes, words, encrypted).map(|_| ())
            }
            _ => checksum::verify(kind, bytes, bp.byte_order(), self.salt(), &words, encrypted),
        };
        result.is_ok()
    }
}
