//! Tunables, under OpenZFS's names and with its defaults.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

cenote_kstat::tunables! {
    /// The pace of txgs.
    #[derive(Copy)]
    pub struct TxTunables {
        /// Time for which a txg stays open at most.
        zfs_txg_timeout: u64 = 5, "s", Number(1, 86_400), AtOpen;
        /// Data that may be dirty: changed in memory, and not on disk. With so much changes wait.
        zfs_dirty_data_max: u64 = DIRTY_MAX_BYTES, "bytes", Number(1 << 20, 1 << 50), AtOpen,
            computed "a tenth of memory, from 32 MiB to 4 GiB";
        /// Percentage of zfs_dirty_data_max from which on a txg is written at once.
        zfs_dirty_data_sync_percent: u64 = 20, "%", Number(1, 100), AtOpen;
        /// Percentage of zfs_dirty_data_max from which on changes are delayed.
        zfs_delay_min_dirty_percent: u64 = 60, "%", Number(0, 100), AtOpen;
        /// Delay of a change in the middle between that and zfs_dirty_data_max.
        zfs_delay_scale: u64 = 500_000, "ns", Number(0, 1_000_000_000), AtOpen;
        /// Longest delay of one change.
        zfs_delay_max_ns: u64 = 100_000_000, "ns", Number(0, 10_000_000_000), AtOpen;
        /// Bytes of writes that intent logs may have to copy before their txgs are on disk; a range that is overwritten counts each time.
        /// Towards it changes are delayed, and a txg is written long before. 0: twice zfs_dirty_data_max.
        zfs_wrlog_data_max: u64 = 0, "bytes", Number(0, 1 << 50), AtOpen;
    }
}

/// Those in force: read by every change, set now and then.
#[derive(Debug)]
pub(super) struct InForce([AtomicU64; 7]);

impl InForce {
    pub(super) fn new(tunables: TxTunables) -> Self {
        let this = Self(Default::default());
        this.set(tunables);
        this
    }

