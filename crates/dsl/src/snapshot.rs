//! Taking snapshots, and destroying them.
//!
//! ```text
//! before:  ... ◄─ prev ◄────────────────── head        taken after the data of the txg is written, so the head's root includes it
//! after:   ... ◄─ prev ◄─── snapshot ◄──── head        the snapshot: root, sizes and deadlist of the head
//!                                                      the head: an empty deadlist, and `unique` is 0
//! ```
//! **Space.** `unique` of a dataset counts the blocks that no other dataset references. When a snapshot is destroyed, the blocks that
//! only it referenced are freed: those of the next snapshot's deadlist that were born after the previous snapshot. Blocks that it shared
//! with exactly one neighbour are added to that neighbour's `unique`:
//! ```text
//! born in (prev's prev, prev], in the follower's deadlist          ─► prev's own
//! born in (prev, snapshot], in the deadlist after the follower     ─► the follower's own
//! ```
//!
//! **Invariants.** 1. A head is not dirty when its snapshot is taken: all blocks of the txg are in it, and none follow.
//! 2. The blocks that a destroyed snapshot leaves to be freed are in the pool's `free_bpobj` in the same txg.

use cenote_dmu::{SpaceDelta, Zap};
use cenote_format::dsl::{DatasetFlags, DslDatasetPhys, dir_field};
use cenote_format::ids::{Guid, ObjectId, Txg};
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{Rng, boxed};

use crate::accounts::{UsedBy, signed};
use crate::bpobj::EmptyRefs;
use crate::create::Birth;
use crate::limits::Counted;
use crate::{Dsl, DslError};

/// Clones of the snapshots of one directory at most, as a bound on a walk.
const CLONES_MAX: usize = 1 << 22;

impl Dsl {
    /// Takes a snapshot of a head dataset whose txg is written. The caller has checked that the name is free. `guid`: the guid of a
    /// received snapshot; otherwise a new one is drawn.
    ///
    /// # Errors
    /// The MOS cannot be changed, or is of a version that had other deadlists.
    #[boxed]
    pub async fn take_snapshot(
        &self,
        head: ObjectId,
        name: &str,
        birth: Birth,
        guid: Option<Guid>,
        rng: &mut Rng,
        refs: &mut EmptyRefs,
    ) -> Result<ObjectId, DslError> {
        let txg = birth.txg;
        let mut phys = self.dataset_phys(head).await?;
        assert!(phys.prev_snapshot_txg < txg, "a dataset has one snapshot in a txg");
        let object = self.create_dataset_object(txg)?;
        let mut snapshot = DslDatasetPhys {
            prev_snapshot: phys.prev_snapshot,
            prev_snapshot_txg: phys.prev_snapshot_txg,
            next_snapshot: head,
            child_count: 1,
            referenced_bytes: phys.referenced_bytes,
            compressed_bytes: phys.compressed_bytes,
            uncompressed_bytes: phys.uncompressed_bytes,
            unique_bytes: phys.unique_bytes,
            flags: phys.flags,
            bp: phys.bp,
            ..self.new_dataset(phys.dir, phys.deadlist, birth, rng)
        };
        // The snapshot takes over the head's `unique`; the head has none now, since it shares all its blocks with the snapshot.
        snapshot.unique_bytes = 0;
        if let Some(guid) = guid {
            snapshot.guid = guid;
        }
        self.put_dataset(txg, object, &snapshot).await?;

        if phys.prev_snapshot.0 != 0 {
            let mut before = self.dataset_phys(phys.prev_snapshot).await?;
            if before.next_snapshot == head {
                assert_eq!(before.creation_txg, phys.prev_snapshot_txg, "a link has the txg of what it leads to");
                before.next_snapshot = object;
                self.put_dataset(txg, phys.prev_snapshot, &before).await?;
            } else if before.next_clones.0 != 0 {
                self.swap_clone(txg, before.next_clones, head, Some(object)).await?;
            }
        }
        let reserved = self.refreservation_bytes(phys.dir).await?;
        let unused = SpaceDelta { used_bytes: signed(phys.unique_bytes.min(reserved)), ..SpaceDelta::default() };
        self.charge(txg, phys.dir, UsedBy::Refreservation, unused).await?;

        // The head's deadlist lists only blocks of the last snapshot, so it has no entry yet for that, nor for bookmarks after it.
        let mut also = self.newer_bookmark_txgs(head, phys.prev_snapshot_txg).await?;
        also.insert(phys.prev_snapshot_txg);
        phys.deadlist = self.clone_deadlist(txg, phys.deadlist, Txg(u64::MAX), &also, refs).await?;
        self.forget_kept(head);
        phys.prev_snapshot = object;
        phys.prev_snapshot_txg = txg;
        phys.unique_bytes = 0;
        phys.flags |= DatasetFlags::UNIQUE_ACCURATE;
        self.put_dataset(txg, head, &phys).await?;
        let names = self.mos().object(phys.snapshot_names).await?;
        Zap::put_entry(&names, txg, name, Some(&ZapValue::from_u64(object.0))).await?;
        self.adjust_count(txg, phys.dir, Counted::Snapshots, 1).await?;
        Ok(object)
    }

