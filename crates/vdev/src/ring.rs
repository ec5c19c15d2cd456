//! The slots of the labels' rings that uberblocks go to.
//!
//! ```text
//! slot   0   1   2   …   n-2   n-1
//!        ├── txg modulo n ──────┤      multihost off
//!        ├── txg modulo n-1 ─┤  ╰ multihost writes    multihost on, or the pool is held (`cenote_spa::multihost`)
//! ```
//! The two rules disagree, so in the txg in which a pool changes from one to the other the slot may be that of the txg before:
//! then the only uberblock that is known to be good would be overwritten in all labels of all devices at once, and power that goes
//! in that moment would cost the txg that was committed. [`Ring`] knows where the newest uberblock stands and takes the next slot
//! but one instead. (OpenZFS takes the risk.) Importers look at all slots, so any of them will do. The next slot itself is the
//! following txg's by the same rule: OpenZFS, which may write that txg, would overwrite the newest uberblock there.
//!
//! A multihost write is the newest uberblock with a later time or sequence. It goes to one label of one device and to no
//! slot that a txg uses, so a torn one costs nothing; it is not flushed, since the hosts that are to see it share the device.

use std::collections::BTreeSet;
use std::io;

use cenote_codec::checksum::embedded::{label_verifier, seal_embedded};
use cenote_format::Endian;
use cenote_format::enums::Checksum;
use cenote_format::ids::Txg;
use cenote_format::label::{
    DeviceLayout, MMP_SLOTS_PER_LABEL, RING_OFFSET, slot_bytes, slot_count, slot_of_txg, slot_shift,
};
use cenote_format::uberblock::Uberblock;
use cenote_taskq::boxed;
use cenote_taskq::buf::Block;

use crate::disk::Disk;

/// The byte order of labels written here, on any machine.
pub(crate) const ORDER: Endian = Endian::Little;

/// Where a pool's newest uberblock stands in its rings, and where its next one goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// The last slots are kept for multihost writes.
    pub is_multihost: bool,
    /// The uberblock says that a scratch area is valid (raidz expansion). Who imports such a pool writes the same txg again when the area is copied
    /// to its place, and OpenZFS does that in the txg's own slot: so the uberblock, the only one that may be read by then, stands two slots before.
    pub is_set_back: bool,
    /// The newest uberblock's txg.
    txg: u64,
    /// Slots that hold it: binary logarithm of the slots' size, index.
    newest: BTreeSet<(u32, usize)>,
}

impl Ring {
    /// Of a pool whose newest uberblock stands in these slots: binary logarithm of the slots' size, index.
    #[must_use]
    pub fn new(is_multihost: bool, txg: Txg, newest: impl IntoIterator<Item = (u32, usize)>) -> Self {
        Self { is_multihost, is_set_back: false, txg: txg.0, newest: newest.into_iter().collect() }
    }

    /// The slot of a txg's uberblock on a vdev of this ashift. Asked again for the newest txg, the answer is the same.
    #[must_use]
    pub fn slot(&self, txg: u64, ashift: u32) -> usize {
        if txg == self.txg
            && let Some((_, slot)) = self.newest.iter().find(|(shift, _)| *shift == slot_shift(ashift))
        {
            assert!(*slot < slot_count(ashift), "an uberblock stands within its ring");
            return *slot;
        }
        let count = slot_count(ashift) - if self.is_multihost { MMP_SLOTS_PER_LABEL } else { 0 };
        let own = slot_of_txg(txg, ashift, self.is_multihost);
        let first = if self.is_set_back { (own + count - 2) % count } else { own };
        let mut slots = (0..count).map(|step| (first + 2 * step) % count);
        let slot = slots.find(|slot| !self.newest.contains(&(slot_shift(ashift), *slot))).unwrap_or(first);
        assert!(slot < count, "a txg's slot is within its ring, and none that is for multihost writes");
        slot
    }

    /// A txg's uberblock stands on vdevs of these ashifts in the slots that [`Ring::slot`] gave, and is the newest.
    pub(crate) fn committed(&mut self, txg: u64, ashifts: impl IntoIterator<Item = u32>) {
        assert!(txg >= self.txg, "txgs are committed in their order");
        let newest = ashifts.into_iter().map(|ashift| (slot_shift(ashift), self.slot(txg, ashift))).collect();
        (self.txg, self.newest) = (txg, newest);
    }
}

