//! Access control lists.
//!
//! Files with system attributes keep their entries in `ZPL_DACL_ACES`, their number in `ZPL_DACL_COUNT`; older files keep
//! up to 72 bytes of entries in the fixed structure, more in an object of their own:
//!
//! ```text
//! in the znode (88 bytes)                     version 0: 12-byte entries        version 1 ("FUID"): entries by kind
//!  0  object with the entries, 0: here        8  number of entries (u32)        8  bytes of entries (u32)
//! 12  version (u16)                           14 unused                         14 number of entries (u16)
//! 16  72 bytes of entries
//!
//! version 0 entry: 0 who (u32)  4 access mask (u32)  8 flags (u16)  10 type (u16)
//! version 1 entry: 0 type (u16) 2 flags (u16)  4 access mask (u32)
//!                  8 who (u64), unless the flags say owner@, group@ or everyone@
//!                 16 object type (16) and inherited object type (16), for the object kinds
//! ```

use crate::endian::{Endian, Fields, put_u16, put_u32, put_u64};
use crate::error::FormatError;
use crate::ids::ObjectId;

const STRUCTURE: &str = "acl";
const OFFSET_ACES: usize = 16;
/// Bytes for entries within a znode.
pub const EMBEDDED_ACES_SIZE_BYTES: usize = 72;
/// The most entries that we read of one list; OpenZFS writes at most 1024.
pub const ACES_MAX: usize = 4096;

bitflags::bitflags! {
    /// An entry's flags.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AceFlags: u16 {
        /// Inherited by new files.
        const FILE_INHERIT = 0x0001;
        /// Inherited by new directories.
        const DIRECTORY_INHERIT = 0x0002;
        /// Inherited one level only.
        const NO_PROPAGATE_INHERIT = 0x0004;
        /// Only inherited, not in force here.
        const INHERIT_ONLY = 0x0008;
        /// Audit successes.
        const SUCCESSFUL_ACCESS = 0x0010;
        /// Audit failures.
        const FAILED_ACCESS = 0x0020;
        /// The principal is a group.
        const IDENTIFIER_GROUP = 0x0040;
        /// Came by inheritance.
        const INHERITED = 0x0080;
        /// The principal is the file's owner.
        const OWNER = 0x1000;
        /// With `IDENTIFIER_GROUP`: the principal is the file's group.
        const GROUP = 0x2000;
        /// The principal is everyone.
        const EVERYONE = 0x4000;
        /// Unknown bits are kept.
        const _ = !0;
    }
}

/// Numbers of entry types.
pub mod ace_type {
    /// Allow.
    pub const ALLOW: u16 = 0;
    /// Deny.
    pub const DENY: u16 = 1;
    /// Audit.
    pub const AUDIT: u16 = 2;
    /// Alarm.
    pub const ALARM: u16 = 3;
    /// Allow, with object types.
    pub const ALLOW_OBJECT: u16 = 5;
    /// Deny, with object types.
    pub const DENY_OBJECT: u16 = 6;
    /// Audit, with object types.
    pub const AUDIT_OBJECT: u16 = 7;
    /// Alarm, with object types.
    pub const ALARM_OBJECT: u16 = 8;
}

/// The principal of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AceWho {
    /// `owner@`.
    Owner,
    /// `group@`.
    OwningGroup,
    /// `everyone@`.
    Everyone,
    /// A user by (F)UID.
    User(u64),
    /// A group by (F)UID.
    Group(u64),
}

/// The forms of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AclVersion {
    /// Entries of 12 bytes.
    V0,
    /// Entries of 8, 16 or 48 bytes.
    Fuid,
}

impl AclVersion {
    /// From the number on disk.
    pub(crate) fn from_number(number: u16) -> Result<Self, FormatError> {
        match number {
            0 => Ok(Self::V0),
            1 => Ok(Self::Fuid),
            other => Err(FormatError::invalid(STRUCTURE, 12, "acl version", u64::from(other), "0 or 1")),
        }
    }

    /// The number on disk.
    #[must_use]
    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::V0 => 0,
            Self::Fuid => 1,
        }
    }
}

/// One access control entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ace {
    /// One of [`ace_type`].
    pub kind: u16,
    /// Flags.
    pub flags: AceFlags,
    /// The permissions that are allowed or denied, a bit each.
    pub access_mask: u32,
    /// The stored id; meaningless where the flags name owner, group or everyone.
    pub id: u64,
    /// Object type and inherited object type, for the object kinds.
    pub object_types: Option<[[u8; 16]; 2]>,
}

impl Ace {
    /// Its principal.
    #[must_use]
    pub fn who(&self) -> AceWho {
        if self.flags.contains(AceFlags::OWNER) {
            AceWho::Owner
        } else if self.flags.contains(AceFlags::EVERYONE) {
            AceWho::Everyone
        } else if self.flags.contains(AceFlags::GROUP | AceFlags::IDENTIFIER_GROUP) {
            AceWho::OwningGroup
        } else if self.flags.contains(AceFlags::IDENTIFIER_GROUP) {
            AceWho::Group(self.id)
        } else {
            AceWho::User(self.id)
        }
    }

