//! The kernel's page cache of files that are also written with `O_DIRECT`.
//!
//! A direct write goes past the kernel's pages of the file. The kernel drops them before the write. It drops them after the write too, but
//! only if it waits for the write, not for asynchronous ones. Pages that were read while such a write was on its way would then be stale
//! for good. So the server has them dropped, after what was written can be read and before the writer is answered.
//!
//! Nothing is dropped for files without buffered readers: buffered requests of a file that is open for direct ones are counted, and a
//! direct write has pages dropped only if some were made since the last time. Files that are not open for direct requests are not in
//! the table, and cost a look at an atomic number.

use std::collections::BTreeMap;

use cenote_taskq::sync::Mutex;
use cenote_taskq::sync::atomic::{AtomicUsize, Ordering};

use crate::server::NodeId;

#[derive(Debug, Default)]
struct File {
    opens: u64,
    /// Buffered requests so far, which may have left pages. The first stands for what was there before.
    seen: u64,
    /// The requests whose pages have been dropped.
    dropped: u64,
}

/// Files that are open for direct requests.
#[derive(Debug, Default)]
pub(crate) struct DirectFiles {
    files: Mutex<BTreeMap<NodeId, File>>,
    count: AtomicUsize,
}

/// Pages to be dropped: all that were made by this many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stale(u64);

impl DirectFiles {
    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<NodeId, File>) -> T) -> T {
        let mut files = self.files.lock();
        let changed = change(&mut files);
        self.count.store(files.len(), Ordering::Release);
        changed
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// It is opened for direct requests.
    pub(crate) fn opened(&self, node: NodeId) {
        self.change(|files| files.entry(node).or_insert(File { opens: 0, seen: 1, dropped: 0 }).opens += 1);
    }

    /// It was opened so and is not used any more.
    pub(crate) fn released(&self, node: NodeId) {
        self.change(|files| {
            if let Some(file) = files.get_mut(&node) {
                file.opens -= 1;
                if file.opens == 0 {
                    files.remove(&node);
                }
            }
        });
    }

    /// The kernel has no pages of it any more.
    pub(crate) fn forgotten(&self, node: NodeId) {
        if !self.is_empty() {
            self.change(|files| files.remove(&node));
        }
    }

    /// A buffered request of a file begins.
    pub(crate) fn buffered(&self, node: NodeId) {
        if !self.is_empty()
            && let Some(file) = self.files.lock().get_mut(&node)
        {
            file.seen += 1;
        }
    }

    /// The pages that a direct write, which is done and not answered yet, has made stale; `None` if there are none.
    pub(crate) fn written(&self, node: NodeId) -> Option<Stale> {
        match self.files.lock().get(&node) {
            Some(file) if file.seen == file.dropped => None,
            Some(file) => Some(Stale(file.seen)),
            // A descriptor may be made a direct one after it was opened.
            None => Some(Stale(0)),
        }
    }

    /// These pages were dropped.
    pub(crate) fn dropped(&self, node: NodeId, stale: Stale) {
        if let Some(file) = self.files.lock().get_mut(&node) {
            file.dropped = file.dropped.max(stale.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: NodeId = NodeId(7);

    #[test]
    fn pages_are_dropped_until_those_of_all_earlier_requests_are_gone() {
        let files = DirectFiles::default();
        files.opened(FILE);
        let before = files.written(FILE).unwrap();
        files.dropped(FILE, before);
        assert_eq!(files.written(FILE), None, "nobody has read by pages since");
        files.buffered(FILE);
        let first = files.written(FILE).unwrap();
        // Another write is done before those pages are gone, and one more request comes meanwhile.
        assert_eq!(files.written(FILE), Some(first));
        files.buffered(FILE);
        files.dropped(FILE, first);
        let second = files.written(FILE).unwrap();
        files.dropped(FILE, second);
        assert_eq!(files.written(FILE), None);
    }

    #[test]
    fn files_that_are_not_open_for_direct_requests_are_not_in_the_table() {
        let files = DirectFiles::default();
        files.buffered(FILE);
        assert!(files.is_empty());
        // Its descriptor became a direct one later.
        assert!(files.written(FILE).is_some());
        files.opened(FILE);
        files.opened(FILE);
        files.released(FILE);
        assert!(!files.is_empty());
        files.released(FILE);
        assert!(files.is_empty());
        files.opened(FILE);
        files.forgotten(FILE);
        files.released(FILE);
        assert!(files.is_empty());
    }
}
