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

use crate::enums::disk_enum;

disk_enum! {
    /// How the contents of a block depend on the byte order of their writer (`dmu_object_byteswap_t`).
    Byteswap: u8 {
        /// Bytes; the same in both orders.
        Uint8 = 0, "uint8";
        /// An array of 16-bit integers.
        Uint16 = 1, "uint16";
        /// An array of 32-bit integers.
        Uint32 = 2, "uint32";
        /// An array of 64-bit integers.
        Uint64 = 3, "uint64";
        /// A ZAP block.
        Zap = 4, "zap";
        /// A block of dnodes.
        Dnode = 5, "dnode";
        /// An objset.
        Objset = 6, "objset";
        /// A znode of before system attributes.
        Znode = 7, "znode";
        /// An ACL of before FUIDs.
        Oldacl = 8, "oldacl";
        /// An ACL.
        Acl = 9, "acl";
    }
}

/// The type of an object or bonus buffer (`dmu_object_type_t`), possibly not valid: see [`DmuType::is_valid`].
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DmuType(pub u8);

/// The facts about a type.
#[derive(Clone, Copy)]
struct Row {
    /// None if the type is not valid.
    byteswap: Option<Byteswap>,
    metadata: bool,
    cached: bool,
    encrypted: bool,
    name: &'static str,
}

