//! Log records: one logged operation each.
//!
//! All begin alike; multi-byte fields are u64 in the writer's order; each record is padded to 8 bytes:
//!
//! ```text
//!   0        8          16     24     32
//!   +--------+----------+------+------+---------------------------------------------------------------+
//!   | type   | length   | txg  | seq  | body, by type                                                 |
//!   +--------+----------+------+------+---------------------------------------------------------------+
//!   type: the number below; bit 63 set if names were to be looked up ignoring case
//!
//!   1-4, 14-19 create   32 dir  40 object  48 mode  56 uid  64 gid  72 gen  80 crtime[2]  96 rdev
//!                       104 (with ACL only) entries, domains, fuids, acl bytes, acl flags
//!                       then: [xvattr] [acl data | domains] name NUL [symlink target NUL]
//!   5, 6 remove, rmdir  32 dir  40 name NUL
//!   7 link              32 dir  40 object  48 name NUL
//!   8, 22 rename        32 source dir  40 target dir  48 source name NUL target name NUL
//!   23 with whiteout    32 source dir  40 target dir  48 object  56 mode  64 uid  72 gid  80 gen  88 crtime[2]
//!                       104 rdev  112 names as above
//!   9, 20 write         32 object  40 offset  48 length  56 (unused)  64 block pointer  192 data, unless indirect
//!   10 truncate         32 object  40 offset  48 length
//!   11 setattr          32 object  40 mask  48 mode  56 uid  64 gid  72 size  80 atime[2]  96 mtime[2]
//!                       112 [xvattr] domains
//!   12 acl, old form    32 object  40 entries  48 entries of 12 bytes
//!   13 acl              32 object  40 entries, domains, fuids, acl bytes, acl flags  80 acl data
//!   21 setsaxattr       32 object  40 value length  48 name NUL value
//!   24 clone range      32 object  40 offset  48 length  56 block size  64 count  72 block pointers
//! ```
//!
//! The upper eight bits of a created object's number hold its dnode slots, less one.

use std::borrow::Cow;

use super::acl::{Ace, AclCounts, AclEntries, FuidDomains, c_string, emit_entries, parse_entries};
use super::xvattr::Xvattr;
use crate::blkptr::Blkptr;
use crate::endian::{Endian, Fields, put_u64};
use crate::error::{FormatError, FormatErrorKind};
use crate::ids::{ObjectId, Txg};

/// Names and data, borrowed from the log block when parsed.
pub type Data<'a> = Cow<'a, [u8]>;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// The txg that makes the operation permanent; replay skips records of txgs that were.
    pub txg: Txg,
    /// Sequence number within the objset's log.
    pub sequence: u64,
    /// Whether names are to be looked up ignoring case.
    pub ignore_case: bool,
    /// The operation.
    pub tx: Tx<'a>,
}

