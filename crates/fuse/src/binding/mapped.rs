//! Files that programs may have mapped, and changed without a word to the server.
//!
//! A store to a shared mapping makes a page dirty in the kernel. The kernel hands it over with `fsync`, `msync`, when the mapping ends, and by
//! itself some seconds later; until then the server knows nothing of it. Reads, direct transfers, truncations and holes that are punched are
//! right all the same, since the kernel hands over or serves its own pages there. What it asks the server without that are `SEEK_DATA` and
//! `SEEK_HOLE`: by the server's state alone, a hole that is full of dirty pages would be called a hole, and `cp` would copy zeros.
//!
//! The kernel does not say that a file is mapped. But only a descriptor that is open for reading and for writing can be mapped so, and a
//! mapping keeps it open. So the files that are open in that way are counted here. Where the answer to a seek would be a hole in such a file
//! the kernel is told to drop its pages there, which has it hand over the dirty ones first, and then the file is looked at again. Only pages
//! in holes are dropped: they are dirty, or zeros. A seek that has no room to wait for that (see the module `stale`) is told that all is data.
//!
//! For the same reason dirty pages are handed over before the file system is rolled back (they belong to the state before) and before a
//! mount that is detached stops answering.
//!
//! *Rejected*: calling every such file data to its end. It is right too, but a disk image that is open in a virtual machine would have no
//! holes for as long.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_taskq::sync::Mutex;
use rustix::fs::OFlags;

use crate::server::NodeId;

/// Whether a descriptor with these flags can be mapped to be changed.
fn can_be_mapped(flags: u32) -> bool {
    flags & OFlags::ACCMODE.bits() == OFlags::RDWR.bits()
}

/// Files of which the kernel may hold dirty pages, with the number of descriptors that they can be mapped by.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    files: Mutex<BTreeMap<NodeId, u64>>,
}

impl Mapped {
    /// A file is opened.
    pub(super) fn opened(&self, node: NodeId, flags: u32) {
        if can_be_mapped(flags) {
            *self.files.lock().entry(node).or_default() += 1;
        }
    }

    /// It was opened so, and is not used any more: its mappings have ended, and the kernel has handed over what they changed.
    pub(super) fn released(&self, node: NodeId, flags: u32) {
        if can_be_mapped(flags) {
            let mut files = self.files.lock();
            if let Some(count) = files.get_mut(&node) {
                *count -= 1;
                if *count == 0 {
                    files.remove(&node);
                }
            }
        }
    }

    /// Whether the kernel may hold dirty pages of a file.
    pub(super) fn may_be_dirty(&self, node: NodeId) -> bool {
        self.files.lock().contains_key(&node)
    }

    /// All files of which it may.
    pub(super) fn all(&self) -> Vec<NodeId> {
        self.files.lock().keys().copied().collect()
    }
}

/// The place of a range as a notice has it: a length of 0 reaches to the end of the file.
pub(super) fn place(range: &Range<u64>) -> (i64, i64) {
    let begin = i64::try_from(range.start).unwrap_or(i64::MAX);
    let end = i64::try_from(range.end).unwrap_or(i64::MAX);
    (begin, if end == i64::MAX { 0 } else { end.saturating_sub(begin) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_count_while_a_descriptor_is_open_that_can_be_mapped_to_be_changed() {
        let (mapped, node) = (Mapped::default(), NodeId(7));
        let [read, write, both] = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR].map(|flags| flags.bits());
        mapped.opened(node, read);
        mapped.opened(node, write);
        assert!(!mapped.may_be_dirty(node) && mapped.all().is_empty());
        mapped.opened(node, both | OFlags::DIRECT.bits());
        mapped.opened(node, both);
        mapped.released(node, write);
        mapped.released(node, both);
        assert!(mapped.may_be_dirty(node));
        // The other flags of a descriptor change while it is open.
        mapped.released(node, both);
        assert!(!mapped.may_be_dirty(node));
        mapped.released(node, both);
    }

    #[test]
    fn a_range_without_an_end_reaches_to_that_of_the_file() {
        assert_eq!(place(&(4096..8192)), (4096, 4096));
        assert_eq!(place(&(4096..u64::MAX)), (4096, 0));
    }
}