    const fn has_object_types(kind: u16) -> bool {
        matches!(kind, ace_type::ALLOW_OBJECT | ace_type::DENY_OBJECT | ace_type::AUDIT_OBJECT | ace_type::ALARM_OBJECT)
    }

    /// Whether an entry of the FUID form is the 8-byte head alone.
    fn is_abstract(kind: u16, flags: AceFlags) -> bool {
        let who = flags.intersection(
            AceFlags::OWNER.union(AceFlags::GROUP).union(AceFlags::EVERYONE).union(AceFlags::IDENTIFIER_GROUP),
        );
        matches!(kind, ace_type::ALLOW | ace_type::DENY)
            && (who == AceFlags::OWNER
                || who == AceFlags::EVERYONE
                || who == AceFlags::GROUP.union(AceFlags::IDENTIFIER_GROUP))
    }

    /// The size of this entry in a list of the given form.
    #[must_use]
    pub(crate) fn size_bytes(&self, version: AclVersion) -> usize {
        match version {
            AclVersion::V0 => 12,
            AclVersion::Fuid if Self::has_object_types(self.kind) => 48,
            AclVersion::Fuid if Self::is_abstract(self.kind, self.flags) => 8,
            AclVersion::Fuid => 16,
        }
    }
}

/// Reads `count` entries. Bytes after them are ignored, as lists are rounded up.
pub fn parse_aces(bytes: &[u8], count: usize, version: AclVersion, endian: Endian) -> Result<Vec<Ace>, FormatError> {
    if count > ACES_MAX {
        return Err(FormatError::limit(STRUCTURE, 0, "access control entries", count, ACES_MAX));
    }
    let fields = Fields::new(STRUCTURE, bytes, 0, endian)?;
    let mut aces = Vec::with_capacity(count.min(bytes.len() / 8));
    let mut offset = 0;
    for _ in 0..count {
        let ace = match version {
            AclVersion::V0 => Ace {
                id: u64::from(fields.u32(offset)?),
                access_mask: fields.u32(offset + 4)?,
                flags: AceFlags::from_bits_retain(fields.u16(offset + 8)?),
                kind: fields.u16(offset + 10)?,
                object_types: None,
            },
            AclVersion::Fuid => {
                let kind = fields.u16(offset)?;
                let flags = AceFlags::from_bits_retain(fields.u16(offset + 2)?);
                let access_mask = fields.u32(offset + 4)?;
                let has_id = Ace::has_object_types(kind) || !Ace::is_abstract(kind, flags);
                let id = if has_id { fields.u64(offset + 8)? } else { 0 };
                let object_types = if Ace::has_object_types(kind) {
                    Some([fields.array(offset + 16)?, fields.array(offset + 32)?])
                } else {
                    None
                };
                Ace { kind, flags, access_mask, id, object_types }
            }
        };
        offset += ace.size_bytes(version);
        aces.push(ace);
    }
    Ok(aces)
}

/// Writes entries. Fails where the form cannot hold one: object types, or ids of more than 32 bits, in version 0.
pub fn emit_aces(aces: &[Ace], version: AclVersion, endian: Endian) -> Result<Vec<u8>, FormatError> {
    let mut bytes = Vec::new();
    for ace in aces {
        let offset = bytes.len();
        let size = ace.size_bytes(version);
        bytes.resize(offset + size, 0);
        match version {
            AclVersion::V0 => {
                let id = u32::try_from(ace.id)
                    .map_err(|_| FormatError::invalid(STRUCTURE, offset, "id", ace.id, "32 bits in version 0"))?;
                if ace.object_types.is_some() {
                    return Err(FormatError::malformed(STRUCTURE, offset, "object types in version 0"));
                }
                put_u32(&mut bytes, offset, id, endian);
                put_u32(&mut bytes, offset + 4, ace.access_mask, endian);
                put_u16(&mut bytes, offset + 8, ace.flags.bits(), endian);
                put_u16(&mut bytes, offset + 10, ace.kind, endian);
            }
            AclVersion::Fuid => {
                put_u16(&mut bytes, offset, ace.kind, endian);
                put_u16(&mut bytes, offset + 2, ace.flags.bits(), endian);
                put_u32(&mut bytes, offset + 4, ace.access_mask, endian);
                if size >= 16 {
                    put_u64(&mut bytes, offset + 8, ace.id, endian);
                }
                if size == 48 {
                    let [object, inherited] = ace.object_types.unwrap_or_default();
                    bytes[offset + 16..offset + 32].copy_from_slice(&object);
                    bytes[offset + 32..offset + 48].copy_from_slice(&inherited);
                }
            }
        }
    }
    Ok(bytes)
}

/// The list of the fixed structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclPhys {
    /// The object that holds the entries; 0 if they are here.
    pub external: ObjectId,
    /// Bytes of entries.
    pub size_bytes: u32,
    /// The form.
    pub version: AclVersion,
    /// Number of entries.
    pub count: u32,
    /// The entries' bytes, if they are here.
    pub aces: [u8; EMBEDDED_ACES_SIZE_BYTES],
}

