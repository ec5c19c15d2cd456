//! Changing deadlists: the blocks that the previous snapshot references and the head no longer does.
//!
//! ```text
//! deadlist (ZAP: txg of a snapshot in hexadecimal ─► bpobj)
//!   0000 ─► bpobj    blocks born after txg 0, up to the next        a block goes to the entry of the newest snapshot before
//!   0a31 ─► bpobj    blocks born after txg 0xa31, …                 its birth, so destroying a snapshot frees whole lists
//! ```
//! An entry without blocks may refer to the pool's shared empty bpobj (feature `empty_bpobj`). It gets a bpobj of its own with its first
//! block.
//!
//! **Life of an entry.** A new snapshot takes over the deadlist of its head. The head begins a new deadlist with the same keys and empty
//! entries, and one more entry, for the snapshot before. When a snapshot is destroyed, those entries of the next snapshot's deadlist
//! whose blocks only the destroyed one referenced are freed. The entries of its own deadlist are merged into the next snapshot's
//! deadlist, and in every deadlist with its txg as a key, that entry is merged into the one before (`dsl_deadlist_remove_key`).

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::{ORDER, Object, ObjectSpec, SpaceDelta, Zap};
use cenote_format::blkptr::Blkptr;
use cenote_format::dmu_type::DmuType;
use cenote_format::dsl::DeadlistPhys;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::{ZapValue, int_key, int_key_name};

use crate::Dsl;
use crate::DslError;
use crate::bpobj::EmptyRefs;

/// Entries of one deadlist at most: one for each snapshot.
const ENTRIES_MAX: usize = 1 << 22;

/// Entries in memory at most, of all deadlists together: some 20 MiB.
const LOADED_MAX: usize = 1 << 18;

/// A deadlist's lists, by the txg after which each begins.
pub(crate) type Lists = BTreeMap<Txg, ObjectId>;

/// The entries of deadlists that received blocks, so that a txg that gives up a block need not read an entry for each snapshot.
///
/// Invariant: they equal the deadlist's ZAP (asserted in debug builds at each use). All code that changes a deadlist's ZAP is in this module or
/// in `livelist`, and removes its lists from here first.
#[derive(Default)]
pub(crate) struct LoadedDeadlists(BTreeMap<ObjectId, Lists>);

impl LoadedDeadlists {
    fn put(&mut self, deadlist: ObjectId, lists: Lists) {
        let held: usize = self.0.values().map(BTreeMap::len).sum();
        if held.saturating_add(lists.len()) > LOADED_MAX {
            self.0.clear();
        }
        if lists.len() <= LOADED_MAX {
            self.0.insert(deadlist, lists);
        }
        debug_assert!(
            self.0.values().map(BTreeMap::len).sum::<usize>() <= LOADED_MAX,
            "memory of deadlists is bounded"
        );
    }
}

impl Dsl {
    pub(crate) async fn open_deadlist(&self, deadlist: ObjectId) -> Result<(Object, Lists), DslError> {
        let object = self.mos().object(deadlist).await?;
        if object.phys().bonus_type != DmuType::DEADLIST_HDR {
            return Err(DslError::Unsupported("deadlists of pools before version 26".to_owned()));
        }
        let mut lists = Lists::new();
        for entry in Zap::open(object.clone()).await?.entries(ENTRIES_MAX).await? {
            match (int_key(entry.name()), entry.value.as_u64()) {
                (Some(first), Some(bpobj)) => drop(lists.insert(Txg(first), ObjectId(bpobj))),
                _ => {
                    let what = "an entry of a deadlist is no txg and object".to_owned();
                    return Err(DslError::Corrupt { object: deadlist.0, what });
                }
            }
        }
        Ok((object, lists))
    }

    /// As [`Dsl::open_deadlist`], but from memory if it was used before. The caller gives the lists back ([`Dsl::keep_loaded`]), with the same
    /// changes as the ZAP.
    pub(crate) async fn load_deadlist(&self, deadlist: ObjectId) -> Result<(Object, Lists), DslError> {
        let Some(lists) = self.take_loaded(deadlist) else { return self.open_deadlist(deadlist).await };
        if cfg!(debug_assertions) {
            assert_eq!(lists, self.open_deadlist(deadlist).await?.1, "lists in memory are those of the ZAP");
        }
        Ok((self.mos().object(deadlist).await?, lists))
    }

    /// Takes back the lists from [`Dsl::load_deadlist`].
    pub(crate) fn keep_loaded(&self, deadlist: ObjectId, lists: Lists) {
        self.open_part().deadlists.lock().put(deadlist, lists);
    }

    fn take_loaded(&self, deadlist: ObjectId) -> Option<Lists> {
        self.open_part().deadlists.lock().0.remove(&deadlist)
    }

