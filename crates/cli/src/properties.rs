//! What `zfs get` and `zpool get` share: the table of names, properties, values and sources.

use anyhow::Result;
use cenote_listing::Cell;

use crate::outcome::usage;

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Name,
    Property,
    Value,
    Received,
    Source,
}

impl Field {
    /// What `zfs get` has.
    pub(crate) const OF_DATASETS: [(&str, Self); 5] = [
        ("name", Self::Name),
        ("property", Self::Property),
        ("value", Self::Value),
        ("received", Self::Received),
        ("source", Self::Source),
    ];
    /// What `zpool get` has.
    pub(crate) const OF_POOLS: [(&str, Self); 4] =
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

/// The argument of `-o`.
pub(crate) fn parse_fields(list: &str, known: &[(&str, Field)]) -> Result<Vec<Field>> {
    let mut fields = Vec::new();
    for name in list.split(',') {
        if name == "all" {
            if !fields.is_empty() {
                return Err(usage("\"all\" conflicts with specific fields given to -o option"));
            }
            fields.extend(known.iter().map(|(_, field)| *field));
            continue;
        }
        if fields.len() == known.len() {
            return Err(usage("too many fields given to -o option"));
        }
        match known.iter().find(|(word, _)| *word == name) {
            Some((_, field)) => fields.push(*field),
            None => return Err(usage(format!("invalid column name '{name}'"))),
        }
    }
    Ok(fields)
}

/// The argument of `-s`: words for sources.
pub(crate) fn check_sources(list: &str) -> Result<Vec<&str>> {
    const SOURCES: [&str; 6] = ["local", "default", "inherited", "received", "temporary", "none"];
    let words: Vec<&str> = list.split(',').collect();
    match words.iter().find(|word| !SOURCES.contains(word)) {
        Some(word) => Err(usage(format!("invalid source '{word}'"))),
        None => Ok(words),
    }
}

/// The table. Columns are as wide as all values would need, also of rows that a selection by source leaves out.
pub(crate) struct GetTable {
    fields: Vec<Field>,
    widths: [usize; 5],
    rows: Vec<[String; 5]>,
}

impl GetTable {
    pub(crate) fn new(fields: Vec<Field>) -> Self {
        let all = [Field::Name, Field::Property, Field::Value, Field::Received, Field::Source];
        Self { fields, widths: all.map(|field| field.heading().len()), rows: Vec::new() }
    }

    fn widen(&mut self, field: Field, width: usize) {
        let own = &mut self.widths[field as usize];
        *own = width.max(*own);
    }

    /// A name that may be shown. Sources are as wide as the longest name that could be inherited from.
    pub(crate) fn name(&mut self, name: &str) {
        let width = name.chars().count();
        if width > self.widths[Field::Name as usize] {
            self.widths[Field::Name as usize] = width;
            self.widths[Field::Source as usize] = width + "inherited from".len();
        }
    }

    /// A property that may be shown, and the least width of its values.
    pub(crate) fn property(&mut self, name: &str, width: usize) {
        self.widen(Field::Property, name.chars().count());
        self.widen(Field::Value, width);
    }

    /// A value that may be shown.
    pub(crate) fn value(&mut self, cell: &Cell) {
        self.widen(Field::Value, cell.text.chars().count());
        if let Some(received) = &cell.received {
            self.widen(Field::Received, received.chars().count());
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, name: &str, property: &str, cell: Cell) {
        let source = cell.source.text();
        let received = cell.received.unwrap_or_else(|| "-".into());
        self.rows.push([name.to_owned(), property.to_owned(), cell.text, received, source]);
    }

    /// The text: tabs and no headings for scripts. No headings over nothing.
    pub(crate) fn text(&self, is_scripted: bool) -> String {
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
