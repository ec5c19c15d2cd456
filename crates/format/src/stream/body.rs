//! The bodies of the records, one struct a kind; their bytes are pictured in [the parent module](super).

use super::{
    BeginFlags, Body, Features, HeaderKind, MAGIC, Record, RecordFlags, RecordKind, STRUCTURE, put_words, words,
};
use crate::endian::{Endian, Fields, put_u32, put_u64};
use crate::error::{FormatError, FormatErrorKind};
use crate::ids::{Guid, ObjectId};

/// Opens a stream or a package of streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// One stream or a package.
    pub header: HeaderKind,
    /// The features that a receiver must know.
    pub features: Features,
    /// The top six bits of the version info, reserved and zero so far.
    pub reserved: u8,
    /// The snapshot's creation time, in seconds since 1970.
    pub creation_time: u64,
    /// The objset type ([`crate::enums::ObjsetType`]) as its number; 0 in packages.
    pub objset_type: u32,
    /// Properties of the stream.
    pub flags: BeginFlags,
    /// The snapshot sent.
    pub to_guid: Guid,
    /// The snapshot it builds on; 0 for a full stream.
    pub from_guid: Guid,
    /// The sent snapshot's full name, without the NUL.
    pub to_name: Vec<u8>,
}

impl Begin {
    /// The longest name: the field has 256 bytes and ends with a NUL.
    pub const NAME_BYTES_MAX: usize = 255;
}

/// Creates an object or brings its dnode up to date; the bonus buffer follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The object.
    pub object: ObjectId,
    /// The dnode's type number.
    pub object_type: u32,
    /// The bonus buffer's type number.
    pub bonus_type: u32,
    /// Data block size.
    pub block_bytes: u32,
    /// Length of the bonus buffer in use.
    pub bonus_bytes: u32,
    /// The dnode's checksum property number.
    pub checksum_type: u8,
    /// The dnode's compression property number.
    pub compress: u8,
    /// Dnode slots; 0 means 1 (old senders).
    pub dnode_slots: u8,
    /// Flags.
    pub flags: RecordFlags,
    /// Raw streams: length of the bonus area as sent.
    pub raw_bonus_bytes: u32,
    /// The stream's snapshot.
    pub to_guid: Guid,
    /// Raw streams: log2 of the indirect block size.
    pub indirect_block_shift: u8,
    /// Raw streams: levels of the tree.
    pub levels: u8,
    /// Raw streams: block pointers in the dnode.
    pub block_pointers: u8,
    /// Raw streams: the highest block id.
    pub block_id_max: u64,
}

impl Object {
    /// Bytes of bonus buffer that follow.
    #[must_use]
    pub(crate) const fn payload_bytes(&self) -> u64 {
        // Widening; a `const fn` cannot call `u64::from`.
        if self.raw_bonus_bytes != 0 { self.raw_bonus_bytes as u64 } else { round_up_8(self.bonus_bytes as u64) }
    }
}

/// Frees a run of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeObjects {
    /// The first.
    pub first_object: ObjectId,
    /// How many.
    pub object_count: u64,
    /// The stream's snapshot.
    pub to_guid: Guid,
}

/// The checksum and properties that deduplication keys on (`ddt_key_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DedupKey {
    /// The block's checksum on the sender's disk.
    pub checksum: [u64; 4],
    /// Sizes, compression and encryption, packed as in the dedup table.
    pub properties: u64,
}

/// Salt, initialisation vector and authentication code of an encrypted block, raw streams only; else zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sealing {
    /// Salt that the block's key was derived with.
    pub salt: [u8; 8],
    /// Initialisation vector.
    pub iv: [u8; 12],
    /// Authentication code.
    pub mac: [u8; 16],
}

impl Sealing {
    const SIZE: usize = 36;

    fn parse(fields: &Fields<'_>, offset: usize) -> Result<Self, FormatError> {
        Ok(Self { salt: fields.array(offset)?, iv: fields.array(offset + 8)?, mac: fields.array(offset + 20)? })
    }

