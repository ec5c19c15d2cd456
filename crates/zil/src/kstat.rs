//! The work of logs in numbers, under the names of OpenZFS's `zil` and `objset-0x...`.

use cenote_kstat::{Counters, Sheet};

/// The events that are counted, in the order of [`NAMES`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A client waits for changes to be stable (`zil_commit_count`).
    Commit,
    /// One of these clients filled blocks, for all that waited then (`zil_commit_writer_count`).
    Writer,
    /// It had to wait for a txg: the log could not have what was changed.
    Error,
    /// Changes became records.
    Itx,
    /// Of those, writes with the data that the client gave, and their bytes.
    Copied,
    CopiedBytes,
    /// Of those, writes whose data was read when the record was made, and their bytes.
    NeedCopy,
    NeedCopyBytes,
    /// Of those, writes whose records point to their blocks, and their bytes.
    Indirect,
    IndirectBytes,
    /// Blocks that were written to the pool's normal and special vdevs: how many, the bytes of their records, of the writes, and of their
    /// places.
    Normal,
    NormalBytes,
    NormalWrite,
    NormalAlloc,
    /// The same on log devices.
    Slog,
    SlogBytes,
    SlogWrite,
    SlogAlloc,
    /// Flushes of the devices.
    Flush,
    /// Blocks that were stable with their write, without a flush.
    Stable,
}

const EVENTS: usize = 20;

const NAMES: [&str; EVENTS] = [
    "zil_commit_count",
    "zil_commit_writer_count",
    "zil_commit_error_count",
    "zil_itx_count",
    "zil_itx_copied_count",
    "zil_itx_copied_bytes",
    "zil_itx_needcopy_count",
    "zil_itx_needcopy_bytes",
    "zil_itx_indirect_count",
    "zil_itx_indirect_bytes",
    "zil_itx_metaslab_normal_count",
    "zil_itx_metaslab_normal_bytes",
    "zil_itx_metaslab_normal_write",
    "zil_itx_metaslab_normal_alloc",
    "zil_itx_metaslab_slog_count",
    "zil_itx_metaslab_slog_bytes",
    "zil_itx_metaslab_slog_write",
    "zil_itx_metaslab_slog_alloc",
    "zil_flush_count",
    "zil_write_stable_count",
];

/// The form in which a write is logged (`itx_wr_state_t`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Logged {
    /// With the data that the client gave.
    Copied,
    /// With data that was read for it.
    NeedCopy,
    /// By reference.
    Indirect,
}

/// The counts of one log, or of all of a pool.
#[derive(Debug, Default)]
pub(crate) struct ZilCounts(Counters<EVENTS>);

/// A block that goes on its way, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockBytes {
    pub(crate) records: usize,
    pub(crate) written: usize,
    pub(crate) allocated: u64,
}

impl ZilCounts {
    pub(crate) fn count(&self, event: Event) {
        self.0.count(event as usize);
    }

    pub(crate) fn count_all(&self, event: Event, count: usize) {
        self.0.add([(event as usize, count as u64), (event as usize, 0)]);
    }

    /// A write became a record, with these bytes.
    pub(crate) fn write(&self, how: Logged, bytes: u64) {
        let (count, sum) = match how {
            Logged::Copied => (Event::Copied, Event::CopiedBytes),
            Logged::NeedCopy => (Event::NeedCopy, Event::NeedCopyBytes),
            Logged::Indirect => (Event::Indirect, Event::IndirectBytes),
        };
        self.0.add([(count as usize, 1), (sum as usize, bytes)]);
    }

    pub(crate) fn block(&self, is_slog: bool, bytes: BlockBytes) {
        let [count, records, written, allocated] = match is_slog {
            true => [Event::Slog, Event::SlogBytes, Event::SlogWrite, Event::SlogAlloc],
            false => [Event::Normal, Event::NormalBytes, Event::NormalWrite, Event::NormalAlloc],
        };
        self.0.add([(count as usize, 1), (records as usize, bytes.records as u64)]);
        self.0.add([(written as usize, bytes.written as u64), (allocated as usize, bytes.allocated)]);
    }

    pub(crate) fn kstat(&self, sheet: &mut Sheet) {
        NAMES.into_iter().zip(self.0.sums()).for_each(|(name, count)| sheet.count(name, count));
    }
}
