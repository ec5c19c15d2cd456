//! The model: the changes by txg, and the resulting state as of any txg.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::ids::Txg;
use cenote_taskq::Rng;
use cenote_taskq::sim::history::History;

/// Content that follows from a number; some of it can be compressed, some is zeros.
#[must_use]
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    match seed % 5 {
        0 => {}
        1 => bytes.fill(seed as u8 | 1),
        _ => Rng::new(seed).fill(&mut bytes),
    }
    bytes
}

/// Something that is changed, one change after the other.
pub trait State: Clone {
    /// One change of it.
    type Change: Clone + std::fmt::Debug;

    /// Makes a change.
    fn apply(&mut self, change: &Self::Change);
}

/// A change that was made.
#[derive(Clone, Debug)]
struct Made<C> {
    /// The txg that it is in; where that is not known exactly, the first and the last that it may be in.
    first: Txg,
    txg: Txg,
    change: C,
    /// The moment in which it began.
    begun: usize,
    /// The moment from which on a client was told that it is on disk.
    promised: Option<usize>,
}

impl<C> Made<C> {
    const fn is_promised(&self) -> bool {
        self.promised.is_some()
    }
}

/// A change under way.
#[derive(Clone, Debug)]
struct Pending<C> {
    /// The last txg that it was let into, if any.
    txg: Option<Txg>,
    change: C,
    /// The moment in which it began.
    begun: usize,
}

/// A state as of some txg, and all changes since.
#[derive(Clone, Debug)]
pub struct Log<S: State> {
    base: S,
    changes: Vec<Made<S::Change>>,
    pending: Option<Pending<S::Change>>,
    /// The history that moments are of; without one there is only moment 0.
    history: Option<Arc<History>>,
}

impl<S: State> Log<S> {
    /// Begins with a state that is on disk.
    pub const fn new(base: S) -> Self {
        Self { base, changes: Vec::new(), pending: None, history: None }
    }

    /// The same, with moments of this history.
    pub(crate) fn timed(base: S, history: &Arc<History>) -> Self {
        Self { history: Some(history.clone()), ..Self::new(base) }
    }

    fn moment(&self) -> usize {
        self.history.as_ref().map_or(0, |history| history.now())
    }

    /// The log as of a moment: without the changes that had not begun, and without later promises.
    pub(crate) fn known_at(&self, moment: usize) -> Self {
        let mut log = self.clone();
        log.changes.retain(|made| made.begun <= moment);
        log.pending = log.pending.filter(|pending| pending.begun <= moment);
        for made in &mut log.changes {
            made.promised = made.promised.filter(|promised| *promised <= moment);
        }
        log
    }

    /// A change begins.
    pub fn begin(&mut self, change: S::Change) {
        self.pending = Some(Pending { txg: None, change, begun: self.moment() });
    }

    /// The change under way was let into a txg.
    pub fn entered(&mut self, txg: Txg) {
        if let Some(pending) = &mut self.pending {
            pending.txg = Some(txg);
        }
    }

    /// The change under way is made: it is in the last txg that it was let into; in none, if it turned out to change nothing.
    pub fn done(&mut self) {
        if let Some(Pending { txg: Some(txg), change, begun }) = self.pending.take() {
            self.changes.push(Made { first: txg, txg, change, begun, promised: None });
        }
    }

    /// The change under way is made, as it says now, in one of these txgs.
    pub(crate) fn done_within(&mut self, first: Txg, last: Txg, change: S::Change) {
        if let Some(Pending { begun, .. }) = self.pending.take() {
            self.changes.push(Made { first, txg: last, change, begun, promised: None });
        }
    }

    /// The last txg that has one of the changes.
    pub(crate) fn last_txg(&self) -> Txg {
        self.changes.iter().map(|made| made.txg).max().unwrap_or_default()
    }

    /// The client was told that its last change is on disk (`FUA`, `O_SYNC`).
    pub fn promise_last(&mut self) {
        let moment = self.moment();
        if let Some(made) = self.changes.last_mut() {
            made.promised.get_or_insert(moment);
        }
    }

