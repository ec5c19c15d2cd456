//! Object types: what an object (or a bonus buffer) holds, as one byte of a dnode or block pointer.
//!
//! ```text
//! enumerated (bit 7 clear)                 described (bit 7 set)
//!   7   6                     0              7   6   5   4               0
//! +---+-------------------------+          +---+---+---+-------------------+
//! | 0 | number 0..=53           |          | 1 | M | E | byte-swap kind    |
//! +---+-------------------------+          +---+---+---+-------------------+
//! ```
//!
//! `M` marks metadata, `E` data that an encrypted dataset encrypts (rather than authenticates). The enumeration is
//! closed: since feature flags came, new objects use the described form, which older readers understand without a table.

use std::fmt;

/// How the contents of a block depend on the byte order of their writer (`dmu_object_byteswap_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Byteswap {
    /// Bytes; the same in both orders.
    Uint8 = 0,
    /// An array of 16-bit integers.
    Uint16 = 1,
    /// An array of 32-bit integers.
    Uint32 = 2,
    /// An array of 64-bit integers.
    Uint64 = 3,
    /// A ZAP block.
    Zap = 4,
    /// A block of dnodes.
    Dnode = 5,
    /// An objset.
    Objset = 6,
    /// A znode of before system attributes.
    Znode = 7,
    /// An ACL of before FUIDs.
    Oldacl = 8,
    /// An ACL.
    Acl = 9,
}

impl Byteswap {
    /// Every kind, in the order of the numbers.
    pub const ALL: [Self; 10] = [
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Zap,
        Self::Dnode,
        Self::Objset,
        Self::Znode,
        Self::Oldacl,
        Self::Acl,
    ];

    /// The name OpenZFS prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Zap => "zap",
            Self::Dnode => "dnode",
            Self::Objset => "objset",
            Self::Znode => "znode",
            Self::Oldacl => "oldacl",
            Self::Acl => "acl",
        }
    }
}

/// The type of an object or bonus buffer (`dmu_object_type_t`), possibly not valid: see [`DmuType::is_valid`].
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DmuType(pub u8);

struct Row {
    byteswap: Byteswap,
    metadata: bool,
    cached: bool,
    encrypted: bool,
    name: &'static str,
}

const fn row(byteswap: Byteswap, metadata: bool, cached: bool, encrypted: bool, name: &'static str) -> Row {
    Row { byteswap, metadata, cached, encrypted, name }
}

