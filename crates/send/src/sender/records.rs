//! Turns changes into records.

use std::sync::Arc;

use cenote_codec::checksum::fletcher::Fletcher4;
use cenote_format::Endian;
use cenote_format::blkptr::Blkptr;
use cenote_format::ddt::DdtKey;
use cenote_format::dnode::{CORE_BYTES, DnodeFlags};
use cenote_format::enums::{Checksum, Compress};
use cenote_format::ids::{BlockId, Guid, ObjectId, Txg};
use cenote_format::stream::{
    Body, DedupKey, Features, Free, Object, ObjectRange, RecordFlags, Sealing, Spill, Write, WriteEmbedded,
};
use cenote_taskq::buf::Block;

use super::error::SenderError;
use super::reads::{Form, Forms, Item, OLD_BLOCK_BYTES, Read};
use super::walk::{Change, Dnode, SPILL, Shape, block_error, corrupt};
use super::writer::StreamWriter;

/// The word that fills a block which cannot be read.
const BAD_BLOCK: u64 = 0x02f5_badd_b10c;

/// The rules that turn changes into records.
pub(super) struct Records {
    pub(super) dataset: Arc<str>,
    pub(super) forms: Forms,
    pub(super) to_guid: Guid,
    /// Spill blocks born up to this txg are unchanged.
    pub(super) since: Txg,
    /// Unreadable blocks are sent as a pattern.
    pub(super) sends_corrupt: bool,
    /// Nothing was read.
    pub(super) is_dry: bool,
}

impl Records {
    /// Writes the records of one change.
    pub(super) async fn put(&self, item: Item, out: &mut StreamWriter<'_>) -> Result<(), SenderError> {
        let Item { change, read } = item;
        match change {
            Change::Dnodes { bp, block } => self.dnodes(&bp, block, out),
            Change::NoObject { object } => out.free_objects(object.0, 1),
            Change::Object { object, dnode } => {
                self.object(object, &dnode, out)?;
                match (read, dnode.phys.spill) {
                    (Some(read), Some(bp)) => self.spill(object, &bp, read, out).await,
                    _ => Ok(()),
                }
            }
            Change::Spill { object, bp } => {
                let read = read.expect("a block is being read");
                self.spill(object, &bp, read, out).await
            }
            Change::Data { shape, block, bp } => {
                let read = read.expect("a block is being read");
                self.data(&shape, block, &bp, read, out).await
            }
            Change::Hole { shape, start, end } => Self::hole(&shape, start, end, out),
            Change::Redacted { object, block_bytes, start, end } => {
                let size = u64::from(block_bytes);
                let Some(offset) = start.checked_mul(size) else { return Ok(()) };
                out.redact(object, offset, end.saturating_sub(start).saturating_mul(size))
            }
        }
    }

    fn order_flag(&self, bp: &Blkptr) -> RecordFlags {
        if bp.byte_order() == self.forms.endian { RecordFlags::empty() } else { RecordFlags::RAW_BYTESWAP }
    }

    fn is_raw(&self) -> bool {
        self.forms.features.contains(Features::RAW)
    }

    /// In a raw stream, writes the seal of a block of dnodes.
    fn dnodes(&self, bp: &Blkptr, block: u64, out: &mut StreamWriter<'_>) -> Result<(), SenderError> {
        if !self.is_raw() {
            return Ok(());
        }
        if bp.compress() != Some(Compress::Off) {
            return Err(corrupt(&self.dataset, ObjectId(0), "a compressed block of dnodes in an encrypted dataset"));
        }
        let slot_count = bp.lsize_bytes() / cenote_format::dnode::SLOT_BYTES as u64;
        let range = ObjectRange {
            first_object: ObjectId(block.saturating_mul(slot_count)),
            slot_count,
            to_guid: self.to_guid,
            sealing: sealing(bp),
            flags: self.order_flag(bp),
        };
        out.record(Body::ObjectRange(range), &[])
    }

