//! Numbers in JSON in the shape of OpenZFS 2.3: as text unless asked otherwise.

use serde_json::{Value, json};

/// The form of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json {
    /// Numbers as JSON's own (`--json-int`), not as text.
    pub is_integer: bool,
}

impl Json {
    /// A number.
    pub fn number(self, number: u64) -> Value {
        if self.is_integer { json!(number) } else { json!(number.to_string()) }
    }

    /// A number that is known as text.
    pub fn text(self, digits: &str) -> Value {
        match digits.parse::<u64>() {
            Ok(number) if self.is_integer => json!(number),
            _ => json!(digits),
        }
    }
}
