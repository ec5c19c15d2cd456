//! A set of object numbers, to record which were seen.

use std::collections::BTreeMap;

/// Object numbers in one chunk of the map: they are dense, so one bit for each is the smallest form.
const CHUNK_BITS: u64 = 4096;
const CHUNK_WORDS: usize = (CHUNK_BITS / 64) as usize;

/// A set of object numbers: about a bit for each object up to the highest.
#[derive(Debug, Default)]
pub struct ObjectSet {
    chunks: BTreeMap<u64, Box<[u64; CHUNK_WORDS]>>,
}

impl ObjectSet {
    /// Adds a number. True if it was not in the set.
    pub fn insert(&mut self, number: u64) -> bool {
        let chunk = self.chunks.entry(number / CHUNK_BITS).or_insert_with(|| Box::new([0; CHUNK_WORDS]));
        let at = number % CHUNK_BITS;
        let (word, bit) = (&mut chunk[(at / 64) as usize], 1_u64 << (at % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_new_once() {
        let mut set = ObjectSet::default();
        for number in [0, 1, 63, 64, 4095, 4096, 1 << 40, u64::MAX] {
            assert!(set.insert(number), "{number}");
            assert!(!set.insert(number), "{number}");
        }
        assert!(set.insert(2));
    }
}
