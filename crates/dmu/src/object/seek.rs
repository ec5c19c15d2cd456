//! Finding data and holes: what layers in memory know, over the tree on disk.

use cenote_format::ids::BlockId;
use cenote_taskq::boxed;

use super::{Form, Object};
use crate::DmuError;

impl Object {
    /// The first data block at or after `from` that is not a hole; `None` if there is none up to the last block.
    ///
    /// # Errors
    /// The tree on disk cannot be read.
    #[boxed]
    pub async fn next_data_block(&self, from: BlockId) -> Result<Option<BlockId>, DmuError> {
        if let Form::Frozen(tree) = &self.form {
            return tree.next_data_block(from).await;
        }
        self.next_open(from, false).await
    }

    /// The first data block at or after `from` that is a hole; `None` if there is none up to the last block.
    ///
    /// # Errors
    /// The tree on disk cannot be read.
    #[boxed]
    pub async fn next_hole_block(&self, from: BlockId) -> Result<Option<BlockId>, DmuError> {
        if let Form::Frozen(tree) = &self.form {
            return tree.next_hole_block(from).await;
        }
        self.next_open(from, true).await
    }

    async fn next_open(&self, from: BlockId, hole: bool) -> Result<Option<BlockId>, DmuError> {
        let mut at = from.0;
        loop {
            // Blocks written meanwhile may follow the last block.
            let limit = self.last_block().0.saturating_add(1);
            if at >= limit {
                return Ok(None);
            }
            let (is_hole, end) = self.piece(at, limit).await?;
            assert!(at < end && end <= limit, "a search moves on, and stays in the object");
            if is_hole == hole {
                return Ok(Some(BlockId(at)));
            }
            at = end;
        }
    }

    /// The last data block in `from..to` that is not a hole.
    ///
    /// # Errors
    /// The tree on disk cannot be read.
    #[boxed]
    pub async fn last_data_block(&self, from: u64, to: u64) -> Result<Option<u64>, DmuError> {
        let to = to.min(self.last_block().0.saturating_add(1));
        let next = async |from: u64, to: u64| -> Result<Option<u64>, DmuError> {
            Ok(self.next_data_block(BlockId(from)).await?.map(|block| block.0).filter(|block| *block < to))
        };
        // In `low` is data, at and after `high` is none.
        let Some(mut low) = next(from, to).await? else { return Ok(None) };
        let mut high = to;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match next(middle, high).await? {
                Some(block) => {
                    debug_assert!((middle..high).contains(&block), "data that is found is where it was looked for");
                    low = block;
                }
                None => high = middle,
            }
        }
        Ok(Some(low))
    }
}
