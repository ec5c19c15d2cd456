//! Accounts of the space that datasets and directories use. Each sync updates them.

use cenote_dmu::{Killed, SpaceDelta, Synced};
use cenote_format::blkptr::Blkptr;
use cenote_format::dsl::{DslDatasetPhys, DslDirPhys};
use cenote_format::ids::{ObjectId, Txg};
use cenote_taskq::boxed;
use cenote_taskq::mutant::{self, Mutant};

use crate::bpobj::EmptyRefs;
use crate::{DEPTH_MAX, Dsl, DslError, Livelist, LivelistLimits};

/// The part of a directory's `used` that bytes are charged to (`dd_used_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBy {
    /// The head dataset.
    Head = 0,
    /// Its snapshots.
    Snapshots = 1,
    /// The directories below.
    Children = 2,
    /// The unused part of the head dataset's `refreservation`.
    Refreservation = 4,
}

/// The result of [`Dsl::synced`] for the blocks given up.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    /// Blocks that nothing refers to any more, to be freed.
    pub freed: Killed,
    /// Entries of deadlists and livelists that stopped sharing the empty list.
    pub replaced_empty: u64,
    /// Its `unique` grew, and it was not created in this txg.
    pub is_larger: bool,
    /// Its livelist was dropped.
    pub has_lost_livelist: bool,
}

impl Dsl {
    /// Charges bytes to a directory, and to every directory above it as its children's.
    ///
    /// # Errors
    /// The MOS cannot be changed, or directories form a cycle.
    #[boxed]
    pub async fn charge(&self, txg: Txg, dir: ObjectId, by: UsedBy, delta: SpaceDelta) -> Result<(), DslError> {
        debug_assert!(
            by != UsedBy::Refreservation || (delta.compressed_bytes == 0 && delta.uncompressed_bytes == 0),
            "what is reserved holds nothing"
        );
        if delta.is_zero() {
            return Ok(());
        }
        let mut phys = self.dir_phys(dir).await?;
        let part = &mut phys.used_breakdown_bytes[by as usize];
        *part = part.saturating_add_signed(delta.used_bytes);
        self.charge_up(txg, dir, phys, delta).await
    }

    /// Charges bytes to a directory whose breakdown has them already, and to every directory above.
    pub(crate) async fn charge_up(
        &self,
        txg: Txg,
        dir: ObjectId,
        mut phys: DslDirPhys,
        delta: SpaceDelta,
    ) -> Result<(), DslError> {
        let (mut at, mut used_bytes) = (dir, delta.used_bytes);
        for _ in 0..DEPTH_MAX {
            let before = phys.used_bytes.max(phys.reserved_bytes);
            phys.used_bytes = phys.used_bytes.saturating_add_signed(used_bytes);
            phys.compressed_bytes = phys.compressed_bytes.saturating_add_signed(delta.compressed_bytes);
            phys.uncompressed_bytes = phys.uncompressed_bytes.saturating_add_signed(delta.uncompressed_bytes);
            // A directory's reservation counts above it whether it is used or not.
            let above_bytes = counts_above(before, phys.used_bytes.max(phys.reserved_bytes));
            assert!(
                (used_bytes.min(0)..=used_bytes.max(0)).contains(&above_bytes),
                "no more counts above a directory than is used in it, and none the other way"
            );
            self.put_dir(txg, at, &phys).await?;
            if phys.parent.0 == 0 {
                return Ok(());
            }
            at = phys.parent;
            phys = self.dir_phys(at).await?;
            count_child(&mut phys, used_bytes, above_bytes);
            used_bytes = above_bytes;
        }
        Err(DslError::Corrupt { object: dir.0, what: "its parents form a cycle".to_owned() })
    }

