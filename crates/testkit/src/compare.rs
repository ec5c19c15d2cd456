//! Comparing two accounts of a pool: what OpenZFS saw and what we see.
//!
//! Both are JSON of the form `{"datasets": {NAME: {…}}}`; a section of a golden manifest is one, the output of
//! `cenote manifest` another. Every dataset, every field of it, every entry and every field of that is compared, whatever
//! its name: a field that only one side has is a difference, unless the options say otherwise.
//!
//! Entries are matched by path, rows of user accounting in any order, of an `error` only that there is one; everything else
//! must be equal as it stands. Where one path occurs twice (no sound walk gives that), the repeated entry is a difference of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value};

/// How to compare.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Field names, of datasets or entries, that are not compared.
    pub ignore: BTreeSet<String>,
    /// Compare only the datasets, entries and fields that the expected side mentions.
    pub subset: bool,
    /// Only datasets for which this list has an element that is equal or a parent; empty means all.
    pub datasets: Vec<String>,
}

/// The result of a comparison: counts, and the fields that differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Datasets compared.
    pub dataset_count: u64,
    /// Entries compared.
    pub entry_count: u64,
    /// Fields compared.
    pub field_count: u64,
    /// One line per difference.
    pub differences: Vec<String>,
}

impl Report {
    /// Whether something was compared and all of it was equal.
    pub fn is_match(&self) -> bool {
        self.differences.is_empty() && self.dataset_count > 0 && self.field_count > 0
    }

    /// Takes another report's counts and differences in.
    pub fn absorb(&mut self, other: Report) {
        self.dataset_count += other.dataset_count;
        self.entry_count += other.entry_count;
        self.field_count += other.field_count;
        self.differences.extend(other.differences);
    }
}

impl fmt::Display for Report {
    /// The counts; the differences are for the caller to print, as many as it likes.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} datasets, {} entries, {} fields compared, {} differences",
            self.dataset_count,
            self.entry_count,
            self.field_count,
            self.differences.len()
        )
    }
}

/// Compares two accounts. Both may be whole objects with a member `datasets`.
pub fn compare(want: &Value, got: &Value, options: &Options) -> Report {
    let mut report = Report::default();
    let empty = Map::new();
    let mut side = |value: &'_ Value, whose: &str| -> Map<String, Value> {
        match value.get("datasets").and_then(Value::as_object) {
            Some(datasets) => datasets.clone(),
            None => {
                report.differences.push(format!("the {whose} account has no datasets"));
                empty.clone()
            }
        }
    };
    let want = side(want, "expected");
    let got = side(got, "found");
    let selected = |name: &str| {
        options.datasets.is_empty()
            || options.datasets.iter().any(|root| {
                name.strip_prefix(root.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@', '#']))
            })
    };
    let names: BTreeSet<&String> = want.keys().chain(got.keys()).filter(|name| selected(name)).collect();
    for name in names {
        match (want.get(name), got.get(name)) {
            (Some(want), Some(got)) => dataset(name, want, got, options, &mut report),
            (Some(_), None) => report.differences.push(format!("{name} is missing")),
            (None, Some(_)) if !options.subset => report.differences.push(format!("{name} is not expected")),
            _ => {}
        }
    }
    report
}

fn dataset(name: &str, want: &Value, got: &Value, options: &Options, report: &mut Report) {
    report.dataset_count += 1;
    for key in keys(want, got, options) {
        let (want, got) = (want.get(key), got.get(key));
        match key {
            "entries" => entries(name, want, got, options, report),
            "userspace" | "groupspace" | "projectspace" => {
                field(name, key, sorted(want).as_ref(), sorted(got).as_ref(), report);
            }
            "error" => refusal(name, want, got, report),
            _ => field(name, key, want, got, report),
        }
    }
}

fn entries(name: &str, want: Option<&Value>, got: Option<&Value>, options: &Options, report: &mut Report) {
    let want = by_path(name, "expected", want, report);
    let got = by_path(name, "found", got, report);
    let paths: BTreeSet<&String> = want.keys().chain(got.keys()).collect();
    for path in paths {
        match (want.get(path), got.get(path)) {
            (Some(want), Some(got)) => {
                report.entry_count += 1;
                let place = format!("{name}: {path}");
                for key in keys(want, got, options) {
                    let (want, got) = (want.get(key), got.get(key));
                    if key == "error" {
                        refusal(&place, want, got, report);
                    } else {
                        field(&place, key, want, got, report);
                    }
                }
            }
            (Some(_), None) => report.differences.push(format!("{name}: {path} is missing")),
            (None, Some(_)) if !options.subset => report.differences.push(format!("{name}: {path} is not expected")),
            _ => {}
        }
    }
}