impl AclPhys {
    /// The structure's size.
    pub const SIZE_BYTES: usize = OFFSET_ACES + EMBEDDED_ACES_SIZE_BYTES;

    /// Reads the structure.
    pub(crate) fn parse(bytes: &[u8], endian: Endian) -> Result<Self, FormatError> {
        let fields = Fields::new(STRUCTURE, bytes, Self::SIZE_BYTES, endian)?;
        let version = AclVersion::from_number(fields.u16(12)?)?;
        let word = fields.u32(8)?;
        let (size_bytes, count) = match version {
            AclVersion::V0 => (word.saturating_mul(12), word),
            AclVersion::Fuid => (word, u32::from(fields.u16(14)?)),
        };
        Ok(Self { external: ObjectId(fields.u64(0)?), size_bytes, version, count, aces: fields.array(OFFSET_ACES)? })
    }

    /// Writes the structure.
    #[must_use]
    pub(crate) fn emit(&self, endian: Endian) -> [u8; Self::SIZE_BYTES] {
        let mut bytes = [0; Self::SIZE_BYTES];
        put_u64(&mut bytes, 0, self.external.0, endian);
        put_u16(&mut bytes, 12, self.version.number(), endian);
        match self.version {
            AclVersion::V0 => put_u32(&mut bytes, 8, self.count, endian),
            AclVersion::Fuid => {
                put_u32(&mut bytes, 8, self.size_bytes, endian);
                put_u16(&mut bytes, 14, self.count as u16, endian);
            }
        }
        bytes[OFFSET_ACES..].copy_from_slice(&self.aces);
        bytes
    }

    /// The entries that are here; an error if they are in another object or do not fit.
    pub(crate) fn embedded(&self, endian: Endian) -> Result<Vec<Ace>, FormatError> {
        if self.external.0 != 0 {
            return Err(FormatError::malformed(STRUCTURE, 0, "the entries are in another object"));
        }
        parse_aces(&self.aces, self.count as usize, self.version, endian)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_ace() -> impl Strategy<Value = Ace> {
        (0_u16..9, any::<u16>(), any::<u32>(), any::<u64>(), any::<[[u8; 16]; 2]>()).prop_map(
            |(kind, flags, access_mask, id, types)| {
                let flags = AceFlags::from_bits_retain(flags);
                let mut ace = Ace { kind, flags, access_mask, id, object_types: None };
                match ace.size_bytes(AclVersion::Fuid) {
                    8 => ace.id = 0,
                    48 => ace.object_types = Some(types),
                    _ => {}
                }
                ace
            },
        )
    }

    proptest! {
        #[test]
        fn entries_of_the_fuid_form_round_trip(aces in proptest::collection::vec(any_ace(), 0..20), big in any::<bool>()) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let bytes = emit_aces(&aces, AclVersion::Fuid, endian).unwrap();
            prop_assert_eq!(parse_aces(&bytes, aces.len(), AclVersion::Fuid, endian).unwrap(), aces.clone());
            if !bytes.is_empty() {
                prop_assert!(parse_aces(&bytes[..bytes.len() - 1], aces.len(), AclVersion::Fuid, endian).is_err());
            }
        }

        #[test]
        fn entries_of_version_0_round_trip(aces in proptest::collection::vec(any_ace(), 0..20), big in any::<bool>()) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let aces: Vec<_> =
                aces.into_iter().map(|ace| Ace { id: ace.id >> 32, object_types: None, ..ace }).collect();
            let bytes = emit_aces(&aces, AclVersion::V0, endian).unwrap();
            prop_assert_eq!(bytes.len(), aces.len() * 12);
            prop_assert_eq!(parse_aces(&bytes, aces.len(), AclVersion::V0, endian).unwrap(), aces);
        }

        #[test]
        fn any_structure_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 80..100)) {
            for endian in [Endian::Little, Endian::Big] {
                if let Ok(acl) = AclPhys::parse(&bytes, endian) {
                    let _ = acl.embedded(endian);
                    prop_assert_eq!(AclPhys::parse(&acl.emit(endian), endian).unwrap(), acl);
                }
            }
        }
    }

    #[test]
    fn a_trivial_list_has_heads_only() {
        // 0644 as OpenZFS writes it: owner@, group@, everyone@.
        let mut bytes = Vec::new();
        for (flags, mask) in [(0x1000_u16, 0x001e_01bf_u32), (0x2040, 0x0012_0089), (0x4000, 0x0012_0089)] {
            bytes.extend_from_slice(&0_u16.to_le_bytes());
            bytes.extend_from_slice(&flags.to_le_bytes());
            bytes.extend_from_slice(&mask.to_le_bytes());
        }
        let aces = parse_aces(&bytes, 3, AclVersion::Fuid, Endian::Little).unwrap();
        let who: Vec<_> = aces.iter().map(Ace::who).collect();
        assert_eq!(who, [AceWho::Owner, AceWho::OwningGroup, AceWho::Everyone]);
        assert_eq!(emit_aces(&aces, AclVersion::Fuid, Endian::Little).unwrap(), bytes);
    }
}
