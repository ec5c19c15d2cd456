//! The times of txgs, as OpenZFS 2.4 notes them in the MOS's directory: for scrubs of a range of dates.
//!
//! Three entries, each of [`WORDS`] words: the first entry's place, the place behind the last, how many there are, and a ring of [`RING_ENTRIES`] pairs of
//! a time in seconds since 1970 and a txg. One ring has a pair every ten minutes, one every day, one every 30 days (`include/zfs_crrd.h`).

use crate::ids::Txg;

/// Pairs of a ring (`RRD_MAX_ENTRIES`).
const RING_ENTRIES: usize = 256;
/// Words of an entry of the directory.
const WORDS: usize = 3 + 2 * RING_ENTRIES;

/// When txgs were written, as far as it was noted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxgTimes {
    /// Seconds since 1970, and the txg; by time.
    noted: Vec<(u64, Txg)>,
}

impl TxgTimes {
    /// The entries of the MOS's directory.
    pub const ENTRIES: [&str; 3] = [
        "com.klarasystems:txg_log_time:minutes",
        "com.klarasystems:txg_log_time:days",
        "com.klarasystems:txg_log_time:months",
    ];

    /// Takes in the words of one of them; of words that are none, nothing.
    pub fn add_words(&mut self, words: &[u64]) {
        let [head, _, len, ring @ ..] = words else { return };
        let (Ok(head), Ok(len)) = (usize::try_from(*head), usize::try_from(*len)) else { return };
        if words.len() != WORDS || head >= RING_ENTRIES || len > RING_ENTRIES {
            return;
        }
        let pairs = ring.as_chunks::<2>().0;
        let noted = (head..head + len).map(|at| pairs[at % RING_ENTRIES]).map(|[time_s, txg]| (time_s, Txg(txg)));
        self.noted.extend(noted.filter(|(_, txg)| txg.0 != 0));
        self.noted.sort_unstable();
    }

    /// Nothing was noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.noted.is_empty()
    }

    /// The last txg that was noted at a time or before; none if all were later.
    #[must_use]
    pub fn before(&self, time_s: u64) -> Option<Txg> {
        self.noted.iter().rev().find(|(noted_s, _)| *noted_s <= time_s).map(|(_, txg)| *txg)
    }

    /// The first txg that was noted at a time or later; none if all were earlier.
    #[must_use]
    pub fn after(&self, time_s: u64) -> Option<Txg> {
        self.noted.iter().find(|(noted_s, _)| *noted_s >= time_s).map(|(_, txg)| *txg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(head: u64, pairs: &[(u64, u64)]) -> Vec<u64> {
        let mut words = vec![head, (head + pairs.len() as u64) % 256, pairs.len() as u64];
        words.resize(WORDS, 0);
        for (at, (time_s, txg)) in (head..).zip(pairs) {
            let at = 3 + 2 * (at as usize % RING_ENTRIES);
            (words[at], words[at + 1]) = (*time_s, *txg);
        }
        words
    }

    #[test]
    fn the_nearest_txg_of_all_rings_is_found() {
        let mut times = TxgTimes::default();
        assert!(times.is_empty() && times.before(u64::MAX).is_none());
        times.add_words(&words(255, &[(1000, 50), (1600, 60), (2200, 70)]));
        times.add_words(&words(0, &[(100, 5), (900, 40)]));
        times.add_words(&words(0, &[]));
        let found = |time_s| (times.before(time_s).map(|txg| txg.0), times.after(time_s).map(|txg| txg.0));
        assert_eq!(found(99), (None, Some(5)));
        assert_eq!(found(950), (Some(40), Some(50)));
        assert_eq!(found(1600), (Some(60), Some(60)));
        assert_eq!(found(1601), (Some(60), Some(70)));
        assert_eq!(found(9999), (Some(70), None));
    }

    #[test]
    fn words_that_are_no_ring_say_nothing() {
        let good = words(0, &[(1000, 50)]);
        for spoil in [(0, 256), (2, 257), (0, u64::MAX), (2, u64::MAX)] {
            let mut bad = good.clone();
            bad[spoil.0] = spoil.1;
            let mut times = TxgTimes::default();
            times.add_words(&bad);
            assert!(times.is_empty(), "{spoil:?}");
        }
        let mut times = TxgTimes::default();
        (0..good.len()).for_each(|len| times.add_words(&good[..len]));
        assert!(times.is_empty());
    }
}
