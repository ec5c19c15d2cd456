//! Every task that waits or has waited and is not done, so that a runtime that stops can drop what they hold.
//!
//! A task that waits is held by what will wake it, and often holds that in turn: a loop that waits for a notification of
//! the object it owns would outlive its runtime for ever, and with it open devices and their locks. So the runtime knows
//! its tasks: those in queues by the queues, those that wait by this register. A task that is done when it is first polled
//! never comes here. The register is sharded by the polling worker.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::sync::Mutex;
use crate::task::Task;

#[derive(Default)]
struct Shard {
    slots: Vec<Option<Arc<Task>>>,
    free: Vec<usize>,
}

pub(super) struct Registry {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
}

impl Registry {
    pub(super) fn new(shards: usize) -> Registry {
        Registry { shards: (0..shards.max(1)).map(|_| CachePadded::new(Mutex::default())).collect() }
    }

    /// Registers a task. Its place, to forget it by.
    pub(super) fn insert(&self, hint: usize, task: Arc<Task>) -> u64 {
        let count = self.shards.len();
        let shard = hint % count;
        let mut locked = self.shards[shard].lock();
        let slot = locked.free.pop().unwrap_or(locked.slots.len());
        match locked.slots.get_mut(slot) {
            Some(place) => *place = Some(task),
            None => locked.slots.push(Some(task)),
        }
        (slot * count + shard) as u64
    }

    /// Forgets a task. Called once for each: its place is given to another.
    pub(super) fn remove(&self, place: u64) {
        let (slot, shard) = (place as usize / self.shards.len(), place as usize % self.shards.len());
        let task = {
            let mut locked = self.shards[shard].lock();
            let task = locked.slots.get_mut(slot).and_then(Option::take);
            if task.is_some() {
                locked.free.push(slot);
            }
            task
        };
        drop(task);
    }

    /// Takes every task.
    pub(super) fn take_all(&self) -> Vec<Arc<Task>> {
        self.shards.iter().flat_map(|shard| std::mem::take(&mut *shard.lock()).slots).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Class;
    use crate::task::{Reason, Schedule};

    struct Nowhere;

    impl Schedule for Nowhere {
        fn schedule(&self, _task: Arc<Task>, _reason: Reason) {}

        fn waits(&self, _task: &Arc<Task>) -> u64 {
            0
        }

        fn finished(&self, _task: &Task, _place: Option<u64>) {}
    }

    #[test]
    fn a_place_is_given_again_and_a_task_after_the_end_is_not_kept() {
        let registry = Registry::new(2);
        let task = || Task::new(0, Class::Issue, Arc::new(Nowhere), Box::pin(async {}));
        let (first, second) = (registry.insert(1, task()), registry.insert(1, task()));
        registry.remove(first);
        assert_eq!(registry.insert(1, task()), first);
        assert_ne!(first, second);
        registry.remove(second);
        assert_eq!(registry.take_all().len(), 1);
        let late = task();
        registry.remove(registry.insert(1, Arc::clone(&late)));
        assert_eq!(Arc::strong_count(&late), 1);
    }
}
