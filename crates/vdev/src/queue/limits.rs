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

    /// Whether a client waits for it, or soon will.
    #[must_use]
    pub(super) const fn is_clients(self) -> bool {
        matches!(self, Self::SyncRead | Self::SyncWrite | Self::AsyncRead)
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

/// Bytes of one request of bulk to a solid-state device that clients use: 30 us on the interface of a SATA disk, where a client's read of
/// 16 KiB takes 120.
pub(super) const PIECE_BYTES: u64 = 16 << 10;
/// One byte of bulk beside so many of others, where that is more than a piece: a client who waits behind these waits an eighth longer.
const OTHERS_PART: u64 = 8;
/// Bytes that a solid-state device has of bulk alone, beyond which it gets no more than one request: a client may come. 2 GB/s where each takes 1 ms.
const SOLID_BULK_BYTES: u64 = 2 << 20;
/// Clients have left a solid-state device after so many times more requests than its limits are larger: 5 MiB in pieces, or 37 ms of a SATA
/// disk. A mirror has its readers go to the leg that is less busy, so the busy one sees few of them.
const SOLID_QUIET_TIMES: u64 = 4;

/// Limits on the requests that one device is given at once, and on their aggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// It has a head: order counts.
    pub(super) rotational: bool,
    pub(super) min: [u32; CLASSES],
    pub(super) max: [u32; CLASSES],
    /// Of all classes together.
    pub(super) all_max: u32,
    /// How many requests of bulk are done, while the device has no others (a solid-state device: none of clients), before bulk gets more.
    pub(super) bulk_delay: u32,
    /// How many requests of bulk a solid-state device that clients use has at least.
    pub(super) bulk_beside_clients: u32,
    /// The bytes that the device has at once, of bulk alone, beyond which bulk gets one request only.
    pub(super) bulk_bytes_max: u64,
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
            bulk_delay: small(match rotational {
                true => tunables.zfs_vdev_nia_delay,
                false => tunables.zfs_vdev_nia_delay.saturating_mul(times).saturating_mul(SOLID_QUIET_TIMES),
            }),
            bulk_beside_clients: small(tunables.zfs_vdev_scrub_min_active).max(1),
            bulk_bytes_max: if rotational { u64::MAX } else { SOLID_BULK_BYTES },
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

    /// How many requests of bulk a solid-state device has beside its clients, and `others_bytes` that are not bulk.
    pub(super) fn beside_clients(&self, others_bytes: u64) -> u32 {
        let pieces = u32::try_from(others_bytes / OTHERS_PART / PIECE_BYTES).unwrap_or(u32::MAX);
        pieces.min(self.max[QueueClass::Scrub.index()]).max(self.bulk_beside_clients)
    }

    /// The same limits, where no more than this is asked for at once for several.
    pub(super) fn aggregating(self, most_bytes: u64) -> Self {
        Self { aggregation_bytes: self.aggregation_bytes.min(most_bytes), ..self }
    }
}
