//! The outcome of a step, its counts, and the facts about a run.

/// How a step went.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Carried out.
    Done(Tally),
    /// Not carried out, and why.
    LeftOut(String),
    /// Not carried out, since all of it has passed with the same sources.
    AsBefore,
}

/// Checks counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    /// One check that held.
    pub(crate) const ONE: Tally = Tally { passed: 1, failed: 0 };

    /// Counts one more check.
    pub(crate) fn count(&mut self, good: bool) {
        if good { self.passed += 1 } else { self.failed += 1 }
    }

    /// Takes another tally in.
    pub(crate) fn absorb(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// The facts about the run that a step may need.
#[derive(Debug)]
pub(crate) struct Context {
    /// Whether this is continuous integration (`CI=true`).
    pub(crate) ci: bool,
    /// Whether a person has named the steps.
    pub(crate) is_chosen: bool,
}
