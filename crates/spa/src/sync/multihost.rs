//! Multihost writes of a pool that is in use; the theory is in [`crate::multihost`].
//!
//! **In memory.** [`Multihost`] is shared by the pool's writer, which tells it of each uberblock and asks it before each commit, and
//! by a task that runs for as long as the writer exists and sleeps where nothing is to be shown.
//! ```text
//! State   mode        off; held (shown without the property); on
//!         uberblock   the newest that is committed, with the time and sequence of the last multihost write
//!         attempt     the one that is being committed: on some devices already, perhaps
//!         leaves      in turn, each with at most one multihost write under way
//!         written     when the last multihost write or commit succeeded; delay: the average between two
//! ```
//! A write that a device does not answer holds up neither the next device's nor the task.

use std::sync::Arc;
use std::time::Duration;

use cenote_format::ids::{Guid, Txg};
use cenote_format::uberblock::{Mmp, Uberblock};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Class, Either, Handle, Instant, Notify, race};
use cenote_vdev::commit::LeafCommit;
use cenote_vdev::disk::Disk;
use cenote_vdev::ring::write_multihost;
use cenote_vdev::tree::Suspension;
use thiserror::Error;

use crate::multihost::{Settings, newest_of, reports, watch_disks, watch_time};
use crate::owner::host_of;
use crate::sync::clock::Clock;

/// Between two multihost writes at least, however many devices there are.
const PERIOD_MIN: Duration = Duration::from_millis(10);
/// How long the end of a pool waits for multihost writes that devices have not answered. A write that lands later is older than the
/// pool's last uberblock.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// After how many intervals without a multihost write a held pool's labels are looked at before a commit.
const LATE_INTERVALS: u32 = 10;
/// Weights of the average delay, as OpenZFS has them: the latest counts 1 in 128.
const DELAY_WEIGHT: u32 = 128;

/// Why a pool is not written: another host has it, or may have it.
#[derive(Debug, Error)]
pub(crate) enum MultihostError {
    /// No multihost write has succeeded for so long.
    #[error("multihost writes have not succeeded in over {} ms; another system could import the pool", .0.as_millis())]
    Late(Duration),
    /// No device can be read, so it cannot be told.
    #[error("no device can be read to see whether another system has the pool")]
    NoDevice,
    /// The newest uberblock on disk is not this host's.
    #[error(
        "another system ({host}) has written txg {txg} while this one had the pool; nothing more is written to it here"
    )]
    Taken {
        /// The host that the labels name.
        host: String,
        /// The txg of the newest uberblock.
        txg: Txg,
    },
    /// The labels changed while they were watched.
    #[error("another system is writing to the pool")]
    Active,
}

/// How a pool in use is shown to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is not.
    #[default]
    Off,
    /// It is, and suspended for being late only until the labels were looked at.
    Held,
    /// As the property `multihost` wants.
    On,
}

/// The multihost writes of one pool. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Multihost(Arc<Shared>);

struct Shared {
    handle: Handle,
    settings: Settings,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    mode: Mode,
    /// The property.
    is_on: bool,
    is_held: bool,
    is_running: bool,
    is_stopped: bool,
    uberblock: Option<Uberblock>,
    attempt: Option<Uberblock>,
    leaves: Vec<Leaf>,
    next: usize,
    sequence: u16,
    written: Instant,
    delay: Duration,
    under_way: usize,
    /// The limit of a pool that was held until its export: its last uberblock says that nobody has it, and must not come too late either.
    last_limit: Duration,
    /// Labels are being looked at, so that a held pool may go on.
    is_checking: bool,
    suspension: Option<Arc<Suspension>>,
}

/// A leaf that gets multihost writes.
#[derive(Clone)]
struct Leaf {
    guid: Guid,
    disk: Disk,
    ashift: u32,
    /// A multihost write to it is under way.
    is_pending: bool,
}

impl State {
    /// A multihost write, or a commit, has succeeded or not: the delay follows. One that comes too late proves nothing, since
    /// another host may have the pool by then: a process that was stopped finds its last write done when it goes on.
    fn done(&mut self, now: Instant, is_good: bool, settings: &Settings) {
        let since = now - self.written;
        self.delay = self.delay.max(since);
        let limit = self.limit(settings);
        if !is_good || (!limit.is_zero() && since > limit) {
            return;
        }
        self.written = now;
        if since < self.delay {
            let average = (since + self.delay * (DELAY_WEIGHT - 1)) / DELAY_WEIGHT;
            self.delay = average.max(settings.interval / self.leaves.len().max(1) as u32);
        }
    }

    /// After how long without a multihost write another host may have the pool; 0: never.
    fn limit(&self, settings: &Settings) -> Duration {
        match self.mode {
            Mode::On => settings.interval * u32::from(settings.fail_intervals),
            Mode::Held => settings.interval * LATE_INTERVALS,
            Mode::Off => self.last_limit,
        }
    }