    /// The client was told that all its changes are on disk (`fsync`, `FLUSH`, the answer to a change of the pool).
    pub fn promise_all(&mut self) {
        self.promise_about(|_, _| true);
    }

    /// The client was told that all changes of this kind are on disk; they are asked for with the state that each was made in.
    pub(crate) fn promise_about(&mut self, is_meant: impl Fn(&S, &S::Change) -> bool) {
        let moment = self.moment();
        let mut state = self.base.clone();
        for made in &mut self.changes {
            if is_meant(&state, &made.change) {
                made.promised.get_or_insert(moment);
            }
            state.apply(&made.change);
        }
    }

    /// How many changes were promised to be on disk.
    #[must_use]
    pub fn promises(&self) -> usize {
        self.changes.iter().filter(|made| made.is_promised()).count()
    }

    /// A change that was promised, and that a pool as of this txg does not have.
    #[must_use]
    pub fn broken_promise(&self, there: Txg) -> Option<String> {
        let broken = self.changes.iter().find(|made| made.is_promised() && made.txg > there)?;
        Some(format!("a client was told that {:?} of txg {} is on disk, {there} is there", broken.change, broken.txg))
    }

    /// The change under way was refused, and left nothing.
    pub fn refused(&mut self) {
        self.pending = None;
    }

    /// The newest state, as whoever changes it sees it.
    pub fn newest(&self) -> S {
        self.as_of(Txg(u64::MAX)).remove(0)
    }

    /// The states that may be there as of a txg: one, and twice as many for each change that this txg may have or not, since an actor was
    /// interrupted in it or its txg is not known exactly.
    pub fn as_of(&self, txg: Txg) -> Vec<S> {
        let mut all = vec![self.base.clone()];
        let may_have = |all: &mut Vec<S>, change: &S::Change| {
            let mut with = all.clone();
            with.iter_mut().for_each(|state| state.apply(change));
            all.append(&mut with);
        };
        for made in &self.changes {
            if made.txg <= txg {
                all.iter_mut().for_each(|state| state.apply(&made.change));
            } else if made.first <= txg {
                may_have(&mut all, &made.change);
            }
        }
        if let Some(Pending { txg: Some(at), change, .. }) = &self.pending
            && *at <= txg
        {
            may_have(&mut all, change);
        }
        all
    }

    /// The changes that were made.
    pub(crate) fn made(&self) -> impl Iterator<Item = &S::Change> {
        self.changes.iter().map(|made| &made.change)
    }

    /// Changes that a pool as of this txg need not have, the one under way too.
    pub(crate) fn undecided(&self, txg: Txg) -> impl Iterator<Item = &S::Change> {
        let made = self.changes.iter().filter(move |made| made.txg > txg).map(|made| &made.change);
        made.chain(self.pending.iter().map(|pending| &pending.change))
    }

    /// Looks at all states that may be there once the intent log is replayed on what a txg has: from the last change that the txg has or
    /// that was promised, to the newest, the change under way too. In their order.
    pub fn each_later(&self, txg: Txg, look: impl FnMut(&S)) {
        self.each_later_about(txg, |_, _| true, look);
    }

    /// The same, where only promises of changes of some kind count; they are asked for with the state that each was made in.
    pub(crate) fn each_later_about(
        &self,
        txg: Txg,
        is_meant: impl Fn(&S, &S::Change) -> bool,
        mut look: impl FnMut(&S),
    ) {
        let mut least = self.changes.partition_point(|made| made.txg <= txg);
        let mut state = self.base.clone();
        for (at, made) in self.changes.iter().enumerate() {
            if made.is_promised() && is_meant(&state, &made.change) {
                least = least.max(at + 1);
            }
            state.apply(&made.change);
        }
        let mut state = self.base.clone();
        self.changes[..least].iter().for_each(|made| state.apply(&made.change));
        look(&state);
        let under_way = self.pending.iter().map(|pending| &pending.change);
        for change in self.changes[least..].iter().map(|made| &made.change).chain(under_way) {
            state.apply(change);
            look(&state);
        }
    }

    /// The changes that a txg has.
    pub fn in_txg(&self, txg: Txg) -> impl Iterator<Item = &S::Change> {
        self.changes.iter().filter(move |made| made.txg == txg).map(|made| &made.change)
    }