    fn emit(&self, out: &mut [u8], offset: usize) {
        out[offset..offset + 8].copy_from_slice(&self.salt);
        out[offset + 8..offset + 20].copy_from_slice(&self.iv);
        out[offset + 20..offset + Self::SIZE].copy_from_slice(&self.mac);
    }
}

/// One block of an object, which follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The object.
    pub object: ObjectId,
    /// Its type number.
    pub object_type: u32,
    /// Where in the object.
    pub offset_bytes: u64,
    /// How much, uncompressed.
    pub logical_bytes: u64,
    /// The stream's snapshot.
    pub to_guid: Guid,
    /// The algorithm of the key's checksum, as its number.
    pub checksum_type: u8,
    /// Flags.
    pub flags: RecordFlags,
    /// How the payload is compressed, as its number; 0 for not at all.
    pub compress: u8,
    /// Deduplication key.
    pub key: DedupKey,
    /// Length of the payload if compressed, else 0.
    pub compressed_bytes: u64,
    /// How it is encrypted, in raw streams.
    pub sealing: Sealing,
}

impl Write {
    /// Bytes of block that follow.
    #[must_use]
    pub const fn payload_bytes(&self) -> u64 {
        if self.compress != 0 { self.compressed_bytes } else { self.logical_bytes }
    }
}

/// Frees a range of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// The object.
    pub object: ObjectId,
    /// Where.
    pub offset_bytes: u64,
    /// How much; [`Free::TO_THE_END`] for all that follows.
    pub length_bytes: u64,
    /// The stream's snapshot.
    pub to_guid: Guid,
}

impl Free {
    /// The length that means "everything from the offset".
    pub const TO_THE_END: u64 = u64::MAX;
}

/// Closes a stream, a package's list (whose END comes right after its BEGIN) or a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The checksum of everything since BEGIN; zeros in the END of a package.
    pub stream_checksum: [u64; 4],
    /// The stream's snapshot; 0 for packages.
    pub to_guid: Guid,
}

/// A block equal to one earlier in the stream (or package).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteByRef {
    /// The object.
    pub object: ObjectId,
    /// Where in it.
    pub offset_bytes: u64,
    /// How much.
    pub length_bytes: u64,
    /// The stream's snapshot.
    pub to_guid: Guid,
    /// The snapshot that has the block.
    pub reference_guid: Guid,
    /// The object there.
    pub reference_object: ObjectId,
    /// The offset there.
    pub reference_offset_bytes: u64,
    /// The algorithm of the key's checksum, as its number.
    pub checksum_type: u8,
    /// Flags.
    pub flags: RecordFlags,
    /// Deduplication key.
    pub key: DedupKey,
}

/// An object's spill block, which follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spill {
    /// The object.
    pub object: ObjectId,
    /// Length, uncompressed.
    pub length_bytes: u64,
    /// The stream's snapshot.
    pub to_guid: Guid,
    /// Flags.
    pub flags: RecordFlags,
    /// How the payload is compressed, as its number.
    pub compress: u8,
    /// Length of the payload if not 0.
    pub compressed_bytes: u64,
    /// How it is encrypted, in raw streams.
    pub sealing: Sealing,
    /// Its type number, in raw streams.
    pub object_type: u32,
}

impl Spill {
    /// Bytes of spill block that follow.
    #[must_use]
    pub const fn payload_bytes(&self) -> u64 {
        if self.compressed_bytes != 0 { self.compressed_bytes } else { self.length_bytes }
    }
}

/// A block that lives in its block pointer; its bytes follow, padded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteEmbedded {
    /// The object.
    pub object: ObjectId,
    /// Where in it.
    pub offset_bytes: u64,
    /// The block size.
    pub length_bytes: u64,
    /// The stream's snapshot.
    pub to_guid: Guid,
    /// How the payload is compressed, as its number.
    pub compress: u8,
    /// The embedded block pointer's type number.
    pub embedded_type: u8,
    /// Length uncompressed.
    pub logical_bytes: u32,
    /// Length of the payload before padding.
    pub physical_bytes: u32,
}

