//! The verdict on a history.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use super::content::{Content, Refusal};
use super::events::{Answer, Call, Entry, Found, History, Operation, Tree};
use super::names::{Id, Match, Names};
use super::search::{Possibility, Stuck, search};

/// Errors of a file system whose server is gone.
const GONE: [&str; 5] = ["ENOTCONN", "ECONNABORTED", "EIO", "ENODEV", "EINTR"];
/// Operations that a failure shows.
const SHOWN: usize = 40;

/// The counts of a check.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Judged {
    /// Operations with an answer.
    pub(super) answered: u64,
    /// Acknowledged syncs and stable writes.
    pub(super) syncs: u64,
    /// Operations that the kill has cut short.
    pub(super) unanswered: u64,
    /// Changes of names, and how many of them had to be there.
    pub(super) names: (u64, u64),
}

/// The file that each open led to, and the states whose names are those found after the kill.
type Case = (BTreeMap<usize, Id>, Vec<Rc<Match>>);

/// The reason why nothing explains a history.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) what: String,
    lines: Vec<String>,
    /// There are too many orders to follow, so it is not known whether one explains the history.
    pub(super) is_unknown: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        self.lines.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

impl std::error::Error for Failure {}

/// A failure that shows these operations, given by their numbers.
fn failure(what: String, operations: &[Operation], about: impl IntoIterator<Item = usize>) -> Failure {
    let mut about: BTreeSet<usize> = about.into_iter().collect();
    while about.len() > SHOWN {
        about.pop_first();
    }
    // And the opens of their descriptors.
    let opens: Vec<usize> = about
        .iter()
        .filter_map(|at| operations.get(*at))
        .flat_map(|operation| {
            let (file, names) = operation.subjects();
            names.into_iter().filter_map(|(dir, _)| dir).chain(file).collect::<Vec<_>>()
        })
        .collect();
    about.extend(opens);
    let lines = about.iter().filter_map(|at| Some(format!("#{at:<5}{}", operations.get(*at)?))).collect();
    Failure { what, lines, is_unknown: false }
}

/// Checks that the answers, and the tree after the kill, can be those of a file system that keeps the promises (see the module above).
pub(super) fn judge(history: &History) -> Result<Judged, Failure> {
    let operations = cut_short(history);
    let bad = |what: String| failure(what, &[], []);
    if let Some(tree) = &history.after {
        is_whole(tree).map_err(bad)?;
    }
    let names = Names::new(&history.before, history.after.as_ref()).map_err(bad)?;
    let all: Vec<usize> = (0..operations.len()).collect();
    let ways = search(names, &operations, &all).map_err(|stuck| stuck_failure("names", &stuck, &operations))?;
    let mut cases: Vec<Case> = Vec::new();
    for way in &ways {
        let handles = way.object.handles();
        // Nobody uses the descriptor of an open without an answer.
        let known: BTreeMap<usize, Id> =
            handles.iter().filter(|(at, _)| operations[**at].is_good()).map(|(at, id)| (*at, *id)).collect();
        match cases.iter_mut().find(|case| case.0 == known) {
            Some(case) => case.1.extend(way.object.matches().iter().cloned()),
            None => cases.push((known, way.object.matches().to_vec())),
        }
    }
    let mut first_failure = None;
    let mut is_in_order = false;
    for (handles, matches) in &cases {
        let files = match Files::of(history, &operations, handles) {
            Ok(files) => files,
            Err(failure) => {
                first_failure.get_or_insert(failure);
                continue;
            }
        };
        is_in_order = true;
        let Some(after) = &history.after else { return Ok(judged(&operations, &ways)) };
        for found in matches {
            match files.accept(&operations, after, found) {
                Ok(()) => return Ok(judged(&operations, &ways)),
                // This failure says more than that of a case in which the answers do not fit.
                Err(failure) => first_failure = Some(failure),
            }
        }
    }
    let is_named = cases.iter().any(|case| !case.1.is_empty());
    match first_failure {
        Some(failure) if is_named || !is_in_order => Err(failure),
        _ => Err(names_failure(history, &operations, &ways)),
    }
}

/// The operations. Those that met a dead server count as unanswered, or as what they had done until then.
fn cut_short(history: &History) -> Vec<Operation> {
    let mut operations = history.operations.clone();
    for operation in &mut operations {
        if history.after.is_none() || operation.answered_ns < history.killed_ns {
            continue;
        }
        match (&mut operation.call, &operation.answer) {
            (_, Answer::Error(error)) if GONE.contains(&error.as_str()) => operation.answer = Answer::Unknown,
            // The kernel returned the pages that it had cached, and could not read the next one. Length 0 would mean the end of the file.
            (Call::Read { length, .. }, Answer::Bytes(bytes)) if !bytes.is_empty() => *length = bytes.len() as u64,
            // The first part was written; the next part may have been written too.
            (Call::Write { length, .. }, Answer::Count(count)) if count < length => operation.answer = Answer::Unknown,
            _ => {}
        }
    }
    operations
}

