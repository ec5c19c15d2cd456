//! Classes of requests, and how many of each a device is given at once.

use crate::tunables::Tunables;

/// What a request is for, the most urgent first.
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
    pub const ALL: [Self; 5] = [Self::SyncRead, Self::SyncWrite, Self::AsyncRead, Self::AsyncWrite, Self::Scrub];

    /// Whether nobody in particular waits for it, so that it must not be in anyone's way.
    #[must_use]
    pub const fn is_bulk(self) -> bool {
        matches!(self, Self::Scrub)
    }

    /// The word in the names of its tunables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::SyncRead => "sync_read",
            Self::SyncWrite => "sync_write",
            Self::AsyncRead => "async_read",
            Self::AsyncWrite => "async_write",
            Self::Scrub => "scrub",
        }
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// How many classes there are.
pub(super) const CLASSES: usize = QueueClass::ALL.len();

/// What one device is given at once, and how requests to it are brought together.
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
        let number = |name: &str| tunables.number(name);
        let times = if rotational { 1 } else { number("zfs_vdev_solid_active_times") };
        let active = |class: QueueClass, end: &str| {
            let active = number(&format!("zfs_vdev_{}_{end}_active", class.word()));
            u32::try_from(active.saturating_mul(times)).unwrap_or(u32::MAX)
        };
        let min = QueueClass::ALL.map(|class| active(class, "min"));
        let max = QueueClass::ALL.map(|class| active(class, "max"));
        let aggregation =
            if rotational { "zfs_vdev_aggregation_limit" } else { "zfs_vdev_aggregation_limit_non_rotating" };
        Self {
            rotational,
            min,
            // A minimum above the maximum is a maximum.
            max: std::array::from_fn(|index| max[index].max(min[index])),
            all_max: u32::try_from(number("zfs_vdev_max_active")).unwrap_or(u32::MAX),
            bulk_delay: u32::try_from(number("zfs_vdev_nia_delay")).unwrap_or(u32::MAX),
            aggregation_bytes: number(aggregation),
            read_gap_bytes: number("zfs_vdev_read_gap_limit"),
            expire_ns: number("zfs_vdev_queue_expire_ms") * 1_000_000,
            run_bytes: number("zfs_vdev_read_run_limit"),
            pull_active: u32::try_from(number("zfs_vdev_mirror_pull_active")).unwrap_or(u32::MAX),
        }
    }
}
