//! Classes of requests, and how many of each a device is given at once.

use crate::iostat;
use crate::tunables::Tunables;

/// The priority class of a request, the most urgent first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QueueClass {
    /// Someone waits for these bytes.
    #[default]
    SyncRead = 0,
    /// Someone waits until these bytes are written.
    SyncWrite = 1,
    /// Read ahead: someone may want it.
    AsyncRead = 2,
    /// A txg's blocks.
    AsyncWrite = 3,
    /// Verification of everything.
    Scrub = 4,
}

impl QueueClass {
    /// All of them, the most urgent first.
    pub(crate) const ALL: [Self; 5] = [Self::SyncRead, Self::SyncWrite, Self::AsyncRead, Self::AsyncWrite, Self::Scrub];

    /// Whether it is background I/O without a waiter, which must not delay other requests.
    #[must_use]
    pub(crate) const fn is_bulk(self) -> bool {
        matches!(self, Self::Scrub)
    }

    /// How many of it a device with a head is given: at least, where there are others, and at most.
    const fn active(self, tunables: &Tunables) -> (u64, u64) {
        let of = tunables;
        match self {
            Self::SyncRead => (of.zfs_vdev_sync_read_min_active, of.zfs_vdev_sync_read_max_active),
            Self::SyncWrite => (of.zfs_vdev_sync_write_min_active, of.zfs_vdev_sync_write_max_active),
            Self::AsyncRead => (of.zfs_vdev_async_read_min_active, of.zfs_vdev_async_read_max_active),
            Self::AsyncWrite => (of.zfs_vdev_async_write_min_active, of.zfs_vdev_async_write_max_active),
            Self::Scrub => (of.zfs_vdev_scrub_min_active, of.zfs_vdev_scrub_max_active),
        }
    }

    /// Its place among all.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// How many classes there are.
pub(super) const CLASSES: usize = iostat::CLASSES;
const _: () = assert!(CLASSES == QueueClass::ALL.len(), "each class has its histogram of times");

/// Limits on the requests that one device is given at once, and on their aggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// It has a head: order counts.
    pub(super) rotational: bool,
    pub(super) min: [u32; CLASSES],
    pub(super) max: [u32; CLASSES],
    /// Of all classes together.
    pub(super) all_max: u32,
    /// How many requests of bulk are done, while the device has no others, before bulk gets more than its minimum.
    pub(super) bulk_delay: u32,
    /// The most bytes that are asked for at once for several.
    pub(super) aggregation_bytes: u64,
    /// The most bytes between two reads that are read along.
    pub(super) read_gap_bytes: u64,
    pub(super) expire_ns: u64,
    /// How much of a run of neighbours is read before what is more urgent elsewhere.
    pub(super) run_bytes: u64,
    /// How many of the reads that any child of a mirror may serve it is given at once, if it has a head.
    pub(super) pull_active: u32,
}

impl Limits {
    /// For a device, by the `zfs_vdev_…` tunables.
    pub(crate) fn new(tunables: &Tunables, rotational: bool) -> Self {
        let times = if rotational { 1 } else { tunables.zfs_vdev_solid_active_times };
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let min = QueueClass::ALL.map(|class| small(class.active(tunables).0.saturating_mul(times)));
        let max = QueueClass::ALL.map(|class| small(class.active(tunables).1.saturating_mul(times)));
        Self {
            rotational,
            min,
            // A minimum above the maximum is a maximum.
            max: std::array::from_fn(|index| max[index].max(min[index])),
            all_max: small(tunables.zfs_vdev_max_active),
            bulk_delay: small(tunables.zfs_vdev_nia_delay),
            aggregation_bytes: match rotational {
                true => tunables.zfs_vdev_aggregation_limit,
                false => tunables.zfs_vdev_aggregation_limit_non_rotating,
            },
            read_gap_bytes: tunables.zfs_vdev_read_gap_limit,
            expire_ns: tunables.zfs_vdev_queue_expire_ms * 1_000_000,
            run_bytes: tunables.zfs_vdev_read_run_limit,
            pull_active: small(tunables.zfs_vdev_mirror_pull_active),
        }
    }
}
