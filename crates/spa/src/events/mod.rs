//! Events: what happened to a pool while this process has it, as OpenZFS's kernel reports it (`zpool events`).
//!
//! # Theory
//!
//! **Need.** A person, a monitor or a hook wants to know what happened: a device returned wrong bytes, a scrub ended, a dataset was
//! destroyed. Error counts say how often, and nothing of when and where.
//!
//! **In memory.**
//! ```text
//! Events ─ Ring      the newest events (`zfs_zevent_len_max`), each with a number, its eid; readers keep the last eid that they saw
//!        ─ Recent    ereports of the last 15 minutes: the same again is none
//!        ─ Rates     per leaf and class: at most 20 in a second
//!        ─ Vdevs     kind, path and parent of each vdev, as of the last configuration
//! vdev: FaultLog ── watcher ──► fault()      checksum, io and delay ereports, by the task that met the fault
//! sync, jobs, verbs ──────────► sysevent()   changes of the pool; history_event() for each record of the history
//! pool::faults ───────────────► state_changed(), suspended()
//! ```
//! An event is a name-value list with the members, names and types of OpenZFS's: `ereport.fs.zfs.*` are errors, `sysevent.fs.zfs.*` changes,
//! and `resource.fs.zfs.statechange` new states of devices. Members that say how OpenZFS's pipeline was doing (`zio_stage`, `zio_flags`,
//! ...) are left out: there is no such pipeline. A checksum event says how the bytes differ from the right ones (`difference`), if a read, a scrub or a
//! repair came to know both.
//!
//! **Life of an event.** It is made and numbered under the ring's lock, which is held for nothing else, and readers are woken. When the ring is
//! full the oldest goes; a reader that had not seen it is told how many it missed. `zpool events -c` empties the ring.
//!
//! **Invariants.**
//! 1. The ring has at most `zfs_zevent_len_max` events, and their eids rise by one (asserted).
//! 2. An eid is given once, also after the ring was emptied.
//! 3. Memory for duplicates and rates is bounded: by `zfs_zevent_retain_max`, and by the number of vdevs.
//! 4. An event that is posted changes nothing of the pool, and its caller waits for nobody.
//!
//! **Crash.** Events are in memory only, as OpenZFS's. A command that opens a pool for itself has the events of its own work alone, and they end
//! with it.
//!
//! **Rejected.** *A ring for the process*: pools of a process have nothing else in common, and a simulation of many would number events by
//! accident. *Events derived from error counts at a txg's end*: they would lack place and time.

pub(crate) mod diagnosis;
mod difference;
mod ereport;
mod limits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use cenote_format::dsl::{ScanFunction, ScanState};
use cenote_format::ids::Guid;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_kstat::Settings;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_taskq::{Handle, Instant, Notify, boxed};
use cenote_vdev::fault::{Evidence, Fault};
use cenote_vdev::tree::{LeafState, VdevTree};
use cenote_zio::DataError;

use crate::failmode::FailMode;
use crate::sync::clock::Clock;
use crate::sync::devices::Devices;
use crate::tunables::EventTunables;
use diagnosis::{Diagnosis, Rule, Verdict};
use ereport::{ByGuid, EIO, Place, Vdevs};
use limits::{Class, Key, Limits};

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its number: the events of an open pool are numbered from 1.
    pub eid: u64,
    /// All that it says, with `class`, `time` and `eid`.
    pub list: NvList,
}

impl Event {
    /// When it happened, since 1970: seconds, and nanoseconds.
    #[must_use]
    pub fn time(&self) -> (u64, u32) {
        match self.list.value("time") {
            Some(NvValue::Int64Array(at)) if at.len() == 2 => (at[0].max(0) as u64, at[1].max(0) as u32),
            _ => (0, 0),
        }
    }
}

/// Events that a reader had not seen.
#[derive(Clone, Debug, Default)]
pub struct NewEvents {
    /// How many were pushed out before they could be read.
    pub dropped: u64,
    /// Oldest first.
    pub events: Vec<Arc<Event>>,
}

