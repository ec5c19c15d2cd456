//! Data blocks that the records of a log block point to, on their way to the devices.

use cenote_format::blkptr::Blkptr;
use cenote_taskq::Join;
use cenote_taskq::mutant::{self, Mutant};
use cenote_vdev::tree::VdevSet;

/// Bytes of blocks that are made ready and stored for logs at once.
pub(crate) const STORING_MAX_BYTES: u64 = 64 << 20;

/// A data block with allocated DVAs: the pointer for its record, and the write in flight.
pub(crate) struct Stored {
    pub(crate) pointer: Blkptr,
    /// `None` if the block is already written.
    pub(crate) storing: Option<Join<bool>>,
}

/// The blocks that the records of a log block point to.
#[derive(Default)]
pub(crate) struct Data {
    /// Those that are still being stored: whether each is some day.
    storing: Vec<Join<bool>>,
    /// The vdevs that they lie on.
    vdevs: VdevSet,
}

impl Data {
    pub(crate) fn push(&mut self, stored: Stored) {
        let Some(storing) = stored.storing else { return };
        self.storing.push(storing);
        if !mutant::is(Mutant::LogDataElsewhere) {
            note_vdevs(&mut self.vdevs, &stored.pointer);
        }
    }

    /// Whether there is none that is not stored yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.storing.is_empty()
    }

    /// With those of the log block itself.
    pub(crate) fn vdevs_with(&self, at: &Blkptr) -> VdevSet {
        let mut vdevs = self.vdevs;
        note_vdevs(&mut vdevs, at);
        vdevs
    }

    /// Waits until they are stored. Whether all of them are.
    pub(crate) async fn stored(self) -> bool {
        if mutant::is(Mutant::LogDataUnflushed) {
            return true;
        }
        let mut are_all = true;
        for block in self.storing {
            are_all &= block.await == Ok(true);
        }
        are_all
    }
}

/// Puts the vdevs into a set that a block lies on: a gang's members may be on any.
fn note_vdevs(vdevs: &mut VdevSet, pointer: &Blkptr) {
    for place in pointer.dvas() {
        if place.gang {
            vdevs.absorb(VdevSet::ALL);
        }
        vdevs.insert(place.vdev);
    }
}
