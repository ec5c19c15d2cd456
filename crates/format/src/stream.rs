//! Send streams: the replay record (`dmu_replay_record`) in all its kinds, both byte orders.
//!
//! A stream is a run of records of [`Record::SIZE`] bytes, each followed by its payload (none for most kinds). The
//! machine that sends writes in its own order; the first record's magic number tells which.
//!
//! ```text
//!   0        4            8                                            280                312
//!   +--------+------------+--------------------------------------------+------------------+
//!   | type   | payload    | body, by type (below)                      | checksum         |
//!   | u32    | length u32 |                                            | 4 x u64          |
//!   +--------+------------+--------------------------------------------+------------------+
//!
//! BEGIN         8 magic  16 version info  24 creation time  32 objset type u32  36 flags u32
//!              40 to guid  48 from guid  56 name, NUL-terminated, 256 bytes (up to the record's end: no checksum)
//! OBJECT        8 object  16 type u32  20 bonus type u32  24 block size u32  28 bonus length u32  32 checksum type
//!              33 compression  34 dnode slots  35 flags  36 raw bonus length u32  40 to guid  48 indirect block shift
//!              49 levels  50 block pointers  56 highest block id                        payload: the bonus buffer
//! FREEOBJECTS   8 first object  16 count  24 to guid
//! WRITE         8 object  16 type u32  24 offset  32 logical size  40 to guid  48 checksum type  49 flags
//!              50 compression  56 dedup key: checksum 4 x u64, properties  96 compressed size
//!             104 salt[8]  112 iv[12]  124 mac[16]                                      payload: the block
//! FREE          8 object  16 offset  24 length (all ones: to the end)  32 to guid
//! END           8 checksum 4 x u64, of the whole stream  40 to guid
//! WRITE_BYREF   8 object  16 offset  24 length  32 to guid  40 ref guid  48 ref object  56 ref offset
//!              64 checksum type  65 flags  72 dedup key
//! SPILL         8 object  16 length  24 to guid  32 flags  33 compression  40 compressed size
//!              48 salt[8]  56 iv[12]  68 mac[16]  84 type u32                           payload: the spill block
//! WRITE_EMBEDDED 8 object  16 offset  24 length  32 to guid  40 compression  41 embedded type  48 logical size u32
//!              52 physical size u32                                                     payload: rounded up to 8
//! OBJECT_RANGE  8 first object  16 slots  24 to guid  32 salt[8]  40 iv[12]  52 mac[16]  68 flags
//! REDACT        8 object  16 offset  24 length  32 to guid
//! ```
//!
//! The checksum at byte 280 is the running fletcher-4 of everything in the stream before it (payloads and earlier
//! records' checksums included), in 32-bit words of the sender's order. It is zero in BEGIN, whose name occupies its
//! place, and in streams of old senders. The version info of BEGIN packs two bits of header type and 56 bits of
//! feature flags:
//!
//! ```text
//!   63    58 57                                                    2 1   0
//!   +-------+-------------------------------------------------------+-----+
//!   | 0     | feature flags                                         | hdr |   hdr: 1 one stream, 2 a package of them
//!   +-------+-------------------------------------------------------+-----+
//! ```

mod body;
#[cfg(test)]
mod tests;

pub use body::{
    Begin, DedupKey, End, Free, FreeObjects, Object, ObjectRange, Redact, Sealing, Spill, Write, WriteByRef,
    WriteEmbedded,
};

use crate::endian::{Endian, Fields, put_u32};
use crate::enums::disk_enum;
use crate::error::{FormatError, FormatErrorKind};
use crate::words::DiskField;

/// The number at the head of every BEGIN record (`DMU_BACKUP_MAGIC`).
pub const MAGIC: u64 = 0x0002_f5ba_cbac;

/// The largest payload that any OpenZFS receives with a BEGIN record: the package list of a replication stream can
/// grow with the number of datasets and snapshots. From `dmu_recv.c`.
pub const BEGIN_PAYLOAD_BYTES_MAX: u64 = 1 << 28;

/// The largest payload of any other record: one block (`SPA_MAXBLOCKSIZE`).
pub const BLOCK_PAYLOAD_BYTES_MAX: u64 = 1 << 24;

