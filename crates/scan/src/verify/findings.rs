//! Faults found so far: all are counted, and the first of each kind kept.

use std::fmt;

use cenote_zio::Bookmark;

use crate::account::Misuse;
use crate::visit::is_read_again;

/// Reports kept of each kind; counts go on.
pub(super) const REPORTS_MAX: usize = 1000;

/// Bytes kept at most of why a block is bad.
pub(super) const WHY_BYTES_MAX: usize = 1 << 10;
/// More faults than this of one kind no pool has: 2^64 bytes have fewer blocks.
pub(super) const COUNT_MAX: u64 = 1 << 56;

/// A block that is bad, or that has bad copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlock {
    /// The block; none where no object leads to it.
    pub bookmark: Option<Bookmark>,
    /// Why.
    pub why: String,
}

impl BadBlock {
    pub(super) fn new(bookmark: Bookmark, why: &impl fmt::Display) -> Self {
        let why = why.to_string();
        // Errors of reads name their block themselves.
        let why = why.strip_prefix(&format!("{bookmark}: ")).map_or_else(|| why.clone(), str::to_owned);
        Self { bookmark: Some(bookmark), why: short(why) }
    }

    /// Of a block that no object leads to.
    pub(super) fn loose(why: &impl fmt::Display) -> Self {
        Self { bookmark: None, why: short(why.to_string()) }
    }

    /// Whether a walk that goes on meets it again: it leads to other blocks, or no object leads to it.
    pub(super) fn is_met_again(&self) -> bool {
        self.bookmark.is_none_or(|at| is_read_again(&at))
    }
}

impl fmt::Display for BadBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bookmark {
            Some(bookmark) => write!(f, "{bookmark}: {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

/// No more than [`WHY_BYTES_MAX`] of a text.
fn short(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(WHY_BYTES_MAX));
    assert!(text.len() <= WHY_BYTES_MAX, "memory for reports is bounded");
    text
}

/// Faults of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Faults<T> {
    pub(super) count: u64,
    /// The first of them.
    pub(super) first: Vec<T>,
}

impl<T> Default for Faults<T> {
    fn default() -> Self {
        Self { count: 0, first: Vec::new() }
    }
}

impl<T> Faults<T> {
    fn add(&mut self, fault: T) {
        self.count = self.count.saturating_add(1);
        if self.first.len() < REPORTS_MAX {
            self.first.push(fault);
        }
    }

    fn absorb(&mut self, later: Self) {
        self.count = self.count.saturating_add(later.count);
        let room = REPORTS_MAX.saturating_sub(self.first.len());
        self.first.extend(later.first.into_iter().take(room));
        assert!(self.first.len() <= REPORTS_MAX, "memory for reports is bounded");
    }
}

/// Faults of all kinds that are told of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) errors: Faults<BadBlock>,
    pub(super) bad_copies: Faults<BadBlock>,
    pub(super) misuses: Faults<Misuse>,
    /// Of the errors and of the bad copies, those that a walk that goes on meets again.
    pub(super) met_again: (u64, u64),
}

impl Findings {
    pub(super) fn error(&mut self, block: BadBlock) {
        self.met_again.0 = self.met_again.0.saturating_add(u64::from(block.is_met_again()));
        self.errors.add(block);
    }

    pub(super) fn bad_copy(&mut self, block: BadBlock) {
        self.met_again.1 = self.met_again.1.saturating_add(u64::from(block.is_met_again()));
        self.bad_copies.add(block);
    }

    pub(super) fn misuse(&mut self, misuse: Misuse) {
        self.misuses.add(misuse);
    }

    /// Whether an error of this block is among them. Those past the first [`REPORTS_MAX`] are not kept, so that once these are full every block
    /// counts as one of them: it is told of once at most.
    pub(super) fn has_error(&self, at: Bookmark) -> bool {
        self.errors.first.len() >= REPORTS_MAX || self.errors.first.iter().any(|block| block.bookmark == Some(at))
    }

    pub(super) fn count(&self) -> u64 {
        self.errors.count.saturating_add(self.bad_copies.count).saturating_add(self.misuses.count)
    }

    /// Adds those of a later part of the walk.
    pub(super) fn absorb(&mut self, later: Self) {
        self.errors.absorb(later.errors);
        self.bad_copies.absorb(later.bad_copies);
        self.misuses.absorb(later.misuses);
        self.met_again.0 = self.met_again.0.saturating_add(later.met_again.0);
        self.met_again.1 = self.met_again.1.saturating_add(later.met_again.1);
        assert!(self.met_again.0 <= self.errors.count, "errors that are met again are errors");
        assert!(self.met_again.1 <= self.bad_copies.count, "and so with copies");
    }

    /// Those that a walk that goes through the same txg once more does not meet again: of data.
    pub(super) fn of_data(mut self) -> Self {
        let (errors, bad_copies) = std::mem::take(&mut self.met_again);
        for (faults, met_again) in [(&mut self.errors, errors), (&mut self.bad_copies, bad_copies)] {
            faults.count -= met_again;
            faults.first.retain(|block| !block.is_met_again());
            assert!(faults.first.len() as u64 <= faults.count, "all that are kept are counted");
        }
        Self { misuses: Faults::default(), ..self }
    }
}
