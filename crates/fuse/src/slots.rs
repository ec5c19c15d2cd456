//! Slots: which datasets and snapshots of a mount have numbers, and which of them are open.
//!
//! The mounted dataset has slot 0, for as long as the mount lives; it is open except while it is suspended, and not looked up here. One that
//! is nested in it has a slot from the moment it is placed. A snapshot gets one when something in it is first looked up. Both keep it as long as the
//! kernel remembers any of their files: each entry handed out is counted, each forget counted off. When all slots are taken, one that the
//! kernel does not remember is reused, of a snapshot or of a dataset that is not placed any more; if there is none, the look-up fails with
//! `ENFILE`.
//!
//! Being open is apart from having a slot: an opened file system is some kilobytes, so at most [`OPEN_MAX`] are kept, and
//! the one opened longest ago is closed for the next. Closing loses nothing but the work of opening again. One that can be changed holds
//! more (open files, nodes without a name, a task that frees), so at most [`LIVE_MAX`] are kept beside those that somebody uses, and it
//! is closed only where the kernel remembers nothing of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use cenote_dsl::Dataset;
use cenote_dsl::name::is_at_or_below;
use cenote_format::ids::ObjectId;
use cenote_inuse::{OpenError, Seat, Taken};
use cenote_spa::LongHold;
use cenote_taskq::AsyncMutex;
use cenote_taskq::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cenote_taskq::sync::{Mutex, RwLock};

use crate::node::{Place, SLOTS_MAX};
use crate::server::{NodeId, Pin};
use crate::source::Source;
use crate::zfsvfs::Zfsvfs;

/// File systems open at once that do not change.
const OPEN_MAX: usize = 1024;
/// The most nested file systems that are open for writing without being in use.
pub(crate) const LIVE_MAX: usize = 256;

/// A dataset with a number.
pub(crate) struct Slot {
    pub(crate) index: u16,
    /// The node of its root directory.
    pub(crate) root: NodeId,
    /// As it was called and placed last.
    dataset: RwLock<Arc<Dataset>>,
    above: AtomicU64,
    /// It is a head that is not placed any more, or a snapshot that is not there any more.
    is_gone: AtomicBool,
    /// The client keeps a listing of its snapshots.
    has_listed: AtomicBool,
    /// Entries that the client remembers.
    remembered: AtomicU64,
    /// Files of a snapshot that programs have open.
    open_files: AtomicU64,
    /// Its file system.
    seat: Seat<Zfsvfs>,
    /// Keeps a snapshot of a pool in use from being destroyed: the client may read any file that it remembers without asking again.
    hold: Mutex<Option<LongHold>>,
    /// Held while opening or closing, so that it is done once.
    opening: AsyncMutex<()>,
}

impl Slot {
    pub(crate) fn new(index: u16, dataset: Dataset, root: NodeId, above: NodeId) -> Self {
        Self {
            index,
            root,
            dataset: RwLock::new(Arc::new(dataset)),
            above: AtomicU64::new(above.0),
            is_gone: AtomicBool::new(false),
            has_listed: AtomicBool::new(false),
            remembered: AtomicU64::new(0),
            open_files: AtomicU64::new(0),
            seat: Seat::new(None),
            hold: Mutex::new(None),
            opening: AsyncMutex::new(()),
        }
    }

    /// The dataset.
    pub(crate) fn dataset(&self) -> Arc<Dataset> {
        Arc::clone(&self.dataset.read())
    }

    /// It has another name now, or another place in the tree of datasets.
    pub(crate) fn set_dataset(&self, dataset: Dataset) {
        assert_eq!(dataset.object, self.dataset().object, "a slot is of one dataset");
        *self.dataset.write() = Arc::new(dataset);
    }

    /// The directory above its root.
    pub(crate) fn above(&self) -> NodeId {
        NodeId(self.above.load(Ordering::Relaxed))
    }

    /// Keeps the slot for one more entry.
    fn pin(self: &Arc<Self>) -> Pin {
        self.remembered.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::clone(self);
        Pin::new(move || slot.forget(1))
    }

    fn forget(&self, count: u64) {
        let lower = |now: u64| Some(now.saturating_sub(count));
        let _ = self.remembered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
    }

    /// The client is handed a listing of its snapshots.
    pub(crate) fn snapshots_listed(&self) {
        self.has_listed.store(true, Ordering::Relaxed);
    }

    /// Whether it was since this was last asked.
    pub(crate) fn take_snapshots_listed(&self) -> bool {
        self.has_listed.swap(false, Ordering::Relaxed)
    }