/// The operation of a log record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tx<'a> {
    /// A marker that never reaches a disk.
    Commit,
    /// Created a file, directory, attribute directory or symbolic link.
    Create(Box<Create<'a>>),
    /// Removed a file.
    Remove {
        /// The directory.
        directory: ObjectId,
        /// The name in it.
        name: Data<'a>,
    },
    /// Removed a directory.
    Rmdir {
        /// The parent.
        directory: ObjectId,
        /// The name in it.
        name: Data<'a>,
    },
    /// Gave a file another name.
    Link {
        /// The directory of the new name.
        directory: ObjectId,
        /// The file.
        object: ObjectId,
        /// The new name.
        name: Data<'a>,
    },
    /// Renamed, exchanged, or renamed leaving a whiteout.
    Rename(Rename<'a>),
    /// Wrote to a file or volume.
    Write(Box<Write<'a>>),
    /// Freed a range of a file or volume.
    Truncate {
        /// The file.
        object: ObjectId,
        /// From here.
        offset_bytes: u64,
        /// This much; 0 for all that follows.
        length_bytes: u64,
    },
    /// Changed attributes.
    SetAttr(Box<SetAttr>),
    /// Replaced a file's ACL, in file systems before version 3.
    AclV0 {
        /// The file.
        object: ObjectId,
        /// The entries; none has GUIDs.
        entries: Vec<Ace>,
    },
    /// Replaced a file's ACL.
    Acl(AclRecord),
    /// Set or removed an extended attribute kept in system attributes.
    SetSaXattr(SetSaXattr<'a>),
    /// Cloned blocks into a file.
    CloneRange(CloneRange),
}

/// The kind of the object that a create record made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateKind<'a> {
    /// A file (or device, socket, pipe).
    File,
    /// A directory.
    Directory,
    /// The hidden directory of a file's extended attributes. Its record's name is empty.
    XattrDirectory,
    /// A symbolic link.
    Symlink {
        /// Where it leads.
        target: Data<'a>,
    },
}

/// A create record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// The kind of the object made.
    pub kind: CreateKind<'a>,
    /// In which directory.
    pub directory: ObjectId,
    /// The object made.
    pub object: ObjectId,
    /// Its dnode's slots, 1 to 32 in sound logs.
    pub dnode_slots: u16,
    /// Mode bits.
    pub mode: u64,
    /// Owner, or a FUID.
    pub uid: u64,
    /// Group, or a FUID.
    pub gid: u64,
    /// Generation: the txg of creation.
    pub generation: u64,
    /// Creation time: seconds and nanoseconds.
    pub creation_time: [u64; 2],
    /// Device number.
    pub rdev: u64,
    /// Extended attributes set with it. Files and directories only.
    pub xvattr: Option<Xvattr>,
    /// ACL set with it. Files and directories only.
    pub acl: Option<AclEntries>,
    /// Domains of owner and group, where there is no ACL to hold them ([`FuidDomains::implied_count`] many).
    pub domains: FuidDomains,
    /// Its name.
    pub name: Data<'a>,
}

/// The kind of a rename, by the file that it left under the old name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenameKind {
    /// Nothing.
    Plain,
    /// The target's former file.
    Exchange,
    /// A whiteout.
    Whiteout(Whiteout),
}

/// The whiteout (a character device 0:0) made at a rename's source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whiteout {
    /// The object made.
    pub object: ObjectId,
    /// Its dnode's slots.
    pub dnode_slots: u16,
    /// Mode bits.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Generation.
    pub generation: u64,
    /// Creation time: seconds and nanoseconds.
    pub creation_time: [u64; 2],
    /// Device number, 0:0 in the writer's encoding.
    pub rdev: u64,
}

/// A rename record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename<'a> {
    /// Which rename.
    pub kind: RenameKind,
    /// Directory of the old name.
    pub source_directory: ObjectId,
    /// Directory of the new name.
    pub target_directory: ObjectId,
    /// The old name.
    pub source_name: Data<'a>,
    /// The new name.
    pub target_name: Data<'a>,
}

/// A write record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The file or volume.
    pub object: ObjectId,
    /// Where.
    pub offset_bytes: u64,
    /// How much.
    pub length_bytes: u64,
    /// Unused since long.
    pub block_offset: u64,
    /// Where the data already lies, in an indirect write: a whole block of the file, of which this write may have
    /// changed only a part. Replay writes all of it, at the offset rounded down to the block. A hole otherwise.
    pub pointer: Blkptr,
    /// The data, in a copied write (whether it was copied when logged or when committed cannot be told apart).
    pub data: Option<Data<'a>>,
    /// Of the kind logged when the block was being synced already (`TX_WRITE2`): only the size is brought up.
    pub size_only: bool,
}

/// A setattr record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAttr {
    /// The file.
    pub object: ObjectId,
    /// Which attributes, in the bits of the system that wrote the log.
    pub mask: u64,
    /// Mode bits.
    pub mode: u64,
    /// Owner, or a FUID.
    pub uid: u64,
    /// Group, or a FUID.
    pub gid: u64,
    /// Size.
    pub size_bytes: u64,
    /// Access time: seconds and nanoseconds.
    pub access_time: [u64; 2],
    /// Modification time: seconds and nanoseconds.
    pub modification_time: [u64; 2],
    /// Extended attributes.
    pub xvattr: Option<Xvattr>,
    /// Domains of owner and group.
    pub domains: FuidDomains,
}