    /// Enters the sync of a head dataset into its accounts. Blocks that it gave up go to its deadlist if the previous snapshot has them; the
    /// others are returned. For a clone with a livelist, `synced` includes the new blocks.
    ///
    /// # Errors
    /// The MOS cannot be changed, or is of a version that had other deadlists.
    #[boxed]
    pub async fn synced(
        &self,
        txg: Txg,
        dataset: ObjectId,
        synced: Synced,
        livelist: Option<(&Livelist, &LivelistLimits)>,
    ) -> Result<Settled, DslError> {
        let mut phys = self.dataset_phys(dataset).await?;
        assert_eq!(synced.root.logical_birth(), txg, "the root of a head that has changed is of the txg");
        self.count_killed(txg, dataset, &phys, &synced.killed).await?;
        let mut refs = EmptyRefs::default();
        let is_listed = match livelist {
            Some((livelist, limits)) => {
                let changes = (&synced.new[..], &synced.killed);
                self.enter_in_livelist(txg, livelist, limits, changes, &mut refs).await
            }
            None => true,
        };
        let killed = (synced.killed.count(), synced.killed.space());
        let (freed, dead) =
            synced.killed.split_after(phys.prev_snapshot_txg, |bp| self.open_part().writer.space_of(bp));
        let mut sum = freed.space();
        sum.add(dead.space());
        assert_eq!((freed.count() + dead.count(), sum), killed, "a block that a head gave up is freed or left, once");
        let mut own = synced.born;
        own.add(freed.space().negated());
        let mut referenced = own;
        referenced.add(dead.space().negated());
        phys.bp = synced.root;
        phys.referenced_bytes = phys.referenced_bytes.saturating_add_signed(referenced.used_bytes);
        phys.compressed_bytes = phys.compressed_bytes.saturating_add_signed(referenced.compressed_bytes);
        phys.uncompressed_bytes = phys.uncompressed_bytes.saturating_add_signed(referenced.uncompressed_bytes);
        let unique_bytes = phys.unique_bytes;
        phys.unique_bytes = unique_bytes.saturating_add_signed(own.used_bytes);
        self.put_dataset(txg, dataset, &phys).await?;
        self.charge_head(txg, phys.dir, unique_bytes, own).await?;
        let mut replaced_empty = 0;
        if !dead.is_empty() {
            let mut dead: Vec<Blkptr> = dead.iter().copied().collect();
            self.leave_to_snapshot(txg, dataset, &phys, &dead).await?;
            if mutant::is(Mutant::DeadlistEntryForgotten) {
                dead.pop();
            }
            replaced_empty = self.insert_dead(txg, phys.deadlist, &dead).await?;
        }
        let is_larger = own.used_bytes > 0 && phys.creation_txg != txg;
        let has_lost_livelist = match livelist {
            Some((_, limits)) if !is_listed || !self.is_livelist_of_use(dataset, limits).await? => {
                self.drop_livelist(txg, phys.dir, &mut refs).await?
            }
            _ => false,
        };
        replaced_empty += refs.released;
        Ok(Settled { freed, replaced_empty, is_larger, has_lost_livelist })
    }

    /// Charges blocks that a head gave up to its snapshots, and to the `unique` of the last one if only that has them.
    async fn leave_to_snapshot(
        &self,
        txg: Txg,
        dataset: ObjectId,
        phys: &DslDatasetPhys,
        dead: &[Blkptr],
    ) -> Result<(), DslError> {
        let mut snapshot = self.dataset_phys(phys.prev_snapshot).await?;
        if snapshot.next_snapshot == dataset {
            let alone: Vec<Blkptr> =
                dead.iter().filter(|bp| bp.logical_birth() > snapshot.prev_snapshot_txg).copied().collect();
            let bytes = self.space_of_all(&alone).used_bytes;
            snapshot.unique_bytes = snapshot.unique_bytes.saturating_add_signed(bytes);
            self.put_dataset(txg, phys.prev_snapshot, &snapshot).await?;
        }
        let origin = self.dir_phys(phys.dir).await?.origin;
        let since = if origin.0 == 0 { Txg(0) } else { self.dataset_phys(origin).await?.creation_txg };
        let moved: Vec<Blkptr> = dead.iter().filter(|bp| bp.logical_birth() > since).copied().collect();
        let bytes = self.space_of_all(&moved).used_bytes;
        assert!(bytes >= 0, "what a head leaves to its snapshots goes to them");
        self.change_dir(txg, phys.dir, |dir| {
            let [head, snapshots, ..] = &mut dir.used_breakdown_bytes;
            *head = head.saturating_add_signed(-bytes);
            *snapshots = snapshots.saturating_add_signed(bytes);
        })
        .await
    }
}

/// Bytes of a directory or dataset as a difference. No pool has more bytes than fit in one.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The change of the bytes that count above.
const fn counts_above(before: u64, after: u64) -> i64 {
    // The difference fits: no pool has more bytes.
    after.wrapping_sub(before).cast_signed()
}

/// Charges a child's additional bytes: `used_bytes` that it uses, and `above_bytes` that count here, with its reservation.
pub(crate) fn count_child(phys: &mut DslDirPhys, used_bytes: i64, above_bytes: i64) {
    let [.., children, children_reserved, _] = &mut phys.used_breakdown_bytes;
    *children = children.saturating_add_signed(used_bytes);
    *children_reserved = children_reserved.saturating_add_signed(above_bytes - used_bytes);
}