bitflags::bitflags! {
    /// The features of a stream that not every receiver knows (`DMU_BACKUP_FEATURE_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Features: u64 {
        /// WRITE_BYREF records (removed in OpenZFS 2.0; `zstream redup` undoes it).
        const DEDUP = 1 << 0;
        /// Deduplicated by the pool's own table.
        const DEDUPPROPS = 1 << 1;
        /// System attributes with spill blocks.
        const SA_SPILL = 1 << 2;
        /// WRITE_EMBEDDED records.
        const EMBED_DATA = 1 << 16;
        /// LZ4-compressed metadata or data.
        const LZ4 = 1 << 17;
        /// Blocks above 128 KiB.
        const LARGE_BLOCKS = 1 << 19;
        /// Continues an interrupted stream.
        const RESUMING = 1 << 20;
        /// REDACT records; the payload of BEGIN lists the redaction snapshots.
        const REDACTED = 1 << 21;
        /// Blocks as they lie on disk, compressed.
        const COMPRESSED = 1 << 22;
        /// Dnodes above 512 bytes.
        const LARGE_DNODE = 1 << 23;
        /// Encrypted blocks as they lie on disk.
        const RAW = 1 << 24;
        /// Zstandard-compressed blocks.
        const ZSTD = 1 << 25;
        /// The package list carries holds.
        const HOLDS = 1 << 26;
        /// Incremental with large blocks on a base without.
        const SWITCH_TO_LARGE_BLOCKS = 1 << 27;
        /// Names above 255 bytes.
        const LONGNAME = 1 << 28;
        /// Micro ZAPs above 128 KiB.
        const LARGE_MICROZAP = 1 << 29;

        // Unknown flags are kept: whether one matters is the receiver's decision.
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Properties of a whole stream (`DRR_FLAG_*`, in BEGIN).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct BeginFlags: u32 {
        /// To be received as a clone.
        const CLONE = 1 << 0;
        /// The file system ignores case.
        const CI_DATA = 1 << 1;
        /// A full stream that nevertheless carries FREE and FREEOBJECTS, so it can be received as a clone.
        const FREERECORDS = 1 << 2;
        /// OBJECT and SPILL records tell about spill blocks in their flags.
        const SPILL_BLOCK = 1 << 3;

        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Properties of one record (`DRR_*`, in OBJECT, WRITE, WRITE_BYREF, SPILL and OBJECT_RANGE).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RecordFlags: u8 {
        /// The checksum in the dedup key is strong enough to deduplicate by.
        const CHECKSUM_DEDUP = 1 << 0;
        /// A raw block whose order on the sender's disk is not the stream's.
        const RAW_BYTESWAP = 1 << 1;
        /// In OBJECT: there is a spill block. In SPILL: the block has not changed, and is there for old receivers.
        const SPILL = 1 << 2;

        const _ = !0;
    }
}

/// Whether a BEGIN record opens one stream or a package of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderKind {
    /// One snapshot, or the difference of two.
    Substream,
    /// A package (`zfs send -R`, `-I`, `-p`): a list as payload, its own END, then streams, then a last END.
    Compound,
    /// Neither; the raw two bits. Receivers refuse it.
    Unknown(u8),
}

impl HeaderKind {
    /// The two bits.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Substream => 1,
            Self::Compound => 2,
            Self::Unknown(number) => number,
        }
    }

    const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Substream,
            2 => Self::Compound,
            other => Self::Unknown(other),
        }
    }
}

