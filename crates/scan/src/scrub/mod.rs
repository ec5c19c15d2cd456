//! Scrub and resilver: the worker of a pool's scans (`cenote_spa`'s jobs say what a scan is), a sink of the walk.
//!
//! **Life.** [`attend`] begins the worker with a pool that is written in the background. It waits for a task, walks from the task's place, and reports after
//! each step: what it visited and repaired, and how far. A pause, a stop or the pool's end is seen at the next step; what was done after the last step is done
//! again later. Where the pool gives no view (its devices fail) it tries again after [`AGAIN_AFTER`].
//!
//! **Order.** Data is gathered, and read in the order of its places ([`sorted`]). Steps are reported when all that they gathered is read, and repairs are written: a
//! visit ends when its repair has landed.
//!
//! **Views.** A view is let go after [`VIEW_STEPS`] steps, so a scan of hours keeps no space for hours.

#[cfg(test)]
mod bug_tests;
#[cfg(test)]
mod error_tests;
mod errors;
#[cfg(test)]
mod label_tests;
pub(crate) mod reads;
#[cfg(test)]
mod removal_tests;
mod sorted;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod verify_tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_format::dsl::ScanFunction;
use cenote_format::ids::Txg;
use cenote_spa::{ImportOptions, Pool, ScanRange, ScanReport, ScanSeat, ScanWork, SpaError, View, WeakPool};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::{Class, Handle, Instant, boxed};
use cenote_vdev::queue::QueueClass;
use cenote_zio::{Bookmark, ReadContext};

use crate::roots;
use crate::visit::{Item, Reads, Visited};
use crate::walk::{Cursor, Ended, STEP_BLOCKS, Sink, ViewError, Views, Walk, WalkControl};
use reads::ScanReads;
use sorted::Sorter;

/// Steps in one view.
const VIEW_STEPS: u64 = 64;
/// How often the worker looks whether the end is recorded.
const RECORDED_POLL: Duration = Duration::from_millis(50);
/// A pool that nobody changes is to record reports all the same, this long after the last time (`zfs_txg_timeout` of OpenZFS).
const RECORD_AFTER: Duration = Duration::from_secs(5);
/// A part of a walk that is to be visited again is begun after this long: devices may take its blocks by then.
const LOST_AFTER: Duration = Duration::from_millis(50);
/// A walk that came to nothing begins again after this long.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Has the scans of a pool done from now on, for as long as it is open; and begins a resilver if a leaf lacks something. Nothing where they are done already.
pub fn attend(pool: &Pool) {
    attend_in_steps(pool, STEP_BLOCKS);
}

/// The same, with steps of so many blocks.
fn attend_in_steps(pool: &Pool, step_blocks: u64) {
    let (seat, pool) = (pool.scan_seat(), pool.clone());
    let handle = pool.handle().clone();
    let weak = pool.downgrade();
    if !seat.attend() {
        return;
    }
    handle.clone().detach(Class::Background, async move {
        // A pool that cannot be changed now has nothing resilvered either.
        drop(pool.finish_replacing().await);
        drop(pool.resilver_if_needed().await);
        drop(pool);
        let mut round = 0;
        while let Some(task) = seat.next(round).await {
            round = task.round;
            match task.work {
                ScanWork::Blocks(range) => work((&handle, &weak, &seat), (round, range), step_blocks).await,
                ScanWork::Errors { cursor } => errors::work((&handle, &weak, &seat), round, cursor).await,
            }
        }
    });
}

/// Takes out of the pool what is dispensable since others have everything: the old sides of replacements, and spares. If it cannot, the next end of a
/// resilver, or the next opening, does it.
async fn finish_replacing(pool: &WeakPool) {
    if let Some(pool) = pool.upgrade() {
        drop(pool.finish_replacing().await);
    }
}

/// Does a task until it is done or not wanted any more.
async fn work(
    (handle, pool, seat): (&Handle, &WeakPool, &ScanSeat),
    (round, task): (u64, ScanRange),
    step_blocks: u64,
) {
    seat.begins(round, handle.unix_time().as_secs());
    let sorter = Sorter::new(seat.order());
    let reads = Arc::new(ScanReads {
        function: task.function,
        min_txg: task.min_txg,
        max_txg: task.max_txg,
        gathers: sorter.sorts(),
    });
    let mut cursor = Cursor::of_scan(task.place, task.max_txg);
    let mut sink = Scanner::new((handle, pool, seat, round), reads, sorter, cursor.clone());
    while seat.is_wanted(round) {
        let views = LaterViews { pool, from: task.max_txg };
        match walked((handle, &views), cursor.clone(), &mut sink, step_blocks).await {
            (_, true) => {
                if task.function == ScanFunction::SCRUB && task.min_txg == Txg(0) {
                    sink.kept.processed_bytes += mended_labels(pool).await;
                }
                seat.report(round, std::mem::take(&mut sink.kept), None);
                recorded((handle, pool, seat), round).await;
                finish_replacing(pool).await;
                return;
            }
            (reached, false) => cursor = reached,
        }
        sink.forget();
        let is_lost = sink.is_lost.swap(false, Ordering::Relaxed);
        // No view is kept while there is none to go on with.
        if is_lost || sink.sorter.bytes() > 0 {
            cursor = sink.again(is_lost);
        }
        if seat.is_wanted(round) {
            handle.sleep(if is_lost { LOST_AFTER } else { AGAIN_AFTER }).await;
        }
    }
}

