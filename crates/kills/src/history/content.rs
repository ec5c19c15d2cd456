//! The content of one file (bytes and extended attributes) as an object of the search, and what of it must be there after a kill.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::ops::RangeInclusive;
use std::rc::Rc;

use super::events::{Answer, Call, Found, Kind, Operation, bytes_of};
use super::search::{Object, Role};

type Attributes = BTreeMap<String, String>;

/// Bytes with their hash, which is needed often.
#[derive(Debug)]
struct Bytes {
    bytes: Vec<u8>,
    hash: u64,
}

impl Bytes {
    fn new(bytes: Vec<u8>) -> Rc<Self> {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        Rc::new(Self { bytes, hash: hasher.finish() })
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// A change, as far as a kill may leave it.
#[derive(Debug)]
struct Patch {
    /// The operation that changed.
    at: usize,
    hash: u64,
    /// Start and end of the zeros that the change made.
    zeros: (u64, u64),
    offset: u64,
    bytes: Vec<u8>,
    /// Sizes that the file may have had meanwhile.
    sizes: Option<RangeInclusive<u64>>,
    attribute: Option<(String, Option<String>)>,
}

/// A write or truncation that has taken effect but has no answer yet. The kernel sends a write in parts, so some bytes may still be the old
/// ones. It notes a smaller size only after the server's answer: until then a read may show the old bytes, or zeros, because the kernel
/// takes the part that the server has cut off for a hole.
#[derive(Debug, Hash)]
struct Flying {
    by: usize,
    /// The offset of its first byte, or the file's old end if that is less.
    offset: u64,
    /// The old bytes from there on.
    before: Vec<u8>,
    is_smaller: bool,
    sizes: RangeInclusive<u64>,
}

/// A promise: what it covers is found after a kill as it was at this moment, or as it was later.
#[derive(Clone, Debug)]
struct Since {
    /// The sync or write that promises it; none for the beginning.
    by: Option<usize>,
    is_acknowledged: bool,
    /// The changes before it.
    start: usize,
    content: Rc<Bytes>,
    attributes: Rc<Attributes>,
    /// Writes that were under way.
    flying: Vec<Rc<Flying>>,
    /// The bytes that it covers; `None` for all.
    range: Option<(u64, u64)>,
    has_attributes: bool,
}

/// The content of a file, and what is promised of it.
#[derive(Clone)]
pub(super) struct Content {
    /// Opens of it that append, and those whose writes are stable when they are answered.
    opens: Rc<BTreeMap<usize, (bool, bool)>>,
    content: Rc<Bytes>,
    attributes: Rc<Attributes>,
    patches: Rc<Vec<Rc<Patch>>>,
    flying: Vec<Rc<Flying>>,
    since: Vec<Since>,
}

/// The result of an operation that only observes a file.
#[derive(Clone)]
pub(super) enum Seen {
    Whole(bool),
    /// Of each byte that was read, whether it was there; and the sizes of the file.
    Read {
        is_there: Vec<bool>,
        sizes: (u64, u64),
    },
}

impl Content {
    /// Begins with the content that was found, or empty. `opens`: of each open, whether it appends, and whether its writes are stable.
    pub(super) fn new(before: Option<&Found>, opens: BTreeMap<usize, (bool, bool)>) -> Self {
        let content = Bytes::new(before.map(|found| found.bytes.clone()).unwrap_or_default());
        let attributes = Rc::new(before.map(|found| found.attributes.clone()).unwrap_or_default());
        let first = Since {
            by: None,
            is_acknowledged: true,
            start: 0,
            content: content.clone(),
            attributes: attributes.clone(),
            flying: Vec::new(),
            range: None,
            has_attributes: true,
        };
        Self {
            opens: Rc::new(opens),
            content,
            attributes,
            patches: Rc::default(),
            flying: Vec::new(),
            since: vec![first],
        }
    }

    /// Notes the present state as promised once the operation `by` is acknowledged.
    fn promise(&mut self, by: usize, range: Option<(u64, u64)>, has_attributes: bool) {
        self.since.push(Since {
            by: Some(by),
            is_acknowledged: false,
            start: self.patches.len(),
            content: self.content.clone(),
            attributes: self.attributes.clone(),
            // The write that promises has ended when its promise counts.
            flying: self.flying.iter().filter(|flying| flying.by != by).cloned().collect(),
            range,
            has_attributes,
        });
    }

    fn opened(&self, file: usize) -> (bool, bool) {
        self.opens.get(&file).copied().unwrap_or_default()
    }

    fn error(&self, call: &Call) -> Option<&'static str> {
        match call {
            Call::SetAttribute { key, create, replace, .. } => match self.attributes.contains_key(key) {
                true => create.then_some("EEXIST"),
                false => replace.then_some("ENODATA"),
            },
            Call::GetAttribute { key, .. } | Call::RemoveAttribute { key, .. } => {
                (!self.attributes.contains_key(key)).then_some("ENODATA")
            }
            _ => None,
        }
    }

    /// Checks that the content found after a kill is possible; the error says what is not.
    pub(super) fn accept(&self, found: &Found) -> Result<(), Refusal> {
        self.since.iter().filter(|since| since.is_acknowledged).try_for_each(|since| self.accept_since(since, found))
    }

    fn accept_since(&self, since: &Since, found: &Found) -> Result<(), Refusal> {
        let patches = &self.patches[since.start..];
        let size = found.bytes.len() as u64;
        let refuse = |what: String| {
            let since = since.by;
            Err(Refusal { what, since, changes: patches.iter().map(|patch| patch.at).collect() })
        };
        let was_size = size == since.content.len()
            || since.range.is_some_and(|(_, end)| size >= end)
            || since.flying.iter().any(|flying| flying.sizes.contains(&size))
            || patches.iter().any(|patch| patch.sizes.as_ref().is_some_and(|sizes| sizes.contains(&size)));
        if !was_size {
            let then = since.content.len();
            return refuse(format!("its size is {size}, was {then}, and no change since made it so"));
        }
        let (first, end) = since.range.unwrap_or((0, size));
        let (first, end) = (first.min(size), end.min(size));
        let mut is_there = vec![false; (end - first) as usize];
        let mut look = |offset: u64, bytes: &[u8]| {
            mark(&mut is_there, &found.bytes[first as usize..end as usize], first, offset, bytes);
        };
        look(0, &since.content.bytes);
        since.flying.iter().for_each(|flying| look(flying.offset, &flying.before));
        for patch in patches {
            look(patch.offset, &patch.bytes);
            look(patch.zeros.0, &vec![0; (patch.zeros.1 - patch.zeros.0) as usize]);
        }
        let wrong: Vec<usize> = (0..is_there.len()).filter(|at| !is_there[*at]).collect();
        if let Some(at) = wrong.first() {
            let at = first as usize + at;
            let bytes = &found.bytes[at..found.bytes.len().min(at + 8)];
            let count = wrong.len();
            return refuse(format!(
                "at {at} of its {size} bytes are {bytes:02x?}, {count} bytes in all that were not there at that time or since"
            ));
        }
        if since.has_attributes {
            let mut keys: BTreeSet<&String> = since.attributes.keys().chain(found.attributes.keys()).collect();
            let changes: Vec<_> = patches.iter().filter_map(|patch| patch.attribute.as_ref()).collect();
            keys.extend(changes.iter().map(|(key, _)| key));
            for key in keys {
                let there = found.attributes.get(key);
                let is_one = changes.iter().any(|(changed, value)| changed == key && value.as_ref() == there);
                let then = since.attributes.get(key);
                if then != there && !is_one {
                    return refuse(format!("its attribute {key} is {there:?}, was {then:?}, and was not set so since"));
                }
            }
        }
        Ok(())
    }
}

/// The reason why the content that was found is impossible.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) what: String,
    /// The operation that promised more.
    pub(super) since: Option<usize>,
    /// Changes after it.
    pub(super) changes: Vec<usize>,
}

