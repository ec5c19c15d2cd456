//! The walk: all blocks of a pool in one order, which can stop anywhere and go on, also when the pool has gone on meanwhile.
//!
//! # Theory
//!
//! **Need.** Verify, scrub and resilver, and later rescue and check, go through all blocks of a pool. They differ in what they do with a block, and in
//! nothing else: each takes hours, must leave the devices to those who wait for them, and has to survive a pause, an interruption and changes of the
//! pool. So there is one walk, and each of them is a [`Sink`] of it.
//!
//! **Outside of the sync.** The walk only reads, from [`View`]s, and holds no lock of the syncer. A view pins its txg, and a pool gives up a pin once
//! a quarter of its free space is kept for pins. So a walk does not count on one view: [`Views`] gives it one after another, as often as
//! the sink's owner wants (`steps`), and whenever the pool has given one up.
//!
//! **Order, cursor.** Trees come in the order of `crate::roots`; in a tree a block comes before those below it, objects by number, blocks by
//! position: the order of OpenZFS's `zbookmark_compare`. A [`Cursor`] is a tree and the bookmark of the *next* block, of level 0 or the root.
//! All before it was visited, and nothing after it. So a bookmark is enough to go on, and a scrub can keep it as
//! `scn_bookmark` of the pool's entry `scan`, with the datasets that were walked as OpenZFS's queue of those that were not.
//!
//! **In memory.** A stack of blocks to come, top first ([`stack`]), of which those near the top are read ahead: at most [`VISITS_MAX`] at once,
//! and [`VISIT_BYTES_MAX`]. Reads land in any order. The sink gets blocks in the order of the walk all the same: the top of the stack waits for its
//! read, then its children take its place.
//!
//! **Steps.** After some blocks the walk ends a step: it asks whether the view was kept until now, and only then is the cursor moved, and the
//! sink told to keep what it found ([`Sink::step`]). If the view was given up, some of the reads may have been of blocks that were
//! written over: the sink forgets what came since the last step, and the walk goes on from the cursor in another view. A scrub's sink hands cursor and
//! repairs to a job of the pool (`cenote_spa`'s jobs), whose slice writes both in one txg; the walk waits for it in `step`.
//!
//! **A view of a later txg.** It is walked if all of its datasets could be listed; if not, the walk stops at its cursor. Blocks that were there all along have kept their places: a tree changes by writing new blocks, up to the root.
//! So the walk finds its tree again (`crate::roots` says how), goes down to the cursor, and goes on. Data that is younger than the walk is left
//! out. *Blocks freed meanwhile* are not met. *Datasets destroyed* are not met either, and what is left of them is nobody's. *New snapshots* have
//! blocks of their heads: those that were walked with the head are not walked again. *Snapshots destroyed* leave blocks to the next dataset, which
//! is walked again from its new beginning, even if it was walked before. Promises for a pool that is written:
//! each block that some dataset referred to, at one place in it, from the first view to the last is visited, maybe twice; none is visited in a txg
//! that did not have it, so no damage is reported that was not there. A block that was *cloned* to a place behind the cursor or into a dataset
//! younger than the walk, and freed where it was before the walk came there, is not visited.
//!
//! **Life of a block.** waiting -> reading (a task of class `Background`, devices' class `Scrub`) -> landed -> to the sink -> its children wait.
//!
//! **Invariants.**
//! 1. In views of one txg each block is given to the sink once, however often the walk stops (asserted in [`stack`], [`Cursor`]).
//! 2. The sink gets blocks in the order of the cursor, whatever the order in which reads land.
//! 3. The cursor is moved at the end of a step only, to a block that the walk stops before, and never back in views of one txg.
//! 4. All that a sink keeps was read from a view that was whole when it was told to keep it.
//! 5. Reads in flight are bounded, and so are results that wait, with all that they hold: the stack's size is bounded by depth times fan-out, not
//!    by the pool.
//! 6. While the walk rests nothing is read.
//!
//! **Crash.** The walk writes nothing. A sink that keeps a cursor keeps it with the findings up to it; after a crash the walk goes on from
//! there, as after a pause.
//!
//! **Rejected.** *One view from the beginning to the end*: given up in a pool that is written much, and then all is lost. *To walk in the syncer's slot, as
//! `dsl_scan` does in each txg's sync*: changes of files wait for the disks' reads. *Results as they land*: no bookmark could say where
//! the walk is, and reports would differ from run to run. *A walk in the order of places*: pointers are found in the order of trees. A sink of the walk sorts
//! what it gathers (`crate::scrub`).