impl SetAttr {
    /// The mask bit of the mode. This one and the next are Linux's (`ATTR_*` of `linux/fs.h`), whatever system has written the record.
    pub const MASK_MODE: u64 = 1 << 0;
    /// The mask bit of the owner.
    pub const MASK_UID: u64 = 1 << 1;
    /// The mask bit of the group.
    pub const MASK_GID: u64 = 1 << 2;
    /// The mask bit of the size.
    pub const MASK_SIZE: u64 = 1 << 3;
    /// The mask bit of the access time.
    pub const MASK_ATIME: u64 = 1 << 4;
    /// The mask bit of the modification time.
    pub const MASK_MTIME: u64 = 1 << 5;
    /// The mask bit with which Linux says that extended attributes follow.
    pub const MASK_XVATTR_LINUX: u64 = 1 << 31;
    /// The mask bit with which illumos and FreeBSD do. On Linux it means something else.
    pub const MASK_XVATTR_ILLUMOS: u64 = 1 << 16;
}

/// An ACL record of the present form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclRecord {
    /// The file.
    pub object: ObjectId,
    /// Its new list.
    pub acl: AclEntries,
}

/// An extended attribute's new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSaXattr<'a> {
    /// The file.
    pub object: ObjectId,
    /// The attribute.
    pub name: Data<'a>,
    /// Its value; empty to remove it.
    pub value: Data<'a>,
}

/// Blocks cloned into a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneRange {
    /// The file.
    pub object: ObjectId,
    /// Where.
    pub offset_bytes: u64,
    /// How much.
    pub length_bytes: u64,
    /// The file's block size.
    pub block_bytes: u64,
    /// The blocks.
    pub pointers: Vec<Blkptr>,
}

/// A block of a cloned range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClonedPart {
    /// Its offset in the file.
    pub offset_bytes: u64,
    /// The length of the part that was cloned. Only the range's last block may have less than a whole block.
    pub length_bytes: u64,
    /// Its pointer.
    pub pointer: Blkptr,
}

impl CloneRange {
    /// The largest block.
    const BLOCK_MAX_BYTES: u64 = 16 << 20;

    /// The blocks of the range, by ascending offset.
    ///
    /// # Errors
    /// The number or the sizes of the blocks do not fit the range, or it does not begin at a block boundary.
    pub fn parts(&self) -> Result<impl Iterator<Item = ClonedPart> + '_, FormatError> {
        let Self { offset_bytes, length_bytes, block_bytes, .. } = *self;
        let malformed = |offset, what| Err(FormatError::malformed(STRUCTURE, offset, what));
        if block_bytes == 0 || block_bytes > Self::BLOCK_MAX_BYTES {
            return malformed(56, "a cloned range of blocks of no size, or of more than 16 MiB");
        }
        if !offset_bytes.is_multiple_of(block_bytes) || offset_bytes.checked_add(length_bytes).is_none() {
            return malformed(40, "a cloned range that begins between two blocks, or has no end");
        }
        if length_bytes.div_ceil(block_bytes) != self.pointers.len() as u64 {
            return malformed(64, "a cloned range of more or fewer blocks than it is long");
        }
        if self.pointers.iter().any(|pointer| !pointer.is_hole() && pointer.lsize_bytes() != block_bytes) {
            return malformed(72, "a cloned block of another size than its range's blocks");
        }
        let part = move |(index, pointer): (usize, &Blkptr)| {
            let within = index as u64 * block_bytes;
            let length_bytes = block_bytes.min(length_bytes - within);
            ClonedPart { offset_bytes: offset_bytes + within, length_bytes, pointer: *pointer }
        };
        Ok(self.pointers.iter().enumerate().map(part))
    }
}

pub(super) const STRUCTURE: &str = "log record";
pub(super) const IGNORE_CASE: u64 = 1 << 63;
const SLOTS_SHIFT: u32 = 56;
const OBJECT_MASK: u64 = (1 << 48) - 1;
const CREATE_SIZE: usize = 104;
const CREATE_ACL_SIZE: usize = 144;

