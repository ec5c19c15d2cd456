//! The bookmarks' counts of blocks freed since their snapshots.
//!
//! **Need.** `written#` of a bookmark is the size that the dataset references, minus the size that the bookmark's snapshot referenced,
//! plus the blocks of that snapshot that were freed since. The deadlists tell which blocks were freed between two snapshots, and their
//! birth. Once the bookmark's own snapshot is destroyed, they no longer tell which blocks were freed between it and the next snapshot,
//! because the next snapshot's deadlist then begins earlier. So the bookmark itself counts these.
//! ```text
//! ... ◄─ s1 ◄──── #b ───────── s2 ◄──────────── head         written since #b =
//!                  └─ counted ─┘ └─ deadlists ──┘             referenced by head − by #b + counted by #b + dead and as old as #b
//! ```
//!
//! **Life of a count.** It starts with the size of the next dataset's deadlist. While that dataset is the head, each block that the head kills
//! is added if it was born no later than the bookmark ([`Dsl::count_killed`]). The next snapshot ends the counting. When the snapshot's follower
//! is destroyed, the deadlist after it is added. When a promotion or a rollback gives the snapshot another follower, the count starts anew.
//!
//! A rollback, or a receive that replaces the head, may go back beyond a bookmark whose snapshot was destroyed. The head then shares with it
//! only blocks of the snapshot that it goes back to. So the count becomes the bookmark's referenced bytes, less those of that snapshot that the
//! head still has ([`Dsl::restart_newer_bookmarks`]). It is negative if the bookmark had less; sums wrap, as OpenZFS's do.
//!
//! **Deadlists** tell a block's birth only to within an entry. So the entry of a destroyed snapshot remains while a bookmark with a count has
//! its txg. For bookmarks newer than the last snapshot, entries are made when the next snapshot is taken.
//!
//! **Rejected.** OpenZFS removes a destroyed snapshot's entry from the deadlists of all clones, even of a clone that has a copy of the bookmark:
//! when that copy is destroyed, OpenZFS does not find the entry to remove. Here such a clone keeps the entry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_dmu::{Killed, SpaceDelta, Zap};
use cenote_format::dsl::{BookmarkFlags, BookmarkPhys, DslDatasetPhys};
use cenote_format::ids::{ObjectId, Txg};
use cenote_taskq::boxed;

use crate::bookmark::value;
use crate::bpobj::EmptyRefs;
use crate::{BookmarkForm, Dsl, DslError};

/// The bookmarks, by short name, that count the blocks a head gives up.
pub(crate) type CountingBookmarks = Arc<Vec<(String, BookmarkPhys)>>;

fn is_counting(phys: &BookmarkPhys) -> bool {
    phys.flags.contains(BookmarkFlags::HAS_FREED_BEFORE_NEXT)
}

fn add(phys: &mut BookmarkPhys, space: SpaceDelta) {
    // A count may be negative (see above).
    let add = |to: &mut u64, bytes: i64| *to = to.wrapping_add_signed(bytes);
    add(&mut phys.referenced_freed_bytes, space.used_bytes);
    add(&mut phys.compressed_freed_bytes, space.compressed_bytes);
    add(&mut phys.uncompressed_freed_bytes, space.uncompressed_bytes);
}

impl Dsl {
    #[boxed]
    async fn put_bookmark(&self, txg: Txg, head: ObjectId, name: &str, phys: &BookmarkPhys) -> Result<(), DslError> {
        let what = || DslError::Corrupt { object: head.0, what: "its bookmarks have gone".to_owned() };
        let table = self.bookmark_table(head).await?.ok_or_else(what)?;
        Ok(Zap::put_entry(&self.mos().object(table).await?, txg, name, Some(&value(phys))).await?)
    }

    /// A head's bookmarks with counts whose txgs are in this range.
    async fn counting(
        &self,
        head: ObjectId,
        txgs: impl std::ops::RangeBounds<Txg>,
    ) -> Result<Vec<(String, BookmarkPhys)>, DslError> {
        let all = self.bookmark_entries(head).await?.into_iter().map(|(name, phys, _)| (name, phys));
        Ok(all.filter(|(_, phys)| is_counting(phys) && txgs.contains(&phys.creation_txg)).collect())
    }

