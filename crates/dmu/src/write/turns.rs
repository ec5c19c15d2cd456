//! Turns: who changes which blocks of an object.
//!
//! Whoever changes a part of a block reads the rest first, and nobody may come in between; whoever changes other blocks need
//! not wait. So a change takes a turn: a range of blocks that is its alone until the turn is dropped.
//!
//! ```text
//!   held      0──3      7──9                two changes under way
//!   waiting       2────────8   8─9          in order of arrival: the second overlaps the first, so it waits behind it
//! ```
//! A turn is given to whoever overlaps neither what is held nor who waits longer, so nobody starves. Reading needs no turn: a
//! block is replaced as a whole.
//!
//! **Turn before txg.** A change that waits for its txg while it has the turn must not be waited for by one that holds an older
//! txg open: it would never be synced. Also the older txg's change would then be made after the newer one's. So where several
//! change the same blocks at once each takes the turn first and the txg then ([`Object::turn`]).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use cenote_taskq::oneshot::{self, Sender};
use cenote_taskq::sync::Mutex;

use super::object::Object;

/// The turns of one object.
#[derive(Default)]
pub(super) struct Turns {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Ranges in use: their ends by their starts. They do not overlap.
    held: BTreeMap<u64, u64>,
    waiting: VecDeque<Waiting>,
    /// The next number of who waits.
    next: u64,
}

struct Waiting {
    number: u64,
    blocks: Range<u64>,
    grant: Sender<()>,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl State {
    fn is_held(&self, blocks: &Range<u64>) -> bool {
        self.held.range(..blocks.end).next_back().is_some_and(|(_, end)| *end > blocks.start)
    }

    /// Gives turns to those who wait and may have them, now that `left` is free.
    fn grant(&mut self, left: &Range<u64>) -> Vec<Sender<()>> {
        let mut granted = Vec::new();
        let mut at = 0;
        while at < self.waiting.len() {
            let blocks = self.waiting[at].blocks.clone();
            let may = overlap(&blocks, left)
                && !self.is_held(&blocks)
                && !self.waiting.iter().take(at).any(|other| overlap(&other.blocks, &blocks));
            match may.then(|| self.waiting.remove(at)).flatten() {
                Some(waiting) => {
                    self.held.insert(blocks.start, blocks.end);
                    granted.push(waiting.grant);
                }
                None => at += 1,
            }
        }
        granted
    }
}

impl Turns {
    fn leave(&self, blocks: &Range<u64>) {
        let granted = {
            let mut state = self.state.lock();
            state.held.remove(&blocks.start);
            state.grant(blocks)
        };
        // Who has gone meanwhile gives it back itself.
        granted.into_iter().for_each(|grant| _ = grant.send(()));
    }
}

/// A range of an object's blocks that nobody else changes, until it is dropped.
#[must_use]
pub struct Turn {
    object: Object,
    blocks: Range<u64>,
}

impl Turn {
    /// The blocks.
    #[must_use]
    pub fn blocks(&self) -> &Range<u64> {
        &self.blocks
    }

    /// The object.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.blocks.is_empty() {
            self.object.turns().leave(&self.blocks);
        }
    }
}

/// Someone who waits; gone when dropped.
struct Wait<'a> {
    turns: &'a Turns,
    number: u64,
    blocks: &'a Range<u64>,
    is_over: bool,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let granted = {
            let mut state = self.turns.state.lock();
            match state.waiting.iter().position(|waiting| waiting.number == self.number) {
                Some(at) => drop(state.waiting.remove(at)),
                // The turn was given when nobody wanted it any more.
                None => drop(state.held.remove(&self.blocks.start)),
            }
            state.grant(self.blocks)
        };
        granted.into_iter().for_each(|grant| _ = grant.send(()));
    }
}

impl Object {
    /// Waits until nobody else changes any of these blocks, and keeps others away until the turn is dropped. To be taken
    /// before the txg (see the module `turns`); the future may be dropped at any moment.
    pub async fn turn(&self, blocks: Range<u64>) -> Turn {
        if !blocks.is_empty() {
            let turns = self.turns();
            let waiting = {
                let mut state = turns.state.lock();
                if state.is_held(&blocks) || state.waiting.iter().any(|other| overlap(&other.blocks, &blocks)) {
                    let (grant, granted) = oneshot::channel();
                    let number = state.next;
                    state.next += 1;
                    state.waiting.push_back(Waiting { number, blocks: blocks.clone(), grant });
                    Some((number, granted))
                } else {
                    state.held.insert(blocks.start, blocks.end);
                    None
                }
            };
            if let Some((number, granted)) = waiting {
                let mut wait = Wait { turns, number, blocks: &blocks, is_over: false };
                // It is sent, since nobody else takes it out of the queue.
                let _ = granted.await;
                wait.is_over = true;
            }
        }
        Turn { object: self.clone(), blocks }
    }
}
