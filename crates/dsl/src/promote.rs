//! Promotion of a clone: the origin's snapshots up to the origin become the clone's.
//!
//! ```text
//! before   origin's directory:  s1 ◄── s2 ◄── s3 ◄── head              after   origin's directory:              s3 ◄── head
//!                                       ▲                                                                        │ clone of s2
//!          clone's directory:           └── c1 ◄── clone                       clone's directory:  s1 ◄── s2 ◄──┴ c1 ◄── clone
//! ```
//! The snapshots up to the origin, *shared* by both, move into the clone's directory, with their names, their clones and their bytes.
//!
//! **Space that moves.** A snapshot added its referenced bytes, less those of the snapshot before, plus the bytes killed in between. The sum
//! over the snapshots that move is the origin's referenced bytes plus all their deadlists, less the referenced bytes of the origin's own origin.

use std::collections::BTreeSet;

use cenote_dmu::{SpaceDelta, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_taskq::boxed;
use cenote_taskq::mutant::{self, Mutant};

use crate::accounts::{UsedBy, signed};
use crate::limits::Counted;
use crate::{BookmarkCounts, Dataset, Dsl, DslError};

/// Snapshots in a chain, and clones of one, at most, as a bound on a walk.
const CHAIN_MAX: usize = 1 << 24;
const CLONES_MAX: usize = 1 << 22;

/// A dataset of a chain: its object and its fields.
type Link = (ObjectId, DslDatasetPhys);

/// The plan of a promotion: the snapshots and bytes that move, computed before anything is changed.
pub struct Promotion {
    clone: ObjectId,
    /// The directories of the clone and of its origin.
    dir: ObjectId,
    origin_dir: ObjectId,
    origin_head: ObjectId,
    /// The origin of the origin's directory; 0 if it has none.
    origin_origin: ObjectId,
    /// The origin and the snapshots before it, newest first.
    shared: Vec<Link>,
    names: Vec<String>,
    /// The clone's oldest dataset, which follows the origin.
    first_of_clone: ObjectId,
    moved: SpaceDelta,
    origin_unique_bytes: u64,
    clone_snapshot_bytes: i64,
    origin_snapshot_bytes: i64,
    /// Names of snapshots that move and are taken in the clone.
    pub conflicts: Vec<String>,
    /// Names of bookmarks that move and are taken in the clone.
    pub bookmark_conflicts: Vec<String>,
    /// Bytes of the longest name of a snapshot or bookmark that moves, without its dataset's name.
    pub longest_name_bytes: usize,
}

impl Promotion {
    /// The directory of the origin.
    #[must_use]
    pub const fn origin_dir(&self) -> ObjectId {
        self.origin_dir
    }

    /// The number of snapshots that move.
    #[must_use]
    pub const fn snapshot_count(&self) -> u64 {
        self.shared.len() as u64
    }

    /// Bytes that move from the origin's directory to the clone's.
    #[must_use]
    pub const fn moved_bytes(&self) -> u64 {
        self.moved.used_bytes.cast_unsigned()
    }
}

impl Dsl {
    /// The snapshots from a dataset back to the one after `until`, newest first.
    async fn chain(&self, from: ObjectId, until: ObjectId) -> Result<Vec<Link>, DslError> {
        let (mut links, mut at) = (Vec::new(), from);
        while at != until && at.0 != 0 {
            let phys = self.dataset_phys(at).await?;
            let before = phys.prev_snapshot;
            links.push((at, phys));
            at = before;
            if links.len() > CHAIN_MAX {
                return Err(DslError::Corrupt { object: from.0, what: "its snapshots form a cycle".to_owned() });
            }
        }
        Ok(links)
    }

    async fn dead_in(&self, links: &[Link], since: Txg) -> Result<i64, DslError> {
        let mut bytes = 0;
        for (_, phys) in links {
            bytes += self.deadlist_space(phys.deadlist, since, None).await?.used_bytes;
        }
        Ok(bytes)
    }

    /// Plans the promotion of a clone of another dataset's snapshot.
    ///
    /// # Errors
    /// It is not such a clone, or the MOS cannot be read.
    #[boxed]
    pub async fn plan_promotion(&self, clone: &Dataset) -> Result<Promotion, DslError> {
        let dir = self.dir_phys(clone.dir.object).await?;
        let origin = self.dataset_phys(dir.origin).await?;
        let origin_dir = self.dir_phys(origin.dir).await?;
        let origin_origin = origin_dir.origin;
        let shared = self.chain(dir.origin, origin_origin).await?;
        let clone_links = self.chain(clone.object, dir.origin).await?;
        let origin_links = self.chain(origin_dir.head_dataset, dir.origin).await?;
        let Some((first_of_clone, first)) = clone_links.last() else {
            return Err(DslError::Corrupt { object: clone.object.0, what: "it does not follow its origin".to_owned() });
        };
        let unique = self.deadlist_space(first.deadlist, origin.prev_snapshot_txg, None).await?;
        let mut moved = SpaceDelta {
            used_bytes: signed(origin.referenced_bytes),
            compressed_bytes: signed(origin.compressed_bytes),
            uncompressed_bytes: signed(origin.uncompressed_bytes),
        };
        for (_, phys) in &shared {
            moved.add(self.deadlist_space(phys.deadlist, Txg(0), None).await?);
        }
        let mut since = Txg(0);
        if origin_origin.0 != 0 {
            let before = self.dataset_phys(origin_origin).await?;
            moved.add(SpaceDelta {
                used_bytes: -signed(before.referenced_bytes),
                compressed_bytes: -signed(before.compressed_bytes),
                uncompressed_bytes: -signed(before.uncompressed_bytes),
            });
            since = before.creation_txg;
        }
        let own = Zap::open(self.mos().object(clone.phys.snapshot_names).await?).await?;
        let (mut names, mut conflicts, mut bookmark_conflicts) = (Vec::new(), Vec::new(), Vec::new());
        for (object, _) in &shared {
            let name = self.dataset_name(*object).await?;
            let name = name.split_once('@').map_or("", |(_, name)| name).to_owned();
            if own.lookup(name.as_bytes()).await?.is_some() {
                conflicts.push(name.clone());
            }
            names.push(name);
        }
        let mut longest_name_bytes = names.iter().map(String::len).max().unwrap_or(0);
        let taken: BTreeSet<String> =
            self.bookmark_entries(clone.object).await?.into_iter().map(|(name, ..)| name).collect();
        for (name, bookmark, _) in self.bookmark_entries(origin_dir.head_dataset).await? {
            if bookmark.creation_txg > origin.creation_txg {
                continue;
            }
            longest_name_bytes = longest_name_bytes.max(name.len());
            if taken.contains(&name) {
                bookmark_conflicts.push(name);
            }
        }
        Ok(Promotion {
            clone: clone.object,
            dir: clone.dir.object,
            origin_dir: origin.dir,
            origin_head: origin_dir.head_dataset,
            origin_origin,
            first_of_clone: *first_of_clone,
            moved,
            origin_unique_bytes: unique.used_bytes.max(0).cast_unsigned(),
            clone_snapshot_bytes: self.dead_in(&shared, since).await? + self.dead_in(&clone_links, since).await?,
            origin_snapshot_bytes: self.dead_in(&origin_links, origin.creation_txg).await?,
            shared,
            names,
            conflicts,
            bookmark_conflicts,
            longest_name_bytes,
        })
    }

    /// Promotes a clone as planned, with no change in between. Returns the changes of the counts of bookmarks' features.
    ///
    /// # Errors
    /// The MOS cannot be changed, or contradicts itself.
    #[boxed]
    pub async fn promote(&self, txg: Txg, plan: Promotion) -> Result<BookmarkCounts, DslError> {
        let conflicts = plan.conflicts.len() + plan.bookmark_conflicts.len();
        assert_eq!(conflicts, 0, "no two snapshots or bookmarks of a dataset have one name");
        let entry = async |zap: ObjectId, of: ObjectId, is_there: bool| {
            let value = ZapValue::from_u64(of.0);
            let zap = self.mos().object(zap).await?;
            Zap::put_entry(&zap, txg, &int_key_name(of.0), is_there.then_some(&value)).await?;
            Ok::<_, DslError>(())
        };
        let (origin, _) = plan.shared[0];
        let mut phys = self.dataset_phys(origin).await?;
        let old_next = std::mem::replace(&mut phys.next_snapshot, plan.first_of_clone);
        phys.unique_bytes = plan.origin_unique_bytes;
        self.put_dataset(txg, origin, &phys).await?;
        entry(phys.next_clones, plan.first_of_clone, false).await?;
        entry(phys.next_clones, old_next, true).await?;

        let origin_clones = self.dir_phys(plan.origin_dir).await?.clones;
        let mut dir = self.dir_phys(plan.dir).await?;
        dir.origin = plan.origin_origin;
        if dir.clones.0 == 0 {
            dir.clones = Zap::create_object(self.mos(), txg, DmuType::DSL_CLONES, &[]).await?.id();
        }
        self.put_dir(txg, plan.dir, &dir).await?;
        self.change_dir(txg, plan.origin_dir, |dir| dir.origin = origin).await?;
        entry(origin_clones, plan.clone, false).await?;
        entry(dir.clones, plan.origin_head, true).await?;
        if plan.origin_origin.0 != 0 {
            let above = self.dataset_phys(plan.origin_origin).await?.dir;
            let above = self.dir_phys(above).await?.clones;
            entry(above, plan.origin_head, false).await?;
            entry(above, plan.clone, true).await?;
        }
        let mut counts = BookmarkCounts::default();
        self.move_bookmarks(txg, plan.origin_head, plan.clone, phys.creation_txg, &mut counts).await?;
        self.restart_bookmarks(txg, plan.clone, origin).await?;
        let names = self.dataset_phys(plan.origin_head).await?.snapshot_names;
        let new_names = self.dataset_phys(plan.clone).await?.snapshot_names;
        let (names, new_names) = (self.mos().object(names).await?, self.mos().object(new_names).await?);
        for ((object, _), name) in plan.shared.iter().zip(&plan.names) {
            Zap::put_entry(&names, txg, name, None).await?;
            Zap::put_entry(&new_names, txg, name, Some(&ZapValue::from_u64(object.0))).await?;
            let mut phys = self.dataset_phys(*object).await?;
            phys.dir = plan.dir;
            self.put_dataset(txg, *object, &phys).await?;
            if phys.next_clones.0 == 0 {
                continue;
            }
            let mut heads = BTreeSet::new();
            for next in Zap::open(self.mos().object(phys.next_clones).await?).await?.entries(CLONES_MAX).await? {
                let next = ObjectId(next.value.as_u64().unwrap_or(0));
                // The origin's old follower has moved already.
                if next != old_next {
                    let of = self.dataset_phys(next).await?.dir;
                    heads.insert(self.dir_phys(of).await?.head_dataset);
                }
            }
            for head in heads {
                entry(origin_clones, head, false).await?;
                entry(dir.clones, head, true).await?;
            }
        }
        if mutant::is(Mutant::PromoteBytesKept) {
            self.renamed();
            return Ok(counts);
        }
        let moved = plan.snapshot_count().cast_signed();
        self.adjust_count(txg, plan.origin_dir, Counted::Snapshots, -moved).await?;
        self.adjust_count(txg, plan.dir, Counted::Snapshots, moved).await?;
        let [_, before, ..] = self.dir_phys(plan.dir).await?.used_breakdown_bytes;
        let of_snapshots = plan.clone_snapshot_bytes - signed(before);
        self.transfer(txg, plan.dir, of_snapshots, plan.moved).await?;
        let [_, before, ..] = self.dir_phys(plan.origin_dir).await?.used_breakdown_bytes;
        let of_snapshots = plan.origin_snapshot_bytes - signed(before);
        self.transfer(txg, plan.origin_dir, of_snapshots, plan.moved.negated()).await?;
        self.renamed();
        Ok(counts)
    }

    /// Charges bytes to a directory: `of_snapshots` of them to its snapshots and the rest to its head.
    async fn transfer(&self, txg: Txg, dir: ObjectId, of_snapshots: i64, all: SpaceDelta) -> Result<(), DslError> {
        let snapshots = SpaceDelta { used_bytes: of_snapshots, ..SpaceDelta::default() };
        let head = SpaceDelta { used_bytes: all.used_bytes - of_snapshots, ..all };
        // This order keeps every sum from becoming negative.
        self.charge(txg, dir, UsedBy::Snapshots, snapshots).await?;
        self.charge(txg, dir, UsedBy::Head, head).await
    }
}
