//! The work of a txg on space, metaslab by metaslab, for the history of txgs.
//!
//! Figures are taken where a metaslab is synced, from sets that know their totals: an allocation costs nothing for it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::MetaslabId;
use crate::logs::LogSpace;

/// Metaslabs that a record names at most: a txg that frees everywhere changes all, and a history keeps many records.
const METASLABS_MAX: usize = 64;

/// How a flush wrote the metaslab's own map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flushed {
    /// Unflushed changes were appended.
    Appended,
    /// The map was rewritten.
    Condensed,
}

/// The work of a txg on one metaslab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaslabWork {
    /// Which.
    pub metaslab: MetaslabId,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Bytes freed.
    pub freed_bytes: u64,
    /// Bytes written to its own map.
    pub map_bytes: u64,
    /// Bytes written about it to the txg's log.
    pub log_bytes: u64,
    /// Whether its own map caught up, and how.
    pub flushed: Option<Flushed>,
    /// It was loaded.
    pub is_loaded: bool,
    /// It was unloaded.
    pub is_unloaded: bool,
}

impl MetaslabWork {
    /// Nothing yet.
    #[must_use]
    pub const fn new(metaslab: MetaslabId) -> Self {
        Self {
            metaslab,
            allocated_bytes: 0,
            freed_bytes: 0,
            map_bytes: 0,
            log_bytes: 0,
            flushed: None,
            is_loaded: false,
            is_unloaded: false,
        }
    }

    fn add(&mut self, more: &Self) {
        assert_eq!(self.metaslab, more.metaslab, "work is added up for each metaslab");
        self.allocated_bytes += more.allocated_bytes;
        self.freed_bytes += more.freed_bytes;
        self.map_bytes += more.map_bytes;
        self.log_bytes += more.log_bytes;
        self.flushed = self.flushed.max(more.flushed);
        self.is_loaded |= more.is_loaded;
        self.is_unloaded |= more.is_unloaded;
    }

    /// More work stands first.
    const fn rank(&self) -> Reverse<(u64, u64)> {
        Reverse((self.allocated_bytes + self.freed_bytes, self.map_bytes + self.log_bytes))
    }
}

/// The work of a txg on space. Loads and unloads count with the txg that was the next to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxgWork {
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Bytes freed.
    pub freed_bytes: u64,
    /// Metaslabs that something was allocated from.
    pub allocated_from: u64,
    /// Metaslabs loaded.
    pub loaded: u64,
    /// Metaslabs unloaded.
    pub unloaded: u64,
    /// Metaslabs flushed by appending.
    pub flushed: u64,
    /// Metaslabs whose map was rewritten.
    pub condensed: u64,
    /// Bytes written to metaslabs' own maps.
    pub map_bytes: u64,
    /// Bytes written to the txg's log.
    pub log_bytes: u64,
    /// Logs freed.
    pub retired: u64,
    /// Logs that there are.
    pub logs: u64,
    /// Blocks of them.
    pub log_blocks: u64,
    /// Each metaslab that was worked on, in order; if there are too many, those with most work.
    pub metaslabs: Vec<MetaslabWork>,
    /// How many more were.
    pub metaslabs_left_out: u64,
}

/// The work of a txg that is not done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gathered {
    metaslabs: BTreeMap<MetaslabId, MetaslabWork>,
}

impl Gathered {
    pub(crate) fn of(&mut self, id: MetaslabId) -> &mut MetaslabWork {
        self.metaslabs.entry(id).or_insert(MetaslabWork::new(id))
    }

    /// Adds what a sync did.
    pub(crate) fn add(&mut self, work: &MetaslabWork) {
        if *work != MetaslabWork::new(work.metaslab) {
            self.of(work.metaslab).add(work);
        }
    }

    /// The txg is done; the next begins with nothing.
    pub(crate) fn end(&mut self, logs: &mut LogSpace) -> TxgWork {
        let mut all: Vec<_> = std::mem::take(&mut self.metaslabs).into_values().collect();
        let mut total = TxgWork { retired: logs.take_retired(), log_blocks: logs.blocks(), ..TxgWork::default() };
        total.logs = logs.logs().count() as u64;
        for work in &all {
            total.allocated_bytes += work.allocated_bytes;
            total.freed_bytes += work.freed_bytes;
            total.allocated_from += u64::from(work.allocated_bytes > 0);
            total.loaded += u64::from(work.is_loaded);
            total.unloaded += u64::from(work.is_unloaded);
            total.flushed += u64::from(work.flushed == Some(Flushed::Appended));
            total.condensed += u64::from(work.flushed == Some(Flushed::Condensed));
            total.map_bytes += work.map_bytes;
            total.log_bytes += work.log_bytes;
        }
        total.metaslabs_left_out = all.len().saturating_sub(METASLABS_MAX) as u64;
        if total.metaslabs_left_out > 0 {
            all.sort_by_key(MetaslabWork::rank);
            all.truncate(METASLABS_MAX);
            all.sort_by_key(|work| work.metaslab);
            all.shrink_to_fit();
        }
        debug_assert!(all.is_sorted_by(|one, next| one.metaslab < next.metaslab), "a record names metaslabs in order");
        total.metaslabs = all;
        total
    }
}

#[cfg(test)]
mod tests {
    use cenote_format::ids::VdevId;

    use super::*;

    #[test]
    fn a_record_names_those_with_most_work_and_counts_them_all() {
        let id = |index| MetaslabId { vdev: VdevId((index % 2) as u32), index };
        let mut gathered = Gathered::default();
        for index in 0..100 {
            // In two passes, the second of which found nothing to do.
            let flushed = (index % 10 == 0).then_some(Flushed::Appended);
            let work =
                MetaslabWork { allocated_bytes: index << 12, log_bytes: 8, flushed, ..MetaslabWork::new(id(index)) };
            gathered.add(&work);
            gathered.add(&MetaslabWork::new(id(index)));
        }
        gathered.add(&MetaslabWork { freed_bytes: 1 << 30, ..MetaslabWork::new(id(3)) });
        gathered.add(&MetaslabWork { flushed: Some(Flushed::Condensed), ..MetaslabWork::new(id(10)) });
        gathered.of(id(5)).is_unloaded = true;
        gathered.add(&MetaslabWork::new(id(1000)));
        let mut logs = LogSpace::new();
        let work = gathered.end(&mut logs);
        assert_eq!((work.allocated_bytes, work.freed_bytes, work.log_bytes), (4950 << 12, 1 << 30, 800));
        assert_eq!((work.allocated_from, work.flushed, work.condensed, work.unloaded, work.loaded), (99, 9, 1, 1, 0));
        assert_eq!((work.metaslabs.len() as u64, work.metaslabs_left_out), (64, 36));
        assert!(work.metaslabs.is_sorted_by_key(|work| work.metaslab));
        let named: BTreeMap<u64, u64> =
            work.metaslabs.iter().map(|work| (work.metaslab.index, work.allocated_bytes)).collect();
        let most: BTreeMap<u64, u64> = std::iter::once(3).chain(37..100).map(|index| (index, index << 12)).collect();
        assert_eq!(named, most);
        assert_eq!(gathered.end(&mut logs), TxgWork::default(), "the next txg begins with nothing");
    }
}
