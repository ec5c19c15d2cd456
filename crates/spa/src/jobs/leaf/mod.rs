//! Initialize and trim: all free space of a leaf is written once, or its device is told which space is free.
//!
//! # Theory
//!
//! **Need.** A new disk in the cloud is fast only where something was written once (`zpool initialize`); an SSD, or a file on one, keeps free what
//! nobody needs only if it is told (`zpool trim`). Both go through the free space of one leaf, may take hours, and are resumed after a crash.
//!
//! **On disk**, in the leaf's ZAP, under OpenZFS's names ([`LeafWorkKind`]): the state, the time of its last change, and the offset in the leaf's data area
//! up to which all is done. Each of the two programs goes on with what the other has begun.
//!
//! **Life.** `start` writes ACTIVE in the open txg, and begins a worker → the worker holds the next free range of the top-level vdev
//! (`Space::hold_free`: it is free, and nothing is placed there; workers on other leaves may hold it too), writes or trims the leaf's parts of
//! it, lets go, and reports how far it has come → each txg's slice writes the offset → after the last range COMPLETE. `suspend` keeps the
//! offset and `cancel` does not; both end the worker's round. A pool that is opened begins workers for what is ACTIVE.
//!
//! **Order.** As for all jobs: what was reported is on the device or behind its flush when the offset's uberblock is written.
//!
//! **Invariants.**
//! 1. Nothing is written but what is held, and held is only what is free in the last txg and in those that a rewind could go to (deferred frees are not).
//! 2. The offset on disk is one that a worker has reported, in the round that is recorded ([`Seat`]).
//! 3. A leaf and kind has one worker at most: a worker of an older round ends at its next step.
//!
//! **Crash.** What was done after the last offset is done again: free space may be written any number of times. What was allocated meanwhile is
//! not free, and is passed over.
//!
//! **Rejected.** *Closing whole metaslabs while they are worked on* (OpenZFS): in a small pool nothing is left to allocate from.

mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::{Object, Zap};
use cenote_format::ids::{Guid, VdevId};
use cenote_format::zap::ZapValue;
use cenote_kstat::Settings;
use cenote_taskq::Instant;
use cenote_taskq::sync::Mutex;

use super::{Job, Progress};
use crate::SpaError;
use crate::sync::rooms::InTxg;
use crate::tunables::InitializeTunables;
pub(crate) use worker::{Worker, work};

/// The work on a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeafWorkKind {
    /// All free space is written.
    Initialize,
    /// The device is told of all free space.
    Trim,
}

impl LeafWorkKind {
    const ALL: [Self; 2] = [Self::Initialize, Self::Trim];

    /// Entries of the leaf's ZAP: state, time of its last change, offset (`VDEV_LEAF_ZAP_INITIALIZE_STATE` and so on).
    #[must_use]
    pub const fn entries(self) -> [&'static str; 3] {
        match self {
            Self::Initialize => [
                "com.delphix:vdev_initialize_state",
                "com.delphix:vdev_initialize_action_time",
                "com.delphix:next_offset_to_initialize",
            ],
            Self::Trim => [
                "org.zfsonlinux:vdev_trim_state",
                "org.zfsonlinux:vdev_trim_action_time",
                "org.zfsonlinux:next_offset_to_trim",
            ],
        }
    }

    /// The word for it in the history, in events and in jobs.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Trim => "trim",
        }
    }
}

/// The entry of a leaf's ZAP with the rate of a trim, in bytes a second.
const TRIM_RATE: &str = "org.zfsonlinux:vdev_trim_rate";

/// The state of a leaf's work (`vdev_initializing_state_t`, `vdev_trim_state_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeafWorkState {
    #[default]
    None = 0,
    Active = 1,
    Canceled = 2,
    Suspended = 3,
    Complete = 4,
}

impl LeafWorkState {
    const fn of(number: u64) -> Self {
        match number {
            1 => Self::Active,
            2 => Self::Canceled,
            3 => Self::Suspended,
            4 => Self::Complete,
            _ => Self::None,
        }
    }
}

/// Which leaf, and the work on it.
pub(crate) type LeafKey = (Guid, LeafWorkKind);

/// The work on a leaf as its ZAP has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeafRecord {
    pub(crate) state: LeafWorkState,
    pub(crate) time_s: u64,
    /// All before this offset of the leaf's data area is done.
    pub(crate) offset_bytes: u64,
    /// Bytes a second at most; 0 for no limit.
    pub(crate) rate_bytes: u64,
}

