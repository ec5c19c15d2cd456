//! Lists of properties and types as `-o`, `-t` and the first argument of `zfs get` have them.

use anyhow::Result;
use cenote_props::{Property, Types, dataset as table};

use super::{Cell, Item, Source};
use crate::outcome::usage;

/// What `space` stands for.
const SPACE: [&str; 7] =
    ["name", "avail", "used", "usedbysnapshots", "usedbydataset", "usedbyrefreservation", "usedbychildren"];

/// A property that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// One of the table.
    Native(&'static Property),
    /// A user property.
    User(String),
    /// `userused@alice` and the like.
    Space(String),
    /// `written@snapshot` or `written#bookmark`.
    Written(String),
}

impl Column {
    /// From a name. `None` if nothing has it.
    pub(crate) fn find(name: &str) -> Option<Self> {
        if let Some(property) = table::find(name) {
            return Some(Self::Native(property));
        }
        if table::SPACE_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            return Some(Self::Space(name.to_owned()));
        }
        if name.starts_with("written@") || name.starts_with("written#") {
            return Some(Self::Written(name.to_owned()));
        }
        cenote_props::is_user_property(name).then(|| Self::User(name.to_owned()))
    }

    /// The property's name.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Native(property) => property.name,
            Self::User(name) | Self::Space(name) | Self::Written(name) => name,
        }
    }

    /// The heading of its column.
    pub(crate) fn heading(&self) -> String {
        match self {
            Self::Native(property) => property.column.to_owned(),
            Self::User(name) | Self::Space(name) | Self::Written(name) => name.to_ascii_uppercase(),
        }
    }

    /// Whether its column stands to the right.
    pub(crate) fn is_right_aligned(&self) -> bool {
        match self {
            Self::Native(property) => property.is_right_aligned(),
            Self::User(_) => false,
            Self::Space(_) | Self::Written(_) => true,
        }
    }

    /// The least width of its column.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::Native(property) => property.column_width(),
            Self::User(name) | Self::Space(name) | Self::Written(name) => name.len(),
        }
    }

    /// Whether its column's width is that, whatever its values.
    pub(crate) fn is_fixed(&self, is_exact: bool) -> bool {
        matches!(self, Self::Native(property) if !property.is_flexible && !is_exact)
    }

    /// Its value on `item`; `None` where the item has none.
    pub(crate) async fn cell(&self, item: &Item, is_exact: bool) -> Result<Option<Cell>> {
        match self {
            Self::Native(property) => item.cell(property, is_exact).await,
            Self::User(name) => item.user_cell(name).await,
            Self::Space(name) => item.space_cell(name, is_exact).await,
            Self::Written(name) => item.written_cell(name, is_exact).await,
        }
    }

    /// What is shown where there is no value.
    pub(crate) fn absent() -> Cell {
        Cell { text: "-".into(), source: Source::None, received: None }
    }
}

/// A list of properties; `None` for `all`.
pub(crate) fn parse_columns(list: &str) -> Result<Option<Vec<Column>>> {
    if list == "all" {
        return Ok(None);
    }
    if list.is_empty() {
        return Err(usage("bad property list: no properties specified"));
    }
    let mut columns = Vec::new();
    for name in list.split(',') {
        let names = if name == "space" { &SPACE[..] } else { &[name] };
        for name in names {
            let column = Column::find(name);
            columns.push(column.ok_or_else(|| usage(format!("bad property list: invalid property '{name}'")))?);
        }
    }
    Ok(Some(columns))
}

/// A list of types, as `-t` has it.
pub(crate) fn parse_types(list: &str) -> Result<Types> {
    let mut types = Types::empty();
    for name in list.split(',') {
        types |= match name {
            "filesystem" | "fs" => Types::FILESYSTEM,
            "volume" | "vol" => Types::VOLUME,
            "snapshot" | "snap" => Types::SNAPSHOT,
            "bookmark" => Types::BOOKMARK,
            "all" => Types::DATASET | Types::BOOKMARK,
            _ => return Err(usage(format!("invalid type '{name}'"))),
        };
    }
    Ok(types)
}
