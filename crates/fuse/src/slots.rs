//! Slots: which datasets and snapshots of a mount have numbers, and which of them are open.
//!
//! The mounted dataset and those nested in it have fixed slots from the start. A snapshot gets one when something in it
//! is first looked up, and keeps it as long as the kernel remembers any of its files: each entry handed out is counted,
//! each forget counted off. When all slots are taken, one that nobody remembers is given away; if there is none, the
//! look-up fails with `ENFILE`.
//!
//! Being open is apart from having a slot: an opened file system is some kilobytes, so at most [`OPEN_MAX`] are kept, and
//! the one opened longest ago is closed for the next. Closing loses nothing but the work of opening again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use cenote_dsl::Dataset;
use cenote_spa::View;
use cenote_taskq::AsyncMutex;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};

use crate::node::SLOTS_MAX;
use crate::server::{NodeId, Pin};
use crate::volume::{OpenError, Volume};

/// File systems open at once.
const OPEN_MAX: usize = 1024;

/// A dataset with a number.
pub(crate) struct Slot {
    pub(crate) index: u16,
    pub(crate) dataset: Dataset,
    /// The node of its root directory, and of the directory above that.
    pub(crate) root: NodeId,
    pub(crate) above: NodeId,
    /// Entries that the client remembers.
    remembered: AtomicU64,
    opened: Mutex<Option<Arc<Volume>>>,
    /// Held while opening, so that it is done once.
    opening: AsyncMutex<()>,
}

impl Slot {
    /// Keeps the slot for one more entry.
    pub(crate) fn pin(self: &Arc<Self>) -> Pin {
        self.remembered.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::clone(self);
        Pin::new(move || slot.forget(1))
    }

    fn forget(&self, count: u64) {
        let lower = |now: u64| Some(now.saturating_sub(count));
        let _ = self.remembered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
    }
}

#[derive(Default)]
struct State {
    slots: Vec<Arc<Slot>>,
    /// Slots of snapshots by objset.
    by_objset: BTreeMap<u64, u16>,
    fixed_count: usize,
    hand: usize,
}

/// All slots of a mount.
pub(crate) struct Slots {
    state: Mutex<State>,
    open: Mutex<VecDeque<Arc<Slot>>>,
    slots_max: usize,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self::with_limit(SLOTS_MAX)
    }

    fn with_limit(slots_max: usize) -> Self {
        Self { state: Mutex::new(State::default()), open: Mutex::new(VecDeque::new()), slots_max }
    }

    /// Gives a dataset a slot for good. `None` if there is none left. `root` is told the slot's number.
    pub(crate) fn fix(&self, dataset: Dataset, root: impl FnOnce(u16) -> NodeId, above: NodeId) -> Option<Arc<Slot>> {
        let mut state = self.state.lock();
        // Snapshots need some too.
        if state.slots.len() >= self.slots_max / 2 {
            return None;
        }
        let index = state.slots.len() as u16;
        let slot = Arc::new(new_slot(index, dataset, root(index), above));
        state.slots.push(Arc::clone(&slot));
        state.fixed_count = state.slots.len();
        Some(slot)
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
        let objset = dataset.object.0;
        if let Some(&index) = state.by_objset.get(&objset) {
            let slot = Arc::clone(state.slots.get(usize::from(index))?);
            let pin = slot.pin();
            return Some((slot, pin));
        }
        let index = if state.slots.len() < self.slots_max { state.slots.len() } else { free_one(&mut state)? };
        let slot = Arc::new(new_slot(index as u16, dataset.clone(), root, above));
        let pin = slot.pin();
        if index == state.slots.len() {
            state.slots.push(Arc::clone(&slot));
        } else {
            state.slots[index] = Arc::clone(&slot);
        }
        state.by_objset.insert(objset, index as u16);
        Some((slot, pin))
    }

    /// The client forgets entries of a slot.
    pub(crate) fn forget(&self, index: u16, count: u64) {
        if let Some(slot) = self.at(index) {
            slot.forget(count);
        }
    }

    /// The slot's file system, opened if it is not.
    pub(crate) async fn open(&self, pool: &View, slot: &Arc<Slot>) -> Result<Arc<Volume>, OpenError> {
        if let Some(volume) = slot.opened.lock().clone() {
            return Ok(volume);
        }
        let _opening = slot.opening.lock().await;
        if let Some(volume) = slot.opened.lock().clone() {
            return Ok(volume);
        }
        let volume = Arc::new(Volume::open(pool, slot.dataset.clone(), slot.index).await?);
        *slot.opened.lock() = Some(Arc::clone(&volume));
        let mut open = self.open.lock();
        open.push_back(Arc::clone(slot));
        if open.len() > OPEN_MAX
            && let Some(oldest) = open.pop_front()
        {
            *oldest.opened.lock() = None;
        }
        Ok(volume)
    }
}

fn new_slot(index: u16, dataset: Dataset, root: NodeId, above: NodeId) -> Slot {
    Slot {
        index,
        dataset,
        root,
        above,
        remembered: AtomicU64::new(0),
        opened: Mutex::new(None),
        opening: AsyncMutex::new(()),
    }
}

/// Takes a slot away from a snapshot of which nothing is remembered.
fn free_one(state: &mut State) -> Option<usize> {
    let span = state.slots.len() - state.fixed_count;
    for step in 0..span {
        let index = state.fixed_count + (state.hand + step) % span;
        if state.slots[index].remembered.load(Ordering::Relaxed) == 0 {
            state.hand = (state.hand + step + 1) % span;
            let objset = state.slots[index].dataset.object.0;
            state.by_objset.remove(&objset);
            return Some(index);
        }
    }
    None
}
