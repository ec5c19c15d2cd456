//! Deliberate bugs, for tests of the tests.
//!
//! A test that has never failed proves little. So the engine contains plausible bugs, each at the line where it would occur and switched
//! off by default. The power-cut test (`crates/crash`, `cargo xtask mutants`) and the replica test (`crates/replicas`) must find every
//! one of them. At most one bug is active in a process, and only after [`set`].
//!
//! **Price.** In a build without debug assertions [`is`] is the constant `false`, so what depends on it is not compiled, and [`set`]
//! refuses. In a test build it is one relaxed load.
//!
//! **Rejected.** *A Cargo feature*: Cargo unites the features of all packages that it builds, so either the whole workspace is built
//! twice, or the bugs are in the program. *A hook in the tunables of each layer*: most of these lines have no tunables at hand, and a
//! hook that is passed down to them would change the code that is tested. *Editing sources, as tools for mutation testing do*: a
//! build for each of them, and they do not know a forgotten flush.

use std::sync::atomic::{AtomicU8, Ordering};

macro_rules! mutants {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A deliberate bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Mutant {
            $($(#[$doc])* $variant,)*
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name on a command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

mutants! {
    /// Freed space is handed out again as soon as its txg is on disk.
    DeferNone = "defer-none",
    /// Freed space is handed out again one txg later instead of two.
    DeferOnce = "defer-once",
    /// A block that the checkpoint has is freed like any other.
    CheckpointFreed = "checkpoint-freed",
    /// The uberblock is written without a flush of the blocks before it.
    BlocksUnflushed = "blocks-unflushed",
    /// A txg is said to be on disk without a flush of its uberblock.
    UberblockUnflushed = "uberblock-unflushed",
    /// Every uberblock goes to the same slot of the ring.
    UberblockOneSlot = "uberblock-one-slot",
    /// All four labels are written before the uberblock.
    LabelsAtOnce = "labels-at-once",
    /// A leaf's dirty time log is not written.
    DtlUnwritten = "dtl-unwritten",
    /// A leaf's dirty time log is shortened by a scan that was given up.
    DtlCleared = "dtl-cleared",
    /// The place of a scan that is written down says that the MOS, or the dataset at hand, is visited whole.
    ScanAhead = "scan-ahead",
    /// The place of a scan is reported before what it has gathered is read.
    ScanSortedAhead = "scan-sorted-ahead",
    /// A scrub of the error log writes down that it has come to the log's end.
    ErrorCursorAhead = "error-cursor-ahead",
    /// The error log of the last scrub is dropped when a scrub begins.
    ErrlogSwappedEarly = "errlog-swapped-early",
    /// A leaf that misses a block is not recorded as having missed it.
    MissUnnoted = "miss-unnoted",
    /// Of what a device may have lost, a part is not written again.
    KeptDropped = "kept-dropped",
    /// An entry of the mapping of a vdev that is evacuated is not written.
    MappingEntryLost = "mapping-entry-lost",
    /// A mapping that is condensed loses entries of which more than half is obsolete.
    CondensedEntryLost = "condensed-entry-lost",
    /// The copy of what is freed on a vdev that is evacuated stays.
    EvacuatedCopyKept = "evacuated-copy-kept",
    /// Some copies of an evacuation are not written.
    EvacuationUncopied = "evacuation-uncopied",
    /// A removal copies what the devices of a mirror have, though they differ.
    EvacuationUncompared = "evacuation-uncompared",
    /// The legs of a pool that is split are the new pool's before the first one is marked on disk.
    SplitUnmarked = "split-unmarked",
    /// The first sectors of a raidz that is expanded are copied over themselves, without the scratch area.
    ScratchStateForgotten = "scratch-state-forgotten",
    /// The uberblock of a raidz that is expanded says that sectors have moved which were not copied.
    ReflowOffsetAhead = "reflow-offset-ahead",
    /// Only one leg of a mirror is written.
    OneLeg = "one-leg",
    /// `fsync` and `FLUSH` are answered before the txg is on disk.
    FsyncEarly = "fsync-early",
    /// `FUA`, `O_SYNC` and `sync=always` wait for nothing.
    FuaIgnored = "fua-ignored",
    /// A removed file that is open or large is not entered into the delete queue.
    DeleteQueueDropped = "delete-queue-dropped",
    /// Frees are not appended to space maps.
    MapFreesDropped = "map-frees-dropped",
    /// Allocations of a txg in eight are not appended to the log of space maps.
    LogAllocsDropped = "log-allocs-dropped",
    /// Of a ZAP's changed blocks only the first is written.
    ZapHalf = "zap-half",
    /// Quotas are not obeyed.
    QuotaIgnored = "quota-ignored",
    /// The header of a gang is not written.
    GangHeaderDropped = "gang-header-dropped",
    /// Written data is not counted as dirty.
    DirtyUncounted = "dirty-uncounted",
    /// Uses of features are not counted.
    FeatureUncounted = "feature-uncounted",
    /// Bytes behind the end of a file that is cut short are not made zeros.
    TailKept = "tail-kept",
    /// The uberblock of the txg that adds a vdev is written, and no label of the vdev's devices.
    AddUnlabelled = "add-unlabelled",
    /// The rings of devices that are added are not cleared.
    AddRingKept = "add-ring-kept",
    /// Blocks of intent logs are not flushed.
    LogUnflushed = "log-unflushed",
    /// A flush that began before a block of a log was written counts for it.
    LogFlushEarlier = "log-flush-earlier",
    /// A client that waits for a log is answered when the blocks are on their way.
    LogAcksIssued = "log-acks-issued",
    /// Blocks of a log are freed a txg before their records are on disk.
    LogFreedEarly = "log-freed-early",
    /// The header of a log goes on naming a block that was freed.
    LogHeaderKept = "log-header-kept",
    /// The link of a log's block has the number of the block itself.
    LogWrongNext = "log-wrong-next",
    /// Changes of the next txg are forgotten with those of a txg that is on disk.
    LogItxsDropped = "log-itxs-dropped",
    /// Changes that are in no record are not waited for.
    LogUnloggedIgnored = "log-unlogged-ignored",
    /// A file's write is logged before the record that creates the file.
    LogDataFirst = "log-data-first",
    /// Blocks of a log are not claimed.
    LogUnclaimed = "log-unclaimed",
    /// A log block is flushed before the blocks that its records point to are stored.
    LogDataUnflushed = "log-data-unflushed",
    /// The vdevs of the blocks that records point to are not flushed with the log's own.
    LogDataElsewhere = "log-data-elsewhere",
    /// A log device is removed that logs have blocks on.
    LogDeviceNotLeft = "log-device-not-left",
    /// The labels of a log device are cleared before the txg is on disk that removes it.
    LogDeviceClearedEarly = "log-device-cleared-early",
    /// A block that was stored for a log and changed since can be taken again at once.
    LogDataFreedEarly = "log-data-freed-early",
    /// Whether another host may have the pool is asked before a write, and not before clients are told of it.
    LateNotAskedAfterWrite = "late-not-asked-after-write",
    /// Intent logs take main space without a limit.
    LogSpaceUnlimited = "log-space-unlimited",
    /// A block that is smaller than a sector is charged its own size.
    SectorsUncounted = "sectors-uncounted",
    /// A snapshot is acknowledged before its txg is on disk.
    SnapshotEarly = "snapshot-early",
    /// Of snapshots that are asked for together the last is of the next txg.
    SnapshotsApart = "snapshots-apart",
    /// Of the blocks that a head leaves to its snapshot in a txg the last is not in the deadlist.
    DeadlistEntryForgotten = "deadlist-entry-forgotten",
    /// A snapshot does not count as its own what it shared with a snapshot that went.
    UniqueKept = "unique-kept",
    /// The table of a snapshot's first hold is made, and not linked to the snapshot.
    HoldUnlinked = "hold-unlinked",
    /// A snapshot does not count its clones.
    CloneUncounted = "clone-uncounted",
    /// A clone's list of its blocks lacks one that the clone gave up.
    LivelistFreeForgotten = "livelist-free-forgotten",
    /// A promotion moves snapshots, and not their bytes.
    PromoteBytesKept = "promote-bytes-kept",
    /// A receive notes its place before the data is received.
    ReceiveNotedEarly = "receive-noted-early",
    /// Holes that came since the base of a stream are not sent.
    SendHolesDropped = "send-holes-dropped",
    /// Blocks that were redacted before are sent, but for the last block of each file.
    SendRedactedShort = "send-redacted-short",
    /// Ranges that a stream frees are kept.
    ReceiveFreesIgnored = "receive-frees-ignored",
    /// Objects that a stream frees are kept.
    ReceiveFreeObjectsIgnored = "receive-freeobjects-ignored",
    /// Spill blocks of a stream are forgotten.
    ReceiveSpillForgotten = "receive-spill-forgotten",
    /// A file that comes in the place of another one, with blocks of another size, gets only what comes.
    ReceiveBlocksKept = "receive-blocks-kept",
    /// The short piece at the end of a large block that is sent in pieces is forgotten.
    ReceiveTailForgotten = "receive-tail-forgotten",
    /// A block that a reader found damaged is written again, though its place may be another block's by now.
    HealReused = "heal-reused",
    /// Free space is initialized or trimmed though blocks are placed there meanwhile.
    TrimUnheld = "trim-unheld",
    /// A block on a cache device is known by its place alone, and given as it was read.
    L2arcStale = "l2arc-stale",
    /// Blocks on a cache device are found though the space that they have is written over.
    L2arcKept = "l2arc-kept",
    /// The space that a txg freed is trimmed as soon as that txg is on disk.
    AutotrimEarly = "autotrim-early",
    /// A rebuild copies ranges that may be used for other blocks meanwhile.
    RebuildUnheld = "rebuild-unheld",
    /// A rebuild passes over a piece of the ranges in use.
    RebuildRangeLost = "rebuild-range-lost",
    /// The device whose place a rebuilt one takes goes before a scrub has verified what was copied.
    RebuildUnverified = "rebuild-unverified",
    /// A leaf that is away while a distributed spare is given something in its place is not recorded as lacking it.
    PassedOverForgotten = "passed-over-forgotten",
}

impl Mutant {
    /// Those about snapshots, which power cuts find only where snapshots are taken meanwhile.
    pub const OF_SNAPSHOTS: &[Self] = &[
        Self::SnapshotEarly,
        Self::SnapshotsApart,
        Self::DeadlistEntryForgotten,
        Self::UniqueKept,
        Self::HoldUnlinked,
        Self::CloneUncounted,
        Self::LivelistFreeForgotten,
        Self::PromoteBytesKept,
        Self::ReceiveNotedEarly,
    ];

    /// Those that take a second host, which the lives of two hosts find (`crates/crash`, `hosts`).
    pub const OF_HOSTS: &[Self] = &[Self::LateNotAskedAfterWrite];

    /// Those of repairs, which tests of the pool find (`spa`, `healing`).
    pub const OF_REPAIRS: &[Self] = &[Self::HealReused, Self::CheckpointFreed, Self::TrimUnheld, Self::AutotrimEarly];

    /// Those of cache devices, which their tests find (`l2arc`).
    pub const OF_CACHES: &[Self] = &[Self::L2arcStale, Self::L2arcKept];

    /// Those of rebuilds: a test of lives finds the first (`crash`, `rebuilt`), one of the pool the second (`spa`, `rebuilt`), tests of scans the
    /// others (`scan`, `verify_tests` and `bug_tests`).
    pub const OF_REBUILDS: &[Self] =
        &[Self::RebuildUnheld, Self::RebuildRangeLost, Self::RebuildUnverified, Self::PassedOverForgotten];

    /// Those of removals, which tests of the pool find (`spa`, `evacuated`).
    pub const OF_REMOVALS: &[Self] = &[Self::MappingEntryLost, Self::EvacuatedCopyKept, Self::EvacuationUncopied];

    /// Those of removals, which tests of scans find (`scan`, `removal_tests`).
    pub const OF_SCANNED_REMOVALS: &[Self] = &[Self::EvacuationUncompared];

    /// That of mappings that are condensed, which tests of the pool find (`spa`, `condensed`).
    pub const OF_CONDENSING: &[Self] = &[Self::CondensedEntryLost];

    /// Those of a pool that is split, which tests of the pool find (`spa`, `split`).
    pub const OF_SPLITS: &[Self] = &[Self::SplitUnmarked];
    /// Those of expansions of raidz vdevs, which tests of the pool find (`spa`, `expanded`).
    pub const OF_EXPANSIONS: &[Self] = &[Self::ScratchStateForgotten, Self::ReflowOffsetAhead];

    /// Those of scans that their tests find (`scan`, `scrub`): of places and dirty time logs,
    pub const OF_SCANS: &[Self] = &[Self::DtlCleared, Self::ScanAhead, Self::ScanSortedAhead];

    /// and of the error log.
    pub const OF_ERROR_LOGS: &[Self] = &[Self::ErrorCursorAhead, Self::ErrlogSwappedEarly];

    /// Those of sending and receiving, which the replica test finds (`crates/replicas`); the others are for power cuts.
    pub const OF_STREAMS: &[Self] = &[
        Self::SendHolesDropped,
        Self::SendRedactedShort,
        Self::ReceiveFreesIgnored,
        Self::ReceiveFreeObjectsIgnored,
        Self::ReceiveSpillForgotten,
        Self::ReceiveBlocksKept,
        Self::ReceiveTailForgotten,
    ];
}

/// 0: none.
static ALIVE: AtomicU8 = AtomicU8::new(0);

/// Whether this bug is alive.
#[inline]
#[must_use]
pub fn is(mutant: Mutant) -> bool {
    cfg!(debug_assertions) && ALIVE.load(Ordering::Relaxed) == mutant as u8 + 1
}

/// Has one bug be alive in this process, or none. Whether that is possible: not in a build without debug assertions.
pub fn set(mutant: Option<Mutant>) -> bool {
    if cfg!(debug_assertions) {
        ALIVE.store(mutant.map_or(0, |mutant| mutant as u8 + 1), Ordering::Relaxed);
    }
    cfg!(debug_assertions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_one_bug_is_alive_and_none_in_a_release_build() {
        let alive = || Mutant::ALL.iter().copied().filter(|mutant| is(*mutant)).collect::<Vec<_>>();
        assert_eq!(alive(), []);
        let possible = set(Some(Mutant::DeferNone));
        assert_eq!(possible, cfg!(debug_assertions));
        assert_eq!(alive(), if possible { vec![Mutant::DeferNone] } else { vec![] });
        set(None);
        assert_eq!(alive(), []);
        let names: std::collections::BTreeSet<_> = Mutant::ALL.iter().map(|mutant| mutant.name()).collect();
        assert_eq!(names.len(), Mutant::ALL.len());
    }
}
