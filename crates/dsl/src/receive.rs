//! Datasets that are received: written to the hidden clone `%recv`, which replaces the dataset in one txg.
//!
//! ```text
//! while it is received:   origin ◄─┬─ head            the old contents; origin: the snapshot that the stream builds on, or the pool's own
//!                                  └─ head/%recv      the received contents: a clone, marked as inconsistent
//! at the end, one txg:    origin ◄─┬─ head            the received contents; its snapshot is taken next
//!                                  └─ head/%recv      the old contents, destroyed next
//! ```
//! A new dataset is received directly, and also marked as inconsistent.
//!
//! **Invariants.** 1. A dataset that is marked as inconsistent has no snapshots of its own, and only its receiver opens it:
//! [`Dataset::check_whole`](crate::Dataset::check_whole) refuses it to all others. 2. Heads that are swapped have the same previous snapshot.

use cenote_dmu::{SpaceDelta, Zap};
use cenote_format::dsl::{DatasetFlags, DslDatasetPhys, PropertyEntry, dataset_field as field, split_property};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_taskq::boxed;

use crate::accounts::signed;
use crate::destroy::HAS_RECEIVED;
use crate::{Dsl, DslError};

/// Properties of one dataset at most.
const PROPERTIES_MAX: usize = 1 << 20;

/// The fields that record where a receive resumes.
const RESUME: [&str; 11] = [
    field::RESUME_FROM_GUID,
    field::RESUME_TO_NAME,
    field::RESUME_TO_GUID,
    field::RESUME_OBJECT,
    field::RESUME_OFFSET,
    field::RESUME_BYTES,
    field::RESUME_LARGE_BLOCK,
    field::RESUME_EMBED,
    field::RESUME_COMPRESS,
    field::RESUME_RAW,
    field::RESUME_REDACT_SNAPSHOTS,
];