/// The union of ranges, sorted; adjacent and overlapping ones are merged.
fn united(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut united: Vec<(u64, u64)> = Vec::new();
    for (first, end) in ranges {
        match united.last_mut() {
            Some(last) if first <= last.1 => last.1 = last.1.max(end),
            _ => united.push((first, end)),
        }
    }
    united
}

/// Marks the bytes of `part`, which begins at offset `first`, that equal `bytes`, which begin at `offset`.
fn mark(is_there: &mut [bool], part: &[u8], first: u64, offset: u64, bytes: &[u8]) {
    let begin = first.max(offset);
    let end = (first + part.len() as u64).min(offset + bytes.len() as u64);
    if begin < end {
        let (at, from, len) = ((begin - first) as usize, (begin - offset) as usize, (end - begin) as usize);
        let both = part[at..at + len].iter().zip(&bytes[from..from + len]);
        for (is_there, (one, other)) in is_there[at..].iter_mut().zip(both) {
            *is_there |= one == other;
        }
    }
}

impl Object for Content {
    type Seen = Seen;

    fn role(&self, _: usize, operation: &Operation) -> Role {
        let is_error = matches!(operation.answer, Answer::Error(_));
        match &operation.call {
            Call::Write { .. } | Call::Truncate { .. } | Call::SetAttribute { .. } | Call::RemoveAttribute { .. } => {
                match is_error {
                    true => Role::Watch,
                    false => Role::Change,
                }
            }
            _ if operation.is_unknown() => Role::Nothing,
            Call::Read { .. } | Call::Stat { .. } | Call::GetAttribute { .. } => Role::Watch,
            Call::Sync { .. } | Call::DataSync { .. } => match is_error {
                true => Role::Watch,
                false => Role::Sync,
            },
            _ => Role::Nothing,
        }
    }

