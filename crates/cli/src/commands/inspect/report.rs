//! What an inspection found: one document, printed as JSON or set as text.
//!
//! A report is a tree of JSON values, and its text is a rendering of the same tree, so the two cannot say different
//! things. Names carry the units, and the text follows them:
//!
//! | name ends in | text |
//! |---|---|
//! | `_bytes` | the number, and the same with a unit |
//! | `offset_bytes` | hexadecimal |
//! | `_s` | the number, and the time where it is one |
//!
//! An array of plain objects is a table, an array of others a section each. Lists are bounded by `--limit`; what was cut
//! off is counted in `NAME_left_out`, or `NAME_cut_off` says that nobody counted it.
//!
//! What could not be read is in `problems`, on standard error too where the report is text, and makes the exit status 1.

use std::fmt::Write as _;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::args::Search;
use crate::context::Context;
use crate::outcome::Outcome;
use crate::output::{Align, Table, nicebytes};

/// Problems kept; the rest is counted.
const PROBLEMS_MAX: usize = 1000;
/// Columns of indentation a level.
const INDENT: usize = 2;
/// Characters of an array of plain values that are set on one line.
const LINE_MAX: usize = 100;
/// Names that are padded to stand in a column are this long at most.
const NAME_MAX: usize = 40;

/// Options that all inspections share.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) search: Search,
    /// Print the report as JSON.
    #[arg(short = 'j', long)]
    pub(crate) json: bool,
    /// Entries of each list at most.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub(crate) limit: usize,
}

/// A report being made.
pub(crate) struct Report {
    /// The document.
    pub(crate) root: Map<String, Value>,
    problems: Vec<String>,
    problem_count: u64,
    /// Entries of each list at most.
    pub(crate) limit: usize,
    is_json: bool,
}

impl Report {
    /// An empty one.
    pub(crate) fn new(common: &Common) -> Self {
        Self { root: Map::new(), problems: Vec::new(), problem_count: 0, limit: common.limit, is_json: common.json }
    }