pub(super) mod number {
    pub(super) const COMMIT: u64 = 0;
    pub(super) const CREATE: u64 = 1;
    pub(super) const MKDIR: u64 = 2;
    pub(super) const MKXATTR: u64 = 3;
    pub(super) const SYMLINK: u64 = 4;
    pub(super) const REMOVE: u64 = 5;
    pub(super) const RMDIR: u64 = 6;
    pub(super) const LINK: u64 = 7;
    pub(super) const RENAME: u64 = 8;
    pub(in crate::zil) const WRITE: u64 = 9;
    pub(super) const TRUNCATE: u64 = 10;
    pub(super) const SETATTR: u64 = 11;
    pub(super) const ACL_V0: u64 = 12;
    pub(super) const ACL: u64 = 13;
    pub(super) const CREATE_ACL: u64 = 14;
    pub(super) const CREATE_ATTR: u64 = 15;
    pub(super) const CREATE_ACL_ATTR: u64 = 16;
    pub(super) const MKDIR_ACL: u64 = 17;
    pub(super) const MKDIR_ATTR: u64 = 18;
    pub(super) const MKDIR_ACL_ATTR: u64 = 19;
    pub(super) const WRITE2: u64 = 20;
    pub(super) const SETSAXATTR: u64 = 21;
    pub(super) const RENAME_EXCHANGE: u64 = 22;
    pub(super) const RENAME_WHITEOUT: u64 = 23;
    pub(in crate::zil) const CLONE_RANGE: u64 = 24;
}

impl<'a> LogRecord<'a> {
    /// Bytes of the part that all records share.
    pub const HEADER_SIZE: usize = 32;

    /// Reads the record at the head of `bytes`, which may hold more after it; also says how many bytes it took.
    pub fn parse(bytes: &'a [u8], endian: Endian) -> Result<(Self, usize), FormatError> {
        let header = Fields::new(STRUCTURE, bytes, Self::HEADER_SIZE, endian)?;
        let length = header.u64(8)?;
        let record = usize::try_from(length)
            .ok()
            .filter(|len| *len >= Self::HEADER_SIZE)
            .and_then(|len| bytes.get(..len))
            .ok_or_else(|| FormatError::invalid(STRUCTURE, 8, "length", length, "32 up to the block's used part"))?;
        let fields = Fields::new(STRUCTURE, record, Self::HEADER_SIZE, endian)?;
        let word = fields.u64(0)?;
        let parsed = Self {
            txg: Txg(fields.u64(16)?),
            sequence: fields.u64(24)?,
            ignore_case: word & IGNORE_CASE != 0,
            tx: Tx::parse(word & !IGNORE_CASE, &fields)?,
        };
        Ok((parsed, record.len()))
    }

    /// The record's bytes, padded.
    ///
    /// # Panics
    /// If a name contains a NUL, or the record says what its kind cannot (a symbolic link with an ACL, say): such
    /// values do not come from [`LogRecord::parse`].
    #[must_use]
    pub fn emit(&self, endian: Endian) -> Vec<u8> {
        let mut out = vec![0; Self::HEADER_SIZE];
        let word = self.tx.number() | if self.ignore_case { IGNORE_CASE } else { 0 };
        self.tx.emit(&mut out, endian);
        out.resize(out.len().next_multiple_of(8), 0);
        let length = out.len() as u64;
        for (offset, value) in [(0, word), (8, length), (16, self.txg.0), (24, self.sequence)] {
            put_u64(&mut out, offset, value, endian);
        }
        out
    }
}

/// The records of a log block. Ends after the first that cannot be read, whose length is then unknown.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    endian: Endian,
}

impl<'a> Records<'a> {
    /// The records in `area`.
    #[must_use]
    pub(crate) fn new(area: &'a [u8], endian: Endian) -> Self {
        Self { rest: area, endian }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<LogRecord<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match LogRecord::parse(self.rest, self.endian) {
            Ok((record, size)) => {
                self.rest = self.rest.get(size..).unwrap_or_default();
                Some(Ok(record))
            }
            Err(error) => {
                self.rest = &[];
                Some(Err(error))
            }
        }
    }
}

