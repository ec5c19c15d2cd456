//! The metadata in a file system's objset besides files: the master node, directory entries, quotas and their accounting.
//!
//! Object 1 is the *master node*, a ZAP from names ([`master_node`]) to numbers: the root directory, the unlinked set, the
//! SA master object, the version, and properties fixed at creation.
//!
//! A directory is a ZAP from names to words: the object in bits 0-47, the file's type (as in `d_type`: mode >> 12) in bits
//! 60-63, zero in version 1.
//!
//! Space used by a user, group or project is an entry of the objset's special objects, named by the id in hexadecimal; the
//! number of objects likewise, with `obj-` before the id. Ids above 32 bits are FUIDs: an index of a domain in the FUID
//! table, and an id relative to the domain.

use crate::error::FormatError;
use crate::ids::ObjectId;

/// The master node's number.
pub const MASTER_NODE: ObjectId = ObjectId(1);

/// ZPL versions.
pub mod version {
    /// The first.
    pub const INITIAL: u64 = 1;
    /// Directory entries have types.
    pub const DIRENT_TYPE: u64 = 2;
    /// FUIDs, normalisation, attributes of DOS.
    pub const FUID: u64 = 3;
    /// Space is accounted by user and group.
    pub const USERSPACE: u64 = 4;
    /// System attributes.
    pub const SA: u64 = 5;
    /// The latest.
    pub const CURRENT: u64 = SA;
}

/// Names in the master node.
pub mod master_node {
    /// The id of the file system.
    pub const FSID: &str = "FSID";
    /// ZAP: objects without a name, to be freed at the next mount.
    pub const UNLINKED_SET: &str = "DELETE_QUEUE";
    /// The root directory.
    pub const ROOT: &str = "ROOT";
    /// The version.
    pub const VERSION: &str = "VERSION";
    /// The table of FUID domains.
    pub const FUID_TABLE: &str = "FUID";
    /// The directory of shares.
    pub const SHARES_DIR: &str = "SHARES";
    /// The SA master object.
    pub const SA_ATTRIBUTES: &str = "SA_ATTRS";
    /// How names are normalised (`normalization`).
    pub const NORMALIZATION: &str = "normalization";
    /// Whether names must be UTF-8 (`utf8only`).
    pub const UTF8_ONLY: &str = "utf8only";
    /// How case counts (`casesensitivity`): 0 sensitive, 1 insensitive, 2 mixed.
    pub const CASE_SENSITIVITY: &str = "casesensitivity";
    /// ZAPs of quotas, by id.
    pub const QUOTAS: [&str; 6] =
        ["userquota@", "groupquota@", "userobjquota@", "groupobjquota@", "projectquota@", "projectobjquota@"];
}

/// The object, in a file system, with the space used by users.
pub const USER_USED_OBJECT: ObjectId = ObjectId(u64::MAX);
/// The same for groups.
pub const GROUP_USED_OBJECT: ObjectId = ObjectId(u64::MAX - 1);
/// The same for projects.
pub const PROJECT_USED_OBJECT: ObjectId = ObjectId(u64::MAX - 2);
/// The prefix of the names of object counts.
pub const OBJECT_COUNT_PREFIX: &str = "obj-";

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirEntry {
    /// The object.
    pub object: ObjectId,
    /// The type, as mode >> 12; 0 unknown.
    pub kind: u8,
}

impl DirEntry {
    const OBJECT_BITS: u32 = 48;

    /// From a directory's value; bits 48-59 are unused.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self { object: ObjectId(word & ((1 << Self::OBJECT_BITS) - 1)), kind: (word >> 60) as u8 }
    }

    /// The directory's value. Fails if a number is too large.
    pub fn word(self) -> Result<u64, FormatError> {
        if self.object.0 >> Self::OBJECT_BITS != 0 || self.kind > 15 {
            let rule = "an object of 48 bits and a type of 4";
            return Err(FormatError::invalid("directory entry", 0, "object", self.object.0, rule));
        }
        Ok(self.object.0 | u64::from(self.kind) << 60)
    }
}

/// A user or group id as stored: a plain id, or an index of a domain with a relative id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fuid(pub u64);

impl Fuid {
    /// The domain's index in the FUID table; 0 for plain ids.
    #[must_use]
    pub const fn domain_index(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The id, or the part relative to the domain.
    #[must_use]
    pub const fn relative_id(self) -> u32 {
        self.0 as u32
    }
}

/// The key of an entry of an accounting object: the quantity that it counts, and the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccountKey {
    /// Bytes used.
    Space(u64),
    /// Objects owned.
    Objects(u64),
}

impl AccountKey {
    /// From the entry's name.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        match name.strip_prefix(OBJECT_COUNT_PREFIX.as_bytes()) {
            Some(id) => crate::zap::int_key(id).map(Self::Objects),
            None => crate::zap::int_key(name).map(Self::Space),
        }
    }

    /// The entry's name.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Space(id) => format!("{id:x}"),
            Self::Objects(id) => format!("{OBJECT_COUNT_PREFIX}{id:x}"),
        }
    }
}

/// Names in the FUID table, an object that holds a packed name-value list whose length is the first word of its bonus.
pub mod fuid_table {
    /// The array of lists, one a domain.
    pub const ARRAY: &str = "fuid_nvlist";
    /// A domain's index.
    pub const INDEX: &str = "fuid_idx";
    /// A domain's name.
    pub const DOMAIN: &str = "fuid_domain";
    /// Always 0.
    pub const OFFSET: &str = "fuid_offset";
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn directory_entries_round_trip(object in 0_u64..1 << 48, kind in 0_u8..16) {
            let entry = DirEntry { object: ObjectId(object), kind };
            prop_assert_eq!(DirEntry::from_word(entry.word().unwrap()), entry);
        }

        #[test]
        fn account_names_round_trip(id in any::<u64>()) {
            for key in [AccountKey::Space(id), AccountKey::Objects(id)] {
                prop_assert_eq!(AccountKey::from_name(key.name().as_bytes()), Some(key));
            }
        }
    }

    #[test]
    fn what_does_not_fit_an_entry_is_refused() {
        assert!(DirEntry { object: ObjectId(1 << 48), kind: 8 }.word().is_err());
        assert!(DirEntry { object: ObjectId(1), kind: 16 }.word().is_err());
        assert_eq!(AccountKey::from_name(b"obj-"), None);
        assert_eq!(AccountKey::from_name(b"+1"), None);
        assert_eq!(Fuid(0x1_0000_03e8).domain_index(), 1);
        assert_eq!(Fuid(0x1_0000_03e8).relative_id(), 1000);
    }
}