    /// Adds to the document.
    pub(crate) fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.root.insert(name.to_owned(), value.into());
    }

    /// Something could not be read, or contradicts itself.
    pub(crate) fn problem(&mut self, text: impl std::fmt::Display) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(text.to_string());
        }
    }

    /// The value of a result; an error becomes a problem, with `what` was being read in front.
    pub(crate) fn take<T, E: std::fmt::Display>(&mut self, what: &str, result: Result<T, E>) -> Option<T> {
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

    /// The problems so far.
    pub(crate) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Prints the report.
    pub(crate) fn finish(mut self, context: &Context) -> Result<Outcome> {
        let failed = self.problem_count > 0;
        if self.is_json {
            let left_out = self.problem_count - self.problems.len() as u64;
            self.root.insert("problems".into(), std::mem::take(&mut self.problems).into());
            if left_out > 0 {
                self.root.insert("problems_left_out".into(), left_out.into());
            }
            context.out(format!("{:#}\n", Value::Object(self.root)))?;
            return Ok(Outcome::unless(failed));
        }
        let mut text = String::new();
        render_map(&mut text, &self.root, 0);
        context.out(text)?;
        for problem in &self.problems {
            context.err(problem);
        }
        let left_out = self.problem_count - self.problems.len() as u64;
        if left_out > 0 {
            context.err(format!("... and {left_out} more problems"));
        }
        Ok(Outcome::unless(failed))
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

fn is_plain(value: &Value) -> bool {
    !matches!(value, Value::Array(_) | Value::Object(_))
}

fn is_row(value: &Value) -> bool {
    value.as_object().is_some_and(|map| map.values().all(is_plain))
}

fn render_map(text: &mut String, map: &Map<String, Value>, depth: usize) {
    let pad = " ".repeat(depth * INDENT);
    let has_line = |value: &Value| match value {
        Value::Object(_) => false,
        Value::Array(items) => items.iter().all(is_plain),
        _ => true,
    };
    let names = map.iter().filter(|(_, value)| has_line(value)).map(|(name, _)| label(name).chars().count());
    let width = names.filter(|len| *len <= NAME_MAX).max().unwrap_or(0);
    for (name, value) in map {
        let shown = label(name);
        match value {
            Value::Object(map) if map.is_empty() => line(text, &pad, &shown, width, "none"),
            Value::Object(map) => {
                let _ = writeln!(text, "{pad}{shown}");
                render_map(text, map, depth + 1);
            }
            Value::Array(items) if items.is_empty() => line(text, &pad, &shown, width, "none"),
            Value::Array(items) if items.iter().all(is_plain) => {
                let cells: Vec<String> = items.iter().map(|item| cell(name, item)).collect();
                let joined = cells.join(" ");
                let is_short = joined.len() <= LINE_MAX
                    && !items.iter().any(|item| item.is_string() && cell(name, item).contains(' '));
                if is_short {
                    line(text, &pad, &shown, width, &joined);
                } else {
                    let _ = writeln!(text, "{pad}{shown}");
                    wrap(text, &cells, (depth + 1) * INDENT);
                }
            }
            Value::Array(items) if items.iter().all(is_row) => {
                let _ = writeln!(text, "{pad}{shown}");
                table(text, items, (depth + 1) * INDENT);
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let _ = writeln!(text, "{pad}{} {index}", singular(&shown));
                    match item {
                        Value::Object(map) => render_map(text, map, depth + 1),
                        other => line(text, &pad, "", 0, &field("", other)),
                    }
                }
            }
            Value::String(value) if value.contains('\n') => {
                let _ = writeln!(text, "{pad}{shown}");
                for part in value.lines() {
                    let _ = writeln!(text, "{pad}  {part}");
                }
            }
            plain => line(text, &pad, &shown, width, &field(name, plain)),
        }
    }
}

fn line(text: &mut String, pad: &str, name: &str, width: usize, value: &str) {
    let gap = " ".repeat(width.saturating_sub(name.chars().count()));
    let _ = writeln!(text, "{pad}{name}{gap}  {value}");
}

/// Numbers side by side, texts with blanks in them one below the other.
fn wrap(text: &mut String, cells: &[String], indent: usize) {
    let pad = " ".repeat(indent);
    let mut at = 0;
    for cell in cells {
        let is_long = cell.contains(' ');
        if at > 0 && (is_long || at + cell.len() > LINE_MAX) {
            text.push('\n');
            at = 0;
        }
        text.push_str(if at == 0 { &pad } else { " " });
        text.push_str(cell);
        at += cell.len() + 1;
        if is_long {
            text.push('\n');
            at = 0;
        }
    }
    if at > 0 {
        text.push('\n');
    }
}

fn table(text: &mut String, items: &[Value], indent: usize) {
    let rows: Vec<&Map<String, Value>> = items.iter().filter_map(Value::as_object).collect();
    let mut names: Vec<&String> = Vec::new();
    for name in rows.iter().flat_map(|row| row.keys()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let is_number =
        |name: &String| rows.iter().filter_map(|row| row.get(name)).all(|value| value.is_number() || value.is_null());
    let mut set = Table::new(
        names.iter().map(|name| (label(name).to_uppercase(), if is_number(name) { Align::Right } else { Align::Left })),
    );
    for row in &rows {
        set.row(names.iter().map(|name| row.get(*name).map_or_else(|| "-".to_owned(), |value| cell(name, value))));
    }
    let pad = " ".repeat(indent);
    for part in set.text(false).lines() {
        let _ = writeln!(text, "{pad}{}", part.trim_end());
    }
}

/// A name without the unit that its value shows.
fn label(name: &str) -> String {
    name.strip_suffix("_bytes").or_else(|| name.strip_suffix("_s")).unwrap_or(name).to_owned()
}

fn singular(name: &str) -> &str {
    name.strip_suffix("ies").map_or_else(|| name.strip_suffix('s').unwrap_or(name), |_| name)
}

/// A value that has a line of its own.
fn field(name: &str, value: &Value) -> String {
    let plain = if name.ends_with("timestamp_s") { value.to_string() } else { cell(name, value) };
    match value.as_u64() {
        Some(bytes) if name.ends_with("_bytes") && !name.ends_with("offset_bytes") && bytes >= 1024 => {
            format!("{plain} ({})", nicebytes(bytes))
        }
        Some(seconds) if name.ends_with("_s") && seconds > 0 => {
            format!("{plain} ({})", crate::time::format(seconds, "%Y-%m-%d %H:%M:%S %z"))
        }
        _ => plain,
    }
}

/// A value in a row or a list.
fn cell(name: &str, value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => printable(text),
        Value::Number(number) if name.ends_with("offset_bytes") => {
            number.as_u64().map_or_else(|| number.to_string(), |offset| format!("{offset:#x}"))
        }
        Value::Number(number) if name.ends_with("timestamp_s") => {
            number.as_u64().map_or_else(|| number.to_string(), |time| crate::time::format(time, "%Y-%m-%d %H:%M:%S"))
        }
        other => other.to_string(),
    }
}

/// Without characters that could drive a terminal; line ends are kept for blocks of text.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(value: &Value) -> String {
        let mut text = String::new();
        render_map(&mut text, value.as_object().unwrap(), 0);
        text
    }

    #[test]
    fn units_are_read_from_names() {
        let shown = text(&json!({ "used_bytes": 4096, "offset_bytes": 4096, "txg": 9, "is_good": true }));
        assert_eq!(shown, "used     4096 (4K)\noffset   0x1000\ntxg      9\nis_good  yes\n");
    }

    #[test]
    fn rows_are_tables_and_the_rest_are_sections() {
        let rows = json!({ "labels": [{ "index": 0, "state": "good" }, { "index": 10, "state": "bad" }] });
        assert_eq!(text(&rows), "labels\n  INDEX  STATE\n      0  good\n     10  bad\n");
        let sections = json!({ "labels": [{ "config": { "txg": 4 } }], "holes": [], "ids": [1, 2] });
        assert_eq!(text(&sections), "label 0\n  config\n    txg  4\nholes  none\nids    1 2\n");
    }

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
    fn names_cannot_drive_a_terminal() {
        assert_eq!(text(&json!({ "name": "a\u{1b}[31m" })), "name  a\\u{1b}[31m\n");
    }
}
