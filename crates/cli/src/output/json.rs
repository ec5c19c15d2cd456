//! JSON in the shape of OpenZFS 2.3: objects in the order of insertion, numbers as text unless asked otherwise.

use anyhow::Result;
use cenote_listing::{Cell, Json, Source};
use serde_json::{Map, Value, json};

use crate::outcome::usage;

/// How numbers stand in JSON by the flags `-j` and `--json-int`; the second makes no sense without the first.
pub(crate) fn json_of(is_json: bool, is_integer: bool) -> Result<Json> {
    if is_integer && !is_json {
        return Err(usage("'--json-int' only works with '-j' option"));
    }
    Ok(Json { is_integer })
}

/// The head of every document: which command, and the version of its output.
pub(crate) fn output_version(command: &str) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("output_version".into(), json!({ "command": command, "vers_major": 0, "vers_minor": 1 }));
    map
}

/// A property's value and source.
pub(crate) fn property(json: Json, cell: &Cell) -> Value {
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