    /// How many changes there were.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The last changes, for whoever wants to know why.
    pub fn tail(&self, txg: Txg) -> String {
        let near: Vec<_> = self.changes.iter().filter(|made| made.txg.0 + 3 > txg.0).collect();
        format!("{near:?}, under way {:?}", self.pending)
    }
}

/// A name: which of two directories, and which name there.
pub type Name = (u8, u8);

/// Bytes as they were found, of which each has to be as in one of several states.
pub(crate) struct Bytes<'a> {
    there: &'a [u8],
    is_explained: Vec<bool>,
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(there: &'a [u8]) -> Self {
        Self { there, is_explained: vec![false; there.len()] }
    }

    pub(crate) fn look(&mut self, state: &[u8]) {
        for ((is_explained, there), byte) in self.is_explained.iter_mut().zip(self.there).zip(state) {
            *is_explained |= there == byte;
        }
    }

    /// The first byte that is as in no state.
    pub(crate) fn unexplained(&self) -> Option<usize> {
        self.is_explained.iter().position(|is_explained| !is_explained)
    }
}

/// A file as the model has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct File {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<u8, Vec<u8>>,
}

/// Files of one writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Names, and which file each leads to.
    pub names: BTreeMap<Name, u64>,
    /// Files by a number of the model's own.
    pub files: BTreeMap<u64, File>,
    next: u64,
}

/// A change of files.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "names of system calls and of their arguments")]
pub enum FileChange {
    Create(Name),
    Write {
        name: Name,
        offset: usize,
        len: usize,
        seed: u64,
    },
    Truncate {
        name: Name,
        size: usize,
    },
    Rename {
        from: Name,
        to: Name,
    },
    Exchange {
        from: Name,
        to: Name,
    },
    Link {
        from: Name,
        to: Name,
    },
    Unlink(Name),
    SetXattr {
        name: Name,
        key: u8,
        len: usize,
        seed: u64,
    },
    RemoveXattr {
        name: Name,
        key: u8,
    },
    /// Frees what has no name: nothing that anyone sees.
    Reap,
}

impl Files {
    fn file(&mut self, name: &Name) -> Option<&mut File> {
        self.files.get_mut(self.names.get(name)?)
    }

    /// The file that a name leads to.
    #[must_use]
    pub fn at(&self, name: &Name) -> Option<&File> {
        self.files.get(self.names.get(name)?)
    }

    fn forget_unnamed(&mut self) {
        let named: Vec<u64> = self.names.values().copied().collect();
        self.files.retain(|number, _| named.contains(number));
    }
}

impl Files {
    /// The same names, with files as they were found.
    #[must_use]
    pub fn with_files(names: BTreeMap<Name, u64>, files: BTreeMap<u64, File>) -> Self {
        let next = files.keys().next_back().copied().unwrap_or(0);
        Self { names, files, next }
    }
}

impl Files {
    /// The file whose data or attributes a change is about; `None` for a change of names.
    #[must_use]
    pub(crate) fn subject(&self, change: &FileChange) -> Option<u64> {
        match change {
            FileChange::Write { name, .. }
            | FileChange::Truncate { name, .. }
            | FileChange::SetXattr { name, .. }
            | FileChange::RemoveXattr { name, .. } => self.names.get(name).copied(),
            FileChange::Create(_)
            | FileChange::Rename { .. }
            | FileChange::Exchange { .. }
            | FileChange::Link { .. }
            | FileChange::Unlink(_)
            | FileChange::Reap => None,
        }
    }
}

impl State for Files {
    type Change = FileChange;