/// Columns: byte-swap kind, metadata, kept in the dbuf metadata cache, encrypted, name.
#[rustfmt::skip]
const ENUMERATED: [Row; 54] = [
    row(Byteswap::Uint8, true, false, false, "unallocated"),
    row(Byteswap::Zap, true, true, false, "object directory"),
    row(Byteswap::Uint64, true, true, false, "object array"),
    row(Byteswap::Uint8, true, false, false, "packed nvlist"),
    row(Byteswap::Uint64, true, false, false, "packed nvlist size"),
    row(Byteswap::Uint64, true, false, false, "bpobj"),
    row(Byteswap::Uint64, true, false, false, "bpobj header"),
    row(Byteswap::Uint64, true, false, false, "SPA space map header"),
    row(Byteswap::Uint64, true, false, false, "SPA space map"),
    row(Byteswap::Uint64, true, false, true, "ZIL intent log"),
    row(Byteswap::Dnode, true, false, true, "DMU dnode"),
    row(Byteswap::Objset, true, true, false, "DMU objset"),
    row(Byteswap::Uint64, true, true, false, "DSL directory"),
    row(Byteswap::Zap, true, true, false, "DSL directory child map"),
    row(Byteswap::Zap, true, true, false, "DSL dataset snap map"),
    row(Byteswap::Zap, true, true, false, "DSL props"),
    row(Byteswap::Uint64, true, true, false, "DSL dataset"),
    row(Byteswap::Znode, true, false, false, "ZFS znode"),
    row(Byteswap::Oldacl, true, false, true, "ZFS V0 ACL"),
    row(Byteswap::Uint8, false, false, true, "ZFS plain file"),
    row(Byteswap::Zap, true, false, true, "ZFS directory"),
    row(Byteswap::Zap, true, false, false, "ZFS master node"),
    row(Byteswap::Zap, true, false, true, "ZFS delete queue"),
    row(Byteswap::Uint8, false, false, true, "zvol object"),
    row(Byteswap::Zap, true, false, false, "zvol prop"),
    row(Byteswap::Uint8, false, false, true, "other uint8[]"),
    row(Byteswap::Uint64, false, false, true, "other uint64[]"),
    row(Byteswap::Zap, true, false, false, "other ZAP"),
    row(Byteswap::Zap, true, false, false, "persistent error log"),
    row(Byteswap::Uint8, true, false, false, "SPA history"),
    row(Byteswap::Uint64, true, false, false, "SPA history offsets"),
    row(Byteswap::Zap, true, true, false, "Pool properties"),
    row(Byteswap::Zap, true, true, false, "DSL permissions"),
    row(Byteswap::Acl, true, false, true, "ZFS ACL"),
    row(Byteswap::Uint8, true, false, true, "ZFS SYSACL"),
    row(Byteswap::Uint8, true, false, true, "FUID table"),
    row(Byteswap::Uint64, true, false, false, "FUID table size"),
    row(Byteswap::Zap, true, true, false, "DSL dataset next clones"),
    row(Byteswap::Zap, true, false, false, "scan work queue"),
    row(Byteswap::Zap, true, false, true, "ZFS user/group/project used"),
    row(Byteswap::Zap, true, false, true, "ZFS user/group/project quota"),
    row(Byteswap::Zap, true, true, false, "snapshot refcount tags"),
    row(Byteswap::Zap, true, false, false, "DDT ZAP algorithm"),
    row(Byteswap::Zap, true, false, false, "DDT statistics"),
    row(Byteswap::Uint8, true, false, true, "System attributes"),
    row(Byteswap::Zap, true, false, true, "SA master node"),
    row(Byteswap::Zap, true, false, true, "SA attr registration"),
    row(Byteswap::Zap, true, false, true, "SA attr layouts"),
    row(Byteswap::Zap, true, false, false, "scan translations"),
    row(Byteswap::Uint8, false, false, true, "deduplicated block"),
    row(Byteswap::Zap, true, true, false, "DSL deadlist map"),
    row(Byteswap::Uint64, true, true, false, "DSL deadlist map hdr"),
    row(Byteswap::Zap, true, true, false, "DSL dir clones"),
    row(Byteswap::Uint64, true, false, false, "bpobj subobj"),
];

/// Marks the described form.
const DESCRIBED: u8 = 0x80;
const METADATA: u8 = 0x40;
const ENCRYPTED: u8 = 0x20;
const BYTESWAP_MASK: u8 = 0x1f;

