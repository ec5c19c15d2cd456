//! Clients that wait, by the number of the last itx that they wait for: each is woken once, when that is stable.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_taskq::Event;
use cenote_taskq::sync::Mutex;

/// Clients that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<BTreeMap<u64, Arc<Event>>>);

impl Waiting {
    /// Set when all itxs up to this number are stable, or when there is something else to be seen. To be had before one looks.
    pub(super) fn until(&self, number: u64) -> Arc<Event> {
        self.0.lock().entry(number).or_default().clone()
    }

    /// All itxs up to this number are stable.
    pub(super) fn reached(&self, stable: u64) {
        let done = {
            let mut waiting = self.0.lock();
            let later = waiting.split_off(&(stable + 1));
            std::mem::replace(&mut *waiting, later)
        };
        done.into_values().for_each(|event| event.set());
    }

    /// Everybody has to look again.
    pub(super) fn all(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        all.into_values().for_each(|event| event.set());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_are_woken_whose_number_is_reached() {
        let waiting = Waiting::default();
        let events = [3, 5, 5, 9].map(|number| waiting.until(number));
        let are_set = || [0, 1, 2, 3].map(|at: usize| events[at].is_set());
        waiting.reached(4);
        assert_eq!(are_set(), [true, false, false, false]);
        waiting.reached(5);
        assert_eq!(are_set(), [true, true, true, false]);
        assert!(!waiting.until(5).is_set(), "who comes later looks first");
        waiting.all();
        assert_eq!(are_set(), [true; 4]);
    }
}
