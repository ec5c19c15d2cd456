//! Numbers for new objects of a dataset: those of objects that were freed are given again.
//!
//! ```text
//!   block of the meta-dnode   0         1         2 …        next / 32
//!   slots                     ████▒▒██  █░░░████  ░░░░░░░░   ┆ never given
//!                                 │      └─ free on disk, found by looking (`Objset::look_for_numbers`)
//!                                 └─ freed by a txg that was written: given from the next one on
//! ```
//! An object whose dnode takes several slots needs them side by side in one block. Numbers of the MOS are not given again: much
//! that is known in memory of datasets goes by them.
//!
//! **Invariant.** A number is free here only if no object of that number, or over that slot, is on disk or in memory (asserted where
//! a number is given and where it is freed; against a plain set in the tests).

use std::collections::BTreeMap;

use cenote_format::ids::{ObjectId, Txg};

use crate::geometry::{OBJECT_MAX, SLOTS};

/// Blocks with free slots that are known at most: half a million numbers.
const BLOCKS_MAX: usize = 1 << 14;
/// Blocks that are looked into for room for a dnode of several slots.
const TRIES_MAX: usize = 64;

/// The numbers of an objset.
#[derive(Debug)]
pub(super) struct Numbers {
    /// The first number that no object was ever given.
    next: u64,
    /// Free slots, a bit for each, by block of the meta-dnode.
    free: BTreeMap<u64, u32>,
    /// The objects that each txg has freed, with their numbers of slots, in any order. The txg itself does not reuse their numbers.
    freed: BTreeMap<Txg, Vec<(ObjectId, u64)>>,
    /// Blocks of the meta-dnode that are still to be looked into for free slots.
    pub(super) unseen: std::ops::Range<u64>,
}

/// The bits of `slots` slots from a number's own on.
pub(super) fn bits(id: ObjectId, slots: u64) -> u32 {
    let ones = u32::MAX >> (SLOTS - slots.clamp(1, SLOTS));
    ones << (id.0 % SLOTS)
}

/// If there are too many to keep, the choice of those that are kept must not depend on the order in which they were freed.
fn sorted(mut freed: Vec<(ObjectId, u64)>) -> Vec<(ObjectId, u64)> {
    freed.sort_unstable();
    freed
}

impl Numbers {
    /// Numbers from `next` on, and what is free in the first blocks of the meta-dnode.
    pub(super) fn new(next: u64) -> Self {
        Self { next, free: BTreeMap::new(), freed: BTreeMap::new(), unseen: 0..next / SLOTS }
    }

    /// A number for a new object of a txg.
    pub(super) fn take(&mut self, txg: Txg, slots: u64) -> ObjectId {
        assert!((1..=SLOTS).contains(&slots), "a dnode takes a slot, and no more than a block has");
        let later = self.freed.split_off(&txg);
        for (id, slots) in std::mem::replace(&mut self.freed, later).into_values().flat_map(sorted) {
            self.add(id.0 / SLOTS, bits(id, slots));
        }
        let fits = |(block, free): (&u64, &u32)| {
            let start =
                (0..=SLOTS - slots).find(|start| free & bits(ObjectId(*start), slots) == bits(ObjectId(*start), slots));
            start.map(|start| ObjectId(block * SLOTS + start))
        };
        let found = self.free.iter().take(TRIES_MAX).find_map(fits);
        let id = found.unwrap_or_else(|| {
            // A dnode does not cross the end of its block.
            let left = SLOTS - self.next % SLOTS;
            if slots <= left {
                return ObjectId(self.next);
            }
            self.add(self.next / SLOTS, bits(ObjectId(self.next), left));
            ObjectId(self.next.saturating_add(left))
        });
        assert!(id.0 != 0, "the first slot is the meta-dnode's");
        // Numbers go on behind the last block on disk, whatever that is; those that are too large are refused.
        assert!(id.0 >= OBJECT_MAX || id.0 % SLOTS + slots <= SLOTS, "a dnode stands in one block");
        self.claim(id, slots);
        debug_assert!(self.is_apart(id, slots), "a number that was given is not free");
        id
    }

