//! Problems with a pool's space: unreadable space maps, and no space in a sync. Each is reported once.
//!
//! An unreadable space map costs its metaslab: it is passed over for some time, as OpenZFS passes one over that it cannot load, and
//! what is freed in it is recorded in logs, which are kept for it. No space in a sync, and a map that has to be written and cannot
//! be read, suspend a pool that is written in the background, as OpenZFS suspends one for an allocation that has to succeed.

use std::collections::{BTreeMap, VecDeque};

use cenote_metaslab::MetaslabId;
use cenote_taskq::Notify;
use cenote_taskq::sync::Mutex;

/// Unreported troubles that are kept at most.
const UNTOLD_MAX: usize = 64;

/// Troubles of a pool that is open.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    state: Mutex<State>,
    came: Notify,
}

#[derive(Debug, Default)]
struct State {
    untold: VecDeque<String>,
    /// Metaslabs that cannot be used, and why.
    unreadable: BTreeMap<MetaslabId, String>,
}

impl Troubles {
    /// Something to be told.
    pub(crate) fn tell(&self, what: String) {
        {
            let mut state = self.state.lock();
            if state.untold.len() < UNTOLD_MAX {
                state.untold.push_back(what);
            }
        }
        self.came.all();
    }

    /// A metaslab's map could not be read. It is told the first time, and when the reason is another.
    pub(crate) fn unreadable(&self, id: MetaslabId, reason: String) {
        {
            let mut state = self.state.lock();
            if state.unreadable.get(&id) == Some(&reason) {
                return;
            }
            state.unreadable.insert(id, reason.clone());
        }
        self.tell(format!(
            "the space map of metaslab {} of vdev {} cannot be read: {reason}. Nothing is written to that part of the vdev; its data \
             can be read",
            id.index, id.vdev
        ));
    }

    /// It can be read again.
    pub(crate) fn readable(&self, id: MetaslabId) {
        self.state.lock().unreadable.remove(&id);
    }

    /// Metaslabs that cannot be used, and why.
    pub(crate) fn unreadable_metaslabs(&self) -> Vec<(MetaslabId, String)> {
        self.state.lock().unreadable.iter().map(|(id, reason)| (*id, reason.clone())).collect()
    }

    /// Waits for the next that was not told yet.
    pub(crate) async fn next(&self) -> String {
        loop {
            let came = self.came.wait();
            if let Some(told) = self.state.lock().untold.pop_front() {
                return told;
            }
            came.await;
        }
    }
}
