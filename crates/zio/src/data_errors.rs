//! Blocks that could not be read for good, as OpenZFS's `spa_log_error` collects them: the pool that is written keeps them in the MOS.
//!
//! **Life of one.** A read fails after all copies were tried, after it was asked again, and after a suspended pool went on or was given up:
//! what its caller gets is an error. The block's bookmark and birth are noted here, once. The pool's next txg takes what is new
//! ([`DataErrors::take`]) and enters it into its error log. What was noted stays here until `zpool clear` finds it well, so that
//! a report of the same process has it before that txg too, and so that a client which reads a bad block again and again has
//! nothing written.
//!
//! **Not noted:** what was read ahead, since the reader that wants the block asks again; what a key or a redaction withholds; and reads of a
//! txg whose blocks are being used again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;

use cenote_format::ids::Txg;
use cenote_taskq::sync::Mutex;

use crate::Bookmark;

/// So many are remembered. Those beyond are noted again when they are found again.
const KNOWN_MAX: usize = 1 << 14;

/// A block that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataError {
    /// The block.
    pub bookmark: Bookmark,
    /// Its birth.
    pub birth: Txg,
}

/// The blocks of a pool that could not be read since it was opened.
#[derive(Default)]
pub struct DataErrors {
    state: Mutex<State>,
    /// Called when the first new one has come since the last that were taken.
    came: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug, Default)]
struct State {
    known: BTreeMap<Bookmark, Txg>,
    new: BTreeMap<Bookmark, Txg>,
    /// Those that were known when a scrub began which is under way.
    before: BTreeMap<Bookmark, Txg>,
}

impl fmt::Debug for DataErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.lock().fmt(f)
    }
}

fn listed(of: &BTreeMap<Bookmark, Txg>) -> Vec<DataError> {
    of.iter().map(|(bookmark, birth)| DataError { bookmark: *bookmark, birth: *birth }).collect()
}

impl DataErrors {
    /// A block could not be read.
    pub(crate) fn note(&self, error: DataError) {
        let is_first = {
            let mut state = self.state.lock();
            if state.known.get(&error.bookmark) == Some(&error.birth) || state.new.len() >= KNOWN_MAX {
                return;
            }
            if state.known.len() >= KNOWN_MAX {
                state.known.clear();
            }
            state.known.insert(error.bookmark, error.birth);
            state.new.insert(error.bookmark, error.birth);
            state.new.len() == 1
        };
        if let Some(came) = self.came.get().filter(|_| is_first) {
            came();
        }
    }

    /// An error of an earlier process is one still.
    pub fn note_again(&self, error: DataError) {
        self.note(error);
    }

    /// Those that came since they were last taken.
    pub fn take(&self) -> Vec<DataError> {
        listed(&std::mem::take(&mut self.state.lock().new))
    }

    /// All that are remembered.
    #[must_use]
    pub fn known(&self) -> Vec<DataError> {
        let state = self.state.lock();
        let mut all = state.before.clone();
        all.extend(state.known.iter().map(|(bookmark, birth)| (*bookmark, *birth)));
        listed(&all)
    }

    /// A scrub of everything begins: what it finds again is new. Those that nobody has taken yet are new still.
    pub fn begin_pass(&self) {
        let mut state = self.state.lock();
        let known = std::mem::take(&mut state.known);
        state.before.extend(known);
    }

    /// The scrub has ended. `is_everywhere`: it read all blocks, so what it did not find is well or gone.
    pub fn end_pass(&self, is_everywhere: bool) {
        let mut state = self.state.lock();
        let before = std::mem::take(&mut state.before);
        if !is_everywhere {
            for (bookmark, birth) in before {
                state.known.entry(bookmark).or_insert(birth);
            }
        }
    }

    /// These are well, or gone: where one fails again it is noted again.
    pub fn forget(&self, is_meant: impl Fn(&Bookmark) -> bool) {
        let mut state = self.state.lock();
        state.known.retain(|bookmark, _| !is_meant(bookmark));
        state.before.retain(|bookmark, _| !is_meant(bookmark));
        state.new.retain(|bookmark, _| !is_meant(bookmark));
    }

    /// Has this called when there are new ones, each time after they were taken. Once.
    pub fn when_new(&self, came: impl Fn() + Send + Sync + 'static) {
        let _ = self.came.set(Box::new(came));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::ids::{BlockId, ObjectId, ObjsetId};
    use cenote_taskq::sync::atomic::{AtomicU64, Ordering};
    use std::sync::Arc;

    fn error(block: u64, birth: u64) -> DataError {
        let bookmark = Bookmark { objset: ObjsetId(54), object: ObjectId(2), level: 0, block: BlockId(block) };
        DataError { bookmark, birth: Txg(birth) }
    }

    #[test]
    fn one_is_taken_once_and_remembered() {
        let (errors, called) = (DataErrors::default(), Arc::new(AtomicU64::new(0)));
        let counted = called.clone();
        errors.when_new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        for _ in 0..3 {
            errors.note(error(1, 7));
            errors.note(error(2, 7));
        }
        assert_eq!((errors.take(), errors.take()), (vec![error(1, 7), error(2, 7)], Vec::new()));
        assert_eq!((errors.known().len(), called.load(Ordering::Relaxed)), (2, 1));
        // Another block in the same place is another error.
        errors.note(error(1, 9));
        assert_eq!((errors.take(), called.load(Ordering::Relaxed)), (vec![error(1, 9)], 2));
        errors.forget(|bookmark| bookmark.block == BlockId(1));
        assert_eq!(errors.known(), [error(2, 7)]);
    }

    #[test]
    fn a_pass_over_everything_forgets_what_it_did_not_find() {
        for is_everywhere in [false, true] {
            let errors = DataErrors::default();
            errors.note(error(1, 7));
            errors.note(error(2, 7));
            errors.take();
            errors.begin_pass();
            assert_eq!(errors.known(), [error(1, 7), error(2, 7)]);
            errors.note(error(2, 7));
            assert_eq!(errors.take(), [error(2, 7)], "it is entered into the log of the scrub");
            errors.end_pass(is_everywhere);
            let left = if is_everywhere { vec![error(2, 7)] } else { vec![error(1, 7), error(2, 7)] };
            assert_eq!(errors.known(), left);
        }
    }

    #[test]
    fn what_is_remembered_has_an_end() {
        let errors = DataErrors::default();
        (0..3 * KNOWN_MAX as u64).for_each(|block| errors.note(error(block, 7)));
        assert!(errors.known().len() <= KNOWN_MAX);
        assert_eq!(errors.take().len(), KNOWN_MAX);
    }
}
