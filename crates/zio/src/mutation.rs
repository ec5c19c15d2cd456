//! A hook behind the checksum, for the mutation test: what verified may be replaced before anyone parses it.
//!
//! Damage on a disk hardly ever passes a checksum, so it tests little but the checksum. A writer gone wrong, or an
//! attacker, makes blocks whose checksums are right and whose contents are not; this hook stands for them. It works
//! only in builds with debug assertions, as deliberate bugs do: in a release blocks are handed out as they are. A feature would have
//! every crate above compiled twice, for the programs and for the tests. The hook is per thread, as a simulation is.

use std::cell::RefCell;

use cenote_format::blkptr::Blkptr;
use cenote_taskq::buf::Block;

use crate::Bookmark;

/// Sees every block's logical bytes, and returns others of the same length to put in their place.
pub type Filter = Box<dyn FnMut(&Blkptr, Bookmark, &[u8]) -> Option<Vec<u8>>>;

thread_local! {
    static FILTER: RefCell<Option<Filter>> = const { RefCell::new(None) };
}

/// Sets this thread's filter, or removes it.
///
/// # Panics
/// The build has no debug assertions, so the filter would see nothing.
pub fn set_filter(filter: Option<Filter>) {
    if !cfg!(debug_assertions) {
        panic!("verified bytes are replaced only in builds with debug assertions");
    }
    FILTER.with_borrow_mut(|slot| *slot = filter);
}

/// The bytes of a block as they leave this crate: as they are, but in the mutation test.
pub(crate) fn handed_out(bp: &Blkptr, bookmark: Bookmark, block: Block) -> Block {
    if !cfg!(debug_assertions) {
        return block;
    }
    let changed = FILTER.with_borrow_mut(|slot| slot.as_mut().and_then(|filter| filter(bp, bookmark, &block)));
    changed.map_or(block, |bytes| Block::copied_from(&bytes))
}
