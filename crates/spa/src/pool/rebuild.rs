//! Sequential rebuild of a pool in use: the worker ([`crate::jobs::rebuild`] has the theory).
//!
//! **Life.** The worker waits until all txgs that new leaves lack are on disk. Then, piece by piece: it takes the next ranges with the slot, has them
//! copied, some at a time, and reports. After the last one it waits until the end is recorded, and takes out of the pool what is dispensable then.
//!
//! **Failures.** A device that does not take its piece costs it the rebuild ([`RebuildReport::failed`]). What cannot be read is an error of all. A pool that is
//! suspended, or changes its devices, has the piece done again later.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_format::ids::{Guid, Txg};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Handle, boxed, for_each_concurrent, race};
use cenote_vdev::error::VdevError;
use cenote_vdev::tree::RebuildRange;

use super::{Pool, WeakPool};
use crate::SpaError;
use crate::jobs::rebuild::{RebuildEnd, RebuildPlan, RebuildReport, RebuildSeat};
use crate::sync::rebuild::{NoRanges, RebuildRanges};

/// Pieces that are copied at once.
const AT_ONCE: usize = 8;
/// A piece that could not be done now is done after this.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often the worker looks whether txgs are on disk, or its end is recorded.
const POLL: Duration = Duration::from_millis(50);
/// A txg is asked for to record the progress this often.
const RECORDED_AFTER: Duration = Duration::from_secs(10);

impl Pool {
    /// Begins the workers of rebuilds.
    pub(crate) fn begin_rebuilds(&self, plans: impl IntoIterator<Item = RebuildPlan>) {
        for plan in plans {
            let worker = Worker {
                handle: self.handle().clone(),
                pool: self.downgrade(),
                seat: self.shared.rebuild.clone(),
                plan,
            };
            self.handle().detach(Class::Background, worker.work());
        }
    }
}

struct Worker {
    handle: Handle,
    pool: WeakPool,
    seat: RebuildSeat,
    plan: RebuildPlan,
}

/// The result of copying ranges.
#[derive(Default)]
struct Copied {
    bytes: u64,
    errors: u64,
    failed: BTreeSet<Guid>,
    /// It is to be done again.
    is_undone: bool,
}

impl Worker {
    fn is_wanted(&self) -> bool {
        self.seat.is_wanted(self.plan.vdev, self.plan.round)
    }

    fn report(&self, report: RebuildReport) {
        self.seat.report(self.plan.vdev, self.plan.round, report);
    }

    fn want_txg(&self) {
        if let Some(pool) = self.pool.upgrade()
            && pool.shared.is_background.load(Ordering::Acquire)
        {
            pool.shared.want_txg();
        }
    }

    /// Waits until the txgs that new leaves lack are on disk: blocks of later ones are written to them.
    async fn wait_for_txgs(&self) {
        let last = Txg(self.plan.phys.max_txg.0.saturating_sub(1));
        while self.is_wanted() {
            let Some(pool) = self.pool.upgrade() else { return };
            let txgs = pool.shared.txgs.clone();
            if txgs.synced_txg() >= last {
                return;
            }
            let is_background = pool.shared.is_background.load(Ordering::Acquire);
            drop(pool);
            if is_background {
                // It is looked each time whether the rebuild is wanted still.
                let open = txgs.open_txg();
                let _ = race(txgs.wait_synced(open), self.handle.sleep(POLL)).await;
            } else {
                self.handle.sleep(POLL).await;
            }
        }
    }