/// Declares the enumerated types, in the order of their numbers: byte-swap kind, metadata, kept in the dbuf metadata cache,
/// encrypted, name.
macro_rules! enumerated {
    ($($kind:ident = $number:literal: $swap:ident, $metadata:literal, $cached:literal, $encrypted:literal, $name:literal;)*) => {
        const ENUMERATED: [Row; DmuType::ENUMERATED_COUNT as usize] = [$(Row {
            byteswap: Some(Byteswap::$swap),
            metadata: $metadata,
            cached: $cached,
            encrypted: $encrypted,
            name: $name,
        },)*];

        const _: () = {
            let mut next = 0;
            $(assert!($number == next, "the rows are in the order of the numbers"); next += 1;)*
            assert!(next == DmuType::ENUMERATED_COUNT);
        };

        impl DmuType {
            $(#[doc = concat!("Number ", $number, ": ", $name, ".")] pub const $kind: Self = Self($number);)*
        }
    };
}

enumerated! {
    NONE = 0: Uint8, true, false, false, "unallocated";
    OBJECT_DIRECTORY = 1: Zap, true, true, false, "object directory";
    OBJECT_ARRAY = 2: Uint64, true, true, false, "object array";
    PACKED_NVLIST = 3: Uint8, true, false, false, "packed nvlist";
    PACKED_NVLIST_SIZE = 4: Uint64, true, false, false, "packed nvlist size";
    BPOBJ = 5: Uint64, true, false, false, "bpobj";
    BPOBJ_HDR = 6: Uint64, true, false, false, "bpobj header";
    SPACE_MAP_HEADER = 7: Uint64, true, false, false, "SPA space map header";
    SPACE_MAP = 8: Uint64, true, false, false, "SPA space map";
    INTENT_LOG = 9: Uint64, true, false, true, "ZIL intent log";
    DNODE = 10: Dnode, true, false, true, "DMU dnode";
    OBJSET = 11: Objset, true, true, false, "DMU objset";
    DSL_DIR = 12: Uint64, true, true, false, "DSL directory";
    DSL_DIR_CHILD_MAP = 13: Zap, true, true, false, "DSL directory child map";
    DSL_DS_SNAP_MAP = 14: Zap, true, true, false, "DSL dataset snap map";
    DSL_PROPS = 15: Zap, true, true, false, "DSL props";
    DSL_DATASET = 16: Uint64, true, true, false, "DSL dataset";
    ZNODE = 17: Znode, true, false, false, "ZFS znode";
    OLDACL = 18: Oldacl, true, false, true, "ZFS V0 ACL";
    PLAIN_FILE_CONTENTS = 19: Uint8, false, false, true, "ZFS plain file";
    DIRECTORY_CONTENTS = 20: Zap, true, false, true, "ZFS directory";
    MASTER_NODE = 21: Zap, true, false, false, "ZFS master node";
    UNLINKED_SET = 22: Zap, true, false, true, "ZFS delete queue";
    ZVOL = 23: Uint8, false, false, true, "zvol object";
    ZVOL_PROP = 24: Zap, true, false, false, "zvol prop";
    PLAIN_OTHER = 25: Uint8, false, false, true, "other uint8[]";
    UINT64_OTHER = 26: Uint64, false, false, true, "other uint64[]";
    ZAP_OTHER = 27: Zap, true, false, false, "other ZAP";
    ERROR_LOG = 28: Zap, true, false, false, "persistent error log";
    SPA_HISTORY = 29: Uint8, true, false, false, "SPA history";
    SPA_HISTORY_OFFSETS = 30: Uint64, true, false, false, "SPA history offsets";
    POOL_PROPS = 31: Zap, true, true, false, "Pool properties";
    DSL_PERMS = 32: Zap, true, true, false, "DSL permissions";
    ACL = 33: Acl, true, false, true, "ZFS ACL";
    SYSACL = 34: Uint8, true, false, true, "ZFS SYSACL";
    FUID = 35: Uint8, true, false, true, "FUID table";
    FUID_SIZE = 36: Uint64, true, false, false, "FUID table size";
    NEXT_CLONES = 37: Zap, true, true, false, "DSL dataset next clones";
    SCAN_QUEUE = 38: Zap, true, false, false, "scan work queue";
    USERGROUP_USED = 39: Zap, true, false, true, "ZFS user/group/project used";
    USERGROUP_QUOTA = 40: Zap, true, false, true, "ZFS user/group/project quota";
    USERREFS = 41: Zap, true, true, false, "snapshot refcount tags";
    DDT_ZAP = 42: Zap, true, false, false, "DDT ZAP algorithm";
    DDT_STATS = 43: Zap, true, false, false, "DDT statistics";
    SA = 44: Uint8, true, false, true, "System attributes";
    SA_MASTER_NODE = 45: Zap, true, false, true, "SA master node";
    SA_ATTR_REGISTRATION = 46: Zap, true, false, true, "SA attr registration";
    SA_ATTR_LAYOUTS = 47: Zap, true, false, true, "SA attr layouts";
    SCAN_XLATE = 48: Zap, true, false, false, "scan translations";
    DEDUP = 49: Uint8, false, false, true, "deduplicated block";
    DEADLIST = 50: Zap, true, true, false, "DSL deadlist map";
    DEADLIST_HDR = 51: Uint64, true, true, false, "DSL deadlist map hdr";
    DSL_CLONES = 52: Zap, true, true, false, "DSL dir clones";
    BPOBJ_SUBOBJ = 53: Uint64, true, false, false, "bpobj subobj";
}

/// Marks the described form.
const DESCRIBED: u8 = 0x80;
const METADATA: u8 = 0x40;
const ENCRYPTED: u8 = 0x20;
const BYTESWAP_MASK: u8 = 0x1f;

impl DmuType {
    /// Described: data of bytes.
    pub const UINT8_DATA: Self = Self::described(Byteswap::Uint8, false, false);
    /// Described: metadata of 32-bit integers.
    pub const UINT32_METADATA: Self = Self::described(Byteswap::Uint32, true, false);
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

    const fn row(self) -> Row {
        if self.0 < Self::ENUMERATED_COUNT {
            return ENUMERATED[self.0 as usize];
        }
        let is_described = self.0 & DESCRIBED != 0;
        let byteswap = if is_described { Byteswap::from_number(self.0 & BYTESWAP_MASK) } else { None };
        let name = match byteswap {
            Some(byteswap) => byteswap.name(),
            None => "UNKNOWN",
        };
        let metadata = !is_described || self.0 & METADATA != 0;
        let encrypted = is_described && self.0 & ENCRYPTED != 0;
        Row { byteswap, metadata, cached: is_described && metadata, encrypted, name }
    }

    /// Whether the format knows the type.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.byteswap().is_some()
    }

    /// How its contents depend on byte order; `None` if the type is not valid.
    #[must_use]
    pub const fn byteswap(self) -> Option<Byteswap> {
        self.row().byteswap
    }

    /// Whether its blocks are metadata (extra copies, metadata share of the ARC). Invalid types count as metadata.
    #[must_use]
    pub const fn is_metadata(self) -> bool {
        self.row().metadata
    }

    /// Whether an encrypted dataset encrypts its level-0 blocks (in part, for dnodes and the intent log); other types are
    /// only authenticated. Invalid types count as not encrypted.
    #[must_use]
    pub const fn is_encrypted(self) -> bool {
        self.row().encrypted
    }

    /// Whether OpenZFS keeps it in its cache of dataset-level metadata.
    #[must_use]
    pub const fn is_metadata_cached(self) -> bool {
        self.row().cached
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
        f.pad(self.row().name)
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
        assert_eq!(DmuType::UINT32_METADATA.number(), 0xc2);
        assert_eq!(DmuType::UINT64_METADATA.number(), 0xc3);
        assert_eq!(DmuType::described(Byteswap::Uint8, true, true).to_string(), "uint8");
    }
}