impl WriteEmbedded {
    /// Bytes that follow, padding included.
    #[must_use]
    pub(crate) const fn payload_bytes(&self) -> u64 {
        round_up_8(self.physical_bytes as u64)
    }
}

/// How one block of dnodes is encrypted, in raw streams; sent before the objects in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// The first object (slot).
    pub first_object: ObjectId,
    /// Slots in the block.
    pub slot_count: u64,
    /// The stream's snapshot.
    pub to_guid: Guid,
    /// How it is encrypted.
    pub sealing: Sealing,
    /// Flags.
    pub flags: RecordFlags,
}

/// A range whose contents were withheld.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redact {
    /// The object.
    pub object: ObjectId,
    /// Where.
    pub offset_bytes: u64,
    /// How much.
    pub length_bytes: u64,
    /// The stream's snapshot.
    pub to_guid: Guid,
}

const fn round_up_8(bytes: u64) -> u64 {
    // Callers widen from 32 bits, so this cannot overflow.
    (bytes + 7) & !7
}

const HEADER_BITS: u32 = 2;
const FEATURE_BITS: u32 = 56;
const FEATURE_MASK: u64 = (1 << FEATURE_BITS) - 1;

pub(super) fn parse(f: &Fields<'_>, kind: RecordKind) -> Result<Body, FormatError> {
    let flags = |offset| f.u8(offset).map(RecordFlags::from_bits_retain);
    let key = |offset| Ok(DedupKey { checksum: words(f, offset)?, properties: f.u64(offset + 32)? });
    Ok(match kind {
        RecordKind::Begin => Body::Begin(parse_begin(f)?),
        RecordKind::Object => Body::Object(Object {
            object: ObjectId(f.u64(8)?),
            object_type: f.u32(16)?,
            bonus_type: f.u32(20)?,
            block_bytes: f.u32(24)?,
            bonus_bytes: f.u32(28)?,
            checksum_type: f.u8(32)?,
            compress: f.u8(33)?,
            dnode_slots: f.u8(34)?,
            flags: flags(35)?,
            raw_bonus_bytes: f.u32(36)?,
            to_guid: Guid(f.u64(40)?),
            indirect_block_shift: f.u8(48)?,
            levels: f.u8(49)?,
            block_pointers: f.u8(50)?,
            block_id_max: f.u64(56)?,
        }),
        RecordKind::FreeObjects => Body::FreeObjects(FreeObjects {
            first_object: ObjectId(f.u64(8)?),
            object_count: f.u64(16)?,
            to_guid: Guid(f.u64(24)?),
        }),
        RecordKind::Write => Body::Write(Write {
            object: ObjectId(f.u64(8)?),
            object_type: f.u32(16)?,
            offset_bytes: f.u64(24)?,
            logical_bytes: f.u64(32)?,
            to_guid: Guid(f.u64(40)?),
            checksum_type: f.u8(48)?,
            flags: flags(49)?,
            compress: f.u8(50)?,
            key: key(56)?,
            compressed_bytes: f.u64(96)?,
            sealing: Sealing::parse(f, 104)?,
        }),
        RecordKind::Free => Body::Free(Free {
            object: ObjectId(f.u64(8)?),
            offset_bytes: f.u64(16)?,
            length_bytes: f.u64(24)?,
            to_guid: Guid(f.u64(32)?),
        }),
        RecordKind::End => Body::End(End { stream_checksum: words(f, 8)?, to_guid: Guid(f.u64(40)?) }),
        RecordKind::WriteByRef => Body::WriteByRef(WriteByRef {
            object: ObjectId(f.u64(8)?),
            offset_bytes: f.u64(16)?,
            length_bytes: f.u64(24)?,
            to_guid: Guid(f.u64(32)?),
            reference_guid: Guid(f.u64(40)?),
            reference_object: ObjectId(f.u64(48)?),
            reference_offset_bytes: f.u64(56)?,
            checksum_type: f.u8(64)?,
            flags: flags(65)?,
            key: key(72)?,
        }),
        RecordKind::Spill => Body::Spill(Spill {
            object: ObjectId(f.u64(8)?),
            length_bytes: f.u64(16)?,
            to_guid: Guid(f.u64(24)?),
            flags: flags(32)?,
            compress: f.u8(33)?,
            compressed_bytes: f.u64(40)?,
            sealing: Sealing::parse(f, 48)?,
            object_type: f.u32(84)?,
        }),
        RecordKind::WriteEmbedded => Body::WriteEmbedded(WriteEmbedded {
            object: ObjectId(f.u64(8)?),
            offset_bytes: f.u64(16)?,
            length_bytes: f.u64(24)?,
            to_guid: Guid(f.u64(32)?),
            compress: f.u8(40)?,
            embedded_type: f.u8(41)?,
            logical_bytes: f.u32(48)?,
            physical_bytes: f.u32(52)?,
        }),
        RecordKind::ObjectRange => Body::ObjectRange(ObjectRange {
            first_object: ObjectId(f.u64(8)?),
            slot_count: f.u64(16)?,
            to_guid: Guid(f.u64(24)?),
            sealing: Sealing::parse(f, 32)?,
            flags: flags(68)?,
        }),
        RecordKind::Redact => Body::Redact(Redact {
            object: ObjectId(f.u64(8)?),
            offset_bytes: f.u64(16)?,
            length_bytes: f.u64(24)?,
            to_guid: Guid(f.u64(32)?),
        }),
    })
}