    /// Replaces a clone by another in a list of clones, or removes it.
    async fn swap_clone(
        &self,
        txg: Txg,
        list: ObjectId,
        gone: ObjectId,
        new: Option<ObjectId>,
    ) -> Result<(), DslError> {
        let list = self.mos().object(list).await?;
        Zap::put_entry(&list, txg, &int_key_name(gone.0), None).await?;
        let Some(new) = new else { return Ok(()) };
        Ok(Zap::put_entry(&list, txg, &int_key_name(new.0), Some(&ZapValue::from_u64(new.0))).await?)
    }

    /// Records when snapshots of a directory were last created or destroyed; the pool has the feature `extensible_dataset`. Returns true if this
    /// zapified the directory.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn note_snapshots_changed(&self, txg: Txg, dir: ObjectId, time_s: u64) -> Result<bool, DslError> {
        let time = ZapValue::from_u64s(&[time_s, 0]);
        self.put_dataset_field(txg, dir, dir_field::SNAPSHOTS_CHANGED, &time).await
    }

    /// Marks a snapshot to be destroyed with its last hold and its last clone.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub async fn defer_destroy(&self, txg: Txg, snapshot: ObjectId) -> Result<(), DslError> {
        let mut phys = self.dataset_phys(snapshot).await?;
        phys.flags |= DatasetFlags::DEFER_DESTROY;
        self.put_dataset(txg, snapshot, &phys).await
    }

    /// Destroys a snapshot that has no holds and no clones. Its blocks go to the list of those to be freed, and are charged to the directory
    /// `free_dir` until they are. Returns true if the snapshot was zapified.
    ///
    /// # Errors
    /// The MOS cannot be changed, or contradicts itself.
    #[boxed]
    pub async fn destroy_snapshot(
        &self,
        birth: Birth,
        snapshot: ObjectId,
        name: &str,
        free_dir: ObjectId,
        refs: &mut EmptyRefs,
    ) -> Result<bool, DslError> {
        let txg = birth.txg;
        let phys = self.dataset_phys(snapshot).await?;
        assert!(phys.child_count <= 1 && phys.next_snapshot.0 != 0, "a snapshot with clones is not destroyed");
        let next = phys.next_snapshot;
        let is_bookmarked = self.snapshot_leaves_bookmarks(txg, &phys).await?;
        if phys.prev_snapshot.0 != 0 {
            let mut before = self.dataset_phys(phys.prev_snapshot).await?;
            if before.next_snapshot == snapshot {
                before.next_snapshot = next;
                // Blocks that only this snapshot and the previous one referenced.
                let own = self
                    .deadlist_space(
                        self.dataset_phys(next).await?.deadlist,
                        before.prev_snapshot_txg,
                        Some(phys.prev_snapshot_txg),
                    )
                    .await?;
                if !mutant::is(Mutant::UniqueKept) {
                    before.unique_bytes = before.unique_bytes.saturating_add_signed(own.used_bytes);
                }
                self.put_dataset(txg, phys.prev_snapshot, &before).await?;
            } else if before.next_clones.0 != 0 {
                self.swap_clone(txg, before.next_clones, snapshot, Some(next)).await?;
            }
        }
        let mut after = self.dataset_phys(next).await?;
        if after.prev_snapshot != snapshot {
            let what = "the dataset after it does not lead back to it".to_owned();
            return Err(DslError::Corrupt { object: snapshot.0, what });
        }
        after.prev_snapshot = phys.prev_snapshot;
        after.prev_snapshot_txg = phys.prev_snapshot_txg;
        self.put_dataset(txg, next, &after).await?;

        let free = self.mos().object(self.free_bpobj()).await?;
        let freed = self.move_dead(txg, after.deadlist, phys.prev_snapshot_txg, &free, refs).await?;
        self.charge(txg, phys.dir, UsedBy::Snapshots, freed.negated()).await?;
        self.charge(txg, free_dir, UsedBy::Head, freed).await?;
        self.merge_deadlists(txg, after.deadlist, phys.deadlist, refs).await?;

        let dir = self.dir_phys(phys.dir).await?;
        if !is_bookmarked {
            self.remove_clones_key(txg, phys.dir, phys.creation_txg, refs).await?;
        }
        if after.next_snapshot.0 != 0 {
            let beyond = self.dataset_phys(after.next_snapshot).await?;
            let own = self.deadlist_space(beyond.deadlist, phys.prev_snapshot_txg, Some(phys.creation_txg)).await?;
            after.unique_bytes = after.unique_bytes.saturating_add_signed(own.used_bytes);
            self.put_dataset(txg, next, &after).await?;
            if !is_bookmarked {
                let head = self.dataset_phys(dir.head_dataset).await?;
                self.remove_deadlist_key(txg, head.deadlist, phys.creation_txg, refs).await?;
            }
        } else {
            self.recount_head(txg, next).await?;
        }
        let head = self.dataset_phys(dir.head_dataset).await?;
        let names = self.mos().object(head.snapshot_names).await?;
        Zap::put_entry(&names, txg, name, None).await?;
        let object = self.mos().object(snapshot).await?;
        let was_zapified = object.phys().object_type.is_zap();
        for table in [phys.next_clones, phys.properties, phys.user_refs].into_iter().filter(|table| table.0 != 0) {
            self.mos().object(table).await?.free(txg);
        }
        object.free(txg);
        self.adjust_count(txg, phys.dir, Counted::Snapshots, -1).await?;
        Ok(was_zapified)
    }

    /// Removes the entry of a snapshot's txg from the deadlists of all clones of a directory's snapshots, and of their clones.
    pub(crate) async fn remove_clones_key(
        &self,
        txg: Txg,
        dir: ObjectId,
        key: Txg,
        refs: &mut EmptyRefs,
    ) -> Result<(), DslError> {
        let (mut left, mut seen) = (vec![dir], 0);
        while let Some(dir) = left.pop() {
            let clones = self.dir_phys(dir).await?.clones;
            if clones.0 == 0 {
                continue;
            }
            for entry in Zap::open(self.mos().object(clones).await?).await?.entries(CLONES_MAX).await? {
                let clone = ObjectId(entry.value.as_u64().unwrap_or(0));
                let phys = self.dataset_phys(clone).await?;
                let origin = self.dir_phys(phys.dir).await?.origin;
                seen += 1;
                if seen > CLONES_MAX {
                    let what = "more clones than there can be".to_owned();
                    return Err(DslError::Corrupt { object: clones.0, what });
                }
                // A clone of an older snapshot has no such entry, and one with a bookmark of its own keeps it.
                let knows = origin.0 != 0 && self.dataset_phys(origin).await?.creation_txg > key;
                if knows && !self.needs_key(txg, clone, key).await? {
                    self.remove_deadlist_key(txg, phys.deadlist, key, refs).await?;
                    left.push(phys.dir);
                }
            }
        }
        Ok(())
    }

    /// Recomputes `unique` of a head whose previous snapshot has changed.
    async fn recount_head(&self, txg: Txg, head: ObjectId) -> Result<(), DslError> {
        let mut phys = self.dataset_phys(head).await?;
        let before_bytes = phys.unique_bytes;
        let mut shared = 0;
        if phys.prev_snapshot.0 != 0 {
            let before = self.dataset_phys(phys.prev_snapshot).await?;
            let dead = self.deadlist_space(phys.deadlist, Txg(0), None).await?;
            shared = before.referenced_bytes.saturating_sub(dead.used_bytes.max(0).cast_unsigned());
        }
        phys.unique_bytes = phys.referenced_bytes.saturating_sub(shared);
        let unique_bytes = phys.unique_bytes;
        let dir = phys.dir;
        self.put_dataset(txg, head, &phys).await?;
        // The part of the refreservation that is now used no longer counts as unused.
        let reserved = self.refreservation_bytes(dir).await?;
        let used = signed(reserved.saturating_sub(unique_bytes)) - signed(reserved.saturating_sub(before_bytes));
        let delta = SpaceDelta { used_bytes: used, ..SpaceDelta::default() };
        self.charge(txg, dir, UsedBy::Refreservation, delta).await
    }
}