impl LeafRecord {
    pub(crate) async fn read(object: &Object, kind: LeafWorkKind) -> Result<Self, SpaError> {
        let zap = Zap::open(object.clone()).await?;
        let [state, time, offset] = kind.entries();
        let rate_bytes = match kind {
            LeafWorkKind::Trim => zap.find_u64(TRIM_RATE).await?.unwrap_or(0),
            LeafWorkKind::Initialize => 0,
        };
        Ok(Self {
            state: LeafWorkState::of(zap.find_u64(state).await?.unwrap_or(0)),
            time_s: zap.find_u64(time).await?.unwrap_or(0),
            offset_bytes: zap.find_u64(offset).await?.unwrap_or(0),
            rate_bytes,
        })
    }

    /// Writes it; `None` takes all of it away.
    pub(crate) async fn write(
        rooms: &InTxg<'_>,
        object: &Object,
        kind: LeafWorkKind,
        record: Option<&Self>,
    ) -> Result<(), SpaError> {
        let [state, time, offset] = kind.entries();
        let values = record.map(|record| [record.state as u64, record.time_s, record.offset_bytes]);
        for (at, name) in [state, time, offset].into_iter().enumerate() {
            let value = values.map(|values| ZapValue::from_u64(values[at]));
            Zap::put_entry(object, rooms.txg, name, value.as_ref()).await?;
        }
        if kind == LeafWorkKind::Trim {
            let rate = record.map(|record| ZapValue::from_u64(record.rate_bytes));
            Zap::put_entry(object, rooms.txg, TRIM_RATE, rate.as_ref()).await?;
        }
        Ok(())
    }
}

/// How far a worker has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// All before this offset of the leaf is done.
    Offset(u64),
    /// All is, and free space ends here.
    End(u64),
    /// Its device cannot do that, in words.
    Unsupported(String),
    /// It is faulted (OpenZFS gives the work up then).
    Faulted,
}

#[derive(Default)]
struct SeatState {
    /// The last that was given out.
    round: u64,
    /// The round of each leaf's work.
    wanted: BTreeMap<LeafKey, u64>,
    reports: BTreeMap<LeafKey, Reached>,
    done_bytes: u64,
    is_closed: bool,
    tunables: InitializeTunables,
}

/// Where workers on leaves and the sync meet. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Seat(Arc<Mutex<SeatState>>);

impl Seat {
    /// Has other tunables for the rounds that begin from now on.
    pub(crate) fn tune(&self, settings: &Settings) {
        let mut state = self.0.lock();
        state.tunables = state.tunables.with(settings);
    }

    fn tunables(&self) -> InitializeTunables {
        self.0.lock().tunables
    }

    /// Begins a round of a leaf's work; an older one ends.
    pub(crate) fn begin(&self, key: LeafKey) -> u64 {
        let mut state = self.0.lock();
        state.round += 1;
        let round = state.round;
        state.wanted.insert(key, round);
        state.reports.remove(&key);
        round
    }

    /// Ends the round of a leaf's work.
    fn end(&self, key: LeafKey) {
        let mut state = self.0.lock();
        state.wanted.remove(&key);
        state.reports.remove(&key);
    }

    fn is_wanted(&self, key: LeafKey, round: u64) -> bool {
        let state = self.0.lock();
        !state.is_closed && state.wanted.get(&key) == Some(&round)
    }

    fn report(&self, key: LeafKey, round: u64, reached: Reached, bytes: u64) {
        let mut state = self.0.lock();
        if state.wanted.get(&key) == Some(&round) {
            state.done_bytes = state.done_bytes.saturating_add(bytes);
            state.reports.insert(key, reached);
        }
    }

    fn take(&self, key: LeafKey) -> Option<Reached> {
        self.0.lock().reports.remove(&key)
    }

    /// The pool ends: so do the workers.
    pub(crate) fn close(&self) {
        self.0.lock().is_closed = true;
    }
}

/// The work on leaves that is under way.
#[derive(Default)]
pub(crate) struct LeafWork {
    pub(crate) seat: Seat,
    active: BTreeMap<LeafKey, (VdevId, LeafRecord)>,
    progress: Progress,
}

/// Work that a txg has ended.
pub(crate) struct EndedWork {
    pub(crate) key: LeafKey,
    pub(crate) is_complete: bool,
    /// Why it was given up.
    pub(crate) reason: Option<String>,
}

impl LeafWork {
    /// Some work of this kind is under way.
    pub(crate) fn is_active(&self, kind: LeafWorkKind) -> bool {
        self.active.keys().any(|(_, of)| *of == kind)
    }

