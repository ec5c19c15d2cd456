//! The phases of a sync, for statistics of their durations.

/// A part of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Datasets: their trees, and their accounts.
    Datasets,
    /// Writing the MOS in the first pass.
    FirstPass,
    /// Entering the first pass's frees and allocations into space maps and logs.
    Space,
    /// Further passes, writing and entering.
    LaterPasses,
    /// Waiting until devices have all of it.
    Flush,
    /// Uberblock and labels.
    Commit,
}
