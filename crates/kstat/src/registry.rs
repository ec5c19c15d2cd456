//! The groups of statistics of one pool.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use cenote_taskq::sync::Mutex;

/// One statistic's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stat {
    /// It only grows.
    Count(u64),
    /// It goes up and down.
    Level(u64),
    /// Words.
    Text(String),
    /// Counts of values by powers of two: bucket `n` is from 2^n up to 2^(n+1).
    Histogram(Vec<u64>),
}

/// The contents of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Statistics by name, in their order.
    Named(Vec<(&'static str, Stat)>),
    /// A table with these columns.
    Rows(Vec<&'static str>, Vec<Vec<Stat>>),
}

/// A group of statistics as it was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its statistics.
    pub body: Body,
}

/// The statistics of a group, while they are collected.
#[derive(Clone, Debug, Default)]
pub struct Sheet {
    named: Vec<(&'static str, Stat)>,
    rows: Option<(Vec<&'static str>, Vec<Vec<Stat>>)>,
}

impl Sheet {
    /// A number that only grows. The counts of several sources under one name add up.
    pub fn count(&mut self, name: &'static str, count: u64) {
        match self.named.iter_mut().find(|(known, _)| *known == name) {
            Some((_, Stat::Count(sum))) => *sum = sum.wrapping_add(count),
            _ => self.named.push((name, Stat::Count(count))),
        }
    }

    /// A number that goes up and down.
    pub fn level(&mut self, name: &'static str, level: u64) {
        self.named.push((name, Stat::Level(level)));
    }

    /// Words.
    pub fn text(&mut self, name: &'static str, text: impl Into<String>) {
        self.named.push((name, Stat::Text(text.into())));
    }

    /// Counts by powers of two.
    pub fn histogram(&mut self, name: &'static str, buckets: Vec<u64>) {
        self.named.push((name, Stat::Histogram(buckets)));
    }

    /// A table, in the place of names.
    pub fn table(&mut self, columns: &[&'static str], rows: Vec<Vec<Stat>>) {
        self.rows = Some((columns.to_vec(), rows));
    }

    fn body(self) -> Body {
        match self.rows {
            Some((columns, rows)) => Body::Rows(columns, rows),
            None => Body::Named(self.named),
        }
    }
}

/// The groups of one snapshot, while they are collected.
#[derive(Debug, Default)]
pub struct Snapshot(BTreeMap<String, Sheet>);

impl Snapshot {
    /// The group of this name; empty unless there is one.
    pub fn group(&mut self, name: impl Into<String>) -> &mut Sheet {
        self.0.entry(name.into()).or_default()
    }
}

/// Reads groups; false if their owner has gone.
type Read = Arc<dyn Fn(&mut Snapshot) -> bool + Send + Sync>;

/// The groups of one pool. Cheap to clone.
#[derive(Clone, Default)]
pub struct Registry(Arc<Mutex<Vec<Read>>>);

impl Registry {
    /// Has groups be read from `owner` for as long as that is there.
    pub fn add<T, F>(&self, owner: &Arc<T>, read: F)
    where
        T: Send + Sync + 'static,
        F: Fn(&T, &mut Snapshot) + Send + Sync + 'static,
    {
        let owner: Weak<T> = Arc::downgrade(owner);
        let read = move |snapshot: &mut Snapshot| owner.upgrade().inspect(|owner| read(owner, snapshot)).is_some();
        self.0.lock().push(Arc::new(read));
    }

    /// All groups as they are now, by name.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Group> {
        // Owners take locks of their own, and the last use of one may be here.
        let all = self.0.lock().clone();
        let mut snapshot = Snapshot::default();
        let gone: Vec<Read> = all.into_iter().filter(|read| !read(&mut snapshot)).collect();
        self.0.lock().retain(|read| !gone.iter().any(|gone| Arc::ptr_eq(read, gone)));
        snapshot.0.into_iter().map(|(name, sheet)| Group { name, body: sheet.body() }).collect()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry of {} sources", self.0.lock().len())
    }
}
