//! A file's system attributes, as a file system uses them: what a new file has, and changes that go together.

use cenote_dmu::sa::{SaForm, SaRecord, SaTables};
use cenote_format::ids::ObjectId;
use cenote_format::sa::ZplAttribute;
use cenote_format::znode::ZnodeFlags;

use crate::{FileKind, Time, ZplError, acl};

/// The bits of a mode that say what a file is.
pub(crate) const MODE_KIND: u32 = 0o170_000;
/// The bit that has new files take over a directory's group.
pub(crate) const MODE_SETGID: u32 = 0o2000;
/// Files begin with a block of this size.
pub(crate) const BLOCK_MIN_BYTES: u32 = 512;

/// A record with the form that it is to be packed in: made before a txg is begun.
pub(crate) struct Plan {
    pub(crate) record: SaRecord,
    pub(crate) form: SaForm,
}

/// The number and times of a node that is made again from the intent log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// Its object, whose number is free.
    pub(crate) object: ObjectId,
    /// Slots of its dnode.
    pub(crate) slots: u8,
    /// Its generation.
    pub(crate) generation: u64,
    /// Its creation time.
    pub(crate) created: Time,
}

/// The initial attributes of a new file.
pub(crate) struct Birth {
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) project: u64,
    pub(crate) parent: ObjectId,
    pub(crate) size_bytes: u64,
    pub(crate) links: u64,
    pub(crate) flags: ZnodeFlags,
    /// Number of a device.
    pub(crate) rdev: Option<u64>,
    pub(crate) times: Times,
}

/// A file's times.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) accessed: Time,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    pub(crate) created: Time,
}

impl Times {
    /// All the same.
    pub(crate) const fn all(at: Time) -> Self {
        Self { accessed: at, modified: at, changed: at, created: at }
    }
}

impl Birth {
    /// The attributes, in the order in which OpenZFS has them; the generation is to be filled in.
    pub(crate) fn record(&self, tables: &SaTables) -> Result<SaRecord, ZplError> {
        assert!(self.links > 0, "what is made has a name");
        debug_assert!(FileKind::of_mode(u64::from(self.mode)).is_some(), "what is made is of some kind");
        let mut record = tables.new_record();
        let is_dir = self.mode & MODE_KIND == FileKind::Directory.mode_bits();
        assert_eq!(self.rdev.is_some(), is_device(self.mode), "devices have a number, and nothing else has");
        debug_assert!(!is_dir || (self.size_bytes >= 2 && self.links >= 2), "a directory has itself and the one above");
        let flags = self.flags
            | acl::flags(self.mode)
            | ZnodeFlags::ARCHIVE
            | ZnodeFlags::AV_MODIFIED
            | ZnodeFlags::ACL_AUTO_INHERIT;
        let words_of: [(ZplAttribute, u64); 7] = [
            (ZplAttribute::Mode, u64::from(self.mode)),
            (ZplAttribute::Size, self.size_bytes),
            (ZplAttribute::Gen, 0),
            (ZplAttribute::Uid, self.uid),
            (ZplAttribute::Gid, self.gid),
            (ZplAttribute::Parent, self.parent.0),
            (ZplAttribute::Flags, flags.bits()),
        ];
        for (attribute, word) in words_of {
            record.put(attribute, word)?;
        }
        for (attribute, time) in [
            (ZplAttribute::Atime, self.times.accessed),
            (ZplAttribute::Mtime, self.times.modified),
            (ZplAttribute::Ctime, self.times.changed),
            (ZplAttribute::Crtime, self.times.created),
        ] {
            put_time(&mut record, attribute, time)?;
        }
        record.put(ZplAttribute::Links, self.links)?;
        if flags.contains(ZnodeFlags::PROJECT_ID) {
            record.put(ZplAttribute::Projid, self.project)?;
        }
        if let Some(rdev) = self.rdev {
            record.put(ZplAttribute::Rdev, rdev)?;
        }
        put_acl(&mut record, self.mode, is_dir)?;
        assert!(record.is_usual(), "accounting finds what it looks for in a new file");
        Ok(record)
    }
}

/// Whether a mode is a device's.
pub(crate) fn is_device(mode: u32) -> bool {
    matches!(FileKind::of_mode(u64::from(mode)), Some(FileKind::BlockDevice | FileKind::CharDevice))
}

/// An attribute that is a time.
pub(crate) fn time(record: &SaRecord, attribute: ZplAttribute) -> Time {
    Time::of_words(record.words(attribute).unwrap_or_default())
}

/// Sets an attribute that is a time.
pub(crate) fn put_time(record: &mut SaRecord, attribute: ZplAttribute, time: Time) -> Result<(), ZplError> {
    Ok(record.put_words(attribute, &[time.seconds.cast_unsigned(), time.nanoseconds])?)
}

/// Puts the access control list of a mode into a record.
pub(crate) fn put_acl(record: &mut SaRecord, mode: u32, is_dir: bool) -> Result<(), ZplError> {
    let (aces, count) = acl::trivial(mode, is_dir).map_err(|error| ZplError::Format { object: 0, error })?;
    record.put(ZplAttribute::DaclCount, count)?;
    Ok(record.set(ZplAttribute::DaclAces, &aces)?)
}

/// Its content has changed now.
pub(crate) fn touch(record: &mut SaRecord, now: Time) -> Result<(), ZplError> {
    put_time(record, ZplAttribute::Mtime, now)?;
    changed(record, now)
}

/// Its attributes have changed now.
pub(crate) fn changed(record: &mut SaRecord, now: Time) -> Result<(), ZplError> {
    let flags = record.flags() | ZnodeFlags::ARCHIVE | ZnodeFlags::AV_MODIFIED;
    record.put(ZplAttribute::Flags, flags.bits())?;
    put_time(record, ZplAttribute::Ctime, now)
}