/// The events that are kept.
#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    last_eid: u64,
    /// Up to this one they were cleared, not pushed out.
    cleared_eid: u64,
}

impl Ring {
    fn push(&mut self, len_max: usize, make: impl FnOnce(u64) -> NvList) {
        self.last_eid += 1;
        while self.events.len() >= len_max.max(1) {
            self.events.pop_front();
        }
        let event = Event { eid: self.last_eid, list: make(self.last_eid) };
        self.events.push_back(Arc::new(event));
        debug_assert!(self.events.len() <= len_max.max(1), "events that are kept are bounded (events, invariant 1)");
        debug_assert_eq!(
            self.events.front().map(|event| event.eid + self.events.len() as u64),
            Some(self.last_eid + 1),
            "eids rise by one (events, invariant 1)"
        );
    }

    fn after(&self, eid: u64) -> NewEvents {
        let events: Vec<_> = self.events.iter().filter(|event| event.eid > eid).cloned().collect();
        let oldest = self.events.front().map_or(self.last_eid + 1, |event| event.eid);
        // A reader that has seen nothing yet has missed nothing.
        let dropped = if eid == 0 { 0 } else { (oldest - 1).saturating_sub(eid.max(self.cleared_eid)) };
        NewEvents { dropped, events }
    }

    fn clear(&mut self) -> usize {
        self.cleared_eid = self.last_eid;
        let count = self.events.len();
        self.events.clear();
        count
    }
}

/// The pool that the events are of.
struct Of {
    handle: Handle,
    clock: Clock,
    opened: Instant,
    name: String,
    /// `zpool reguid` changes it.
    guid: Mutex<Guid>,
    tree: Weak<VdevTree>,
}

/// The state of a scrub or resilver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    pub(crate) function: ScanFunction,
    pub(crate) state: ScanState,
    pub(crate) is_paused: bool,
    pub(crate) start_time_s: u64,
}

impl Scan {
    /// The name of the event that has made this of an earlier state.
    fn event_after(self, before: Self) -> Option<&'static str> {
        let is_scanning = |scan: Self| scan.state == ScanState::SCANNING;
        let is_same = (self.function, self.start_time_s) == (before.function, before.start_time_s);
        let has_begun = is_scanning(self) && !(is_same && is_scanning(before));
        let has_ended = is_same && is_scanning(before) && !is_scanning(self);
        match self.function {
            ScanFunction::SCRUB if has_begun => Some("scrub_start"),
            ScanFunction::SCRUB if has_ended && self.state == ScanState::FINISHED => Some("scrub_finish"),
            ScanFunction::SCRUB if has_ended => Some("scrub_abort"),
            ScanFunction::SCRUB if self.is_paused && !before.is_paused => Some("scrub_paused"),
            ScanFunction::SCRUB if !self.is_paused && before.is_paused => Some("scrub_resume"),
            ScanFunction::RESILVER if has_begun => Some("resilver_start"),
            ScanFunction::RESILVER if has_ended => Some("resilver_finish"),
            _ => None,
        }
    }
}

/// See the module comment.
#[derive(Default)]
pub struct Events {
    tunables: Mutex<EventTunables>,
    /// Before it is there nothing is an event: the pool is being opened.
    of: OnceLock<Of>,
    vdevs: Mutex<Arc<Vdevs>>,
    failmode: Mutex<FailMode>,
    limits: Mutex<Limits>,
    diagnosis: Mutex<Diagnosis>,
    /// Verdicts that nobody has carried out yet.
    verdicts: Mutex<VecDeque<(Guid, Verdict)>>,
    /// How often errors were forgotten: a verdict of before counts no more.
    pardons: AtomicU64,
    /// Properties of vdevs that change their rules.
    settings: Mutex<ByGuid<BTreeMap<String, u64>>>,
    judged: Notify,
    /// Devices that have failed a request and were not tried since.
    suspects: Mutex<BTreeSet<Guid>>,
    suspected: Notify,
    /// The states of leaves, as they were last seen.
    states: Mutex<ByGuid<LeafState>>,
    /// The scan that the MOS records, as it was last seen.
    scan: Mutex<Option<Scan>>,
    ring: Mutex<Ring>,
    came: Notify,
    is_closed: AtomicBool,
}

