//! How wrong bytes differ from the right ones: the members of a checksum event that OpenZFS's `annotate_ecksum` gives (`zfs_fm.c`).
//!
//! Words of eight bytes are compared. Neighbouring words that differ make a range; where there would be more than [`RANGES_MAX`], ranges grow together
//! across the smallest gaps. So a device that gives noise makes no larger event than one that lost a bit. The bits themselves are told
//! where the ranges have [`INLINE_WORDS_MAX`] words at most.

use std::ops::Range;

use cenote_vdev::fault::Compared;

/// Ranges of a difference at most.
const RANGES_MAX: usize = 16;
/// Words whose bits are told at most.
const INLINE_WORDS_MAX: u32 = 16;
/// Bytes of a word.
const WORD_BYTES: usize = 8;

/// A range of words, from the first that differs to the last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bad {
    words: Range<u32>,
    /// Bits that are set and should not be.
    sets: u32,
    /// Bits that should be set and are not.
    clears: u32,
}

impl Bad {
    /// Takes in a range behind this one.
    fn absorb(&mut self, next: &Self) {
        debug_assert!(self.words.end <= next.words.start, "ranges are in order, and do not overlap");
        self.words.end = next.words.end;
        self.sets += next.sets;
        self.clears += next.clears;
    }
}

/// See the module comment.
#[derive(Clone, Debug)]
pub(super) struct Difference {
    ranges: Vec<Bad>,
    /// Ranges with a smaller gap between them are one.
    gap_min_words: u32,
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD_BYTES];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Words of both, as long as both reach, with their place.
fn words<'a>(compared: &Compared<'a>) -> impl Iterator<Item = (u32, &'a [u8], &'a [u8])> + use<'a> {
    let first = u32::try_from(compared.at_bytes / WORD_BYTES as u64).unwrap_or(u32::MAX);
    let pairs = compared.good.chunks(WORD_BYTES).zip(compared.bad.chunks(WORD_BYTES));
    // Blocks are of 16 MiB at most; those that were larger would have their words counted as the last.
    (first..u32::MAX)
        .zip(pairs)
        .filter(|(_, (good, bad))| good.len() == bad.len())
        .map(|(at, (good, bad))| (at, good, bad))
}