    fn object(&self, object: ObjectId, dnode: &Dnode, out: &mut StreamWriter<'_>) -> Result<(), SenderError> {
        let phys = &dnode.phys;
        let is_raw = self.is_raw();
        let mut flags = RecordFlags::empty();
        if is_raw && dnode.order != self.forms.endian {
            flags |= RecordFlags::RAW_BYTESWAP;
        }
        if phys.flags.contains(DnodeFlags::SPILL_BLKPTR) {
            flags |= RecordFlags::SPILL;
        }
        if !is_raw && dnode.order != self.forms.endian && !phys.bonus.is_empty() {
            return Err(self.mixed_orders());
        }
        let block_bytes = phys.data_block_bytes();
        let bonus_bytes = phys.bonus.len();
        let mut bonus = phys.bonus.to_vec();
        let mut raw_bonus_bytes = 0;
        if is_raw && bonus_bytes > 0 {
            // The whole area is encrypted, including the part after the bonus.
            bonus = bonus_area(dnode).to_vec();
            raw_bonus_bytes = bonus.len() as u32;
        } else {
            bonus.resize(bonus_bytes.next_multiple_of(8), 0);
        }
        debug_assert!(bonus.len().is_multiple_of(8), "a bonus is padded to whole words");
        debug_assert!(u8::try_from(dnode.slots()).is_ok(), "a dnode has fewer slots than its block");
        let record = Object {
            object,
            object_type: phys.object_type.0.into(),
            bonus_type: phys.bonus_type.0.into(),
            block_bytes: if self.forms.splits(block_bytes) { OLD_BLOCK_BYTES } else { block_bytes },
            bonus_bytes: bonus_bytes as u32,
            checksum_type: phys.checksum,
            compress: phys.compress,
            dnode_slots: dnode.slots() as u8,
            flags,
            raw_bonus_bytes,
            to_guid: self.to_guid,
            indirect_block_shift: if is_raw { phys.indirect_block_shift } else { 0 },
            levels: if is_raw { phys.levels } else { 0 },
            block_pointers: if is_raw { phys.blkptr_count } else { 0 },
            block_id_max: if is_raw { phys.max_block_id } else { 0 },
        };
        out.record(Body::Object(record), &bonus)?;
        // Receivers free everything after its end.
        let size = phys.max_block_id.saturating_add(1).saturating_mul(block_bytes.into());
        out.free(object, size, Free::TO_THE_END)
    }

    async fn spill(
        &self,
        object: ObjectId,
        bp: &Blkptr,
        read: Read,
        out: &mut StreamWriter<'_>,
    ) -> Result<(), SenderError> {
        let is_raw = self.is_raw();
        let mut record = Spill {
            object,
            length_bytes: bp.lsize_bytes(),
            to_guid: self.to_guid,
            flags: RecordFlags::empty(),
            compress: 0,
            compressed_bytes: 0,
            sealing: Sealing::default(),
            object_type: 0,
        };
        if bp.logical_birth() <= self.since {
            record.flags |= RecordFlags::SPILL;
        }
        if is_raw {
            record.flags |= self.order_flag(bp);
            record.compress = bp.compress_number();
            record.compressed_bytes = bp.psize_bytes();
            record.sealing = sealing(bp);
        }
        let length = record.payload_bytes();
        if self.is_dry {
            return out.count(length);
        }
        let payload = self.payload(object, SPILL, bp, length, read).await?;
        assert_eq!(payload.len() as u64, length, "a payload is as long as its record says");
        out.record(Body::Spill(record), &payload)
    }

