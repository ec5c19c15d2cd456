//! How a record is packed.

use std::sync::Arc;

use cenote_format::FormatError;
use cenote_format::blkptr::Blkptr;
use cenote_format::dnode::bonus_capacity_bytes;
use cenote_format::sa::{SaLayout, emit};
use cenote_taskq::buf::{Block, Buf};
use cenote_zio::ORDER;

use super::record::SaRecord;
use crate::object::Object;

/// A layout and its number.
#[derive(Clone, Debug)]
pub(super) struct Numbered {
    pub(super) number: u16,
    pub(super) layout: Arc<SaLayout>,
}

/// How a record is packed: so many attributes into the bonus, the others into the spill block.
#[derive(Clone, Debug)]
pub struct SaForm {
    pub(super) kept: usize,
    pub(super) bonus: Numbered,
    pub(super) spill: Option<Numbered>,
}

impl SaForm {
    /// The record's bytes: bonus, and spill block.
    pub(super) fn emit(&self, record: &SaRecord) -> Result<(Vec<u8>, Option<Block>), FormatError> {
        let values: Vec<&[u8]> = record.values().map(|(_, value)| value).collect();
        assert!(self.spill.is_some() || self.kept >= values.len(), "what the bonus does not keep is spilled");
        let (bonus, spill) = values.split_at(self.kept.min(values.len()));
        let pack = |layout: &Numbered, values: &[&[u8]]| emit(layout.number, &layout.layout, values, ORDER);
        let spill = match &self.spill {
            Some(layout) => {
                let bytes = pack(layout, spill)?;
                let mut block = Buf::zeroed(bytes.len().next_multiple_of(512));
                block[..bytes.len()].copy_from_slice(&bytes);
                Some(block.freeze())
            }
            None => None,
        };
        Ok((pack(&self.bonus, bonus)?, spill))
    }
}

/// Room for attributes in an object's bonus, where it has no spill block.
#[must_use]
pub fn bonus_room_of(object: &Object) -> usize {
    let head = object.phys();
    let pointers = (usize::from(head.blkptr_count).max(1) - 1) * Blkptr::SIZE;
    bonus_capacity_bytes(head.slots()).saturating_sub(pointers)
}

/// Room for attributes in the bonus of a new object of so many slots.
#[must_use]
pub fn bonus_room_bytes(slots: u8) -> usize {
    bonus_capacity_bytes(usize::from(slots.max(1)))
}