impl<'a> Tx<'a> {
    /// The number in the record's type field, without the case bit.
    #[must_use]
    pub(crate) fn number(&self) -> u64 {
        match self {
            Self::Commit => number::COMMIT,
            Self::Create(create) => match (&create.kind, create.acl.is_some(), create.xvattr.is_some()) {
                (CreateKind::File, false, false) => number::CREATE,
                (CreateKind::File, false, true) => number::CREATE_ATTR,
                (CreateKind::File, true, false) => number::CREATE_ACL,
                (CreateKind::File, true, true) => number::CREATE_ACL_ATTR,
                (CreateKind::Directory, false, false) => number::MKDIR,
                (CreateKind::Directory, false, true) => number::MKDIR_ATTR,
                (CreateKind::Directory, true, false) => number::MKDIR_ACL,
                (CreateKind::Directory, true, true) => number::MKDIR_ACL_ATTR,
                (CreateKind::XattrDirectory, ..) => number::MKXATTR,
                (CreateKind::Symlink { .. }, ..) => number::SYMLINK,
            },
            Self::Remove { .. } => number::REMOVE,
            Self::Rmdir { .. } => number::RMDIR,
            Self::Link { .. } => number::LINK,
            Self::Rename(rename) => match rename.kind {
                RenameKind::Plain => number::RENAME,
                RenameKind::Exchange => number::RENAME_EXCHANGE,
                RenameKind::Whiteout(_) => number::RENAME_WHITEOUT,
            },
            Self::Write(write) if write.size_only => number::WRITE2,
            Self::Write(_) => number::WRITE,
            Self::Truncate { .. } => number::TRUNCATE,
            Self::SetAttr(_) => number::SETATTR,
            Self::AclV0 { .. } => number::ACL_V0,
            Self::Acl(_) => number::ACL,
            Self::SetSaXattr(_) => number::SETSAXATTR,
            Self::CloneRange(_) => number::CLONE_RANGE,
        }
    }

    fn parse(tx: u64, f: &Fields<'a>) -> Result<Self, FormatError> {
        let object = |offset| f.u64(offset).map(ObjectId);
        let after = |offset: usize| f.bytes().get(offset..).unwrap_or_default();
        let name = |offset| c_string(f.bytes(), offset).map(Cow::Borrowed);
        Ok(match tx {
            number::COMMIT => Self::Commit,
            number::CREATE..=number::SYMLINK | number::CREATE_ACL..=number::MKDIR_ACL_ATTR => {
                Self::Create(Box::new(Create::parse(tx, f)?))
            }
            number::REMOVE => Self::Remove { directory: object(32)?, name: name(40)? },
            number::RMDIR => Self::Rmdir { directory: object(32)?, name: name(40)? },
            number::LINK => Self::Link { directory: object(32)?, object: object(40)?, name: name(48)? },
            number::RENAME | number::RENAME_EXCHANGE | number::RENAME_WHITEOUT => Self::Rename(Rename::parse(tx, f)?),
            number::WRITE | number::WRITE2 => Self::Write(Box::new(Write::parse(tx, f)?)),
            number::TRUNCATE => {
                Self::Truncate { object: object(32)?, offset_bytes: f.u64(40)?, length_bytes: f.u64(48)? }
            }
            number::SETATTR => Self::SetAttr(Box::new(SetAttr::parse(f)?)),
            number::ACL_V0 => {
                let entries = Fields::new(STRUCTURE, after(48), 0, f.endian())?;
                Self::AclV0 { object: object(32)?, entries: parse_entries(&entries, f.u64(40)?, false)?.0 }
            }
            number::ACL => {
                let (acl, _) = AclEntries::parse(after(80), &acl_counts(f, 40)?, f.endian())?;
                Self::Acl(AclRecord { object: object(32)?, acl })
            }
            number::SETSAXATTR => {
                let name: &'a [u8] = c_string(f.bytes(), 48)?;
                let length = usize::try_from(f.u64(40)?).unwrap_or(usize::MAX);
                let value = f.slice(48 + name.len() + 1, length)?;
                Self::SetSaXattr(SetSaXattr { object: object(32)?, name: name.into(), value: value.into() })
            }
            number::CLONE_RANGE => Self::CloneRange(CloneRange::parse(f)?),
            other => return Err(f.error(0, FormatErrorKind::Invalid { field: "type", value: other, rule: "0 to 24" })),
        })
    }

