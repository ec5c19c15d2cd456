//! The findings of a verify, as its caller gets them.

use std::fmt;
use std::sync::Arc;

use cenote_format::ids::Txg;
use cenote_metaslab::PoolSpace;

use super::findings::BadBlock;
use super::stop::VerifyStop;
use crate::account::{Leak, Misuse};
use crate::stats::BlockStatistics;

/// The findings of a walk.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Counts of blocks.
    pub statistics: BlockStatistics,
    /// Blocks that could not be read, or whose contents are not what they should be.
    pub error_count: u64,
    /// The first of them.
    pub errors: Vec<BadBlock>,
    /// Copies or columns that were bad though their block could be read.
    pub bad_copy_count: u64,
    /// The first of them.
    pub bad_copies: Vec<BadBlock>,
    /// Blocks whose place the account does not allow.
    pub misuse_count: u64,
    /// The first of them.
    pub misuses: Vec<Misuse>,
    /// Bytes that are allocated and that nothing refers to.
    pub leaked_bytes: u64,
    /// The first such ranges.
    pub leaks: Vec<Leak>,
    /// Bytes allocated, according to the space maps, all classes.
    pub allocated_bytes: u64,
    /// Space maps that contradict themselves, tables that cannot be read, features that are needed and not counted or counted wrongly,
    /// and what is not supported yet.
    pub problems: Vec<String>,
    /// The space that was loaded, if space was to be accounted for, and could be.
    pub space: Option<Arc<PoolSpace>>,
    /// The first and the last txg that was read, if the pool went on meanwhile: each block that was there all along was then read, and space and
    /// features were not accounted for, since that takes one txg.
    pub moved: Option<(Txg, Txg)>,
    /// Where it stopped, if it was ended before its end.
    pub stop: Option<VerifyStop>,
}

impl VerifyReport {
    /// Whether everything is readable in every copy and the account adds up. Not of a verify that ended early: it does not know.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.stop.is_none()
            && self.error_count == 0
            && self.bad_copy_count == 0
            && self.misuse_count == 0
            && self.leaked_bytes == 0
            && self.problems.is_empty()
            && (self.space.is_none() || self.statistics.accounted_bytes() == self.allocated_bytes)
    }
}

/// The faults, in one line for a developer; `clean` if there are none.
impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return f.write_str("clean");
        }
        let texts = |of: &[BadBlock]| of.iter().map(ToString::to_string).collect::<Vec<_>>();
        write!(
            f,
            "errors {:?} bad {:?} misuses {:?} leaked {} {:?} problems {:?} accounted {} allocated {}",
            texts(&self.errors),
            texts(&self.bad_copies),
            self.misuses,
            self.leaked_bytes,
            self.leaks,
            self.problems,
            self.statistics.accounted_bytes(),
            self.allocated_bytes,
        )
    }
}
