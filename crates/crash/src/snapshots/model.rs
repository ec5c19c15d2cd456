//! A family of datasets as a plain model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_format::ids::Txg;

use crate::judge::Seen;
use crate::model::{State, content};
use crate::stage::{FILE_SYSTEMS, VOLUME};

/// The raw dataset of family 0, which stands for its contents too. Its name is that of a replica.
pub(super) const RAW: &str = "written/s0/raw";
/// The number of families.
pub(crate) const FAMILIES: usize = 2;

/// The datasets in use of a family.
pub(crate) const fn in_use(family: usize) -> &'static [&'static str] {
    match family {
        0 => &[FILE_SYSTEMS[0]],
        _ => &[FILE_SYSTEMS[1], VOLUME],
    }
}

/// The contents of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The contents that writers have put into a dataset in use, as of a snapshot of it.
    pub(crate) from: Option<From>,
    /// Objects that the actor made.
    pub(crate) objects: BTreeMap<u64, Vec<u8>>,
}

/// The origin of contents that others wrote.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct From {
    /// The dataset in use, or the one that was received raw.
    pub(crate) dataset: &'static str,
    /// The command that took the snapshot; none for the dataset itself.
    pub(crate) taken: Option<u64>,
}

/// The contents that were found of a dataset in use as of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Files of each writer.
    Files(Vec<Seen>),
    /// Ranges of a volume.
    Ranges(Vec<Vec<u8>>),
    /// Records of a raw stream.
    Raw(Vec<u8>),
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Its full name.
    pub(crate) name: String,
    /// The command that took it, or received it.
    pub(crate) number: u64,
    /// The name that it had when it was taken, or that of what it is a replica of: it stands for the guid.
    pub(crate) original: String,
    /// It is a replica.
    pub(crate) is_received: bool,
    /// The contents.
    pub(crate) contents: Contents,
}

/// A receive that did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partial {
    /// The snapshot that is sent, the snapshot before it that the stream builds on, and the snapshot that it is to be.
    pub(crate) source: String,
    pub(crate) from: Option<String>,
    pub(crate) snapshot: String,
    /// Its place was noted and acknowledged: it is there.
    pub(crate) is_noted: bool,
}

/// A family of datasets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) heads: BTreeMap<String, Contents>,
    /// In the order in which they were taken or received.
    pub(crate) snapshots: Vec<Snapshot>,
    /// Clones, and the snapshots that they began as.
    pub(crate) origins: BTreeMap<String, String>,
    pub(crate) holds: BTreeSet<(String, String)>,
    /// Snapshots that go with their last hold or clone.
    pub(crate) deferred: BTreeSet<String>,
    /// Bookmarks, and the numbers of their snapshots.
    pub(crate) bookmarks: BTreeMap<String, u64>,
    /// By the dataset that they are received as.
    pub(crate) partials: BTreeMap<String, Partial>,
    /// The txg of each command that took snapshots, once it is known.
    pub(crate) txgs: BTreeMap<u64, Txg>,
    /// The contents that were found of datasets in use.
    pub(crate) known: BTreeMap<From, Arc<Known>>,
    /// Numbers of commands.
    pub(crate) next: u64,
}

/// A verb, or a change of a dataset of the actor's own.
#[derive(Clone, Debug)]
pub(crate) enum Verb {
    /// The object is made where it is not there.
    Write {
        head: String,
        object: u64,
        offset: usize,
        len: usize,
        seed: u64,
    },
    Free {
        head: String,
        object: u64,
    },
    /// The txg as it was answered.
    Take {
        names: Vec<String>,
        number: u64,
        txg: Option<Txg>,
    },
    Clone {
        snapshot: String,
        name: String,
    },
    DestroySnapshots {
        names: Vec<String>,
        is_deferred: bool,
    },
    Rollback(String),
    Hold {
        tag: String,
        names: Vec<String>,
    },
    Release {
        tag: String,
        names: Vec<String>,
    },
    /// With its snapshots.
    Destroy(String),
    Promote(String),
    Rename {
        from: String,
        to: String,
    },
    RenameSnapshot {
        from: String,
        to: String,
    },
    Bookmark {
        names: Vec<String>,
        source: String,
    },
    DestroyBookmarks(Vec<String>),
    /// All of a stream; `base`: the replica's own of the snapshot that it builds on, whose followers go; `is_resumed`: as it was answered.
    Receive {
        source: String,
        from: Option<String>,
        snapshot: String,
        base: Option<String>,
        number: u64,
        is_resumed: bool,
    },
    /// A part of it.
    ReceivePart {
        source: String,
        from: Option<String>,
        snapshot: String,
    },
    Abort(String),
}

/// The dataset of a snapshot or a bookmark.
pub(crate) fn of(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or(name)
}

impl Contents {
    /// Encrypted, and nobody has the key.
    pub(crate) fn is_raw(&self) -> bool {
        self.from.as_ref().is_some_and(|from| from.dataset == RAW)
    }
}