/// Entries by the JSON text of their path, which tells text from bytes in hex.
fn by_path<'a>(
    name: &str,
    whose: &str,
    entries: Option<&'a Value>,
    report: &mut Report,
) -> BTreeMap<String, &'a Value> {
    let mut map = BTreeMap::new();
    for entry in entries.and_then(Value::as_array).into_iter().flatten() {
        let path = entry.get("path").unwrap_or(&Value::Null).to_string();
        if map.insert(path.clone(), entry).is_some() {
            report.differences.push(format!("{name}: {path} occurs twice in the {whose} account"));
        }
    }
    map
}

/// The fields to compare: of both sides, or in a subset of the expected one.
fn keys<'a>(want: &'a Value, got: &'a Value, options: &Options) -> BTreeSet<&'a str> {
    let of = |value: &'a Value| value.as_object().into_iter().flat_map(Map::keys).map(String::as_str);
    let mut keys: BTreeSet<&str> = of(want).collect();
    if !options.subset {
        keys.extend(of(got));
    }
    keys.retain(|key| !options.ignore.contains(*key));
    keys
}

fn field(place: &str, key: &str, want: Option<&Value>, got: Option<&Value>, report: &mut Report) {
    report.field_count += 1;
    if want != got {
        report.differences.push(format!("{place}: {key} is {}, expected {}", brief(got), brief(want)));
    }
}

/// Whether both or neither could not be read. The words are each system's own (`mount: Device or resource busy`).
fn refusal(place: &str, want: Option<&Value>, got: Option<&Value>, report: &mut Report) {
    report.field_count += 1;
    if want.is_some() != got.is_some() {
        report.differences.push(format!("{place}: error is {}, expected {}", brief(got), brief(want)));
    }
}

/// A value in one line of bearable length.
fn brief(value: Option<&Value>) -> String {
    const CHARS_MAX: usize = 400;
    let Some(value) = value else { return "absent".to_owned() };
    let text = value.to_string();
    match text.char_indices().nth(CHARS_MAX) {
        Some((cut, _)) => format!("{}… ({} bytes)", &text[..cut], text.len()),
        None => text,
    }
}

