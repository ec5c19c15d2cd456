//! Intent transactions (itx): changes in memory whose txg is not on disk yet. An itx becomes a log record if a client asks for its change
//! to be stable earlier.
//!
//! ```text
//! by txg:   in order     [create 7 | rename | link ...]        names: each depends on those before
//!           by object    7: [write | truncate | write]         data and attributes: of use only to those who ask for object 7
//! ```
//! A commit of an object appends the object's itxs to the order, so the record that created the object comes first. When a txg is on
//! disk, all of its itxs are dropped at once.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_dmu::tx::UNWRITTEN_TXGS_MAX;
use cenote_format::ids::{ObjectId, Txg};
use cenote_taskq::buf::Block;
use cenote_taskq::mutant::{self, Mutant};

/// Places for txgs: more than have changes that are not on disk.
const SLOTS: usize = (UNWRITTEN_TXGS_MAX + 1).next_power_of_two();

/// A write whose record is made when it is asked for.
#[derive(Clone, Debug)]
pub(crate) struct ItxWrite {
    pub(crate) object: ObjectId,
    /// The object's generation: the number may be another object's by then.
    pub(crate) generation: u64,
    pub(crate) bytes: Range<u64>,
    /// The data, if the client waits for this write (`WR_COPIED`); otherwise it is read from the object when the record is made
    /// (`WR_NEED_COPY`).
    pub(crate) data: Option<Block>,
    /// Set for a write that is logged by reference (`WR_INDIRECT`): the block size of the object.
    pub(crate) indirect: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// A record as it is written, but for its sequence number.
    Record(Vec<u8>),
    Write(ItxWrite),
}

#[derive(Clone, Debug)]
pub(crate) struct Itx {
    pub(crate) txg: Txg,
    pub(crate) payload: Payload,
}

/// The itxs of one txg.
#[derive(Debug, Default)]
struct OfTxg {
    txg: Txg,
    in_order: Vec<Itx>,
    by_object: BTreeMap<ObjectId, Vec<Itx>>,
}

/// The position up to which the log has to be stable for a client that syncs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Goal {
    /// All itxs up to the one of this number in the order, from 1.
    pub(crate) number: u64,
    /// Or this txg is on disk.
    pub(crate) txg: Txg,
}

/// Itxs that are about to become records.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) itxs: Vec<Itx>,
    /// The goal that is reached when these and all before are stable.
    pub(crate) goal: Goal,
}

/// The itxs of a log.
#[derive(Debug)]
pub(crate) struct Queue {
    txgs: [OfTxg; SLOTS],
    /// The number of itxs that were ever appended to the order, and the newest txg among them.
    last: Goal,
    /// The last itx that every commit waits for: a change of names, or the end of a commit of all objects.
    last_of_all: Goal,
    /// The last of an object's own, while its txg is not on disk.
    last_of_object: BTreeMap<ObjectId, Goal>,
    /// The newest txg with a change that is in no record: it has to be on disk before a later record is of use.
    unlogged: Txg,
    synced: Txg,
}

impl Queue {
    pub(crate) fn new(synced: Txg) -> Self {
        let none = Goal { number: 0, txg: Txg(0) };
        Self {
            txgs: Default::default(),
            last: none,
            last_of_all: none,
            last_of_object: BTreeMap::new(),
            unlogged: Txg(0),
            synced,
        }
    }

    fn of(&mut self, txg: Txg) -> &mut OfTxg {
        assert!(txg > self.synced, "a change is logged before its txg is on disk");
        let at = &mut self.txgs[txg.0 as usize % SLOTS];
        if at.txg != txg {
            assert!(at.in_order.is_empty() && at.by_object.is_empty(), "itxs go with their txg");
            at.txg = txg;
        }
        at
    }

    /// Appends a change of names.
    pub(crate) fn push(&mut self, itx: Itx) {
        self.last.number += 1;
        self.last.txg = self.last.txg.max(itx.txg);
        self.last_of_all = self.last;
        self.of(itx.txg).in_order.push(itx);
    }

    /// Adds a change of an object's data or attributes.
    pub(crate) fn push_of(&mut self, object: ObjectId, itx: Itx) {
        let itxs = self.of(itx.txg).by_object.entry(object).or_default();
        if let (Payload::Write(new), Some(Itx { payload: Payload::Write(last), .. })) = (&itx.payload, itxs.last_mut())
            && new.data.is_none()
            && last.data.is_none()
            && new.generation == last.generation
            && new.indirect == last.indirect
            && new.bytes.start <= last.bytes.end
            && last.bytes.start <= new.bytes.end
        {
            // One write, as far as its bytes are read later.
            last.bytes = last.bytes.start.min(new.bytes.start)..last.bytes.end.max(new.bytes.end);
            return;
        }
        itxs.push(itx);
    }

