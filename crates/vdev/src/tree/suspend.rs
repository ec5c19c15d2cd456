//! Suspending a pool in use whose devices fail: its writes wait until `zpool clear`.
//!
//! # Theory
//!
//! **Need.** A cable that is pulled and plugged in again must not lose dirty data. The sync of a txg cannot be undone: it has already
//! changed space accounting in memory when a device reports an error. So the failed write itself waits, and is issued again.
//!
//! **In memory.**
//! ```text
//! State    why          whether the pool is suspended, and why
//!          kept         what was written since the last flush that all devices could do, in the order it was begun
//!          under_way    writes and flushes that devices have not answered
//!          behind       leaves that have missed some of what is kept
//!          unflushed    leaves that failed a flush which no result has named yet
//!          in_doubt     leaves that failed a stable write: what they have in their caches may be lost
//!          flush_failures  failed flushes of each leaf: a device that was reset reports it to one of several callers only
//! ```
//!
//! **Life of a failure.**
//! 1. A write that too few devices took suspends the pool. It waits, and so does every write that is begun from then on.
//! 2. [`VdevTree::resume`] waits until devices have answered what is under way. A device that was away may have lost its volatile write
//!    cache, even if it acknowledged the writes, so all kept writes are issued again, in order, and flushed.
//! 3. If that succeeds the pool goes on: the waiting writes are issued again. If not, it stays suspended.
//!
//! A device that hangs is no failure yet: [`super::deadman`].
//!
//! A read that fails is asked again after the pool goes on. Before a failed read suspends the pool, its devices are probed: one bad sector
//! is no reason.
//!
//! **Invariants.**
//! 1. Between two flushes of its vdev that succeeded everything that was written is kept: [`KEPT_MAX_BYTES`] at most, since the devices are
//!    flushed when there is more. Not kept is a block that its write has made stable on all leaves. Nothing older of its place is kept then,
//!    since freed space is used again after two more txgs, each with its flush.
//! 2. A flush that is reported as good has made stable what it covers on as many devices as the redundancy needs.
//! 3. While what is kept is written again nothing else is under way, and every device has answered all writes, those without a waiter
//!    included.
//! 4. A write stops being under way and becomes written in one step, so writing again misses none. A write takes the lock twice, when it
//!    begins and when it ends.
//!
//! **Rejected.** *Restarting the txg*: everything that its sync changes in memory would need a way back. *Repeating only the failed
//! writes*: writes that a device had acknowledged but not made stable would be lost silently.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use cenote_format::ids::{Guid, Txg, VdevId};
use cenote_taskq::buf::{Block, Buf};
use cenote_taskq::mutant::{self, Mutant};
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicBool, Ordering};
use cenote_taskq::{Either, Notify, boxed, join_all, race};

use super::hangs::{Hang, Hangs};
use super::node::{Kind, Node};
use super::write::{WriteContext, Written};
use super::{Topology, VdevSet, VdevTree};
use crate::disk::Disk;
use crate::error::VdevError;

/// Too few devices of a top-level vdev could be flushed: blocks that were written to it may be lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too few devices of {path} could be flushed")]
struct TooFewFlushed {
    /// The vdev.
    vdev: VdevId,
    /// Its place or name.
    path: Arc<str>,
}

/// The most bytes kept between two flushes: flushing costs a device little compared with writing that much, and kept memory is missing for
/// later writes.
const KEPT_MAX_BYTES: usize = 64 << 20;

/// The range that a probe reads and writes back: the unused part of a label.
const PROBE_BYTES: usize = 8 << 10;

/// Whether a pool's devices take what is written, and what is to be written again if they did not.
#[derive(Debug, Default)]
pub struct Suspension {
    state: Mutex<State>,
    is_suspended: AtomicBool,
    /// Reads do not wait while the pool is suspended.
    refuses_reads: AtomicBool,
    /// The pool was suspended, goes on, or what was under way has ended.
    changed: Notify,
    /// Devices that were found to hang.
    pub(super) hangs: Hangs,
    /// Asked before each write, and before clients are told of one.
    guard: OnceLock<Guard>,
}