    /// The bookmarks that count the head's freed blocks. Cached until bookmarks or snapshots change.
    async fn kept(&self, head: ObjectId, phys: &DslDatasetPhys) -> Result<CountingBookmarks, DslError> {
        if let Some(kept) = self.open_part().kept.lock().get(&head) {
            return Ok(kept.clone());
        }
        let kept: CountingBookmarks = Arc::new(self.counting(head, phys.prev_snapshot_txg..).await?);
        self.open_part().kept.lock().insert(head, kept.clone());
        Ok(kept)
    }

    /// Drops that cache for a head.
    pub(crate) fn forget_kept(&self, head: ObjectId) {
        self.open_part().kept.lock().remove(&head);
    }

    /// Adds blocks that a head gave up to the counts of its bookmarks since the last snapshot.
    #[boxed]
    pub(crate) async fn count_killed(
        &self,
        txg: Txg,
        head: ObjectId,
        phys: &DslDatasetPhys,
        killed: &Killed,
    ) -> Result<(), DslError> {
        if killed.is_empty() {
            return Ok(());
        }
        let kept = self.kept(head, phys).await?;
        if kept.is_empty() {
            return Ok(());
        }
        // By the oldest bookmark that is not older than the block.
        let mut sums: BTreeMap<Txg, SpaceDelta> =
            kept.iter().map(|(_, phys)| (phys.creation_txg, SpaceDelta::default())).collect();
        for bp in killed.iter() {
            if let Some((_, sum)) = sums.range_mut(bp.logical_birth()..).next() {
                sum.add(self.open_part().writer.space_of(bp));
            }
        }
        let mut sum = SpaceDelta::default();
        for older in sums.values_mut() {
            sum.add(*older);
            *older = sum;
        }
        if sum.is_zero() {
            return Ok(());
        }
        let mut now = Vec::with_capacity(kept.len());
        for (name, phys) in kept.iter() {
            let mut phys = phys.clone();
            let sum = sums[&phys.creation_txg];
            add(&mut phys, sum);
            self.put_bookmark(txg, head, name, &phys).await?;
            now.push((name.clone(), phys));
        }
        self.open_part().kept.lock().insert(head, Arc::new(now));
        Ok(())
    }

    /// The txgs of a head's bookmarks with counts that are newer than its last snapshot. The next snapshot gives its deadlist entries for them.
    #[boxed]
    pub(crate) async fn newer_bookmark_txgs(&self, head: ObjectId, last: Txg) -> Result<BTreeSet<Txg>, DslError> {
        let newer = self.counting(head, Txg(last.0.saturating_add(1))..).await?;
        Ok(newer.into_iter().map(|(_, phys)| phys.creation_txg).collect())
    }

    /// Updates bookmarks for a destroyed snapshot. True if one of its txg counts, and needs its entry in deadlists.
    #[boxed]
    pub(crate) async fn snapshot_leaves_bookmarks(
        &self,
        txg: Txg,
        snapshot: &DslDatasetPhys,
    ) -> Result<bool, DslError> {
        let head = self.dir_phys(snapshot.dir).await?.head_dataset;
        let next = self.dataset_phys(snapshot.next_snapshot).await?;
        let mut is_needed = false;
        for (name, mut phys) in self.counting(head, snapshot.prev_snapshot_txg..=snapshot.creation_txg).await? {
            if phys.creation_txg == snapshot.creation_txg {
                is_needed = true;
                phys.flags.remove(BookmarkFlags::SNAPSHOT_EXISTS);
            } else {
                // Blocks freed before the destroyed snapshot are counted already.
                let since = self.deadlist_space(next.deadlist, Txg(0), Some(phys.creation_txg)).await?;
                add(&mut phys, since);
            }
            self.put_bookmark(txg, head, &name, &phys).await?;
        }
        self.forget_kept(head);
        Ok(is_needed)
    }

