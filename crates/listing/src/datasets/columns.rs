//! The properties that a command shows.

use crate::error::Result;
use cenote_props::{Property, dataset as table};
use cenote_taskq::boxed;

use super::{Cell, Item, Source};

/// A property to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// A property of the table.
    Native(&'static Property),
    /// A user property.
    User(String),
    /// `userused@alice` and similar.
    Space(String),
    /// `written@snapshot` or `written#bookmark`.
    Written(String),
}

impl Column {
    /// The column with this name, if there is such a property.
    pub fn find(name: &str) -> Option<Self> {
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
    pub fn name(&self) -> &str {
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

    /// True if its column is right-aligned.
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

    /// True if that is the width of its column, for all values.
    pub fn is_fixed(&self, is_exact: bool) -> bool {
        matches!(self, Self::Native(property) if !property.is_flexible && !is_exact)
    }

    /// Its value on `item`; `None` if the item has none.
    #[boxed]
    pub async fn cell(&self, item: &Item, is_exact: bool) -> Result<Option<Cell>> {
        match self {
            Self::Native(property) => item.cell(property, is_exact).await,
            Self::User(name) => item.user_cell(name).await,
            Self::Space(name) => item.space_cell(name, is_exact).await,
            Self::Written(name) => item.written_cell(name, is_exact).await,
        }
    }

    /// The text for a missing value.
    pub fn absent() -> Cell {
        Cell { text: "-".into(), source: Source::None, received: None }
    }
}