    /// It is a snapshot that was destroyed: requests for what was in it fail from now on.
    pub(crate) fn destroyed(&self) {
        assert!(self.dataset().is_snapshot(), "a head is closed before it is destroyed");
        self.is_gone.store(true, Ordering::Relaxed);
        self.seat.close();
        *self.hold.lock() = None;
    }

    /// Closes a snapshot that is about to be destroyed, even if the client remembers files of it. Requests for files of the snapshot fail from
    /// now on, until [`Self::stays`]. False if a program has a file of it open, or a request is being served; then nothing has changed.
    pub(crate) async fn leave(&self) -> bool {
        let _opening = self.opening.lock().await;
        self.is_gone.store(true, Ordering::Relaxed);
        // A request that opens a file keeps its reference to the file system until the file is counted as open.
        let left = !matches!(self.seat.take_unused(|_| !self.has_open_file()), Taken::InUse);
        if left {
            *self.hold.lock() = None;
        } else {
            self.stays();
        }
        left
    }

    /// Undoes [`Self::leave`]: the snapshot was not destroyed.
    pub(crate) fn stays(&self) {
        self.is_gone.store(false, Ordering::Relaxed);
    }

    /// Closes a snapshot and releases its hold, so that it can be destroyed, if it is not in use and the client remembers nothing of it.
    pub(crate) async fn let_go(&self) {
        let _opening = self.opening.lock().await;
        if !self.is_forgotten() {
            return;
        }
        if !matches!(self.seat.take_unused(|_| true), Taken::InUse) {
            *self.hold.lock() = None;
        }
    }

    /// Whether it is a head that is not placed any more, or a snapshot that is not there any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// A program has opened a file of it, a snapshot.
    pub(crate) fn file_opened(&self) {
        self.open_files.fetch_add(1, Ordering::Relaxed);
    }

    /// A program has closed one.
    pub(crate) fn file_closed(&self) {
        let lower = |now: u64| Some(now.saturating_sub(1));
        let _ = self.open_files.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
    }

    /// Whether a program has a file of it open. The client is not told to forget its name then: it would keep what is below that name, and
    /// could not be told again.
    pub(crate) fn has_open_file(&self) -> bool {
        self.open_files.load(Ordering::Relaxed) > 0
    }

    fn is_forgotten(&self) -> bool {
        self.remembered.load(Ordering::Relaxed) == 0
    }

    /// Its file system, if it is open.
    pub(crate) fn opened(&self) -> Option<Arc<Zfsvfs>> {
        self.seat.now()
    }

    /// Enters the file system that was opened.
    pub(crate) fn set_opened(&self, zfsvfs: Arc<Zfsvfs>) {
        self.seat.set(Some(zfsvfs));
    }

    /// Suspends the file system: takes it out of the slot, if it is open. It is not opened before [`Self::resume`]. If it is suspended
    /// already, this waits until it goes on first.
    pub(crate) async fn suspend(&self) -> Option<Arc<Zfsvfs>> {
        loop {
            {
                let _opening = self.opening.lock().await;
                if let Some(opened) = self.seat.try_suspend() {
                    return opened;
                }
            }
            drop(self.seat.settled().await);
        }
    }

    /// Resumes requests, with this file system. With `None` the next request opens it, if the dataset is nested.
    pub(crate) fn resume(&self, opened: Option<Arc<Zfsvfs>>) {
        self.seat.set(opened);
    }

    /// Waits while the file system is suspended, then returns it, if it is open.
    pub(crate) async fn moving(&self) -> Option<Arc<Zfsvfs>> {
        self.seat.settled().await
    }

    /// Closes its file system if it is not in use. True if it is closed.
    pub(crate) async fn close_unused(&self) -> bool {
        let _opening = self.opening.lock().await;
        match self.seat.take_unused(|zfsvfs| self.is_forgotten() && !has_open_files(zfsvfs)) {
            Taken::Nothing => self.is_forgotten(),
            Taken::InUse => false,
            Taken::Taken(zfsvfs) => {
                zfsvfs.close().await;
                true
            }
        }
    }
}

fn has_open_files(zfsvfs: &Zfsvfs) -> bool {
    zfsvfs.as_live().is_some_and(crate::live::Live::has_open_files)
}

#[derive(Default)]
struct State {
    /// By number; that of the mounted dataset stands for itself.
    slots: Vec<Arc<Slot>>,
    /// By the object of the dataset.
    by_dataset: BTreeMap<ObjectId, u16>,
    /// Heads that are placed.
    placed_count: usize,
    hand: usize,
}