    pub(super) fn set(&self, tunables: TxTunables) {
        for (held, value) in self.0.iter().zip(tunables.words()) {
            held.store(value, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self) -> TxTunables {
        let [timeout, dirty_max, sync_percent, delay_percent, delay_scale, delay_max, wrlog_max] = &self.0;
        let get = |held: &AtomicU64| held.load(Ordering::Relaxed);
        TxTunables {
            zfs_txg_timeout: get(timeout),
            zfs_dirty_data_max: get(dirty_max),
            zfs_dirty_data_sync_percent: get(sync_percent),
            zfs_delay_min_dirty_percent: get(delay_percent),
            zfs_delay_scale: get(delay_scale),
            zfs_delay_max_ns: get(delay_max),
            zfs_wrlog_data_max: get(wrlog_max),
        }
    }
}

/// The most that may be dirty by default, whatever the memory (`zfs_dirty_data_max_max`).
const DIRTY_MAX_BYTES: u64 = 4 << 30;
/// A hundred years.
const BY_HAND_TIMEOUT_S: u64 = 100 * 365 * 24 * 3600;
/// More than any memory, and little enough to be reckoned with.
const BY_HAND_DIRTY_BYTES: u64 = 1 << 56;
/// The least.
const DIRTY_MIN_BYTES: u64 = 32 << 20;

impl TxTunables {
    /// The defaults on a machine with so much memory to use.
    #[must_use]
    pub fn for_memory(memory_bytes: u64) -> Self {
        let zfs_dirty_data_max = (memory_bytes / 10).clamp(DIRTY_MIN_BYTES, DIRTY_MAX_BYTES);
        Self { zfs_dirty_data_max, ..Self::default() }
    }

    /// For a pool whose txgs are written when its owner says so: no time and no amount of dirty data has one written.
    #[must_use]
    pub fn by_hand() -> Self {
        Self { zfs_txg_timeout: BY_HAND_TIMEOUT_S, zfs_dirty_data_max: BY_HAND_DIRTY_BYTES, ..Self::for_memory(0) }
    }

    const fn words(&self) -> [u64; 7] {
        [
            self.zfs_txg_timeout,
            self.zfs_dirty_data_max,
            self.zfs_dirty_data_sync_percent,
            self.zfs_delay_min_dirty_percent,
            self.zfs_delay_scale,
            self.zfs_delay_max_ns,
            self.zfs_wrlog_data_max,
        ]
    }

    pub(super) const fn timeout(&self) -> Duration {
        Duration::from_secs(self.zfs_txg_timeout)
    }

    pub(super) const fn sync_bytes(&self) -> u64 {
        percent(self.zfs_dirty_data_max, self.zfs_dirty_data_sync_percent)
    }

    const fn wrlog_max_bytes(&self) -> u64 {
        match self.zfs_wrlog_data_max {
            0 => self.zfs_dirty_data_max.saturating_mul(2),
            bytes => bytes,
        }
    }

    /// A txg is written when logs may have to copy so many bytes of it: a little later than for dirty data, as in OpenZFS.
    pub(super) const fn wrlog_sync_bytes(&self) -> u64 {
        percent(self.wrlog_max_bytes(), (self.zfs_dirty_data_sync_percent + 10) / 2)
    }

    /// How long a change waits when logs may have to copy so many bytes.
    pub(super) fn wrlog_delay(&self, bytes: u64) -> Duration {
        self.delay_towards(bytes, self.wrlog_max_bytes())
    }

    /// How long a change waits when so many bytes are dirty: nothing below the first threshold, more without bound towards
    /// the limit.
    pub(super) fn delay(&self, dirty_bytes: u64) -> Duration {
        self.delay_towards(dirty_bytes, self.zfs_dirty_data_max)
    }

    fn delay_towards(&self, bytes: u64, max_bytes: u64) -> Duration {
        let least = percent(max_bytes, self.zfs_delay_min_dirty_percent);
        let over = bytes.saturating_sub(least);
        if over == 0 {
            return Duration::ZERO;
        }
        let left = max_bytes.saturating_sub(bytes).max(1);
        let delay_ns = u128::from(self.zfs_delay_scale) * u128::from(over) / u128::from(left);
        Duration::from_nanos(u64::try_from(delay_ns).unwrap_or(u64::MAX))
            .min(Duration::from_nanos(self.zfs_delay_max_ns))
    }
}

const fn percent(of: u64, percent: u64) -> u64 {
    (of as u128 * percent as u128 / 100) as u64
}

#[cfg(test)]
mod tests {
    use cenote_kstat::Settings;

    use super::*;

    #[test]
    fn the_delay_grows_without_a_jump() {
        let tunables = TxTunables { zfs_dirty_data_max: 1000, ..TxTunables::default() };
        assert_eq!(tunables.delay(600), Duration::ZERO);
        assert_eq!(tunables.delay(800), Duration::from_nanos(500_000));
        assert!(tunables.delay(601) < Duration::from_nanos(2_000));
        assert_eq!(tunables.delay(1000), Duration::from_millis(100));
        let delays: Vec<_> = (0..=1000).map(|dirty| tunables.delay(dirty)).collect();
        assert!(delays.is_sorted());
        let logged = TxTunables { zfs_wrlog_data_max: 500, ..tunables };
        assert_eq!(tunables.wrlog_delay(1600), tunables.delay(800), "twice as much by default");
        assert_eq!(logged.wrlog_delay(400), tunables.delay(800));
        assert_eq!((tunables.wrlog_sync_bytes(), logged.wrlog_sync_bytes()), (300, 75));
    }

    #[test]
    fn a_value_that_was_given_wins_over_the_computed_one() {
        let mut settings = Settings::of(&[TxTunables::TABLE]);
        let computed = TxTunables::for_memory(1 << 30);
        assert_eq!(computed.zfs_dirty_data_max, (1 << 30) / 10);
        assert_eq!(TxTunables::for_memory(1 << 40), TxTunables::default());
        settings.set_from("zfs_txg_timeout=1s").unwrap();
        let tuned = computed.with(&settings);
        assert_eq!(tuned, TxTunables { zfs_txg_timeout: 1, ..computed });
        settings.set_from("zfs_dirty_data_max=64M").unwrap();
        assert_eq!(computed.with(&settings), TxTunables { zfs_dirty_data_max: 64 << 20, ..tuned });
    }
}
