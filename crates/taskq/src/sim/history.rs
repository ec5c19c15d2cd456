//! The events of several disks' media, from which the media can be rebuilt as of each moment.
//!
//! # Theory
//!
//! **Need.** A test of power cuts has a run of the engine and wants to know what a cut leaves at each moment of it. To run it again up to
//! each moment would take as many runs as there are moments.
//!
//! **Shape.** A run notes what happens to its media ([`History`]); its *moments* are the numbers of events that have happened. Afterwards
//! [`Moments`] goes through them in their order, and at each shows what a crash then could have left.
//!
//! **Invariants.** 1. The media of [`Moments`] and those of the run are the same type, and the same code changes both. 2. A moment is as
//! long as nothing happens to any medium: what the run did meanwhile stands in that moment as a whole.

use std::sync::Arc;

use super::medium::{Crash, Event, Image, Medium};
use crate::rng::Rng;
use crate::sync::Mutex;

#[derive(Default)]
struct Noted {
    /// The media when noting began.
    media: Vec<Medium>,
    /// Which disk, and what happened to it.
    events: Vec<(usize, Event)>,
}

/// The events of disks' media, of each from its [recording](super::disk::SimDisk::record) on.
#[derive(Default)]
pub struct History(Mutex<Noted>);

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "History({} events)", self.now())
    }
}

impl History {
    /// One in which nothing has happened.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(super) fn begin(&self, medium: Medium) -> usize {
        let mut noted = self.0.lock();
        noted.media.push(medium);
        noted.media.len() - 1
    }

    pub(super) fn note(&self, disk: usize, event: Event) {
        self.0.lock().events.push((disk, event));
    }

    /// The moment that it is now.
    #[must_use]
    pub fn now(&self) -> usize {
        self.0.lock().events.len()
    }

    /// Its moments, from the first on.
    #[must_use]
    pub fn moments(&self) -> Moments {
        let noted = self.0.lock();
        Moments { media: noted.media.clone(), events: noted.events.clone(), at: 0 }
    }
}

/// The change that began a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Began {
    /// A write got under way.
    Write,
    /// A write was done.
    Written,
    /// A flush was done, or a write that makes itself stable.
    Flushed,
}

/// The moments of a [`History`], one after the other.
pub struct Moments {
    media: Vec<Medium>,
    events: Vec<(usize, Event)>,
    at: usize,
}

impl std::fmt::Debug for Moments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Moments({} of {})", self.at, self.events.len())
    }
}

impl Moments {
    /// The moment that it is, by its number.
    #[must_use]
    pub const fn now(&self) -> usize {
        self.at
    }

    /// Goes on to the next moment. `None` if this is the last.
    pub fn advance(&mut self) -> Option<Began> {
        let (disk, event) = self.events.get(self.at)?.clone();
        self.at += 1;
        let began = match event {
            Event::Begun { .. } => Began::Write,
            Event::Done { .. } => Began::Written,
            Event::Flushed { .. } | Event::Stable { .. } => Began::Flushed,
        };
        self.media[disk].happens(event);
        Some(began)
    }

    /// Whether a crash now could lose or keep something.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.media.iter().any(|medium| medium.unflushed_count() + medium.in_flight_count() > 0)
    }

    /// The content that a crash now would leave on each disk, in the order of their recording.
    #[must_use]
    pub fn crashed(&self, crash: Crash, rng: &mut Rng) -> Vec<Image> {
        let crashed = |medium: &Medium| {
            let mut medium = medium.clone();
            medium.crash(crash, rng);
            medium.current().clone()
        };
        self.media.iter().map(crashed).collect()
    }
}
