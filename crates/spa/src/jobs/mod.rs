//! Background jobs: long work on the pool, a slice in each txg.
//!
//! # Theory
//!
//! **Need.** Some work takes time in proportion to the size of the pool or of a device: freeing a destroyed dataset, scrub, resilver, and in the future
//! expansion; and rebuild, initialize, trim and removal. No client waits for it, it must not delay changes of files, it must continue after a crash, and
//! OpenZFS must be able to continue it, as Cenote continues OpenZFS's.
//!
//! **One engine.** Each such work is a *job* with three parts:
//! ```text
//! state    what is on disk: kind, cursor, counts, where OpenZFS has a place for them (an entry of the MOS, a ZAP of a vdev)
//! slice    a bounded piece in the sync of each txg: it changes the pool, and writes state and change in the same txg
//! worker   outside of the sync, if there is something to read, verify or copy: it works for hours, and changes nothing of the MOS
//! ```
//! A job of changes alone (freeing) has no worker. A job that reads (scan) has a *seat* ([`scan::ScanSeat`]), through which the two talk: the slice
//! puts a *task* there (what is to be done, from which cursor on, and a number: the *round*), and the worker *reports* how far it has come. The next slice
//! takes the report. A pause, a stop, or a new task ends the round, and what is reported of an old round is dropped.
//!
//! **A slice.** At the beginning of each txg's sync a job does a bounded piece of its work as changes of that txg, and writes into
//! the MOS how far it has come. So the work and its cursor become durable in the same txg, and after a crash the job continues where the
//! last txg on disk left it. A slice ends when it has taken [`SLICE`] or has freed [`SLICE_BLOCKS_MAX`] blocks, whichever comes
//! first. While there is work and the pool is in use, the end of one txg asks for the next. (The slice of a scan comes after the changes of datasets of its
//! txg, since it records which are still to be visited.)
//!
//! **Who may change what.** [`Job`] is a value of a type, and [`Jobs`] the table of them. A slice may change the MOS and the blocks
//! ([`InTxg`]), and nothing of the devices: those are changed by functions of the syncer ([`crate::sync`]), to which a job hands over its end (a resilver
//! that has ended lets the syncer shorten the DTLs, in the same txg). A worker may read a view, and may write again what a view has, in its place.
//!
//! **The order that makes it safe.** (1) The worker's writes have landed before it reports them. (2) The sync takes the report, and writes the cursor. (3) The
//! sync flushes all devices. (4) The uberblock makes the cursor valid. So a cursor on disk never claims what a power cut can take back.
//!
//! **Watching.** [`JobStatus`] tells what is left, what was done since the pool was opened, how far a job has come in a tree, and why a job
//! stands still.
//!
//! **Control.** A person pauses and resumes a job by its name ([`crate::Pool::pause_job`]), a scan by its verb. A job whose state has a place for it keeps the
//! pause on disk (a scrub); the others' is in memory, and a pool that is opened again goes on. A job that can be given up says how ([`Job::cancel`]);
//! freeing cannot, since what it frees has no name any more.
//!
//! **Invariants.**
//! 1. A slice's memory is bounded by [`SLICE_BLOCKS_MAX`], whatever the job; and where a list of a livelist is settled, by that list (its
//!    pointers, of 128 bytes each, are written anew in one txg).
//! 2. The cursor that a txg writes is that of work that the same txg does, or that a worker did before.
//! 3. A job that cannot read what it has to do stands still, tells the pool's owner, and fails no txg. (A block that is free already, or lies on no
//!    device, does fail the txg: the space maps can be trusted no more.)
//! 4. A report counts only in its round.
//!
//! **Crash.** Stopped at any txg and continued is as never stopped: what was done after the last cursor on disk is done once more, so each worker's
//! step can be repeated (a block is read, and written again as it is).
//!
//! **Rejected.** *The MOS changed by a task beside the sync*: the sync alone changes it. *Work between txgs*: a
//! crash would do it twice or not at all. *Reading and verifying in the slice, as OpenZFS's scan does*: each txg, and each client that waits for it, would wait for
//! the disks' reads.

pub(crate) mod async_destroy;
pub(crate) mod condensing;
pub(crate) mod deferred;
pub(crate) mod deleted_clones;
pub(crate) mod discard;
mod doomed;
pub(crate) mod error_scrub;
pub(crate) mod evacuation;
pub(crate) mod expansion;
pub(crate) mod freeing;
pub(crate) mod leaf;
pub(crate) mod rebuild;
pub(crate) mod scan;