/// Says why nothing may be written now, if so: another host may have the pool.
struct Guard(Box<dyn Fn() -> Option<String> + Send + Sync>);

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guard")
    }
}

/// Whether writes wait, and why. A person reads the text.
#[derive(Debug, Default)]
enum Why {
    /// They do not.
    #[default]
    NotSuspended,
    /// Too few devices took something: until devices take all of it again.
    Devices(Arc<str>),
    /// A device hangs: until it has answered.
    Hang(Arc<str>),
    /// Another host may have the pool: until labels were looked at.
    Multihost {
        reason: Arc<str>,
        /// It was suspended already.
        before: Box<Why>,
    },
}

impl Why {
    const fn reason(&self) -> Option<&Arc<str>> {
        match self {
            Self::NotSuspended => None,
            Self::Devices(reason) | Self::Hang(reason) | Self::Multihost { reason, .. } => Some(reason),
        }
    }

    const fn is_suspended(&self) -> bool {
        !matches!(self, Self::NotSuspended)
    }

    const fn is_multihost(&self) -> bool {
        matches!(self, Self::Multihost { .. })
    }

    /// As an error of what waits for it.
    fn error(&self) -> VdevError {
        VdevError::Suspended(self.reason().map(ToString::to_string).unwrap_or_default())
    }
}

#[derive(Debug, Default)]
struct State {
    why: Why,
    is_abandoned: bool,
    is_resuming: bool,
    is_flushing: bool,
    next: u64,
    kept: BTreeMap<u64, UnflushedWrite>,
    kept_bytes: usize,
    under_way: usize,
    behind: BTreeSet<Guid>,
    unflushed: BTreeSet<Guid>,
    /// Leaves that failed a write which was to be stable, since the last flush.
    in_doubt: BTreeSet<Guid>,
    /// Flushes that each leaf has failed since the pool was opened.
    flush_failures: BTreeMap<Guid, u64>,
}

#[derive(Clone, Debug)]
struct UnflushedWrite {
    vdev: VdevId,
    offset_bytes: u64,
    block: Block,
    birth: Txg,
    is_written: bool,
}

impl State {
    fn keep(&mut self, kept: UnflushedWrite) -> u64 {
        let number = self.next;
        self.next += 1;
        debug_assert!(!kept.is_written, "a write is kept before it is written (invariant 1)");
        self.kept_bytes += kept.block.len();
        let before = self.kept.insert(number, kept);
        assert!(before.is_none(), "each write that is kept has a number of its own (invariant 1)");
        number
    }

    /// Returns the kept block, to be dropped after the state is unlocked.
    fn forget(&mut self, number: u64) -> Option<UnflushedWrite> {
        let kept = self.kept.remove(&number)?;
        assert!(kept.block.len() <= self.kept_bytes, "what is forgotten was counted when it was kept");
        self.kept_bytes -= kept.block.len();
        assert!(!self.kept.is_empty() || self.kept_bytes == 0, "without a kept write no byte is kept");
        Some(kept)
    }

    /// The writes to these vdevs that are done by now, and their vdevs.
    fn written(&self, of: VdevSet) -> (Vec<u64>, BTreeSet<VdevId>) {
        let is_covered = |kept: &UnflushedWrite| kept.is_written && of.contains(kept.vdev);
        self.kept.iter().filter(|(_, kept)| is_covered(kept)).map(|(number, kept)| (*number, kept.vdev)).unzip()
    }

    /// Counts something as asked of devices, if they may be asked.
    fn enter(&mut self) -> bool {
        let may = !self.why.is_suspended();
        self.under_way += usize::from(may);
        may
    }

    /// Devices have answered. Whether someone may be waiting for that.
    fn leave(&mut self) -> bool {
        assert!(self.under_way > 0, "what ends was under way (invariant 4)");
        self.under_way -= 1;
        self.under_way == 0 && self.why.is_suspended()
    }

    /// Whether so much is kept that it is time for a flush, and nobody else does it.
    fn begins_flush(&mut self) -> bool {
        let begins = self.kept_bytes > KEPT_MAX_BYTES && !self.is_flushing;
        self.is_flushing |= begins;
        begins
    }
}

