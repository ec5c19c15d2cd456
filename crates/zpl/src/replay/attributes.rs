//! Records of attributes.

use cenote_format::zil::{SetAttr, XvattrFlags};
use cenote_format::znode::ZnodeFlags;

use super::Replay;
use crate::{AttributeChange, Time, ZplError};

/// Attributes of the DOS-like kind, as records and as files have them.
const FLAGS: [(XvattrFlags, ZnodeFlags); 12] = [
    (XvattrFlags::READONLY, ZnodeFlags::READONLY),
    (XvattrFlags::HIDDEN, ZnodeFlags::HIDDEN),
    (XvattrFlags::SYSTEM, ZnodeFlags::SYSTEM),
    (XvattrFlags::ARCHIVE, ZnodeFlags::ARCHIVE),
    (XvattrFlags::IMMUTABLE, ZnodeFlags::IMMUTABLE),
    (XvattrFlags::NOUNLINK, ZnodeFlags::NO_UNLINK),
    (XvattrFlags::APPENDONLY, ZnodeFlags::APPEND_ONLY),
    (XvattrFlags::NODUMP, ZnodeFlags::NO_DUMP),
    (XvattrFlags::REPARSE, ZnodeFlags::REPARSE),
    (XvattrFlags::OFFLINE, ZnodeFlags::OFFLINE),
    (XvattrFlags::SPARSE, ZnodeFlags::SPARSE),
    (XvattrFlags::PROJINHERIT, ZnodeFlags::PROJECT_INHERIT),
];

impl Replay {
    /// Changes attributes again.
    pub(super) async fn set_attributes(&self, set: &SetAttr) -> Result<(), ZplError> {
        let asked = |bit: u64| set.mask & bit != 0;
        let owner = |bit, id: u64| match asked(bit) {
            false => Ok(None),
            true => match u32::try_from(id) {
                Ok(id) => Ok(Some(id)),
                Err(_) => Err(ZplError::Unsupported("not supported yet: owners of other domains".into())),
            },
        };
        let time = |bit, [seconds, nanoseconds]: [u64; 2]| {
            asked(bit).then(|| Time { seconds: seconds.cast_signed(), nanoseconds })
        };
        let mut change = AttributeChange {
            permissions: asked(SetAttr::MASK_MODE).then_some(set.mode as u32 & 0o7777),
            uid: owner(SetAttr::MASK_UID, set.uid)?,
            gid: owner(SetAttr::MASK_GID, set.gid)?,
            size_bytes: asked(SetAttr::MASK_SIZE).then_some(set.size_bytes),
            accessed: time(SetAttr::MASK_ATIME, set.access_time),
            modified: time(SetAttr::MASK_MTIME, set.modification_time),
            ..AttributeChange::default()
        };
        if let Some(xvattr) = &set.xvattr {
            let (mut on, mut off) = (ZnodeFlags::empty(), ZnodeFlags::empty());
            for (theirs, ours) in FLAGS.iter().filter(|(theirs, _)| xvattr.requested().contains(*theirs)) {
                if xvattr.values.contains(*theirs) { on |= *ours } else { off |= *ours }
            }
            if !(on | off).is_empty() {
                change.flags = Some((on, off));
            }
            change.project = xvattr.project_id(cenote_dmu::ORDER);
        }
        if change == AttributeChange::default() {
            return Ok(());
        }
        self.filesystem.set_attributes(set.object, &change).await.map(drop)
    }
}
