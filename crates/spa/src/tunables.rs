//! The tunables of a pool: those of all layers up to this one.

use cenote_dmu::tx::TxTunables;
use cenote_dsl::LivelistLimits;
use cenote_kstat::{Settings, Tunable};
use cenote_zil::ZilTunables;

use crate::multihost;

/// The tunables of all layers.
pub const TABLES: &[&[Tunable]] = &[
    cenote_vdev::tunables::Tunables::TABLE,
    cenote_metaslab::Tunables::TABLE,
    TxTunables::TABLE,
    ZilTunables::TABLE,
    multihost::Tunables::TABLE,
    SendTunables::TABLE,
    MountTunables::TABLE,
    SpareTunables::TABLE,
    LivelistTunables::TABLE,
    RemovalTunables::TABLE,
    CondenseTunables::TABLE,
    ExpansionTunables::TABLE,
    EventTunables::TABLE,
    ScanTunables::TABLE,
    cenote_l2arc::Tunables::TABLE,
    TrimTunables::TABLE,
    InitializeTunables::TABLE,
    FreeTunables::TABLE,
];

cenote_kstat::tunables! {
    /// Those of streams, which are made above this layer; the list of all tunables is here.
    #[derive(Copy)]
    pub struct SendTunables {
        /// Blocks that cannot be read are sent as a pattern, in place of an error that ends the stream.
        zfs_send_corrupt_data: bool = false, "", Switch, AtOpen;
        /// Blocks that are read ahead of the one that is sent; 32 MiB at least.
        zfs_send_queue_length: u64 = 16 << 20, "bytes", Number(1, 1 << 40), AtOpen;
    }
}

cenote_kstat::tunables! {
    /// Tunables of mounts and servers, which are a layer above, like sending.
    #[derive(Copy)]
    pub struct MountTunables {
        /// In a mount's `.zfs/snapshot`, `mkdir`, `rmdir` and `rename` take, destroy and rename snapshots.
        zfs_admin_snapshot: bool = false, "", Switch, AtOpen;
        /// How often devices are looked for that were gone, have grown, or are new in the place of one that is gone.
        cenote_device_look_ms: u64 = 10_000, "ms", Number(10, 3_600_000), AtOpen;
    }
}

cenote_kstat::tunables! {
    /// Those of hot spares.
    #[derive(Copy)]
    pub struct SpareTunables {
        /// Hot spares stand for devices that have failed without being asked for, as where OpenZFS's `zed` runs.
        cenote_use_spares: bool = true, "", Switch, AtOpen;
    }
}

cenote_kstat::tunables! {
    /// Those of the livelists of clones.
    #[derive(Copy)]
    pub(crate) struct LivelistTunables {
        /// New blocks in a list of a livelist, after which the next list begins.
        zfs_livelist_max_entries: u64 = 500_000, "blocks", Number(1, 1 << 20), AtOpen;
        /// A clone that shares this percentage of its blocks with its origin, or less, does without a livelist.
        zfs_livelist_min_percent_shared: u64 = 75, "%", Number(0, 100), AtOpen;
    }
}

cenote_kstat::tunables! {
    /// Those of removals of vdevs with blocks of datasets.
    #[derive(Copy)]
    pub(crate) struct RemovalTunables {
        /// Bytes that are read ahead, and copied in one txg, at most (OpenZFS has 64 MiB on their way).
        zfs_remove_max_copy_bytes: u64 = 16 << 20, "bytes", Number(1 << 16, 1 << 30), Live;
        /// The longest piece that is copied to one place.
        zfs_remove_max_segment: u64 = 16 << 20, "bytes", Number(512, 16 << 20), Live;
        /// The longest gap between ranges in use that is copied with them, to keep the mapping short.
        vdev_removal_max_span: u64 = 32 << 10, "bytes", Number(0, 1 << 20), Live;
        /// A removal stands still; for tests.
        zfs_removal_suspend_progress: bool = false, "", Switch, Live;
    }
}

cenote_kstat::tunables! {
    /// Those of the mappings of removed vdevs.
    #[derive(Copy)]
    pub struct CondenseTunables {
        /// Mappings of removed vdevs are written anew, without what is obsolete.
        zfs_condense_indirect_vdevs_enable: bool = true, "", Switch, Live;
        /// A mapping is condensed when so much of it is obsolete.
        zfs_condense_indirect_obsolete_pct: u64 = 25, "%", Number(0, 100), Live;
        /// One that is smaller is condensed only for the size of its obsolete map.
        zfs_condense_min_mapping_bytes: u64 = 128 << 10, "bytes", Number(0, 1 << 40), Live;
        /// A mapping whose obsolete map is so large is condensed in any case.
        zfs_condense_max_obsolete_bytes: u64 = 1 << 30, "bytes", Number(1, 1 << 40), Live;
    }
}