/// Has damaged labels written again, now that all blocks are right: their bytes. A pool that is closed meanwhile, or suspended, has its labels read at
/// its opening.
async fn mended_labels(pool: &WeakPool) -> u64 {
    match pool.upgrade() {
        Some(pool) => pool.mend_labels().await.unwrap_or(0),
        None => 0,
    }
}

/// Has what was reported recorded, and waits for as long as the scan is wanted: until its end is recorded, or it is given up.
async fn recorded((handle, pool, seat): (&Handle, &WeakPool, &ScanSeat), round: u64) {
    want_recorded(pool);
    while seat.is_wanted(round) {
        handle.sleep(RECORDED_POLL).await;
    }
}

/// Has a txg written, which records what was reported.
fn want_recorded(pool: &WeakPool) {
    if let Some(pool) = pool.upgrade() {
        pool.want_scan_recorded();
    }
}

/// Walks from the cursor on; how far, and whether to the end.
async fn walked(
    (handle, views): (&Handle, &LaterViews<'_>),
    cursor: Cursor,
    sink: &mut Scanner<'_>,
    step_blocks: u64,
) -> (Cursor, bool) {
    let Ok(view) = views.view().await else { return (cursor, false) };
    let listing = roots::objsets(&view).await;
    if listing.cut_off.is_some() {
        return (cursor, false);
    }
    let (seat, round, control) = (sink.seat, sink.round, WalkControl::new());
    let (reads, is_lost) = (sink.reads.clone(), sink.is_lost.clone());
    let mut is_wanted = |_| seat.is_wanted(round) && !is_lost.load(Ordering::Relaxed);
    let mut walk = Walk::new((handle, views, &control), cursor, Reads::Scan(reads.clone()), &mut is_wanted);
    walk.step_blocks = step_blocks;
    let ended = walk.run((view, listing.trees), false, sink).await;
    let cursor = walk.cursor;
    match ended {
        Ended::Whole(view) => {
            sink.read_gathered().await;
            let is_done = !sink.is_lost.load(Ordering::Relaxed) && visit_logs(&reads, &view, sink).await;
            sink.end_step();
            (cursor, is_done && !sink.is_lost.load(Ordering::Relaxed))
        }
        Ended::Stopped(_) => (cursor, false),
    }
}

/// Visits the blocks of claimed intent logs, which no tree leads to. False if the view was given up meanwhile.
async fn visit_logs(reads: &ScanReads, view: &View, sink: &mut Scanner<'_>) -> bool {
    for tree in roots::objsets(view).await.trees.iter().filter(|tree| tree.has_log) {
        for bp in roots::claimed_log(view, tree).await {
            let at = Bookmark { level: Bookmark::LEVEL_ZIL, ..Bookmark::objset(tree.objset) };
            let context = ReadContext::new(at, None).of_class(QueueClass::Scrub);
            sink.count(reads.visit_block(view, &bp, context).await);
        }
    }
    view.check().is_ok()
}

/// Views that have all that a scan is for.
struct LaterViews<'a> {
    pool: &'a WeakPool,
    from: cenote_format::ids::Txg,
}

impl Views for LaterViews<'_> {
    #[boxed]
    async fn view(&self) -> Result<View, ViewError> {
        let pool = self.pool.upgrade().ok_or("the pool is closed")?;
        while pool.txgs().synced_txg() < self.from {
            // Its last txg is on disk, and no later one comes.
            if pool.is_closing() {
                return Err("the pool is being closed".into());
            }
            pool.sync().await?;
        }
        Ok(pool.view(&ImportOptions::default()).await?)
    }

    fn steps(&self) -> Option<u64> {
        Some(VIEW_STEPS)
    }

    fn check(&self, view: &View) -> Result<(), SpaError> {
        view.check()
    }
}

