//! Blocks whose checksums are right and which cannot be decompressed: what a faulty compressor leaves. Goal: `verify` finds them,
//! though no checksum does. Method: a golden pool in simulation, whose pointers say another compression than was used.

use crate::common;

use std::cell::Cell;
use std::rc::Rc;

use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::Compress;
use cenote_scan::VerifyOptions;
use cenote_zio::mutation::Filter;

/// Found by OpenZFS's module when `verify` had called a pool good: an encoder had been used again before its stream was at its end.
#[test]
fn verify_finds_a_block_that_cannot_be_decompressed() {
    for data in [true, false] {
        let changed = Rc::new(Cell::new(0_u64));
        let count = changed.clone();
        let filter: Filter = Box::new(move |bp, bookmark, bytes| {
            if bookmark.objset.0 == 0 || bookmark.object.0 != 0 || bookmark.level != 0 {
                return None;
            }
            let mut bytes = bytes.to_vec();
            for dnode in bytes.chunks_exact_mut(512).filter(|dnode| dnode[0] == DmuType::PLAIN_FILE_CONTENTS.number()) {
                let (_, rest) = dnode.split_at_mut(64);
                let Some(place) = rest.first_chunk_mut::<{ Blkptr::SIZE }>() else { continue };
                let mut pointer = Blkptr::from_array(place, bp.byte_order());
                let is_data = !pointer.is_hole() && !pointer.is_embedded() && pointer.level() == 0;
                if is_data && pointer.compress() == Some(Compress::Lz4) {
                    pointer.set_compress(Compress::Gzip9);
                    place.copy_from_slice(&pointer.emit(bp.byte_order()));
                    count.set(count.get() + 1);
                }
            }
            Some(bytes)
        });
        let options = VerifyOptions { data, space: true };
        let work = async |handle: &_, pool| common::report(handle, &pool, options).await;
        let report = common::with_pool("basic", |_| Some(filter), work);
        assert!(changed.get() > 0, "nothing was changed");
        if data {
            assert!(report.error_count > 0, "{report}");
            assert!(report.errors.iter().all(|error| error.why.contains("decompress")), "{report}");
        } else {
            assert!(report.is_clean(), "{report}");
        }
    }
}