impl Events {
    /// Has other limits from now on, those that were given.
    pub(crate) fn tune(&self, settings: &Settings) {
        let mut tunables = self.tunables.lock();
        *tunables = tunables.with(settings);
    }

    fn tunables(&self) -> EventTunables {
        *self.tunables.lock()
    }

    /// The pool is open: faults of its devices are events from now on.
    pub(crate) fn open(self: &Arc<Self>, handle: &Handle, clock: Clock, name: &str, guid: Guid, tree: &Arc<VdevTree>) {
        let (opened, handle, name) = (handle.now(), handle.clone(), name.to_owned());
        let guid = Mutex::new(guid);
        let is_first = self.of.set(Of { handle, clock, opened, name, guid, tree: Arc::downgrade(tree) }).is_ok();
        assert!(is_first, "a pool is opened once");
        let events = Arc::downgrade(self);
        tree.fault_log().watch(move |fault, evidence| {
            if let Some(events) = events.upgrade() {
                events.fault(fault, evidence);
            }
        });
    }

    /// The vdevs and spares are these from now on.
    pub(crate) fn set_vdevs(&self, devices: &Devices) {
        *self.vdevs.lock() = Arc::new(Vdevs::new(&devices.root_vdev.config, &devices.found));
        if let Some(of) = self.of.get() {
            *of.guid.lock() = devices.found.guid;
        }
    }

    /// The property is this from now on.
    pub(crate) fn set_failmode(&self, failmode: FailMode) {
        *self.failmode.lock() = failmode;
    }

