//! Finding data and holes of an object that is being changed: what layers in memory know, over the tree on disk.

use cenote_format::ids::BlockId;

use super::object::{Known, Object};
use crate::DmuError;
use crate::dnode::Dnode;

impl Object {
    /// The first data block at or after `from` that is not a hole.
    ///
    /// # Errors
    /// The tree on disk cannot be read.
    pub async fn next_data_block(&self, from: u64) -> Result<Option<u64>, DmuError> {
        let mut at = from;
        loop {
            let (written, synced) = self.next_written(at);
            let stored = match synced {
                Some(phys) => {
                    let dnode = Dnode::new(self.objset().reader(), self.id(), phys.clone());
                    match dnode.next_data_block(BlockId(at)).await {
                        Ok(found) => found.map(|block| block.0),
                        // Txgs have passed since, and what was read may have been freed and written over by others.
                        Err(_) if !self.is_as_on_disk(&phys) => continue,
                        Err(error) => return Err(error),
                    }
                }
                None => None,
            };
            let Some(found) = [written, stored].into_iter().flatten().min() else { return Ok(None) };
            match self.known(found) {
                Known::Hole => match self.freed_until(found) {
                    Some(end) => at = end,
                    None => return Ok(None),
                },
                Known::Data(_) | Known::OnDisk(_) => return Ok(Some(found)),
            }
        }
    }

    /// The first data block at or after `from` that is a hole; behind the last block there are only holes.
    ///
    /// # Errors
    /// The tree on disk cannot be read.
    pub async fn next_hole_block(&self, from: u64) -> Result<u64, DmuError> {
        let mut at = from;
        loop {
            match self.known(at) {
                Known::Hole | Known::OnDisk(None) => return Ok(at),
                Known::Data(_) => at += 1,
                // What is written meanwhile may go on behind the last block on disk.
                Known::OnDisk(Some(phys)) if at > phys.max_block_id => return Ok(at),
                Known::OnDisk(Some(phys)) => {
                    let behind = phys.max_block_id.saturating_add(1);
                    let dnode = Dnode::new(self.objset().reader(), self.id(), (*phys).clone());
                    let stored = match dnode.next_hole_block(BlockId(at)).await {
                        Ok(found) => found.map_or(behind, |block| block.0),
                        Err(_) if !self.is_as_on_disk(&phys) => continue,
                        Err(error) => return Err(error),
                    };
                    let found = self.next_freed(at).map_or(stored, |freed| freed.min(stored));
                    if found == at {
                        return Ok(at);
                    }
                    at = found;
                }
            }
        }
    }

    /// The last data block in `from..to` that is not a hole.
    ///
    /// # Errors
    /// The tree on disk cannot be read.
    pub async fn last_data_block(&self, from: u64, to: u64) -> Result<Option<u64>, DmuError> {
        let to = to.min(self.head().max_block_id.saturating_add(1));
        // In `low` is data, at and behind `high` is none.
        let Some(mut low) = self.next_data_block(from).await?.filter(|block| *block < to) else { return Ok(None) };
        let mut high = to;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match self.next_data_block(middle).await?.filter(|block| *block < high) {
                Some(block) => low = block,
                None => high = middle,
            }
        }
        Ok(Some(low))
    }
}
