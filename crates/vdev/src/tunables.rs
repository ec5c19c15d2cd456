//! The tunables of devices. Names are OpenZFS's where it has the same thing.

cenote_kstat::words! {
    /// How a child of a mirror is chosen, the oldest policy first.
    pub enum Policy {
        /// By the place on the disk.
        Offset = "offset",
        /// The child with the fewest requests.
        Pending = "pending",
        /// The child whose head is near.
        Locality = "locality",
        /// The child whose answer is expected soonest.
        Adaptive = "adaptive",
    }
}

cenote_kstat::words! {
    /// The reaction to a device of a pool in use that hangs.
    pub enum HangMode {
        /// Wait for it, unless the pool can go on without it.
        Wait = "wait",
        /// The same.
        Continue = "continue",
        /// End the process.
        Panic = "panic",
    }
}

cenote_kstat::tunables! {
    /// The tunables of devices.
    pub struct Tunables {
        /// Time between two comparisons of the children of a raidz or draid, which find a child that is far slower than the others.
        vdev_raidz_outlier_check_interval_ms: u64 = 1000, "ms", Number(10, 600_000), AtOpen;
        /// A child of a raidz or draid sits out when it is this many times slower than the median of its siblings.
        vdev_raidz_outlier_times: u64 = 5, "times", Number(2, 1000), AtOpen;
        /// Time for which a slow child of a raidz or draid is not read, and its data is reconstructed instead; 0 for never.
        vdev_read_sit_out_secs: u64 = 600, "s", Number(0, 86_400), AtOpen;
        /// Notices a device of a pool in use that does not answer. Without it the writes of such a device are waited for without end.
        zfs_deadman_enabled: bool = true, "", Switch, AtOpen;
        /// When a device of a pool in use hangs: go on without it if that can be, else wait, or end the process. Nothing is ever sent
        /// again while it may still be done, so continue is the same as wait.
        zfs_deadman_failmode: HangMode = HangMode::Wait, "", Words(HangMode::WORDS), AtOpen;
        /// Time after which a read that was not answered has failed, and a device of a pool in use hangs.
        zfs_deadman_ziotime_ms: u64 = 300_000, "ms", Number(100, 86_400_000), AtOpen;
        /// Largest request into which neighbouring requests to a device with a head are brought together.
        zfs_vdev_aggregation_limit: u64 = 1 << 20, "bytes", Number(0, 16 << 20), AtOpen;
        /// Largest request into which neighbouring requests to a solid-state device are brought together.
        zfs_vdev_aggregation_limit_non_rotating: u64 = 128 << 10, "bytes", Number(0, 16 << 20), AtOpen;
        /// Most reads ahead that a device with a head is given at once.
        zfs_vdev_async_read_max_active: u64 = 3, "requests", Number(1, 100_000), AtOpen;
        /// Reads ahead that a device with a head is given before other classes get more than their minimum.
        zfs_vdev_async_read_min_active: u64 = 1, "requests", Number(1, 100_000), AtOpen;
        /// Most writes of txgs that a device with a head is given at once.
        zfs_vdev_async_write_max_active: u64 = 10, "requests", Number(1, 100_000), AtOpen;
        /// Writes of txgs that a device with a head is given before other classes get more than their minimum.
        zfs_vdev_async_write_min_active: u64 = 2, "requests", Number(1, 100_000), AtOpen;
        /// Most requests of all classes that a device is given at once.
        zfs_vdev_max_active: u64 = 1000, "requests", Number(1, 1_000_000), AtOpen;
        /// Time after which a child of a mirror that was avoided is given a single read, to see how it is doing.
        zfs_vdev_mirror_forget_ms: u64 = 2000, "ms", Number(10, 600_000), AtOpen;
        /// Least time after which a second child of a mirror is asked as well.
        zfs_vdev_mirror_hedge_min_us: u64 = 500, "us", Number(0, 60_000_000), AtOpen;
        /// Reads of a hundred that may be asked of a second child of a mirror as well; 0 for none.
        zfs_vdev_mirror_hedge_percent: u64 = 3, "%", Number(0, 100), AtOpen;
        /// Policy locality: the price of a read that follows the latest one on a solid-state child.
        zfs_vdev_mirror_non_rotating_inc: u64 = 0, "reads", Number(0, 1000), AtOpen;
        /// Policy locality: the price of a read elsewhere on a solid-state child.
        zfs_vdev_mirror_non_rotating_seek_inc: u64 = 1, "reads", Number(0, 1000), AtOpen;
        /// Choice of a child of a mirror. Policies other than adaptive are those of older versions of OpenZFS.
        zfs_vdev_mirror_policy: Policy = Policy::Adaptive, "", Words(Policy::WORDS), AtOpen;
        /// Policy adaptive: reads that any child could serve and that a child with a head is given at once. The others wait for all
        /// children.
        zfs_vdev_mirror_pull_active: u64 = 2, "requests", Number(1, 1000), AtOpen;
        /// Time after which a read that was not answered is reported, and asked of another child that could serve it.
        zfs_vdev_mirror_reroute_ms: u64 = 3000, "ms", Number(1, 86_400_000), AtOpen;
        /// Policy locality: the price of a read that follows the latest one on a rotating child.
        zfs_vdev_mirror_rotating_inc: u64 = 0, "reads", Number(0, 1000), AtOpen;
        /// Policy locality: the price of a read elsewhere on a rotating child; within the seek offset half of it.
        zfs_vdev_mirror_rotating_seek_inc: u64 = 5, "reads", Number(0, 1000), AtOpen;
        /// Policy locality: the distance from the latest read that counts as near.
        zfs_vdev_mirror_rotating_seek_offset: u64 = 1 << 20, "bytes", Number(0, 1 << 40), AtOpen;
        /// Policy pending: time for which one of several equally busy children is preferred.
        zfs_vdev_mirror_switch_us: u64 = 10_000, "us", Number(1, 10_000_000), AtOpen;
        /// Requests of a scrub that are done, while a device has no others, before it is given more of them than their minimum.
        zfs_vdev_nia_delay: u64 = 5, "requests", Number(0, 1_000_000), AtOpen;
        /// Time for which a request to a device with a head may be passed over for others that are on the way.
        zfs_vdev_queue_expire_ms: u64 = 500, "ms", Number(1, 600_000), AtOpen;
        /// Most bytes between two reads that are read along to bring them together.
        zfs_vdev_read_gap_limit: u64 = 32 << 10, "bytes", Number(0, 16 << 20), AtOpen;
        /// Part of a run of neighbours that a device with a head reads before more urgent requests elsewhere.
        zfs_vdev_read_run_limit: u64 = 16 << 20, "bytes", Number(0, 1 << 30), AtOpen;
        /// Most reads of verification that a device with a head is given at once.
        zfs_vdev_scrub_max_active: u64 = 3, "requests", Number(1, 100_000), AtOpen;
        /// Reads of verification that a device with a head is given before other classes get more than their minimum, and requests of 16 KiB that one without is given beside clients.
        zfs_vdev_scrub_min_active: u64 = 1, "requests", Number(1, 100_000), AtOpen;
        /// A solid-state device is given this many times more requests of every class at once.
        zfs_vdev_solid_active_times: u64 = 16, "times", Number(1, 1000), AtOpen;
        /// Most reads with somebody waiting that a device with a head is given at once.
        zfs_vdev_sync_read_max_active: u64 = 10, "requests", Number(1, 100_000), AtOpen;
        /// Reads with somebody waiting that a device with a head is given before other classes get more than their minimum.
        zfs_vdev_sync_read_min_active: u64 = 10, "requests", Number(1, 100_000), AtOpen;
        /// Most writes with somebody waiting that a device with a head is given at once.
        zfs_vdev_sync_write_max_active: u64 = 10, "requests", Number(1, 100_000), AtOpen;
        /// Writes with somebody waiting that a device with a head is given before other classes get more than their minimum.
        zfs_vdev_sync_write_min_active: u64 = 10, "requests", Number(1, 100_000), AtOpen;
        /// Time after which a request that was answered counts as a slow I/O of its device, and is an event (`ereport.fs.zfs.delay`).
        zio_slow_io_ms: u64 = 30_000, "ms", Number(1, 86_400_000), AtOpen;
    }
}
