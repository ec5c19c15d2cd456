//! Gang blocks: a block that found no contiguous space and was written in pieces.
//!
//! ```text
//! bp (gang DVA) ─► gang header, 512 bytes: up to 3 block pointers, trailer with its own checksum
//!                    ├─► piece 0          (or another gang header)
//!                    ├─► piece 1
//!                    └─► piece 2
//! ```
//! The pieces' physical sizes add up to the gang's. The header's checksum is seeded by the place and the birth txg of
//! the *first* copy, so all copies of a header are the same bytes. Where the feature `dynamic_gang_header` is active a
//! header may fill the vdev's smallest allocation and hold more pointers; a header of the old size is still legal there.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;

use cenote_codec::checksum::embedded;
use cenote_format::FormatError;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::Checksum;
use cenote_format::gang::GangHeader;
use cenote_taskq::boxed;
use cenote_taskq::buf::Buf;
use cenote_vdev::tree::ReadContext as Place;

use crate::{Zio, ZioErrorKind};

/// A header's size in bytes without the feature `dynamic_gang_header`.
pub(crate) const OLD_HEADER_BYTES: u64 = 512;
/// Headers below headers: a 16 MiB block in 512-byte pieces needs 10 levels of 3; more is not a pool's doing.
pub const DEPTH_MAX: usize = 12;

/// Headers read for one block at most, all copies counted: one for each piece as small as they come, and a chain of
/// headers as deep as is allowed. Without this, a hostile header whose every copy leads to another such one would be
/// read 3^12 times.
pub(crate) const fn headers_max(size_bytes: usize) -> usize {
    3 * (size_bytes / 512 + DEPTH_MAX)
}

/// Where in a tree of headers a read is, and how many more it may read.
struct Nesting<'a> {
    depth: usize,
    headers_left: &'a mut usize,
    place: Place<'a>,
}

/// Reads the pieces of the gang at `dva`, one copy of the block `bp`, and concatenates them.
pub(crate) async fn read(zio: &Zio, bp: &Blkptr, dva: Dva, place: Place<'_>) -> Result<Buf, ZioErrorKind> {
    let size_bytes = usize::try_from(bp.psize_bytes()).unwrap_or(usize::MAX);
    let mut target = Buf::zeroed(size_bytes);
    let mut headers_left = headers_max(size_bytes);
    let nesting = Nesting { depth: 1, headers_left: &mut headers_left, place };
    let filled = fill(zio, bp, dva, &mut target, 0, nesting).await?;
    if filled == size_bytes {
        Ok(target)
    } else {
        Err(FormatError::malformed("gang header", 0, "the pieces do not add up to the block's size").into())
    }
}

/// Reads one header of a gang, verified.
#[boxed]
pub async fn read_header(zio: &Zio, bp: &Blkptr, dva: Dva) -> Result<GangHeader, ZioErrorKind> {
    let bytes = header_bytes(zio, bp, dva, Place::new(bp.physical_birth())).await?;
    Ok(GangHeader::parse(&bytes, bp.byte_order())?)
}

/// Whether bytes are the header of a gang.
pub(crate) fn is_header(bp: &Blkptr, bytes: &[u8]) -> bool {
    let Some(first) = bp.dvas().next() else { return false };
    // An encrypted block's header keeps only the folded half of its checksum, as the block's own pointer does.
    let encrypted = bp.uses_crypt() && bp.dmu_type() != DmuType::OBJSET;
    let verifier = embedded::gang_verifier(u64::from(first.vdev.0), first.offset_bytes, bp.physical_birth().0);
    embedded::verify_embedded(Checksum::GangHeader, bytes, verifier, encrypted).is_ok()
}

/// The bytes of one header of a gang, verified.
pub(crate) async fn header_bytes(zio: &Zio, bp: &Blkptr, dva: Dva, place: Place<'_>) -> Result<Buf, ZioErrorKind> {
    if bp.dvas().next().is_none() {
        return Err(FormatError::malformed("gang header", 0, "the pointer has no place").into());
    }
    let verify = |bytes: &[u8]| is_header(bp, bytes);
    let place = place.of_birth(bp.physical_birth());
    let tree = zio.tree();
    if zio.shared.dynamic_gang.load(Ordering::Relaxed)
        && let Some(size_bytes) =
            tree.ashift(dva.vdev).map(|ashift| 1 << ashift).filter(|size| *size > OLD_HEADER_BYTES)
        && let Ok(bytes) =
            tree.read(dva.vdev, dva.offset_bytes, size_bytes, &verify, &place.speculative().unnoted()).await
    {
        return Ok(bytes);
    }
    let read = tree.read(dva.vdev, dva.offset_bytes, OLD_HEADER_BYTES, &verify, &place).await;
    read.map_err(|last| ZioErrorKind::NoGoodCopy { copies: 1, last })
}

type Filling<'a> = Pin<Box<dyn Future<Output = Result<usize, ZioErrorKind>> + Send + 'a>>;

fn fill<'a>(
    zio: &'a Zio,
    bp: &'a Blkptr,
    dva: Dva,
    target: &'a mut Buf,
    start: usize,
    mut nesting: Nesting<'a>,
) -> Filling<'a> {
    Box::pin(async move {
        if nesting.depth > DEPTH_MAX {
            return Err(FormatError::malformed("gang header", 0, "headers nested deeper than any block needs").into());
        }
        let Some(left) = nesting.headers_left.checked_sub(1) else {
            return Err(FormatError::malformed("gang header", 0, "more headers than any block needs").into());
        };
        *nesting.headers_left = left;
        let bytes = header_bytes(zio, bp, dva, nesting.place).await?;
        let header = GangHeader::parse(&bytes, bp.byte_order())?;
        let mut at = start;
        for piece in header.children() {
            if piece.is_hole() {
                continue;
            }
            at += fill_piece(zio, piece, target, at, &mut nesting).await?;
            assert!(at <= target.len(), "the pieces of a gang never exceed its pointer's size");
        }
        Ok(at - start)
    })
}

/// One piece: its bytes, or what is below it when it is a header itself. Returns the bytes filled in.
async fn fill_piece(
    zio: &Zio,
    piece: &Blkptr,
    target: &mut Buf,
    at: usize,
    nesting: &mut Nesting<'_>,
) -> Result<usize, ZioErrorKind> {
    let size_bytes = usize::try_from(piece.psize_bytes()).unwrap_or(usize::MAX);
    let Some(end) = at.checked_add(size_bytes).filter(|end| *end <= target.len()) else {
        return Err(FormatError::malformed("gang header", 0, "the pieces exceed the block's size").into());
    };
    if piece.is_embedded() || piece.is_redacted() {
        return Err(FormatError::malformed("gang header", 0, "a piece is no plain block").into());
    }
    if piece.is_gang() {
        let mut last = None;
        for dva in piece.dvas() {
            let (depth, place) = (nesting.depth + 1, nesting.place);
            let below = Nesting { depth, headers_left: &mut *nesting.headers_left, place };
            match fill(zio, piece, dva, target, at, below).await {
                Ok(filled) if filled == size_bytes => return Ok(filled),
                Ok(_) => {
                    last = Some(FormatError::malformed("gang header", 0, "the pieces do not add up").into());
                }
                Err(error) => last = Some(error),
            }
        }
        return Err(last.unwrap_or(ZioErrorKind::Hole));
    }
    let bytes = zio.read_verified(piece, nesting.place).await?;
    target[at..end].copy_from_slice(&bytes);
    Ok(size_bytes)
}