/// Something that devices are asked.
pub(super) struct UnderWay<'a>(&'a Suspension);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// One write, from its beginning until it is known to be good. If it is dropped before, its caller has gone.
struct Keeping<'a> {
    suspension: &'a Suspension,
    number: u64,
    is_under_way: bool,
    has_ended: bool,
}

impl Keeping<'_> {
    /// Waits until devices may be asked.
    async fn pass(&mut self) -> Result<(), VdevError> {
        while !self.is_under_way {
            self.suspension.passed().await?;
            if !self.suspension.is_unclaimed() {
                continue;
            }
            self.is_under_way = self.suspension.state.lock().enter();
        }
        Ok(())
    }

    /// Too few devices took it: the pool is suspended, and this is not under way any more.
    fn failed(&mut self, reason: String) {
        assert!(self.is_under_way, "what devices have failed was under way (invariant 4)");
        self.suspension.suspend(reason);
        self.is_under_way = false;
        self.suspension.leave();
    }

    /// It is written, but these leaves have missed it. `is_stable`: the others have made it stable. Whether a flush is to be begun.
    fn end(mut self, missed: &[Guid], is_stable: bool) -> bool {
        assert!(self.is_under_way, "what devices have written was under way (invariant 4)");
        self.has_ended = true;
        let mut gone = None;
        let (is_last, begins_flush) = {
            let mut state = self.suspension.state.lock();
            state.behind.extend(missed);
            if is_stable && missed.is_empty() {
                gone = state.forget(self.number);
                debug_assert!(gone.is_some(), "what is written is kept until then (invariant 1)");
            } else if let Some(kept) = state.kept.get_mut(&self.number) {
                debug_assert!(!kept.is_written, "a write becomes written once (invariant 4)");
                kept.is_written = true;
            } else {
                debug_assert!(false, "no flush covers what is not written yet (invariants 1 and 2)");
            }
            (state.leave(), state.begins_flush())
        };
        drop(gone);
        if is_last {
            self.suspension.changed.all();
        }
        begins_flush
    }
}

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let is_last = {
            let mut state = self.suspension.state.lock();
            drop(state.forget(self.number));
            self.is_under_way && state.leave()
        };
        if is_last {
            self.suspension.changed.all();
        }
    }
}

/// A writer's flush of what is kept.
struct FlushTurn<'a>(&'a Suspension);

impl Drop for FlushTurn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        debug_assert!(state.is_flushing, "one writer at a time flushes what is kept (invariant 1)");
        state.is_flushing = false;
    }
}

/// The kept writes are being issued again.
struct Resuming<'a>(&'a Suspension);

impl Drop for Resuming<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        debug_assert!(state.is_resuming, "one task at a time writes again (invariant 3)");
        state.is_resuming = false;
    }
}

impl Suspension {
    /// Why the pool is suspended, if it is.
    #[must_use]
    pub fn reason(&self) -> Option<Arc<str>> {
        if self.is_suspended.load(Ordering::Acquire) { self.state.lock().why.reason().cloned() } else { None }
    }

    /// Changes whether the pool is suspended, and why; all that wait are woken.
    fn change(&self, change: impl FnOnce(&mut Why)) {
        {
            let mut state = self.state.lock();
            change(&mut state.why);
            self.is_suspended.store(state.why.is_suspended(), Ordering::Release);
        }
        self.changed.all();
    }

    /// Has everything wait until the pool is resumed. The first reason stays.
    pub fn suspend(&self, reason: impl Into<Arc<str>>) {
        self.change(|why| {
            if !why.is_suspended() {
                *why = Why::Devices(reason.into());
            }
        });
    }

    /// As [`Suspension::suspend`], since another host may have the pool by now. It stays suspended, whatever devices do, until
    /// [`Suspension::multihost_checked`] was called.
    pub fn suspend_for_multihost(&self, reason: impl Into<Arc<str>>) {
        self.change(|why| {
            let reason = reason.into();
            let before = match std::mem::take(why) {
                Why::Multihost { before, .. } => before,
                other => Box::new(other),
            };
            assert!(!before.is_multihost(), "a pool is suspended for multihost once");
            *why = Why::Multihost { reason, before };
        });
    }