    fn apply(&mut self, change: &FileChange) {
        match change {
            FileChange::Create(name) => {
                self.next += 1;
                self.names.insert(*name, self.next);
                self.files.insert(self.next, File::default());
            }
            FileChange::Write { name, offset, len, seed } => {
                if let Some(file) = self.file(name) {
                    let end = offset + len;
                    file.bytes.resize(file.bytes.len().max(end), 0);
                    file.bytes[*offset..end].copy_from_slice(&content(*seed, *len));
                }
            }
            FileChange::Truncate { name, size } => {
                if let Some(file) = self.file(name) {
                    file.bytes.resize(*size, 0);
                }
            }
            FileChange::Rename { from, to } => {
                if self.names.get(from) != self.names.get(to)
                    && let Some(number) = self.names.remove(from)
                {
                    self.names.insert(*to, number);
                    self.forget_unnamed();
                }
            }
            FileChange::Exchange { from, to } => {
                if let (Some(first), Some(second)) = (self.names.get(from).copied(), self.names.get(to).copied()) {
                    self.names.insert(*from, second);
                    self.names.insert(*to, first);
                }
            }
            FileChange::Link { from, to } => {
                if let Some(number) = self.names.get(from).copied() {
                    self.names.insert(*to, number);
                }
            }
            FileChange::Unlink(name) => {
                self.names.remove(name);
                self.forget_unnamed();
            }
            FileChange::SetXattr { name, key, len, seed } => {
                if let Some(file) = self.file(name) {
                    file.xattrs.insert(*key, content(*seed, *len));
                }
            }
            FileChange::RemoveXattr { name, key } => {
                if let Some(file) = self.file(name) {
                    file.xattrs.remove(key);
                }
            }
            FileChange::Reap => {}
        }
    }
}

/// A range of a volume: its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// From where in the volume.
    pub offset_bytes: u64,
    /// Bytes of the volume's blocks.
    pub block_bytes: usize,
    /// The range's contents.
    pub bytes: Vec<u8>,
}

/// A change of a range of a volume; offsets are the range's.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "what clients of block devices ask for")]
pub enum RangeChange {
    Write {
        offset: usize,
        len: usize,
        seed: u64,
    },
    Clear {
        offset: usize,
        len: usize,
    },
    Zeros {
        offset: usize,
        len: usize,
    },
    /// Whole blocks become zeros, parts of blocks stay.
    Discard {
        offset: usize,
        len: usize,
    },
}

impl RangeChange {
    /// From where in the range, and how many bytes.
    #[must_use]
    pub const fn place(&self) -> (usize, usize) {
        match self {
            Self::Write { offset, len, .. }
            | Self::Clear { offset, len }
            | Self::Zeros { offset, len }
            | Self::Discard { offset, len } => (*offset, *len),
        }
    }
}

impl State for Range {
    type Change = RangeChange;

    fn apply(&mut self, change: &RangeChange) {
        match change {
            RangeChange::Write { offset, len, seed } => {
                self.bytes[*offset..offset + len].copy_from_slice(&content(*seed, *len));
            }
            RangeChange::Clear { offset, len } | RangeChange::Zeros { offset, len } => {
                self.bytes[*offset..offset + len].fill(0);
            }
            RangeChange::Discard { offset, len } => {
                let from = self.offset_bytes as usize;
                let first = (from + offset).next_multiple_of(self.block_bytes);
                let end = (from + offset + len) / self.block_bytes * self.block_bytes;
                if first < end {
                    self.bytes[first - from..end - from].fill(0);
                }
            }
        }
    }
}

/// A dataset as the model has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dataset {
    /// Properties that were set here: names with numbers.
    pub properties: BTreeMap<&'static str, u64>,
    /// Objects made with it: block size, and what its blocks follow from.
    pub objects: Vec<(u32, u64)>,
}

/// Datasets that come and go, by number of their names, and the pool's own property.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Datasets {
    /// Those there are.
    pub datasets: BTreeMap<u8, Dataset>,
    /// The property `comment`.
    pub comment: Option<u64>,
}

/// A change of the pool itself.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "names of commands and of their arguments")]
pub enum PoolChange {
    /// With its properties: a dataset is there with all of them or not at all.
    Create {
        number: u8,
        objects: Vec<(u32, u64)>,
        properties: BTreeMap<&'static str, u64>,
    },
    Destroy(u8),
    Rename {
        from: u8,
        to: u8,
    },
    Set {
        number: u8,
        property: &'static str,
        value: u64,
    },
    Inherit {
        number: u8,
        property: &'static str,
    },
    Comment(u64),
}

impl State for Datasets {
    type Change = PoolChange;

