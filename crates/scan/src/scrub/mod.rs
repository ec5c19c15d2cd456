//! Scrub and resilver: the worker of a pool's scans (`cenote_spa`'s jobs say what a scan is), a sink of the walk.
//!
//! **Life.** [`attend`] begins the worker with a pool that is written in the background. It waits for a task, walks from the task's place, and reports after
//! each step: what it visited and repaired, and how far. A pause, a stop or the pool's end is seen at the next step; what was done after the last step is done
//! again later. Where the pool gives no view (its devices fail) it tries again after [`AGAIN_AFTER`].
//!
//! **Order.** A step is reported when its repairs are written: a visit ends when its repair has landed, and a step has only visits that have ended.
//!
//! **Views.** A view is let go after [`VIEW_STEPS`] steps, so a scan of hours keeps no space for hours.

#[cfg(test)]
mod error_tests;
mod errors;
pub(crate) mod reads;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use cenote_spa::{ImportOptions, Pool, ScanRange, ScanReport, ScanSeat, ScanWork, SpaError, View, WeakPool};
use cenote_taskq::{Class, Handle, boxed};
use cenote_vdev::queue::QueueClass;
use cenote_zio::{Bookmark, ReadContext};

use crate::roots;
use crate::visit::{Item, Reads, Visited};
use crate::walk::{Cursor, Ended, STEP_BLOCKS, Sink, ViewError, Views, Walk, WalkControl};
use reads::ScanReads;

/// Steps in one view.
const VIEW_STEPS: u64 = 64;
/// How often the worker looks whether the end is recorded.
const RECORDED_POLL: Duration = Duration::from_millis(50);
/// A walk that came to nothing begins again after this long.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Has the scans of a pool done from now on, for as long as it is open; and begins a resilver if a leaf lacks something.
pub fn attend(pool: &Pool) {
    attend_in_steps(pool, STEP_BLOCKS);
}

/// The same, with steps of so many blocks.
fn attend_in_steps(pool: &Pool, step_blocks: u64) {
    let (seat, pool) = (pool.scan_seat(), pool.clone());
    let handle = pool.handle().clone();
    let weak = pool.downgrade();
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
    let reads = Arc::new(ScanReads { function: task.function, min_txg: task.min_txg, max_txg: task.max_txg });
    let mut cursor = Cursor::of_scan(task.place, task.max_txg);
    let mut sink = Scanner { seat, round, fresh: ScanReport::default() };
    while seat.is_wanted(round) {
        let views = LaterViews { pool, from: task.max_txg };
        match walked((handle, &views), &reads, cursor.clone(), &mut sink, step_blocks).await {
            (_, true) => {
                seat.report(round, std::mem::take(&mut sink.fresh), None);
                recorded((handle, pool, seat), round).await;
                finish_replacing(pool).await;
                return;
            }
            (reached, false) => cursor = reached,
        }
        sink.forget();
        if seat.is_wanted(round) {
            handle.sleep(AGAIN_AFTER).await;
        }
    }
}

/// Waits until the end that was reported is recorded.
async fn recorded((handle, pool, seat): (&Handle, &WeakPool, &ScanSeat), round: u64) {
    if let Some(pool) = pool.upgrade() {
        pool.want_scan_recorded();
    }
    while seat.is_wanted(round) {
        handle.sleep(RECORDED_POLL).await;
    }
}

/// Walks from the cursor on; how far, and whether to the end.
async fn walked(
    (handle, views): (&Handle, &LaterViews<'_>),
    reads: &Arc<ScanReads>,
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
    let mut is_wanted = |_| seat.is_wanted(round);
    let mut walk = Walk::new((handle, views, &control), cursor, Reads::Scan(reads.clone()), &mut is_wanted);
    walk.step_blocks = step_blocks;
    let ended = walk.run((view, listing.trees), false, sink).await;
    let cursor = walk.cursor;
    match ended {
        Ended::Whole(view) => {
            let is_done = visit_logs(reads, &view, sink).await;
            (cursor, is_done)
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

/// Counts what is visited, and reports it.
struct Scanner<'a> {
    seat: &'a ScanSeat,
    round: u64,
    /// Since the last report.
    fresh: ScanReport,
}

impl Scanner<'_> {
    fn count(&mut self, visited: Visited) {
        let Visited { error, scanned, .. } = visited;
        self.fresh.error_count += u64::from(error.is_some());
        self.fresh.add(scanned);
    }
}

impl Sink for Scanner<'_> {
    async fn take(&mut self, _: &View, item: &Item, visited: Visited) -> bool {
        if !item.is_known {
            self.count(visited);
        }
        true
    }

    async fn step(&mut self, cursor: &Cursor) {
        // The end is reported when the intent logs are visited too.
        let Some(place) = cursor.scan_place() else { return };
        self.seat.report(self.round, std::mem::take(&mut self.fresh), Some(place));
    }

    fn forget(&mut self) {
        self.fresh = ScanReport::default();
    }

    fn moved(&mut self) {}

    fn problems(&mut self, _: Vec<String>) {}

    fn figures(&self) -> (u64, u64) {
        (0, self.fresh.error_count)
    }
}
