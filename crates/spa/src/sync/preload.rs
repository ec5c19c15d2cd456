//! Metaslabs that allocations will ask for next are loaded before they are asked for.
//!
//! A metaslab can be taken from only when all of its map is in memory. Where an allocation finds that it is not, the txg waits for the
//! read: on a large vdev tens of megabytes. So after each txg a task in the background loads the best few of each group
//! (`metaslab_preload_limit`), one after the other, beside what the next txg writes. A metaslab may change while its map is read: the
//! metaslab says what is still missing, or begins anew where the map was rewritten.
//!
//! By hand nothing is preloaded: which metaslabs are loaded decides on places, and the same calls are to give the same bytes.
//!
//! A map that cannot be read ends the task in silence: the allocation that needs it will fail to read it too, and reports it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_format::ids::Txg;
use cenote_metaslab::MetaslabId;
use cenote_taskq::Class;

use super::blocks::Blocks;
use super::space::Space;

/// Of the memory that loaded metaslabs may take: beyond it preloading would unload others that are in use.
const SHARE_MAX_PCT: u64 = 75;

/// The one task that preloads; gone when it ends, however that comes.
struct PreloadGuard(Arc<AtomicBool>);

impl PreloadGuard {
    fn take(flag: &Arc<AtomicBool>) -> Option<Self> {
        (!flag.swap(true, Ordering::AcqRel)).then(|| Self(flag.clone()))
    }
}

impl Drop for PreloadGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Blocks {
    /// Begins to load what allocations will ask for, unless the last such task has not ended.
    pub(super) fn preload(&self, txg: Txg, wanted: Vec<MetaslabId>) {
        if wanted.is_empty() {
            return;
        }
        let Some(guard) = PreloadGuard::take(&self.preloading) else { return };
        let space = self.space.clone();
        // A pool that is being closed takes no more.
        let _ = self.writer.dmu().detached().detach(Class::Background, async move {
            load(&space, txg, wanted).await;
            drop(guard);
        });
    }
}

async fn load(space: &Space, txg: Txg, wanted: Vec<MetaslabId>) {
    for id in wanted {
        let (loaded, max) =
            space.with(|allocator| (allocator.loaded_memory_bytes(), allocator.loaded_memory_bytes_max()));
        if loaded > max / 100 * SHARE_MAX_PCT || space.load(id, txg).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cenote_taskq::Runtime;

    use crate::refcount::tests::{add_disk, made};
    use crate::sync::Syncer;

    fn loaded(syncer: &Syncer) -> usize {
        syncer.blocks.space.with(|allocator| allocator.metaslabs().filter(|metaslab| metaslab.is_loaded()).count())
    }

    #[test]
    fn metaslabs_are_loaded_before_they_are_asked_for_in_the_background_and_not_by_hand() {
        let runtime = Runtime::simulated(1);
        let handle = runtime.handle();
        add_disk(&runtime, "/preloaded");
        runtime.block_on(async {
            let mut syncer = made(&handle, "/preloaded").await;
            syncer.sync().await.unwrap();
            // A new pool's are all in memory.
            syncer.blocks.space.with(|allocator| {
                let ids: Vec<_> = allocator.metaslabs().map(cenote_metaslab::Metaslab::id).collect();
                let unloaded = ids.into_iter().filter(|id| allocator.unload(*id).unwrap()).count();
                assert!(unloaded > 0, "some are unloaded");
            });
            syncer.devices.config_changed = true;
            syncer.sync().await.unwrap();
            handle.sleep(Duration::from_secs(1)).await;
            let by_hand = loaded(&syncer);
            syncer.is_live = true;
            syncer.sync().await.unwrap();
            handle.sleep(Duration::from_secs(1)).await;
            assert!(loaded(&syncer) > by_hand, "{} are loaded, by hand {by_hand}", loaded(&syncer));
            assert!(!syncer.blocks.preloading.load(std::sync::atomic::Ordering::Acquire), "the task has ended");
        });
    }
}