impl Family {
    /// As a pool has it that was just made.
    pub(crate) fn fresh(family: usize) -> Self {
        let mut heads: BTreeMap<String, Contents> = in_use(family)
            .iter()
            .map(|dataset| {
                let from = Some(From { dataset, taken: None });
                ((*dataset).to_owned(), Contents { from, ..Contents::default() })
            })
            .collect();
        heads.insert(format!("written/s{family}/a"), Contents::default());
        Self { heads, ..Self::default() }
    }

    pub(crate) fn snapshot(&self, name: &str) -> Option<&Snapshot> {
        self.snapshots.iter().find(|snapshot| snapshot.name == name)
    }

    /// Snapshots of a dataset, in their order.
    pub(crate) fn snapshots_of<'a>(&'a self, head: &'a str) -> impl Iterator<Item = &'a Snapshot> {
        self.snapshots.iter().filter(move |snapshot| of(&snapshot.name) == head)
    }

    /// Snapshots of the same dataset that came after one.
    pub(crate) fn newer(&self, name: &str) -> Vec<String> {
        let own = self.snapshots_of(of(name)).map(|snapshot| snapshot.name.clone());
        own.skip_while(|other| other != name).skip(1).collect()
    }

    /// Something keeps it: a clone or a hold.
    pub(crate) fn is_kept(&self, snapshot: &str) -> bool {
        self.has_clones(snapshot) || self.holds.iter().any(|(held, _)| held == snapshot)
    }

    /// A receive is to be gone on with that needs it: as what is sent, or since it goes into the same dataset.
    pub(crate) fn is_needed(&self, snapshot: &str) -> bool {
        let is_sent = |partial: &Partial| partial.source == snapshot || partial.from.as_deref() == Some(snapshot);
        self.partials.contains_key(of(snapshot)) || self.partials.values().any(is_sent)
    }

    pub(crate) fn has_clones(&self, snapshot: &str) -> bool {
        self.origins.values().any(|origin| origin == snapshot)
    }

    fn remove(&mut self, snapshot: &str) {
        self.snapshots.retain(|other| other.name != snapshot);
        self.deferred.remove(snapshot);
    }

    /// Snapshots that were to go, and that nothing keeps any more.
    fn settle(&mut self) {
        for snapshot in self.deferred.clone() {
            let is_held = self.holds.iter().any(|(held, _)| *held == snapshot);
            if !is_held && !self.has_clones(&snapshot) {
                self.remove(&snapshot);
            }
        }
    }

    fn rename(&mut self, new_name: impl Fn(&str) -> String) {
        self.snapshots.iter_mut().for_each(|snapshot| snapshot.name = new_name(&snapshot.name));
        self.holds = self.holds.iter().map(|(name, tag)| (new_name(name), tag.clone())).collect();
        self.deferred = self.deferred.iter().map(|name| new_name(name)).collect();
        self.origins.values_mut().for_each(|origin| *origin = new_name(origin));
        for partial in self.partials.values_mut() {
            partial.source = new_name(&partial.source);
            partial.from = partial.from.as_deref().map(&new_name);
        }
    }

    /// Forgets what was found of datasets in use, and is in no snapshot any more.
    pub(crate) fn forget_unused(&mut self) {
        let all = self.heads.values().chain(self.snapshots.iter().map(|snapshot| &snapshot.contents));
        let used: BTreeSet<From> = all.filter_map(|contents| contents.from.clone()).collect();
        self.known.retain(|from, _| used.contains(from));
    }

    fn destroy_newer(&mut self, snapshot: &str) {
        self.newer(snapshot).iter().for_each(|name| self.remove(name));
    }

    fn promote(&mut self, head: &str) {
        let Some(origin) = self.origins.remove(head) else { return };
        let of_origin = of(&origin).to_owned();
        let Some(last) = self.snapshots.iter().position(|snapshot| snapshot.name == origin) else { return };
        let number = self.snapshots[last].number;
        let moved: BTreeSet<String> = self.snapshots[..=last]
            .iter()
            .map(|snapshot| snapshot.name.clone())
            .filter(|name| of(name) == of_origin)
            .collect();
        let new_name = |name: &str| match moved.contains(name) {
            true => name.replacen(&of_origin, head, 1),
            false => name.to_owned(),
        };
        let moves = |name: &str, when: u64| of(name) == of_origin && when <= number;
        let bookmarks = std::mem::take(&mut self.bookmarks).into_iter().map(|(name, when)| {
            let name = if moves(&name, when) { name.replacen(&of_origin, head, 1) } else { name };
            (name, when)
        });
        self.bookmarks = bookmarks.collect();
        let above = self.origins.remove(&of_origin);
        self.rename(new_name);
        let (above, origin) = (above.map(|above| new_name(&above)), new_name(&origin));
        if let Some(above) = above {
            self.origins.insert(head.to_owned(), above);
        }
        self.origins.insert(of_origin, origin);
    }

