//! Log blocks that are read with the blocks before them.
//!
//! A log block has the pointer to the next one, so a walk waits for a device at each block: a log of 100 000 records that one client has
//! written, 800 MB, took 35 us for each. Blocks of a log mostly lie one behind the other. So once a block follows its predecessor closely,
//! it is read with the bytes behind it, twice as many each time. The next blocks are looked for in these bytes first, by their pointers and
//! checksums.
//!
//! **Invariant.** Each block that is given verifies by its own pointer. One that the window does not have, or has otherwise than its pointer
//! says, is read by itself, from all its copies; only that says that a block is not there.

use cenote_format::blkptr::{Blkptr, Dva};
use cenote_format::ids::VdevId;
use cenote_taskq::buf::Block;
use cenote_zio::{Zio, ZioError};

/// The first window, and the largest one: as much memory as a walk takes.
const WINDOW_MIN_BYTES: u64 = 64 << 10;
const WINDOW_MAX_BYTES: u64 = 1 << 20;

/// The bytes of a vdev from `start_bytes` on.
struct Window {
    vdev: VdevId,
    start_bytes: u64,
    bytes: Block,
}

impl Window {
    /// The bytes of a block that lies within.
    fn of(&self, pointer: &Blkptr) -> Option<&[u8]> {
        let dva = pointer.dva(0).filter(|dva| dva.vdev == self.vdev && !dva.gang)?;
        let start = usize::try_from(dva.offset_bytes.checked_sub(self.start_bytes)?).ok()?;
        self.bytes.get(start..start.checked_add(usize::try_from(pointer.psize_bytes()).ok()?)?)
    }
}

/// The blocks of one walk.
#[derive(Default)]
pub(crate) struct Ahead {
    window: Option<Window>,
    /// Of the last window; 0 where blocks do not follow one another.
    window_bytes: u64,
    /// Where the last block ended.
    last_end: Option<(VdevId, u64)>,
    /// The end of a window that could not be read: none that begins before it is tried, since each try may take a device seconds.
    unreadable_to: Option<(VdevId, u64)>,
}

impl Ahead {
    /// The next block of the walk; true if a device gave something else in its place.
    ///
    /// # Errors
    /// It is not there, or no device gives it.
    pub(crate) async fn read(&mut self, zio: &Zio, pointer: &Blkptr) -> Result<(Block, bool), ZioError> {
        let held = self.window.as_ref().and_then(|window| window.of(pointer));
        let found = held.map(|bytes| zio.verified(pointer, bytes));
        let follows = self.follows(pointer);
        self.last_end = end_of(pointer);
        match found {
            Some(Some(block)) => return Ok((block, false)),
            Some(None) => {}
            None => {
                self.window = None;
                let grown_bytes = (self.window_bytes * 2).clamp(WINDOW_MIN_BYTES, WINDOW_MAX_BYTES);
                self.window_bytes = if follows { grown_bytes } else { 0 };
                if self.window_bytes > pointer.psize_bytes() && !self.is_unreadable(pointer) {
                    if let Some((block, window)) = self.read_window(zio, pointer).await {
                        self.window = Some(window);
                        return Ok((block, false));
                    }
                    let end = |dva: Dva| (dva.vdev, dva.offset_bytes.saturating_add(self.window_bytes));
                    (self.unreadable_to, self.window_bytes) = (pointer.dva(0).map(end), 0);
                }
            }
        }
        zio.read_speculative(pointer).await
    }

    /// Whether a block begins where the last one ended, or not far behind: other blocks may lie between them.
    fn follows(&self, pointer: &Blkptr) -> bool {
        let Some(((vdev, end_bytes), dva)) = self.last_end.zip(pointer.dva(0)) else { return false };
        let gap_bytes = dva.offset_bytes.checked_sub(end_bytes);
        dva.vdev == vdev && gap_bytes.is_some_and(|gap_bytes| gap_bytes < WINDOW_MAX_BYTES / 4)
    }

    fn is_unreadable(&self, pointer: &Blkptr) -> bool {
        let place = self.unreadable_to.zip(pointer.dva(0));
        place.is_some_and(|((vdev, end_bytes), dva)| dva.vdev == vdev && dva.offset_bytes < end_bytes)
    }

    async fn read_window(&self, zio: &Zio, pointer: &Blkptr) -> Option<(Block, Window)> {
        let dva = pointer.dva(0)?;
        let (block, bytes) = zio.read_with_following(pointer, self.window_bytes).await?;
        Some((block, Window { vdev: dva.vdev, start_bytes: dva.offset_bytes, bytes }))
    }
}

/// Where a block ends, if anything can begin there.
fn end_of(pointer: &Blkptr) -> Option<(VdevId, u64)> {
    let dva = pointer.dva(0)?;
    Some((dva.vdev, dva.offset_bytes.checked_add(dva.asize_bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pointer whose first copy has this size and offset, in sectors.
    fn pointer(size: u64, offset: u64) -> Blkptr {
        let mut words = [0; 16];
        (words[0], words[1]) = (size, offset);
        Blkptr::from_words(words)
    }

    #[test]
    fn blocks_follow_one_another_and_nothing_follows_the_last_of_all_places() {
        let follows =
            |before: &Blkptr, next: &Blkptr| Ahead { last_end: end_of(before), ..Ahead::default() }.follows(next);
        assert!(follows(&pointer(8, 100), &pointer(8, 108)));
        assert!(follows(&pointer(8, 100), &pointer(8, 120)), "others may lie between");
        assert!(!follows(&pointer(8, 100), &pointer(8, 100)), "before its end");
        assert!(!follows(&pointer(8, 100), &pointer(8, 100_000)), "far behind");
        // Places of a damaged or hostile log.
        let last = (u64::MAX >> 10) & !7;
        for size in [0, 1, 8, 0xff_ffff] {
            for offset in [last, u64::MAX >> 1, (1 << 55) - 1, (1 << 55) - 8] {
                let one = pointer(size, offset);
                assert!(!follows(&one, &pointer(8, 0)));
                let _ = (follows(&one, &one), follows(&pointer(8, 0), &one));
            }
        }
    }
}