use std::time::Duration;

use cenote_format::dsl::ZBookmark;
use cenote_kstat::Settings;
use cenote_taskq::{BoxFuture, Instant, boxed};

use crate::SpaError;
use crate::sync::rooms::InTxg;
use crate::tunables::FreeTunables;
use async_destroy::AsyncDestroy;
use condensing::Condensing;
use deferred::Deferred;
use deleted_clones::DeletedClones;
use discard::Discard;
use error_scrub::ErrorScrub;
use evacuation::Evacuation;
use expansion::Expansion;
use freeing::FreeList;
use leaf::LeafWork;
use rebuild::Rebuild;
use scan::Scan;

/// A slice ends after this long (OpenZFS's `zfs_free_min_time_ms` is 1 s; here other changes of the txg wait meanwhile).
pub(crate) const SLICE: Duration = Duration::from_millis(200);
/// Blocks freed in one slice at most, unless `zfs_async_block_max_blocks` has less: each holds memory until its txg is on disk.
pub(crate) const SLICE_BLOCKS_MAX: u64 = 100_000;

/// A job as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// The feature or list that it belongs to: `async_destroy`, `free_bpobj`, `livelist`, `checkpoint`; or `remove`, `condense`, `raidz_expand`, `scrub`,
    /// `resilver`, `error scrub`, `initialize`, `trim`, `rebuild`.
    pub name: &'static str,
    /// Bytes that are still to be done.
    pub left_bytes: u64,
    /// Bytes done since the pool was opened.
    pub done_bytes: u64,
    /// The time that this took, from the first slice on.
    pub took: Duration,
    /// The next block, where the job goes through a tree, as of the last txg. A list has no cursor: what is done is taken off it.
    pub cursor: Option<ZBookmark>,
    /// A person has it wait, until it is resumed or the pool is opened again.
    pub is_paused: bool,
    /// The reason for which it does not go on until the pool is opened again, if there is one.
    pub stalled: Option<String>,
}

impl JobStatus {
    /// Bytes a second so far; nothing before the first slice's end.
    #[must_use]
    pub fn rate_bytes(&self) -> Option<u64> {
        let ms = u64::try_from(self.took.as_millis()).ok().filter(|ms| *ms > 0)?;
        Some(self.done_bytes.saturating_mul(1000) / ms)
    }

    /// The time that the rest takes at this rate.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let rate = self.rate_bytes().filter(|rate| *rate > 0)?;
        Some(Duration::from_secs(self.left_bytes.div_ceil(rate)))
    }
}

/// How far a job has come, while the pool is open.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) left_bytes: u64,
    pub(crate) done_bytes: u64,
    /// Since the first slice.
    begun: Option<Instant>,
    /// The next block of the tree that it goes through, as the txg that syncs writes it.
    pub(crate) cursor: Option<ZBookmark>,
    /// The reason for which it stands still.
    pub(crate) stalled: Option<String>,
    /// A person has it wait, until it is resumed or the pool is opened again.
    is_paused: bool,
}

impl Progress {
    /// The job stands still until the pool is opened again; the pool's owner is told why.
    fn stall(&mut self, rooms: &InTxg<'_>, reason: String) {
        rooms.blocks.space.troubles.tell(reason.clone());
        self.stalled = Some(reason);
    }
}

/// Long work, of which each txg does a slice.
pub(crate) trait Job: Send + Sync {
    /// The feature or list that it belongs to.
    fn name(&self) -> &'static str;

    /// There is something left to do.
    fn has_work(&self) -> bool;

    /// It can do nothing of what is left.
    fn is_stuck(&self) -> bool {
        self.progress().stalled.is_some()
    }

    /// How far it has come.
    fn progress(&self) -> &Progress;

    /// The same.
    fn progress_mut(&mut self) -> &mut Progress;

    /// Blocks that a slice takes at most, where the pool's bound is this.
    fn blocks_max(&self, of_pool: u64) -> u64 {
        of_pool
    }

    /// A worker does the work. It asks for a txg when it has something to be taken, and the syncer takes that beside the slices.
    fn has_worker(&self) -> bool {
        false
    }

