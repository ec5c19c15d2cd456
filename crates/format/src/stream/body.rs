//! The bodies of the records, one struct a kind; their bytes are pictured in [the parent module](super).

use super::{BeginFlags, Features, HeaderKind, MAGIC, RecordFlags, STRUCTURE};
use crate::endian::{Endian, Fields};
use crate::error::{FormatError, FormatErrorKind};
use crate::ids::{Guid, ObjectId};
use crate::words::{DiskField, fixed_struct, one_field};

one_field! { RecordFlags as u8: |flags| Self::from_bits_retain(flags), |value| value.bits(); }

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

fixed_struct! {
    /// Creates an object or brings its dnode up to date; the bonus buffer follows.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Object {
        /// The object.
        8 object: ObjectId,
        /// The dnode's type number.
        16 object_type: u32,
        /// The bonus buffer's type number.
        20 bonus_type: u32,
        /// Data block size.
        24 block_bytes: u32,
        /// Length of the bonus buffer in use.
        28 bonus_bytes: u32,
        /// The dnode's checksum property number.
        32 checksum_type: u8,
        /// The dnode's compression property number.
        33 compress: u8,
        /// Dnode slots; 0 means 1 (old senders).
        34 dnode_slots: u8,
        /// Flags.
        35 flags: RecordFlags,
        /// Raw streams: length of the bonus area as sent.
        36 raw_bonus_bytes: u32,
        /// The stream's snapshot.
        40 to_guid: Guid,
        /// Raw streams: log2 of the indirect block size.
        48 indirect_block_shift: u8,
        /// Raw streams: levels of the tree.
        49 levels: u8,
        /// Raw streams: block pointers in the dnode.
        50 block_pointers: u8,
        /// Raw streams: the highest block id.
        56 block_id_max: u64,
    }
}

impl Object {
    /// Bytes of bonus buffer that follow.
    #[must_use]
    pub(crate) const fn payload_bytes(&self) -> u64 {
        // Widening; a `const fn` cannot call `u64::from`.
        if self.raw_bonus_bytes != 0 { self.raw_bonus_bytes as u64 } else { round_up_8(self.bonus_bytes as u64) }
    }
}

fixed_struct! {
    /// Frees a run of objects.
    #[derive(Clone, Debug, PartialEq, Eq)]
    FreeObjects {
        /// The first.
        8 first_object: ObjectId,
        /// How many.
        16 object_count: u64,
        /// The stream's snapshot.
        24 to_guid: Guid,
    }
}

fixed_struct! {
    /// The checksum and properties that deduplication keys on (`ddt_key_t`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    DedupKey {
        /// The block's checksum on the sender's disk.
        0 checksum: [u64; 4],
        /// Sizes, compression and encryption, packed as in the dedup table.
        32 properties: u64,
    }
}

fixed_struct! {
    /// Salt, initialisation vector and authentication code of an encrypted block, raw streams only; else zeros.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Sealing {
        /// Salt that the block's key was derived with.
        0 salt: [u8; 8],
        /// Initialisation vector.
        8 iv: [u8; 12],
        /// Authentication code.
        20 mac: [u8; 16],
    }
}

fixed_struct! {
    /// One block of an object, which follows.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Write {
        /// The object.
        8 object: ObjectId,
        /// Its type number.
        16 object_type: u32,
        /// Where in the object.
        24 offset_bytes: u64,
        /// How much, uncompressed.
        32 logical_bytes: u64,
        /// The stream's snapshot.
        40 to_guid: Guid,
        /// The algorithm of the key's checksum, as its number.
        48 checksum_type: u8,
        /// Flags.
        49 flags: RecordFlags,
        /// How the payload is compressed, as its number; 0 for not at all.
        50 compress: u8,
        /// Deduplication key.
        56 key: DedupKey,
        /// Length of the payload if compressed, else 0.
        96 compressed_bytes: u64,
        /// How it is encrypted, in raw streams.
        104 sealing: Sealing,
    }
}

impl Write {
    /// Bytes of block that follow.
    #[must_use]
    pub const fn payload_bytes(&self) -> u64 {
        if self.compress != 0 { self.compressed_bytes } else { self.logical_bytes }
    }
}

fixed_struct! {
    /// Frees a range of an object.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Free {
        /// The object.
        8 object: ObjectId,
        /// Where.
        16 offset_bytes: u64,
        /// How much; [`Free::TO_THE_END`] for all that follows.
        24 length_bytes: u64,
        /// The stream's snapshot.
        32 to_guid: Guid,
    }
}

impl Free {
    /// The length that means "everything from the offset".
    pub const TO_THE_END: u64 = u64::MAX;
}

fixed_struct! {
    /// Closes a stream, a package's list (whose END comes right after its BEGIN) or a package.
    #[derive(Clone, Debug, PartialEq, Eq)]
    End {
        /// The checksum of everything since BEGIN; zeros in the END of a package.
        8 stream_checksum: [u64; 4],
        /// The stream's snapshot; 0 for packages.
        40 to_guid: Guid,
    }
}

