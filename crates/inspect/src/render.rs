//! A report as a person reads it.
//!
//! The text is a rendering of the same tree as the JSON. Names carry the units, and the text follows them:
//!
//! | name ends in | text |
//! |---|---|
//! | `_bytes` | the number, and the same with a unit |
//! | `offset_bytes` | hexadecimal |
//! | `_s` | the number, and the time where it is one |
//!
//! An array of plain objects is a table, an array of others a section each.

use std::fmt::Write as _;

use cenote_props::number::nicebytes;
use cenote_props::{Align, Table};
use serde_json::{Map, Value};

use crate::{Report, TimeText};

/// Columns of indentation a level.
const INDENT: usize = 2;
/// Characters of an array of plain values that are set on one line.
const LINE_MAX: usize = 100;
/// Names that are padded to stand in a column are this long at most.
const NAME_MAX: usize = 40;

impl Report {
    /// The document as a person reads it. Problems are not in it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        render_map(&mut text, self.document(), 0, self.time);
        text
    }
}

fn is_plain(value: &Value) -> bool {
    !matches!(value, Value::Array(_) | Value::Object(_))
}

fn is_row(value: &Value) -> bool {
    value.as_object().is_some_and(|map| map.values().all(is_plain))
}

fn render_map(text: &mut String, map: &Map<String, Value>, depth: usize, time: TimeText) {
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
                render_map(text, map, depth + 1, time);
            }
            Value::Array(items) if items.is_empty() => line(text, &pad, &shown, width, "none"),
            Value::Array(items) if items.iter().all(is_plain) => {
                let cells: Vec<String> = items.iter().map(|item| cell(name, item, time)).collect();
                let joined = cells.join(" ");
                let is_short = joined.len() <= LINE_MAX
                    && !items.iter().any(|item| item.is_string() && cell(name, item, time).contains(' '));
                if is_short {
                    line(text, &pad, &shown, width, &joined);
                } else {
                    let _ = writeln!(text, "{pad}{shown}");
                    wrap(text, &cells, (depth + 1) * INDENT);
                }
            }
            Value::Array(items) if items.iter().all(is_row) => {
                let _ = writeln!(text, "{pad}{shown}");
                table(text, items, (depth + 1) * INDENT, time);
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let _ = writeln!(text, "{pad}{} {index}", singular(&shown));
                    match item {
                        Value::Object(map) => render_map(text, map, depth + 1, time),
                        other => line(text, &pad, "", 0, &field("", other, time)),
                    }
                }
            }
            Value::String(value) if value.contains('\n') => {
                let _ = writeln!(text, "{pad}{shown}");
                for part in value.lines() {
                    let _ = writeln!(text, "{pad}  {part}");
                }
            }
            plain => line(text, &pad, &shown, width, &field(name, plain, time)),
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

fn table(text: &mut String, items: &[Value], indent: usize, time: TimeText) {
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
        set.row(
            names.iter().map(|name| row.get(*name).map_or_else(|| "-".to_owned(), |value| cell(name, value, time))),
        );
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
fn field(name: &str, value: &Value, time: TimeText) -> String {
    let plain = if name.ends_with("timestamp_s") { value.to_string() } else { cell(name, value, time) };
    match value.as_u64() {
        Some(bytes) if name.ends_with("_bytes") && !name.ends_with("offset_bytes") && bytes >= 1024 => {
            format!("{plain} ({})", nicebytes(bytes))
        }
        Some(seconds) if name.ends_with("_s") && seconds > 0 => {
            format!("{plain} ({})", time(seconds, "%Y-%m-%d %H:%M:%S %z"))
        }
        _ => plain,
    }
}

/// A value in a row or a list.
fn cell(name: &str, value: &Value, time: TimeText) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => printable(text),
        Value::Number(number) if name.ends_with("offset_bytes") => {
            number.as_u64().map_or_else(|| number.to_string(), |offset| format!("{offset:#x}"))
        }
        Value::Number(number) if name.ends_with("timestamp_s") => {
            number.as_u64().map_or_else(|| number.to_string(), |seconds| time(seconds, "%Y-%m-%d %H:%M:%S"))
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
        render_map(&mut text, value.as_object().unwrap(), 0, |seconds, _| seconds.to_string());
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
    fn names_cannot_drive_a_terminal() {
        assert_eq!(text(&json!({ "name": "a\u{1b}[31m" })), "name  a\\u{1b}[31m\n");
    }
}