    fn change(&self, at: usize, operation: &Operation) -> Option<Self> {
        if self.error(&operation.call).is_some() {
            return None;
        }
        let mut next = self.clone();
        let size = self.content.len();
        let mut patch =
            Patch { at, hash: 0, zeros: (0, 0), offset: 0, bytes: Vec::new(), sizes: None, attribute: None };
        let mut stable = None;
        match &operation.call {
            Call::Write { file, offset, length, salt } => {
                let (appends, is_stable) = self.opened(*file);
                let offset = if appends { size } else { *offset };
                let mut bytes = bytes_of(*salt, *length);
                match operation.answer {
                    Answer::Count(count) if count <= *length && count > 0 => bytes.truncate(count as usize),
                    Answer::Unknown => {}
                    _ => return None,
                }
                let end = offset + bytes.len() as u64;
                let mut content = self.content.bytes.clone();
                content.resize(size.max(end) as usize, 0);
                content[offset as usize..end as usize].copy_from_slice(&bytes);
                next.content = Bytes::new(content);
                patch.zeros = (size.min(offset), offset);
                patch.sizes = Some(size..=size.max(end));
                stable = is_stable.then_some((offset, end));
                let first = size.min(offset);
                let mut before = self.content.bytes[first as usize..size.min(end) as usize].to_vec();
                // The file may have grown before these bytes are written: zeros.
                before.resize((end - first) as usize, 0);
                let sizes = size..=size.max(end);
                next.flying.push(Rc::new(Flying { by: at, offset: first, before, is_smaller: false, sizes }));
                (patch.offset, patch.bytes) = (offset, bytes);
            }
            Call::Truncate { size: wanted, .. } => {
                let mut content = self.content.bytes.clone();
                content.resize(*wanted as usize, 0);
                next.content = Bytes::new(content);
                patch.zeros = (size.min(*wanted), *wanted);
                let before = self.content.bytes.get(*wanted as usize..).unwrap_or_default().to_vec();
                let (offset, is_smaller) = (*wanted, *wanted < size);
                next.flying.push(Rc::new(Flying { by: at, offset, before, is_smaller, sizes: size..=size }));
                patch.sizes = Some(*wanted..=*wanted);
            }
            Call::SetAttribute { key, value, .. } => {
                Rc::make_mut(&mut next.attributes).insert(key.clone(), value.clone());
                patch.attribute = Some((key.clone(), Some(value.clone())));
            }
            Call::RemoveAttribute { key, .. } => {
                Rc::make_mut(&mut next.attributes).remove(key);
                patch.attribute = Some((key.clone(), None));
            }
            _ => return None,
        }
        let mut hasher = DefaultHasher::new();
        (patch.at, patch.offset, patch.bytes.len()).hash(&mut hasher);
        patch.hash = hasher.finish();
        Rc::make_mut(&mut next.patches).push(Rc::new(patch));
        if let Some(range) = stable {
            next.promise(at, Some(range), false);
        }
        Some(next)
    }

    fn watch(&self, at: usize, operation: &Operation) -> Seen {
        let mut seen = match &operation.answer {
            Answer::Bytes(bytes) => Seen::Read { is_there: vec![false; bytes.len()], sizes: (u64::MAX, 0) },
            _ => Seen::Whole(false),
        };
        self.look(at, operation, &mut seen);
        seen
    }