impl DmuType {
    /// Number 0: unallocated.
    pub const NONE: Self = Self(0);
    /// Number 1: object directory.
    pub const OBJECT_DIRECTORY: Self = Self(1);
    /// Number 2: object array.
    pub const OBJECT_ARRAY: Self = Self(2);
    /// Number 3: packed nvlist.
    pub const PACKED_NVLIST: Self = Self(3);
    /// Number 4: packed nvlist size.
    pub const PACKED_NVLIST_SIZE: Self = Self(4);
    /// Number 5: bpobj.
    pub const BPOBJ: Self = Self(5);
    /// Number 6: bpobj header.
    pub const BPOBJ_HDR: Self = Self(6);
    /// Number 7: SPA space map header.
    pub const SPACE_MAP_HEADER: Self = Self(7);
    /// Number 8: SPA space map.
    pub const SPACE_MAP: Self = Self(8);
    /// Number 9: ZIL intent log.
    pub const INTENT_LOG: Self = Self(9);
    /// Number 10: DMU dnode.
    pub const DNODE: Self = Self(10);
    /// Number 11: DMU objset.
    pub const OBJSET: Self = Self(11);
    /// Number 12: DSL directory.
    pub const DSL_DIR: Self = Self(12);
    /// Number 13: DSL directory child map.
    pub const DSL_DIR_CHILD_MAP: Self = Self(13);
    /// Number 14: DSL dataset snap map.
    pub const DSL_DS_SNAP_MAP: Self = Self(14);
    /// Number 15: DSL props.
    pub const DSL_PROPS: Self = Self(15);
    /// Number 16: DSL dataset.
    pub const DSL_DATASET: Self = Self(16);
    /// Number 17: ZFS znode.
    pub const ZNODE: Self = Self(17);
    /// Number 19: ZFS plain file.
    pub const PLAIN_FILE_CONTENTS: Self = Self(19);
    /// Number 20: ZFS directory.
    pub const DIRECTORY_CONTENTS: Self = Self(20);
    /// Number 21: ZFS master node.
    pub const MASTER_NODE: Self = Self(21);
    /// Number 22: ZFS delete queue.
    pub const UNLINKED_SET: Self = Self(22);
    /// Number 23: zvol object.
    pub const ZVOL: Self = Self(23);
    /// Number 24: zvol prop.
    pub const ZVOL_PROP: Self = Self(24);
    /// Number 26: other uint64[].
    pub const UINT64_OTHER: Self = Self(26);
    /// Number 28: persistent error log.
    pub const ERROR_LOG: Self = Self(28);
    /// Number 29: SPA history.
    pub const SPA_HISTORY: Self = Self(29);
    /// Number 30: SPA history offsets.
    pub const SPA_HISTORY_OFFSETS: Self = Self(30);
    /// Number 31: Pool properties.
    pub const POOL_PROPS: Self = Self(31);
    /// Number 35: FUID table.
    pub const FUID: Self = Self(35);
    /// Number 36: FUID table size.
    pub const FUID_SIZE: Self = Self(36);
    /// Number 37: DSL dataset next clones.
    pub const NEXT_CLONES: Self = Self(37);
    /// Number 39: ZFS user/group/project used.
    pub const USERGROUP_USED: Self = Self(39);
    /// Number 41: snapshot refcount tags.
    pub const USERREFS: Self = Self(41);
    /// Number 42: DDT ZAP algorithm.
    pub const DDT_ZAP: Self = Self(42);
    /// Number 43: DDT statistics.
    pub const DDT_STATS: Self = Self(43);
    /// Number 44: System attributes.
    pub const SA: Self = Self(44);
    /// Number 45: SA master node.
    pub const SA_MASTER_NODE: Self = Self(45);
    /// Number 46: SA attr registration.
    pub const SA_ATTR_REGISTRATION: Self = Self(46);
    /// Number 47: SA attr layouts.
    pub const SA_ATTR_LAYOUTS: Self = Self(47);
    /// Number 49: deduplicated block.
    pub(crate) const DEDUP: Self = Self(49);
    /// Number 50: DSL deadlist map.
    pub const DEADLIST: Self = Self(50);
    /// Number 51: DSL deadlist map hdr.
    pub const DEADLIST_HDR: Self = Self(51);
    /// Number 52: DSL dir clones.
    pub const DSL_CLONES: Self = Self(52);
    /// Number 53: bpobj subobj.
    pub const BPOBJ_SUBOBJ: Self = Self(53);
    /// Described: data of bytes.
    pub const UINT8_DATA: Self = Self::described(Byteswap::Uint8, false, false);
    /// Described: metadata of 64-bit integers.
    pub const UINT64_METADATA: Self = Self::described(Byteswap::Uint64, true, false);
    /// Described: a ZAP of metadata.
    pub const ZAP_METADATA: Self = Self::described(Byteswap::Zap, true, false);

    /// How many enumerated types there are.
    pub const ENUMERATED_COUNT: u8 = 54;

    /// A type in the described form.
    #[must_use]
    pub(crate) const fn described(byteswap: Byteswap, metadata: bool, encrypted: bool) -> Self {
        Self(DESCRIBED | if metadata { METADATA } else { 0 } | if encrypted { ENCRYPTED } else { 0 } | byteswap as u8)
    }