cenote_kstat::tunables! {
    /// Those of expansions of raidz vdevs.
    #[derive(Copy)]
    pub(crate) struct ExpansionTunables {
        /// Bytes in use that are copied for one txg, at most (OpenZFS has 160 MiB on their way).
        raidz_expand_max_copy_bytes: u64 = 64 << 20, "bytes", Number(1 << 16, 1 << 30), Live;
        /// An expansion stands still when so much has been copied; for tests.
        raidz_expand_max_reflow_bytes: u64 = 0, "bytes", Number(0, 1 << 62), Live;
        /// An expansion stands still before the scratch area is valid (1), while it is (4), or when it is not used any more (6); for tests.
        raidz_expand_pause_point: u64 = 0, "", Number(0, 7), Live;
    }
}

cenote_kstat::tunables! {
    /// Those of events (`zpool events`).
    #[derive(Copy)]
    pub struct EventTunables {
        /// Checksum errors of a leaf that are events, in a second.
        zfs_checksum_events_per_second: u64 = 20, "events", Number(0, 1_000_000), Live;
        /// Slow I/Os of a leaf that are events, in a second.
        zfs_slow_io_events_per_second: u64 = 20, "events", Number(0, 1_000_000), Live;
        /// Events that a pool in use keeps.
        zfs_zevent_len_max: u64 = 512, "events", Number(1, 1 << 16), Live;
        /// Time in which the same error of a leaf is one event.
        zfs_zevent_retain_expire_secs: u64 = 900, "s", Number(0, 1 << 20), Live;
        /// Errors that are remembered for that; 0 has each be an event.
        zfs_zevent_retain_max: u64 = 2000, "errors", Number(0, 1 << 16), Live;
    }
}

cenote_kstat::tunables! {
    /// Those of scrubs and resilvers.
    #[derive(Copy)]
    pub struct ScanTunables {
        /// Time after which a scrub or resilver reads what it has gathered, and writes down how far it is; so much is done again after a crash.
        zfs_scan_checkpoint_intval: u64 = 7200, "s", Number(1, 1 << 20), AtOpen;
        /// A resilver that is under way begins anew for each device that comes back, however far it is.
        zfs_resilver_disable_defer: bool = false, "", Switch, Live;
        /// A resilver that has done less than this begins anew for a device that comes back; otherwise the device waits.
        zfs_resilver_defer_percent: u64 = 10, "%", Number(0, 100), Live;
        /// Bytes of a vdev that a sequential rebuild takes at once; the last txg is kept while they are copied.
        zfs_rebuild_vdev_limit: u64 = 64 << 20, "bytes", Number(1 << 16, 1 << 32), Live;
        /// A scrub, resilver or sequential rebuild stands still when it has read so many bytes since the pool was opened; for tests.
        zfs_scan_issue_bytes_max: u64 = 0, "bytes", Number(0, 1 << 62), AtOpen;
        /// Scrubs, resilvers and sequential rebuilds stand still; for tests.
        zfs_scan_suspend_progress: bool = false, "", Switch, Live;
        /// A sequential rebuild is followed by a scrub, which checks what it has copied.
        zfs_rebuild_scrub_enabled: bool = true, "", Switch, Live;
        /// A scrub or resilver reads blocks as it comes to them, and not in the order of their places.
        zfs_scan_legacy: bool = false, "", Switch, AtOpen;
        /// Blocks that are gathered to be sorted take one part in so many of four times the cache's memory at most, and 1 MiB at least.
        zfs_scan_mem_lim_fact: u64 = 20, "parts", Number(1, 1 << 20), AtOpen;
    }
}

cenote_kstat::tunables! {
    /// Those of `autotrim`.
    #[derive(Copy)]
    pub(crate) struct TrimTunables {
        /// The most that a device is told of at once.
        zfs_trim_extent_bytes_max: u64 = 128 << 20, "bytes", Number(1 << 16, 1 << 40), AtOpen;
        /// Shorter ranges that were freed are not trimmed.
        zfs_trim_extent_bytes_min: u64 = 32 << 10, "bytes", Number(512, 1 << 40), AtOpen;
        /// Txgs between two batches of what was freed.
        zfs_trim_txg_batch: u64 = 32, "txgs", Number(1, 1 << 20), AtOpen;
    }
}