    /// It is suspended because another host may have the pool.
    #[must_use]
    pub fn is_for_multihost(&self) -> bool {
        self.is_suspended.load(Ordering::Acquire) && self.state.lock().why.is_multihost()
    }

    /// No other host has the pool: it may be resumed.
    pub fn multihost_checked(&self) {
        let why = &mut self.state.lock().why;
        if let Why::Multihost { reason, .. } = why {
            *why = Why::Devices(reason.clone());
        }
    }

    /// No other host has the pool, and it goes on unless it was suspended for another reason before: nothing was lost.
    pub fn multihost_over(&self) {
        {
            let mut state = self.state.lock();
            let is_abandoned = state.is_abandoned;
            match &mut state.why {
                Why::Multihost { before, .. } if !is_abandoned => state.why = std::mem::take(before),
                _ => return,
            }
            self.is_suspended.store(state.why.is_suspended(), Ordering::Release);
        }
        self.changed.all();
    }

    /// Has `late` asked before each write; with an answer the pool is [suspended](Self::suspend_for_multihost). Once.
    pub fn guard_writes(&self, late: impl Fn() -> Option<String> + Send + Sync + 'static) {
        let _ = self.guard.set(Guard(Box::new(late)));
    }

    /// As [`Suspension::suspend`], until a device that hangs has answered.
    pub(super) fn suspend_for_hang(&self, reason: String) {
        self.change(|why| {
            if !why.is_suspended() {
                *why = Why::Hang(reason.into());
            }
        });
    }

    /// Whether it goes on by itself once a device that hangs has answered.
    pub(super) fn is_for_hang(&self) -> bool {
        matches!(self.state.lock().why, Why::Hang(_))
    }

    /// Wakes the tasks that wait for devices to answer, if the pool is suspended.
    pub(super) fn look_again(&self) {
        if self.is_suspended.load(Ordering::Acquire) {
            self.changed.all();
        }
    }

    /// Waits until a device is found to hang: each is told of once.
    pub async fn hung(&self) -> Hang {
        self.hangs.next().await
    }

    /// Leaves that have missed a part of what is kept.
    pub(super) fn behind(&self) -> BTreeSet<Guid> {
        self.state.lock().behind.clone()
    }

    /// Whether reads that fail while the pool is suspended fail at once, and do not wait until it goes on.
    pub fn set_refuses_reads(&self, refuses: bool) {
        self.refuses_reads.store(refuses, Ordering::Relaxed);
    }

    /// Waits until the pool is not suspended.
    ///
    /// # Errors
    /// The pool was given up and will not be resumed.
    pub async fn passed(&self) -> Result<(), VdevError> {
        loop {
            let changed = self.changed.wait();
            {
                let state = self.state.lock();
                if !state.why.is_suspended() {
                    return Ok(());
                }
                if state.is_abandoned {
                    return Err(state.why.error());
                }
            }
            changed.await;
        }
    }

    /// Waits until the pool is suspended; why.
    pub async fn failed(&self) -> Arc<str> {
        loop {
            let changed = self.changed.wait();
            if let Some(reason) = self.reason() {
                return reason;
            }
            changed.await;
        }
    }

    /// Gives up: what waits fails, and so does all that is written from now on, if the pool is suspended. Whether it is.
    pub fn abandon(&self) -> bool {
        let is_suspended = {
            let mut state = self.state.lock();
            state.is_abandoned = true;
            state.why.is_suspended()
        };
        self.changed.all();
        is_suspended
    }

