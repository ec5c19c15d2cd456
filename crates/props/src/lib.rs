//! The properties of datasets and pools: names, types, defaults, the words of index properties, and inheritance.
//!
//! # Theory
//!
//! **Need.** Code that shows a property needs its words and its default; code that sets one needs its valid values and whether it can be
//! set at all. Both use one table of facts that are the same for every pool.
//!
//! **On disk** a property is a ZAP entry: its name, and a number or text. An index is stored as a number that stands for
//! a word; the numbers are the format's.
//!
//! **Invariants.**
//! 1. The order of a table is the order in which `zfs get all` shows it.
//! 2. An index table may have several words for a number: the first is shown, the others are accepted as input.
//! 3. The tables are those of OpenZFS 2.3.
//!
//! **Rejected.** An enum of properties: it is extended at each release, and what is needed is looked up by name anyway.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod dataset;
pub mod effect;
mod kinds;
pub mod number;
pub mod pool;
mod table;
mod text;
mod words;
mod wronguse;

pub use table::{Align, Table};
pub use text::{add_cause, chain, lines, one_line};
pub use wronguse::WrongUse;

bitflags::bitflags! {
    /// Types of objects that a property may belong to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Types: u8 {
        /// File systems.
        const FILESYSTEM = 1 << 0;
        /// Volumes.
        const VOLUME = 1 << 1;
        /// Snapshots.
        const SNAPSHOT = 1 << 2;
        /// Bookmarks.
        const BOOKMARK = 1 << 3;
        /// Pools.
        const POOL = 1 << 4;
        /// Datasets with contents: file systems, volumes and snapshots.
        const DATASET = Self::FILESYSTEM.bits() | Self::VOLUME.bits() | Self::SNAPSHOT.bits();
    }
}

/// The type of a property's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number, with its default.
    Number(u64),
    /// One of some words, each with the number that stands for it on disk; and the default's number.
    Index(&'static [(&'static str, u64)], u64),
    /// Text, with its default if there is one.
    Text(Option<&'static str>),
}

/// Whether a property may be set, and whether it is inherited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// Cannot be set.
    ReadOnly,
    /// Is set, or has its default.
    Default,
    /// Is set, or inherited, or has its default.
    Inherit,
    /// Is set at creation, never after.
    Once,
    /// As `Once`; its default is not shown as a value that was chosen.
    OnceDefault,
}

/// A property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property {
    /// Its name.
    pub name: &'static str,
    /// The heading of its column.
    pub column: &'static str,
    /// The type of its value.
    pub kind: Kind,
    /// Whether it may be set, and whether it is inherited.
    pub attribute: Attribute,
    /// The types of objects that have it.
    pub types: Types,
    /// Whether `all` includes it.
    pub is_visible: bool,
    /// Whether its column's width follows its values.
    pub is_flexible: bool,
}

impl Property {
    const fn new(name: &'static str, column: &'static str, kind: Kind, attribute: Attribute, types: Types) -> Self {
        let is_flexible = matches!(kind, Kind::Text(_));
        Self { name, column, kind, attribute, types, is_visible: true, is_flexible }
    }

    const fn hidden(mut self) -> Self {
        self.is_visible = false;
        self
    }

    const fn flexible(mut self) -> Self {
        self.is_flexible = true;
        self
    }

    /// Whether datasets below a dataset have its value.
    #[must_use]
    pub const fn is_inheritable(&self) -> bool {
        matches!(self.attribute, Attribute::Inherit)
    }

    /// Whether it cannot be set on what exists.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        matches!(self.attribute, Attribute::ReadOnly | Attribute::Once | Attribute::OnceDefault)
    }

    /// Whether its column stands to the right.
    #[must_use]
    pub fn is_right_aligned(&self) -> bool {
        matches!(self.kind, Kind::Number(_)) && !self.is_flexible
    }

    /// The least width of its column: its heading, and where the width does not follow the values, any of them.
    #[must_use]
    pub fn column_width(&self) -> usize {
        const NUMBER_WIDTH: usize = 5;
        let values = match self.kind {
            Kind::Number(_) => NUMBER_WIDTH,
            Kind::Index(words, _) => words.iter().map(|(word, _)| word.len()).max().unwrap_or(0),
            Kind::Text(_) => 0,
        };
        values.max(self.column.len())
    }

    /// The word for a number; `None` if there is none, or the property is no index.
    #[must_use]
    pub fn word(&self, number: u64) -> Option<&'static str> {
        match self.kind {
            Kind::Index(words, _) => words.iter().find(|(_, value)| *value == number).map(|(word, _)| *word),
            _ => None,
        }
    }

    /// The number for a word.
    #[must_use]
    pub fn number(&self, word: &str) -> Option<u64> {
        match self.kind {
            Kind::Index(words, _) => words.iter().find(|(name, _)| *name == word).map(|(_, number)| *number),
            _ => None,
        }
    }

    /// The default as a number.
    #[must_use]
    pub const fn default_number(&self) -> Option<u64> {
        match self.kind {
            Kind::Number(number) | Kind::Index(_, number) => Some(number),
            Kind::Text(_) => None,
        }
    }
}

/// The property of a table with this name, or whose column is called so (in small letters).
#[must_use]
pub fn find(table: &'static [Property], name: &str) -> Option<&'static Property> {
    table.iter().find(|property| property.name == name).or_else(|| {
        let is_lower = !name.bytes().any(|byte| byte.is_ascii_uppercase());
        table.iter().find(|property| is_lower && property.column.eq_ignore_ascii_case(name))
    })
}

/// Whether a name can be that of a user property: it has a colon and only letters that may be there.
#[must_use]
pub fn is_user_property(name: &str) -> bool {
    name.contains(':')
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._:".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_columns_are_unique_and_words_lead_back() {
        for table in [dataset::PROPERTIES, pool::PROPERTIES] {
            for (index, property) in table.iter().enumerate() {
                assert!(table[..index].iter().all(|other| other.name != property.name), "{}", property.name);
                if let Kind::Index(words, default) = property.kind {
                    assert!(property.word(default).is_some() || property.name == "version", "{}", property.name);
                    for (word, number) in words {
                        assert_eq!(property.number(word), Some(*number));
                    }
                }
            }
        }
    }

    #[test]
    fn properties_are_found_by_name_and_by_column() {
        let find = |name| find(dataset::PROPERTIES, name).map(|property| property.name);
        assert_eq!(find("available"), Some("available"));
        assert_eq!(find("avail"), Some("available"));
        assert_eq!(find("refer"), Some("referenced"));
        assert_eq!(find("AVAIL"), None);
        assert_eq!(find("nonsense"), None);
    }

    #[test]
    fn user_properties_have_a_colon() {
        assert!(is_user_property("org.example:tag"));
        assert!(!is_user_property("tag"));
        for bad in ["Org:tag", "org:a b", "org:a+b", "org:\u{e4}"] {
            assert!(!is_user_property(bad), "{bad}");
        }
    }
}
