//! Log space maps: one pool-wide log a txg, and how many metaslabs to flush so that logs can go.
//!
//! ```text
//! logs        txg 90       txg 91       txg 92       txg 93 (syncing)
//! blocks          12            9           14            ?
//! metaslabs        3            0           57            4        whose first unflushed txg this is
//! summary     [ 90 .. 91: 21 blocks, 3 metaslabs ][ 92 .. 93: 14 blocks, 61 metaslabs ]
//! ```
//!
//! A log can go when it and all before it have no metaslabs: each metaslab's own map then has what they say. Metaslabs are
//! flushed in the order in which they were last, so flushing the three of txg 90 frees 21 blocks.
//!
//! **Pacing.** Blocks and logs have limits. From the rate of the last few txgs one can tell in how many txgs a limit will be
//! reached; by then the oldest row's metaslabs must have been flushed. So many a txg is the row's demand, and the same
//! goes for the next row with what the first gives back. The plan is the largest demand: constant work, no burst at the
//! limit.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Bound, Range};

use cenote_format::ids::{ObjectId, Txg, VdevId};
use cenote_format::spacemap::SpaceMapType;

use crate::map::Batch;
use crate::{LogFigure, MetaslabFault, MetaslabId, SpaceError, SpaceMap, SpaceStore, Tunables, Violation};

/// The unit of logs: 512 bytes, whatever the vdevs' ashifts are.
const LOG_SHIFT: u32 = 9;

/// One txg's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Its object.
    pub object: ObjectId,
    /// Blocks that it takes; 0 while its txg syncs.
    pub blocks: u64,
    /// Metaslabs whose first unflushed txg this is.
    pub metaslabs: u64,
}

/// A row of the summary: some logs that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SummaryRow {
    /// The first txg of the row.
    pub(crate) first: Txg,
    /// The last.
    pub(crate) last: Txg,
    /// Logs in it.
    pub(crate) logs: u64,
    /// Metaslabs that were last flushed in it.
    pub(crate) metaslabs: u64,
    /// Of those, the ones with unflushed changes.
    pub(crate) dirty: u64,
    /// Blocks of its logs.
    pub(crate) blocks: u64,
}

/// A log found at import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundLog {
    /// Its txg.
    pub txg: Txg,
    /// Its object.
    pub object: ObjectId,
    /// Its length, as its header says.
    pub length_bytes: u64,
    /// The size of its blocks.
    pub block_size_bytes: u64,
}

/// The logs of a pool.
#[derive(Clone, Debug, Default)]
pub struct LogSpace {
    logs: BTreeMap<Txg, Log>,
    /// Metaslabs with a first unflushed txg, by it; whether they have unflushed changes.
    by_flushed: BTreeMap<(Txg, MetaslabId), bool>,
    summary: VecDeque<SummaryRow>,
    blocks: u64,
    block_limit: u64,
    memory_bytes: u64,
    dirty: u64,
    /// Logs freed since [`Self::take_retired`] was last called.
    retired: u64,
    /// The log of the txg that syncs.
    current: Option<(Txg, SpaceMap)>,
}

impl LogSpace {
    /// No logs yet.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The logs of a pool that was opened: those found, and of each metaslab with an unflushed txg that txg and whether
    /// the logs had anything for it. `memory_bytes` is what the unflushed changes take.
    #[must_use]
    pub(crate) fn open_pool(
        found: &[FoundLog],
        metaslabs: impl Iterator<Item = (MetaslabId, Txg, bool)>,
        memory_bytes: u64,
        tunables: &Tunables,
    ) -> Self {
        let mut all = Self { memory_bytes, ..Self::default() };
        let mut pending: BTreeSet<(Txg, MetaslabId, bool)> =
            metaslabs.filter(|(_, txg, _)| *txg != Txg(0)).map(|(id, txg, dirty)| (txg, id, dirty)).collect();
        let mut sorted = found.to_vec();
        sorted.sort_by_key(|log| log.txg);
        all.block_limit = tunables.zfs_unflushed_log_block_min;
        for log in &sorted {
            let blocks = log.length_bytes.div_ceil(log.block_size_bytes.max(1));
            all.logs.insert(log.txg, Log { object: log.object, blocks, metaslabs: 0 });
            all.blocks += blocks;
            // A metaslab whose unflushed txg lies between two logs counts with the later log. After the last log nothing can be
            // unflushed: such a metaslab enters when it next changes.
            let mut here = Vec::new();
            while let Some(next) = pending.first().copied().filter(|(txg, ..)| *txg <= log.txg) {
                pending.remove(&next);
                here.push(next);
            }
            let dirty = here.iter().filter(|(.., dirty)| *dirty).count() as u64;
            all.add_to_summary(log.txg, here.len() as u64, dirty, blocks, tunables);
            all.dirty += dirty;
            for (txg, id, dirty) in here {
                all.by_flushed.insert((txg, id), dirty);
                if let Some(log) = all.log_of(txg) {
                    log.metaslabs += 1;
                }
            }
        }
        all.set_block_limit(tunables);
        all
    }

