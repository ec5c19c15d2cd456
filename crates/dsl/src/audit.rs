//! Invariants of the accounts and links of datasets that only a walk can check: for tests and simulations.
//!
//! ```text
//! directory   used = sum of its parts; the children's parts = what the children say
//! dataset     ◄── next ── snapshot ◄── next ── snapshot, and back by prev, with the txgs of creation going down
//! deadlist    sums in its header = sums of its lists
//! counts      of datasets and snapshots below, where they are kept
//! ```
//! Only pools that Cenote alone has written are checked. Elsewhere a contradiction is an error of the reader.

use cenote_dmu::{ORDER, Zap};
use cenote_format::bpobj::BpobjPhys;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::{DatasetFlags, DeadlistPhys, DirFlags, DslDatasetPhys};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::int_key;
use cenote_taskq::boxed;

use crate::accounts::signed;
use crate::{DEPTH_MAX, Dir, Dsl, DslError};

/// Entries of a deadlist, or clones of a snapshot, that the audit reads at most.
const ENTRIES_MAX: usize = 1 << 22;

impl Dsl {
    /// Checks all directories and datasets of a pool that only this version has written.
    ///
    /// # Errors
    /// The MOS cannot be read.
    ///
    /// # Panics
    /// An account does not add up, or a link leads nowhere.
    #[boxed]
    pub async fn audit(&self) -> Result<(), DslError> {
        for dir in self.tree(self.root_dir().await?, true).await? {
            let mut below = Vec::new();
            for (name, object) in self.children(&dir, true).await? {
                below.push(self.dir_object(object, format!("{}/{name}", dir.name)).await?);
            }
            audit_parts(&dir, &below);
            if dir.phys.head_dataset.0 != 0 {
                self.audit_head(&dir).await?;
                self.audit_livelist(&dir).await?;
            }
        }
        self.audit_counts().await
    }

    async fn audit_head(&self, dir: &Dir) -> Result<(), DslError> {
        let (name, object) = (&dir.name, dir.phys.head_dataset);
        let head = self.dataset_phys(object).await?;
        assert_eq!(head.dir, dir.object, "{name}: a head names the directory that names it");
        assert_eq!(head.next_snapshot, ObjectId(0), "{name}: nothing comes after a head");
        let [used, .., reserved_bytes] = dir.phys.used_breakdown_bytes;
        let is_accurate = head.flags.contains(DatasetFlags::UNIQUE_ACCURATE);
        if is_accurate && head.prev_snapshot == dir.phys.origin {
            assert_eq!(used, head.unique_bytes, "{name}: without snapshots all that a head uses is its own");
            assert!(head.unique_bytes <= head.referenced_bytes, "{name}: a head refers to what is its own");
        }
        if is_accurate {
            let reservation = self.refreservation_bytes(dir.object).await?;
            let unused = reservation.saturating_sub(head.unique_bytes);
            assert_eq!(reserved_bytes, unused, "{name}: what is reserved and not used counts as used");
        }
        self.audit_chain(name, object, head).await
    }

    /// Follows a head's snapshots back to its origin, and checks each.
    async fn audit_chain(&self, name: &str, head: ObjectId, phys: DslDatasetPhys) -> Result<(), DslError> {
        let (mut object, mut at) = (head, phys);
        loop {
            self.audit_deadlist(name, &at).await?;
            if at.prev_snapshot.0 == 0 {
                return Ok(());
            }
            let before = self.dataset_phys(at.prev_snapshot).await?;
            assert_eq!(before.creation_txg, at.prev_snapshot_txg, "{name}: a link has the txg of what it leads to");
            assert!(before.prev_snapshot_txg < before.creation_txg, "{name}: a snapshot comes after the one before");
            let clones = self.clone_objects(&before).await?;
            let next = u64::from(before.next_snapshot.0 != 0);
            assert_eq!(
                before.child_count,
                clones.len() as u64 + next,
                "{name}: a snapshot counts what goes on from it"
            );
            if before.dir != at.dir {
                assert!(clones.contains(&object), "{name}: the snapshot that a clone began as lists it");
                return Ok(());
            }
            assert_eq!(before.next_snapshot, object, "{name}: the links of snapshots lead both ways");
            (object, at) = (at.prev_snapshot, before);
        }
    }