    /// Whether it was given up.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.state.lock().is_abandoned
    }

    /// Begins a write: it is kept, and under way unless the pool is suspended.
    fn begin(&self, kept: UnflushedWrite) -> Keeping<'_> {
        if !self.is_suspended.load(Ordering::Acquire) {
            self.is_unclaimed();
        }
        let mut state = self.state.lock();
        let number = state.keep(kept);
        Keeping { suspension: self, number, is_under_way: state.enter(), has_ended: false }
    }

    /// True if something may be written as far as other hosts are concerned; else the pool is suspended. A process that was stopped goes
    /// on in the middle of a sync, and by then another host may have the pool.
    fn is_unclaimed(&self) -> bool {
        let Some(reason) = self.guard.get().and_then(|guard| (guard.0)()) else { return true };
        self.suspend_for_multihost(reason);
        false
    }

    /// Whether what devices have just answered may be told to clients. Asked at every acknowledgement: where devices hung and answer again,
    /// another host may have imported the pool meanwhile, without what they have just taken. The pool is suspended then.
    #[must_use]
    pub fn may_acknowledge(&self) -> bool {
        mutant::is(Mutant::LateNotAskedAfterWrite) || self.is_unclaimed()
    }

    /// Waits until devices may be asked something.
    async fn enter(&self) -> Result<UnderWay<'_>, VdevError> {
        loop {
            if self.state.lock().enter() {
                return Ok(UnderWay(self));
            }
            self.passed().await?;
        }
    }

    /// As [`Self::enter`], for what is not to wait: none while the pool is suspended, or another host may have it.
    pub(super) fn enter_unless_suspended(&self) -> Option<UnderWay<'_>> {
        (self.is_unclaimed() && self.state.lock().enter()).then(|| UnderWay(self))
    }

    /// Devices have answered something.
    fn leave(&self) {
        let is_last = self.state.lock().leave();
        if is_last {
            self.changed.all();
        }
    }

    /// Leaves have missed a part of what is kept.
    fn note_behind(&self, leaves: &[Guid]) {
        if !leaves.is_empty() {
            self.state.lock().behind.extend(leaves);
        }
    }

    /// A leaf has failed a write that was to be stable: as if it had failed a flush too.
    pub(super) fn stable_write_failed(&self, leaf: Guid) {
        let mut state = self.state.lock();
        state.in_doubt.insert(leaf);
        *state.flush_failures.entry(leaf).or_default() += 1;
    }

    fn count_failures(&self, leaves: &BTreeSet<Guid>) {
        if !leaves.is_empty() {
            let failures = &mut self.state.lock().flush_failures;
            leaves.iter().for_each(|leaf| *failures.entry(*leaf).or_default() += 1);
        }
    }

    /// A flush has made stable what these are, and these leaves count as ones that failed it.
    fn flushed(&self, covered: &[u64], told: &BTreeSet<Guid>) {
        let mut state = self.state.lock();
        state.in_doubt.retain(|leaf| !told.contains(leaf));
        let gone: Vec<Option<UnflushedWrite>> = covered.iter().map(|number| state.forget(*number)).collect();
        if state.kept.is_empty() {
            state.behind.clear();
        }
        // Free the memory without holding the lock.
        drop(state);
        drop(gone);
    }
}

impl VdevTree {
    /// From now on what too few devices take waits until [`VdevTree::resume`].
    /// From now on it is noticed, too, which devices hang.
    pub fn wait_for_devices(self: &Arc<Self>) -> Arc<Suspension> {
        let suspension = self.common.suspension.get_or_init(Arc::default).clone();
        self.watch_devices();
        suspension
    }

    /// Whether devices take what is written, where writes wait for them.
    #[must_use]
    pub fn suspension(&self) -> Option<&Suspension> {
        self.common.suspension.get().map(Arc::as_ref)
    }

    /// Writes until enough devices have taken it.
    pub(super) async fn write_patiently(
        &self,
        suspension: &Suspension,
        vdev: VdevId,
        offset_bytes: u64,
        block: &Block,
        context: WriteContext,
    ) -> Result<Written, VdevError> {
        let kept = UnflushedWrite { vdev, offset_bytes, block: block.clone(), birth: context.birth, is_written: false };
        let mut keeping = suspension.begin(kept);
        let written = loop {
            keeping.pass().await?;
            match self.write_once(vdev, offset_bytes, block, context).await {
                Ok(written) => break written,
                Err(error @ VdevError::Unwritable { .. }) => keeping.failed(error.to_string()),
                Err(error) => return Err(error),
            }
        };
        if keeping.end(&written.missed, context.is_stable) {
            let _turn = FlushTurn(suspension);
            let failed = self.flush_patiently(suspension, VdevSet::ALL).await?;
            suspension.state.lock().unflushed.extend(failed);
        }
        Ok(written)
    }