    /// Does a slice of the work as changes of the txg, and writes how far it has come. Not called of a job that has a worker.
    ///
    /// # Errors
    /// The txg cannot be written. What merely cannot be read makes the job stand still.
    #[boxed]
    async fn slice(&mut self, _rooms: &mut InTxg<'_>, _slice: &mut Slice) -> Result<(), SpaError> {
        unreachable!("the job {} has slices or a worker", self.name())
    }

    /// Gives up what is left, as a change of the txg.
    ///
    /// # Errors
    /// It cannot be given up; nothing is changed then.
    fn cancel<'a>(&'a mut self, _rooms: &'a mut InTxg<'_>) -> BoxFuture<'a, Result<(), SpaError>> {
        let what = format!("job {} cannot be cancelled: what it frees has no name any more; pause it", self.name());
        Box::pin(async move { Err(SpaError::unsupported(what)) })
    }

    /// It goes on with the next txg.
    fn goes_on(&self) -> bool {
        !self.has_worker() && self.has_work() && !self.is_stuck() && !self.progress().is_paused
    }

    /// Its status, if there is work left.
    fn status(&self, now: Instant) -> Option<JobStatus> {
        let progress = self.progress();
        self.has_work().then(|| JobStatus {
            name: self.name(),
            left_bytes: progress.left_bytes,
            done_bytes: progress.done_bytes,
            took: progress.begun.map(|begun| now - begun).unwrap_or_default(),
            cursor: progress.cursor,
            is_paused: progress.is_paused,
            stalled: progress.stalled.clone(),
        })
    }
}

/// The background jobs of a pool.
pub(crate) struct Jobs {
    /// Frees that OpenZFS put off: done in the first txgs, whatever else is.
    pub(crate) deferred: Deferred,
    /// Destroyed datasets.
    pub(crate) async_destroy: AsyncDestroy,
    /// The blocks that only destroyed snapshots had.
    pub(crate) free_list: FreeList,
    /// Livelists of destroyed clones.
    pub(crate) deleted_clones: DeletedClones,
    /// A vdev whose blocks are copied to others, so that it can go.
    pub(crate) evacuation: Evacuation,
    /// Writes the mapping of a removed vdev anew, without what is obsolete.
    pub(crate) condensing: Condensing,
    /// A raidz vdev that gets one child more.
    pub(crate) expansion: Expansion,
    /// Frees the space that only a discarded checkpoint had.
    pub(crate) discard: Discard,
    /// Scrub and resilver.
    pub(crate) scan: Scan,
    /// Initialize and trim.
    pub(crate) leaf_work: LeafWork,
    /// Sequential rebuilds.
    pub(crate) rebuild: Rebuild,
    /// Scrub of the blocks that the error log names.
    pub(crate) error_scrub: ErrorScrub,
    /// Blocks freed in one slice at most.
    pub(crate) blocks_max: u64,
}

impl Default for Jobs {
    fn default() -> Self {
        let scan = Scan::default();
        Self {
            error_scrub: ErrorScrub::new(scan.seat()),
            scan,
            deferred: Deferred::default(),
            async_destroy: AsyncDestroy::default(),
            free_list: FreeList::default(),
            deleted_clones: DeletedClones::default(),
            evacuation: Evacuation::default(),
            condensing: Condensing::default(),
            expansion: Expansion::default(),
            leaf_work: LeafWork::default(),
            rebuild: Rebuild::default(),
            discard: Discard::default(),
            blocks_max: SLICE_BLOCKS_MAX,
        }
    }
}

impl Jobs {
    /// All of them, in the order of their slices.
    fn all(&self) -> [&dyn Job; 11] {
        [
            &self.async_destroy,
            &self.free_list,
            &self.deleted_clones,
            &self.discard,
            &self.evacuation,
            &self.condensing,
            &self.expansion,
            &self.scan,
            &self.error_scrub,
            &self.leaf_work,
            &self.rebuild,
        ]
    }

    fn all_mut(&mut self) -> [&mut dyn Job; 11] {
        [
            &mut self.async_destroy,
            &mut self.free_list,
            &mut self.deleted_clones,
            &mut self.discard,
            &mut self.evacuation,
            &mut self.condensing,
            &mut self.expansion,
            &mut self.scan,
            &mut self.error_scrub,
            &mut self.leaf_work,
            &mut self.rebuild,
        ]
    }

