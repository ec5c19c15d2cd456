//! Records of names: what was made, and what was renamed.

use cenote_format::zil::{Create, CreateKind, Rename, RenameKind};

use super::Replay;
use crate::dir::{NewNode, Origin, RenameMode};
use crate::{Time, ZplError};

/// The largest dnode, in slots.
const SLOTS_MAX: u16 = 32;

impl Replay {
    /// Makes an object again, with its number.
    pub(super) async fn create(&self, create: &Create<'_>) -> Result<(), ZplError> {
        let invalid = |what| Err(ZplError::Invalid(what));
        let Ok(mode) = u32::try_from(create.mode) else { return invalid("a mode of more than 32 bits") };
        let (Ok(uid), Ok(gid)) = (u32::try_from(create.uid), u32::try_from(create.gid)) else {
            return Err(ZplError::Unsupported("not supported yet: owners of other domains".into()));
        };
        if create.dnode_slots == 0 || create.dnode_slots > SLOTS_MAX {
            return invalid("a dnode of more than 32 slots, or of none");
        }
        let slots = create.dnode_slots as u8;
        if !self.filesystem.objset().is_free(create.object, slots).await? {
            return invalid("the number of a new object is in use");
        }
        let target = match &create.kind {
            CreateKind::Symlink { target } => Some(target.to_vec()),
            _ => None,
        };
        let device = ((create.rdev >> 20) as u32, (create.rdev & 0xf_ffff) as u32);
        let new = NewNode { mode, umask: 0, uid, gid, device, target };
        let [seconds, nanoseconds] = create.creation_time;
        let created = Time { seconds: seconds.cast_signed(), nanoseconds };
        let origin = Origin { object: create.object, slots, generation: create.generation, created };
        let made = self.filesystem.create_node(create.directory, &create.name, &new, false, Some(origin)).await;
        made.map(drop)
    }

    /// Renames again.
    pub(super) async fn rename(&self, rename: &Rename<'_>) -> Result<(), ZplError> {
        let mode = match rename.kind {
            RenameKind::Plain => RenameMode::Replace,
            RenameKind::Exchange => RenameMode::Exchange,
            RenameKind::Whiteout(_) => {
                return Err(ZplError::Unsupported("not supported yet: renaming that leaves a whiteout".into()));
            }
        };
        let (from, to) = (rename.source_directory, rename.target_directory);
        self.filesystem.rename(from, &rename.source_name, to, &rename.target_name, mode).await
    }
}