fn judged(operations: &[Operation], ways: &[Possibility<Names>]) -> Judged {
    let is_sync = |operation: &&Operation| {
        let is_stable = |file: &usize| matches!(operations[*file].call, Call::Open { dsync: true, .. });
        let is_sync = match &operation.call {
            Call::Sync { .. } | Call::DataSync { .. } => true,
            Call::Write { file, .. } => is_stable(file),
            _ => false,
        };
        is_sync && operation.is_good()
    };
    let unanswered = operations.iter().filter(|operation| operation.is_unknown()).count() as u64;
    let names = ways.first().map(|way| (way.object.position(), way.object.floor()));
    Judged {
        answered: operations.len() as u64 - unanswered,
        syncs: operations.iter().filter(is_sync).count() as u64,
        unanswered,
        names: names.unwrap_or_default(),
    }
}

/// Checks that the link counts in the tree agree with its names.
fn is_whole(tree: &Tree) -> Result<(), String> {
    let mut names: BTreeMap<u64, (u64, &Found)> = BTreeMap::new();
    for (path, entry) in tree {
        match entry {
            Entry::File(found) => {
                let (count, first) = names.entry(found.inode).or_insert((0, found));
                *count += 1;
                if found != *first {
                    return Err(format!("{path} is a name of a file that another name shows otherwise"));
                }
            }
            Entry::Directory { links } => {
                let is_in = |other: &str| other.rsplit_once('/').is_some_and(|(above, _)| above == path);
                let below =
                    tree.iter().filter(|(other, entry)| is_in(other) && matches!(entry, Entry::Directory { .. }));
                let wanted = 2 + below.count() as u64;
                if *links != wanted {
                    return Err(format!("after the kill {path} has {links} links and should have {wanted}"));
                }
            }
            Entry::Symlink { .. } => {}
        }
    }
    for (path, entry) in tree {
        let Entry::File(found) = entry else { continue };
        let count = names[&found.inode].0;
        if found.links != count {
            return Err(format!("after the kill {path} has {} links and {count} names", found.links));
        }
    }
    Ok(())
}

/// All files, with the possible histories of their contents.
struct Files<'a> {
    before: BTreeMap<Id, &'a Found>,
    ways: BTreeMap<Id, Vec<Content>>,
    opens: BTreeMap<Id, BTreeSet<usize>>,
}

impl<'a> Files<'a> {
    fn of(history: &'a History, operations: &[Operation], handles: &BTreeMap<usize, Id>) -> Result<Self, Failure> {
        let names = Names::new(&history.before, None).map_err(|what| failure(what, &[], []))?;
        let found = |path: &String| match history.before.get(path) {
            Some(Entry::File(found)) => Some(found),
            _ => None,
        };
        let before: BTreeMap<Id, &Found> =
            names.files().iter().filter_map(|(path, id)| Some((*id, found(path)?))).collect();
        let mut files: BTreeMap<Id, Vec<usize>> = BTreeMap::new();
        let mut opens: BTreeMap<Id, BTreeSet<usize>> = BTreeMap::new();
        for (at, operation) in operations.iter().enumerate() {
            let is_file = |at: &usize| matches!(operations[*at].call, Call::Open { .. });
            if let Some(id) = operation.subjects().0.filter(is_file).and_then(|handle| handles.get(&handle)) {
                files.entry(*id).or_default().push(at);
            }
            if let (Call::Open { .. }, Some(id)) = (&operation.call, handles.get(&at)) {
                opens.entry(*id).or_default().insert(at);
            }
        }
        let mut ways = BTreeMap::new();
        for (id, mine) in files {
            let flags = opens.get(&id).into_iter().flatten().filter_map(|at| match operations[*at].call {
                Call::Open { append, dsync, .. } => Some((*at, (append, dsync))),
                _ => None,
            });
            let start = Content::new(before.get(&id).copied(), flags.collect());
            let found = search(start, operations, &mine)
                .map_err(|stuck| stuck_failure("the content of a file", &stuck, operations))?;
            ways.insert(id, found.into_iter().map(|way| way.object).collect());
        }
        Ok(Self { before, ways, opens })
    }

