//! Listing the objects of an objset, as they are on disk.

use cenote_format::dnode::{SLOT_BYTES, dnodes_in_block};
use cenote_format::ids::{BlockId, ObjectId};
use cenote_taskq::boxed;

use super::Objset;
use crate::DmuError;
use crate::object::Object;

/// A batch of allocated objects and where to go on.
pub struct NextObjects {
    /// The objects, ascending; a dnode that does not parse is an error in its place.
    pub objects: Vec<(ObjectId, Result<Object, DmuError>)>,
    /// Give this as `from` to get the next batch.
    pub next: ObjectId,
}

impl Objset {
    /// The allocated objects of the dnode block that holds `from` or of the first later one that holds any, at or after
    /// `from`, as of the last sync. `None` after the last. Call again with [`NextObjects::next`].
    ///
    /// # Errors
    /// The meta-dnode cannot be read.
    #[boxed]
    pub async fn next_objects(&self, from: ObjectId) -> Result<Option<NextObjects>, DmuError> {
        let meta = self.meta_dnode();
        let slots = meta.block_bytes() / SLOT_BYTES as u64;
        if slots == 0 {
            return Ok(None);
        }
        let mut from = from;
        loop {
            let Some(block_id) = meta.next_data_block(BlockId(from.0 / slots)).await? else { return Ok(None) };
            let objects = self.objects_in_block(block_id, from).await?;
            let next = ObjectId(block_id.0.saturating_add(1).saturating_mul(slots));
            if !objects.is_empty() {
                return Ok(Some(NextObjects { objects, next }));
            }
            from = next;
        }
    }

    /// The allocated objects of one block of the meta-dnode, those below `from` left out, as of the last sync. A dnode that does
    /// not parse is an error in its place.
    ///
    /// # Errors
    /// The block cannot be read.
    #[boxed]
    pub(crate) async fn objects_in_block(
        &self,
        block_id: BlockId,
        from: ObjectId,
    ) -> Result<Vec<(ObjectId, Result<Object, DmuError>)>, DmuError> {
        let meta = self.meta_dnode();
        let slots = meta.block_bytes() / SLOT_BYTES as u64;
        let Some((block, order)) = meta.block(block_id).await? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (slot, dnode) in dnodes_in_block(&block, order) {
            let id = ObjectId(block_id.0.saturating_mul(slots).saturating_add(slot as u64));
            if id.0 == 0 || id < from {
                continue;
            }
            let dnode = dnode
                .map(|view| Object::frozen(&self.shared.reader, id, view.to_value()))
                .map_err(|error| DmuError::new(self.id(), id, error));
            found.push((id, dnode));
        }
        Ok(found)
    }
}