    /// The logs.
    pub fn logs(&self) -> impl Iterator<Item = (Txg, Log)> + '_ {
        self.logs.iter().map(|(txg, log)| (*txg, *log))
    }

    /// Blocks of all logs but the one being written.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How many there should be at most.
    #[must_use]
    pub const fn block_limit(&self) -> u64 {
        self.block_limit
    }

    /// Memory of unflushed changes.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// The log that has the metaslabs last flushed at `txg`: that txg's, or the first after it.
    fn log_of(&mut self, txg: Txg) -> Option<&mut Log> {
        self.logs.range_mut(txg..).next().map(|(_, log)| log)
    }

    fn row_of(&mut self, txg: Txg) -> Option<&mut SummaryRow> {
        self.summary.iter_mut().find(|row| txg <= row.last)
    }

    fn row_is_full(&self, row: &SummaryRow, txg: Txg, tunables: &Tunables) -> bool {
        let rows = tunables.zfs_max_logsm_summary_length.max(1);
        row.last != txg
            && (row.logs >= tunables.zfs_unflushed_log_txg_max.div_ceil(rows)
                || row.blocks >= self.block_limit.div_ceil(rows).max(1))
    }

    fn add_to_summary(&mut self, txg: Txg, metaslabs: u64, dirty: u64, blocks: u64, tunables: &Tunables) {
        if self.summary.back().is_none_or(|row| self.row_is_full(row, txg, tunables)) {
            self.summary.push_back(SummaryRow { first: txg, last: txg, logs: 1, metaslabs: 0, dirty: 0, blocks: 0 });
        }
        let Some(row) = self.summary.back_mut() else { return };
        if row.last < txg {
            row.last = txg;
            row.logs += 1;
        }
        row.metaslabs += metaslabs;
        row.dirty += dirty;
        row.blocks += blocks;
    }

    /// Makes the log of the txg that syncs, unless there is one.
    pub(crate) fn open(&mut self, txg: Txg, store: &mut dyn SpaceStore, tunables: &Tunables) -> Result<(), SpaceError> {
        if self.current.as_ref().is_some_and(|(current, _)| *current == txg) {
            return Ok(());
        }
        let map = SpaceMap::create(store, tunables.zfs_log_sm_blksz, 0, LOG_SHIFT)?;
        store.set_log(txg, Some(map.object)).map_err(SpaceError::store(map.object, "enter the log space map"))?;
        self.logs.insert(txg, Log { object: map.object, blocks: 0, metaslabs: 0 });
        self.current = Some((txg, map));
        self.set_block_limit(tunables);
        self.add_to_summary(txg, 0, 0, 0, tunables);
        Ok(())
    }

    /// Appends to the open log: so many bytes.
    pub(crate) fn append(
        &mut self,
        store: &mut dyn SpaceStore,
        batch: Batch,
        kind: SpaceMapType,
        vdev: VdevId,
        ranges: impl Iterator<Item = Range<u64>>,
    ) -> Result<u64, SpaceError> {
        match &mut self.current {
            Some((_, map)) => {
                let before = map.length_bytes;
                map.append(store, Batch { two_words: true, ..batch }, kind, Some(vdev), ranges)?;
                Ok(map.length_bytes - before)
            }
            None => Err(SpaceError::NoLog),
        }
    }

    /// Moves a metaslab from its first unflushed txg (0 if it had none) to the open log's.
    pub(crate) fn enter(
        &mut self,
        id: MetaslabId,
        from: Txg,
        was_dirty: bool,
        is_dirty: bool,
    ) -> Result<(), SpaceError> {
        let Some((txg, _)) = self.current else {
            return Err(SpaceError::Figures { metaslab: id, fault: MetaslabFault::NoLog });
        };
        if self.by_flushed.remove(&(from, id)).is_some() {
            if let Some(log) = self.log_of(from) {
                log.metaslabs -= 1;
            }
            if let Some(row) = self.row_of(from) {
                row.metaslabs -= 1;
                row.dirty -= u64::from(was_dirty);
            }
            self.dirty -= u64::from(was_dirty);
        }
        self.by_flushed.insert((txg, id), is_dirty);
        if let Some(log) = self.logs.get_mut(&txg) {
            log.metaslabs += 1;
        }
        // The open log is in the last row.
        if let Some(row) = self.summary.back_mut() {
            row.metaslabs += 1;
            row.dirty += u64::from(is_dirty);
        }
        self.dirty += u64::from(is_dirty);
        Ok(())
    }

    /// A metaslab that goes with its vdev.
    pub(crate) fn forget(&mut self, id: MetaslabId, from: Txg) {
        let Some(was_dirty) = self.by_flushed.remove(&(from, id)) else { return };
        if let Some(log) = self.log_of(from) {
            log.metaslabs -= 1;
        }
        if let Some(row) = self.row_of(from) {
            row.metaslabs -= 1;
            row.dirty -= u64::from(was_dirty);
        }
        self.dirty -= u64::from(was_dirty);
    }

    /// Adjusts the memory of unflushed changes: those of a metaslab took `before` bytes and take `now`.
    pub(crate) fn account_memory(&mut self, before: u64, now: u64) {
        debug_assert!(before <= self.memory_bytes + now, "memory that is given back was counted");
        self.memory_bytes = (self.memory_bytes + now).saturating_sub(before);
    }

    /// Frees the logs that no metaslab needs any more.
    pub(crate) fn retire(&mut self, store: &mut dyn SpaceStore) -> Result<(), SpaceError> {
        let needed = self.by_flushed.first_key_value().map(|((txg, _), _)| *txg);
        let current = self.current.as_ref().map(|(txg, _)| *txg);
        while let Some((txg, log)) = self.logs.first_key_value().map(|(txg, log)| (*txg, *log)) {
            if Some(txg) == current || needed.is_some_and(|needed| needed <= txg) {
                break;
            }
            debug_assert_eq!(log.metaslabs, 0, "a log that goes is no metaslab's (invariant 6)");
            store.free(log.object).map_err(SpaceError::store(log.object, "free the log space map"))?;
            store.set_log(txg, None).map_err(SpaceError::store(log.object, "take the log space map out"))?;
            self.logs.remove(&txg);
            self.retired += 1;
            self.blocks -= log.blocks;
            if let Some(row) = self.row_of(txg) {
                row.blocks -= log.blocks;
                row.logs -= 1;
            }
            while self.summary.front().is_some_and(|row| row.logs == 0 && row.metaslabs == 0) {
                self.summary.pop_front();
            }
        }
        Ok(())
    }

    /// Logs freed since this was last asked.
    pub(crate) fn take_retired(&mut self) -> u64 {
        std::mem::take(&mut self.retired)
    }

    /// Ends the txg's log.
    pub(crate) fn close(&mut self, store: &mut dyn SpaceStore, tunables: &Tunables) -> Result<(), SpaceError> {
        let Some((txg, map)) = self.current.take() else { return Ok(()) };
        map.put_header(store)?;
        let blocks = map.blocks();
        let log = self.logs.get_mut(&txg);
        assert!(log.is_some(), "the log of the txg that syncs is kept (invariant 6)");
        if let Some(log) = log {
            log.blocks = blocks;
        }
        self.blocks += blocks;
        self.add_to_summary(txg, 0, 0, blocks, tunables);
        Ok(())
    }

    /// Writes the open log's header as it is now: every pass, since the txg may end with it.
    pub(crate) fn put_header(&self, store: &mut dyn SpaceStore) -> Result<(), SpaceError> {
        self.current.as_ref().map_or(Ok(()), |(_, map)| map.put_header(store))
    }

    /// Sets how many blocks there may be, by the number of dirty metaslabs.
    pub(crate) fn set_block_limit(&mut self, tunables: &Tunables) {
        let wanted = self.dirty.saturating_mul(tunables.zfs_unflushed_log_block_pct) / 100;
        self.block_limit = wanted.max(tunables.zfs_unflushed_log_block_min).min(tunables.zfs_unflushed_log_block_max);
    }

    /// Blocks that a txg adds, by the last few.
    fn incoming_blocks(&self, tunables: &Tunables) -> u64 {
        let current = self.current.as_ref().map(|(txg, _)| *txg);
        let recent = self.logs.iter().rev().filter(|(txg, _)| Some(**txg) != current);
        let (mut sum, mut count) = (0_u64, 0);
        for (_, log) in recent.take(usize::try_from(tunables.zfs_max_log_walking).unwrap_or(usize::MAX)) {
            sum += log.blocks;
            count += 1;
        }
        sum.checked_div(count).map_or(0, |_| sum.div_ceil(count))
    }

    /// How many dirty metaslabs to flush in this txg so that neither blocks nor logs will pass their limits.
    #[must_use]
    pub(crate) fn flushes_wanted(&self, tunables: &Tunables) -> u64 {
        let incoming = i128::from(self.incoming_blocks(tunables));
        let mut blocks_left = i128::from(self.block_limit) - i128::from(self.blocks) - incoming;
        let logs: u64 = self.summary.iter().map(|row| row.logs).sum();
        let mut logs_left = i128::from(tunables.zfs_unflushed_log_txg_max) - i128::from(logs);
        let (mut txgs, mut flushes, mut most) = (1_i128, 0_i128, i128::from(tunables.zfs_min_metaslabs_to_flush));
        for row in &self.summary {
            // Txgs until a limit is passed.
            if blocks_left >= 0 && logs_left >= 0 {
                let by_blocks = if incoming == 0 { i128::MAX } else { blocks_left / incoming + 1 };
                let skipped = by_blocks.min(logs_left + 1);
                blocks_left -= skipped * incoming;
                logs_left -= skipped;
                txgs += skipped;
            }
            // By then this row has to be gone, which gives room again.
            blocks_left += i128::from(row.blocks);
            logs_left += i128::from(row.logs);
            flushes += i128::from(row.dirty);
            most = most.max((flushes + txgs - 1) / txgs);
        }
        u64::try_from(most).unwrap_or(u64::MAX)
    }

    /// Whether unflushed changes take too much memory, so that metaslabs are flushed beyond the plan.
    #[must_use]
    pub(crate) const fn exceeds_memory(&self, tunables: &Tunables) -> bool {
        self.memory_bytes > tunables.unflushed_memory_bytes_max()
    }

    /// The metaslab flushed longest ago, its first unflushed txg, and whether it has unflushed changes.
    #[must_use]
    pub(crate) fn oldest(&self) -> Option<(MetaslabId, Txg, bool)> {
        self.oldest_after(None)
    }

    /// The next one behind `after` in that order.
    pub(crate) fn oldest_after(&self, after: Option<(Txg, MetaslabId)>) -> Option<(MetaslabId, Txg, bool)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_flushed.range((from, Bound::Unbounded)).next().map(|((txg, id), dirty)| (*id, *txg, *dirty))
    }

    /// Metaslabs with unflushed changes, in the order in which they are flushed.
    pub(crate) fn dirty_in_order(&self) -> impl Iterator<Item = MetaslabId> {
        self.by_flushed.iter().filter(|(_, is_dirty)| **is_dirty).map(|((_, id), _)| *id)
    }

    /// Checks that logs, summary and metaslabs agree.
    ///
    /// # Errors
    /// The first figures that disagree.
    pub(crate) fn verify(&self) -> Result<(), Violation> {
        let blocks: u64 = self.logs.values().map(|log| log.blocks).sum();
        let of_logs: u64 = self.logs.values().map(|log| log.metaslabs).sum();
        let rows = |of: fn(&SummaryRow) -> u64| self.summary.iter().map(of).sum::<u64>();
        let dirty = self.by_flushed.values().filter(|dirty| **dirty).count() as u64;
        let figures = [
            (LogFigure::Blocks, blocks, self.blocks),
            (LogFigure::SummaryBlocks, rows(|row| row.blocks), self.blocks),
            (LogFigure::Metaslabs, of_logs, self.by_flushed.len() as u64),
            (LogFigure::SummaryMetaslabs, rows(|row| row.metaslabs), self.by_flushed.len() as u64),
            (LogFigure::Dirty, dirty, self.dirty),
            (LogFigure::SummaryDirty, rows(|row| row.dirty), self.dirty),
            (LogFigure::SummaryLogs, rows(|row| row.logs), self.logs.len() as u64),
        ];
        match figures.iter().find(|(_, found, expected)| found != expected) {
            Some((figure, found, expected)) => {
                Err(Violation::Logs { figure: *figure, found: *found, expected: *expected })
            }
            None => Ok(()),
        }
    }
}