    /// `true` for an uberblock that this host has written, or may have written, and for an older one.
    fn is_ours(&self, newest: &Uberblock) -> bool {
        self.attempt.as_ref() == Some(newest) || self.uberblock.is_none_or(|ours| newest.cmp_age(&ours).is_le())
    }
}

impl Multihost {
    /// Of a pool with this property.
    pub(crate) fn new(handle: &Handle, settings: Settings, is_on: bool) -> Self {
        let state = State {
            mode: if is_on { Mode::On } else { Mode::Off },
            is_on,
            written: handle.now(),
            delay: settings.interval,
            ..State::default()
        };
        Self(Arc::new(Shared { handle: handle.clone(), settings, state: Mutex::new(state), changed: Notify::new() }))
    }

    pub(crate) fn mode(&self) -> Mode {
        self.0.state.lock().mode
    }

    /// `true` if labels get the holder's host id ([`holder_id`](crate::holder_id)).
    pub(crate) fn is_shown(&self) -> bool {
        self.mode() != Mode::Off
    }

    /// The property is set.
    pub(crate) fn set_on(&self, is_on: bool) {
        self.set(|state| state.is_on = is_on);
    }

    /// The pool is held from now on.
    pub(crate) fn hold(&self) {
        self.set(|state| state.is_held = true);
    }

    /// Checks its state against itself. For tests and simulations.
    pub(crate) fn audit(&self) {
        let state = self.0.state.lock();
        let pending = state.leaves.iter().filter(|leaf| leaf.is_pending).count();
        assert!(pending <= state.under_way, "a write that a leaf waits for is under way");
        assert!(state.attempt.is_none(), "between txgs no uberblock is on its way");
        assert!(!state.is_stopped, "a pool in use shows that it is");
        assert_eq!(state.mode == Mode::Off, !(state.is_on || state.is_held), "a pool is shown for a reason");
        assert!(state.next == 0 || state.next < state.leaves.len(), "the next leaf is one of them");
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        {
            let mut state = self.0.state.lock();
            let before = state.mode;
            change(&mut state);
            state.mode = match (state.is_on, state.is_held) {
                (true, _) => Mode::On,
                (false, true) => Mode::Held,
                (false, false) => Mode::Off,
            };
            if before != state.mode {
                // There were none, or they were not counted: time begins anew.
                (state.written, state.delay) = (self.0.handle.now(), self.0.settings.interval);
            }
        }
        self.0.changed.all();
    }

    /// The multihost fields of the next uberblock.
    pub(crate) fn fields(&self) -> Mmp {
        let state = self.0.state.lock();
        self.0.fields(&state, 0)
    }

    /// This uberblock is being committed.
    pub(crate) fn attempt(&self, uberblock: Uberblock) {
        let mut state = self.0.state.lock();
        assert!(
            state.uberblock.is_none_or(|last| last.txg < uberblock.txg),
            "what is attempted is newer than the pool"
        );
        assert!(state.attempt.is_none_or(|before| before.txg == uberblock.txg), "one txg is attempted at a time");
        state.attempt = Some(uberblock);
    }

    /// It is the pool's newest; multihost writes are copies of it from now on.
    pub(crate) fn committed(&self, uberblock: Uberblock, leaves: &[LeafCommit]) {
        let now = self.0.handle.now();
        let mut state = self.0.state.lock();
        assert!(state.attempt.is_none_or(|attempt| attempt == uberblock), "what is committed is what was attempted");
        assert!(state.uberblock.is_none_or(|last| last.txg < uberblock.txg), "txgs are committed in order");
        let pending: Vec<_> = state.leaves.iter().filter(|leaf| leaf.is_pending).map(|leaf| leaf.guid).collect();
        let leaves = leaves.iter().filter(|leaf| leaf.top.is_some()).map(|leaf| Leaf {
            guid: leaf.guid,
            disk: leaf.disk.clone(),
            ashift: leaf.ashift,
            is_pending: pending.contains(&leaf.guid),
        });
        state.leaves = leaves.collect();
        (state.uberblock, state.attempt, state.sequence) = (Some(uberblock), None, 0);
        if state.mode != Mode::Off {
            state.done(now, true, &self.0.settings);
        }
    }

    /// Begins to show that the pool is in use, whenever it is to be shown. A pool whose times are fixed is not: it is to be
    /// the same bytes when it is made again.
    pub(crate) fn start(&self, clock: Clock) {
        if clock != Clock::Now || std::mem::replace(&mut self.0.state.lock().is_running, true) {
            return;
        }
        let shared = self.0.clone();
        self.0.handle.detach(Class::Issue, async move { shared.run().await });
    }