    /// Some work is under way.
    pub(crate) fn is_any_active(&self) -> bool {
        LeafWorkKind::ALL.into_iter().any(|kind| self.is_active(kind))
    }

    /// This work on this leaf is under way.
    pub(crate) fn is_active_as(&self, key: LeafKey) -> bool {
        self.active.contains_key(&key)
    }

    /// Some work on this leaf is under way.
    pub(crate) fn is_active_on(&self, leaf: Guid) -> bool {
        self.active.keys().any(|(of, _)| *of == leaf)
    }

    /// Notes work that is ACTIVE on disk, or will be with this txg. The round of its worker.
    pub(crate) fn begin(&mut self, key: LeafKey, vdev: VdevId, record: LeafRecord, size_bytes: u64) -> u64 {
        assert_eq!(record.state, LeafWorkState::Active, "work that begins is recorded as active");
        self.progress.left_bytes =
            self.progress.left_bytes.saturating_add(size_bytes.saturating_sub(record.offset_bytes));
        self.active.insert(key, (vdev, record));
        self.seat.begin(key)
    }

    /// Forgets work that is not to go on. What it had reached, if it was under way.
    pub(crate) fn end(&mut self, key: LeafKey) -> Option<LeafRecord> {
        let (_, mut record) = self.active.remove(&key)?;
        if let Some(Reached::Offset(offset)) = self.seat.take(key) {
            record.offset_bytes = record.offset_bytes.max(offset);
        }
        self.seat.end(key);
        if self.active.is_empty() {
            self.progress = Progress::default();
        }
        Some(record)
    }

    /// Takes what workers have reported, in the sync of a txg.
    pub(crate) async fn settle(&mut self, rooms: &InTxg<'_>) -> Result<Vec<EndedWork>, SpaError> {
        let mut ended = Vec::new();
        let done_bytes = self.seat.0.lock().done_bytes;
        let more = done_bytes.saturating_sub(self.progress.done_bytes);
        self.progress.done_bytes = done_bytes;
        self.progress.left_bytes = self.progress.left_bytes.saturating_sub(more);
        for key in self.active.keys().copied().collect::<Vec<_>>() {
            let (guid, kind) = key;
            let leaves = rooms.devices.root_vdev.config.leaves();
            // One that has left the pool has no ZAP any more.
            let Some(leaf) = leaves.into_iter().find(|leaf| leaf.guid == guid && leaf.leaf_zap.0 != 0) else {
                self.end(key);
                continue;
            };
            let reported = self.seat.take(key);
            let reached = if leaf.state.faulted { Some(Reached::Faulted) } else { reported };
            let Some(reached) = reached else { continue };
            let object = rooms.mos.objset.object(leaf.leaf_zap).await?;
            let (_, record) = self.active.get_mut(&key).expect("it is looked at");
            let state = match &reached {
                Reached::Offset(offset) => {
                    assert!(*offset >= record.offset_bytes, "work goes forward (leaf work, invariant 2)");
                    record.offset_bytes = *offset;
                    let offset = ZapValue::from_u64(*offset);
                    Zap::put_entry(&object, rooms.txg, kind.entries()[2], Some(&offset)).await?;
                    continue;
                }
                Reached::End(offset) => {
                    record.offset_bytes = record.offset_bytes.max(*offset);
                    LeafWorkState::Complete
                }
                Reached::Unsupported(_) | Reached::Faulted => LeafWorkState::Canceled,
            };
            let record = LeafRecord { state, time_s: rooms.time_s(), ..*record };
            LeafRecord::write(rooms, &object, kind, Some(&record)).await?;
            self.end(key);
            let reason = match reached {
                Reached::Unsupported(reason) => Some(reason),
                _ => None,
            };
            ended.push(EndedWork { key, is_complete: state == LeafWorkState::Complete, reason });
        }
        Ok(ended)
    }
}

impl Job for LeafWork {
    fn name(&self) -> &'static str {
        match self.is_active(LeafWorkKind::Initialize) {
            true => LeafWorkKind::Initialize.word(),
            false => LeafWorkKind::Trim.word(),
        }
    }

    fn has_work(&self) -> bool {
        self.is_any_active()
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn progress_mut(&mut self) -> &mut Progress {
        &mut self.progress
    }

    fn has_worker(&self) -> bool {
        true
    }
}

/// The time since when the pool's work on leaves goes on.
impl LeafWork {
    pub(crate) fn note_begun(&mut self, now: Instant) {
        self.progress.begun.get_or_insert(now);
    }
}
