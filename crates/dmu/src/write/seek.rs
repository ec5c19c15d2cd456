//! Finding data and holes of an object that is being changed: what layers in memory know, over the tree on disk.

use super::object::Object;
use crate::DmuError;

impl Object {
    /// The first data block at or after `from` that is not a hole.
    ///
    /// # Errors
    /// The tree on disk cannot be read.
    pub async fn next_data_block(&self, from: u64) -> Result<Option<u64>, DmuError> {
        let mut at = from;
        loop {
            // What is written meanwhile may go on behind it.
            let limit = self.head().max_block_id.saturating_add(1);
            if at >= limit {
                return Ok(None);
            }
            match self.piece(at, limit).await? {
                (false, _) => return Ok(Some(at)),
                (true, end) => at = end,
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
            let limit = self.head().max_block_id.saturating_add(1);
            if at >= limit {
                return Ok(at);
            }
            match self.piece(at, limit).await? {
                (true, _) => return Ok(at),
                (false, end) => at = end,
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