    /// Checks that the contents found after the kill are possible, if the files have these names.
    fn accept(&self, operations: &[Operation], after: &Tree, names: &Match) -> Result<(), Failure> {
        for (path, id) in &names.files {
            let Some(Entry::File(found)) = after.get(path) else { continue };
            let untouched = [Content::new(self.before.get(id).copied(), BTreeMap::new())];
            let ways = self.ways.get(id).map_or(&untouched[..], Vec::as_slice);
            let mut refusal: Option<Refusal> = None;
            let is_good = ways.iter().any(|way| match way.accept(found) {
                Ok(()) => true,
                Err(why) => {
                    refusal.get_or_insert(why);
                    false
                }
            });
            if is_good {
                continue;
            }
            let Some(Refusal { what, since, changes }) = refusal else { continue };
            let when = since.map_or_else(|| "the beginning".to_owned(), |at| format!("#{at}, which was acknowledged"));
            let opens = self.opens.get(id).into_iter().flatten().copied();
            let about: Vec<usize> = opens.chain(since).chain(changes).collect();
            // The state that was found may come from an earlier change.
            let earlier = operations.iter().enumerate().filter(|(_, operation)| {
                let is_change = matches!(operation.call, Call::Write { .. } | Call::Truncate { .. });
                is_change && operation.subjects().0.is_some_and(|handle| about.contains(&handle))
            });
            let earlier: Vec<usize> = earlier.map(|(at, _)| at).collect();
            return Err(failure(
                format!("after the kill the content of {path} is of no time from {when} on: {what}"),
                operations,
                about.into_iter().chain(earlier),
            ));
        }
        Ok(())
    }
}

/// No order explains an answer.
fn stuck_failure(of: &str, stuck: &Stuck, operations: &[Operation]) -> Failure {
    let operation = &operations[stuck.at];
    if stuck.is_too_many {
        let what = format!("the orders of {of} are too many to be followed, at #{}: nothing is known", stuck.at);
        return Failure { is_unknown: true, ..failure(what, operations, [stuck.at]) };
    }
    let what = format!(
        "no order of {of} explains what #{} was answered; with what came before it could have been: {}",
        stuck.at,
        stuck.expected.iter().take(5).cloned().collect::<Vec<_>>().join("; or ")
    );
    let at_once = operations.iter().enumerate().filter(|(_, other)| {
        other.called_ns <= operation.answered_ns && (other.is_unknown() || other.answered_ns >= operation.called_ns)
    });
    let is_related = |other: &Operation| {
        let ((file, names), (other_file, other_names)) = (operation.subjects(), other.subjects());
        (file.is_some() && file == other_file)
            || names.iter().any(|(dir, name)| {
                other_names.iter().any(|other| *dir == other.0 && (*name == other.1 || name.is_empty()))
            })
    };
    let before = operations.iter().enumerate().filter(|(_, other)| other.called_ns <= operation.called_ns);
    let related: Vec<usize> = before.filter(|(_, other)| is_related(other)).map(|(at, _)| at).collect();
    let related = related.into_iter().rev().take(SHOWN / 2);
    let changes = stuck.order.iter().rev().take(8).copied();
    let about: Vec<usize> = at_once.map(|(at, _)| at).chain(related).chain(changes).chain([stuck.at]).collect();
    failure(what, operations, about)
}

/// No moment from the last promise on has the names that were found.
fn names_failure(history: &History, operations: &[Operation], ways: &[Possibility<Names>]) -> Failure {
    let mut nearest: Option<(usize, String, u64, Vec<usize>)> = None;
    for way in ways.iter().take(100) {
        let Ok(mut names) = Names::new(&history.before, history.after.as_ref()) else { continue };
        let order = way.order();
        for count in 0..=order.len() {
            if count > 0 {
                let at = order[count - 1];
                match super::search::Object::change(&names, at, &operations[at]) {
                    Some(next) => names = next,
                    None => break,
                }
            }
            if names.position() < way.object.floor() {
                continue;
            }
            let (distance, words) = names.difference();
            if nearest.as_ref().is_none_or(|nearest| distance < nearest.0) {
                nearest = Some((distance, words, names.position(), order.clone()));
            }
        }
    }
    let floor = ways.iter().map(|way| way.object.floor()).min().unwrap_or_default();
    let syncs = operations
        .iter()
        .enumerate()
        .filter(|(_, operation)| matches!(operation.call, Call::Sync { .. }) && operation.answer == Answer::Done);
    let last_sync = syncs.max_by_key(|(_, operation)| operation.called_ns).map(|(at, _)| at);
    let (_, words, position, order) = nearest.unwrap_or_default();
    let promised = last_sync.map_or_else(|| "the beginning".to_owned(), |at| format!("the call of #{at}"));
    let what = format!(
        "after the kill the names are of no moment from {promised} on ({floor} changes of names are promised); the nearest, \
         after {position}, differs: {words}"
    );
    // Shown are the operations that name a component of a differing path, and the last ones.
    let is_in_words = |at: &&usize| {
        let (_, names) = operations[**at].subjects();
        names.iter().any(|(_, name)| words.split([' ', '/', ';', '"', ',']).any(|word| word == *name))
    };
    let related: Vec<usize> = order.iter().filter(is_in_words).copied().collect();
    let about = related.into_iter().rev().take(SHOWN - 8).chain(order.iter().rev().take(6).copied()).chain(last_sync);
    failure(what, operations, about.collect::<Vec<_>>())
}