    /// Writes wait in the pool's tree when it is suspended.
    pub(crate) fn suspend_by(&self, suspension: Arc<Suspension>) {
        let shared = Arc::downgrade(&self.0);
        suspension.guard_writes(move || {
            let shared = shared.upgrade()?;
            let state = shared.state.lock();
            // Before its first txg, and where times are fixed, nothing shows that the pool is in use.
            let is_shown = state.is_running && !state.is_stopped && !state.leaves.is_empty();
            if is_shown { shared.late(&state).map(|late| late.to_string()) } else { None }
        });
        self.0.state.lock().suspension = Some(suspension);
    }

    /// Ends the task, and waits until devices have answered it, but not for ever. Later uberblocks say nothing of a pool that was
    /// held.
    pub(crate) async fn stop(&self) {
        let settings = self.0.settings;
        self.set(|state| {
            state.last_limit = state.limit(&settings);
            (state.is_stopped, state.is_held) = (true, false);
        });
        let quiet = async {
            loop {
                let changed = self.0.changed.wait();
                if self.0.state.lock().under_way == 0 {
                    return;
                }
                changed.await;
            }
        };
        // A device that does not answer is not waited for.
        let _ = self.0.handle.timeout(END_PATIENCE, quiet).await;
    }

    /// Ends the task without waiting, and lets go of the devices: handles of the pool outlive its use in processes that have others.
    pub(crate) fn abandon(&self) {
        let leaves = {
            let mut state = self.0.state.lock();
            (state.is_stopped, state.next) = (true, 0);
            std::mem::take(&mut state.leaves)
        };
        drop(leaves);
        self.0.changed.all();
    }

    /// Checks that a txg may be committed now.
    ///
    /// # Errors
    /// Why not: the pool is to be suspended, since another host may have it.
    pub(crate) async fn admit(&self) -> Result<(), MultihostError> {
        let (mode, late) = {
            let state = self.0.state.lock();
            (state.mode, self.0.late(&state))
        };
        match late {
            None => Ok(()),
            Some(error) if mode == Mode::On => Err(error),
            Some(_) => {
                self.0.check_alone().await?;
                self.0.state.lock().written = self.0.handle.now();
                Ok(())
            }
        }
    }

    /// Checks that a suspended pool may go on: reads the labels and, with `multihost=on`, watches them as an import does.
    ///
    /// # Errors
    /// Another host has the pool, or it cannot be told.
    pub(crate) async fn may_resume(&self) -> Result<(), MultihostError> {
        let (mode, suspension) = {
            let state = self.0.state.lock();
            (state.mode, state.suspension.clone())
        };
        let is_for_multihost = suspension.as_ref().is_some_and(|suspension| suspension.is_for_multihost());
        if mode == Mode::Off && !is_for_multihost {
            return Ok(());
        }
        self.0.check_alone().await?;
        if mode == Mode::On {
            self.0.watch_alone().await?;
        }
        {
            let mut state = self.0.state.lock();
            (state.written, state.delay) = (self.0.handle.now(), self.0.settings.interval);
        }
        if let Some(suspension) = suspension {
            suspension.multihost_checked();
        }
        Ok(())
    }
}

impl Shared {
    fn fields(&self, state: &State, sequence: u16) -> Mmp {
        let delay_ns = u64::try_from(state.delay.as_nanos()).unwrap_or(u64::MAX).max(1);
        let interval = Some(self.settings.interval_ms());
        match state.mode {
            Mode::Off => Mmp { delay_ns: 0, config: 0 },
            // Never suspended for being late: see the theory.
            Mode::Held => Mmp::new(delay_ns, interval, Some(sequence), Some(0)),
            Mode::On => Mmp::new(delay_ns, interval, Some(sequence), Some(self.settings.fail_intervals)),
        }
    }

    /// The reason to stop, if the last multihost write is so long ago that another host may have the pool.
    fn late(&self, state: &State) -> Option<MultihostError> {
        let (limit, late) = (state.limit(&self.settings), self.handle.now() - state.written);
        (!limit.is_zero() && late > limit).then_some(MultihostError::Late(late))
    }

    async fn run(self: Arc<Self>) {
        loop {
            let changed = self.changed.wait();
            let period = {
                let state = self.state.lock();
                if state.is_stopped {
                    return;
                }
                let leaves = state.leaves.len().max(1) as u32;
                (state.mode != Mode::Off).then(|| (self.settings.interval / leaves).max(PERIOD_MIN))
            };
            match period {
                None => changed.await,
                Some(period) => match race(self.handle.sleep(period), changed).await {
                    Either::Left(()) => self.tick(),
                    Either::Right(()) => {}
                },
            }
        }
    }