    /// As [`Dsl::open_deadlist`], for changing entries.
    pub(crate) async fn open_deadlist_to_change(&self, deadlist: ObjectId) -> Result<(Object, Lists), DslError> {
        drop(self.take_loaded(deadlist));
        self.open_deadlist(deadlist).await
    }

    pub(crate) async fn change_deadlist(&self, txg: Txg, deadlist: &Object, space: SpaceDelta) -> Result<(), DslError> {
        let phys = DeadlistPhys::parse(&deadlist.phys().bonus, ORDER);
        let mut phys = phys.map_err(|error| DslError::Format { object: deadlist.id().0, error })?;
        let add = |to: &mut u64, bytes: i64| *to = to.saturating_add_signed(bytes);
        add(&mut phys.used_bytes, space.used_bytes);
        add(&mut phys.compressed_bytes, space.compressed_bytes);
        add(&mut phys.uncompressed_bytes, space.uncompressed_bytes);
        Ok(deadlist.set_bonus(txg, &phys.emit(ORDER))?)
    }

    /// Makes a deadlist with these entries.
    pub(crate) async fn create_deadlist(&self, txg: Txg, lists: &[(Txg, ObjectId)]) -> Result<ObjectId, DslError> {
        debug_assert!(
            lists.is_sorted_by_key(|(first, _)| *first),
            "entries of a deadlist are in the order of their txgs"
        );
        let names: Vec<String> = lists.iter().map(|(first, _)| int_key_name(first.0)).collect();
        let entries: Vec<(&str, ZapValue)> =
            names.iter().zip(lists).map(|(name, (_, list))| (name.as_str(), ZapValue::from_u64(list.0))).collect();
        let phys = DeadlistPhys { used_bytes: 0, compressed_bytes: 0, uncompressed_bytes: 0 };
        // The object gets its bonus when it is created. With 2047 entries the table is a fat ZAP, whose object cannot get another bonus any more.
        let spec = ObjectSpec::new(DmuType::DEADLIST, 512).with_bonus(DmuType::DEADLIST_HDR, phys.emit(ORDER).to_vec());
        Ok(Zap::create_object_as(self.mos(), txg, &spec, &entries).await?.id())
    }

    /// Creates a deadlist with the keys of another that are before a txg and the keys `also`, all with empty lists.
    pub(crate) async fn clone_deadlist(
        &self,
        txg: Txg,
        from: ObjectId,
        before: Txg,
        also: &BTreeSet<Txg>,
        refs: &mut EmptyRefs,
    ) -> Result<ObjectId, DslError> {
        let (_, lists) = self.open_deadlist(from).await?;
        let keys: BTreeSet<Txg> = lists.keys().filter(|first| **first < before).chain(also).copied().collect();
        let mut empty = Vec::new();
        for first in keys {
            empty.push((first, self.empty_list(txg, refs)?));
        }
        self.create_deadlist(txg, &empty).await
    }

    /// Bytes of the lists whose keys are at least `from` and, if `until` is given, less than it.
    pub(crate) async fn deadlist_space(
        &self,
        deadlist: ObjectId,
        from: Txg,
        until: Option<Txg>,
    ) -> Result<SpaceDelta, DslError> {
        let mut sum = SpaceDelta::default();
        for (first, list) in self.open_deadlist(deadlist).await?.1 {
            if first >= from && until.is_none_or(|until| first < until) {
                sum.add(Self::space_of_list(&Self::bpobj_phys(&self.mos().object(list).await?)?));
            }
        }
        Ok(sum)
    }

    /// Moves the lists whose keys are at least `from` into another list. Returns their bytes.
    pub(crate) async fn move_dead(
        &self,
        txg: Txg,
        deadlist: ObjectId,
        from: Txg,
        into: &Object,
        refs: &mut EmptyRefs,
    ) -> Result<SpaceDelta, DslError> {
        let (object, lists) = self.open_deadlist_to_change(deadlist).await?;
        let mut zap = Zap::open(object.clone()).await?;
        let mut moved = SpaceDelta::default();
        for (first, list) in lists.range(from..) {
            moved.add(Self::space_of_list(&Self::bpobj_phys(&self.mos().object(*list).await?)?));
            self.enqueue_list(txg, into, *list, refs).await?;
            zap.remove(int_key_name(first.0).as_bytes()).await?;
        }
        zap.flush(txg).await?;
        debug_assert!(moved.used_bytes >= 0, "lists have no less than nothing");
        self.change_deadlist(txg, &object, moved.negated()).await?;
        Ok(moved)
    }