/// Declares the kinds of record, and the body of each by its name.
macro_rules! records {
    ($($(#[$doc:meta])* $kind:ident = $number:literal, $text:literal;)*) => {
        disk_enum! {
            /// The kinds of record, with the names that OpenZFS prints in summaries.
            RecordKind: u32 { $($(#[$doc])* $kind = $number, $text;)* }
        }

        /// The fields of a record, by kind.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Body { $(#[doc = concat!("See [`", stringify!($kind), "`].")] $kind($kind),)* }

        impl Body {
            /// The kind.
            #[must_use]
            pub const fn kind(&self) -> RecordKind {
                match self { $(Self::$kind(_) => RecordKind::$kind,)* }
            }

            fn read(fields: &Fields<'_>, kind: RecordKind) -> Result<Self, FormatError> {
                Ok(match kind { $(RecordKind::$kind => Self::$kind(DiskField::read(fields, 0)?),)* })
            }

            fn write(&self, out: &mut [u8], endian: Endian) {
                match self { $(Self::$kind(body) => body.write(out, 0, endian),)* }
            }
        }
    };
}

records! {
    /// Opens a stream or a package.
    Begin = 0, "DRR_BEGIN";
    /// Creates or changes an object.
    Object = 1, "DRR_OBJECT";
    /// Frees a run of objects.
    FreeObjects = 2, "DRR_FREEOBJECTS";
    /// One block of an object.
    Write = 3, "DRR_WRITE";
    /// Punches a hole.
    Free = 4, "DRR_FREE";
    /// Closes what BEGIN opened.
    End = 5, "DRR_END";
    /// A block equal to one sent before.
    WriteByRef = 6, "DRR_WRITE_BYREF";
    /// An object's spill block.
    Spill = 7, "DRR_SPILL";
    /// A block so small that it lives in its block pointer.
    WriteEmbedded = 8, "DRR_WRITE_EMBEDDED";
    /// Encryption parameters of a block of dnodes (raw streams).
    ObjectRange = 9, "DRR_OBJECT_RANGE";
    /// A range left out by redaction.
    Redact = 10, "DRR_REDACT";
}

/// One record, without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The length field. Only BEGIN's is meaningful; other kinds' payloads follow from their bodies.
    pub payload_length: u32,
    /// Its kind, and the fields of that kind.
    pub body: Body,
    /// The running checksum of all that precedes it in the stream, or zeros. Always zeros in BEGIN.
    pub checksum: [u64; 4],
}

const STRUCTURE: &str = "send stream record";

impl Record {
    /// Bytes of a record.
    pub const SIZE: usize = 312;
    /// Where the running checksum lies; it covers everything up to here.
    pub const CHECKSUM_OFFSET: usize = 280;

    /// Which byte order the stream that begins with these bytes was written in, if it is one at all.
    #[must_use]
    pub fn stream_endian(first_record: &[u8]) -> Option<Endian> {
        let magic: [u8; 8] = first_record.get(8..16)?.try_into().ok()?;
        [Endian::Little, Endian::Big].into_iter().find(|endian| endian.u64(magic) == MAGIC)
    }

    /// Reads a record from its first [`Self::SIZE`] bytes.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new(STRUCTURE, bytes, Self::SIZE, endian)?;
        let number = fields.u32(0)?;
        let kind = RecordKind::from_number(number)
            .ok_or_else(|| FormatError::invalid(STRUCTURE, 0, "type", u64::from(number), "0 to 10"))?;
        let body = Body::read(&fields, kind)?;
        let checksum =
            if kind == RecordKind::Begin { [0; 4] } else { DiskField::read(&fields, Self::CHECKSUM_OFFSET)? };
        Ok(Self { payload_length: fields.u32(4)?, body, checksum })
    }

    /// The record's bytes.
    ///
    /// # Panics
    /// If a BEGIN record's name is longer than [`Begin::NAME_BYTES_MAX`] or contains a NUL.
    #[must_use]
    pub fn emit(&self, endian: Endian) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        put_u32(&mut out, 0, self.body.kind().number(), endian);
        put_u32(&mut out, 4, self.payload_length, endian);
        self.body.write(&mut out, endian);
        if !matches!(self.body, Body::Begin(_)) {
            self.checksum.write(&mut out, Self::CHECKSUM_OFFSET, endian);
        }
        out
    }

    /// How many bytes of payload follow this record; an error if that is more than the kind allows, or not a whole
    /// number of the checksum's words.
    pub fn payload_bytes(&self) -> Result<u64, FormatError> {
        let (bytes, limit) = match &self.body {
            Body::Begin(_) => (u64::from(self.payload_length), BEGIN_PAYLOAD_BYTES_MAX),
            Body::Object(object) => (object.payload_bytes(), BLOCK_PAYLOAD_BYTES_MAX),
            Body::Write(write) => (write.payload_bytes(), BLOCK_PAYLOAD_BYTES_MAX),
            Body::Spill(spill) => (spill.payload_bytes(), BLOCK_PAYLOAD_BYTES_MAX),
            Body::WriteEmbedded(embedded) => (embedded.payload_bytes(), BLOCK_PAYLOAD_BYTES_MAX),
            Body::FreeObjects(_)
            | Body::Free(_)
            | Body::End(_)
            | Body::WriteByRef(_)
            | Body::ObjectRange(_)
            | Body::Redact(_) => (0, 0),
        };
        if bytes > limit {
            let kind = FormatErrorKind::Limit { what: "payload bytes", value: bytes, limit };
            return Err(FormatError { structure: STRUCTURE, offset: 4, kind });
        }
        if bytes % 4 != 0 {
            return Err(FormatError::invalid(STRUCTURE, 4, "payload bytes", bytes, "a multiple of 4"));
        }
        Ok(bytes)
    }
}