    /// Whether no slot of an object is free, or was freed and may be given again.
    fn is_apart(&self, id: ObjectId, slots: u64) -> bool {
        let is_other = |(other, count): &(ObjectId, u64)| other.0 + count <= id.0 || id.0 + slots <= other.0;
        self.free.get(&(id.0 / SLOTS)).is_none_or(|free| free & bits(id, slots) == 0)
            && self.freed.values().flatten().all(is_other)
    }

    /// A number is in use from now on.
    pub(super) fn claim(&mut self, id: ObjectId, slots: u64) {
        self.next = self.next.max(id.0.saturating_add(slots));
        let block = id.0 / SLOTS;
        if let Some(free) = self.free.get_mut(&block) {
            *free &= !bits(id, slots);
            if *free == 0 {
                self.free.remove(&block);
            }
        }
        let is_apart = |(other, count): &(ObjectId, u64)| other.0 + count <= id.0 || id.0 + slots <= other.0;
        self.freed.values_mut().for_each(|freed| freed.retain(is_apart));
    }

    /// An object was freed, and the txg that did it is written.
    pub(super) fn give(&mut self, txg: Txg, id: ObjectId, slots: u64) {
        assert!(self.freed.keys().next_back().is_none_or(|last| *last <= txg), "txgs are written in order");
        assert!(id.0.saturating_add(slots) <= self.next, "a number that is freed was given");
        debug_assert!(self.is_apart(id, slots), "a number is freed once");
        self.freed.entry(txg).or_default().push((id, slots));
    }

    /// Slots of a block were found to be free.
    pub(super) fn add(&mut self, block: u64, free: u32) {
        if free != 0 && (self.free.len() < BLOCKS_MAX || self.free.contains_key(&block)) {
            *self.free.entry(block).or_default() |= free;
        }
    }

    /// Whether there is no number but new ones, and there may be some to be found.
    pub(super) fn wants_more(&self) -> bool {
        self.free.is_empty() && self.freed.is_empty() && !self.unseen.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cenote_taskq::Rng;

    use super::*;

    /// Against a plain set of slots in use: no slot is given twice, none of a txg's own, and what is free is used before new ones.
    #[test]
    fn no_slot_has_two_objects() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut numbers = Numbers::new(1);
            let mut used: BTreeSet<u64> = BTreeSet::from([0]);
            let mut objects: Vec<(ObjectId, u64)> = Vec::new();
            let mut highest = 0;
            for txg in 1..60 {
                let mut hot = BTreeSet::new();
                for _ in 0..rng.below(40) {
                    if rng.chance(1, 2) && !objects.is_empty() {
                        let (id, slots) = objects.swap_remove(rng.below(objects.len() as u64) as usize);
                        numbers.give(Txg(txg), id, slots);
                        (id.0..id.0 + slots).for_each(|slot| assert!(used.remove(&slot) && hot.insert(slot)));
                    } else {
                        let slots = [1, 1, 1, 2, 5, 32][rng.below(6) as usize];
                        let id = numbers.take(Txg(txg), slots);
                        assert_eq!(id.0 / SLOTS, (id.0 + slots - 1) / SLOTS, "in one block");
                        let is_taken = |slot| used.contains(&slot) || hot.contains(&slot);
                        assert!(
                            slots > 1 || id.0 < highest || (0..highest).all(is_taken),
                            "nothing new while there is any"
                        );
                        for slot in id.0..id.0 + slots {
                            assert!(used.insert(slot) && !hot.contains(&slot), "seed {seed}: slot {slot}");
                        }
                        objects.push((id, slots));
                        highest = highest.max(id.0 + slots);
                    }
                }
            }
        }
    }

    #[test]
    fn a_number_that_is_asked_for_is_not_given() {
        let mut numbers = Numbers::new(40);
        numbers.give(Txg(1), ObjectId(7), 2);
        numbers.claim(ObjectId(8), 1);
        assert_eq!(numbers.take(Txg(2), 1), ObjectId(40));
        numbers.add(0, 0b11000);
        numbers.claim(ObjectId(3), 1);
        assert_eq!(numbers.take(Txg(2), 1), ObjectId(4));
        assert_eq!(numbers.take(Txg(2), 1), ObjectId(41));
    }
}
