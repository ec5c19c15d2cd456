//! Healing: writes a block whose copies are all damaged again, in its place, with bytes from elsewhere (`zfs receive -c`).
//!
//! Bytes are written only if they have the checksum in the block pointer, so their source need not be trusted. A power cut meanwhile leaves the
//! block damaged, as it was, or healed. The caller ensures that the block stays allocated.

use cenote_format::blkptr::Blkptr;
use cenote_format::ids::ObjsetId;
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;
use cenote_vdev::tree::WriteContext;

use crate::{Bookmark, ReadContext, Zio, ZioError, ZioErrorKind};

/// The state of a block on its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// At least one copy verifies.
    Good,
    /// No copy verifies, though the devices can be read.
    Damaged,
}

impl Zio {
    /// Whether a block can be read.
    ///
    /// # Errors
    /// The devices cannot be read, so a write would not help either; or the pointer has no place.
    #[boxed]
    pub async fn health(&self, bp: &Blkptr, context: ReadContext<'_>) -> Result<Health, ZioError> {
        match self.read_physical(bp, context).await {
            Ok(_) => Ok(Health::Good),
            Err(error) if matches!(error.kind(), ZioErrorKind::NoGoodCopy { last, .. } if !last.is_of_devices()) => {
                Ok(Health::Damaged)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether these are the physical bytes of a block: `bp.psize_bytes()` long, with the pointer's checksum.
    #[must_use]
    pub fn is_physical(&self, bp: &Blkptr, physical: &[u8]) -> bool {
        let kind = bp.checksum().filter(|_| physical.len() as u64 == bp.psize_bytes());
        kind.is_some_and(|kind| self.checksum_matches(bp, kind, physical))
    }

    /// Writes a damaged block again, to all its places, and reads it back. It is stable after [`Self::flush_healed`].
    ///
    /// # Errors
    /// The bytes are not those of the block; it is a gang block; devices fail to write it, or to return it.
    #[boxed]
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

    /// Flushes the devices, which makes healed blocks stable.
    ///
    /// # Errors
    /// Devices fail.
    #[boxed]
    pub async fn flush_healed(&self) -> Result<(), ZioError> {
        let flushed = self.tree().flush().await;
        let failed =
            |last| ZioError::new(Bookmark::objset(ObjsetId(0)), ZioErrorKind::NoCopyWritten { copies: 0, last });
        flushed.map(drop).map_err(failed)
    }
}
