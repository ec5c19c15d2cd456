//! Healing: a block whose copies are all damaged is written again, in its place, with bytes that come from elsewhere (`zfs receive -c`).
//!
//! Nothing but the bytes that the pointer's checksum asks for is ever written over a block: whoever brings them need not be trusted, and a
//! power cut in between leaves a block that is damaged, as it was. The block stays allocated meanwhile: its owner sees to that.

use cenote_format::blkptr::Blkptr;
use cenote_format::ids::ObjsetId;
use cenote_taskq::buf::Block;
use cenote_vdev::tree::WriteContext;

use crate::{Bookmark, ReadContext, Zio, ZioError, ZioErrorKind};

/// The state of a block on its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// A copy verifies.
    Good,
    /// None verifies, and devices say nothing against it.
    Damaged,
}

impl Zio {
    /// Whether a block is there.
    ///
    /// # Errors
    /// Devices do not give it: what is written to them is as good as lost. Or it has no place.
    pub async fn health(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Health, ZioError> {
        match self.read_physical(bp, context).await {
            Ok(_) => Ok(Health::Good),
            Err(error) if matches!(error.kind(), ZioErrorKind::NoGoodCopy { last, .. } if !last.is_of_devices()) => {
                Ok(Health::Damaged)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether these are a block's physical bytes (`bp.psize_bytes()` of them), as its pointer's checksum says.
    #[must_use]
    pub fn is_physical(&self, bp: &Blkptr, physical: &[u8]) -> bool {
        let kind = bp.checksum().filter(|_| physical.len() as u64 == bp.psize_bytes());
        kind.is_some_and(|kind| self.checksum_matches(bp, kind, physical))
    }

    /// Writes a damaged block again, to all its places, and reads it to see whether that has helped. It is stable once the devices are flushed.
    ///
    /// # Errors
    /// The bytes are not the block's; it is stored in pieces; devices do not take it, or do not give it back.
    pub async fn heal(&self, bp: &Blkptr, physical: &Block, context: ReadContext<'_>) -> Result<(), ZioError> {
        let fail = |kind: ZioErrorKind| ZioError::new(context.bookmark, kind);
        if !self.is_physical(bp, physical) {
            return Err(fail(ZioErrorKind::Unwritable("bytes that are not those of the block")));
        }
        if bp.dvas().any(|dva| dva.gang) {
            return Err(fail(ZioErrorKind::Unwritable("not supported yet: healing blocks that are stored in pieces")));
        }
        let (mut good, mut last) = (0, None);
        for dva in bp.dvas() {
            let block = self.in_sectors(dva.vdev, physical);
            let place = WriteContext::new(bp.physical_birth());
            match self.tree().write(dva.vdev, dva.offset_bytes, &block, place).await {
                Ok(_) => good += 1,
                Err(error) => last = Some(error),
            }
        }
        if let (0, Some(last)) = (good, last) {
            return Err(fail(ZioErrorKind::NoCopyWritten { copies: 0, last }));
        }
        self.read_physical(bp, context).await.map(drop)
    }

    /// Makes stable what was healed.
    ///
    /// # Errors
    /// Devices fail.
    pub async fn settle_healed(&self) -> Result<(), ZioError> {
        let flushed = self.tree().flush().await;
        let failed =
            |last| ZioError::new(Bookmark::objset(ObjsetId(0)), ZioErrorKind::NoCopyWritten { copies: 0, last });
        flushed.map(drop).map_err(failed)
    }
}
