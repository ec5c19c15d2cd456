//! From a key's hash to the entries that may have it: open addressing with linear probing.
//!
//! A slot holds half the hash beside the entry's index, so that a look-up touches one cache line of the table and one
//! entry, where a table that keeps its tags apart touches three lines. Nothing but slots is needed to grow or to close
//! the gap that a removal leaves.

use crate::list::NIL;

const EMPTY: u64 = u64::MAX;
const SLOTS_MIN: usize = 64;

/// A table of entry indices by hash. Several entries may have one hash.
#[derive(Default)]
pub struct Index {
    /// The hash's lower half above the entry's index. A power of two of them, at most five eighths in use.
    slots: Vec<u64>,
    len: usize,
}

impl Index {
    /// An empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: Vec::new(), len: 0 }
    }

    /// Entries in the table.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Memory in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }

    /// The entry of this hash for which `is_it` holds.
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = hash as u32 as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == EMPTY {
                return None;
            }
            if (slot >> 32) as u32 == hash as u32 && is_it(slot as u32) {
                return Some(slot as u32);
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds an entry, whose index is not `u32::MAX`.
    pub fn insert(&mut self, hash: u64, index: u32) {
        debug_assert_ne!(index, NIL);
        if (self.len + 1) * 8 > self.slots.len() * 5 {
            self.grow();
        }
        self.len += 1;
        self.place(u64::from(hash as u32) << 32 | u64::from(index));
    }

    /// Removes an entry, which must be there under this hash.
    pub fn remove(&mut self, hash: u64, index: u32) {
        let Some(mask) = self.slots.len().checked_sub(1) else { return };
        let wanted = u64::from(hash as u32) << 32 | u64::from(index);
        let mut gap = hash as u32 as usize & mask;
        while self.slots[gap] != wanted {
            if self.slots[gap] == EMPTY {
                debug_assert!(false, "an entry that is removed is in the table");
                return;
            }
            gap = (gap + 1) & mask;
        }
        self.len -= 1;
        // An entry further than the gap from its home slot moves into the gap, until a free slot ends the run.
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot == EMPTY {
                break;
            }
            let home = (slot >> 32) as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap] = EMPTY;
    }

    fn place(&mut self, slot: u64) {
        let mask = self.slots.len() - 1;
        let mut at = (slot >> 32) as usize & mask;
        while self.slots[at] != EMPTY {
            at = (at + 1) & mask;
        }
        self.slots[at] = slot;
    }

    fn grow(&mut self) {
        let count = (self.slots.len() * 2).max(SLOTS_MIN);
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; count]);
        old.into_iter().filter(|slot| *slot != EMPTY).for_each(|slot| self.place(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a plain list, with hashes so few that runs are long and wrap around the end.
    #[test]
    fn an_index_finds_what_a_plain_list_holds() {
        let mut index = Index::new();
        let mut plain: Vec<(u64, u32)> = Vec::new();
        let mut state = 7_u64;
        for step in 0..20_000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let hash = ((state >> 40) % 50).wrapping_sub(25);
            if (state >> 33) % 100 < 52 && plain.len() < 300 {
                index.insert(hash, step);
                plain.push((hash, step));
            } else if !plain.is_empty() {
                let (hash, value) = plain.swap_remove((state >> 20) as usize % plain.len());
                index.remove(hash, value);
            }
            assert_eq!(index.len(), plain.len());
            if step % 64 == 0 {
                for (hash, value) in &plain {
                    assert_eq!(index.find(*hash, |found| found == *value), Some(*value));
                }
                let mut seen = Vec::new();
                assert_eq!(
                    index.find(hash, |found| {
                        seen.push(found);
                        false
                    }),
                    None
                );
                seen.sort_unstable();
                let mut wanted: Vec<u32> = plain.iter().filter(|entry| entry.0 == hash).map(|entry| entry.1).collect();
                wanted.sort_unstable();
                assert_eq!(seen, wanted);
            }
        }
    }
}
