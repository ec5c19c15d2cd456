//! The findings of an inspection: one document, and the problems on the way.
//!
//! A report is a tree of JSON values: programs read it as JSON, and a text for people is a rendering of the same tree, so the two cannot
//! say different things. Names carry the units: `_bytes`, `offset_bytes`, `_s` for seconds. An array of plain objects is a table, an
//! array of others a section each. Lists are bounded by [`Report::limit`]; what was cut off is counted in `NAME_left_out`, or
//! `NAME_cut_off` says that nobody counted it.
//!
//! Blocks that could not be read are in `problems`.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// Problems kept; the rest is counted.
const PROBLEMS_MAX: usize = 1000;

/// Shows a time: seconds since 1970, and a format as of `strftime`.
pub type TimeText = fn(u64, &str) -> String;

/// A report being made. Serialised, it is its document with the problems at the end.
#[derive(Clone, Debug)]
pub struct Report {
    root: Map<String, Value>,
    problems: Vec<String>,
    problem_count: u64,
    /// Entries of each list at most.
    pub limit: usize,
    /// The form of times within a text.
    pub time: TimeText,
}

impl Report {
    /// An empty one.
    pub fn new(limit: usize, time: TimeText) -> Self {
        Self { root: Map::new(), problems: Vec::new(), problem_count: 0, limit, time }
    }

    /// The document without the problems.
    pub(crate) const fn document(&self) -> &Map<String, Value> {
        &self.root
    }

    /// Adds to the document.
    pub fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.root.insert(name.to_owned(), value.into());
    }

    /// Adds all of a map to the document.
    pub(crate) fn append(&mut self, mut map: Map<String, Value>) {
        self.root.append(&mut map);
    }

    /// Something could not be read, or contradicts itself.
    pub fn problem(&mut self, text: impl std::fmt::Display) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(text.to_string());
        }
    }

    /// The value of a result; an error becomes a problem, with `what` was being read in front.
    pub fn take<T, E: std::fmt::Display>(&mut self, what: &str, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.problem(format_args!("{what}: {error:#}"));
                None
            }
        }
    }

    /// Adds a list that was gathered in full.
    pub(crate) fn list(&mut self, name: &str, items: Vec<Value>) {
        self.list_of(items.len() as u64, name, items);
    }

    /// Adds a list of which there are `total` in all.
    pub(crate) fn list_of(&mut self, total: u64, name: &str, mut items: Vec<Value>) {
        cut(&mut self.root, name, &mut items, self.limit, total);
    }

    /// Adds the beginning of a list that was gathered with one entry more than the limit at most.
    pub(crate) fn first(&mut self, name: &str, mut items: Vec<Value>) {
        first(&mut self.root, name, &mut items, self.limit);
    }

    /// The problems so far, as far as they are kept.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The number of problems beyond those.
    pub fn problems_left_out(&self) -> u64 {
        self.problem_count - self.problems.len() as u64
    }

    /// Whether there was no problem.
    pub const fn is_clean(&self) -> bool {
        self.problem_count == 0
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = self.root.clone();
        document.insert("problems".into(), self.problems.clone().into());
        if self.problems_left_out() > 0 {
            document.insert("problems_left_out".into(), self.problems_left_out().into());
        }
        document.serialize(serializer)
    }
}

/// Puts `items` into `map` as `name`, cut to `limit`; `total` is how many there are in all.
pub(crate) fn cut(map: &mut Map<String, Value>, name: &str, items: &mut Vec<Value>, limit: usize, total: u64) {
    items.truncate(limit);
    let left_out = total.saturating_sub(items.len() as u64);
    map.insert(name.to_owned(), std::mem::take(items).into());
    if left_out > 0 {
        map.insert(format!("{name}_left_out"), left_out.into());
    }
}

/// As [`cut`], where nobody has counted: more than `limit` items mean that there are more.
pub(crate) fn first(map: &mut Map<String, Value>, name: &str, items: &mut Vec<Value>, limit: usize) {
    let is_cut = items.len() > limit;
    items.truncate(limit);
    map.insert(name.to_owned(), std::mem::take(items).into());
    if is_cut {
        map.insert(format!("{name}_cut_off"), true.into());
    }
}

/// A map from pairs, in their order.
pub(crate) fn map<const N: usize>(pairs: [(&str, Value); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_cut_off_is_counted() {
        let mut map = Map::new();
        cut(&mut map, "entries", &mut vec![json!(1), json!(2), json!(3)], 2, 9);
        first(&mut map, "more", &mut vec![json!(1), json!(2)], 1);
        first(&mut map, "all", &mut vec![json!(1)], 1);
        let want = json!({
            "entries": [1, 2], "entries_left_out": 7, "more": [1], "more_cut_off": true, "all": [1],
        });
        assert_eq!(Value::Object(map), want);
    }

    #[test]
    fn problems_stand_at_the_end_and_are_bounded() {
        let mut report = Report::new(1, |_, _| String::new());
        report.list("items", vec![json!(1), json!(2)]);
        (0..PROBLEMS_MAX + 2).for_each(|at| report.problem(at));
        let shown = serde_json::to_value(&report).unwrap();
        assert_eq!((&shown["items"], &shown["items_left_out"]), (&json!([1]), &json!(1)));
        assert_eq!(
            (shown["problems"].as_array().unwrap().len(), &shown["problems_left_out"]),
            (PROBLEMS_MAX, &json!(2))
        );
        assert!(!report.is_clean());
    }
}