    /// Gives the next device a multihost write.
    fn tick(self: &Arc<Self>) {
        let now = self.handle.now();
        let (leaf, label, uberblock) = {
            let mut state = self.state.lock();
            if state.is_stopped || state.mode == Mode::Off {
                return;
            }
            if let Some(suspension) = state.suspension.clone() {
                if suspension.is_for_multihost() {
                    let checks = state.mode == Mode::Held && !std::mem::replace(&mut state.is_checking, true);
                    drop(state);
                    if checks {
                        let shared = self.clone();
                        self.handle.detach(Class::Issue, async move { shared.check_held(&suspension).await });
                    }
                    return;
                }
                if state.mode == Mode::On && suspension.reason().is_some() {
                    return;
                }
                if state.mode == Mode::On
                    && let Some(late) = self.late(&state)
                {
                    drop(state);
                    suspension.suspend_for_multihost(late.to_string());
                    return;
                }
            }
            let Some(newest) = state.uberblock else { return };
            let count = state.leaves.len();
            let mut turn = (0..count).map(|step| (state.next + step) % count);
            let Some(index) = turn.find(|index| !state.leaves[*index].is_pending) else {
                state.done(now, false, &self.settings);
                return;
            };
            state.next = (index + 1) % count;
            // Each write is newer than the last: sequences count within a second, and time that goes back is not followed.
            let time_s = self.handle.unix_time().as_secs();
            let is_full = state.sequence == u16::MAX;
            let timestamp_s = time_s.max(newest.timestamp_s + u64::from(is_full));
            if timestamp_s > newest.timestamp_s {
                state.sequence = 0;
            }
            state.sequence += 1;
            let mmp = self.fields(&state, state.sequence);
            let uberblock = Uberblock { timestamp_s, mmp: Some(mmp), ..newest };
            debug_assert!(uberblock.cmp_age(&newest).is_gt(), "a multihost write is newer than the last");
            state.uberblock = Some(uberblock);
            state.leaves[index].is_pending = true;
            state.under_way += 1;
            (state.leaves[index].clone(), (self.handle.random_u64() % 4) as usize, uberblock)
        };
        let shared = self.clone();
        self.handle.detach(Class::Issue, async move {
            let written = write_multihost(&leaf.disk, leaf.ashift, label, &uberblock).await;
            let is_last = {
                let mut state = shared.state.lock();
                let now = shared.handle.now();
                state.done(now, written.is_ok(), &shared.settings);
                // A commit since may have made the list anew, with other places.
                if let Some(leaf) = state.leaves.iter_mut().find(|at| at.guid == leaf.guid) {
                    leaf.is_pending = false;
                }
                assert!(state.under_way > 0, "a multihost write that ends was counted");
                state.under_way -= 1;
                state.under_way == 0 && state.is_stopped
            };
            if is_last {
                shared.changed.all();
            }
        });
    }

    /// Has a held pool that was late go on if no other host has it. Else it stays suspended, and is looked at again.
    async fn check_held(&self, suspension: &Suspension) {
        let alone = self.check_alone().await;
        let is_held = {
            let mut state = self.state.lock();
            assert!(state.is_checking, "labels are looked at by one task at a time");
            state.is_checking = false;
            let is_held = state.mode == Mode::Held && !state.is_stopped;
            if is_held && alone.is_ok() {
                (state.written, state.delay) = (self.handle.now(), self.settings.interval);
            }
            is_held
        };
        match alone {
            Ok(()) if is_held => suspension.multihost_over(),
            Ok(()) => {}
            Err(error) => suspension.suspend_for_multihost(error.to_string()),
        }
    }

    fn disks(&self) -> Vec<Disk> {
        self.state.lock().leaves.iter().map(|leaf| leaf.disk.clone()).collect()
    }

    /// Checks that this host wrote the newest uberblock on disk.
    async fn check_alone(&self) -> Result<(), MultihostError> {
        let reports = reports(&self.disks()).await;
        let Some((report, newest)) = newest_of(&reports) else {
            return Err(MultihostError::NoDevice);
        };
        if self.state.lock().is_ours(&newest) {
            return Ok(());
        }
        let (host, _) = host_of(report.best_config());
        Err(MultihostError::Taken { host, txg: newest.txg })
    }

    /// Watches the labels for as long as an import would.
    async fn watch_alone(&self) -> Result<(), MultihostError> {
        let reports = reports(&self.disks()).await;
        let Some((_, newest)) = newest_of(&reports) else {
            return Err(MultihostError::NoDevice);
        };
        let time = watch_time(&newest.mmp.unwrap_or_default(), &self.settings);
        match watch_disks(&self.handle, &self.disks(), &newest, time, false).await {
            None => Ok(()),
            Some(_) => Err(MultihostError::Active),
        }
    }
}
