//! Rewriting a gang block in place in a later pass of the same txg.
//!
//! **Need.** The passes of a txg converge because a later pass overwrites the blocks of an earlier one in place. A block that gets new places
//! changes space maps, which the next pass must write. A space map that is itself a gang block takes hundreds of places. So without this a
//! fragmented pool wrote pass after pass, until one txg had taken all its space.
//!
//! **Life of one.** The gang headers that an earlier pass of this txg stored are read again; they give the places and sizes of the pieces. The
//! new bytes are cut in the same way and go to the same places, with new headers. If a header cannot be read the block gets new places, as any
//! other block does.

use cenote_codec::checksum::embedded;
use cenote_format::FormatError;
use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::eck::EmbeddedChecksum;
use cenote_format::enums::{Checksum, Compress};
use cenote_format::gang::{GangHeader, MIN_BYTES as GANG_HEADER_BYTES};
use cenote_taskq::buf::Block;

use crate::gang::{DEPTH_MAX, read_header};
use crate::write::{Placing, Protection, Space, WritePolicy};
use crate::{Zio, ZioErrorKind};

fn malformed(what: &'static str) -> ZioErrorKind {
    FormatError::malformed("gang header", 0, what).into()
}

impl Zio {
    /// Places a block in the places of `previous`, a block of the same txg and physical size, and completes its pointer.
    ///
    /// # Errors
    /// A gang header cannot be read, or does not fit the block. Then `space` has writes noted that the caller must discard.
    pub(crate) fn place_again<'a>(
        &'a self,
        space: &'a mut Space<'_>,
        bp: &'a mut Blkptr,
        previous: &'a Blkptr,
        physical: &'a Block,
        policy: &'a WritePolicy,
        depth: usize,
    ) -> Placing<'a> {
        Box::pin(async move {
            assert_eq!(previous.physical_birth(), policy.txg, "what another txg has written is not written over");
            if !previous.is_gang() {
                space.put(bp, &previous.dvas().collect::<Vec<Dva>>(), physical);
                return Ok(());
            }
            if depth > DEPTH_MAX {
                return Err(malformed("headers nested deeper than any block needs"));
            }
            let old = self.any_header(previous).await?;
            let checksum = EmbeddedChecksum { endian: bp.byte_order(), words: [0; 4] };
            let mut header = GangHeader { blkptrs: Vec::new(), checksum };
            let mut start = 0;
            for piece in old.children() {
                let end = usize::try_from(piece.psize_bytes()).ok().and_then(|size| size.checked_add(start));
                let end = end.filter(|end| *end <= physical.len() && piece.physical_birth() == policy.txg);
                let end = end.ok_or_else(|| malformed("a piece that is not of this block"))?;
                let bytes = physical.slice(start..end);
                let mut child = self.pointer(policy, Compress::Off, bytes.len() as u64, &bytes, Protection::None)?;
                child.set_fill(0);
                self.place_again(space, &mut child, piece, &bytes, policy, depth + 1).await?;
                header.blkptrs.push(child);
                start = end;
            }
            if start != physical.len() {
                return Err(malformed("the pieces do not add up to the block's size"));
            }
            let places = self.header_places(previous)?;
            let sealed = self.seal_header(&header, bp, places[0], policy)?;
            space.put(bp, &places, &sealed);
            previous.dvas().enumerate().for_each(|(index, dva)| bp.set_dva(index, Some(dva)));
            Ok(())
        })
    }

    /// The first header of a gang that can be read.
    async fn any_header(&self, bp: &Blkptr) -> Result<GangHeader, ZioErrorKind> {
        let mut last = ZioErrorKind::Hole;
        for dva in bp.dvas() {
            match read_header(self, bp, dva).await {
                Ok(header) => return Ok(header),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The places of a gang's headers. The DVAs of its pointer have the allocated size of the whole gang instead.
    fn header_places(&self, bp: &Blkptr) -> Result<Vec<Dva>, ZioErrorKind> {
        let place = |dva: Dva| {
            let asize = self.tree().psize_to_asize(dva.vdev, GANG_HEADER_BYTES as u64, bp.physical_birth());
            asize.map(|asize_bytes| Dva { asize_bytes, gang: false, ..dva })
        };
        let places: Option<Vec<Dva>> = bp.dvas().map(place).collect();
        places.filter(|places| !places.is_empty()).ok_or_else(|| malformed("a header on no vdev"))
    }

    /// A header's bytes, sealed for its first place.
    pub(crate) fn seal_header(
        &self,
        header: &GangHeader,
        bp: &Blkptr,
        first: Dva,
        policy: &WritePolicy,
    ) -> Result<Block, ZioErrorKind> {
        let mut bytes = header.emit(GANG_HEADER_BYTES);
        let verifier = embedded::gang_verifier(u64::from(first.vdev.0), first.offset_bytes, policy.txg.0);
        let mac = bp.uses_crypt().then_some([0; 2]);
        embedded::seal_embedded(Checksum::GangHeader, &mut bytes, verifier, bp.byte_order(), mac)
            .map_err(|_| ZioErrorKind::Unwritable("the gang header cannot be sealed"))?;
        Ok(Block::from(bytes))
    }
}