    fn apply(&mut self, change: &PoolChange) {
        match change {
            PoolChange::Create { number, objects, properties } => {
                let dataset = Dataset { objects: objects.clone(), properties: properties.clone() };
                self.datasets.insert(*number, dataset);
            }
            PoolChange::Destroy(number) => {
                self.datasets.remove(number);
            }
            PoolChange::Rename { from, to } => {
                if let Some(dataset) = self.datasets.remove(from) {
                    self.datasets.insert(*to, dataset);
                }
            }
            PoolChange::Set { number, property, value } => {
                if let Some(dataset) = self.datasets.get_mut(number) {
                    dataset.properties.insert(property, *value);
                }
            }
            PoolChange::Inherit { number, property } => {
                if let Some(dataset) = self.datasets.get_mut(number) {
                    dataset.properties.remove(property);
                }
            }
            PoolChange::Comment(value) => self.comment = Some(*value),
        }
    }
}

/// The vdevs that the pool got and lost since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grown {
    /// The number of top-level ones that it got.
    pub tops: usize,
    /// The log device that it was made with is gone.
    pub is_log_gone: bool,
}

/// A change of the pool's top-level vdevs.
#[derive(Clone, Copy, Debug)]
pub enum VdevChange {
    /// One more.
    Add,
    /// The log device goes.
    RemoveLog,
}

impl State for Grown {
    type Change = VdevChange;

    fn apply(&mut self, change: &VdevChange) {
        match change {
            VdevChange::Add => self.tops += 1,
            VdevChange::RemoveLog => self.is_log_gone = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_as_of_a_txg_has_what_came_up_to_it_and_may_have_what_was_interrupted() {
        let mut log = Log::new(Files::default());
        for (txg, change) in [
            (5, FileChange::Create((0, 1))),
            (6, FileChange::Write { name: (0, 1), offset: 2, len: 3, seed: 1 }),
            (8, FileChange::Rename { from: (0, 1), to: (1, 1) }),
        ] {
            log.begin(change);
            log.entered(Txg(txg));
            log.done();
        }
        assert_eq!(log.as_of(Txg(4)), [Files::default()]);
        assert_eq!(log.as_of(Txg(7))[0].at(&(0, 1)).map(|file| &file.bytes[..]), Some(&[0, 0, 1, 1, 1][..]));
        assert!(log.newest().at(&(0, 1)).is_none());
        log.begin(FileChange::Unlink((1, 1)));
        assert_eq!(log.as_of(Txg(9)).len(), 1, "what was let in nowhere is nowhere");
        log.entered(Txg(9));
        assert_eq!(log.as_of(Txg(8)).len(), 1);
        assert_eq!(log.as_of(Txg(9)).len(), 2);
    }

    #[test]
    fn a_promise_is_broken_by_any_earlier_txg_and_by_no_other() {
        let mut log = Log::new(Files::default());
        for txg in [5, 6, 7] {
            log.begin(FileChange::Create((0, txg as u8)));
            log.entered(Txg(txg));
            log.done();
            if txg == 6 {
                log.promise_last();
            }
        }
        assert!(log.broken_promise(Txg(5)).is_some());
        assert_eq!(log.broken_promise(Txg(6)), None, "the last change was not promised");
        log.promise_all();
        assert!(log.broken_promise(Txg(6)).is_some());
        assert_eq!(log.broken_promise(Txg(7)), None);
        assert_eq!(log.promises(), 3);
    }

    #[test]
    fn a_discard_takes_whole_blocks_of_the_volume() {
        let mut range = Range { offset_bytes: 1000, block_bytes: 512, bytes: vec![1; 2000] };
        range.apply(&RangeChange::Discard { offset: 0, len: 600 });
        // The volume's bytes 1024 to 1536.
        let zeros: Vec<usize> =
            range.bytes.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at).collect();
        assert_eq!((zeros.first(), zeros.last(), zeros.len()), (Some(&24), Some(&535), 512));
        range.apply(&RangeChange::Discard { offset: 1600, len: 300 });
        assert_eq!(range.bytes.iter().filter(|byte| **byte == 0).count(), 512, "no whole block lies within");
    }
}
