//! The figures of a dataset for `statfs`: used and available, as `zfs list` has them.
//!
//! *Used* is the space that the dataset refers to. *Available* is the least that any directory from the dataset's own up to the
//! pool's root has left: its quota less its use, with what is reserved for it beyond its use given back on the way down.

use cenote_dsl::{Dataset, Dir, DslError};
use cenote_spa::{HeadSpace, View};
use cenote_taskq::AsyncMutex;

use crate::server::SpaceFigures;

/// Object numbers that a dataset can have (`DN_MAX_OBJECT`).
const OBJECTS_MAX: u64 = 1 << 48;
/// The smallest dnode: no object takes less.
const DNODE_SHIFT: u32 = 9;
/// The longest name that Linux programs reckon with.
const NAME_MAX_BYTES: u32 = 255;

/// A dataset's space in blocks of this size.
pub(crate) fn figures_of(space: &HeadSpace, block_size_bytes: u32) -> SpaceFigures {
    let unit = u64::from(block_size_bytes).max(1);
    let available = space.available_bytes;
    let files_free = OBJECTS_MAX.saturating_sub(space.objects).min(available >> DNODE_SHIFT);
    SpaceFigures {
        block_size_bytes,
        // Rounded up, so that every dataset uses at least one block.
        blocks: space.referenced_bytes.div_ceil(unit).saturating_add(available / unit),
        blocks_free: available / unit,
        files: files_free.saturating_add(space.objects),
        files_free,
        name_max_bytes: NAME_MAX_BYTES,
    }
}

/// The size of the pool, as datasets may use it. Reading it takes all space maps, so it is read when first asked for.
#[derive(Default)]
pub(crate) struct PoolSize {
    usable_bytes: AsyncMutex<Option<u64>>,
}

impl PoolSize {
    /// The space of a dataset.
    pub(crate) async fn figures(
        &self,
        pool: &View,
        dataset: &Dataset,
        record_bytes: u32,
    ) -> Result<SpaceFigures, DslError> {
        let dsl = pool.dsl();
        let mut available = self.available(pool, &dataset.dir).await?;
        let number = async |name| {
            let found = dsl.property(&dataset.dir, name, false).await?;
            Ok::<_, DslError>(found.and_then(|found| found.value.number()).unwrap_or(0))
        };
        let referenced = dataset.phys.referenced_bytes;
        // A snapshot has neither of its own, and its head's say nothing about it.
        if !dataset.is_snapshot() {
            let reserved = number("refreservation").await?;
            available = available.saturating_add(reserved.saturating_sub(dataset.phys.unique_bytes));
            match number("refquota").await? {
                0 => {}
                quota => available = available.min(quota.saturating_sub(referenced)),
            }
        }
        let space =
            HeadSpace { referenced_bytes: referenced, available_bytes: available, objects: dataset.phys.bp.fill() };
        Ok(figures_of(&space, record_bytes))
    }

    async fn available(&self, pool: &View, dir: &Dir) -> Result<u64, DslError> {
        let mut chain = vec![dir.clone()];
        while let Some(parent) = pool.dsl().parent(&chain[chain.len() - 1]).await? {
            chain.push(parent);
        }
        let mut available = self.usable(pool).await.map(|size| (size, true));
        for dir in chain.iter().rev() {
            let (phys, used) = (&dir.phys, dir.phys.used_bytes);
            let quota = match phys.quota_bytes {
                0 => u64::MAX,
                quota => quota,
            };
            let above = match available {
                // The root: the pool is its quota.
                Some((size, true)) => size.min(quota).saturating_sub(used),
                Some((above, false)) => {
                    above.saturating_add(phys.reserved_bytes.saturating_sub(used)).min(quota.saturating_sub(used))
                }
                None => 0,
            };
            available = Some((above, false));
        }
        Ok(available.map_or(0, |(bytes, _)| bytes))
    }

    /// `None` if the pool's space maps cannot be read: then nothing is shown as available.
    async fn usable(&self, pool: &View) -> Option<u64> {
        let mut known = self.usable_bytes.lock().await;
        if known.is_none() {
            let space = pool.space().await.ok()?;
            *known = pool.usable_bytes(&space).await.ok();
        }
        *known
    }
}