/// Counts what is visited, gathers what is to be read later, and reports what was.
struct Scanner<'a> {
    handle: &'a Handle,
    pool: &'a WeakPool,
    seat: &'a ScanSeat,
    round: u64,
    reads: Arc<ScanReads>,
    sorter: Sorter,
    /// The last time at which a txg was asked for.
    recorded_at: Instant,
    /// Since the last step of the walk.
    fresh: ScanReport,
    /// Of the steps since the last report.
    kept: ScanReport,
    /// The last that was reported.
    reported: Cursor,
    /// All that was reported, bytes.
    reported_bytes: u64,
    /// A view was given up before what was gathered in it was read, or a write was refused: all since the last report is visited again.
    is_lost: Arc<AtomicBool>,
}

impl<'a> Scanner<'a> {
    fn new(
        (handle, pool, seat, round): (&'a Handle, &'a WeakPool, &'a ScanSeat, u64),
        reads: Arc<ScanReads>,
        sorter: Sorter,
        reported: Cursor,
    ) -> Self {
        let (fresh, kept) = (ScanReport::default(), ScanReport::default());
        Self {
            handle,
            pool,
            seat,
            round,
            reads,
            sorter,
            recorded_at: handle.now(),
            fresh,
            kept,
            reported,
            reported_bytes: 0,
            is_lost: Arc::default(),
        }
    }

    /// Waits as long as the scan is wanted, if it is to stand still where it is.
    async fn stand_still(&self) {
        let limit = self.seat.order().issue_bytes_max;
        if limit.is_some_and(|limit| self.reported_bytes >= limit) {
            recorded((self.handle, self.pool, self.seat), self.round).await;
        }
    }

    /// Where the walk goes on when what was gathered is lost.
    fn again(&mut self, less: bool) -> Cursor {
        // It is visited again, but what was written again is right by then.
        let processed_bytes = self.fresh.processed_bytes.saturating_add(self.kept.processed_bytes);
        (self.fresh, self.kept) = (ScanReport::default(), ScanReport { processed_bytes, ..ScanReport::default() });
        self.sorter.clear(less);
        self.reported.clone()
    }

    /// The walk stays where it is.
    fn end_step(&mut self) {
        self.kept.add(std::mem::take(&mut self.fresh));
        self.sorter.keep();
    }

    /// Reads all that was gathered.
    async fn read_gathered(&mut self) {
        match self.sorter.read(self.handle, (self.seat, self.round), &self.reads).await {
            (report, true) => {
                self.sorter.clear(false);
                self.kept.add(report);
            }
            (report, false) => {
                self.kept.processed_bytes = self.kept.processed_bytes.saturating_add(report.processed_bytes);
                self.is_lost.store(true, Ordering::Relaxed);
            }
        }
        self.seat.gathers(self.round, 0);
    }

    fn count(&mut self, visited: Visited) {
        // It is visited again, with all since the last report.
        if visited.is_refused {
            self.is_lost.store(true, Ordering::Relaxed);
            self.fresh.processed_bytes = self.fresh.processed_bytes.saturating_add(visited.scanned.processed_bytes);
            return;
        }
        count(&mut self.fresh, visited);
    }
}

/// Adds what came of a block.
fn count(report: &mut ScanReport, visited: Visited) {
    let Visited { error, scanned, .. } = visited;
    report.error_count += u64::from(error.is_some());
    report.add(scanned);
}

impl Sink for Scanner<'_> {
    async fn take(&mut self, view: &View, item: &Item, visited: Visited) -> bool {
        match item.is_known {
            true => {}
            false if self.reads.is_to_be_read(view, item, &visited) => {
                self.sorter.push(view, item, self.handle.now());
            }
            false => self.count(visited),
        }
        true
    }

    async fn step(&mut self, cursor: &Cursor) {
        self.end_step();
        // The end is reported when the intent logs are visited too.
        let Some(place) = cursor.scan_place() else { return };
        if mutant::is(Mutant::ScanSortedAhead) {
            self.seat.report(self.round, ScanReport::default(), Some(place.clone()));
        }
        if self.is_lost.load(Ordering::Relaxed) || !self.sorter.is_due(self.handle.now()) {
            self.seat.gathers(self.round, self.sorter.bytes());
            return;
        }
        self.read_gathered().await;
        if !self.is_lost.load(Ordering::Relaxed) {
            self.reported = cursor.clone();
            self.reported_bytes = self.reported_bytes.saturating_add(self.kept.examined_bytes);
            self.seat.report(self.round, std::mem::take(&mut self.kept), Some(place));
            if self.handle.now() - self.recorded_at >= RECORD_AFTER {
                self.recorded_at = self.handle.now();
                want_recorded(self.pool);
            }
            self.stand_still().await;
        }
    }

    fn forget(&mut self) {
        self.fresh = ScanReport::default();
        self.sorter.forget();
    }

    fn moved(&mut self) {}

    fn problems(&mut self, _: Vec<String>) {}

    fn figures(&self) -> (u64, u64) {
        (0, self.fresh.error_count.saturating_add(self.kept.error_count))
    }
}
