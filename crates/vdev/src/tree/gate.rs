//! The state of an expansion that I/O goes by: reads and writes that are under way, and the piece that is being copied.
//!
//! I/O takes a [`Flight`] of the state that it saw; the state may change meanwhile, and is *settled* when no I/O of an earlier one is under way. A
//! write waits while its range is copied ([`Gate::exclude`]). The theory is in `reflow`.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_taskq::Notify;
use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicU64, Ordering};

use crate::layout::raidz::Reflow;

/// Where an expansion stands, and the I/O that goes by it.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Notify,
    pub(super) losses: AtomicU64,
}

#[derive(Debug)]
struct State {
    reflow: Reflow,
    /// Grows with each change of it.
    epoch: u64,
    /// How much I/O of each epoch is under way.
    under_way: BTreeMap<u64, usize>,
    /// Writes that are under way: ranges of the vdev.
    writes: BTreeMap<u64, Range<u64>>,
    next_write: u64,
    /// The range that is being copied.
    copying: Option<Range<u64>>,
}

/// I/O that goes by a state of an expansion.
#[derive(Debug)]
pub(super) struct Flight<'a> {
    gate: &'a Gate,
    pub(super) reflow: Reflow,
    epoch: u64,
    write: Option<u64>,
}

/// No write of a range is under way while this is there.
pub(super) struct Excluded<'a>(&'a Gate);

impl Default for Gate {
    fn default() -> Self {
        let state = State {
            reflow: Reflow::COMPLETE,
            epoch: 0,
            under_way: BTreeMap::new(),
            writes: BTreeMap::new(),
            next_write: 0,
            copying: None,
        };
        Self { state: Mutex::new(state), changed: Notify::new(), losses: AtomicU64::new(0) }
    }
}

impl State {
    fn enter(&mut self) -> (Reflow, u64) {
        *self.under_way.entry(self.epoch).or_default() += 1;
        (self.reflow, self.epoch)
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Gate {
    pub(super) fn reflow(&self) -> Reflow {
        self.state.lock().reflow
    }

    pub(super) fn set(&self, reflow: Reflow) {
        let mut state = self.state.lock();
        state.reflow = reflow;
        state.epoch += 1;
    }

    /// A device may lack something that it was told.
    pub(super) fn lost(&self) {
        self.losses.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn is_settled(&self) -> bool {
        let state = self.state.lock();
        state.under_way.range(..state.epoch).next().is_none()
    }

    pub(super) fn begin_read(&self) -> Flight<'_> {
        let (reflow, epoch) = self.state.lock().enter();
        Flight { gate: self, reflow, epoch, write: None }
    }

    /// Waits while sectors of the range are copied.
    pub(super) async fn begin_write(&self, range: Range<u64>) -> Flight<'_> {
        loop {
            let changed = self.changed.wait();
            {
                let mut state = self.state.lock();
                if !state.copying.as_ref().is_some_and(|copying| overlap(copying, &range)) {
                    let (reflow, epoch) = state.enter();
                    let id = state.next_write;
                    state.next_write += 1;
                    state.writes.insert(id, range);
                    return Flight { gate: self, reflow, epoch, write: Some(id) };
                }
            }
            changed.await;
        }
    }

    /// Waits until no write of the range is under way, and has none begin.
    pub(super) async fn exclude(&self, range: Range<u64>) -> Excluded<'_> {
        {
            let mut state = self.state.lock();
            assert!(state.copying.is_none(), "one piece is copied at a time");
            state.copying = Some(range.clone());
        }
        let excluded = Excluded(self);
        loop {
            let changed = self.changed.wait();
            if !self.state.lock().writes.values().any(|write| overlap(write, &range)) {
                return excluded;
            }
            changed.await;
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.gate.state.lock();
            let count = state.under_way.get_mut(&self.epoch).expect("I/O that ends was under way");
            *count -= 1;
            if *count == 0 {
                state.under_way.remove(&self.epoch);
            }
            if let Some(write) = self.write {
                state.writes.remove(&write).expect("a write that ends was under way");
            }
        }
        self.gate.changed.all();
    }
}

impl Drop for Excluded<'_> {
    fn drop(&mut self) {
        self.0.state.lock().copying = None;
        self.0.changed.all();
    }
}
