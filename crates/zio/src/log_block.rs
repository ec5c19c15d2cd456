//! Blocks of intent logs: written outside txgs, to a place that the block before names.

use cenote_codec::checksum::embedded;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::{Guid, Txg};
use cenote_taskq::buf::Buf;
use cenote_vdev::tree::WriteContext;

use crate::{AllocationRequest, Allocator, Bookmark, NoSpace, ORDER, Zio, ZioError, ZioErrorKind};

impl Zio {
    /// A pointer to a new block of an intent log with this identity (`LogBlockId`'s words), allocated in `txg`, which the caller holds
    /// or syncs. `None` for the places: an empty pointer that has the identity all the same, so that the block which holds it counts.
    ///
    /// # Errors
    /// No space in one piece.
    pub async fn place_log(
        &self,
        allocator: &dyn Allocator,
        size_bytes: u64,
        txg: Txg,
        identity: [u64; 4],
    ) -> Result<Blkptr, NoSpace> {
        let request = AllocationRequest {
            psize_bytes: size_bytes,
            copies: 1,
            txg,
            object_type: DmuType::INTENT_LOG,
            level: 0,
            small_block_bytes: 0,
            block_bytes: size_bytes,
        };
        let places = allocator.allocate_log(request).await?;
        Ok(log_pointer(&places, size_bytes, txg, identity))
    }

    /// Seals a block, of which `bytes` holds the used part in whole units of the format, and writes it where `pointer` says. Leaves that
    /// should have it and have not come back. It is stable when its devices have been flushed; with `is_stable` at once, on those that have it.
    /// `waits`: for devices, in a pool that waits for them.
    ///
    /// # Errors
    /// Too few devices took it.
    pub async fn write_log(
        &self,
        allocator: &dyn Allocator,
        bookmark: Bookmark,
        pointer: &Blkptr,
        mut bytes: Buf,
        is_stable: bool,
        waits: bool,
    ) -> Result<Vec<Guid>, ZioError> {
        let fail = |kind| ZioError::new(bookmark, kind);
        assert!(bytes.len() as u64 <= pointer.psize_bytes(), "a log block fits its place");
        embedded::seal_embedded(Checksum::Zilog2, &mut bytes, pointer.checksum_words(), ORDER, None)
            .map_err(|_| fail(ZioErrorKind::Unwritable("the log block cannot be sealed")))?;
        let places: Vec<Dva> = pointer.dvas().collect();
        let context = WriteContext::new(pointer.physical_birth()).waited_for().stable(is_stable);
        self.store_part(allocator, &places, &bytes.freeze(), context, waits).await.map_err(fail)
    }
}

/// A log block's pointer; without places it is an empty one with an identity.
#[must_use]
pub fn log_pointer(places: &[Dva], size_bytes: u64, txg: Txg, identity: [u64; 4]) -> Blkptr {
    let mut pointer = Blkptr::HOLE;
    if !places.is_empty() {
        pointer.set_dmu_type(DmuType::INTENT_LOG);
        pointer.set_level(0);
        pointer.set_byte_order(ORDER);
        pointer.set_lsize_bytes(size_bytes);
        pointer.set_psize_bytes(size_bytes);
        pointer.set_compress(Compress::Off);
        pointer.set_checksum(Checksum::Zilog2);
        pointer.set_births(txg, txg);
        for (index, place) in places.iter().enumerate() {
            pointer.set_dva(index, Some(*place));
        }
    }
    pointer.set_checksum_words(identity);
    pointer
}