    /// Those with work left.
    pub(crate) fn statuses(&self, now: Instant) -> Vec<JobStatus> {
        self.all().into_iter().filter_map(|job| job.status(now)).collect()
    }

    fn named(&mut self, name: &str) -> Result<&mut dyn Job, SpaError> {
        // These have verbs of their own, and keep their pause on disk.
        let has_verbs = matches!(name, "scrub" | "resilver" | "error scrub" | "initialize" | "trim" | "rebuild");
        let job = self.all_mut().into_iter().find(|job| job.name() == name && !has_verbs);
        job.ok_or_else(|| SpaError::unsupported(format!("there is no background job {name}")))
    }

    /// Has the job of this name wait, or go on.
    ///
    /// # Errors
    /// There is no such job.
    pub(crate) fn set_paused(&mut self, name: &str, is_paused: bool) -> Result<(), SpaError> {
        self.named(name)?.progress_mut().is_paused = is_paused;
        Ok(())
    }

    /// Gives up what is left of the job of this name.
    ///
    /// # Errors
    /// There is no such job, or it cannot be given up.
    pub(crate) async fn cancel(&mut self, name: &str, rooms: &mut InTxg<'_>) -> Result<(), SpaError> {
        self.named(name)?.cancel(rooms).await
    }

    /// Has other tunables from now on, those that were given.
    pub(crate) fn tune(&mut self, settings: &Settings) {
        self.scan.tune(settings);
        self.error_scrub.hold(self.scan.tunables.zfs_scan_suspend_progress);
        self.evacuation.tunables = self.evacuation.tunables.with(settings);
        self.condensing.tunables = self.condensing.tunables.with(settings);
        self.expansion.tunables = self.expansion.tunables.with(settings);
        self.leaf_work.seat.tune(settings);
        if settings.given("zfs_async_block_max_blocks").is_some() {
            let free = FreeTunables::default().with(settings);
            self.blocks_max = free.zfs_async_block_max_blocks.min(SLICE_BLOCKS_MAX);
        }
    }

    /// One of them goes on with the next txg.
    pub(crate) fn go_on(&self) -> bool {
        self.all().into_iter().any(Job::goes_on)
    }

    /// One that frees what was destroyed goes on with the next txg.
    pub(crate) fn is_freeing(&self) -> bool {
        let Self { async_destroy, free_list, deleted_clones, .. } = self;
        [async_destroy as &dyn Job, free_list, deleted_clones].into_iter().any(Job::goes_on)
    }

    /// Does a slice of each, before the datasets are written, since references to shared blocks may end with what is freed.
    ///
    /// # Errors
    /// The txg cannot be written.
    pub(crate) async fn slices(&mut self, rooms: &mut InTxg<'_>) -> Result<(), SpaError> {
        let of_pool = self.blocks_max;
        // The slice of a scan comes later in the txg.
        for job in self.all_mut() {
            if !job.goes_on() {
                continue;
            }
            assert!(!job.has_worker(), "the reports of a worker are taken beside the slices");
            let now = rooms.handle.now();
            job.progress_mut().begun.get_or_insert(now);
            let mut slice = Slice::new(now, job.blocks_max(of_pool));
            job.slice(rooms, &mut slice).await?;
        }
        Ok(())
    }
}

/// The bounds of the slice that is under way.
pub(crate) struct Slice {
    until: Instant,
    blocks_left: u64,
}

impl Slice {
    pub(crate) fn new(now: Instant, blocks_max: u64) -> Self {
        Self { until: now + SLICE, blocks_left: blocks_max }
    }

    pub(crate) fn take(&mut self, blocks: usize) {
        self.blocks_left = self.blocks_left.saturating_sub(blocks as u64);
    }

    /// Blocks that it may still take.
    pub(crate) const fn blocks_left(&self) -> u64 {
        self.blocks_left
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.blocks_left == 0 || now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_time_left_are_of_what_was_done() {
        let job = |done_bytes, ms| JobStatus {
            name: "async_destroy",
            left_bytes: 3000,
            done_bytes,
            took: Duration::from_millis(ms),
            cursor: None,
            is_paused: false,
            stalled: None,
        };
        assert_eq!(job(0, 0).rate_bytes(), None);
        assert_eq!(job(0, 500).time_left(), None);
        assert_eq!(job(1000, 500).rate_bytes(), Some(2000));
        assert_eq!(job(1000, 500).time_left(), Some(Duration::from_secs(2)));
    }
}