impl Difference {
    /// Of pieces by place, without overlap.
    pub(super) fn of(compared: &[Compared<'_>]) -> Self {
        debug_assert!(
            compared.is_sorted_by_key(|piece| piece.at_bytes),
            "pieces are compared in the order of their places"
        );
        let mut this = Self { ranges: Vec::new(), gap_min_words: 1 };
        for (at, good, bad) in compared.iter().flat_map(words).filter(|(_, good, bad)| good != bad) {
            let (good, bad) = (word(good), word(bad));
            let (sets, clears) = ((!good & bad).count_ones(), (good & !bad).count_ones());
            this.add(Bad { words: at..at + 1, sets, clears });
        }
        debug_assert!(this.ranges.len() <= RANGES_MAX, "an event has a bounded size");
        this
    }

    fn add(&mut self, next: Bad) {
        if let Some(last) = self.ranges.last_mut()
            && next.words.start.saturating_sub(last.words.end) < self.gap_min_words
        {
            return last.absorb(&next);
        }
        if self.ranges.len() == RANGES_MAX {
            self.close_gaps();
            // The last of them may reach to it by now.
            return self.add(next);
        }
        self.ranges.push(next);
    }

    /// Joins the ranges with the smallest gaps between them.
    fn close_gaps(&mut self) {
        let gap = |pair: &[Bad]| pair[1].words.start - pair[0].words.end;
        self.gap_min_words = self.ranges.windows(2).map(gap).min().unwrap_or(0) + 1;
        let mut joined: Vec<Bad> = Vec::with_capacity(RANGES_MAX);
        for range in &self.ranges {
            match joined.last_mut() {
                Some(last) if range.words.start - last.words.end < self.gap_min_words => last.absorb(range),
                _ => joined.push(range.clone()),
            }
        }
        debug_assert!(joined.len() < self.ranges.len(), "the smallest gap is closed");
        self.ranges = joined;
    }

    /// The first byte of each range, and that behind its end.
    pub(super) fn bounds(&self) -> Vec<u32> {
        let bytes = |words: u32| words.saturating_mul(WORD_BYTES as u32);
        self.ranges.iter().flat_map(|bad| [bytes(bad.words.start), bytes(bad.words.end)]).collect()
    }

    /// Bytes between two ranges at least.
    pub(super) const fn gap_min_bytes(&self) -> u32 {
        self.gap_min_words * WORD_BYTES as u32
    }

    /// For each range, the bits that are set and should not be.
    pub(super) fn sets(&self) -> Vec<u32> {
        self.ranges.iter().map(|bad| bad.sets).collect()
    }

    /// For each range, the bits that should be set and are not.
    pub(super) fn clears(&self) -> Vec<u32> {
        self.ranges.iter().map(|bad| bad.clears).collect()
    }

    /// The bits of all ranges, byte by byte: those that are set and should not be, and those that should be set and are not. `None` of many bytes.
    pub(super) fn bits(&self, compared: &[Compared<'_>]) -> Option<(Vec<u8>, Vec<u8>)> {
        let count = self.ranges.iter().fold(0_u32, |sum, bad| sum.saturating_add(bad.words.end - bad.words.start));
        if count > INLINE_WORDS_MAX {
            return None;
        }
        let (mut sets, mut clears) = (Vec::new(), Vec::new());
        for at in self.ranges.iter().flat_map(|bad| bad.words.clone()) {
            // Nothing between pieces was compared.
            let found = compared.iter().find_map(|piece| {
                let first = u32::try_from(piece.at_bytes / WORD_BYTES as u64).ok()?;
                let start = at.checked_sub(first)? as usize * WORD_BYTES;
                let of = |bytes: &[u8]| bytes.get(start..(start + WORD_BYTES).min(bytes.len())).map(word);
                of(piece.good).zip(of(piece.bad))
            });
            let (good, bad) = found.unwrap_or_default();
            sets.extend((!good & bad).to_le_bytes());
            clears.extend((good & !bad).to_le_bytes());
        }
        Some((sets, clears))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole<'a>(good: &'a [u8], bad: &'a [u8]) -> [Compared<'a>; 1] {
        [Compared { at_bytes: 0, good, bad }]
    }

    #[test]
    fn a_bit_that_flipped_is_told() {
        let good = [0x0f_u8; 4096];
        let mut bad = good;
        bad[1003] = 0x1e;
        let compared = whole(&good, &bad);
        let difference = Difference::of(&compared);
        assert_eq!((difference.bounds(), difference.gap_min_bytes()), (vec![1000, 1008], 8));
        assert_eq!((difference.sets(), difference.clears()), (vec![1], vec![1]));
        let (mut set, mut cleared) = (vec![0; 8], vec![0; 8]);
        (set[3], cleared[3]) = (0x10, 0x01);
        assert_eq!(difference.bits(&compared), Some((set, cleared)));
    }

    #[test]
    fn the_same_bytes_have_no_ranges() {
        let difference = Difference::of(&whole(&[7; 512], &[7; 512]));
        assert!(difference.bounds().is_empty() && difference.sets().is_empty() && difference.clears().is_empty());
        assert_eq!(difference.bits(&whole(&[7; 512], &[7; 512])), Some((Vec::new(), Vec::new())));
    }

    #[test]
    fn noise_is_one_range_without_its_bits() {
        let (good, bad) = (vec![0_u8; 1 << 17], vec![0xff_u8; 1 << 17]);
        let compared = whole(&good, &bad);
        let difference = Difference::of(&compared);
        assert_eq!((difference.bounds(), difference.sets()), (vec![0, 1 << 17], vec![1 << 20]));
        assert_eq!((difference.clears(), difference.bits(&compared)), (vec![0], None));
    }

    #[test]
    fn many_ranges_grow_together_and_no_difference_is_lost() {
        // At each second word, and from the middle on at each tenth.
        for count in [16_u32, 17, 40, 4000] {
            let places: Vec<usize> = (0..count as usize).map(|at| if at < 12 { 2 * at } else { 10 * at }).collect();
            let good = vec![0_u8; WORD_BYTES * (places[places.len() - 1] + 5)];
            let mut bad = good.clone();
            places.iter().for_each(|at| bad[at * WORD_BYTES] = 1);
            let difference = Difference::of(&whole(&good, &bad));
            assert!(difference.ranges.len() <= RANGES_MAX, "{count}");
            assert_eq!(difference.sets().iter().sum::<u32>(), count, "each bit is counted");
            let is_covered = |at: &usize| difference.ranges.iter().any(|bad| bad.words.contains(&(*at as u32)));
            assert!(places.iter().all(is_covered), "{count}: {difference:?}");
            assert_eq!(difference.gap_min_bytes() == 8, count == 16, "{count}");
            let is_apart = |pair: &[Bad]| pair[1].words.start - pair[0].words.end >= difference.gap_min_words;
            assert!(difference.ranges.windows(2).all(is_apart), "{difference:?}");
        }
    }

    #[test]
    fn pieces_have_places_and_what_lies_between_them_is_not_bad() {
        let (zeros, ones) = ([0_u8; 8], [1_u8; 8]);
        let compared = [
            Compared { at_bytes: 512, good: &zeros, bad: &ones },
            Compared { at_bytes: 1024, good: &zeros, bad: &zeros },
            Compared { at_bytes: 2048, good: &ones, bad: &zeros },
        ];
        let difference = Difference::of(&compared);
        assert_eq!(difference.bounds(), [512, 520, 2048, 2056]);
        assert_eq!((difference.sets(), difference.clears()), (vec![8, 0], vec![0, 8]));
        let bits = difference.bits(&compared).unwrap();
        assert_eq!(bits, ([[1; 8], [0; 8]].concat(), [[0; 8], [1; 8]].concat()));
    }
}
