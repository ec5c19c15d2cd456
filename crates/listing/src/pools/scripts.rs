//! Columns that scripts add to `zpool status` and `zpool iostat` (`-c`).
//!
//! A script runs for each device and prints lines `column=value`, or one line without a column, which ends what is taken of it. All devices have
//! the same columns: those that any of them told, in the order in which they came.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

/// The words of scripts about devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptColumns {
    columns: Vec<String>,
    /// By pool and path.
    told: BTreeMap<(String, String), Told>,
}

/// Their words about one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    values: BTreeMap<String, String>,
    /// Values without a column.
    rest: Vec<String>,
}

impl ScriptColumns {
    /// Takes the output of one script about a device of a pool; none of it, if the script failed, has its place in the table too.
    pub fn add(&mut self, pool: &str, path: &str, output: &str) {
        let told = self.told.entry((pool.to_owned(), path.to_owned())).or_default();
        for line in output.lines() {
            let Some((column, value)) = line.split_once('=') else {
                told.rest.push(line.to_owned());
                return;
            };
            if !self.columns.iter().any(|known| known == column) {
                self.columns.push(column.to_owned());
            }
            told.values.entry(column.to_owned()).or_insert_with(|| value.to_owned());
        }
    }

    /// For another process.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let told = self.told.iter().map(|((pool, path), told)| json!([pool, path, told.values, told.rest]));
        json!([self.columns, told.collect::<Vec<_>>()])
    }

    /// From another process; nothing of what is no such form.
    #[must_use]
    pub fn from_json(value: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let texts = |value: &Value| -> Option<Vec<String>> { value.as_array()?.iter().map(text).collect() };
        let one = |value: &Value| {
            let values = value.get(2)?.as_object()?.iter().map(|(name, value)| Some((name.clone(), text(value)?)));
            let told = Told { values: values.collect::<Option<_>>()?, rest: texts(value.get(3)?)? };
            Some(((text(value.get(0)?)?, text(value.get(1)?)?), told))
        };
        let told = value.get(1)?.as_array()?.iter().map(one).collect::<Option<_>>()?;
        Some(Self { columns: texts(value.get(0)?)?, told })
    }

    /// The width of a column: that of its name, or of its widest value.
    fn width(&self, column: &str) -> usize {
        let values = self.told.values().filter_map(|told| told.values.get(column));
        values.map(|value| value.chars().count()).chain([column.chars().count()]).max().unwrap_or(0)
    }

    /// The names of the columns, or dashes below them.
    pub(super) fn heading(&self, is_of_dashes: bool) -> String {
        let columns = self.columns.iter().map(|column| match (self.width(column), is_of_dashes) {
            (width, true) => format!("  {}", "-".repeat(width)),
            (width, false) => format!("  {column:>width$}"),
        });
        columns.collect()
    }

    /// The end of a device's row.
    pub(super) fn cells(&self, pool: &str, path: &str) -> String {
        let mut text = "  ".to_owned();
        let Some(told) = self.told.get(&(pool.to_owned(), path.to_owned())) else { return text };
        for (index, column) in self.columns.iter().enumerate() {
            let value = told.values.get(column).map(String::as_str).filter(|value| !value.trim().is_empty());
            let between = if index == 0 { "" } else { "  " };
            let _ = write!(text, "{between}{:>width$}", value.unwrap_or("-"), width = self.width(column));
        }
        for value in &told.rest {
            text.extend([if self.columns.is_empty() { "" } else { "  " }, value]);
        }
        text
    }

    /// Appends the columns to a device's object in JSON.
    pub(super) fn json(&self, pool: &str, path: &str, object: &mut Map<String, Value>) {
        let Some(told) = self.told.get(&(pool.to_owned(), path.to_owned())) else { return };
        for column in &self.columns {
            let value = told.values.get(column).map(String::as_str).filter(|value| !value.trim().is_empty());
            object.insert(column.clone(), json!(value.unwrap_or("-")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_the_columns_that_any_of_them_told() {
        let mut scripts = ScriptColumns::default();
        scripts.add("t", "/a", "size=4T\nmodel=x\nsize=9\n");
        scripts.add("t", "/b", "temp=30\nsize=100T\nlast words\nignored=1\n");
        scripts.add("u", "/a", "");
        assert_eq!(scripts.heading(false), "  size  model  temp");
        assert_eq!(scripts.heading(true), "  ----  -----  ----");
        assert_eq!(scripts.cells("t", "/a"), "    4T      x     -");
        assert_eq!(scripts.cells("t", "/b"), "  100T      -    30  last words");
        assert_eq!(
            (scripts.cells("u", "/a").as_str(), scripts.cells("t", "/c").as_str()),
            ("     -      -     -", "  ")
        );
        let mut object = Map::new();
        scripts.json("t", "/b", &mut object);
        assert_eq!(Value::Object(object), json!({"size": "100T", "model": "-", "temp": "30"}));
        assert_eq!(ScriptColumns::from_json(&scripts.to_json()).as_ref(), Some(&scripts));
        assert_eq!(ScriptColumns::from_json(&json!([1])), None);
    }
}
