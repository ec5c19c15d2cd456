//! The table of `zfs get` and `zpool get`: names, properties, values and sources.

use cenote_props::WrongUse;
use serde_json::{Map, Value};

use crate::{Cell, Json, document, property};

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The name of the dataset or pool.
    Name,
    /// The property.
    Property,
    /// Its value.
    Value,
    /// The received value.
    Received,
    /// The source of the value.
    Source,
}

impl Field {
    /// The columns of `zfs get`.
    pub const OF_DATASETS: [(&str, Self); 5] = [
        ("name", Self::Name),
        ("property", Self::Property),
        ("value", Self::Value),
        ("received", Self::Received),
        ("source", Self::Source),
    ];
    /// The columns of `zpool get`.
    pub const OF_POOLS: [(&str, Self); 4] =
        [("name", Self::Name), ("property", Self::Property), ("value", Self::Value), ("source", Self::Source)];

    const fn heading(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::Property => "PROPERTY",
            Self::Value => "VALUE",
            Self::Received => "RECEIVED",
            Self::Source => "SOURCE",
        }
    }
}

/// Parses the argument of `-o`: names of these columns.
///
/// # Errors
/// There is another word, or `all` together with others.
pub fn parse_fields(list: &str, known: &[(&str, Field)]) -> Result<Vec<Field>, WrongUse> {
    let mut fields = Vec::new();
    for name in list.split(',') {
        if name == "all" {
            if !fields.is_empty() {
                return Err(WrongUse::new("\"all\" conflicts with specific fields given to -o option"));
            }
            fields.extend(known.iter().map(|(_, field)| *field));
            continue;
        }
        if fields.len() == known.len() {
            return Err(WrongUse::new("too many fields given to -o option"));
        }
        match known.iter().find(|(word, _)| *word == name) {
            Some((_, field)) => fields.push(*field),
            None => return Err(WrongUse::new(format!("invalid column name '{name}'"))),
        }
    }
    Ok(fields)
}

/// Parses the argument of `-s`: words for sources.
///
/// # Errors
/// There is another word.
pub fn check_sources(list: &str) -> Result<Vec<&str>, WrongUse> {
    const SOURCES: [&str; 6] = ["local", "default", "inherited", "received", "temporary", "none"];
    let words: Vec<&str> = list.split(',').collect();
    match words.iter().find(|word| !SOURCES.contains(word)) {
        Some(word) => Err(WrongUse::new(format!("invalid source '{word}'"))),
        None => Ok(words),
    }
}

/// A value to show, or only to measure for its column.
pub(crate) struct Got<'a> {
    /// The property.
    pub property: &'a str,
    /// The value.
    pub cell: Cell,
    /// Its column has a fixed width.
    pub is_fixed: bool,
    /// It is shown.
    pub is_chosen: bool,
}

/// Properties of datasets or pools, as `get` shows them: a table, or JSON.
pub(crate) struct Gotten {
    table: GetTable,
    objects: Map<String, Value>,
    json: Option<Json>,
}

impl Gotten {
    /// An empty table. The caller gives all names, and all properties with the least width of their values, in advance.
    pub(crate) fn new<'a>(
        fields: Vec<Field>,
        json: Option<Json>,
        names: impl IntoIterator<Item = &'a str>,
        properties: impl IntoIterator<Item = (&'a str, usize)>,
    ) -> Self {
        let mut table = GetTable::new(fields);
        names.into_iter().for_each(|name| table.name(name));
        properties.into_iter().for_each(|(name, width)| table.property(name, width));
        Self { table, objects: Map::new(), json }
    }

    /// Adds the values of one dataset or pool; `key` and `head` are for its object in JSON.
    pub(crate) fn add<'a>(
        &mut self,
        name: &str,
        key: &str,
        head: impl FnOnce(Json) -> Map<String, Value>,
        values: Vec<Got<'a>>,
    ) {
        let mut properties = Map::new();
        for Got { property: of, cell, is_fixed, is_chosen } in values {
            if !is_fixed {
                self.table.value(&cell);
            }
            match self.json {
                _ if !is_chosen => {}
                Some(json) => drop(properties.insert(of.into(), property(json, &cell))),
                None => self.table.row(name, of, cell),
            }
        }
        if let Some(json) = self.json.filter(|_| !properties.is_empty()) {
            let mut object = head(json);
            object.insert("properties".into(), Value::Object(properties));
            self.objects.insert(key.to_owned(), Value::Object(object));
        }
    }

    /// The text: the JSON document of a command with a `group` of objects, or the table.
    pub(crate) fn text(self, command: &str, group: &str, is_scripted: bool) -> String {
        self.text_of(command, group, is_scripted, None)
    }

    /// The same, with an entry before the objects in JSON.
    pub(crate) fn text_of<'b>(
        self,
        command: &str,
        group: &'b str,
        is_scripted: bool,
        before: Option<(&'b str, Value)>,
    ) -> String {
        match self.json {
            Some(_) => document(command, before.into_iter().chain([(group, Value::Object(self.objects))])),
            None => self.table.text(is_scripted),
        }
    }
}

/// The table. Columns are as wide as all values need, including rows that a selection by source leaves out.
struct GetTable {
    fields: Vec<Field>,
    widths: [usize; 5],
    rows: Vec<[String; 5]>,
}

impl GetTable {
    fn new(fields: Vec<Field>) -> Self {
        let all = [Field::Name, Field::Property, Field::Value, Field::Received, Field::Source];
        Self { fields, widths: all.map(|field| field.heading().len()), rows: Vec::new() }
    }

    fn widen(&mut self, field: Field, width: usize) {
        let own = &mut self.widths[field as usize];
        *own = width.max(*own);
    }

    /// Adds a name that may be shown. The column of sources has room for the longest name to inherit from.
    fn name(&mut self, name: &str) {
        let width = name.chars().count();
        if width > self.widths[Field::Name as usize] {
            self.widths[Field::Name as usize] = width;
            self.widths[Field::Source as usize] = width + "inherited from".len();
        }
    }

    /// Adds a property that may be shown, and the least width of its values.
    fn property(&mut self, name: &str, width: usize) {
        self.widen(Field::Property, name.chars().count());
        self.widen(Field::Value, width);
    }

    /// Adds a value that may be shown.
    fn value(&mut self, cell: &Cell) {
        self.widen(Field::Value, cell.text.chars().count());
        if let Some(received) = &cell.received {
            self.widen(Field::Received, received.chars().count());
        }
    }

    /// Adds a row.
    fn row(&mut self, name: &str, property: &str, cell: Cell) {
        let source = cell.source.text();
        let received = cell.received.unwrap_or_else(|| "-".into());
        self.rows.push([name.to_owned(), property.to_owned(), cell.text, received, source]);
    }

    /// The text. Scripts get tabs and no headings. An empty table has no headings.
    fn text(&self, is_scripted: bool) -> String {
        let mut text = String::new();
        let headings = [Field::Name, Field::Property, Field::Value, Field::Received, Field::Source]
            .map(|field| field.heading().to_owned());
        let headings = (!is_scripted && !self.rows.is_empty()).then_some(&headings);
        for row in headings.into_iter().chain(&self.rows) {
            for (index, field) in self.fields.iter().enumerate() {
                let cell = &row[*field as usize];
                text.push_str(cell);
                if index + 1 == self.fields.len() {
                    text.push('\n');
                } else if is_scripted {
                    text.push('\t');
                } else {
                    let width = self.widths[*field as usize].saturating_sub(cell.chars().count());
                    text.push_str(&" ".repeat(width + 2));
                }
            }
        }
        text
    }
}
