//! Records of names: what was made, and what was renamed.

use cenote_format::ids::ObjectId;
use cenote_format::zil::{Create, CreateKind, Rename, RenameKind, Whiteout};

use super::Replay;
use crate::dir::{NewNode, RenameMode};
use crate::record::Origin;
use crate::{Time, ZplError};

/// The largest dnode, in slots.
const SLOTS_MAX: u8 = 32;

/// Major and minor device number from a record's `rdev`.
const fn device_of(rdev: u64) -> (u32, u32) {
    ((rdev >> 20) as u32, (rdev & 0xf_ffff) as u32)
}

fn mode_of(mode: u64) -> Result<u32, ZplError> {
    u32::try_from(mode).map_err(|_| ZplError::Invalid("a mode of more than 32 bits"))
}

fn owners(uid: u64, gid: u64) -> Result<(u32, u32), ZplError> {
    match (u32::try_from(uid), u32::try_from(gid)) {
        (Ok(uid), Ok(gid)) => Ok((uid, gid)),
        _ => Err(ZplError::Unsupported("not supported yet: owners of other domains".into())),
    }
}

/// The number, dnode size and times that a record has of a new object.
fn origin(object: ObjectId, slots: u16, generation: u64, [seconds, nanoseconds]: [u64; 2]) -> Result<Origin, ZplError> {
    match u8::try_from(slots) {
        Ok(slots) if (1..=SLOTS_MAX).contains(&slots) => {
            let created = Time { seconds: seconds.cast_signed(), nanoseconds };
            Ok(Origin { object, slots, generation, created })
        }
        _ => Err(ZplError::Invalid("a dnode of more than 32 slots, or of none")),
    }
}

impl Replay {
    /// Makes an object again, with its number.
    pub(super) async fn create(&self, create: &Create<'_>) -> Result<(), ZplError> {
        let mode = mode_of(create.mode)?;
        let (uid, gid) = owners(create.uid, create.gid)?;
        let origin = origin(create.object, create.dnode_slots, create.generation, create.creation_time)?;
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
        let mode = mode_of(whiteout.mode)?;
        let (uid, gid) = owners(whiteout.uid, whiteout.gid)?;
        let origin = origin(whiteout.object, whiteout.dnode_slots, whiteout.generation, whiteout.creation_time)?;
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