    /// Puts the changes of an object, or of all, into the order.
    pub(crate) fn async_to_sync(&mut self, object: Option<ObjectId>) {
        let mut at: Vec<usize> = (0..SLOTS).collect();
        at.sort_unstable_by_key(|at| self.txgs[*at].txg);
        for at in at {
            let of = &mut self.txgs[at];
            let moved: Vec<Itx> = match object {
                Some(object) => of.by_object.remove(&object).unwrap_or_default(),
                None => std::mem::take(&mut of.by_object).into_values().flatten().collect(),
            };
            if !moved.is_empty() {
                assert!(of.txg > self.synced, "itxs go with their txg, so none of a txg on disk is asked for");
                self.last.number += moved.len() as u64;
                self.last.txg = self.last.txg.max(of.txg);
                match object {
                    Some(object) => drop(self.last_of_object.insert(object, self.last)),
                    None => self.last_of_all = self.last,
                }
                match mutant::is(Mutant::LogDataFirst) {
                    true => drop(of.in_order.splice(0..0, moved)),
                    false => of.in_order.extend(moved),
                }
            }
        }
    }

    /// Forgets the changes of an object that is no more.
    pub(crate) fn forget(&mut self, object: ObjectId) {
        for of in &mut self.txgs {
            of.by_object.remove(&object);
        }
    }

    /// The goal at which all itxs in the order are stable.
    pub(crate) const fn last(&self) -> Goal {
        self.last
    }

    /// The goal that all of an object, or of all, is stable as far as it is in the order, with the names before it: what others did to
    /// other objects need not be waited for.
    pub(crate) fn goal_of(&self, object: Option<ObjectId>) -> Goal {
        let Some(object) = object else { return self.last };
        let own = self.last_of_object.get(&object).copied().unwrap_or(self.last_of_all);
        let goal = Goal { number: own.number.max(self.last_of_all.number), txg: own.txg.max(self.last_of_all.txg) };
        assert!(
            goal.number <= self.last.number && goal.txg <= self.last.txg,
            "a client waits for itxs that are in the order (invariant 4)"
        );
        goal
    }

    /// Notes that a txg has a change without a record.
    pub(crate) fn not_logged(&mut self, txg: Txg) {
        if !mutant::is(Mutant::LogUnloggedIgnored) {
            self.unlogged = self.unlogged.max(txg);
        }
    }

    /// The txg that has to be on disk before anything can be logged, if there is one.
    pub(crate) fn unlogged(&self) -> Option<Txg> {
        (self.unlogged > self.synced).then_some(self.unlogged)
    }

    pub(crate) const fn synced_txg(&self) -> Txg {
        self.synced
    }

    /// Takes all itxs that are in the order; none while the txg of a change without a record is not on disk.
    pub(crate) fn take(&mut self) -> Option<Taken> {
        if self.unlogged().is_some() {
            return None;
        }
        let mut taken: Vec<(Txg, Vec<Itx>)> =
            self.txgs.iter_mut().map(|of| (of.txg, std::mem::take(&mut of.in_order))).collect();
        taken.sort_unstable_by_key(|(txg, _)| *txg);
        assert!(
            taken.iter().all(|(txg, itxs)| *txg > self.synced || itxs.is_empty()),
            "a record is of a txg that is not on disk, so its block outlives that txg (invariant 5)"
        );
        Some(Taken { itxs: taken.into_iter().flat_map(|(_, itxs)| itxs).collect(), goal: self.last })
    }

