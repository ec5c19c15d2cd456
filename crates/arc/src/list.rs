//! A slab of entries threaded on several doubly linked lists by index.
//!
//! Indices in place of pointers keep the crate free of unsafe code and entries dense in memory.

/// No entry.
pub(crate) const NIL: u32 = u32::MAX;

/// The links of an entry that is on at most one list.
#[derive(Clone, Copy)]
pub(crate) struct Links {
    previous: u32,
    next: u32,
}

impl Links {
    pub(crate) const UNLINKED: Self = Self { previous: NIL, next: NIL };
}

/// Something with links.
pub(crate) trait Linked {
    fn links(&mut self) -> &mut Links;
}

/// A list: head is the most recently used end. Sums the sizes of its members.
#[derive(Clone, Copy)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    /// Members.
    pub(crate) count: usize,
    /// Sum of the sizes given on insertion and removal.
    pub(crate) size_bytes: usize,
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NIL, tail: NIL, count: 0, size_bytes: 0 };

    /// The least recently used member, or [`NIL`].
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }

    pub(crate) fn push_front<T: Linked>(&mut self, slab: &mut [T], index: u32, size_bytes: usize) {
        *slab[index as usize].links() = Links { previous: NIL, next: self.head };
        if self.head == NIL {
            self.tail = index;
        } else {
            slab[self.head as usize].links().previous = index;
        }
        self.head = index;
        self.count += 1;
        self.size_bytes += size_bytes;
    }

    pub(crate) fn unlink<T: Linked>(&mut self, slab: &mut [T], index: u32, size_bytes: usize) {
        let Links { previous, next } = *slab[index as usize].links();
        if previous == NIL {
            self.head = next;
        } else {
            slab[previous as usize].links().next = next;
        }
        if next == NIL {
            self.tail = previous;
        } else {
            slab[next as usize].links().previous = previous;
        }
        *slab[index as usize].links() = Links::UNLINKED;
        self.count -= 1;
        self.size_bytes -= size_bytes;
    }
}