cenote_kstat::tunables! {
    /// Those of freeing in the background.
    #[derive(Copy)]
    pub(crate) struct FreeTunables {
        /// Blocks that a background job frees in one txg at most, 100000 if this is more: each holds memory until its txg is on disk.
        zfs_async_block_max_blocks: u64 = 100_000, "blocks", Number(1, u64::MAX), Live;
    }
}

cenote_kstat::tunables! {
    /// Those of `zpool initialize`.
    #[derive(Copy)]
    pub(crate) struct InitializeTunables {
        /// Bytes that are written at once.
        zfs_initialize_chunk_size: u64 = 1 << 20, "bytes", Power(512, 16 << 20), Live;
        /// The eight bytes that are written again and again.
        zfs_initialize_value: u64 = 0xdead_beef_dead_beee, "", Number(0, u64::MAX), Live;
    }
}

impl LivelistTunables {
    pub(crate) const fn limits(&self) -> LivelistLimits {
        LivelistLimits {
            entries_max: self.zfs_livelist_max_entries,
            shared_pct_min: self.zfs_livelist_min_percent_shared,
        }
    }
}

/// Values of these tunables, none of which was given yet.
#[must_use]
pub const fn settings() -> Settings {
    Settings::of(TABLES)
}

/// The value of each tunable on a machine with so much memory to use, as numbers.
#[must_use]
pub fn values(settings: &Settings, memory_bytes: u64) -> Vec<(&'static str, u64)> {
    let mut all = cenote_vdev::tunables::Tunables::default().with(settings).numbers();
    all.extend(cenote_metaslab::Tunables::default().with(settings).numbers());
    all.extend(TxTunables::for_memory(memory_bytes).with(settings).numbers());
    all.extend(ZilTunables::default().with(settings).numbers());
    all.extend(multihost::Tunables::default().with(settings).numbers());
    all.extend(SendTunables::default().with(settings).numbers());
    all.extend(MountTunables::default().with(settings).numbers());
    all.extend(SpareTunables::default().with(settings).numbers());
    all.extend(LivelistTunables::default().with(settings).numbers());
    all.extend(RemovalTunables::default().with(settings).numbers());
    all.extend(CondenseTunables::default().with(settings).numbers());
    all.extend(ExpansionTunables::default().with(settings).numbers());
    all.extend(EventTunables::default().with(settings).numbers());
    all.extend(ScanTunables::default().with(settings).numbers());
    all.extend(cenote_l2arc::Tunables::default().with(settings).numbers());
    all.extend(TrimTunables::default().with(settings).numbers());
    all.extend(InitializeTunables::default().with(settings).numbers());
    all.extend(FreeTunables::default().with(settings).numbers());
    all
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use cenote_kstat::Domain;

    use super::*;

    /// The least, the default and the largest value of a tunable.
    fn samples(tunable: &Tunable) -> [u64; 3] {
        let (min, max) = match tunable.domain {
            Domain::Number(min, max) | Domain::Power(min, max) => (min, max),
            Domain::Switch => (0, 1),
            Domain::Words(words) => (0, words.len() as u64 - 1),
        };
        [min, tunable.default, max]
    }

    #[test]
    fn names_are_unique_and_the_records_make_sense() {
        let names: BTreeSet<&str> = settings().tunables().map(|tunable| tunable.name).collect();
        assert_eq!(names.len(), settings().tunables().count());
        for tunable in settings().tunables() {
            let name = tunable.name;
            assert!(samples(tunable).into_iter().all(|number| tunable.accepts(number)), "{name}");
            assert!(tunable.effect.ends_with('.'), "{name}");
            assert!(
                tunable.unit.is_empty() || matches!(tunable.domain, Domain::Number(..) | Domain::Power(..)),
                "{name}"
            );
        }
    }

    #[test]
    fn every_value_gets_to_its_field_and_back() {
        let defaults: BTreeMap<_, _> = values(&settings(), 1 << 50).into_iter().collect();
        for tunable in settings().tunables() {
            assert_eq!(defaults.get(tunable.name), Some(&tunable.default), "{}", tunable.name);
            for number in samples(tunable) {
                let mut given = settings();
                given.set(tunable.name, &tunable.shown(number)).unwrap();
                let mut wanted = defaults.clone();
                wanted.insert(tunable.name, number);
                assert_eq!(values(&given, 1 << 50).into_iter().collect::<BTreeMap<_, _>>(), wanted, "{}", tunable.name);
            }
        }
    }
}