impl Dsl {
    /// Marks a dataset as inconsistent, or as whole.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn set_inconsistent(&self, txg: Txg, dataset: ObjectId, is_inconsistent: bool) -> Result<(), DslError> {
        let mut phys = self.dataset_phys(dataset).await?;
        phys.flags.set(DatasetFlags::INCONSISTENT, is_inconsistent);
        self.put_dataset(txg, dataset, &phys).await
    }

    /// Records in a dataset that its file system ignores case.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn set_case_insensitive(&self, txg: Txg, dataset: ObjectId) -> Result<(), DslError> {
        let mut phys = self.dataset_phys(dataset).await?;
        phys.flags |= DatasetFlags::CASE_INSENSITIVE;
        self.put_dataset(txg, dataset, &phys).await
    }

    /// Removes a dataset's record of where a receive resumes.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn forget_resume(&self, txg: Txg, dataset: ObjectId) -> Result<(), DslError> {
        let object = self.mos().object(dataset).await?;
        if !object.phys().object_type.is_zap() {
            return Ok(());
        }
        for name in RESUME {
            if Zap::open(object.clone()).await?.lookup(name.as_bytes()).await?.is_some() {
                Zap::put_entry(&object, txg, name, None).await?;
            }
        }
        Ok(())
    }

    /// Sets or removes the received value of a property of a directory. A local value remains in force.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn set_received(
        &self,
        txg: Txg,
        dir: ObjectId,
        name: &str,
        value: Option<&ZapValue>,
    ) -> Result<(), DslError> {
        let phys = self.dir_phys(dir).await?;
        let properties = self.mos().object(phys.properties).await?;
        let is_local = Zap::open(properties.clone()).await?.lookup(name.as_bytes()).await?.is_some();
        if name == "quota" && !is_local {
            let bytes = value.and_then(ZapValue::as_u64).unwrap_or(0);
            self.change_dir(txg, dir, |phys| phys.quota_bytes = bytes).await?;
        }
        let before = self.refreservation_bytes(dir).await?;
        Zap::put_entry(&properties, txg, HAS_RECEIVED, Some(&ZapValue::from_u64(0))).await?;
        Zap::put_entry(&properties, txg, &PropertyEntry::Received.name(name), value).await?;
        let after = self.refreservation_bytes(dir).await?;
        self.reserve_differently(txg, phys.head_dataset, before, after).await
    }

    /// Names of the properties of a directory that have a received value.
    ///
    /// # Errors
    /// The MOS cannot be read.
    #[boxed]
    pub async fn received_names(&self, dir: ObjectId) -> Result<Vec<String>, DslError> {
        let properties = self.mos().object(self.dir_phys(dir).await?.properties).await?;
        let mut names = Vec::new();
        for entry in Zap::open(properties).await?.entries(PROPERTIES_MAX).await? {
            let name = String::from_utf8_lossy(entry.name()).into_owned();
            if let (name, PropertyEntry::Received) = split_property(&name) {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Swaps the contents of two heads with the same previous snapshot: root, sizes, deadlist. `head` may own that snapshot; `other` is a
    /// clone of it. Neither is open, and the caller activates features.
    ///
    /// # Errors
    /// The MOS cannot be changed, or is of a version that had other deadlists.
    #[boxed]
    pub async fn swap_heads(&self, txg: Txg, head: ObjectId, other: ObjectId) -> Result<(), DslError> {
        let mut to = self.dataset_phys(head).await?;
        let mut from = self.dataset_phys(other).await?;
        assert_eq!(to.prev_snapshot, from.prev_snapshot, "heads that change places have one snapshot before them");
        let origin = self.dir_phys(to.dir).await?.origin;
        let since = if origin.0 == 0 { Txg(0) } else { self.dataset_phys(origin).await?.creation_txg };
        let difference = async |from_txg: Txg| -> Result<SpaceDelta, DslError> {
            let mut space = self.deadlist_space(from.deadlist, from_txg, None).await?;
            space.add(self.deadlist_space(to.deadlist, from_txg, None).await?.negated());
            Ok(space)
        };
        // The bytes of a head alone: those that it refers to and those that it gave up, less all of the snapshot's.
        let mut own = sizes(&from);
        own.add(sizes(&to).negated());
        own.add(difference(Txg(0)).await?);
        let given_up = difference(since).await?.used_bytes;
        let mut snapshot = self.dataset_phys(to.prev_snapshot).await?;
        if snapshot.next_snapshot == head {
            let alone = difference(snapshot.prev_snapshot_txg).await?.used_bytes;
            snapshot.unique_bytes = snapshot.unique_bytes.saturating_add_signed(alone);
            self.put_dataset(txg, to.prev_snapshot, &snapshot).await?;
        }
        self.charge_head(txg, to.dir, to.unique_bytes, own).await?;
        self.charge_head(txg, from.dir, from.unique_bytes, own.negated()).await?;
        self.change_dir(txg, to.dir, |dir| {
            let [head, snapshots, ..] = &mut dir.used_breakdown_bytes;
            *head = head.saturating_add_signed(-given_up);
            *snapshots = snapshots.saturating_add_signed(given_up);
        })
        .await?;
        std::mem::swap(&mut to.bp, &mut from.bp);
        std::mem::swap(&mut to.deadlist, &mut from.deadlist);
        std::mem::swap(&mut to.referenced_bytes, &mut from.referenced_bytes);
        std::mem::swap(&mut to.compressed_bytes, &mut from.compressed_bytes);
        std::mem::swap(&mut to.uncompressed_bytes, &mut from.uncompressed_bytes);
        std::mem::swap(&mut to.unique_bytes, &mut from.unique_bytes);
        self.put_dataset(txg, head, &to).await?;
        self.put_dataset(txg, other, &from).await?;
        self.restart_newer_bookmarks(txg, head, to.prev_snapshot).await
    }
}

/// The bytes that a dataset refers to.
fn sizes(phys: &DslDatasetPhys) -> SpaceDelta {
    SpaceDelta {
        used_bytes: signed(phys.referenced_bytes),
        compressed_bytes: signed(phys.compressed_bytes),
        uncompressed_bytes: signed(phys.uncompressed_bytes),
    }
}