    async fn data(
        &self,
        shape: &Shape,
        block: u64,
        bp: &Blkptr,
        read: Read,
        out: &mut StreamWriter<'_>,
    ) -> Result<(), SenderError> {
        let size = u64::from(shape.block_bytes);
        let offset_bytes = block
            .checked_mul(size)
            .ok_or_else(|| corrupt(&self.dataset, shape.object, format!("block {block} beyond all offsets")))?;
        if read.form == Form::Embedded {
            return self.embedded(shape, offset_bytes, bp, out);
        }
        let mut record = Write {
            object: shape.object,
            object_type: shape.object_type.0.into(),
            offset_bytes,
            logical_bytes: size,
            to_guid: self.to_guid,
            // No reusable checksum: the record has part of a block, or not the bytes on disk.
            checksum_type: Checksum::Off.number(),
            flags: RecordFlags::empty(),
            compress: 0,
            key: DedupKey::default(),
            compressed_bytes: 0,
            sealing: Sealing::default(),
        };
        let is_whole = matches!(read.form, Form::Compressed | Form::Raw);
        if is_whole {
            record.compress = bp.compress_number();
            record.compressed_bytes = bp.psize_bytes();
        }
        if read.form == Form::Raw {
            record.flags |= self.order_flag(bp);
            record.sealing = sealing(bp);
        }
        let length = if is_whole { bp.psize_bytes() } else { size };
        let form = read.form;
        if self.is_dry {
            let pieces = if self.forms.splits(shape.block_bytes) { size.div_ceil(OLD_BLOCK_BYTES.into()) } else { 1 };
            let piece = length.div_ceil(pieces);
            return (0..pieces).try_for_each(|index| out.count(piece.min(length - index * piece)));
        }
        let payload = self.payload(shape.object, BlockId(block), bp, length, read).await?;
        assert_eq!(payload.len() as u64, length, "a payload is as long as its record says");
        if self.forms.splits(shape.block_bytes) {
            for (index, piece) in payload.chunks(OLD_BLOCK_BYTES as usize).enumerate() {
                record.offset_bytes = offset_bytes + index as u64 * u64::from(OLD_BLOCK_BYTES);
                record.logical_bytes = piece.len() as u64;
                out.record(Body::Write(record.clone()), piece)?;
            }
            return Ok(());
        }
        if !bp.is_embedded() && (form == Form::Raw || !bp.uses_crypt()) {
            record.checksum_type = bp.checksum_number();
            if bp.checksum().is_some_and(is_for_dedup) {
                record.flags |= RecordFlags::CHECKSUM_DEDUP;
            }
            let DdtKey { checksum, properties } = DdtKey::of(bp);
            record.key = DedupKey { checksum, properties };
        }
        out.record_of(Body::Write(record), &payload, self.known_sums(bp, form, &payload))
    }

    /// The payload's partial sums, taken from its block's checksum, which was verified when it was read: this saves another pass over the bytes.
    /// The receiver also detects memory errors since then.
    fn known_sums(&self, bp: &Blkptr, form: Form, payload: &Payload) -> Option<Fletcher4> {
        let is_as_stored = matches!(payload, Payload::Read(bytes) if bytes.len() as u64 == bp.psize_bytes())
            && form.is_as_stored(bp)
            && !bp.is_embedded()
            && bp.dvas().all(|dva| !dva.gang)
            && !bp.uses_crypt()
            && bp.byte_order() == self.forms.endian;
        let is_known = is_as_stored && bp.checksum() == Some(Checksum::Fletcher4);
        is_known.then(|| Fletcher4::of(bp.checksum_words()))
    }

    fn embedded(
        &self,
        shape: &Shape,
        offset_bytes: u64,
        bp: &Blkptr,
        out: &mut StreamWriter<'_>,
    ) -> Result<(), SenderError> {
        let payload = bp
            .embedded_payload()
            .ok_or_else(|| corrupt(&self.dataset, shape.object, "an embedded block longer than a pointer"))?;
        let mut bytes = payload.as_bytes().to_vec();
        let physical_bytes = bytes.len() as u32;
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let record = WriteEmbedded {
            object: shape.object,
            offset_bytes,
            length_bytes: shape.block_bytes.into(),
            to_guid: self.to_guid,
            compress: bp.compress_number(),
            embedded_type: 0,
            // It has 25 bits.
            logical_bytes: bp.lsize_bytes() as u32,
            physical_bytes,
        };
        out.record(Body::WriteEmbedded(record), &bytes)
    }