/// The rows of a list in a fixed order.
fn sorted(rows: Option<&Value>) -> Option<Value> {
    let mut rows = rows?.as_array()?.clone();
    rows.sort_by_key(Value::to_string);
    Some(Value::Array(rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Golden;
    use serde_json::json;

    fn section(theme: &str) -> Value {
        let manifest = Golden::selection().unwrap().theme(theme).unwrap().manifest_json().unwrap();
        manifest["sections"][0].clone()
    }

    #[test]
    fn every_manifest_equals_itself() {
        for theme in Golden::selection().unwrap().themes().unwrap() {
            let manifest = theme.manifest_json().unwrap();
            for section in manifest["sections"].as_array().unwrap() {
                let report = compare(section, section, &Options::default());
                assert!(report.is_match(), "{}: {report}", theme.name());
            }
        }
    }

    /// Goal: no field of a manifest can change unseen. Method: change each leaf of a real manifest in turn (numbers and
    /// strings altered, list elements dropped, members removed) and ask for exactly one difference. Would go wrong if the
    /// comparison knew only some names.
    #[test]
    fn every_single_change_is_one_difference() {
        let want = section("acl");
        let mut changes = 0;
        let datasets = want["datasets"].as_object().unwrap();
        for (name, dataset) in datasets {
            let mut without = want.clone();
            without["datasets"].as_object_mut().unwrap().remove(name);
            expect_one(&want, &without, name);
            for key in dataset.as_object().unwrap().keys().filter(|key| *key != "entries") {
                let mut changed = want.clone();
                changed["datasets"][name][key] = json!("something else");
                expect_one(&want, &changed, key);
                changed["datasets"][name].as_object_mut().unwrap().remove(key);
                expect_one(&want, &changed, key);
                changes += 2;
            }
            let count = dataset["entries"].as_array().map_or(0, Vec::len);
            // Entries are alike; the first few stand for all.
            for index in 0..count.min(6) {
                let mut changed = want.clone();
                changed["datasets"][name]["entries"].as_array_mut().unwrap().remove(index);
                expect_one(&want, &changed, "entry");
                for key in dataset["entries"][index].as_object().unwrap().keys().filter(|key| *key != "path") {
                    let mut changed = want.clone();
                    changed["datasets"][name]["entries"][index][key] = json!({"other": 1});
                    expect_one(&want, &changed, key);
                    changes += 1;
                }
            }
        }
        assert!(changes > 50);
    }

    fn expect_one(want: &Value, got: &Value, what: &str) {
        assert_eq!(compare(want, got, &Options::default()).differences.len(), 1, "{what}");
        assert_eq!(compare(got, want, &Options::default()).differences.len(), 1, "{what}");
    }

    #[test]
    fn numbers_beyond_the_mantissa_of_a_double_are_told_apart() {
        let want: Value = serde_json::from_str(r#"{"datasets":{"p":{"guid":17653051878483923001}}}"#).unwrap();
        let got: Value = serde_json::from_str(r#"{"datasets":{"p":{"guid":17653051878483923002}}}"#).unwrap();
        assert_eq!(compare(&want, &got, &Options::default()).differences.len(), 1);
    }

    #[test]
    fn ignored_fields_are_not_compared_and_a_subset_allows_more() {
        let want = json!({"datasets": {"p": {"type": "filesystem", "entries": [{"path": "a", "ino": 1}]}}});
        let got = json!({"datasets": {"p": {"type": "filesystem", "guid": 1,
            "entries": [{"path": "a", "ino": 2, "uid": 0}, {"path": "b"}]}, "p/more": {}}});
        let mut options = Options { subset: true, ..Options::default() };
        assert_eq!(compare(&want, &got, &options).differences, ["p: \"a\": ino is 2, expected 1"]);
        options.ignore.insert("ino".to_owned());
        assert!(compare(&want, &got, &options).is_match());
    }

    #[test]
    fn a_selection_of_datasets_takes_their_children_and_nothing_alike() {
        let want = json!({"datasets": {"p/a": {"x": 1}, "p/a@s": {"x": 1}, "p/ab": {"x": 1}}});
        let got = json!({"datasets": {"p/a": {"x": 1}, "p/a@s": {"x": 1}}});
        let options = Options { datasets: vec!["p/a".to_owned()], ..Options::default() };
        let report = compare(&want, &got, &options);
        assert!(report.is_match());
        assert_eq!(report.dataset_count, 2);
    }

    #[test]
    fn rows_of_user_accounting_may_come_in_any_order() {
        let want = json!({"datasets": {"p": {"userspace": [["a"], ["b"]]}}});
        let got = json!({"datasets": {"p": {"userspace": [["b"], ["a"]]}}});
        assert!(compare(&want, &got, &Options::default()).is_match());
    }

    #[test]
    fn errors_are_compared_by_being_there_and_not_by_their_words() {
        let want = json!({"datasets": {"p": {"error": "mount: busy", "entries": [{"path": "a", "error": "EIO"}]}}});
        let got = json!({"datasets": {"p": {"error": "half received", "entries": [{"path": "a", "error": "bad"}]}}});
        let none = json!({"datasets": {"p": {"entries": [{"path": "a"}]}}});
        assert!(compare(&want, &got, &Options::default()).is_match());
        assert_eq!(compare(&want, &none, &Options::default()).differences.len(), 2);
        assert_eq!(compare(&none, &want, &Options::default()).differences.len(), 2);
    }

    #[test]
    fn nothing_compared_is_not_a_match_and_a_path_given_twice_is_a_difference() {
        let empty = json!({"datasets": {}});
        assert!(!compare(&empty, &empty, &Options::default()).is_match());
        assert!(!compare(&json!({}), &json!({}), &Options::default()).is_match());
        let once = json!({"datasets": {"p": {"entries": [{"path": "a"}]}}});
        let twice = json!({"datasets": {"p": {"entries": [{"path": "a"}, {"path": "a"}]}}});
        assert_eq!(compare(&once, &twice, &Options::default()).differences.len(), 1);
    }
}
