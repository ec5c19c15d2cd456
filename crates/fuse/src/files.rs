//! Files being read, kept open between requests, and reading ahead of them.
//!
//! The client need not say that it opens or closes a file (see [`crate::server::Caching::is_immutable`]), so what a
//! series of reads has in common is kept by node: the opened file and how far it has been read in order. Two maps hold
//! them: when the younger is full the older is dropped and they change places, so a file in use stays and memory is
//! bounded, without a list to reorder at every read.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_taskq::sync::Mutex;
use cenote_zpl::File;

use crate::server::NodeId;

/// Files in each of the two maps.
const FILES_MAX: usize = 2048;
/// How far ahead of a reader at most, in bytes.
const AHEAD_MAX_BYTES: u64 = 8 << 20;
/// How far ahead at first, in bytes.
const AHEAD_FIRST_BYTES: u64 = 512 << 10;
/// The kernel's own reading ahead may arrive out of order; a read this near to the expected place counts as in order.
const NEAR_BYTES: u64 = 1 << 20;

/// How far a file has been read in order.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Where the next read in order begins.
    next: u64,
    /// What has been read ahead ends here.
    ahead_to: u64,
    /// How far ahead to read; 0 until reads turn out to be in order.
    window_bytes: u64,
}

impl Progress {
    /// Takes note of a read; what to read ahead, if anything.
    fn advance(&mut self, offset_bytes: u64, len: u64, size_bytes: u64) -> Option<(u64, u64)> {
        let end = offset_bytes.saturating_add(len);
        let is_in_order = offset_bytes.abs_diff(self.next) <= NEAR_BYTES && self.next != 0;
        if !is_in_order {
            // A file read from its beginning is probably read to its end; it takes a second read to be believed.
            *self = Self { next: end, ahead_to: end, window_bytes: 0 };
            return None;
        }
        self.next = self.next.max(end);
        self.window_bytes = (self.window_bytes * 2).clamp(AHEAD_FIRST_BYTES, AHEAD_MAX_BYTES);
        let target = self.next.saturating_add(self.window_bytes).min(size_bytes);
        let start = self.ahead_to.max(self.next);
        // In steps of at least half a window, so that a task is worth its start.
        if target <= start || (target - start < self.window_bytes / 2 && target != size_bytes) {
            return None;
        }
        self.ahead_to = target;
        Some((start, target))
    }
}

/// A file being read.
pub(crate) struct OpenFile {
    pub(crate) file: File,
    progress: Mutex<Progress>,
}

impl OpenFile {
    /// Takes note of a read; the range to read ahead, if any.
    pub(crate) fn advance(&self, offset_bytes: u64, len: u64) -> Option<(u64, u64)> {
        self.progress.lock().advance(offset_bytes, len, self.file.size_bytes())
    }
}

#[derive(Default)]
struct State {
    young: BTreeMap<NodeId, Arc<OpenFile>>,
    old: BTreeMap<NodeId, Arc<OpenFile>>,
}

/// The files being read.
#[derive(Default)]
pub(crate) struct Files {
    state: Mutex<State>,
}

impl Files {
    pub(crate) fn find(&self, node: NodeId) -> Option<Arc<OpenFile>> {
        let mut state = self.state.lock();
        if let Some(file) = state.young.get(&node) {
            return Some(Arc::clone(file));
        }
        let file = state.old.remove(&node)?;
        insert(&mut state, node, Arc::clone(&file));
        Some(file)
    }

    /// Keeps a file; if another request has brought it meanwhile, that one.
    pub(crate) fn keep(&self, node: NodeId, file: File) -> Arc<OpenFile> {
        if let Some(file) = self.find(node) {
            return file;
        }
        let file = Arc::new(OpenFile { file, progress: Mutex::new(Progress::default()) });
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

fn insert(state: &mut State, node: NodeId, file: Arc<OpenFile>) {
    if state.young.len() >= FILES_MAX {
        state.old = std::mem::take(&mut state.young);
    }
    state.young.insert(node, file);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 64 << 20;
    const STEP: u64 = 128 << 10;

    #[test]
    fn reading_in_order_is_read_ahead_of_once_and_ever_further() {
        let mut progress = Progress::default();
        let mut ahead_to = None;
        for at in (0..SIZE).step_by(STEP as usize) {
            if let Some((start, end)) = progress.advance(at, STEP, SIZE) {
                assert!(start >= at + STEP && end > start && end <= SIZE);
                assert!(end - (at + STEP) <= AHEAD_MAX_BYTES);
                // Without a gap and without reading anything twice.
                assert!(ahead_to.is_none_or(|to| to == start));
                ahead_to = Some(end);
            }
        }
        assert_eq!(ahead_to, Some(SIZE));
    }

    #[test]
    fn reading_here_and_there_is_not_read_ahead_of() {
        let mut progress = Progress::default();
        for at in [10, 3, 40, 22, 55, 1, 30] {
            assert_eq!(progress.advance(at << 20, STEP, SIZE), None);
        }
    }

    #[test]
    fn offsets_at_the_end_of_numbers_do_not_overflow() {
        let mut progress = Progress::default();
        for _ in 0..3 {
            progress.advance(u64::MAX - 1, u64::MAX, u64::MAX);
            progress.advance(u64::MAX, 1, 0);
        }
    }
}