impl State {
    /// The slot that a dataset has. The object of one that is gone may be that of another.
    fn of(&self, dataset: &Dataset) -> Option<Arc<Slot>> {
        let index = self.by_dataset.get(&dataset.object)?;
        let slot = self.slots.get(usize::from(*index))?;
        (slot.dataset().phys.guid == dataset.phys.guid).then(|| Arc::clone(slot))
    }
}

/// All slots of a mount.
pub(crate) struct Slots {
    state: Mutex<State>,
    /// Those with open file systems, in the order of opening: what does not change, and what can be changed.
    frozen: Mutex<VecDeque<Arc<Slot>>>,
    live: Mutex<VecDeque<Arc<Slot>>>,
    slots_max: usize,
}

impl Slots {
    /// With the slot of the mounted dataset.
    pub(crate) fn new(top: Arc<Slot>) -> Self {
        Self::with_limit(top, SLOTS_MAX)
    }

    fn with_limit(top: Arc<Slot>, slots_max: usize) -> Self {
        assert_eq!((top.index, top.root), (0, NodeId::ROOT), "the mounted dataset has the first slot");
        let state = State { slots: vec![top], ..State::default() };
        Self { state: Mutex::new(state), frozen: Mutex::default(), live: Mutex::default(), slots_max }
    }

    /// Gives a head a slot, or finds the one that it has; it is placed below the directory `above` from now on. `None` if there is none
    /// left.
    pub(crate) fn place(&self, dataset: &Dataset, above: NodeId) -> Option<Arc<Slot>> {
        let mut state = self.state.lock();
        if let Some(slot) = state.of(dataset) {
            slot.set_dataset(dataset.clone());
            slot.above.store(above.0, Ordering::Relaxed);
            if slot.is_gone.swap(false, Ordering::Relaxed) {
                state.placed_count += 1;
            }
            return Some(slot);
        }
        // Snapshots need some too.
        if state.placed_count >= self.slots_max / 2 {
            return None;
        }
        let root = |index| Place::Root { slot: index }.node().unwrap_or(NodeId::ROOT);
        let slot = self.taken(&mut state, dataset, root, above)?;
        state.placed_count += 1;
        Some(slot)
    }

    /// The heads in other slots than these are not placed any more.
    pub(crate) fn retire_others(&self, placed: &BTreeSet<u16>) {
        let mut state = self.state.lock();
        let others: Vec<Arc<Slot>> = state.slots[1..]
            .iter()
            .filter(|slot| !placed.contains(&slot.index) && !slot.dataset().is_snapshot())
            .cloned()
            .collect();
        for slot in others {
            if !slot.is_gone.swap(true, Ordering::Relaxed) {
                state.placed_count -= 1;
            }
        }
    }

    /// True for the slot of the mounted dataset, which a later mount of the same dataset gives the same number.
    pub(crate) const fn is_lasting(index: u16) -> bool {
        index == 0
    }

    pub(crate) fn at(&self, index: u16) -> Option<Arc<Slot>> {
        self.state.lock().slots.get(usize::from(index)).cloned()
    }

    /// The slot of a snapshot, with a pin; a new one if it has none. `None` if all are taken and remembered.
    pub(crate) fn of_snapshot(&self, dataset: &Dataset, root: NodeId, above: NodeId) -> Option<(Arc<Slot>, Pin)> {
        let mut state = self.state.lock();
        // One that was a snapshot of another head has another root: a new slot stands for it, and the old one is given up.
        if let Some(slot) = state.of(dataset).filter(|slot| slot.root == root && !slot.is_gone()) {
            slot.set_dataset(dataset.clone());
            let pin = slot.pin();
            return Some((slot, pin));
        }
        let slot = self.taken(&mut state, dataset, |_| root, above)?;
        let pin = slot.pin();
        Some((slot, pin))
    }

    fn taken(
        &self,
        state: &mut State,
        dataset: &Dataset,
        root: impl FnOnce(u16) -> NodeId,
        above: NodeId,
    ) -> Option<Arc<Slot>> {
        let index = if state.slots.len() < self.slots_max { state.slots.len() } else { free_one(state)? };
        let slot = Arc::new(Slot::new(index as u16, dataset.clone(), root(index as u16), above));
        if index == state.slots.len() {
            state.slots.push(Arc::clone(&slot));
        } else {
            let before = std::mem::replace(&mut state.slots[index], Arc::clone(&slot));
            // It may stand among those that were opened for a while.
            *before.hold.lock() = None;
        }
        state.by_dataset.insert(dataset.object, index as u16);
        Some(slot)
    }

    /// Keeps a slot for one more entry that the client is handed. The mounted dataset's is kept anyway.
    pub(crate) fn pin(&self, node: NodeId) -> Pin {
        let slot = Place::nested_slot(node).and_then(|index| self.at(index));
        slot.map_or(Pin::NONE, |slot| slot.pin())
    }