    /// A txg is on disk. Returns its itxs, to be dropped outside of the lock.
    pub(crate) fn synced(&mut self, txg: Txg) -> impl Send + use<> {
        self.synced = self.synced.max(txg);
        let txg = if mutant::is(Mutant::LogItxsDropped) { Txg(txg.0 + 1) } else { txg };
        self.last_of_object.retain(|_, goal| goal.txg > txg);
        let gone: Vec<OfTxg> = self.txgs.iter_mut().filter(|of| of.txg <= txg).map(std::mem::take).collect();
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(txg: u64, byte: u8) -> Itx {
        Itx { txg: Txg(txg), payload: Payload::Record(vec![byte]) }
    }

    fn write(txg: u64, bytes: Range<u64>) -> Itx {
        let write = ItxWrite { object: ObjectId(7), generation: 1, bytes, data: None, indirect: None };
        Itx { txg: Txg(txg), payload: Payload::Write(write) }
    }

    fn shown(taken: &Taken) -> Vec<String> {
        let show = |itx: &Itx| match &itx.payload {
            Payload::Record(bytes) => format!("{}", bytes[0]),
            Payload::Write(write) => format!("{:?}", write.bytes),
        };
        taken.itxs.iter().map(show).collect()
    }

    #[test]
    fn an_object_that_is_asked_for_comes_after_what_made_it() {
        let mut queue = Queue::new(Txg(9));
        queue.push(record(10, 1));
        queue.push_of(ObjectId(7), write(10, 0..10));
        queue.push_of(ObjectId(8), record(10, 2));
        queue.push(record(11, 3));
        queue.push_of(ObjectId(7), write(11, 50..60));
        queue.async_to_sync(Some(ObjectId(7)));
        assert_eq!(queue.last(), Goal { number: 4, txg: Txg(11) });
        assert_eq!(queue.goal_of(Some(ObjectId(7))), queue.last());
        let taken = queue.take().unwrap();
        assert_eq!(shown(&taken), ["1", "0..10", "3", "50..60"]);
        queue.async_to_sync(None);
        assert_eq!(shown(&queue.take().unwrap()), ["2"]);
        assert_eq!(queue.take().unwrap().itxs.len(), 0);
    }

    #[test]
    fn who_asks_for_an_object_waits_for_names_and_not_for_other_objects() {
        let mut queue = Queue::new(Txg(9));
        let goal = |number, txg| Goal { number, txg: Txg(txg) };
        let ask = |queue: &mut Queue, object: Option<u64>| {
            queue.async_to_sync(object.map(ObjectId));
            queue.goal_of(object.map(ObjectId))
        };
        assert_eq!(ask(&mut queue, Some(7)), goal(0, 0), "nothing was changed");
        queue.push(record(10, 1));
        queue.push_of(ObjectId(7), record(10, 2));
        assert_eq!(ask(&mut queue, Some(8)), goal(1, 10));
        assert_eq!(ask(&mut queue, Some(7)), goal(2, 10));
        queue.push_of(ObjectId(8), record(11, 3));
        assert_eq!(ask(&mut queue, Some(8)), goal(3, 11));
        assert_eq!(ask(&mut queue, Some(7)), goal(2, 10), "asked again");
        queue.push(record(11, 4));
        assert_eq!(ask(&mut queue, Some(7)), goal(4, 11), "a name that may be its own");
        queue.push_of(ObjectId(9), record(11, 5));
        assert_eq!(ask(&mut queue, None), goal(5, 11));
        assert_eq!(ask(&mut queue, Some(7)), goal(5, 11), "what was asked for with all others may be its own");
        drop(queue.synced(Txg(11)));
        assert_eq!(queue.last_of_object.len(), 0);
    }

    #[test]
    fn writes_side_by_side_are_one() {
        let mut queue = Queue::new(Txg(9));
        for (txg, bytes) in [(10, 0..10), (10, 10..20), (10, 5..7), (10, 30..40), (11, 40..50)] {
            queue.push_of(ObjectId(7), write(txg, bytes));
        }
        let Itx { txg, payload: Payload::Write(last) } = write(11, 50..60) else { panic!("a write") };
        queue.push_of(ObjectId(7), Itx { txg, payload: Payload::Write(ItxWrite { indirect: Some(16), ..last }) });
        queue.async_to_sync(Some(ObjectId(7)));
        assert_eq!(
            shown(&queue.take().unwrap()),
            ["0..20", "30..40", "40..50", "50..60"],
            "as far as they are logged alike"
        );
    }

    #[test]
    fn itxs_go_with_their_txg_and_nothing_is_taken_before_what_is_not_logged_is_on_disk() {
        let mut queue = Queue::new(Txg(9));
        queue.push(record(10, 1));
        queue.push(record(11, 2));
        queue.not_logged(Txg(10));
        assert_eq!(queue.unlogged(), Some(Txg(10)));
        assert!(queue.take().is_none());
        drop(queue.synced(Txg(10)));
        assert_eq!(queue.unlogged(), None);
        assert_eq!(shown(&queue.take().unwrap()), ["2"]);
        queue.push_of(ObjectId(7), write(12, 0..10));
        queue.forget(ObjectId(7));
        queue.async_to_sync(None);
        assert_eq!(queue.take().unwrap().itxs.len(), 0);
    }
}