fixed_struct! {
    /// A block equal to one earlier in the stream (or package).
    #[derive(Clone, Debug, PartialEq, Eq)]
    WriteByRef {
        /// The object.
        8 object: ObjectId,
        /// Where in it.
        16 offset_bytes: u64,
        /// How much.
        24 length_bytes: u64,
        /// The stream's snapshot.
        32 to_guid: Guid,
        /// The snapshot that has the block.
        40 reference_guid: Guid,
        /// The object there.
        48 reference_object: ObjectId,
        /// The offset there.
        56 reference_offset_bytes: u64,
        /// The algorithm of the key's checksum, as its number.
        64 checksum_type: u8,
        /// Flags.
        65 flags: RecordFlags,
        /// Deduplication key.
        72 key: DedupKey,
    }
}

fixed_struct! {
    /// An object's spill block, which follows.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Spill {
        /// The object.
        8 object: ObjectId,
        /// Length, uncompressed.
        16 length_bytes: u64,
        /// The stream's snapshot.
        24 to_guid: Guid,
        /// Flags.
        32 flags: RecordFlags,
        /// How the payload is compressed, as its number.
        33 compress: u8,
        /// Length of the payload if not 0.
        40 compressed_bytes: u64,
        /// How it is encrypted, in raw streams.
        48 sealing: Sealing,
        /// Its type number, in raw streams.
        84 object_type: u32,
    }
}

impl Spill {
    /// Bytes of spill block that follow.
    #[must_use]
    pub const fn payload_bytes(&self) -> u64 {
        if self.compressed_bytes != 0 { self.compressed_bytes } else { self.length_bytes }
    }
}

fixed_struct! {
    /// A block that lives in its block pointer; its bytes follow, padded.
    #[derive(Clone, Debug, PartialEq, Eq)]
    WriteEmbedded {
        /// The object.
        8 object: ObjectId,
        /// Where in it.
        16 offset_bytes: u64,
        /// The block size.
        24 length_bytes: u64,
        /// The stream's snapshot.
        32 to_guid: Guid,
        /// How the payload is compressed, as its number.
        40 compress: u8,
        /// The embedded block pointer's type number.
        41 embedded_type: u8,
        /// Length uncompressed.
        48 logical_bytes: u32,
        /// Length of the payload before padding.
        52 physical_bytes: u32,
    }
}

impl WriteEmbedded {
    /// Bytes that follow, padding included.
    #[must_use]
    pub(crate) const fn payload_bytes(&self) -> u64 {
        round_up_8(self.physical_bytes as u64)
    }
}

fixed_struct! {
    /// How one block of dnodes is encrypted, in raw streams; sent before the objects in it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ObjectRange {
        /// The first object (slot).
        8 first_object: ObjectId,
        /// Slots in the block.
        16 slot_count: u64,
        /// The stream's snapshot.
        24 to_guid: Guid,
        /// How it is encrypted.
        32 sealing: Sealing,
        /// Flags.
        68 flags: RecordFlags,
    }
}

fixed_struct! {
    /// A range whose contents were withheld.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Redact {
        /// The object.
        8 object: ObjectId,
        /// Where.
        16 offset_bytes: u64,
        /// How much.
        24 length_bytes: u64,
        /// The stream's snapshot.
        32 to_guid: Guid,
    }
}

const fn round_up_8(bytes: u64) -> u64 {
    // Callers widen from 32 bits, so this cannot overflow.
    (bytes + 7) & !7
}

const HEADER_BITS: u32 = 2;
const FEATURE_BITS: u32 = 56;
const FEATURE_MASK: u64 = (1 << FEATURE_BITS) - 1;

impl DiskField for Begin {
    const BYTES: usize = 56 + Self::NAME_BYTES_MAX + 1;

    fn read(f: &Fields<'_>, _: usize) -> Result<Self, FormatError> {
        let magic = f.u64(8)?;
        if magic != MAGIC {
            return Err(f.error(8, FormatErrorKind::BadMagic { found: magic, expected: MAGIC }));
        }
        let version_info = f.u64(16)?;
        let name_field = f.slice(56, Self::NAME_BYTES_MAX + 1)?;
        let name_bytes = name_field
            .iter()
            .position(|byte| *byte == 0)
            .ok_or_else(|| FormatError::malformed(STRUCTURE, 56, "the snapshot's name has no end"))?;
        Ok(Self {
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

    fn write(&self, out: &mut [u8], _: usize, endian: Endian) {
        assert!(self.to_name.len() <= Self::NAME_BYTES_MAX, "snapshot name too long for a stream");
        assert!(!self.to_name.contains(&0), "snapshot name contains a NUL");
        let version_info = u64::from(self.header.number() & 3)
            | (self.features.bits() & FEATURE_MASK) << HEADER_BITS
            | u64::from(self.reserved) << (HEADER_BITS + FEATURE_BITS);
        let types = [self.objset_type, self.flags.bits()];
        [MAGIC, version_info, self.creation_time].write(out, 8, endian);
        types.write(out, 32, endian);
        [self.to_guid, self.from_guid].write(out, 40, endian);
        out[56..56 + self.to_name.len()].copy_from_slice(&self.to_name);
    }
}