    fn emit(&self, out: &mut Vec<u8>, endian: Endian) {
        match self {
            Self::Commit => {}
            Self::Create(create) => create.emit(out, endian),
            Self::Remove { directory, name } | Self::Rmdir { directory, name } => {
                words(out, endian, &[directory.0]);
                names(out, &[name]);
            }
            Self::Link { directory, object, name } => {
                words(out, endian, &[directory.0, object.0]);
                names(out, &[name]);
            }
            Self::Rename(rename) => rename.emit(out, endian),
            Self::Write(write) => {
                words(out, endian, &[write.object.0, write.offset_bytes, write.length_bytes, write.block_offset]);
                out.extend(write.pointer.emit(endian));
                out.extend(write.data.as_deref().unwrap_or_default());
            }
            Self::Truncate { object, offset_bytes, length_bytes } => {
                words(out, endian, &[object.0, *offset_bytes, *length_bytes]);
            }
            Self::SetAttr(set) => {
                words(out, endian, &[set.object.0, set.mask, set.mode, set.uid, set.gid, set.size_bytes]);
                words(out, endian, &set.access_time);
                words(out, endian, &set.modification_time);
                if let Some(xvattr) = &set.xvattr {
                    xvattr.emit(out, endian);
                }
                set.domains.emit(out);
            }
            Self::AclV0 { object, entries } => {
                words(out, endian, &[object.0, entries.len() as u64]);
                emit_entries(entries, out, endian);
            }
            Self::Acl(record) => {
                words(out, endian, &[record.object.0]);
                words(out, endian, &record.acl.counts());
                record.acl.emit(out, endian);
            }
            Self::SetSaXattr(set) => {
                words(out, endian, &[set.object.0, set.value.len() as u64]);
                names(out, &[&set.name]);
                out.extend(set.value.iter());
            }
            Self::CloneRange(clone) => {
                words(out, endian, &[clone.object.0, clone.offset_bytes, clone.length_bytes, clone.block_bytes]);
                words(out, endian, &[clone.pointers.len() as u64]);
                for pointer in &clone.pointers {
                    out.extend(pointer.emit(endian));
                }
            }
        }
    }
}

impl<'a> Create<'a> {
    fn parse(tx: u64, f: &Fields<'a>) -> Result<Self, FormatError> {
        let (has_acl, has_xvattr) = match tx {
            number::CREATE_ACL | number::MKDIR_ACL => (true, false),
            number::CREATE_ATTR | number::MKDIR_ATTR => (false, true),
            number::CREATE_ACL_ATTR | number::MKDIR_ACL_ATTR => (true, true),
            _ => (false, false),
        };
        let (uid, gid) = (f.u64(56)?, f.u64(64)?);
        let (object, dnode_slots) = object_and_slots(f.u64(40)?);
        let mut offset = if has_acl { CREATE_ACL_SIZE } else { CREATE_SIZE };
        let after = |offset: usize| f.bytes().get(offset..).unwrap_or_default();
        let xvattr = if has_xvattr {
            let (xvattr, size) = Xvattr::parse(after(offset), f.endian())?;
            offset += size;
            Some(xvattr)
        } else {
            None
        };
        let acl = if has_acl {
            let (acl, size) = AclEntries::parse(after(offset), &acl_counts(f, CREATE_SIZE)?, f.endian())?;
            offset += size;
            Some(acl)
        } else {
            None
        };
        let mut domains = FuidDomains::default();
        if acl.is_none() && tx != number::SYMLINK {
            let (parsed, size) = FuidDomains::parse(after(offset), FuidDomains::implied_count(uid, gid))?;
            domains = parsed;
            offset += size;
        }
        let name: &'a [u8] = c_string(f.bytes(), offset)?;
        let kind = match tx {
            number::MKXATTR => CreateKind::XattrDirectory,
            number::SYMLINK => CreateKind::Symlink { target: c_string(f.bytes(), offset + name.len() + 1)?.into() },
            number::MKDIR | number::MKDIR_ACL..=number::MKDIR_ACL_ATTR => CreateKind::Directory,
            _ => CreateKind::File,
        };
        Ok(Self {
            kind,
            directory: ObjectId(f.u64(32)?),
            object,
            dnode_slots,
            mode: f.u64(48)?,
            uid,
            gid,
            generation: f.u64(72)?,
            creation_time: [f.u64(80)?, f.u64(88)?],
            rdev: f.u64(96)?,
            xvattr,
            acl,
            domains,
            name: name.into(),
        })
    }

