//! JSON in the shape of OpenZFS 2.3: objects in the order of insertion, numbers as text unless asked otherwise.

use cenote_props::WrongUse;
use serde_json::{Map, Value, json};

use crate::{Cell, Source};

/// The form of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json {
    /// Numbers as JSON numbers (`--json-int`), not as text.
    pub is_integer: bool,
}

impl Json {
    /// A number.
    pub(crate) fn number(self, number: u64) -> Value {
        if self.is_integer { json!(number) } else { json!(number.to_string()) }
    }

    /// A number given as text.
    pub fn text(self, digits: &str) -> Value {
        match digits.parse::<u64>() {
            Ok(number) if self.is_integer => json!(number),
            _ => json!(digits),
        }
    }
}

/// The form of numbers in JSON by the flags `-j` and `--json-int`.
///
/// # Errors
/// The second makes no sense without the first.
pub fn json_of(is_json: bool, is_integer: bool) -> Result<Json, WrongUse> {
    if is_integer && !is_json {
        return Err(WrongUse::new("'--json-int' only works with '-j' option"));
    }
    Ok(Json { is_integer })
}

/// A document on one line. Its beginning names the command, and the version of its output.
pub fn document<'a>(command: &str, entries: impl IntoIterator<Item = (&'a str, Value)>) -> String {
    let mut map = Map::new();
    map.insert("output_version".into(), json!({ "command": command, "vers_major": 0, "vers_minor": 1 }));
    map.extend(entries.into_iter().map(|(name, value)| (name.to_owned(), value)));
    format!("{}\n", Value::Object(map))
}

/// A property's value and source.
pub fn property(json: Json, cell: &Cell) -> Value {
    let is_number = !cell.text.is_empty() && cell.text.bytes().all(|byte| byte.is_ascii_digit());
    let value = match cell.text.parse::<u64>() {
        Ok(number) if is_number => json.number(number),
        _ => json!(cell.text),
    };
    let data = match &cell.source {
        Source::Inherited(from) => from,
        Source::Received => cell.received.as_deref().unwrap_or("-"),
        _ => "-",
    };
    let kind = cell.source.word().to_ascii_uppercase();
    json!({ "value": value, "source": { "type": kind, "data": data } })
}
