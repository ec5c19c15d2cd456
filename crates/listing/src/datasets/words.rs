//! Parses words of a command line about datasets: properties and types.

use cenote_props::{Types, WrongUse};

use super::{Column, Item};
use crate::error::Result;

/// The columns of `space`.
const SPACE: [&str; 7] =
    ["name", "avail", "used", "usedbysnapshots", "usedbydataset", "usedbyrefreservation", "usedbychildren"];

/// Parses a list of properties; `None` for `all`.
///
/// # Errors
/// It is empty, or contains a word that is not a property.
pub fn parse_columns(list: &str) -> Result<Option<Vec<Column>>, WrongUse> {
    if list == "all" {
        return Ok(None);
    }
    if list.is_empty() {
        return Err(WrongUse::new("bad property list: no properties specified"));
    }
    let mut columns = Vec::new();
    for name in list.split(',') {
        let names = if name == "space" { &SPACE[..] } else { &[name] };
        for name in names {
            let column = Column::find(name);
            columns.push(column.ok_or_else(|| WrongUse::new(format!("bad property list: invalid property '{name}'")))?);
        }
    }
    Ok(Some(columns))
}

/// Parses a list of types, as for `-t`.
pub fn parse_types(list: &str) -> Result<Types, WrongUse> {
    let mut types = Types::empty();
    for name in list.split(',') {
        types |= match name {
            "filesystem" | "fs" => Types::FILESYSTEM,
            "volume" | "vol" => Types::VOLUME,
            "snapshot" | "snap" => Types::SNAPSHOT,
            "bookmark" => Types::BOOKMARK,
            "all" => Types::DATASET | Types::BOOKMARK,
            _ => return Err(WrongUse::new(format!("invalid type '{name}'"))),
        };
    }
    Ok(types)
}

/// The columns of `all` in a list of these items: the name, every property of the table that is not hidden, and their user properties.
pub(crate) async fn all_listed(items: &[Item]) -> Result<Vec<Column>> {
    let name = cenote_props::dataset::find("name").map(Column::Native);
    Ok(name.into_iter().chain(all_shown(items).await?).collect())
}

/// The columns of `all` for showing the properties of these items: as [`all_listed`], without the name.
pub(crate) async fn all_shown(items: &[Item]) -> Result<Vec<Column>> {
    let visible = cenote_props::dataset::PROPERTIES.iter().filter(|property| property.is_visible);
    let mut columns: Vec<Column> = visible.map(Column::Native).collect();
    // User properties are in the order of their first occurrence.
    for item in items {
        for name in item.user_properties().await? {
            let column = Column::User(name);
            if !columns.contains(&column) {
                columns.push(column);
            }
        }
    }
    Ok(columns)
}
