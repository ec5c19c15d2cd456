//! ZAPs of directories that were changed lately, kept open between changes.
//!
//! To open a ZAP for changing is to copy its blocks and, of a micro ZAP, to build an index of its names. That is in proportion to
//! the directory, and one change is not; so the ZAP of a directory that is filled or emptied name by name is opened once.
//!
//! A kept ZAP has the content of the object: a task that changes a directory holds its node's lock exclusively, takes the ZAP out of here,
//! and puts it back once it is flushed. After a failure it is not put back, and the next change opens it anew.
//! It is of one object in memory, by which it is found: another object with the same number later is another object.

use std::collections::VecDeque;

use cenote_dmu::{DmuError, Object, Zap};
use cenote_taskq::sync::Mutex;

/// ZAPs kept: one has some 400 KiB at most (a full micro ZAP with its index).
const KEPT_MAX: usize = 32;

/// The kept ZAPs, that which was changed last at the end.
#[derive(Default)]
pub(crate) struct OpenZaps {
    kept: Mutex<VecDeque<Zap>>,
}

impl OpenZaps {
    fn take(&self, object: &Object) -> Option<Zap> {
        let mut kept = self.kept.lock();
        let at = kept.iter().rposition(|zap| zap.object().is_same(object))?;
        kept.remove(at)
    }

    /// A locked directory's ZAP, for changing.
    pub(crate) async fn open(&self, directory: &Object) -> Result<Zap, DmuError> {
        match self.take(directory) {
            Some(zap) => Ok(zap),
            None => Zap::open(directory.clone()).await,
        }
    }

    /// Keeps a directory's ZAP for the next change. It has no change that is not flushed.
    pub(crate) fn keep(&self, zap: Zap) {
        assert_eq!(zap.changed_blocks(), 0, "a ZAP that is kept says what its object says");
        let mut kept = self.kept.lock();
        debug_assert!(
            kept.iter().all(|other| !other.object().is_same(zap.object())),
            "a directory that is changed has its ZAP alone"
        );
        kept.push_back(zap);
        let oldest = if kept.len() > KEPT_MAX { kept.pop_front() } else { None };
        drop(kept);
        drop(oldest);
    }
}
