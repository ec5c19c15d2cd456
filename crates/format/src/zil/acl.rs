//! Access control lists and user-id domains within log records.
//!
//! ```text
//!   one entry:   0        4        8        10      12                 44
//!                +--------+--------+--------+-------+------------------+
//!                | who    | mask   | flags  | type  | two object GUIDs |   the GUIDs only if type is 5 to 8
//!                | u32    | u32    | u16    | u16   | 32 bytes         |
//!                +--------+--------+--------+-------+------------------+
//!
//!   a list:      entries, padded to 8 bytes | FUIDs: u64 each | domain names, each with its NUL
//! ```
//!
//! An owner, group or entry whose id has no number on this system (a Windows SID) is logged as a FUID whose upper 32
//! bits, if not 0, index the domain names of the same record, counting from 1.

use crate::endian::{Endian, Fields};
use crate::error::FormatError;

/// One access control entry as the log holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ace {
    /// User or group id, or -1.
    pub who: u32,
    /// Which operations.
    pub access_mask: u32,
    /// Inheritance, and what kind of `who`.
    pub flags: u16,
    /// Allow, deny, audit, alarm.
    pub entry_type: u16,
    /// Object and inherited-object type, in entries of the object types.
    pub object: Option<[u8; 32]>,
}

const STRUCTURE: &str = "log record acl";

impl Ace {
    const SIZE: usize = 12;
    const OBJECT_SIZE: usize = 44;

    /// Whether entries of this type carry GUIDs.
    #[must_use]
    pub(crate) const fn is_object_type(entry_type: u16) -> bool {
        matches!(entry_type, 5..=8)
    }

    fn parse(fields: &Fields<'_>, offset: usize, with_objects: bool) -> Result<(Self, usize), FormatError> {
        let entry_type = fields.u16(offset + 10)?;
        let has_object = with_objects && Self::is_object_type(entry_type);
        let ace = Self {
            who: fields.u32(offset)?,
            access_mask: fields.u32(offset + 4)?,
            flags: fields.u16(offset + 8)?,
            entry_type,
            object: if has_object { Some(fields.array(offset + Self::SIZE)?) } else { None },
        };
        Ok((ace, if has_object { Self::OBJECT_SIZE } else { Self::SIZE }))
    }

    fn emit(&self, out: &mut Vec<u8>, endian: Endian) {
        out.extend(endian.bytes32(self.who));
        out.extend(endian.bytes32(self.access_mask));
        out.extend(endian.bytes16(self.flags));
        out.extend(endian.bytes16(self.entry_type));
        if let Some(object) = self.object {
            out.extend(object);
        }
    }
}

/// Names of user-id domains, without their NULs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FuidDomains(pub Vec<Vec<u8>>);

impl FuidDomains {
    /// How many domain names a record without a count of them has: one for each different domain of its owner and
    /// group.
    #[must_use]
    pub(crate) const fn implied_count(uid: u64, gid: u64) -> u64 {
        let (uid_index, gid_index) = (uid >> 32, gid >> 32);
        (uid_index != 0) as u64 + (gid_index != 0 && gid_index != uid_index) as u64
    }

    pub(super) fn parse(bytes: &[u8], count: u64) -> Result<(Self, usize), FormatError> {
        let mut names = Vec::new();
        let mut offset = 0;
        // Each name takes a byte at least, so a count that lies ends at the data's end.
        for _ in 0..count {
            let name = c_string(bytes, offset)?;
            offset += name.len() + 1;
            names.push(name.to_vec());
        }
        Ok((Self(names), offset))
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        for name in &self.0 {
            out.extend(name);
            out.push(0);
        }
    }
}

/// A list with what belongs to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclEntries {
    /// The entries.
    pub entries: Vec<Ace>,
    /// Flags of the whole list.
    pub flags: u64,
    /// FUIDs of those entries whose id is one.
    pub fuids: Vec<u64>,
    /// The domains those (and the owner and group) index.
    pub domains: FuidDomains,
}

