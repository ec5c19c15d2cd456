//! Range locks on the bytes of a file.
//!
//! A writer holds its range alone. A reader need not lock anything where no writer was at work from its beginning to its end: it asks
//! before and after. Where one was it reads again, with its range locked.

use std::ops::Range;

use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
use cenote_taskq::{RangeGuard, RangeLock};

/// In the count of writers: one that is at work, and one that ever was.
const AT_WORK: u64 = 1;
const EVER: u64 = 1 << 20;

/// The ranges of a file that are read and written.
#[derive(Default)]
pub(crate) struct Bytes {
    ranges: RangeLock,
    /// Writers at work in the low bits, all that there ever were above.
    writers: AtomicU64,
}

/// A range that is written.
#[must_use]
pub(crate) struct Writing<'a> {
    bytes: &'a Bytes,
    /// Let go after the count.
    _range: RangeGuard<'a>,
}

/// That no writer was at work, at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quiet(u64);

impl Bytes {
    /// Locks a range together with other readers.
    pub(crate) async fn read(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.ranges.read(range).await
    }

    /// Locks a range alone.
    pub(crate) async fn write(&self, range: Range<u64>) -> Writing<'_> {
        let range = self.ranges.write(range).await;
        let before = self.writers.fetch_add(AT_WORK + EVER, Ordering::SeqCst);
        debug_assert!(before % EVER < EVER - AT_WORK, "writers at work are counted apart from all that there were");
        Writing { bytes: self, _range: range }
    }

    /// Nothing while there is a writer.
    pub(crate) fn quiet(&self) -> Option<Quiet> {
        let writers = self.writers.load(Ordering::SeqCst);
        writers.is_multiple_of(EVER).then_some(Quiet(writers))
    }

    /// True if no writer has been at work since.
    pub(crate) fn was_quiet_since(&self, quiet: Quiet) -> bool {
        self.quiet() == Some(quiet)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let before = self.bytes.writers.fetch_sub(AT_WORK, Ordering::SeqCst);
        debug_assert!(!before.is_multiple_of(EVER), "a writer that was not counted");
    }
}

#[cfg(test)]
mod tests {
    use cenote_taskq::Runtime;

    use super::*;

    #[test]
    fn a_reader_learns_of_every_writer_that_was_there_meanwhile() {
        Runtime::simulated(1).block_on(async {
            let bytes = Bytes::default();
            let before = bytes.quiet().unwrap();
            let first = bytes.write(0..10).await;
            assert_eq!(bytes.quiet(), None);
            let second = bytes.write(10..20).await;
            drop(first);
            assert_eq!(bytes.quiet(), None, "the other is at work still");
            drop(second);
            assert!(bytes.quiet().is_some() && !bytes.was_quiet_since(before));
            let after = bytes.quiet().unwrap();
            drop(bytes.read(0..5).await);
            assert!(bytes.was_quiet_since(after));
        });
    }
}