fn parse_begin(f: &Fields<'_>) -> Result<Begin, FormatError> {
    let magic = f.u64(8)?;
    if magic != MAGIC {
        return Err(f.error(8, FormatErrorKind::BadMagic { found: magic, expected: MAGIC }));
    }
    let version_info = f.u64(16)?;
    let name_field = f.slice(56, Begin::NAME_BYTES_MAX + 1)?;
    let name_bytes = name_field
        .iter()
        .position(|byte| *byte == 0)
        .ok_or_else(|| FormatError::malformed(STRUCTURE, 56, "the snapshot's name has no end"))?;
    Ok(Begin {
        // Truncations by design: the fields of the packed word.
        header: HeaderKind::from_number((version_info & 3) as u8),
        features: Features::from_bits_retain((version_info >> HEADER_BITS) & FEATURE_MASK),
        reserved: (version_info >> (HEADER_BITS + FEATURE_BITS)) as u8,
        creation_time: f.u64(24)?,
        objset_type: f.u32(32)?,
        flags: BeginFlags::from_bits_retain(f.u32(36)?),
        to_guid: Guid(f.u64(40)?),
        from_guid: Guid(f.u64(48)?),
        to_name: name_field[..name_bytes].to_vec(),
    })
}

pub(super) fn emit(body: &Body, out: &mut [u8; Record::SIZE], endian: Endian) {
    fn u64s(out: &mut [u8], endian: Endian, values: &[(usize, u64)]) {
        for (offset, value) in values {
            put_u64(out, *offset, *value, endian);
        }
    }
    fn u32s(out: &mut [u8], endian: Endian, values: &[(usize, u32)]) {
        for (offset, value) in values {
            put_u32(out, *offset, *value, endian);
        }
    }
    fn u8s(out: &mut [u8], values: &[(usize, u8)]) {
        for (offset, value) in values {
            out[*offset] = *value;
        }
    }
    match body {
        Body::Begin(b) => {
            assert!(b.to_name.len() <= Begin::NAME_BYTES_MAX, "snapshot name too long for a stream");
            assert!(!b.to_name.contains(&0), "snapshot name contains a NUL");
            let version_info = u64::from(b.header.number() & 3)
                | (b.features.bits() & FEATURE_MASK) << HEADER_BITS
                | u64::from(b.reserved) << (HEADER_BITS + FEATURE_BITS);
            u64s(out, endian, &[(8, MAGIC), (16, version_info), (24, b.creation_time)]);
            u32s(out, endian, &[(32, b.objset_type), (36, b.flags.bits())]);
            u64s(out, endian, &[(40, b.to_guid.0), (48, b.from_guid.0)]);
            out[56..56 + b.to_name.len()].copy_from_slice(&b.to_name);
        }
        Body::Object(o) => {
            u64s(out, endian, &[(8, o.object.0), (40, o.to_guid.0), (56, o.block_id_max)]);
            u32s(out, endian, &[(16, o.object_type), (20, o.bonus_type), (24, o.block_bytes), (28, o.bonus_bytes)]);
            u32s(out, endian, &[(36, o.raw_bonus_bytes)]);
            u8s(out, &[(32, o.checksum_type), (33, o.compress), (34, o.dnode_slots), (35, o.flags.bits())]);
            u8s(out, &[(48, o.indirect_block_shift), (49, o.levels), (50, o.block_pointers)]);
        }
        Body::FreeObjects(o) => {
            u64s(out, endian, &[(8, o.first_object.0), (16, o.object_count), (24, o.to_guid.0)]);
        }
        Body::Write(w) => {
            u64s(out, endian, &[(8, w.object.0), (24, w.offset_bytes), (32, w.logical_bytes), (40, w.to_guid.0)]);
            u32s(out, endian, &[(16, w.object_type)]);
            u8s(out, &[(48, w.checksum_type), (49, w.flags.bits()), (50, w.compress)]);
            put_words(out, 56, &w.key.checksum, endian);
            u64s(out, endian, &[(88, w.key.properties), (96, w.compressed_bytes)]);
            w.sealing.emit(out, 104);
        }
        Body::Free(r) => {
            u64s(out, endian, &[(8, r.object.0), (16, r.offset_bytes), (24, r.length_bytes), (32, r.to_guid.0)]);
        }
        Body::End(e) => {
            put_words(out, 8, &e.stream_checksum, endian);
            u64s(out, endian, &[(40, e.to_guid.0)]);
        }
        Body::WriteByRef(w) => {
            u64s(out, endian, &[(8, w.object.0), (16, w.offset_bytes), (24, w.length_bytes), (32, w.to_guid.0)]);
            u64s(out, endian, &[(40, w.reference_guid.0), (48, w.reference_object.0), (56, w.reference_offset_bytes)]);
            u8s(out, &[(64, w.checksum_type), (65, w.flags.bits())]);
            put_words(out, 72, &w.key.checksum, endian);
            u64s(out, endian, &[(104, w.key.properties)]);
        }
        Body::Spill(s) => {
            u64s(out, endian, &[(8, s.object.0), (16, s.length_bytes), (24, s.to_guid.0), (40, s.compressed_bytes)]);
            u8s(out, &[(32, s.flags.bits()), (33, s.compress)]);
            s.sealing.emit(out, 48);
            u32s(out, endian, &[(84, s.object_type)]);
        }
        Body::WriteEmbedded(w) => {
            u64s(out, endian, &[(8, w.object.0), (16, w.offset_bytes), (24, w.length_bytes), (32, w.to_guid.0)]);
            u8s(out, &[(40, w.compress), (41, w.embedded_type)]);
            u32s(out, endian, &[(48, w.logical_bytes), (52, w.physical_bytes)]);
        }
        Body::ObjectRange(r) => {
            u64s(out, endian, &[(8, r.first_object.0), (16, r.slot_count), (24, r.to_guid.0)]);
            r.sealing.emit(out, 32);
            u8s(out, &[(68, r.flags.bits())]);
        }
        Body::Redact(r) => {
            u64s(out, endian, &[(8, r.object.0), (16, r.offset_bytes), (24, r.length_bytes), (32, r.to_guid.0)]);
        }
    }
}