/// The counts that a record states before the data.
pub(super) struct AclCounts {
    pub(super) entries: u64,
    pub(super) domains: u64,
    pub(super) fuids: u64,
    pub(super) bytes: u64,
    pub(super) flags: u64,
}

impl AclEntries {
    /// Reads a list; also says how many bytes it took.
    pub(super) fn parse(bytes: &[u8], counts: &AclCounts, endian: Endian) -> Result<(Self, usize), FormatError> {
        let acl_bytes = usize::try_from(counts.bytes)
            .ok()
            .and_then(|len| bytes.get(..len))
            .ok_or_else(|| FormatError::invalid(STRUCTURE, 0, "acl bytes", counts.bytes, "within the record"))?;
        let fields = Fields::new(STRUCTURE, acl_bytes, 0, endian)?;
        let (entries, used) = parse_entries(&fields, counts.entries, true)?;
        if used != acl_bytes.len() {
            return Err(FormatError::invalid(STRUCTURE, used, "acl bytes", counts.bytes, "the entries' total"));
        }
        let mut offset = used.next_multiple_of(8);
        let fields = Fields::new(STRUCTURE, bytes, 0, endian)?;
        let fuid_bytes =
            usize::try_from(counts.fuids).ok().and_then(|count| count.checked_mul(8)).unwrap_or(usize::MAX);
        let fuids = fields
            .slice(offset, fuid_bytes)?
            .chunks_exact(8)
            .map(|chunk| Fields::new(STRUCTURE, chunk, 8, endian)?.u64(0))
            .collect::<Result<Vec<_>, _>>()?;
        offset += fuid_bytes;
        let (domains, domain_bytes) = FuidDomains::parse(bytes.get(offset..).unwrap_or_default(), counts.domains)?;
        Ok((Self { entries, flags: counts.flags, fuids, domains }, offset + domain_bytes))
    }

    /// Appends the data.
    pub(super) fn emit(&self, out: &mut Vec<u8>, endian: Endian) {
        let start = out.len();
        emit_entries(&self.entries, out, endian);
        out.resize(start + (out.len() - start).next_multiple_of(8), 0);
        for fuid in &self.fuids {
            out.extend(endian.bytes64(*fuid));
        }
        self.domains.emit(out);
    }

    /// The counts stated before the data: entries, domains, FUIDs, bytes, flags.
    pub(super) fn counts(&self) -> [u64; 5] {
        let bytes: usize =
            self.entries.iter().map(|ace| if ace.object.is_some() { Ace::OBJECT_SIZE } else { Ace::SIZE }).sum();
        [self.entries.len() as u64, self.domains.0.len() as u64, self.fuids.len() as u64, bytes as u64, self.flags]
    }
}

pub(super) fn parse_entries(
    fields: &Fields<'_>,
    count: u64,
    with_objects: bool,
) -> Result<(Vec<Ace>, usize), FormatError> {
    let mut entries = Vec::new();
    let mut offset = 0;
    // As with names: the data ends before a lying count does.
    for _ in 0..count {
        let (ace, size) = Ace::parse(fields, offset, with_objects)?;
        entries.push(ace);
        offset += size;
    }
    Ok((entries, offset))
}

pub(super) fn emit_entries(entries: &[Ace], out: &mut Vec<u8>, endian: Endian) {
    for ace in entries {
        ace.emit(out, endian);
    }
}

/// The bytes from `offset` up to the next NUL.
pub(super) fn c_string(bytes: &[u8], offset: usize) -> Result<&[u8], FormatError> {
    let rest = bytes.get(offset..).unwrap_or_default();
    let len = rest
        .iter()
        .position(|byte| *byte == 0)
        .ok_or_else(|| FormatError::malformed("log record", offset, "a name has no end"))?;
    Ok(&rest[..len])
}