    /// The client forgets entries of a slot.
    pub(crate) fn forget(&self, index: u16, count: u64) {
        if let Some(slot) = self.at(index) {
            slot.forget(count);
        }
    }

    /// The slot's file system, opened if it is not.
    pub(crate) async fn open(&self, source: &Source, slot: &Arc<Slot>) -> Result<Arc<Zfsvfs>, OpenError> {
        if let Some(zfsvfs) = slot.opened() {
            return Ok(zfsvfs);
        }
        // Seldom, and large: every request would carry the room for it.
        Box::pin(self.open_first(source, slot)).await
    }

    async fn open_first(&self, source: &Source, slot: &Arc<Slot>) -> Result<Arc<Zfsvfs>, OpenError> {
        let zfsvfs = {
            let _opening = loop {
                slot.moving().await;
                let opening = slot.opening.lock().await;
                if !slot.seat.is_suspended() {
                    break opening;
                }
            };
            if let Some(zfsvfs) = slot.opened() {
                return Ok(zfsvfs);
            }
            let dataset = slot.dataset();
            let zfsvfs = Arc::new(source.open(&dataset, &[]).await?);
            if dataset.is_snapshot() {
                *slot.hold.lock() = zfsvfs.take_hold();
            }
            slot.set_opened(Arc::clone(&zfsvfs));
            zfsvfs
        };
        if zfsvfs.as_live().is_some() {
            self.live.lock().push_back(Arc::clone(slot));
            self.close_one().await;
        } else {
            let mut frozen = self.frozen.lock();
            frozen.push_back(Arc::clone(slot));
            if frozen.len() > OPEN_MAX
                && let Some(oldest) = frozen.pop_front()
            {
                oldest.seat.close();
            }
        }
        Ok(zfsvfs)
    }

    /// Closes the file system that was opened longest ago and that nobody uses, if too many are open for changing.
    async fn close_one(&self) {
        let tries = self.live.lock().len();
        for _ in LIVE_MAX..tries {
            let Some(oldest) = self.live.lock().pop_front() else { return };
            if oldest.close_unused().await {
                return;
            }
            self.live.lock().push_back(oldest);
        }
    }

    /// The slots of nested heads that are called so or are below that name.
    pub(crate) fn within(&self, name: &str) -> Vec<Arc<Slot>> {
        let is_within = |slot: &&Arc<Slot>| {
            let dataset = slot.dataset();
            !dataset.is_snapshot() && is_at_or_below(&dataset.dir.name, name) && !slot.is_gone()
        };
        self.state.lock().slots[1..].iter().filter(is_within).cloned().collect()
    }

    /// The slot that the dataset with this object has.
    pub(crate) fn known(&self, dataset: ObjectId) -> Option<Arc<Slot>> {
        let state = self.state.lock();
        state.slots.get(usize::from(*state.by_dataset.get(&dataset)?)).cloned()
    }

    /// The slots of snapshots that are there.
    pub(crate) fn snapshots(&self) -> Vec<Arc<Slot>> {
        let is_meant = |slot: &&Arc<Slot>| slot.dataset().is_snapshot() && !slot.is_gone();
        self.state.lock().slots[1..].iter().filter(is_meant).cloned().collect()
    }

    /// The file systems that are open and can be changed, the mounted one apart.
    pub(crate) fn live(&self) -> Vec<(Arc<Slot>, Arc<Zfsvfs>)> {
        let slots: Vec<Arc<Slot>> = self.live.lock().iter().cloned().collect();
        let mut opened: Vec<_> =
            slots.into_iter().filter_map(|slot| Some((Arc::clone(&slot), slot.opened()?))).collect();
        // One that was closed and opened again stands there twice.
        opened.sort_by_key(|(slot, _)| slot.index);
        opened.dedup_by_key(|(slot, _)| slot.index);
        opened
    }
}

/// Takes a slot away from a snapshot, or from a head that is not placed any more, of which nothing is remembered.
fn free_one(state: &mut State) -> Option<usize> {
    let span = state.slots.len() - 1;
    for step in 0..span {
        let index = 1 + (state.hand + step) % span;
        let slot = &state.slots[index];
        let dataset = slot.dataset();
        let is_unused = dataset.is_snapshot() || slot.is_gone() && slot.opened().is_none();
        if is_unused && slot.is_forgotten() {
            state.hand = (state.hand + step + 1) % span;
            if state.by_dataset.get(&dataset.object) == Some(&(index as u16)) {
                state.by_dataset.remove(&dataset.object);
            }
            return Some(index);
        }
    }
    None
}