    /// Restarts the counts of a head's bookmarks of a snapshot, because another dataset now follows the snapshot.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub(crate) async fn restart_bookmarks(&self, txg: Txg, head: ObjectId, snapshot: ObjectId) -> Result<(), DslError> {
        let of = self.dataset_phys(snapshot).await?;
        for (name, old) in self.counting(head, of.creation_txg..=of.creation_txg).await? {
            let form = BookmarkForm { has_ivset: old.ivset_guid != 0, has_sizes: true };
            let phys =
                BookmarkPhys { redaction_list: old.redaction_list, ..self.bookmark_fields(snapshot, form).await? };
            self.put_bookmark(txg, head, &name, &phys).await?;
        }
        self.forget_kept(head);
        Ok(())
    }

    /// The same when the head, which follows the snapshot, was rolled back to it. The head has nothing written since; newer bookmarks count
    /// their bytes less those of the snapshot that it still has.
    ///
    /// # Errors
    /// The MOS cannot be changed.
    #[boxed]
    pub(crate) async fn restart_newer_bookmarks(
        &self,
        txg: Txg,
        head: ObjectId,
        snapshot: ObjectId,
    ) -> Result<(), DslError> {
        self.restart_bookmarks(txg, head, snapshot).await?;
        let of = self.dataset_phys(snapshot).await?;
        let dead = self.deadlist_sizes(self.dataset_phys(head).await?.deadlist, None).await?;
        for (name, mut phys) in self.counting(head, Txg(of.creation_txg.0.saturating_add(1))..).await? {
            debug_assert!(
                !phys.flags.contains(BookmarkFlags::SNAPSHOT_EXISTS),
                "a head goes back to its last snapshot"
            );
            let less = |bookmark: u64, snapshot: u64, dead: u64| bookmark.wrapping_sub(snapshot).wrapping_add(dead);
            phys.referenced_freed_bytes = less(phys.referenced_bytes, of.referenced_bytes, dead.used_bytes);
            phys.compressed_freed_bytes = less(phys.compressed_bytes, of.compressed_bytes, dead.compressed_bytes);
            phys.uncompressed_freed_bytes =
                less(phys.uncompressed_bytes, of.uncompressed_bytes, dead.uncompressed_bytes);
            self.put_bookmark(txg, head, &name, &phys).await?;
        }
        self.forget_kept(head);
        Ok(())
    }

    /// Moves the bookmarks up to a txg from one head to another, which has no bookmarks with these names.
    #[boxed]
    pub(crate) async fn move_bookmarks(
        &self,
        txg: Txg,
        from: ObjectId,
        to: ObjectId,
        until: Txg,
        counts: &mut crate::BookmarkCounts,
    ) -> Result<(), DslError> {
        for (name, phys, _) in self.bookmark_entries(from).await? {
            if phys.creation_txg <= until {
                let phys = self.take_bookmark_out(txg, from, &name, counts).await?;
                self.add_bookmark(txg, to, &name, &phys, counts).await?;
            }
        }
        Ok(())
    }

    /// Removes the entries that only a bookmark needed from deadlists, after it is destroyed.
    pub(crate) async fn release_key(
        &self,
        txg: Txg,
        head: ObjectId,
        gone: &BookmarkPhys,
        refs: &mut EmptyRefs,
    ) -> Result<(), DslError> {
        let key = gone.creation_txg;
        let phys = self.dataset_phys(head).await?;
        if !is_counting(gone)
            || gone.flags.contains(BookmarkFlags::SNAPSHOT_EXISTS)
            || key >= phys.prev_snapshot_txg
            || !self.counting(head, key..=key).await?.is_empty()
        {
            return Ok(());
        }
        self.remove_clones_key(txg, phys.dir, key, refs).await?;
        self.remove_deadlist_key(txg, phys.deadlist, key, refs).await
    }

    /// True if a clone has a bookmark of its own that needs the entry of a txg. Such a bookmark records that its snapshot is gone.
    #[boxed]
    pub(crate) async fn needs_key(&self, txg: Txg, clone: ObjectId, key: Txg) -> Result<bool, DslError> {
        let of_key = self.counting(clone, key..=key).await?;
        for (name, mut phys) in of_key.iter().cloned() {
            if phys.flags.contains(BookmarkFlags::SNAPSHOT_EXISTS) {
                phys.flags.remove(BookmarkFlags::SNAPSHOT_EXISTS);
                self.put_bookmark(txg, clone, &name, &phys).await?;
            }
        }
        Ok(!of_key.is_empty())
    }
}
