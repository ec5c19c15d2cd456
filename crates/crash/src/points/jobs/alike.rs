//! Results of contents of disks, found again for contents that differ only where nothing looked.
//!
//! Neighbouring moments differ by a write, mostly of a block that no uberblock leads to yet. Whoever opens the pool does not read it. So what came of the
//! one is what would come of the other ([`Touched`]).

use std::collections::VecDeque;

use cenote_taskq::sim::disk::{Image, Touched};

/// Results that are kept.
const KEPT_MAX: usize = 48;

struct Known<T> {
    images: Vec<Image>,
    touched: Vec<Touched>,
    result: T,
}

/// The last results.
pub(super) struct Alike<T>(VecDeque<Known<T>>);

impl<T> Default for Alike<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Alike<T> {
    /// The result for these disks, or for disks that were the same for whoever opened them.
    pub(super) fn find(&mut self, images: &[Image]) -> Option<&T> {
        let is_same = |known: &Known<T>| {
            assert_eq!(known.images.len(), images.len(), "a run's disks stay");
            let mut disks = known.touched.iter().zip(&known.images).zip(images);
            disks.all(|((touched, before), now)| touched.is_same(before, now))
        };
        let at = self.0.iter().rposition(is_same)?;
        let known = self.0.remove(at)?;
        self.0.push_back(known);
        self.0.back().map(|known| &known.result)
    }

    /// Keeps a result, with what it depends on.
    pub(super) fn keep(&mut self, images: Vec<Image>, touched: Vec<Touched>, result: T) -> &T {
        assert_eq!(images.len(), touched.len(), "each disk has its note");
        if self.0.len() == KEPT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Known { images, touched, result });
        &self.0.back().expect("it was put there").result
    }
}
