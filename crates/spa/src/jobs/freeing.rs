//! The state of the job that frees what only destroyed snapshots had ([`super::free_list`]).

use cenote_format::bpobj::BpobjPhys;
use cenote_taskq::Instant;

use super::JobStatus;

/// The job's state while the pool is open.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    /// The list has blocks.
    pub(super) has_work: bool,
    pub(super) left_bytes: u64,
    pub(super) done_bytes: u64,
    pub(super) begun: Option<Instant>,
    pub(super) stalled: Option<String>,
}

impl FreeList {
    /// As the header of the list has it.
    pub(crate) fn open(phys: &BpobjPhys) -> Self {
        Self { has_work: !phys.is_empty(), left_bytes: phys.bytes, ..Self::default() }
    }

    /// True if it goes on with the next txg.
    pub(super) const fn goes_on(&self) -> bool {
        self.has_work && self.stalled.is_none()
    }

    /// Its status, if there is work left.
    pub(super) fn status(&self, now: Instant) -> Option<JobStatus> {
        self.has_work.then(|| JobStatus {
            name: "free_bpobj",
            left_bytes: self.left_bytes,
            done_bytes: self.done_bytes,
            took: self.begun.map(|begun| now - begun).unwrap_or_default(),
            stalled: self.stalled.clone(),
        })
    }
}