    fn hole(shape: &Shape, start: u64, end: Option<u64>, out: &mut StreamWriter<'_>) -> Result<(), SenderError> {
        let size = u64::from(shape.block_bytes);
        if shape.object.0 == 0 {
            let slots = size / cenote_format::dnode::SLOT_BYTES as u64;
            let first = start.saturating_mul(slots);
            let end = end.map_or(u64::MAX, |end| end.saturating_mul(slots));
            return out.free_objects(first, end - first);
        }
        // Nothing can exist beyond the last offset.
        let Some(offset) = start.checked_mul(size) else { return Ok(()) };
        let end = end.and_then(|end| end.checked_mul(size)).unwrap_or(u64::MAX);
        debug_assert!(offset < end, "a hole has bytes (invariant 1)");
        out.free(shape.object, offset, end - offset)
    }

    /// The `length` bytes of a block to send.
    async fn payload(
        &self,
        object: ObjectId,
        block: BlockId,
        bp: &Blkptr,
        length: u64,
        read: Read,
    ) -> Result<Payload, SenderError> {
        let form = read.form;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let is_turned = bp.byte_order() != self.forms.endian && bp.dmu_type().is_metadata();
        if form == Form::Logical && is_turned && !bp.is_embedded() {
            return Err(self.mixed_orders());
        }
        let interrupted = || SenderError::Interrupted(self.dataset.to_string());
        let bytes = match read.bytes().await.ok_or_else(interrupted)? {
            Ok(bytes) => bytes.expect("embedded blocks are sent from their pointers"),
            Err(error) if self.sends_corrupt && !error.is_key_missing() => {
                return Ok(Payload::Made(bad_block(length, self.forms.endian)));
            }
            Err(error) => return Err(block_error(&self.dataset, error)),
        };
        if bytes.len() == length {
            return Ok(Payload::Read(bytes));
        }
        // An embedded block may have fewer bytes than a block; zeros follow.
        if bp.is_embedded() && bytes.len() < length {
            let mut made = bytes.to_vec();
            made.resize(length, 0);
            return Ok(Payload::Made(made));
        }
        let what = format!("block {block} of {} bytes in place of {length}", bytes.len());
        Err(corrupt(&self.dataset, object, what))
    }

    fn mixed_orders(&self) -> SenderError {
        let what = "sending a dataset that machines of both byte orders have written";
        SenderError::Unsupported { dataset: self.dataset.to_string(), what }
    }
}

/// The bytes of a record's block.
enum Payload {
    Read(Block),
    Made(Vec<u8>),
}

impl std::ops::Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Read(block) => block,
            Self::Made(bytes) => bytes,
        }
    }
}

fn bad_block(length: usize, endian: Endian) -> Vec<u8> {
    let word = endian.bytes64(BAD_BLOCK);
    debug_assert!(length > 0, "a block has bytes");
    word.iter().copied().cycle().take(length).collect()
}

/// The parameters with which a block is encrypted or authenticated.
fn sealing(bp: &Blkptr) -> Sealing {
    let mac = bp.mac().unwrap_or_default();
    match bp.crypt_params() {
        Some(params) => Sealing { salt: params.salt_bytes, iv: params.iv, mac },
        None => Sealing { mac, ..Sealing::default() },
    }
}

/// The bytes of a dnode after its pointers, up to the spill pointer.
fn bonus_area(dnode: &Dnode) -> &[u8] {
    let bytes = dnode.bytes();
    let start = CORE_BYTES + usize::from(dnode.phys.blkptr_count) * Blkptr::SIZE;
    let has_spill = dnode.phys.flags.contains(DnodeFlags::SPILL_BLKPTR);
    let end = bytes.len() - if has_spill { Blkptr::SIZE } else { 0 };
    debug_assert!(start <= end, "a bonus lies between the pointers and the spill pointer");
    &bytes[start..end]
}

/// True if a checksum is strong enough to treat blocks with equal checksums as equal.
const fn is_for_dedup(checksum: Checksum) -> bool {
    matches!(checksum, Checksum::Sha256 | Checksum::Sha512 | Checksum::Skein | Checksum::Blake3)
}
