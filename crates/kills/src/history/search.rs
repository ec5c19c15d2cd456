//! The search for an order: linearization just in time.
//!
//! Events are taken in the order of time. A *possibility* is a state of the object and, of each open operation, whether it has taken effect.
//! Nothing takes effect before it must. If an operation is answered that has not taken effect in a possibility, the search tries all sequences of
//! open changes that end with it, each with the answer that it got. This finds every order that explains a history, since an effect can be
//! put off until the next answer. Possibilities that are equal in everything that matters later are merged. If none is left, no order explains
//! the latest answer.
//!
//! An operation that does not change the object only watches: in each possibility it is shown every state between its call and its answer. So it
//! adds no branches.

use std::collections::BTreeMap;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;

use super::events::Operation;

/// The limit for possibilities at one time.
const POSSIBILITIES_MAX: usize = 50_000;
/// The number of possibilities whose right answers a failure shows.
const EXPLAINED: usize = 20;

/// The role of an operation for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It changes the object, if it takes effect.
    Change,
    /// It saw the object.
    Watch,
    /// It makes the state at its call durable.
    Sync,
    /// It is about something else, or says nothing.
    Nothing,
}

/// An object that operations change and watch.
pub(super) trait Object: Clone {
    /// The part of its answer that an observing operation has seen.
    type Seen: Clone;

    fn role(&self, at: usize, operation: &Operation) -> Role;
    /// The object after a change; `None` if the change would get another answer now.
    fn change(&self, at: usize, operation: &Operation) -> Option<Self>;
    fn watch(&self, at: usize, operation: &Operation) -> Self::Seen;
    /// Shows the object to a watching operation.
    fn look(&self, at: usize, operation: &Operation, seen: &mut Self::Seen);
    fn is_seen(operation: &Operation, seen: &Self::Seen) -> bool;
    /// A sync is called.
    fn begin_sync(&mut self, at: usize, operation: &Operation);
    /// A change or a sync is answered.
    fn acknowledge(&mut self, at: usize, operation: &Operation);
    fn hash(&self, hasher: &mut DefaultHasher);
    fn hash_seen(seen: &Self::Seen, hasher: &mut DefaultHasher);
    /// A description of the answer that an operation would get now.
    fn expected(&self, at: usize, operation: &Operation) -> String;
}

/// One possible state of the object, and how it came about.
#[derive(Clone)]
pub(super) struct Possibility<O: Object> {
    pub(super) object: O,
    open: BTreeMap<usize, Open<O::Seen>>,
    order: Option<Rc<Before>>,
}

/// The changes of an order, the last one first.
struct Before {
    at: usize,
    earlier: Option<Rc<Before>>,
}

#[derive(Clone)]
enum Open<S> {
    Change { is_done: bool },
    Watch(S),
}

/// No order explains an answer.
pub(super) struct Stuck {
    /// The operation that was answered.
    pub(super) at: usize,
    /// Descriptions of the answers that were possible.
    pub(super) expected: Vec<String>,
    /// An order of the changes before it.
    pub(super) order: Vec<usize>,
    /// There were too many possibilities to follow, so nothing is known.
    pub(super) is_too_many: bool,
}

impl<O: Object> Possibility<O> {
    /// The changes that took effect, in their order.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut order = Vec::new();
        let mut next = self.order.as_ref();
        while let Some(before) = next {
            order.push(before.at);
            next = before.earlier.as_ref();
        }
        order.reverse();
        order
    }

    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.object.hash(&mut hasher);
        for (at, open) in &self.open {
            at.hash(&mut hasher);
            match open {
                Open::Change { is_done } => is_done.hash(&mut hasher),
                Open::Watch(seen) => O::hash_seen(seen, &mut hasher),
            }
        }
        hasher.finish()
    }

    fn has(&self, at: usize, operation: &Operation) -> bool {
        match self.open.get(&at) {
            Some(Open::Change { is_done }) => *is_done,
            Some(Open::Watch(seen)) => O::is_seen(operation, seen),
            None => true,
        }
    }

    /// The possibilities in which one more open change took effect.
    fn next<'a>(&'a self, operations: &'a [Operation]) -> impl Iterator<Item = Self> + 'a {
        let pending = self.open.iter().filter(|(_, open)| matches!(open, Open::Change { is_done: false }));
        pending.filter_map(|(at, _)| {
            let object = self.object.change(*at, &operations[*at])?;
            let mut open = self.open.clone();
            open.insert(*at, Open::Change { is_done: true });
            for (at, open) in &mut open {
                if let Open::Watch(seen) = open {
                    object.look(*at, &operations[*at], seen);
                }
            }
            let order = Some(Rc::new(Before { at: *at, earlier: self.order.clone() }));
            Some(Self { object, open, order })
        })
    }
}

