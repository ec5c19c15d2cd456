//! Freeing the blocks of destroyed clones by their livelists, in the background (feature `livelist`).
//!
//! **On disk.** The directory's entry `com.delphix:deleted_clones` is a table of livelists. The bytes of what is left of them count to the
//! directory `$FREE`. The table goes with its last livelist; each of them is a use of the feature.
//!
//! **Life of a destroyed clone.** The txg that takes its name away moves its livelist from its directory to the table: that is short however
//! large the clone is. Each txg's slice takes entries that cancel each other out of the first list (it is written anew then, once), takes blocks off its
//! end and frees them, and takes their bytes off `$FREE`. An empty list goes, so does a livelist without lists, and with the last livelist the table,
//! in the same txg: OpenZFS ends with an assertion where it finds a table without entries. OpenZFS, which frees a whole list in one txg, goes on where
//! Cenote stopped, and the other way round.
//!
//! **A livelist that does not have the bytes of its clone** is not used: the clone is destroyed by its tree.
//!
//! **If a livelist cannot be read**, its blocks are not freed: it is passed over until the pool is opened again, and the job tells the
//! owner; where no other livelist is left, the job stands still.

use std::collections::BTreeSet;

use cenote_dmu::{DmuError, Zap};
use cenote_format::dsl::pool_directory;
use cenote_format::ids::ObjectId;
use cenote_taskq::Instant;

use super::JobStatus;

/// The job's state while the pool is open.
#[derive(Debug, Default)]
pub(crate) struct DeletedClones {
    /// The table, if there is one.
    pub(super) table: Option<ObjectId>,
    /// Known since the first slice.
    pub(super) left_bytes: u64,
    pub(super) done_bytes: u64,
    pub(super) begun: Option<Instant>,
    /// Livelists that could not be read, and why the latest could not.
    pub(super) passed_over: BTreeSet<ObjectId>,
    pub(super) stalled: Option<String>,
    /// Nothing else is left.
    pub(super) stands_still: bool,
}

impl DeletedClones {
    /// As the pool's directory has it.
    pub(crate) async fn open(directory: &Zap) -> Result<Self, DmuError> {
        let table = directory.find_u64(pool_directory::DELETED_CLONES).await?.map(ObjectId);
        Ok(Self { table: table.filter(|table| table.0 != 0), ..Self::default() })
    }

    /// The table.
    pub(crate) const fn table(&self) -> Option<ObjectId> {
        self.table
    }

    /// True if it goes on with the next txg.
    pub(super) const fn goes_on(&self) -> bool {
        self.table.is_some() && !self.stands_still
    }

    /// Its status, if there is work left.
    pub(super) fn status(&self, now: Instant) -> Option<JobStatus> {
        self.table.map(|_| JobStatus {
            name: "livelist",
            left_bytes: self.left_bytes,
            done_bytes: self.done_bytes,
            took: self.begun.map(|begun| now - begun).unwrap_or_default(),
            stalled: self.stalled.clone(),
        })
    }
}