    /// As [`VdevTree::write_once`], for blocks that nobody waits for where they cannot be written, as those of log devices. Nothing is
    /// written while the pool is suspended or another host may have it, and what was written does not count where that has come meanwhile:
    /// the pool may be another's by now, with a log of its own in this place.
    ///
    /// # Errors
    /// [`VdevError::Suspended`], or as [`VdevTree::write_once`].
    #[boxed]
    pub async fn write_unless_suspended(
        &self,
        vdev: VdevId,
        offset_bytes: u64,
        block: &Block,
        context: WriteContext,
    ) -> Result<Written, VdevError> {
        let Some(suspension) = self.suspension() else {
            return self.write_once(vdev, offset_bytes, block, context).await;
        };
        let refused = || Err(VdevError::Suspended(suspension.reason().as_deref().unwrap_or_default().to_owned()));
        let Some(_under_way) = suspension.enter_unless_suspended() else { return refused() };
        let written = self.write_once(vdev, offset_bytes, block, context).await?;
        if !suspension.may_acknowledge() || suspension.reason().is_some() {
            return refused();
        }
        Ok(written)
    }

    /// Flushes until enough devices have done it.
    async fn flush_patiently(&self, suspension: &Suspension, of: VdevSet) -> Result<BTreeSet<Guid>, VdevError> {
        loop {
            let under_way = suspension.enter().await?;
            match self.flush_kept(suspension, of).await {
                Ok(failed) => return Ok(failed),
                Err(error) => suspension.suspend(error.to_string()),
            }
            drop(under_way);
        }
    }

    /// One flush of all devices of these vdevs: those that failed, or why so few could that something may be lost.
    async fn flush_kept(&self, suspension: &Suspension, of: VdevSet) -> Result<BTreeSet<Guid>, TooFewFlushed> {
        let ((covered, vdevs), mut in_doubt, failures) = {
            let state = suspension.state.lock();
            (state.written(of), state.in_doubt.clone(), state.flush_failures.clone())
        };
        debug_assert!(vdevs.iter().all(|vdev| of.contains(*vdev)), "a flush covers what its vdevs have (invariant 2)");
        let topology = self.topology();
        let mut failed: BTreeSet<Guid> = topology.flush(of).await.into_iter().collect();
        // A device that has lost its cache reports that to one of several callers: if another flush or a stable write was told meanwhile, this
        // one's success says nothing of the blocks before.
        let behind = {
            let state = suspension.state.lock();
            let is_counted = |(leaf, before): (&Guid, &u64)| state.flush_failures.get(leaf) >= Some(before);
            debug_assert!(failures.iter().all(is_counted), "failed flushes are only counted up (invariant 2)");
            let told = state.flush_failures.iter().filter(|(leaf, count)| failures.get(*leaf) != Some(*count));
            in_doubt.extend(told.map(|(leaf, _)| *leaf));
            state.behind.clone()
        };
        suspension.count_failures(&failed);
        failed.extend(&in_doubt);
        if !failed.is_empty()
            && let Some(top) = topology.lost_top(&vdevs, &failed, &behind)
        {
            return Err(TooFewFlushed { vdev: top.top, path: top.path.clone() });
        }
        suspension.flushed(&covered, &in_doubt);
        Ok(failed)
    }

    /// As [`VdevTree::flush_of`] where writes wait for devices.
    pub(super) async fn flush_patiently_of(
        &self,
        suspension: &Suspension,
        of: VdevSet,
    ) -> Result<Vec<Guid>, VdevError> {
        let mut failed = self.flush_patiently(suspension, of).await?;
        failed.append(&mut suspension.state.lock().unflushed);
        Ok(failed.into_iter().collect())
    }

