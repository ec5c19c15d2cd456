//! Records of data.

use cenote_format::ids::{BlockId, ObjectId};
use cenote_format::zil::{CloneRange, ClonedPart, Write};

use super::Replay;
use crate::file::{Allocation, Reach};
use crate::{AttributeChange, FileKind, ZplError};

/// The largest block.
const BLOCK_MAX_BYTES: u64 = 16 << 20;

impl Replay {
    /// Writes again what a record has, or the block that it points to.
    pub(super) async fn write(&self, write: &Write<'_>) -> Result<(), ZplError> {
        let file = self.filesystem.open_file(write.object).await?;
        let end = write.offset_bytes.checked_add(write.length_bytes).ok_or(ZplError::TooLarge)?;
        if write.size_only {
            return if end > file.size_bytes() { file.truncate(end).await } else { Ok(()) };
        }
        if let Some(data) = &write.data {
            return file.write_reaching(write.offset_bytes, data, Reach::To(end)).await;
        }
        let pointer = &write.pointer;
        let block_bytes = match pointer.lsize_bytes() {
            0 => write.length_bytes,
            lsize => lsize,
        };
        if block_bytes == 0 || block_bytes > BLOCK_MAX_BYTES {
            return Err(ZplError::Invalid("a block of no size, or of more than 16 MiB"));
        }
        let offset_bytes = match write.length_bytes < block_bytes {
            true => write.offset_bytes / block_bytes * block_bytes,
            false => write.offset_bytes,
        };
        if pointer.is_hole() {
            let zeros = vec![0; block_bytes as usize];
            return file.write_reaching(offset_bytes, &zeros, Reach::To(end)).await;
        }
        let objset = self.filesystem.objset();
        let context = objset.context(write.object, 0, BlockId(offset_bytes / block_bytes));
        let block = objset.dmu().read(pointer, context).await;
        let block = block.map_err(|error| cenote_dmu::DmuError::new(objset.id(), write.object, error))?;
        file.write_reaching(offset_bytes, &block, Reach::To(end)).await
    }

    /// Replays a cloned range by copying: reads the source blocks and writes their contents, which take new space.
    pub(super) async fn clone_range(&self, range: &CloneRange) -> Result<(), ZplError> {
        let file = self.filesystem.open_file(range.object).await?;
        let objset = self.filesystem.objset();
        for part in
            range.parts().map_err(|error| ZplError::Corrupt { object: range.object.0, what: error.to_string() })?
        {
            let ClonedPart { offset_bytes, length_bytes, pointer } = part;
            let reach = Reach::To(offset_bytes + length_bytes);
            if pointer.is_hole() {
                let end = offset_bytes + length_bytes;
                file.allocate(Allocation::Punch, offset_bytes..end).await?;
                if end > file.size_bytes() {
                    file.truncate(end).await?;
                }
                continue;
            }
            let context = objset.context(range.object, 0, BlockId(offset_bytes / range.block_bytes));
            let block = objset.dmu().read(&pointer, context).await;
            let block = block.map_err(|error| cenote_dmu::DmuError::new(objset.id(), range.object, error))?;
            file.write_reaching(offset_bytes, &block[..length_bytes as usize], reach).await?;
        }
        Ok(())
    }

    /// Gives a file another size, or frees a part of it.
    pub(super) async fn truncate(&self, id: ObjectId, offset_bytes: u64, length_bytes: u64) -> Result<(), ZplError> {
        let file = self.filesystem.open_file(id).await?;
        if length_bytes == 0 {
            return file.truncate(offset_bytes).await;
        }
        let end = offset_bytes.checked_add(length_bytes).ok_or(ZplError::TooLarge)?;
        file.allocate(Allocation::Punch, offset_bytes..end).await?;
        if end > file.size_bytes() { file.truncate(end).await } else { Ok(()) }
    }

    /// Makes zeros of what a file's blocks have behind its end. Its times stay: that change is not visible.
    pub(super) async fn trim(&self, id: ObjectId) -> Result<(), ZplError> {
        let cut = async {
            let node = self.filesystem.node(id).await?;
            let _lock = node.in_use()?.lock.write().await;
            if node.check_kind(FileKind::File).is_err() {
                return Ok(());
            }
            let held_bytes = (node.object.phys().max_block_id + 1).saturating_mul(node.object.block_bytes());
            if node.size_bytes() >= held_bytes {
                return Ok(());
            }
            let before = node.attributes()?;
            self.filesystem.shrink(&node, node.size_bytes()).await?;
            let times = AttributeChange {
                modified: Some(before.modified),
                changed: Some(before.changed),
                ..AttributeChange::default()
            };
            self.filesystem.change_record(&node, &times).await
        };
        self.if_there(id, cut).await
    }
}