mod control;
mod cursor;
mod stack;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use cenote_format::ids::Txg;
use cenote_spa::{ImportOptions, Pool, SpaError, View};
use cenote_taskq::{BoxFuture, Class, Handle, Instant, Join, JoinError, Unordered, boxed};
use cenote_zio::Bookmark;

use crate::error::{PointerError, VisitError};
use crate::freeing;
use crate::roots::{self, Listing, Tree};
use crate::visit::{Item, Reads, Start, Visited, visit};

pub use control::{Progress, WalkControl};
pub(crate) use cursor::Cursor;
use stack::Stack;

/// Visits in flight at most.
const VISITS_MAX: usize = 64;
/// Bytes of blocks in flight at most, before or after decompression.
const VISIT_BYTES_MAX: u64 = 64 << 20;
/// Blocks of a step, and those after which it is said how far the walk is.
pub(crate) const STEP_BLOCKS: u64 = 256;
/// Views at most that are given up one after another before a step could be done.
const FRUITLESS_MAX: u32 = 3;

/// Why there is no view.
pub type ViewError = Box<dyn Error + Send + Sync>;

/// Where a walk gets its views of the pool from.
pub trait Views: Send + Sync {
    /// The pool as of its last txg.
    ///
    /// # Errors
    /// It cannot be read, or is closed.
    #[boxed]
    async fn view(&self) -> Result<View, ViewError>;

    /// Fails if the view was given up.
    ///
    /// # Errors
    /// The last reads may be of another txg.
    fn check(&self, view: &View) -> Result<(), SpaError> {
        view.check()
    }

    /// A view is let go after so many steps, and while the walk rests. None: it is kept for as long as the pool keeps it.
    fn steps(&self) -> Option<u64> {
        None
    }
}

/// One view for all of the walk.
impl Views for View {
    fn view(&self) -> BoxFuture<'_, Result<View, ViewError>> {
        let view = self.clone();
        Box::pin(async move { Ok(view) })
    }
}

/// A pool in use: the walk goes on in another view when one was given up.
impl Views for Pool {
    #[boxed]
    async fn view(&self) -> Result<View, ViewError> {
        Ok(Pool::view(self, &ImportOptions::default()).await?)
    }
}

/// The use that is made of a walk.
pub(crate) trait Sink: Send {
    /// Takes a block, in the order of the walk. Whether those below it are to be visited.
    fn take(&mut self, view: &View, item: &Item, visited: Visited) -> impl Future<Output = bool> + Send;

    /// Keeps what it took since the last step: all was read of a view that was whole, and the walk is at this cursor.
    fn step(&mut self, cursor: &Cursor) -> impl Future<Output = ()> + Send;

    /// Forgets what it took since the last step.
    fn forget(&mut self);

    /// The walk goes on in a view of a later txg.
    fn moved(&mut self);

    /// Takes what is wrong in a view, besides blocks; the view was whole.
    fn problems(&mut self, problems: Vec<String>);

    /// Bytes that are to be visited, and errors found.
    fn figures(&self) -> (u64, u64);
}

/// How a walk ended.
pub(crate) enum Ended {
    /// All was visited, last in this view.
    Whole(View),
    /// It stops at its cursor: it was asked to, or there is no other view.
    Stopped(Option<ViewError>),
}

/// How the walk of one view ended.
enum ViewEnd {
    Whole,
    Stopped,
    /// It goes on in another view: so many steps were done, or it is to rest without one.
    Over,
    GivenUp(SpaError),
}