    /// Has a suspended pool go on, if its devices take what they may have lost. Not suspended, nothing happens.
    ///
    /// # Errors
    /// Why it stays suspended.
    #[boxed]
    pub async fn resume(&self) -> Result<(), VdevError> {
        let Some(suspension) = self.suspension().filter(|suspension| suspension.reason().is_some()) else {
            return Ok(());
        };
        {
            let mut state = suspension.state.lock();
            if state.why.is_multihost() {
                return Err(state.why.error());
            }
            // Another resume may have ended since the look before.
            if !state.why.is_suspended() {
                return Ok(());
            }
            if std::mem::replace(&mut state.is_resuming, true) {
                return Err(VdevError::Suspended("someone else is resuming it".into()));
            }
        }
        let resuming = Resuming(suspension);
        let again = match race(Box::pin(self.write_kept_again(suspension)), self.until_held_up(suspension)).await {
            Either::Left(again) => again,
            Either::Right(reason) => {
                let mut state = suspension.state.lock();
                if !state.why.is_multihost() {
                    state.why = Why::Hang(reason.clone().into());
                }
                return Err(VdevError::Suspended(reason));
            }
        };
        let mut state = suspension.state.lock();
        match again {
            // It was suspended for multihost meanwhile.
            _ if state.why.is_multihost() => return Err(state.why.error()),
            Ok(()) if !state.is_abandoned => {
                state.why = Why::NotSuspended;
                suspension.is_suspended.store(false, Ordering::Release);
            }
            Ok(()) => return Err(VdevError::Suspended("it is being closed".into())),
            Err(error) => {
                state.why = Why::Devices(error.why().into());
                return Err(error);
            }
        }
        drop(state);
        drop(resuming);
        suspension.changed.all();
        Ok(())
    }

