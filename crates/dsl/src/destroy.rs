//! Changing properties, and destroying datasets.

use cenote_dmu::{Object, SpaceDelta, Zap};
use cenote_format::dsl::PropertyEntry;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_taskq::boxed;

use crate::Dsl;
use crate::DslError;
use crate::accounts::{UsedBy, signed};
use crate::bookmark::BookmarkCounts;
use crate::bpobj::EmptyRefs;
use crate::dir::Dir;
use crate::limits::{Counted, is_hidden};

/// The entry of a dataset that ever received properties.
pub(crate) const HAS_RECEIVED: &str = "$hasrecvd";

/// Counts of the things that were destroyed with a dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Objects that were zapified.
    pub zapified: u64,
    /// Entries of its deadlist that shared the pool's empty list.
    pub shared_empty: u64,
    /// Its bookmarks.
    pub bookmarks: BookmarkCounts,
}

impl Dsl {
    /// Sets a property of a directory. Without a value, the property is inherited from now on, even if a value was received. A quota is also a
    /// field of the directory.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn change_property(
        &self,
        txg: Txg,
        dir: ObjectId,
        name: &str,
        value: Option<&ZapValue>,
    ) -> Result<(), DslError> {
        let properties = self.properties_with_quota(txg, dir, name, value).await?;
        put_own(&properties, txg, name, value).await
    }

    /// Sets a property of a snapshot. Without a value, the snapshot takes that of its dataset.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn change_snapshot_property(
        &self,
        txg: Txg,
        snapshot: ObjectId,
        name: &str,
        value: Option<&ZapValue>,
    ) -> Result<(), DslError> {
        let properties = match (self.dataset_phys(snapshot).await?.properties, value) {
            (ObjectId(0), None) => return Ok(()),
            (ObjectId(0), Some(value)) => return self.set_snapshot_property(txg, snapshot, name, value).await,
            (properties, _) => self.mos().object(properties).await?,
        };
        put_own(&properties, txg, name, value).await
    }

    /// Reverts a property of a snapshot to the received value, or if there is none to that of its dataset.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn revert_snapshot_property(&self, txg: Txg, snapshot: ObjectId, name: &str) -> Result<(), DslError> {
        let properties = self.dataset_phys(snapshot).await?.properties;
        if properties.0 == 0 {
            return Ok(());
        }
        let properties = self.mos().object(properties).await?;
        for entry in [PropertyEntry::Local, PropertyEntry::Inherited] {
            Zap::put_entry(&properties, txg, &entry.name(name), None).await?;
        }
        Ok(())
    }

    /// The object of a directory's properties. For `quota`, `value` is first stored in the directory too.
    async fn properties_with_quota(
        &self,
        txg: Txg,
        dir: ObjectId,
        name: &str,
        value: Option<&ZapValue>,
    ) -> Result<Object, DslError> {
        if name == "quota" {
            let bytes = value.and_then(ZapValue::as_u64).unwrap_or(0);
            self.change_dir(txg, dir, |phys| phys.quota_bytes = bytes).await?;
        }
        Ok(self.mos().object(self.dir_phys(dir).await?.properties).await?)
    }

    /// Reverts a property of a directory to the received value, or if there is none to the inherited one. `value` is the received value, if any.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn revert_property(
        &self,
        txg: Txg,
        dir: ObjectId,
        name: &str,
        value: Option<&ZapValue>,
    ) -> Result<(), DslError> {
        let properties = self.properties_with_quota(txg, dir, name, value).await?;
        for entry in [PropertyEntry::Local, PropertyEntry::Inherited] {
            Zap::put_entry(&properties, txg, &entry.name(name), None).await?;
        }
        Ok(())
    }

    /// Destroys a directory and its head dataset, whose blocks have been freed. It has no children or snapshots, and is not a clone of another
    /// dataset's snapshot.
    ///
    /// # Errors
    /// The MOS cannot be changed, or contradicts itself.
    #[boxed]
    pub async fn destroy_dataset(&self, txg: Txg, dir: &Dir) -> Result<Gone, DslError> {
        let mut gone = Gone::default();
        self.forget_name(txg, dir).await?;
        let counted = i64::from(!is_hidden(dir.last_name()));
        let dir = dir.object;
        let phys = self.dir_phys(dir).await?;
        self.adjust_count(txg, phys.parent, Counted::Datasets, -counted).await?;
        let head = phys.head_dataset;
        let dataset = self.dataset_phys(head).await?;
        let used = SpaceDelta {
            used_bytes: signed(phys.used_bytes),
            compressed_bytes: signed(phys.compressed_bytes),
            uncompressed_bytes: signed(phys.uncompressed_bytes),
        };
        self.charge(txg, dir, UsedBy::Head, used.negated()).await?;
        self.forget_clone(txg, head, dataset.prev_snapshot).await?;

        self.release_wrapped_key(txg, dir).await?;
        let mut refs = EmptyRefs::default();
        self.destroy_bookmarks(txg, head, &mut gone.bookmarks).await?;
        self.free_deadlist(txg, dataset.deadlist, &mut refs).await?;
        gone.shared_empty = refs.released;
        let mut objects = vec![dataset.snapshot_names, head];
        objects.extend([phys.child_dirs, phys.properties, phys.clones, dir]);
        for object in objects.into_iter().filter(|object| object.0 != 0) {
            let object = self.mos().object(object).await?;
            let is_fixed = object.id() == head || object.id() == dir;
            gone.zapified += u64::from(is_fixed && object.phys().object_type.is_zap());
            object.free(txg);
        }
        Ok(gone)
    }

    /// Removes a head from its origin's list of clones.
    async fn forget_clone(&self, txg: Txg, head: ObjectId, snapshot: ObjectId) -> Result<(), DslError> {
        if snapshot.0 == 0 {
            return Ok(());
        }
        let mut origin = self.dataset_phys(snapshot).await?;
        origin.child_count = origin.child_count.saturating_sub(1);
        let name = int_key_name(head.0);
        if origin.next_clones.0 != 0 {
            Zap::put_entry(&self.mos().object(origin.next_clones).await?, txg, &name, None).await?;
        }
        self.put_dataset(txg, snapshot, &origin).await?;
        let dir = self.dir_phys(origin.dir).await?;
        if dir.clones.0 != 0 {
            Zap::put_entry(&self.mos().object(dir.clones).await?, txg, &name, None).await?;
        }
        Ok(())
    }
}

/// Sets or removes the local value in a table of properties. When it removes one, and properties were ever received, an entry records that a
/// received value is not in force.
async fn put_own(properties: &Object, txg: Txg, name: &str, value: Option<&ZapValue>) -> Result<(), DslError> {
    let inherit = PropertyEntry::Inherited.name(name);
    let zap = Zap::open(properties.clone()).await?;
    let was_received = zap.lookup(HAS_RECEIVED.as_bytes()).await?.is_some();
    let marked = value.is_none() && was_received;
    Zap::put_entry(properties, txg, name, value).await?;
    Ok(Zap::put_entry(properties, txg, &inherit, marked.then_some(&ZapValue::from_u64(0))).await?)
}