    fn receive(&mut self, source: &str, snapshot: &str, base: Option<&str>, number: u64) {
        let Some(sent) = self.snapshot(source).cloned() else { return };
        if let Some(base) = base {
            self.destroy_newer(base);
        }
        let head = of(snapshot).to_owned();
        self.partials.remove(&head);
        self.heads.insert(head, sent.contents.clone());
        self.snapshots.push(Snapshot { name: snapshot.to_owned(), number, is_received: true, ..sent });
    }
}

impl State for Family {
    type Change = Verb;

    fn apply(&mut self, verb: &Verb) {
        self.next += 1;
        match verb {
            Verb::Write { head, object, offset, len, seed } => {
                if let Some(contents) = self.heads.get_mut(head) {
                    let bytes = contents.objects.entry(*object).or_default();
                    bytes.resize(bytes.len().max(offset + len), 0);
                    bytes[*offset..offset + len].copy_from_slice(&content(*seed, *len));
                }
            }
            Verb::Free { head, object } => {
                if let Some(contents) = self.heads.get_mut(head) {
                    contents.objects.remove(object);
                }
            }
            Verb::Take { names, number, txg } => {
                self.txgs.extend(txg.map(|txg| (*number, txg)));
                for name in names {
                    let Some(mut contents) = self.heads.get(of(name)).cloned() else { continue };
                    if let Some(From { taken: taken @ None, .. }) = &mut contents.from {
                        *taken = Some(*number);
                    }
                    let (name, original, number) = (name.clone(), name.clone(), *number);
                    self.snapshots.push(Snapshot { name, number, original, is_received: false, contents });
                }
            }
            Verb::Clone { snapshot, name } => {
                if let Some(contents) = self.snapshot(snapshot).map(|snapshot| snapshot.contents.clone()) {
                    self.heads.insert(name.clone(), contents);
                    self.origins.insert(name.clone(), snapshot.clone());
                }
            }
            Verb::DestroySnapshots { names, is_deferred } => {
                for name in names {
                    if *is_deferred && self.is_kept(name) {
                        self.deferred.insert(name.clone());
                    } else {
                        self.remove(name);
                    }
                }
            }
            Verb::Rollback(snapshot) => {
                self.destroy_newer(snapshot);
                if let Some(Snapshot { number, contents, .. }) = self.snapshot(snapshot).cloned() {
                    self.bookmarks.retain(|name, of_number| of(name) != of(snapshot) || *of_number <= number);
                    self.heads.insert(of(snapshot).to_owned(), contents);
                }
            }
            Verb::Hold { tag, names } => {
                self.holds.extend(names.iter().map(|name| (name.clone(), tag.clone())));
            }
            Verb::Release { tag, names } => {
                self.holds.retain(|(name, other)| other != tag || !names.contains(name));
                self.settle();
            }
            Verb::Destroy(head) => {
                self.snapshots.retain(|snapshot| of(&snapshot.name) != head);
                self.deferred.retain(|name| of(name) != head);
                self.bookmarks.retain(|name, _| of(name) != head);
                self.heads.remove(head);
                self.origins.remove(head);
                self.settle();
            }
            Verb::Promote(head) => self.promote(head),
            Verb::Rename { from, to } => {
                if let Some(contents) = self.heads.remove(from) {
                    self.heads.insert(to.clone(), contents);
                }
                if let Some(origin) = self.origins.remove(from) {
                    self.origins.insert(to.clone(), origin);
                }
                let new_name = |name: &str| match of(name) == from {
                    true => name.replacen(from.as_str(), to, 1),
                    false => name.to_owned(),
                };
                let bookmarks = std::mem::take(&mut self.bookmarks).into_iter();
                self.bookmarks = bookmarks.map(|(name, when)| (new_name(&name), when)).collect();
                self.rename(new_name);
            }
            Verb::RenameSnapshot { from, to } => {
                self.rename(|name| if name == from { to.clone() } else { name.to_owned() });
            }
            Verb::Bookmark { names, source } => {
                let number = self.snapshot(source).map(|snapshot| snapshot.number);
                let number = number.or_else(|| self.bookmarks.get(source).copied());
                if let Some(number) = number {
                    self.bookmarks.extend(names.iter().map(|name| (name.clone(), number)));
                }
            }
            Verb::DestroyBookmarks(names) => self.bookmarks.retain(|name, _| !names.contains(name)),
            Verb::Receive { source, snapshot, base, number, .. } => {
                self.receive(source, snapshot, base.as_deref(), *number);
            }
            Verb::ReceivePart { source, from, snapshot } => {
                let (source, from, snapshot) = (source.clone(), from.clone(), snapshot.clone());
                self.partials.insert(of(&snapshot).to_owned(), Partial { source, from, snapshot, is_noted: true });
            }
            Verb::Abort(dataset) => drop(self.partials.remove(dataset)),
        }
    }
}

/// The end of a verb.
pub(super) enum Outcome {
    /// It was answered: what was made, and its txg where the answer tells it.
    Made { verb: Verb, txg: Option<Txg> },
    /// It is in this txg, and nobody was told that it is on disk.
    Written { verb: Verb, txg: Txg },
    /// There was no room, or nothing to do; nothing was changed.
    Refused,
}