    /// Nothing comes any more: those that wait for events are woken.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.came.all();
        self.judged.all();
        self.suspected.all();
    }

    /// True if nothing comes any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The events after the one with this number; all that are kept after 0.
    #[must_use]
    pub fn after(&self, eid: u64) -> NewEvents {
        self.ring.lock().after(eid)
    }

    /// Waits until there are events after that one, or none comes any more, and returns them.
    #[boxed]
    pub async fn wait_after(&self, eid: u64) -> NewEvents {
        loop {
            let came = self.came.wait();
            let new = self.after(eid);
            if !new.events.is_empty() || self.is_closed() {
                return new;
            }
            came.await;
        }
    }

    /// Forgets all events. How many there were.
    pub fn clear(&self) -> usize {
        self.ring.lock().clear()
    }

    /// A fault of a device.
    fn fault(&self, fault: &Fault, evidence: Evidence<'_>) {
        let Some(place) = Place::of_fault(fault) else { return };
        if place.class() == Class::Io && self.of.get().is_some() {
            self.suspects.lock().insert(fault.guid);
            self.suspected.all();
        }
        self.post_ereport(fault.guid, &place, evidence);
    }

    fn post_ereport(&self, vdev: Guid, place: &Place, evidence: Evidence<'_>) {
        let Some(of) = self.of.get() else { return };
        let (tunables, class) = (self.tunables(), place.class());
        let key = Key::new(class, vdev, place.key());
        let vdevs = self.vdevs.lock().clone();
        let is_muted = class == Class::Delay && self.setting(&vdevs, vdev, "slow_io_events") == Some(0);
        if is_muted || !self.limits.lock().admit(&tunables, key, of.handle.now()) {
            return;
        }
        let (failmode, tree) = (*self.failmode.lock(), of.tree.upgrade());
        let mut list = ereport::head(class, *of.guid.lock(), vdev, ereport::ena(of.handle.now().as_ns()));
        ereport::pool(&mut list, &of.name, *of.guid.lock(), failmode);
        vdevs.describe(&mut list, vdev, tree.as_deref());
        place.describe(&mut list);
        if let Some(about) = evidence.about {
            ereport::bookmark(&mut list, about.objset, about.object, about.level, about.block);
        }
        let names = Rule::settings(class).into_iter().flatten();
        for (name, member) in names {
            if let Some(value) = self.setting(&vdevs, vdev, name) {
                list.push(member, value);
            }
        }
        if class == Class::Checksum {
            ereport::evidence(&mut list, evidence);
        }
        self.post(list);
        // A scrub repairs what it finds, and is not to take redundancy away meanwhile: as OpenZFS's daemon has it (`zfs_diagnosis.c`).
        let is_judged = vdevs.is_device(vdev) && !(class == Class::Checksum && place.is_of_scrub());
        if let Some((rule, verdict)) = Rule::usual(class).filter(|_| is_judged)
            && let Some(rule) = Rule::with_settings(class, rule, |name| self.setting(&vdevs, vdev, name))
            && self.diagnosis.lock().observe(vdev, class, rule, of.handle.now())
        {
            self.verdicts.lock().push_back((vdev, verdict));
            self.judged.all();
        }
    }

    /// The property of a vdev, or of the nearest vdev above it that has it.
    fn setting(&self, vdevs: &Vdevs, vdev: Guid, name: &str) -> Option<u64> {
        let settings = self.settings.lock();
        let mut way = std::iter::successors(Some(vdev), |vdev| vdevs.parent(*vdev));
        way.find_map(|vdev| settings.get(&vdev)?.get(name).copied())
    }

    /// A vdev has these properties from now on, of those that change rules.
    pub(crate) fn set_settings(&self, vdev: Guid, of_vdev: BTreeMap<String, u64>) {
        self.settings.lock().insert(vdev, of_vdev);
    }

    /// How long the pool has been open.
    pub(crate) fn open_for(&self) -> Duration {
        self.of.get().map_or(Duration::ZERO, |of| of.handle.now() - of.opened)
    }

    /// How often errors were forgotten so far.
    pub(crate) fn pardons(&self) -> u64 {
        self.pardons.load(Ordering::Acquire)
    }

    /// Waits for a verdict about a leaf; none comes any more after the pool's end.
    pub(crate) async fn verdict(&self) -> Option<(Guid, Verdict)> {
        loop {
            let judged = self.judged.wait();
            if let Some(verdict) = self.verdicts.lock().pop_front() {
                return Some(verdict);
            }
            if self.is_closed() {
                return None;
            }
            judged.await;
        }
    }

    /// Waits for a device that has failed a request; none comes any more after the pool's end.
    pub(crate) async fn suspect(&self) -> Option<Guid> {
        loop {
            let suspected = self.suspected.wait();
            if self.is_closed() {
                return None;
            }
            if let Some(leaf) = self.suspects.lock().pop_first() {
                return Some(leaf);
            }
            suspected.await;
        }
    }

    /// A device takes nothing any more: it is judged at once (`zed` does so for `probe_failure`).
    pub(crate) fn probe_failed(&self, leaf: Guid) {
        let Some(of) = self.of.get() else { return };
        let vdevs = self.vdevs.lock().clone();
        let mut list = ereport::head(Class::ProbeFailure, *of.guid.lock(), leaf, ereport::ena(of.handle.now().as_ns()));
        ereport::pool(&mut list, &of.name, *of.guid.lock(), *self.failmode.lock());
        vdevs.describe(&mut list, leaf, of.tree.upgrade().as_deref());
        self.post(list);
        if vdevs.is_device(leaf) {
            self.verdicts.lock().push_back((leaf, Verdict::Fault));
            self.judged.all();
        }
    }

    /// Forgets the errors of a leaf, or of all.
    pub(crate) fn forget_errors(&self, leaf: Option<Guid>) {
        self.limits.lock().clear(leaf);
        self.diagnosis.lock().forget(leaf);
        if leaf.is_none() {
            self.verdicts.lock().clear();
            self.pardons.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Resolves when nothing comes any more.
    pub(crate) async fn closed(&self) {
        loop {
            let came = self.came.wait();
            if self.is_closed() {
                return;
            }
            came.await;
        }
    }

    /// The states of leaves now: those that are other than before are events.
    pub(crate) fn states_are(&self, now: Vec<(Guid, LeafState)>) {
        let mut states = self.states.lock();
        let mut changed = Vec::new();
        for (leaf, now) in &now {
            if let Some(before) = states.get(leaf).filter(|before| *before != now) {
                changed.push((*leaf, *before, *now));
            }
        }
        *states = now.into_iter().collect();
        drop(states);
        for (leaf, before, now) in changed {
            if now == LeafState::Online {
                self.forget_errors(Some(leaf));
            }
            self.state_changed(leaf, ereport::state(before), ereport::state(now));
        }
    }

    /// The scan that the MOS records now: another state than before is an event, whoever scans.
    pub(crate) fn scan_is(&self, now: Scan) {
        let Some(before) = self.scan.lock().replace(now) else { return };
        let Some(name) = now.event_after(before) else { return };
        let is_resilver = now.function == ScanFunction::RESILVER;
        self.post_event("sysevent", name, None, |list| {
            if is_resilver {
                list.push("resilver_type", "healing");
            }
        });
    }

    /// A sequential rebuild of a top-level vdev begins or ends.
    pub(crate) fn rebuild(&self, name: &str, vdev: Guid) {
        let state = ereport::state(LeafState::Online);
        self.post_event("sysevent", name, Some((vdev, state)), |list| list.push("resilver_type", "sequential"));
    }

    /// A change about a device that is used, by its name as in `sysevent.fs.zfs.NAME`.
    pub(crate) fn of_device(&self, name: &str, leaf: Guid) {
        self.sysevent(name, Some((leaf, ereport::state(LeafState::Online))));
    }

    /// A block that could not be read from any copy.
    pub(crate) fn data_error(&self, error: &DataError) {
        self.post_of_pool(Class::Data, |list| {
            list.push("zio_err", NvValue::Int32(EIO));
            let at = &error.bookmark;
            ereport::bookmark(list, at.objset, at.object, i64::from(at.level), at.block);
        });
    }

    /// Too few devices take writes: the pool is suspended.
    pub(crate) fn suspended(&self) {
        self.post_of_pool(Class::IoFailure, |_| ());
    }

    fn post_of_pool(&self, class: Class, more: impl FnOnce(&mut NvList)) {
        let Some(of) = self.of.get() else { return };
        let failmode = *self.failmode.lock();
        let mut list = ereport::head(class, *of.guid.lock(), Guid(0), ereport::ena(of.handle.now().as_ns()));
        ereport::pool(&mut list, &of.name, *of.guid.lock(), failmode);
        more(&mut list);
        self.post(list);
    }

    /// A change of the pool, by its name as in `sysevent.fs.zfs.NAME`, and the vdev that it is about.
    pub(crate) fn sysevent(&self, name: &str, vdev: Option<(Guid, u64)>) {
        self.post_event("sysevent", name, vdev, |_| ());
    }

    /// A vdev has another state: their numbers before and now.
    fn state_changed(&self, vdev: Guid, before: u64, now: u64) {
        self.post_event("resource", "statechange", Some((vdev, now)), |list| list.push("vdev_laststate", before));
    }

    /// A record of the history.
    pub(crate) fn history(&self, record: &NvList) {
        self.post_event("sysevent", "history_event", None, |list| {
            for (kept, named) in ereport::HISTORY {
                if let Some(value) = record.value(kept) {
                    list.push(named, value.clone());
                }
            }
        });
    }

    fn post_event(&self, kind: &str, name: &str, vdev: Option<(Guid, u64)>, more: impl FnOnce(&mut NvList)) {
        let Some(of) = self.of.get() else { return };
        let mut list = ereport::resource(&format!("{kind}.fs.zfs.{name}"), &of.name, *of.guid.lock());
        if let Some((vdev, state)) = vdev {
            let vdevs = self.vdevs.lock().clone();
            vdevs.name(&mut list, vdev, state);
        }
        more(&mut list);
        self.post(list);
    }

    fn post(&self, mut list: NvList) {
        let Some(of) = self.of.get() else { return };
        let now = of.clock.now(&of.handle);
        let time = [now.as_secs() as i64, i64::from(now.subsec_nanos())];
        list.push("time", NvValue::Int64Array(time.to_vec()));
        let len_max = usize::try_from(self.tunables().zfs_zevent_len_max).unwrap_or(usize::MAX);
        self.ring.lock().push(len_max, |eid| {
            list.push("eid", eid);
            list
        });
        self.came.all();
    }
}

/// The word for a vdev's state (`vdev_state_t`).
#[must_use]
pub const fn state_name(state: u64) -> &'static str {
    match state {
        1 | 2 => "OFFLINE",
        3 => "REMOVED",
        4 => "UNAVAIL",
        5 => "FAULTED",
        6 => "DEGRADED",
        7 => "ONLINE",
        _ => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(ring: &mut Ring, count: u64) {
        (0..count).for_each(|_| ring.push(4, |_| NvList::new()));
    }

    fn eids(new: &NewEvents) -> Vec<u64> {
        new.events.iter().map(|event| event.eid).collect()
    }

    #[test]
    fn a_reader_gets_what_is_new_and_is_told_what_it_missed() {
        let mut ring = Ring::default();
        pushed(&mut ring, 3);
        assert_eq!((eids(&ring.after(0)), eids(&ring.after(2))), (vec![1, 2, 3], vec![3]));
        assert!(ring.after(3).events.is_empty());
        pushed(&mut ring, 5);
        let new = ring.after(2);
        assert_eq!((eids(&new), new.dropped), (vec![5, 6, 7, 8], 2));
        assert_eq!(ring.after(0).dropped, 0, "a new reader has missed nothing");
    }

    #[test]
    fn each_turn_of_a_scan_is_an_event() {
        let scan =
            |state, is_paused, start_time_s| Scan { function: ScanFunction::SCRUB, state, is_paused, start_time_s };
        let none = Scan::default();
        let (runs, paused) = (scan(ScanState::SCANNING, false, 5), scan(ScanState::SCANNING, true, 5));
        let (done, gone) = (scan(ScanState::FINISHED, false, 5), scan(ScanState::CANCELED, false, 5));
        let again = scan(ScanState::SCANNING, false, 9);
        for (before, now, event) in [
            (none, runs, Some("scrub_start")),
            (runs, runs, None),
            (runs, paused, Some("scrub_paused")),
            (paused, runs, Some("scrub_resume")),
            (runs, done, Some("scrub_finish")),
            (paused, gone, Some("scrub_abort")),
            (done, again, Some("scrub_start")),
            (runs, again, Some("scrub_start")),
            (runs, Scan { function: ScanFunction::RESILVER, ..again }, Some("resilver_start")),
            (done, done, None),
        ] {
            assert_eq!(now.event_after(before), event, "{before:?} {now:?}");
        }
    }

    #[test]
    fn what_was_cleared_was_not_missed_and_numbers_go_on() {
        let mut ring = Ring::default();
        pushed(&mut ring, 3);
        assert_eq!(ring.clear(), 3);
        assert_eq!(ring.after(1).dropped, 0);
        pushed(&mut ring, 1);
        let new = ring.after(1);
        assert_eq!((eids(&new), new.dropped), (vec![4], 0));
        pushed(&mut ring, 5);
        assert_eq!(ring.after(1).dropped, 2, "4 and 5 were pushed out");
    }
}