    async fn clone_objects(&self, snapshot: &DslDatasetPhys) -> Result<Vec<ObjectId>, DslError> {
        if snapshot.next_clones.0 == 0 {
            return Ok(Vec::new());
        }
        let zap = Zap::open(self.mos_object(snapshot.next_clones).await?).await?;
        let entries = zap.entries(ENTRIES_MAX).await?;
        Ok(entries.iter().filter_map(|entry| entry.value.as_u64()).map(ObjectId).collect())
    }

    /// Checks that a livelist has as many bytes as its clone's head uses alone.
    async fn audit_livelist(&self, dir: &Dir) -> Result<(), DslError> {
        let name = &dir.name;
        let Some(livelist) = self.livelist(dir.phys.head_dataset).await? else { return Ok(()) };
        let firsts = self.open_deadlist(livelist.object).await?.1;
        assert!(firsts.keys().all(|first| *first >= livelist.origin_txg), "{name}: a livelist begins after the origin");
        let [own_bytes, ..] = dir.phys.used_breakdown_bytes;
        let listed_bytes = self.livelist_space(livelist.object).await?.used_bytes;
        assert_eq!(listed_bytes, signed(own_bytes), "{name}: a livelist has what its clone uses");
        Ok(())
    }

    async fn audit_deadlist(&self, name: &str, dataset: &DslDatasetPhys) -> Result<(), DslError> {
        let object = self.mos_object(dataset.deadlist).await?;
        // A pool before version 26 has one list.
        if object.phys().bonus_type != DmuType::DEADLIST_HDR {
            return Ok(());
        }
        let failed = |error| DslError::Format { object: dataset.deadlist.0, error };
        let phys = DeadlistPhys::parse(&object.phys().bonus, ORDER).map_err(failed)?;
        let mut sums = [0; 3];
        for entry in Zap::open(object).await?.entries(ENTRIES_MAX).await? {
            let first = int_key(entry.name()).map(Txg);
            assert!(
                first.is_some_and(|first| first <= dataset.prev_snapshot_txg),
                "{name}: a list of dead blocks begins after a snapshot before"
            );
            let list = self.mos_object(ObjectId(entry.value.as_u64().unwrap_or(0))).await?;
            let list = BpobjPhys::parse(&list.phys().bonus, ORDER).map_err(failed)?;
            let [compressed, uncompressed] = list.compressed.unwrap_or_default();
            assert!(
                list.blkptr_count > 0 || list.children.is_some_and(|(_, count)| count > 0) || list.bytes == 0,
                "{name}: a list without blocks has no bytes"
            );
            for (sum, bytes) in sums.iter_mut().zip([list.bytes, compressed, uncompressed]) {
                *sum += bytes;
            }
        }
        let header = [phys.used_bytes, phys.compressed_bytes, phys.uncompressed_bytes];
        assert_eq!(header, sums, "{name}: a deadlist has what its lists have");
        Ok(())
    }
}

/// Checks that a directory's bytes are the sum of its parts, and its children's part that of its children.
fn audit_parts(dir: &Dir, below: &[Dir]) {
    let (name, phys) = (&dir.name, &dir.phys);
    assert!(phys.flags.contains(DirFlags::USED_BREAKDOWN), "{name}: a directory's use is kept by its parts");
    assert!(dir.name.matches('/').count() <= DEPTH_MAX, "{name}: a name is no longer than a walk");
    let [.., children, children_reserved, _] = phys.used_breakdown_bytes;
    assert_eq!(phys.used_bytes, phys.used_breakdown_bytes.iter().sum::<u64>(), "{name}: the parts make up the whole");
    let used = |below: &Dir| below.phys.used_bytes;
    let unused = |below: &Dir| below.phys.reserved_bytes.saturating_sub(used(below));
    assert_eq!(children, below.iter().map(used).sum::<u64>(), "{name}: what is used below counts here");
    assert_eq!(children_reserved, below.iter().map(unused).sum::<u64>(), "{name}: what is reserved below counts here");
    let physical = below.iter().map(|below| below.phys.compressed_bytes).sum::<u64>();
    assert!(physical <= phys.compressed_bytes, "{name}: blocks below count here by their sizes too");
}