    fn emit(&self, out: &mut Vec<u8>, endian: Endian) {
        let plain = matches!(self.kind, CreateKind::XattrDirectory | CreateKind::Symlink { .. });
        assert!(
            !plain || (self.acl.is_none() && self.xvattr.is_none()),
            "links and attribute directories are logged without ACL and extended attributes"
        );
        words(out, endian, &[self.directory.0, pack_object(self.object, self.dnode_slots), self.mode]);
        words(out, endian, &[self.uid, self.gid, self.generation]);
        words(out, endian, &self.creation_time);
        words(out, endian, &[self.rdev]);
        if let Some(acl) = &self.acl {
            words(out, endian, &acl.counts());
        }
        if let Some(xvattr) = &self.xvattr {
            xvattr.emit(out, endian);
        }
        match &self.acl {
            Some(acl) => acl.emit(out, endian),
            None => self.domains.emit(out),
        }
        names(out, &[&self.name]);
        if let CreateKind::Symlink { target } = &self.kind {
            names(out, &[target]);
        }
    }
}

impl<'a> Rename<'a> {
    fn parse(tx: u64, f: &Fields<'a>) -> Result<Self, FormatError> {
        let (kind, names_offset) = match tx {
            number::RENAME_WHITEOUT => {
                let (object, dnode_slots) = object_and_slots(f.u64(48)?);
                let whiteout = Whiteout {
                    object,
                    dnode_slots,
                    mode: f.u64(56)?,
                    uid: f.u64(64)?,
                    gid: f.u64(72)?,
                    generation: f.u64(80)?,
                    creation_time: [f.u64(88)?, f.u64(96)?],
                    rdev: f.u64(104)?,
                };
                (RenameKind::Whiteout(whiteout), 112)
            }
            number::RENAME_EXCHANGE => (RenameKind::Exchange, 48),
            _ => (RenameKind::Plain, 48),
        };
        let source_name: &'a [u8] = c_string(f.bytes(), names_offset)?;
        let target_name: &'a [u8] = c_string(f.bytes(), names_offset + source_name.len() + 1)?;
        Ok(Self {
            kind,
            source_directory: ObjectId(f.u64(32)?),
            target_directory: ObjectId(f.u64(40)?),
            source_name: source_name.into(),
            target_name: target_name.into(),
        })
    }

    fn emit(&self, out: &mut Vec<u8>, endian: Endian) {
        words(out, endian, &[self.source_directory.0, self.target_directory.0]);
        if let RenameKind::Whiteout(w) = &self.kind {
            words(out, endian, &[pack_object(w.object, w.dnode_slots), w.mode, w.uid, w.gid, w.generation]);
            words(out, endian, &w.creation_time);
            words(out, endian, &[w.rdev]);
        }
        names(out, &[&self.source_name, &self.target_name]);
    }
}

impl<'a> Write<'a> {
    const SIZE: usize = 64 + Blkptr::SIZE;