    #[boxed]
    async fn work(self) {
        self.wait_for_txgs().await;
        let (vdev, mut at) = (self.plan.vdev, self.plan.phys.last_offset_bytes);
        let (mut recorded, mut known) = (self.handle.now(), None);
        while self.is_wanted() {
            let Some(pool) = self.pool.upgrade() else { return };
            let ranges = pool
                .look(move |syncer| Box::pin(async move { Ok::<_, SpaError>(syncer.rebuild_ranges(vdev, at).await) }));
            let ranges = ranges.await;
            drop(pool);
            let ranges = match ranges {
                Ok(Ok(ranges)) => ranges,
                Ok(Err(NoRanges::Stuck(reason))) => return self.end(at, RebuildEnd::Stuck(reason)).await,
                Ok(Err(NoRanges::Later)) | Err(_) => {
                    self.want_txg();
                    self.handle.sleep(AGAIN_AFTER).await;
                    continue;
                }
            };
            // Those that are not there for each piece cannot be whole at the end.
            let targets = known.get_or_insert_with(|| ranges.targets.clone()).clone();
            let (end_bytes, is_last) = (ranges.end_bytes, ranges.is_last);
            let mut failed: BTreeSet<Guid> = targets.symmetric_difference(&ranges.targets).copied().collect();
            let scanned_bytes = ranges.ranges.iter().map(|range| range.end - range.start).sum();
            let copied = self.copy(ranges).await;
            if copied.is_undone {
                self.handle.sleep(AGAIN_AFTER).await;
                continue;
            }
            failed.extend(copied.failed);
            assert!(end_bytes >= at, "a rebuild goes on, and not back");
            at = end_bytes;
            self.report(RebuildReport {
                offset_bytes: at,
                scanned_bytes,
                rebuilt_bytes: copied.bytes,
                error_count: copied.errors,
                failed,
                end: None,
            });
            if is_last {
                return self.end(at, RebuildEnd::Done).await;
            }
            if self.handle.now() - recorded >= RECORDED_AFTER {
                recorded = self.handle.now();
                self.want_txg();
            }
        }
    }

    /// Reports the end, and waits until it is recorded.
    async fn end(&self, at: u64, end: RebuildEnd) {
        self.report(RebuildReport { offset_bytes: at, end: Some(end), ..RebuildReport::default() });
        self.want_txg();
        while self.is_wanted() {
            self.handle.sleep(POLL).await;
        }
        // A pool that cannot be changed now has it done at the next opening.
        if let Some(pool) = self.pool.upgrade() {
            drop(pool.finish_replacing().await);
        }
    }

    /// Has ranges copied.
    async fn copy(&self, ranges: RebuildRanges) -> Copied {
        let Some(tree) = self.pool.upgrade().and_then(|pool| pool.tree()) else {
            return Copied { is_undone: true, ..Copied::default() };
        };
        let vdev = self.plan.vdev;
        let RebuildRanges { ranges, targets, hold, .. } = ranges;
        let mut hold = Some(Arc::new(Mutex::new(hold)));
        if mutant::is(Mutant::RebuildUnheld) {
            hold = None;
            self.handle.sleep(AGAIN_AFTER).await;
        }
        let unit = tree.rebuild_unit(vdev).unwrap_or(u64::MAX);
        let mut pieces: Vec<Range<u64>> = ranges.into_iter().flat_map(|range| split(range, unit)).collect();
        if mutant::is(Mutant::RebuildRangeLost) && pieces.len() > 1 {
            pieces.truncate(pieces.len() - 1);
        }
        let copied = Mutex::new(Copied::default());
        for_each_concurrent(AT_ONCE, pieces, |piece| {
            let (tree, copied, hold, targets) = (&tree, &copied, hold.clone(), targets.clone());
            async move {
                if copied.lock().is_undone || !self.is_wanted() {
                    copied.lock().is_undone = true;
                    return;
                }
                let (offset_bytes, size_bytes) = (piece.start, piece.end - piece.start);
                let range = RebuildRange { vdev, offset_bytes, size_bytes, targets: targets.clone() };
                let rebuilt = tree.rebuild(range, hold).await;
                let mut copied = copied.lock();
                match rebuilt {
                    Ok(rebuilt) => {
                        copied.bytes += rebuilt.bytes;
                        copied.errors += u64::from(!rebuilt.failed.is_empty());
                        copied.failed.extend(rebuilt.failed);
                    }
                    Err(VdevError::Suspended(_)) => copied.is_undone = true,
                    Err(_) => {
                        copied.errors += 1;
                        copied.failed.extend(targets.iter().copied());
                    }
                }
            }
        })
        .await;
        copied.into_inner()
    }
}

/// A range in pieces.
fn split(range: Range<u64>, unit: u64) -> impl Iterator<Item = Range<u64>> {
    let starts = (0..).map(move |number: u64| range.start.saturating_add(number.saturating_mul(unit)));
    starts
        .take_while(move |start| *start < range.end)
        .map(move |start| start..range.end.min(start.saturating_add(unit)))
}
