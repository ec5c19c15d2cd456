//! Kills counted.

/// Kills after which all was there that clients were told, and others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    /// Counts one more.
    pub(crate) fn count(&mut self, good: bool) {
        if good { self.passed += 1 } else { self.failed += 1 }
    }

    /// Takes another tally in.
    pub(crate) fn absorb(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}
