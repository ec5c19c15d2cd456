//! The blocks of a log that is written, from the first that the header names to the one that is allocated and not written yet (the
//! *tail*).
//!
//! ```text
//! header ─► stable ─► stable ─► issued ─► issued ─► tail
//!           └ freed in the sync of a txg that has all of its records
//! ```
//! A block counts as stable when it and all blocks before it are on stable storage, because a claim reads the chain only up to the first
//! missing block. If a block cannot be written, the log is broken there: later commits wait for their txgs, and a new chain begins when
//! no record of the old one is needed.

use std::collections::VecDeque;

use cenote_format::blkptr::Blkptr;
use cenote_format::ids::{Txg, VdevId};
use cenote_format::zil::LogBlockId;
use cenote_taskq::mutant::{self, Mutant};

use crate::itx::Goal;

/// The state of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nobody has changed the dataset yet.
    Idle,
    /// A chain is to be begun by the next sync.
    Wanted,
    /// It is begun by a txg that is not on disk yet.
    Begun(Txg),
    /// Records can be written.
    Ready,
    /// A block could not be written, or none be placed.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Tail,
    Issued,
    /// It is written and flushed, which those before it need not be.
    FlushDone,
    Failed,
}

#[derive(Debug)]
struct Held {
    pointer: Blkptr,
    state: State,
    /// The newest txg of its records.
    newest: Txg,
    /// The goal that is reached with it.
    goal: Goal,
}

/// See above.
#[derive(Debug)]
pub(super) struct Blocks {
    pub(super) phase: Phase,
    held: VecDeque<Held>,
    /// So many of the first of these are stable: a txg may have ten thousands, which nobody goes through for each.
    stable_blocks: usize,
    /// A chain was begun.
    is_ours: bool,
    /// All itxs up to this number are in blocks that are on their way, or need none.
    pub(super) issued: u64,
    /// All itxs up to this number are stable.
    pub(super) stable: u64,
    /// All itxs up to this number are waited for.
    wanted: u64,
    /// A burst fills blocks.
    is_filling: bool,
}

impl Default for Blocks {
    fn default() -> Self {
        Self {
            phase: Phase::Idle,
            held: VecDeque::new(),
            stable_blocks: 0,
            is_ours: false,
            issued: 0,
            stable: 0,
            wanted: 0,
            is_filling: false,
        }
    }
}

/// The work that the sync of a txg has with a log.
#[derive(Debug)]
pub struct Retired {
    /// Blocks to be freed.
    pub free: Vec<Blkptr>,
    /// The block that the header is to name: the first that is left, or a hole.
    pub first: Blkptr,
    /// The dataset's header names a chain of this log, or none any more; otherwise it is as it was found.
    pub is_ours: bool,
    /// A new chain is wanted.
    pub wants_chain: bool,
    /// Nothing is left of a log that is not used any more.
    pub is_over: bool,
}

impl Blocks {
    /// The block to be written next.
    pub(super) fn tail(&self) -> Option<Blkptr> {
        self.held.back().filter(|held| held.state == State::Tail && self.phase == Phase::Ready).map(|held| held.pointer)
    }

    /// All itxs up to this number are waited for. Whether a burst is to begin.
    pub(super) fn want(&mut self, number: u64) -> bool {
        self.wanted = self.wanted.max(number);
        !std::mem::replace(&mut self.is_filling, true)
    }

    /// A burst is over. Returns whether another is to begin: not if this one could do nothing, since the waiting clients must see that
    /// first.
    pub(super) fn burst_over(&mut self, is_done: bool) -> bool {
        assert!(self.is_filling, "one burst fills blocks at a time");
        self.is_filling = is_done && self.phase == Phase::Ready && self.wanted > self.issued;
        if !is_done {
            self.wanted = self.issued;
        }
        self.is_filling
    }

    /// No burst can begin any more.
    pub(super) fn no_burst(&mut self) {
        self.is_filling = false;
        self.break_off();
    }

    fn of(&mut self, sequence: u64) -> &mut Held {
        let first = self.held.front().map(|held| LogBlockId::of(&held.pointer).sequence);
        let at = first.and_then(|first| usize::try_from(sequence.checked_sub(first)?).ok());
        let held = at.and_then(|at| self.held.get_mut(at)).expect("a block on its way is held");
        assert_eq!(LogBlockId::of(&held.pointer).sequence, sequence, "blocks of a chain rise by one");
        held
    }

    /// The tail goes on its way; `next` comes after it, if it could be placed.
    pub(super) fn issued(&mut self, newest: Txg, goal: Goal, next: Option<Blkptr>) {
        let tail = self.held.back_mut().expect("a block that is issued was the tail");
        assert_eq!(tail.state, State::Tail, "a block is issued once");
        assert!(goal.number >= self.issued, "itxs are issued in their order (invariant 4)");
        (tail.state, tail.newest, tail.goal) = (State::Issued, newest, goal);
        self.issued = self.issued.max(goal.number);
        match next {
            Some(pointer) => self.push_tail(pointer),
            None => self.phase = Phase::Broken,
        }
    }

