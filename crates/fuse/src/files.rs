//! Files being read that do not change, kept open between requests.
//!
//! The client need not say that it opens or closes a file (see [`crate::server::Caching::is_immutable`]), so what a
//! series of reads has in common is kept by node: the opened file, with what it is read ahead of by. Two maps hold
//! them: when the younger is full the older is dropped and they change places, so a file in use stays and memory is
//! bounded, without a list to reorder at every read.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_taskq::sync::Mutex;
use cenote_zpl::File;

use crate::server::NodeId;

/// Files in each of the two maps.
const FILES_MAX: usize = 2048;

#[derive(Default)]
struct State {
    young: BTreeMap<NodeId, Arc<File>>,
    old: BTreeMap<NodeId, Arc<File>>,
}

/// The files being read.
#[derive(Default)]
pub(crate) struct Files {
    state: Mutex<State>,
}

impl Files {
    pub(crate) fn find(&self, node: NodeId) -> Option<Arc<File>> {
        let mut state = self.state.lock();
        if let Some(file) = state.young.get(&node) {
            return Some(Arc::clone(file));
        }
        let file = state.old.remove(&node)?;
        insert(&mut state, node, Arc::clone(&file));
        Some(file)
    }

    /// Keeps a file; if another request has brought it meanwhile, that one.
    pub(crate) fn keep(&self, node: NodeId, file: File) -> Arc<File> {
        if let Some(file) = self.find(node) {
            return file;
        }
        let file = Arc::new(file);
        insert(&mut self.state.lock(), node, Arc::clone(&file));
        file
    }

    /// Lets go of a file that the client has forgotten.
    pub(crate) fn forget(&self, node: NodeId) {
        let mut state = self.state.lock();
        state.young.remove(&node);
        state.old.remove(&node);
    }
}

fn insert(state: &mut State, node: NodeId, file: Arc<File>) {
    if state.young.len() >= FILES_MAX {
        state.old = std::mem::take(&mut state.young);
    }
    state.young.insert(node, file);
}
