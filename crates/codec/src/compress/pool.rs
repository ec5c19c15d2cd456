//! A few [`Scratch`]es for callers that keep none.
//!
//! Each slot is its own lock, only ever tried: a caller that finds every slot taken makes a fresh one. The first slot to
//! try follows from the address of the caller's buffer, so concurrent callers start at different slots and no counter is
//! shared.

use std::sync::Mutex;

use super::Scratch;

/// Slots; more than the cores that decompress at once on usual machines. A slot keeps at most a few MiB.
const SLOTS: usize = 32;

static POOL: [Mutex<Option<Box<Scratch>>>; SLOTS] = [const { Mutex::new(None) }; SLOTS];

/// Runs `work` with a scratch from the pool, starting the search at a slot that `place` selects.
pub(super) fn with<T>(place: usize, work: impl FnOnce(&mut Scratch) -> T) -> T {
    // Buffers are page-aligned: the bits that differ are above the page offset.
    let first = (place >> 12) ^ (place >> 17);
    for step in 0..SLOTS {
        let slot = &POOL[first.wrapping_add(step) % SLOTS];
        // A poisoned slot (a panic of ours inside `work`) is left alone.
        if let Ok(mut guard) = slot.try_lock() {
            let scratch = guard.get_or_insert_with(Box::default);
            let result = work(scratch);
            scratch.trim();
            return result;
        }
    }
    work(&mut Scratch::new())
}