    fn look(&self, _: usize, operation: &Operation, seen: &mut Seen) {
        match (seen, &operation.call, &operation.answer) {
            (Seen::Whole(is_seen), call, Answer::Error(error)) => *is_seen |= self.error(call) == Some(error),
            (Seen::Whole(is_seen), Call::GetAttribute { key, .. }, Answer::Text(text)) => {
                *is_seen |= self.attributes.get(key) == Some(text);
            }
            (Seen::Whole(is_seen), Call::Stat { .. }, Answer::Stat { size, kind: Kind::File, .. }) => {
                *is_seen |= self.content.len() == *size;
                *is_seen |= self.flying.iter().any(|flying| flying.sizes.contains(size));
            }
            (Seen::Read { is_there, sizes }, Call::Read { offset, .. }, Answer::Bytes(bytes)) => {
                mark(is_there, bytes, *offset, 0, &self.content.bytes);
                *sizes = (sizes.0.min(self.content.len()), sizes.1.max(self.content.len()));
                for flying in &self.flying {
                    mark(is_there, bytes, *offset, flying.offset, &flying.before);
                    if flying.is_smaller {
                        mark(is_there, bytes, *offset, flying.offset, &vec![0; flying.before.len()]);
                    }
                    *sizes = (sizes.0.min(*flying.sizes.start()), sizes.1.max(*flying.sizes.end()));
                }
            }
            _ => {}
        }
    }

    fn is_seen(operation: &Operation, seen: &Seen) -> bool {
        match (seen, &operation.call) {
            (Seen::Whole(is_seen), _) => *is_seen,
            (Seen::Read { is_there, sizes }, Call::Read { offset, length, .. }) => {
                let readable = |size: u64| size.saturating_sub(*offset).min(*length);
                let is_length = (readable(sizes.0)..=readable(sizes.1)).contains(&(is_there.len() as u64));
                is_length && !is_there.contains(&false)
            }
            _ => false,
        }
    }

    fn begin_sync(&mut self, at: usize, operation: &Operation) {
        self.promise(at, None, matches!(operation.call, Call::Sync { .. }));
    }

    fn acknowledge(&mut self, at: usize, _: &Operation) {
        self.flying.retain(|flying| flying.by != at);
        let Some(mine) = self.since.iter().position(|since| since.by == Some(at)) else { return };
        self.since[mine].is_acknowledged = true;
        let Since { range, has_attributes, start, .. } = self.since[mine].clone();
        // Earlier promises that it covers add nothing.
        self.since.retain(|other| {
            let is_covered = (range.is_none() || range == other.range) && (has_attributes || !other.has_attributes);
            other.by == Some(at) || !other.is_acknowledged || other.start > start || !is_covered
        });
    }

    fn hash(&self, hasher: &mut DefaultHasher) {
        self.content.hash.hash(hasher);
        self.attributes.hash(hasher);
        self.flying.hash(hasher);
        for since in &self.since {
            // The order of changes decides the present content, which is hashed, but not what may be found after a kill.
            let patches = &self.patches[since.start..];
            let sum = patches.iter().fold(0_u64, |sum, patch| sum.wrapping_add(patch.hash));
            let sizes =
                patches.iter().filter_map(|patch| patch.sizes.clone()).map(|sizes| (*sizes.start(), *sizes.end()));
            let zeros = patches.iter().filter(|patch| patch.zeros.0 < patch.zeros.1);
            (since.by, since.is_acknowledged, since.content.hash, &since.attributes, since.range, sum).hash(hasher);
            (united(sizes.collect()), united(zeros.map(|patch| patch.zeros).collect()), &since.flying).hash(hasher);
        }
    }

    fn hash_seen(seen: &Seen, hasher: &mut DefaultHasher) {
        match seen {
            Seen::Whole(is_seen) => is_seen.hash(hasher),
            Seen::Read { is_there, sizes } => (is_there, sizes).hash(hasher),
        }
    }

    fn expected(&self, _: usize, operation: &Operation) -> String {
        if let Some(error) = self.error(&operation.call) {
            return error.to_owned();
        }
        match (&operation.call, &operation.answer) {
            (Call::Read { offset, length, .. }, Answer::Bytes(bytes)) => {
                let there = self.content.bytes.get(*offset as usize..).unwrap_or_default();
                let there = &there[..there.len().min(*length as usize)];
                let at = there.iter().zip(bytes).position(|(one, other)| one != other);
                match at {
                    Some(at) => {
                        let eight = |bytes: &[u8]| format!("{:02x?}", &bytes[at..bytes.len().min(at + 8)]);
                        let (there, read) = (eight(there), eight(bytes));
                        format!("at {} {there}, where it read {read}", *offset as usize + at)
                    }
                    None => format!("{} bytes, where it read {}", there.len(), bytes.len()),
                }
            }
            (Call::Stat { .. }, _) => format!("{} bytes", self.content.len()),
            (Call::GetAttribute { key, .. }, _) => format!("{:?}", self.attributes.get(key)),
            _ => "success".to_owned(),
        }
    }
}