/// A read that is under way.
struct Read {
    ticket: usize,
    /// The block's, before or after decompression, whichever is more.
    size_bytes: u64,
    join: Join<Visited>,
}

impl Future for Read {
    type Output = (usize, u64, Result<Visited, JoinError>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (ticket, size_bytes) = (self.ticket, self.size_bytes);
        Pin::new(&mut self.join).poll(context).map(|landed| (ticket, size_bytes, landed))
    }
}

/// A walk.
pub(crate) struct Walk<'a> {
    handle: &'a Handle,
    views: &'a dyn Views,
    control: &'a WalkControl,
    /// Called every so many blocks; the walk ends if it returns false.
    watch: &'a mut (dyn FnMut(Progress) -> bool + Send),
    reads: Reads,
    /// A step ends after so many blocks, where the walk can stop.
    pub(crate) step_blocks: u64,
    pub(crate) cursor: Cursor,
    progress: Progress,
    /// The time of the last look at the clock, while the walk does not rest.
    since: Instant,
    is_ended: bool,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        (handle, views, control): (&'a Handle, &'a dyn Views, &'a WalkControl),
        cursor: Cursor,
        reads: Reads,
        watch: &'a mut (dyn FnMut(Progress) -> bool + Send),
    ) -> Self {
        let (since, progress) = (handle.now(), Progress::default());
        let step_blocks = STEP_BLOCKS;
        control.begin();
        Self { handle, views, control, watch, reads, step_blocks, cursor, progress, since, is_ended: false }
    }

    /// Walks from the cursor on, first in this view with these trees. `keeps_known`: blocks before the cursor are given to the sink as well, as
    /// known; their data is not read. The pool is then to be as it was.
    pub(crate) async fn run<S: Sink>(
        &mut self,
        (mut view, mut trees): (View, Vec<Tree>),
        mut keeps_known: bool,
        sink: &mut S,
    ) -> Ended {
        let mut fruitless = 0;
        loop {
            let (txg, before) = (view.txg(), self.cursor.next);
            if txg != self.cursor.txg {
                sink.moved();
            }
            let roots = self.cursor.plan(&view, &trees, std::mem::take(&mut keeps_known));
            let given_up: Option<SpaError> = match self.in_view(&view, &trees, roots, sink).await {
                ViewEnd::Whole => return Ended::Whole(view),
                ViewEnd::Stopped => return Ended::Stopped(None),
                ViewEnd::Over => None,
                ViewEnd::GivenUp(error) => Some(error),
            };
            drop(view);
            if given_up.is_some() {
                sink.forget();
            }
            fruitless = if given_up.is_some() && self.cursor.next == before { fruitless + 1 } else { 0 };
            if fruitless >= FRUITLESS_MAX {
                return Ended::Stopped(given_up.map(Into::into));
            }
            self.rest().await;
            if self.is_to_end() {
                return Ended::Stopped(None);
            }
            (view, trees) = match self.another(txg, given_up, sink).await {
                Ok(another) => another,
                Err(why) => return Ended::Stopped(why),
            };
        }
    }

    /// Another view after one of this txg, and all of its trees. An error is why there is none: a walk that takes a part of the datasets for all
    /// would take the others for destroyed.
    async fn another<S: Sink>(
        &mut self,
        mut last: Txg,
        mut given_up: Option<SpaError>,
        sink: &mut S,
    ) -> Result<(View, Vec<Tree>), Option<ViewError>> {
        for _ in 0..FRUITLESS_MAX {
            let view = self.views.view().await.map_err(Some)?;
            if given_up.is_some() && view.txg() <= last {
                // Blocks that the sink was given since the last step may not come again in the same txg.
                break;
            }
            let is_same = !self.cursor.has_moved() && self.cursor.is_at(&view);
            let Listing { mut trees, problems, invalid, cut_off } = roots::objsets(&view).await;
            if is_same {
                // As when the walk began, which has told of what is wrong with them.
                trees.extend(freeing::destroyed(&view, &mut Vec::new()).await);
            }
            // A list without a fault is what the view has. If the view was given up, its walk sees it before a step is done.
            let is_sound = cut_off.is_none() && problems.is_empty() && invalid.is_empty();
            if !is_sound && let Err(error) = self.views.check(&view) {
                (last, given_up) = (view.txg(), Some(error));
                continue;
            }
            if let Some(error) = cut_off {
                return Err(Some(error.into()));
            }
            if !is_same {
                // The MOS may have been walked before they became so.
                sink.problems(problems);
                sink.problems(invalid);
            }
            return Ok((view, trees));
        }
        Err(given_up.map(Into::into))
    }

    async fn in_view<S: Sink>(&mut self, view: &View, trees: &[Tree], roots: Vec<Item>, sink: &mut S) -> ViewEnd {
        let mut stack = Stack::new(roots);
        let mut reads: Unordered<Read> = Unordered::new();
        let mut bytes_in_flight = 0;
        let (mut steps, mut blocks_of_step) = (0, 0);
        // The tree that is being walked, and those that were finished in this step.
        let (mut tree, mut finished): (Option<usize>, Vec<usize>) = (None, Vec::new());
        loop {
            while let Some((item, mut visited)) = stack.take() {
                if item.bookmark.level == Bookmark::LEVEL_OBJSET && item.origin.start != Start::Done {
                    finished.extend(tree.replace(item.origin.tree));
                }
                let children = std::mem::take(&mut visited.children);
                // On the way to the cursor only a block that has become bad is news.
                let is_news = !item.is_known || item.origin.keeps_known || visited.error.is_some();
                self.count(&item, sink);
                blocks_of_step += 1;
                let goes_below = !is_news || sink.take(view, &item, visited).await;
                if goes_below {
                    stack.push(children);
                }
                if self.control.is_paused() && self.views.steps().is_none() {
                    bytes_in_flight -= Self::land_all(&mut reads, &mut stack).await;
                    assert_eq!((reads.len(), bytes_in_flight), (0, 0), "a walk that rests reads nothing");
                    self.rest().await;
                }
                let Some(next) = stack.next() else { continue };
                let is_due = blocks_of_step >= self.step_blocks || self.control.wants_stop() || self.is_ended;
                if !is_due {
                    continue;
                }
                // A known block is behind the cursor already.
                if !self.cursor.can_move_to(next) {
                    if self.is_to_end() && (next.is_known || blocks_of_step >= 2 * STEP_BLOCKS) {
                        sink.forget();
                        return ViewEnd::Stopped;
                    }
                    // A long way: the view may be gone meanwhile.
                    if blocks_of_step.is_multiple_of(STEP_BLOCKS)
                        && let Err(error) = self.views.check(view)
                    {
                        return Self::let_go(reads, ViewEnd::GivenUp(error)).await;
                    }
                    continue;
                }
                if let Err(error) = self.views.check(view) {
                    return Self::let_go(reads, ViewEnd::GivenUp(error)).await;
                }
                if next.bookmark.level == Bookmark::LEVEL_OBJSET {
                    finished.extend(tree.take());
                }
                self.cursor.advance(Some(next), trees, &mut finished);
                sink.step(&self.cursor).await;
                (steps, blocks_of_step) = (steps + 1, 0);
                if self.is_to_end() {
                    return ViewEnd::Stopped;
                }
                if self.views.steps().is_some_and(|max| steps >= max || self.control.is_paused()) {
                    return Self::let_go(reads, ViewEnd::Over).await;
                }
            }
            while reads.len() < VISITS_MAX && (bytes_in_flight < VISIT_BYTES_MAX || reads.is_empty()) {
                let Some((ticket, item)) = stack.issue() else { break };
                if let Some(visited) = unread(&item) {
                    stack.land(ticket, visited);
                    continue;
                }
                if !self.reads.reads(view, &item) && !item.bp.is_gang() {
                    // Nothing is waited for.
                    stack.land(ticket, visit(view.clone(), item, self.reads.clone()).await);
                    continue;
                }
                let size_bytes = item.bp.psize_bytes().max(item.bp.lsize_bytes());
                bytes_in_flight += size_bytes;
                let join = self.handle.spawn(Class::Background, visit(view.clone(), item, self.reads.clone()));
                reads.push(Read { ticket, size_bytes, join });
            }
            assert!(reads.len() <= VISITS_MAX, "reads in flight are bounded");
            assert_eq!(reads.is_empty(), bytes_in_flight == 0, "a read is of some bytes");
            match reads.next().await {
                Some(read) => bytes_in_flight -= Self::land(read, &mut stack),
                None if stack.next().is_some() => {}
                None => break,
            }
        }
        if let Err(error) = self.views.check(view) {
            return ViewEnd::GivenUp(error);
        }
        finished.extend(tree);
        self.cursor.advance(None, trees, &mut finished);
        sink.step(&self.cursor).await;
        ViewEnd::Whole
    }

    /// A read has landed; its bytes.
    fn land((ticket, size_bytes, landed): <Read as Future>::Output, stack: &mut Stack) -> u64 {
        stack.land(ticket, landed.unwrap_or_else(|error| Visited::unread(Some(error.into()))));
        size_bytes
    }

    /// Waits for the reads that are under way; their bytes.
    async fn land_all(reads: &mut Unordered<Read>, stack: &mut Stack) -> u64 {
        let mut bytes = 0;
        while let Some(read) = reads.next().await {
            bytes += Self::land(read, stack);
        }
        bytes
    }

    /// Waits for the reads that are under way, which have the view, and takes nothing of them.
    async fn let_go(mut reads: Unordered<Read>, end: ViewEnd) -> ViewEnd {
        while reads.next().await.is_some() {}
        end
    }

    fn count(&mut self, item: &Item, sink: &impl Sink) {
        let was_counted = item.is_known && !item.origin.keeps_known;
        let asize_bytes = if item.bp.is_embedded() || was_counted { 0 } else { item.bp.asize_bytes() };
        let progress = &mut self.progress;
        progress.done_bytes = progress.done_bytes.saturating_add(asize_bytes);
        if item.is_known {
            progress.known_bytes = progress.known_bytes.saturating_add(asize_bytes);
        }
        progress.blocks += 1;
        if progress.blocks.is_multiple_of(STEP_BLOCKS) {
            let (total_bytes, errors) = sink.figures();
            progress.total_bytes = total_bytes.max(progress.done_bytes);
            progress.errors = errors;
            self.tick();
            self.control.set_progress(self.progress);
            self.is_ended |= !(self.watch)(self.progress);
        }
    }

    /// Looks at the clock.
    fn tick(&mut self) {
        let now = self.handle.now();
        self.progress.took += now - std::mem::replace(&mut self.since, now);
    }

    fn is_to_end(&self) -> bool {
        self.is_ended || self.control.is_ended()
    }

    /// Waits while the walk is paused.
    async fn rest(&mut self) {
        if self.control.is_paused() {
            self.tick();
            self.control.set_progress(self.progress);
            self.control.rest().await;
            self.since = self.handle.now();
        }
    }
}

/// The visit of a block that is not read: its data is in its pointer, or its pointer does not fit the place where it stands.
fn unread(item: &Item) -> Option<Visited> {
    match check_pointer(item) {
        Err(error) => Some(Visited::unread(Some(VisitError::Pointer(error)))),
        Ok(()) => item.bp.is_embedded().then(|| Visited::unread(None)),
    }
}

/// Whether a pointer fits the place where it stands: known algorithms, sane sizes, the level that its parent implies.
fn check_pointer(item: &Item) -> Result<(), PointerError> {
    item.bp.verify()?;
    let expected = item.bookmark.level.max(0);
    let level = item.bp.level();
    if i8::try_from(level) != Ok(expected) {
        return Err(PointerError::Level { level, expected });
    }
    Ok(())
}
