//! A bound on how many do something at once. Nobody waits for a place: where there is none, it is done in another way.

use std::sync::Arc;

use cenote_taskq::sync::atomic::{AtomicUsize, Ordering};

/// Places for a bounded number.
#[derive(Debug)]
pub(super) struct Bound {
    taken: AtomicUsize,
    max: AtomicUsize,
}

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place(Arc<Bound>);

impl Bound {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), max: AtomicUsize::new(max) })
    }

    /// Takes a place if there is one.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Place> {
        let more = |taken| (taken < self.max.load(Ordering::Acquire)).then_some(taken + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Place(Arc::clone(self)))
    }

    /// There is one place less. If all are taken, that is so when the next is free.
    pub(super) fn lower(&self) {
        let _ = self.max.fetch_update(Ordering::AcqRel, Ordering::Acquire, |max| max.checked_sub(1));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_places_as_were_said() {
        let bound = Bound::new(2);
        let first = bound.enter();
        let second = bound.enter();
        assert!(first.is_some() && second.is_some() && bound.enter().is_none());
        drop(first);
        let third = bound.enter();
        assert!(third.is_some() && bound.enter().is_none());
        bound.lower();
        drop(second);
        assert!(bound.enter().is_none());
        assert!(Bound::new(0).enter().is_none());
    }
}