    fn push_tail(&mut self, pointer: Blkptr) {
        let goal = Goal { number: 0, txg: Txg(0) };
        let is_next = |last: &Held| LogBlockId::of(&last.pointer).sequence + 1 == LogBlockId::of(&pointer).sequence;
        debug_assert!(
            mutant::is(Mutant::LogWrongNext) || self.held.back().is_none_or(is_next),
            "blocks of a chain rise by one"
        );
        assert!(
            self.held.back().is_none_or(|last| last.pointer.birth() <= pointer.birth()),
            "a block is allocated in the txg of the one before or a later one, so blocks are freed in their order (invariant 5)"
        );
        self.held.push_back(Held { pointer, state: State::Tail, newest: Txg(0), goal });
    }

    /// All itxs up to a goal are taken, and the last block that was issued has the last of them; or there were none. Where the log is broken
    /// nothing is reached by that.
    pub(super) fn reached(&mut self, goal: Goal) {
        if self.phase == Phase::Broken {
            return;
        }
        self.issued = self.issued.max(goal.number);
        match self.held.range_mut(self.stable_blocks..).rev().find(|held| held.state == State::Issued) {
            Some(last) => last.goal.number = last.goal.number.max(goal.number),
            None => self.stable = self.stable.max(goal.number),
        }
        assert!(self.stable <= self.issued, "nothing is stable that was not issued (invariant 4)");
    }

    /// A block is stable, or cannot be written. Whether the log is broken.
    pub(super) fn flush_done(&mut self, sequence: u64, is_good: bool) -> bool {
        let held = self.of(sequence);
        assert_eq!(held.state, State::Issued, "a block lands once");
        held.state = if is_good { State::FlushDone } else { State::Failed };
        if !is_good {
            self.phase = Phase::Broken;
        }
        while let Some(held) = self.held.get(self.stable_blocks).filter(|held| held.state == State::FlushDone) {
            self.stable = self.stable.max(held.goal.number);
            self.stable_blocks += 1;
        }
        assert!(self.stable <= self.issued, "nothing is stable that was not issued (invariant 4)");
        self.phase == Phase::Broken
    }

    /// Nothing of it is left, on disk either.
    pub(super) fn is_over(&self) -> bool {
        self.held.is_empty() && !self.is_ours
    }

    /// Whether a block is on its way that leads to one which was allocated in this txg or before; where the log is broken, or one that was
    /// allocated then itself.
    pub(super) fn are_landing(&self, txg: Txg) -> bool {
        let is_of_txg = |held: &Held| held.pointer.birth() <= txg;
        let is_broken = self.phase == Phase::Broken;
        let mut held = self.held.range(self.stable_blocks..).peekable();
        std::iter::from_fn(|| Some((held.next()?, held.peek().copied()))).any(|(held, next)| {
            held.state == State::Issued && (next.is_some_and(is_of_txg) || is_broken && is_of_txg(held))
        })
    }

    /// Whether a chain was begun.
    pub(super) const fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Blocks that are allocated, and on no device yet as far as is known.
    pub(super) fn unwritten(&self) -> impl Iterator<Item = Blkptr> {
        self.held.iter().filter(|held| held.state != State::FlushDone).map(|held| held.pointer)
    }

    /// Whether a block is on a vdev.
    pub(super) fn are_on(&self, vdev: VdevId) -> bool {
        self.held.iter().any(|held| held.pointer.dvas().any(|dva| dva.vdev == vdev))
    }

    /// So many of the first can be found after a crash, and may have records that somebody was told of.
    fn reachable_blocks(&self) -> usize {
        self.held.iter().position(|held| held.state == State::Failed).unwrap_or(self.held.len())
    }

    /// The log goes no further: what follows waits for txgs.
    pub(super) fn break_off(&mut self) {
        self.phase = Phase::Broken;
    }

    pub(super) fn synced(&mut self, txg: Txg) {
        if let Phase::Begun(begun) = self.phase
            && begun <= txg
        {
            self.phase = Phase::Ready;
        }
    }

    pub(super) fn begin(&mut self, txg: Txg, first: Blkptr) {
        assert_eq!(self.phase, Phase::Wanted, "a chain is begun where one is wanted");
        assert!(self.held.is_empty(), "a chain is begun when nothing of the one before is left");
        assert_eq!(LogBlockId::of(&first).sequence, 1, "blocks of a chain are numbered from 1 (invariant 1)");
        assert_eq!(first.birth(), txg, "the txg whose header names the first block has allocated it (invariant 8)");
        self.phase = Phase::Begun(txg);
        self.is_ours = true;
        self.push_tail(first);
    }

