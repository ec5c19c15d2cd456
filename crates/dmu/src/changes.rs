//! The changes of an open objset that are not on disk yet, as far as its objects tell of them: which objects each txg has changed, and how
//! many bytes that holds in memory.
//!
//! Both the objset and its objects have this, and objects have nothing else of the objset: so an objset is let go with its last clone,
//! whatever objects are still used elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cenote_format::ids::{ObjectId, Txg};
use cenote_taskq::sync::Mutex;

use crate::geometry::is_special;
use crate::reader::Reader;
use crate::tx::{Dirty, UNWRITTEN_TXGS_MAX};

pub(crate) struct Changes {
    reader: Reader,
    objects: Mutex<BTreeMap<Txg, BTreeSet<ObjectId>>>,
    /// Where bytes that are dirty are counted.
    dirty: OnceLock<Arc<Dirty>>,
    /// Changes so far.
    count: AtomicU64,
}

impl Changes {
    pub(crate) fn new(reader: Reader) -> Self {
        let (objects, dirty, count) = (Mutex::new(BTreeMap::new()), OnceLock::new(), AtomicU64::new(0));
        Self { reader, objects, dirty, count }
    }

    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    pub(crate) fn count_dirty(&self, dirty: &Arc<Dirty>) {
        let counted = self.dirty.get_or_init(|| dirty.clone());
        assert!(Arc::ptr_eq(counted, dirty), "an objset's changes are counted in one place");
    }

    pub(crate) fn dirty(&self) -> Option<&Arc<Dirty>> {
        self.dirty.get()
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Notes that a txg changes an object. At the txg's first change of it, returns its neighbours among the changed objects.
    pub(crate) fn mark(&self, txg: Txg, id: ObjectId) -> Option<(Option<u64>, Option<u64>)> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut objects = self.objects.lock();
        objects.entry(txg).or_default();
        debug_assert!(objects.len() <= UNWRITTEN_TXGS_MAX, "three txgs at most have changes that are not on disk");
        let changed = objects.entry(txg).or_default();
        changed.insert(id).then(|| neighbours(changed, id))
    }

    /// True if a txg has changes that are not written.
    pub(crate) fn is_dirty(&self, txg: Txg) -> bool {
        self.objects.lock().get(&txg).is_some_and(|changed| !changed.is_empty())
    }

    /// Takes the objects that a txg has changed.
    pub(crate) fn take(&self, txg: Txg) -> BTreeSet<ObjectId> {
        self.objects.lock().remove(&txg).unwrap_or_default()
    }
}

/// The objects on either side of one in a txg's set of changed objects. The meta-dnode and the accounts are none: their dnodes
/// stand in the root block.
fn neighbours(changed: &BTreeSet<ObjectId>, id: ObjectId) -> (Option<u64>, Option<u64>) {
    let is_in_block = |id: &&ObjectId| id.0 != 0 && !is_special(**id);
    let before = changed.range(..id).next_back().filter(is_in_block).map(|id| id.0);
    let after = changed.range(ObjectId(id.0.saturating_add(1))..).next().filter(is_in_block).map(|id| id.0);
    (before, after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::USERUSED;

    #[test]
    fn the_meta_dnode_and_accounts_are_nobodys_neighbours() {
        let changed: BTreeSet<ObjectId> = [ObjectId(0), ObjectId(5), ObjectId(9), USERUSED].into();
        assert_eq!(neighbours(&changed, ObjectId(5)), (None, Some(9)));
        assert_eq!(neighbours(&changed, ObjectId(9)), (Some(5), None));
    }
}