    /// The number on disk.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Whether the type is in the described form.
    #[must_use]
    pub(crate) const fn is_described(self) -> bool {
        self.0 & DESCRIBED != 0
    }

    const fn row(self) -> Option<&'static Row> {
        if self.0 < Self::ENUMERATED_COUNT { Some(&ENUMERATED[self.0 as usize]) } else { None }
    }

    /// Whether the format knows the type.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.byteswap().is_some()
    }

    /// How its contents depend on byte order; `None` if the type is not valid.
    #[must_use]
    pub const fn byteswap(self) -> Option<Byteswap> {
        if self.is_described() {
            let kind = (self.0 & BYTESWAP_MASK) as usize;
            if kind < Byteswap::ALL.len() { Some(Byteswap::ALL[kind]) } else { None }
        } else {
            match self.row() {
                Some(row) => Some(row.byteswap),
                None => None,
            }
        }
    }

    /// Whether its blocks are metadata (extra copies, metadata share of the ARC). Invalid types count as metadata.
    #[must_use]
    pub const fn is_metadata(self) -> bool {
        if self.is_described() {
            self.0 & METADATA != 0
        } else {
            match self.row() {
                Some(row) => row.metadata,
                None => true,
            }
        }
    }

    /// Whether an encrypted dataset encrypts its level-0 blocks (in part, for dnodes and the intent log); other types are
    /// only authenticated. Invalid types count as not encrypted.
    #[must_use]
    pub const fn is_encrypted(self) -> bool {
        if self.is_described() {
            self.0 & ENCRYPTED != 0
        } else {
            match self.row() {
                Some(row) => row.encrypted,
                None => false,
            }
        }
    }

    /// Whether OpenZFS keeps it in its cache of dataset-level metadata.
    #[must_use]
    pub const fn is_metadata_cached(self) -> bool {
        if self.is_described() {
            self.0 & METADATA != 0
        } else {
            match self.row() {
                Some(row) => row.cached,
                None => false,
            }
        }
    }

    /// Whether the fill count of its level-0 block pointers is not simply 1. Such blocks are never embedded in their
    /// block pointers.
    #[must_use]
    pub const fn has_fill(self) -> bool {
        matches!(self, Self::DNODE | Self::OBJSET)
    }

    /// Whether its contents are a ZAP.
    #[must_use]
    pub const fn is_zap(self) -> bool {
        matches!(self.byteswap(), Some(Byteswap::Zap))
    }
}

impl fmt::Display for DmuType {
    /// The name as `zdb` prints it: of described types, that of the byte-swap kind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.row(), self.byteswap()) {
            (Some(row), _) => f.pad(row.name),
            (None, Some(byteswap)) => f.pad(byteswap.name()),
            (None, None) => f.pad("UNKNOWN"),
        }
    }
}

impl fmt::Debug for DmuType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmuType({}: {self})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_enumerated_described_or_invalid() {
        for number in 0..=u8::MAX {
            let object_type = DmuType(number);
            let expected = number < 54 || (number >= 0x80 && number & 0x1f < 10);
            assert_eq!(object_type.is_valid(), expected, "{object_type:?}");
            assert!(!object_type.to_string().is_empty());
        }
    }

    #[test]
    fn well_known_types_have_their_properties() {
        assert_eq!(DmuType::DNODE.number(), 10);
        assert_eq!(DmuType::BPOBJ_SUBOBJ.number(), 53);
        assert!(DmuType::PLAIN_FILE_CONTENTS.is_encrypted() && !DmuType::PLAIN_FILE_CONTENTS.is_metadata());
        assert!(DmuType::OBJSET.is_metadata() && !DmuType::OBJSET.is_encrypted());
        assert!(DmuType::DIRECTORY_CONTENTS.is_zap() && DmuType::DIRECTORY_CONTENTS.is_encrypted());
        assert_eq!(DmuType::ZAP_METADATA.number(), 0xc4);
        assert_eq!(DmuType::UINT64_METADATA.number(), 0xc3);
        assert_eq!(DmuType::described(Byteswap::Uint8, true, true).to_string(), "uint8");
    }
}