    /// Merges one deadlist into another, whose entries reach as far back, and frees the first.
    pub(crate) async fn merge_deadlists(
        &self,
        txg: Txg,
        into: ObjectId,
        from: ObjectId,
        refs: &mut EmptyRefs,
    ) -> Result<(), DslError> {
        debug_assert!(into != from, "a deadlist is not merged with itself");
        let (target, mut lists) = self.open_deadlist_to_change(into).await?;
        let (source, gone) = self.open_deadlist_to_change(from).await?;
        let mut sum = SpaceDelta::default();
        for (first, list) in gone {
            sum.add(Self::space_of_list(&Self::bpobj_phys(&self.mos().object(list).await?)?));
            let Some((at, own)) = lists.range_mut(..=first).next_back() else {
                let what = format!("it has no entry for what was born after txg {first}");
                return Err(DslError::Corrupt { object: into.0, what });
            };
            *own = self.enqueue_in_entry(txg, &target, *at, *own, list, refs).await?;
        }
        source.free(txg);
        self.change_deadlist(txg, &target, sum).await
    }

    /// Puts a list into an entry's list, and returns the entry's list. An entry that had the pool's empty list takes the new one itself.
    async fn enqueue_in_entry(
        &self,
        txg: Txg,
        deadlist: &Object,
        first: Txg,
        own: ObjectId,
        list: ObjectId,
        refs: &mut EmptyRefs,
    ) -> Result<ObjectId, DslError> {
        debug_assert!(own != list || Some(own) == self.empty_bpobj(), "a list is not put into itself");
        if Some(own) != self.empty_bpobj() {
            self.enqueue_list(txg, &self.mos().object(own).await?, list, refs).await?;
            return Ok(own);
        }
        refs.released += 1;
        let entry = ZapValue::from_u64(list.0);
        Zap::put_entry(deadlist, txg, &int_key_name(first.0), Some(&entry)).await?;
        Ok(list)
    }

    /// Merges the entry that begins after a txg into the one before it, if there is one: removing a clone's bookmark of that snapshot may
    /// have removed the entry already.
    pub(crate) async fn remove_deadlist_key(
        &self,
        txg: Txg,
        deadlist: ObjectId,
        key: Txg,
        refs: &mut EmptyRefs,
    ) -> Result<(), DslError> {
        let (object, lists) = self.open_deadlist_to_change(deadlist).await?;
        let Some(list) = lists.get(&key) else { return Ok(()) };
        let Some((first, own)) = lists.range(..key).next_back() else {
            let what = format!("it has no entry for what was born before txg {key}");
            return Err(DslError::Corrupt { object: deadlist.0, what });
        };
        debug_assert!(*first < key, "an entry becomes one with the one before it");
        self.enqueue_in_entry(txg, &object, *first, *own, *list, refs).await?;
        Ok(Zap::put_entry(&object, txg, &int_key_name(key.0), None).await?)
    }

    /// Frees a deadlist, but not the blocks that it lists.
    pub(crate) async fn free_deadlist(
        &self,
        txg: Txg,
        deadlist: ObjectId,
        refs: &mut EmptyRefs,
    ) -> Result<(), DslError> {
        let (object, lists) = self.open_deadlist_to_change(deadlist).await?;
        for list in lists.into_values() {
            self.free_list(txg, list, refs).await?;
        }
        object.free(txg);
        Ok(())
    }

    /// Adds blocks to a deadlist. Returns the number of its entries that no longer share the pool's empty list.
    pub(crate) async fn insert_dead(&self, txg: Txg, deadlist: ObjectId, blocks: &[Blkptr]) -> Result<u64, DslError> {
        let (object, mut lists) = self.load_deadlist(deadlist).await?;
        let mut dead: BTreeMap<Txg, Vec<Blkptr>> = BTreeMap::new();
        for bp in blocks {
            let before = lists.range(..bp.logical_birth()).next_back().or_else(|| lists.first_key_value());
            let Some((first, _)) = before else {
                return Err(DslError::Corrupt { object: deadlist.0, what: "a deadlist without entries".to_owned() });
            };
            dead.entry(*first).or_default().push(*bp);
        }
        let mut replaced = 0;
        for (first, blocks) in dead {
            debug_assert!(lists.contains_key(&first), "blocks go to an entry that is there");
            let mut bpobj = lists[&first];
            if Some(bpobj) == self.empty_bpobj() {
                bpobj = self.create_bpobj(txg)?;
                Zap::put_entry(&object, txg, &int_key_name(first.0), Some(&ZapValue::from_u64(bpobj.0))).await?;
                lists.insert(first, bpobj);
                replaced += 1;
            }
            self.append_blocks(txg, &self.mos().object(bpobj).await?, &blocks).await?;
        }
        self.change_deadlist(txg, &object, self.space_of_all(blocks)).await?;
        self.keep_loaded(deadlist, lists);
        Ok(replaced)
    }
}