/// The slot of multihost writes on a vdev of this ashift.
#[must_use]
pub(crate) const fn multihost_slot(ashift: u32) -> usize {
    slot_count(ashift) - MMP_SLOTS_PER_LABEL
}

/// Puts an uberblock into a slot of some labels of a disk. It is not flushed.
///
/// # Errors
/// The disk's, or that it is too small for labels.
pub(crate) async fn write_slot(
    disk: &Disk,
    ashift: u32,
    slot: usize,
    labels: impl IntoIterator<Item = usize>,
    uberblock: &Uberblock,
) -> io::Result<()> {
    let layout = layout(disk)?;
    assert!(slot < slot_count(ashift), "an uberblock is written within its ring");
    let size = slot_bytes(ashift);
    let mut bytes = uberblock.emit().to_vec();
    assert!(bytes.len() <= size, "an uberblock fits its slot");
    bytes.resize(size, 0);
    let writes = labels.into_iter().map(|label| {
        let address = layout.label_offset(label) + (RING_OFFSET + slot * size) as u64;
        disk.write(address, sealed(bytes.clone(), address))
    });
    cenote_taskq::join_all(writes).await.into_iter().collect()
}

/// Puts an uberblock into the multihost slot of one of a disk's labels (0 to 3). It is not flushed.
///
/// # Errors
/// The disk's, or that it is too small for labels.
#[boxed]
pub async fn write_multihost(disk: &Disk, ashift: u32, label: usize, uberblock: &Uberblock) -> io::Result<()> {
    write_slot(disk, ashift, multihost_slot(ashift), [label], uberblock).await
}

pub(crate) fn layout(disk: &Disk) -> io::Result<DeviceLayout> {
    DeviceLayout::new(disk.size_bytes())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{} is too small for labels", disk.path())))
}

/// A part of a label with the checksum that it must have at `address`.
pub(crate) fn sealed(mut part: Vec<u8>, address: u64) -> Block {
    seal_embedded(Checksum::Label, &mut part, label_verifier(address), ORDER, None)
        .expect("a part of a label has room for its checksum");
    Block::from(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_change_a_txg_goes_where_openzfs_puts_it() {
        for is_multihost in [false, true] {
            let mut ring = Ring { is_multihost, ..Ring::default() };
            for txg in 1..300 {
                for ashift in [9, 12, 13] {
                    assert_eq!(ring.slot(txg, ashift), slot_of_txg(txg, ashift, is_multihost));
                    assert!(!is_multihost || ring.slot(txg, ashift) < multihost_slot(ashift));
                }
                ring.committed(txg, [9, 12, 13]);
            }
        }
    }

    /// Changing from 32 slots to 31 and back, at every txg: txg 62 of 31 slots would go to slot 0, and so does 64 of 32. The next
    /// txg may be written by OpenZFS, which goes by the rule alone.
    #[test]
    fn the_newest_uberblock_is_not_overwritten_when_multihost_changes() {
        for change in 1..200 {
            for later in 1..40 {
                let mut ring = Ring::default();
                let mut last = Vec::new();
                for txg in change..change + later + 3 {
                    ring.is_multihost = txg > change && txg <= change + later;
                    let slots = [9, 12].map(|ashift| ring.slot(txg, ashift));
                    assert!(last.iter().zip(&slots).all(|(last, slot)| last != slot), "txg {txg} after {last:?}");
                    assert!(!ring.is_multihost || slots[1] != multihost_slot(12));
                    let next = [9, 12].map(|ashift| slot_of_txg(txg + 1, ashift, ring.is_multihost));
                    assert!(next.iter().zip(&slots).all(|(next, slot)| next != slot), "txg {txg}: OpenZFS comes next");
                    ring.committed(txg, [9, 12]);
                    assert_eq!([9, 12].map(|ashift| ring.slot(txg, ashift)), slots, "a commit that is done again");
                    last = slots.to_vec();
                }
            }
        }
    }
}