    fn parse(tx: u64, f: &Fields<'a>) -> Result<Self, FormatError> {
        let length_bytes = f.u64(48)?;
        let size_only = tx == number::WRITE2;
        // A record that ends with the pointer is an indirect write; there is no flag.
        let data = if f.bytes().len() == Self::SIZE || size_only {
            None
        } else {
            let length = usize::try_from(length_bytes).unwrap_or(usize::MAX);
            Some(Cow::Borrowed(f.slice(Self::SIZE, length)?)).filter(|data| !data.is_empty())
        };
        Ok(Self {
            object: ObjectId(f.u64(32)?),
            offset_bytes: f.u64(40)?,
            length_bytes,
            block_offset: f.u64(56)?,
            pointer: Blkptr::parse(f.slice(64, Blkptr::SIZE)?, f.endian())?,
            data,
            size_only,
        })
    }
}

impl SetAttr {
    const SIZE: usize = 112;

    fn parse(f: &Fields<'_>) -> Result<Self, FormatError> {
        let (mask, uid, gid) = (f.u64(40)?, f.u64(56)?, f.u64(64)?);
        let after = f.bytes().get(Self::SIZE..).unwrap_or_default();
        let head = Fields::new(STRUCTURE, after, 0, f.endian())?;
        // The illumos bit is another thing on Linux, so there it takes the attributes' own look to believe it.
        let has_xvattr = mask & Self::MASK_XVATTR_LINUX != 0
            || (mask & Self::MASK_XVATTR_ILLUMOS != 0
                && after.len() >= 4 + 4 * Xvattr::BITMAP_WORDS + 56
                && head.u32(0)? as usize == Xvattr::BITMAP_WORDS);
        let (xvattr, used) = if has_xvattr {
            let (xvattr, size) = Xvattr::parse(after, f.endian())?;
            (Some(xvattr), size)
        } else {
            (None, 0)
        };
        let domain_bytes = after.get(used..).unwrap_or_default();
        let (domains, _) = FuidDomains::parse(domain_bytes, FuidDomains::implied_count(uid, gid))?;
        Ok(Self {
            object: ObjectId(f.u64(32)?),
            mask,
            mode: f.u64(48)?,
            uid,
            gid,
            size_bytes: f.u64(72)?,
            access_time: [f.u64(80)?, f.u64(88)?],
            modification_time: [f.u64(96)?, f.u64(104)?],
            xvattr,
            domains,
        })
    }
}

impl CloneRange {
    const SIZE: usize = 72;

    fn parse(f: &Fields<'_>) -> Result<Self, FormatError> {
        let count = f.u64(64)?;
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(Blkptr::SIZE)).unwrap_or(usize::MAX);
        let pointers = f
            .slice(Self::SIZE, bytes)?
            .chunks_exact(Blkptr::SIZE)
            .map(|chunk| Blkptr::parse(chunk, f.endian()))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            object: ObjectId(f.u64(32)?),
            offset_bytes: f.u64(40)?,
            length_bytes: f.u64(48)?,
            block_bytes: f.u64(56)?,
            pointers,
        })
    }
}

fn acl_counts(f: &Fields<'_>, offset: usize) -> Result<AclCounts, FormatError> {
    Ok(AclCounts {
        entries: f.u64(offset)?,
        domains: f.u64(offset + 8)?,
        fuids: f.u64(offset + 16)?,
        bytes: f.u64(offset + 24)?,
        flags: f.u64(offset + 32)?,
    })
}

fn object_and_slots(word: u64) -> (ObjectId, u16) {
    let slots = (word >> SLOTS_SHIFT) as u16 + 1;
    (ObjectId(word & OBJECT_MASK), slots)
}

fn pack_object(object: ObjectId, slots: u16) -> u64 {
    assert!(object.0 & !OBJECT_MASK == 0, "object numbers have 48 bits");
    assert!((1..=256).contains(&slots), "dnode slots out of range");
    object.0 | u64::from(slots - 1) << SLOTS_SHIFT
}

fn words(out: &mut Vec<u8>, endian: Endian, values: &[u64]) {
    for value in values {
        out.extend(endian.bytes64(*value));
    }
}

fn names(out: &mut Vec<u8>, names: &[&Data<'_>]) {
    for name in names {
        assert!(!name.contains(&0), "a name contains a NUL");
        out.extend(name.iter());
        out.push(0);
    }
}