    /// Waits until devices have answered what they were asked.
    async fn quiet(&self, suspension: &Suspension) {
        loop {
            let changed = suspension.changed.wait();
            if suspension.state.lock().under_way == 0 && self.topology().is_quiet() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until a device hangs that nothing can go on without: which.
    async fn until_held_up(&self, suspension: &Suspension) -> String {
        loop {
            let changed = suspension.changed.wait();
            if let Some(reason) = self.topology().held_up() {
                return reason;
            }
            changed.await;
        }
    }

    /// Has devices take again what they may have lost, once they have answered everything else.
    async fn write_kept_again(&self, suspension: &Suspension) -> Result<(), VdevError> {
        self.quiet(suspension).await;
        // The data that an expansion copied is not kept.
        self.common.reflow.lost();
        let kept: Vec<UnflushedWrite> = {
            let mut state = suspension.state.lock();
            assert_eq!(state.under_way, 0, "nothing else is under way while writes are issued again (invariant 3)");
            assert!(state.is_resuming, "one task at a time issues writes again (invariant 3)");
            state.behind.clear();
            state.in_doubt.clear();
            state.kept.values().filter(|kept| kept.is_written).cloned().collect()
        };
        self.topology().probe_all().await?;
        let skipped = if mutant::is(Mutant::KeptDropped) { kept.len() / 2 } else { 0 };
        for UnflushedWrite { vdev, offset_bytes, block, birth, .. } in &kept[skipped..] {
            let written = self.write_once(*vdev, *offset_bytes, block, WriteContext::new(*birth)).await?;
            suspension.note_behind(&written.missed);
        }
        let flushed = self.flush_kept(suspension, VdevSet::ALL).await;
        let failed = flushed.map_err(|error| VdevError::Suspended(error.to_string()))?;
        suspension.state.lock().unflushed.extend(failed);
        Ok(())
    }

    /// For each leaf of a top-level vdev, how many flushes it has failed, as long as writes wait for devices. A device that was reset has
    /// lost the writes of all callers, but tells one of their flushes alone: where the number of a leaf has changed since before a write,
    /// that leaf may lack the write.
    #[must_use]
    pub fn flush_failures_of(&self, vdev: VdevId) -> Vec<(Guid, u64)> {
        let topology = self.topology();
        let leaves = topology.nodes.iter().filter(|node| node.top == vdev && matches!(node.kind, Kind::Leaf(_)));
        let state = self.suspension().map(|suspension| suspension.state.lock());
        let failures = |leaf| state.as_ref().and_then(|state| state.flush_failures.get(&leaf)).copied().unwrap_or(0);
        leaves.map(|node| (node.guid, failures(node.guid))).collect()
    }

    /// To be called after a read that failed for lack of devices. If the devices are gone the pool is suspended, and this waits until it
    /// goes on and returns `true`. `is_needed`: it waits even if reads are to fail at once.
    pub async fn wait_for_reads(&self, is_needed: bool) -> bool {
        let Some(suspension) = self.suspension() else { return false };
        if suspension.reason().is_none() {
            let topology = self.topology();
            match Box::pin(topology.probe_all()).await {
                Ok(()) => return false,
                Err(error) => suspension.suspend(error.to_string()),
            }
        }
        let waits = is_needed || !suspension.refuses_reads.load(Ordering::Relaxed);
        waits && suspension.passed().await.is_ok()
    }
}

/// Reads the unused part of a device's first label, writes it back, and makes it stable: a file that was deleted takes writes all the same.
async fn write_back(disk: &Disk) -> std::io::Result<()> {
    let (read, buf) = disk.probe(0, Buf::unfilled(PROBE_BYTES)).await;
    read?;
    disk.write(0, buf.freeze()).await?;
    disk.flush().await
}

impl VdevTree {
    /// Tries whether a leaf that is used still works, as OpenZFS's `vdev_probe`: the unused part of its label is read, written back, and made
    /// stable. `Ok` for one that is not used.
    ///
    /// # Errors
    /// The device's.
    #[boxed]
    pub async fn probe_leaf(&self, guid: Guid) -> std::io::Result<()> {
        let topology = self.topology();
        let Some(Kind::Leaf(leaf)) = topology.lookup(guid).map(|node| &node.kind) else { return Ok(()) };
        let Some((disk, _)) = leaf.writable_disk() else { return Ok(()) };
        write_back(disk).await
    }
}

impl Topology {
    /// Whether enough devices of each top-level vdev take what is written to them, tried where nothing is kept: the first bytes of
    /// a label are read and written back. A vdev whose devices were missing before is not probed.
    async fn probe_all(&self) -> Result<(), VdevError> {
        let leaves = self.nodes.iter().filter_map(|node| match &node.kind {
            Kind::Leaf(leaf) => leaf.writable_disk().map(|(disk, _)| (node, disk)),
            _ => None,
        });
        let probes = leaves.map(|(node, disk)| async move {
            let written = write_back(disk).await;
            written.err().map(|error| (node.guid, format!("{} does not answer: {error}", node.path)))
        });
        let failed: BTreeMap<Guid, String> = join_all(probes).await.into_iter().flatten().collect();
        let without = failed.keys().copied().collect();
        let tops = self.tops.iter().map(|top| self.node(top.node));
        for top in tops.filter(|top| self.takes(top, &BTreeSet::new())) {
            if !self.takes(top, &without) {
                return Err(VdevError::Suspended(failed.into_values().collect::<Vec<_>>().join("; ")));
            }
        }
        Ok(())
    }

    /// The first of these top-level vdevs that has lost what was written to it, if what `failed` were told is gone, and a part of
    /// what `behind` should have.
    fn lost_top(&self, vdevs: &BTreeSet<VdevId>, failed: &BTreeSet<Guid>, behind: &BTreeSet<Guid>) -> Option<&Node> {
        let lost: BTreeSet<Guid> = failed.union(behind).copied().collect();
        let mut tops = vdevs.iter().filter_map(|vdev| self.tops.get(vdev.0 as usize)).map(|top| self.node(top.node));
        tops.find(|top| !self.takes(top, &lost))
    }

    /// Whether a vdev takes what is written to it without these leaves.
    pub(super) fn takes(&self, node: &Node, without: &BTreeSet<Guid>) -> bool {
        let failed = || node.children.iter().filter(|child| !self.takes(self.node(**child), without)).count();
        match &node.kind {
            Kind::Leaf(leaf) => leaf.writable_disk().is_some() && !without.contains(&node.guid),
            Kind::Mirror => failed() < node.children.len(),
            Kind::Raidz(_) | Kind::Draid(_) => failed() <= node.dispensable_children(),
            // A child that it lies on is counted where the child stands: as in [`super::outage`].
            Kind::DraidSpare { draid, .. } => draid.is_some() && !without.contains(&node.guid),
            Kind::Indirect | Kind::Hole | Kind::Missing => false,
        }
    }
}