    /// See [`super::LogWriter::retire`]. Log blocks allocated in the txg itself are kept as long as the log goes on.
    pub(super) fn retire(&mut self, txg: Txg, is_used: bool) -> Retired {
        let done = if mutant::is(Mutant::LogFreedEarly) { Txg(txg.0 + 1) } else { txg };
        let is_needless = |held: &Held| held.newest <= done && held.pointer.birth() < txg;
        let mut free = Vec::new();
        // A burst that has the tail may go on with it.
        let is_ended = match self.phase {
            _ if self.is_filling => false,
            // Nothing leads to the blocks behind one that failed, and nobody was told of their records: all go at once, those of this txg too,
            // which would be allocated and in no log. Freed space is not used before two more txgs are on disk.
            Phase::Broken => self.held.range(..self.reachable_blocks()).all(|held| held.newest <= done),
            _ => !is_used && self.held.iter().all(is_needless),
        };
        if is_ended && self.held.iter().all(|held| held.state != State::Issued && held.pointer.birth() <= txg) {
            assert!(
                self.held.range(..self.reachable_blocks()).all(|held| held.newest <= txg),
                "a log ends in the sync of a txg that has all changes of its records (invariant 5)"
            );
            free.extend(self.held.drain(..).map(|held| held.pointer));
            self.stable_blocks = 0;
            self.phase = if is_used { Phase::Wanted } else { Phase::Idle };
        }
        while self.held.front().is_some_and(|held| held.state == State::FlushDone && is_needless(held)) {
            let Some(held) = self.held.pop_front() else { break };
            assert!(held.newest <= txg, "a block is freed in a txg that has all changes of its records (invariant 5)");
            assert!(self.stable_blocks > 0, "a block that is freed alone was stable, with all before it (invariant 4)");
            free.push(held.pointer);
            self.stable_blocks -= 1;
        }
        let first = self.held.front().map_or(Blkptr::HOLE, |held| held.pointer);
        debug_assert!(!free.contains(&first), "the header names no block that is freed (invariant 8)");
        Retired {
            free,
            first,
            is_ours: self.is_ours,
            wants_chain: is_used && self.phase == Phase::Wanted,
            is_over: !is_used && self.held.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use cenote_format::blkptr::Dva;
    use cenote_zio::log_pointer;

    use super::*;

    const fn goal(number: u64, txg: u64) -> Goal {
        Goal { number, txg: Txg(txg) }
    }

    fn block(sequence: u64, birth: u64) -> Blkptr {
        let place = Dva { vdev: VdevId(0), offset_bytes: sequence << 20, asize_bytes: 4096, gang: false };
        log_pointer(&[place], 4096, Txg(birth), [7, 7, 7, sequence])
    }

    fn ready() -> Blocks {
        let mut blocks = Blocks { phase: Phase::Wanted, ..Blocks::default() };
        blocks.begin(Txg(9), block(1, 9));
        assert_eq!(blocks.tail(), None, "the header that names it is not on disk");
        blocks.synced(Txg(9));
        assert_eq!(blocks.tail(), Some(block(1, 9)));
        blocks
    }

    #[test]
    fn a_block_is_stable_when_all_before_it_are() {
        let mut blocks = ready();
        blocks.issued(Txg(10), goal(3, 10), Some(block(2, 10)));
        blocks.issued(Txg(10), goal(5, 10), Some(block(3, 10)));
        assert!(!blocks.flush_done(2, true));
        assert_eq!(blocks.stable, 0);
        assert!(!blocks.flush_done(1, true));
        assert_eq!((blocks.stable, blocks.issued), (5, 5));
        blocks.reached(goal(6, 10));
        assert_eq!(blocks.stable, 6, "what needed no block is stable with what came before");
    }

    #[test]
    fn a_block_goes_with_a_txg_that_has_its_records_and_not_with_that_of_its_allocation() {
        let mut blocks = ready();
        blocks.issued(Txg(10), goal(1, 10), Some(block(2, 10)));
        blocks.issued(Txg(11), goal(2, 11), Some(block(3, 11)));
        let (first, second) = (blocks.flush_done(1, true), blocks.flush_done(2, true));
        assert!(!first && !second);
        assert_eq!(blocks.retire(Txg(9), true).free, []);
        let retired = blocks.retire(Txg(10), true);
        assert_eq!((retired.free, retired.first), (vec![block(1, 9)], block(2, 10)));
        let retired = blocks.retire(Txg(11), true);
        assert_eq!((retired.free, retired.first), (vec![block(2, 10)], block(3, 11)));
        assert!(!blocks.retire(Txg(11), false).is_over, "the tail was allocated in that txg");
        let retired = blocks.retire(Txg(12), false);
        assert_eq!((retired.free, retired.first, retired.is_over), (vec![block(3, 11)], Blkptr::HOLE, true));
    }

    #[test]
    fn a_block_stays_while_it_has_records_of_a_txg_that_is_not_on_disk() {
        let mut blocks = ready();
        blocks.issued(Txg(10), goal(1, 10), Some(block(2, 10)));
        blocks.issued(Txg(12), goal(2, 12), Some(block(3, 11)));
        let (first, second) = (blocks.flush_done(1, true), blocks.flush_done(2, true));
        assert!(!first && !second);
        let retired = blocks.retire(Txg(11), true);
        assert_eq!((retired.free, retired.first), (vec![block(1, 9)], block(2, 10)));
        let retired = blocks.retire(Txg(12), true);
        assert_eq!((retired.free, retired.first), (vec![block(2, 10)], block(3, 11)));
    }

    /// Found by a reader: a burst that waited for data had the tail, while the log was broken behind it and begun anew.
    #[test]
    fn the_tail_stays_while_a_burst_has_it() {
        let mut blocks = ready();
        blocks.issued(Txg(10), goal(1, 10), Some(block(2, 10)));
        assert!(blocks.want(2), "a burst begins");
        assert!(!blocks.want(3), "and not two");
        assert_eq!(blocks.tail(), Some(block(2, 10)));
        assert!(blocks.flush_done(1, false));
        let retired = blocks.retire(Txg(12), true);
        assert_eq!((retired.free, retired.wants_chain), (vec![], false), "the burst may be about to write it");
        assert!(!blocks.burst_over(false), "nothing is filled in a log that is broken");
        let retired = blocks.retire(Txg(13), true);
        assert_eq!((retired.free, retired.wants_chain), (vec![block(1, 9), block(2, 10)], true));
    }

    /// Found by a reader: a burst with nothing to write, amid the failure of the block before.
    #[test]
    fn nothing_is_reached_in_a_log_that_is_broken() {
        let mut blocks = ready();
        blocks.issued(Txg(10), goal(4, 10), Some(block(2, 10)));
        assert!(blocks.flush_done(1, false));
        blocks.reached(goal(5, 10));
        assert_eq!((blocks.stable, blocks.issued), (0, 4));
    }

    /// Found by a power cut after a log device had failed: a block that was allocated stayed in the account of space, and nothing led to it.
    #[test]
    fn blocks_behind_one_that_failed_go_in_the_txg_of_their_allocation() {
        let mut blocks = ready();
        blocks.issued(Txg(10), goal(1, 10), Some(block(2, 10)));
        blocks.issued(Txg(11), goal(2, 11), Some(block(3, 10)));
        assert!(blocks.are_landing(Txg(10)) && !blocks.are_landing(Txg(9)));
        assert!(blocks.flush_done(1, false));
        assert!(blocks.are_landing(Txg(10)), "the second leads to the third");
        assert!(blocks.flush_done(2, true));
        assert!(!blocks.are_landing(Txg(10)));
        let retired = blocks.retire(Txg(10), true);
        assert_eq!((retired.free, retired.first), (vec![block(1, 9), block(2, 10), block(3, 10)], Blkptr::HOLE));
        assert!(retired.wants_chain);
    }

    /// Found by a reader: a block that is not the last of its burst has no number of its own, so all numbers are stable while it is on its way.
    #[test]
    fn a_block_amid_a_burst_is_landing_though_all_numbers_are_stable() {
        let mut blocks = ready();
        blocks.issued(Txg(10), goal(0, 0), Some(block(2, 10)));
        assert!(blocks.stable >= blocks.issued && blocks.are_landing(Txg(10)));
    }

    #[test]
    fn a_log_that_is_broken_is_begun_anew_when_nothing_of_it_is_needed() {
        let mut blocks = ready();
        blocks.issued(Txg(10), goal(1, 10), Some(block(2, 10)));
        blocks.issued(Txg(11), goal(2, 11), Some(block(3, 11)));
        assert!(blocks.flush_done(1, false));
        assert_eq!((blocks.stable, blocks.tail()), (0, None));
        assert!(!blocks.retire(Txg(12), true).wants_chain, "a block is on its way");
        assert!(blocks.flush_done(2, true));
        assert_eq!(blocks.stable, 0, "nothing behind the break is stable");
        assert!(!blocks.retire(Txg(10), true).wants_chain, "records of a later txg");
        let retired = blocks.retire(Txg(12), true);
        assert!(retired.wants_chain && retired.free.len() == 3);
        blocks.begin(Txg(12), block(1, 12));
        blocks.synced(Txg(12));
        assert_eq!(blocks.tail(), Some(block(1, 12)));
    }
}
