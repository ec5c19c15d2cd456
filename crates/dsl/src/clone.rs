//! Datasets that begin as a snapshot: clones, and a head that is rolled back to its last snapshot.
//!
//! ```text
//! origin's directory   ... ◄─ prev ◄─── origin ◄─── ... head         origin: next_clones and child_count name the clone
//! clone's directory                        ▲─────── head             its deadlist has the same entries as the origin's head, up to the origin
//! ```

use std::collections::BTreeSet;

use cenote_dmu::{SpaceDelta, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::DatasetFlags;
use cenote_format::ids::{ObjectId, Txg};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{Rng, boxed};

use crate::accounts::signed;
use crate::bpobj::EmptyRefs;
use crate::create::Birth;
use crate::{Dsl, DslError};

/// The blocks for the caller to free after a rollback: those of this tree that were born after a txg.
#[derive(Clone, Copy, Debug)]
pub struct LeftTree {
    /// The root that the head had.
    pub root: Blkptr,
    /// Blocks born up to this txg belong to the snapshot.
    pub born_after: Txg,
    /// The bytes of the younger blocks.
    pub space: SpaceDelta,
}

impl Dsl {
    /// Creates the head dataset of a new directory as a clone of a snapshot. Its root is the snapshot's; an intent log's header in that is not
    /// the clone's.
    ///
    /// # Errors
    /// The MOS cannot be changed, or is of a version that had other deadlists.
    #[boxed]
    pub async fn create_clone(
        &self,
        dir: ObjectId,
        origin: ObjectId,
        birth: Birth,
        rng: &mut Rng,
        refs: &mut EmptyRefs,
    ) -> Result<ObjectId, DslError> {
        let txg = birth.txg;
        let from = self.dataset_phys(origin).await?;
        assert!(from.next_snapshot.0 != 0 && from.creation_txg < txg, "what is cloned is a snapshot that is on disk");
        let object = self.create_dataset_object(txg)?;
        let origin_head = self.dataset_phys(self.dir_phys(from.dir).await?.head_dataset).await?;
        let deadlist =
            self.clone_deadlist(txg, origin_head.deadlist, from.creation_txg, &BTreeSet::new(), refs).await?;
        let mut phys = self.new_dataset(dir, deadlist, birth, rng);
        phys.snapshot_names = Zap::create_object(self.mos(), txg, DmuType::DSL_DS_SNAP_MAP, &[]).await?.id();
        phys.prev_snapshot = origin;
        phys.prev_snapshot_txg = from.creation_txg;
        phys.referenced_bytes = from.referenced_bytes;
        phys.compressed_bytes = from.compressed_bytes;
        phys.uncompressed_bytes = from.uncompressed_bytes;
        phys.bp = from.bp;
        phys.flags |= from.flags & (DatasetFlags::INCONSISTENT | DatasetFlags::CASE_INSENSITIVE);
        self.put_dataset(txg, object, &phys).await?;
        if !mutant::is(Mutant::CloneUncounted) {
            self.add_clone(origin, object, txg).await?;
        }
        self.change_dir(txg, dir, |phys| {
            assert_eq!(phys.head_dataset, ObjectId(0), "a directory gets one head");
            phys.head_dataset = object;
            phys.origin = origin;
        })
        .await?;
        Ok(object)
    }

    /// Rolls a head that is not open back to its last snapshot. Returns the blocks to free, whose bytes are no longer charged to it. Its root is
    /// the snapshot's; an intent log's header in that is not the head's.
    ///
    /// # Errors
    /// The MOS cannot be changed, or is of a version that had other deadlists.
    #[boxed]
    pub async fn rollback_head(&self, txg: Txg, head: ObjectId, refs: &mut EmptyRefs) -> Result<LeftTree, DslError> {
        let mut phys = self.dataset_phys(head).await?;
        let mut snapshot = self.dataset_phys(phys.prev_snapshot).await?;
        assert_eq!(snapshot.next_snapshot, head, "a head goes back to its own last snapshot");
        let dead = self.deadlist_space(phys.deadlist, Txg(0), None).await?;
        let own = |head: u64, snapshot: u64, dead: i64| signed(head) - (signed(snapshot) - dead);
        let space = SpaceDelta {
            used_bytes: own(phys.referenced_bytes, snapshot.referenced_bytes, dead.used_bytes),
            compressed_bytes: own(phys.compressed_bytes, snapshot.compressed_bytes, dead.compressed_bytes),
            uncompressed_bytes: own(phys.uncompressed_bytes, snapshot.uncompressed_bytes, dead.uncompressed_bytes),
        };
        let left = LeftTree { root: phys.bp, born_after: phys.prev_snapshot_txg, space };
        // Blocks that the head refers to again are charged to it, and no longer to its snapshots.
        let origin = self.dir_phys(phys.dir).await?.origin;
        let since = if origin.0 == 0 { Txg(0) } else { self.dataset_phys(origin).await?.creation_txg };
        let back = self.deadlist_space(phys.deadlist, since, None).await?.used_bytes;
        let shared = self.deadlist_space(phys.deadlist, snapshot.prev_snapshot_txg, None).await?.used_bytes;
        snapshot.unique_bytes = snapshot.unique_bytes.saturating_add_signed(-shared);
        self.put_dataset(txg, phys.prev_snapshot, &snapshot).await?;

        let (unique_bytes, deadlist) = (phys.unique_bytes, phys.deadlist);
        phys.deadlist = self.clone_deadlist(txg, deadlist, Txg(u64::MAX), &BTreeSet::new(), refs).await?;
        phys.bp = snapshot.bp;
        phys.referenced_bytes = snapshot.referenced_bytes;
        phys.compressed_bytes = snapshot.compressed_bytes;
        phys.uncompressed_bytes = snapshot.uncompressed_bytes;
        phys.unique_bytes = 0;
        phys.flags |= DatasetFlags::UNIQUE_ACCURATE;
        self.put_dataset(txg, head, &phys).await?;
        self.free_deadlist(txg, deadlist, refs).await?;
        self.restart_newer_bookmarks(txg, head, phys.prev_snapshot).await?;
        self.charge_head(txg, phys.dir, unique_bytes, space.negated()).await?;
        self.change_dir(txg, phys.dir, |dir| {
            let [head, snapshots, ..] = &mut dir.used_breakdown_bytes;
            *head = head.saturating_add_signed(back);
            *snapshots = snapshots.saturating_add_signed(-back);
        })
        .await?;
        Ok(left)
    }
}
