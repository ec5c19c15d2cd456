//! Records of names: what was made, and what was renamed.

use cenote_format::zil::{Create, CreateKind, Rename, RenameKind, Whiteout};

use super::Replay;
use crate::dir::{NewNode, Origin, RenameMode};
use crate::{Time, ZplError};

/// The largest dnode, in slots.
const SLOTS_MAX: u16 = 32;

/// Major and minor device number from a record's `rdev`.
const fn device_of(rdev: u64) -> (u32, u32) {
    ((rdev >> 20) as u32, (rdev & 0xf_ffff) as u32)
}

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
        let [seconds, nanoseconds] = create.creation_time;
        let created = Time { seconds: seconds.cast_signed(), nanoseconds };
        let slots = create.dnode_slots as u8;
        let origin = Origin { object: create.object, slots, generation: create.generation, created };
        self.check_free(&origin).await?;
        if create.kind == CreateKind::XattrDirectory {
            return self.filesystem.replay_hidden_dir(create.directory, mode, (uid, gid), origin).await;
        }
        let target = match &create.kind {
            CreateKind::Symlink { target } => Some(target.to_vec()),
            _ => None,
        };
        let device = device_of(create.rdev);
        let new = NewNode { mode, umask: 0, uid, gid, device, target };
        let made = self.filesystem.create_node(create.directory, &create.name, &new, false, Some(origin)).await;
        made.map(drop)
    }

    /// Renames again.
    pub(super) async fn rename(&self, rename: &Rename<'_>) -> Result<(), ZplError> {
        let (mode, left) = match &rename.kind {
            RenameKind::Plain => (RenameMode::Replace, None),
            RenameKind::Exchange => (RenameMode::Exchange, None),
            RenameKind::Whiteout(whiteout) => (RenameMode::Replace, Some(self.whiteout(whiteout).await?)),
        };
        let (from, to) = (rename.source_directory, rename.target_directory);
        self.filesystem.rename_leaving(from, &rename.source_name, to, &rename.target_name, mode, left).await
    }

    /// The node that a record describes as its whiteout.
    async fn whiteout(&self, whiteout: &Whiteout) -> Result<(NewNode, Origin), ZplError> {
        let (Ok(mode), Ok(uid), Ok(gid)) =
            (u32::try_from(whiteout.mode), u32::try_from(whiteout.uid), u32::try_from(whiteout.gid))
        else {
            return Err(ZplError::Unsupported("not supported yet: owners of other domains".into()));
        };
        if whiteout.dnode_slots == 0 || whiteout.dnode_slots > SLOTS_MAX {
            return Err(ZplError::Invalid("a dnode of more than 32 slots, or of none"));
        }
        let [seconds, nanoseconds] = whiteout.creation_time;
        let created = Time { seconds: seconds.cast_signed(), nanoseconds };
        let (object, slots) = (whiteout.object, whiteout.dnode_slots as u8);
        let origin = Origin { object, slots, generation: whiteout.generation, created };
        self.check_free(&origin).await?;
        let device = device_of(whiteout.rdev);
        Ok((NewNode { mode, umask: 0, uid, gid, device, target: None }, origin))
    }

    async fn check_free(&self, origin: &Origin) -> Result<(), ZplError> {
        match self.filesystem.objset().is_free(origin.object, origin.slots).await? {
            true => Ok(()),
            false => Err(ZplError::Invalid("the number of a new object is in use")),
        }
    }
}
