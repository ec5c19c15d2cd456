//! Free space that a task holds: nothing is placed there meanwhile.

use std::ops::Range;
use std::sync::Arc;

use cenote_format::ids::{Txg, VdevId};
use cenote_metaslab::AllocError;

use super::space::Space;

/// A free range of a top-level vdev. Dropped, it can be allocated again.
pub(crate) struct Held {
    space: Arc<Space>,
    vdev: VdevId,
    range: Range<u64>,
}

impl Held {
    /// Where it is.
    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(error) = self.space.with(|allocator| allocator.release(self.vdev, self.range.clone())) {
            self.space.troubles.tell(format!("free space that was held cannot be given back: {error}"));
        }
    }
}

impl Space {
    /// Holds the next free range of a vdev from an offset on, of `max_bytes` at most. `None` after the last one.
    pub(crate) async fn hold_free(self: &Arc<Self>, vdev: VdevId, from: u64, max_bytes: u64) -> Option<Held> {
        loop {
            let now = (Txg(0), self.now_ms());
            match self.with(|allocator| allocator.hold_free(vdev, from, max_bytes, now)) {
                Ok(range) => return range.map(|range| Held { space: self.clone(), vdev, range }),
                Err(AllocError::NeedsLoad(id)) => {
                    if let Err(error) = self.load(id, Txg(0)).await {
                        self.give_up(id, &error).ok()?;
                    }
                }
                Err(error) => {
                    self.troubles.tell(format!("free space of vdev {vdev} cannot be held: {error}"));
                    return None;
                }
            }
        }
    }
}
