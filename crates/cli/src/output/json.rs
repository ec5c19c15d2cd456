//! JSON in the shape of OpenZFS 2.3: objects in the order of insertion, numbers as text unless asked otherwise.

use serde_json::{Map, Value, json};

/// How numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Json {
    /// Numbers as JSON's own (`--json-int`), not as text.
    pub(crate) is_integer: bool,
}

impl Json {
    /// A number.
    pub(crate) fn number(self, number: u64) -> Value {
        if self.is_integer { json!(number) } else { json!(number.to_string()) }
    }
}

/// The head of every document: which command, and the version of its output.
pub(crate) fn output_version(command: &str) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("output_version".into(), json!({ "command": command, "vers_major": 0, "vers_minor": 1 }));
    map
}