/// Lets open changes take effect until a possibility is good. With `goes_on` it continues from good ones too. `None` if there are too many.
fn extend<O: Object>(
    possibilities: Vec<Possibility<O>>,
    operations: &[Operation],
    is_good: impl Fn(&Possibility<O>) -> bool,
    goes_on: bool,
) -> Option<Vec<Possibility<O>>> {
    let mut known: HashSet<u64> = HashSet::new();
    let mut todo = possibilities;
    let mut good = Vec::new();
    while let Some(possibility) = todo.pop() {
        if !known.insert(possibility.key()) {
            continue;
        }
        if known.len() > POSSIBILITIES_MAX {
            return None;
        }
        let is_good = is_good(&possibility);
        if !is_good || goes_on {
            todo.extend(possibility.next(operations));
        }
        if is_good {
            good.push(possibility);
        }
    }
    Some(good)
}

/// All possibilities at the end. Each operation without an answer has taken effect or not.
pub(super) fn search<O: Object>(
    start: O,
    operations: &[Operation],
    mine: &[usize],
) -> Result<Vec<Possibility<O>>, Stuck> {
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    let roles: BTreeMap<usize, Role> = mine.iter().map(|at| (*at, start.role(*at, &operations[*at]))).collect();
    for (at, role) in &roles {
        let operation = &operations[*at];
        if *role == Role::Nothing {
            continue;
        }
        // At equal times calls come before answers: the operations may have overlapped.
        events.push((operation.called_ns, false, *at));
        if !operation.is_unknown() {
            events.push((operation.answered_ns, true, *at));
        }
    }
    events.sort_unstable();
    let mut possibilities = vec![Possibility { object: start, open: BTreeMap::new(), order: None }];
    for (_, is_answer, at) in events {
        let operation = &operations[at];
        let role = roles[&at];
        if !is_answer {
            for possibility in &mut possibilities {
                match role {
                    Role::Change => {
                        possibility.open.insert(at, Open::Change { is_done: false });
                    }
                    Role::Watch => {
                        let seen = possibility.object.watch(at, operation);
                        possibility.open.insert(at, Open::Watch(seen));
                    }
                    Role::Sync => possibility.object.begin_sync(at, operation),
                    Role::Nothing => {}
                }
            }
            continue;
        }
        let before: Vec<_> = possibilities.iter().take(EXPLAINED).cloned().collect();
        let extended = extend(possibilities, operations, |possibility| possibility.has(at, operation), false);
        let is_too_many = extended.is_none();
        possibilities = extended.unwrap_or_default();
        if possibilities.is_empty() {
            let mut expected: Vec<String> =
                before.iter().map(|possibility| possibility.object.expected(at, operation)).collect();
            expected.sort();
            expected.dedup();
            let order = before.first().map(Possibility::order).unwrap_or_default();
            return Err(Stuck { at, expected, order, is_too_many });
        }
        for possibility in &mut possibilities {
            possibility.open.remove(&at);
            if role != Role::Watch {
                possibility.object.acknowledge(at, operation);
            }
        }
    }
    let last = mine.last().copied().unwrap_or_default();
    let too_many = Stuck { at: last, expected: Vec::new(), order: Vec::new(), is_too_many: true };
    extend(possibilities, operations, |_| true, true).ok_or(too_many)
}
