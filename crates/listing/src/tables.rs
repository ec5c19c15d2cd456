//! The tables of `zfs list`, `zfs get`, `zpool list` and `zpool get`, as text or JSON.
//!
//! A value that cannot be read leaves a gap, is reported, and makes the result incomplete ([`Listed::is_whole`]); the rest is shown.

use cenote_props::{Align, Table, chain};
use serde_json::{Map, Value, json};

use crate::gettable::{Field, Got, Gotten};
use crate::{
    Cell, Column, Facts, Item, Json, ListError, LostPool, Names, PoolColumn, Source, Values, all_columns, all_listed,
    all_shown, document, property,
};

/// The least width of names next to a tree.
const NAME_WIDTH_MIN: usize = 9;

/// The form of a table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Form {
    /// Tabs instead of columns, and no heading (`-H`).
    pub is_scripted: bool,
    /// Numbers are exact (`-p`).
    pub is_exact: bool,
    /// As JSON (`-j`).
    pub json: Option<Json>,
    /// The keys of pools in JSON are their guids.
    pub is_by_guid: bool,
}

/// A table, or a JSON document.
pub struct Listed {
    /// The text.
    pub text: String,
    /// All values could be read.
    pub is_whole: bool,
}

/// Reports values that cannot be read.
type Warn<'a> = &'a mut dyn FnMut(String);

fn table(columns: impl Iterator<Item = (String, bool, usize, bool)> + Clone) -> Table {
    let align = |is_right| if is_right { Align::Right } else { Align::Left };
    let mut table = Table::new(columns.clone().map(|(heading, is_right, ..)| (heading, align(is_right))));
    columns.enumerate().for_each(|(index, (.., width, is_fixed))| table.width(index, width, is_fixed));
    table
}

/// Rows of datasets (`zfs list`); with all columns if none are given.
pub async fn list_datasets(
    items: &[Item],
    columns: Option<Vec<Column>>,
    form: Form,
    warn: Warn<'_>,
) -> Result<Listed, ListError> {
    let columns = match columns {
        Some(columns) => columns,
        None => all_listed(items).await?,
    };
    let exact = form.is_exact;
    let mut table = table(
        columns
            .iter()
            .map(|column| (column.heading(), column.is_right_aligned(), column.width(), column.is_fixed(exact))),
    );
    let (mut datasets, mut is_whole) = (Map::new(), true);
    for item in items {
        let (mut row, mut properties) = (Vec::new(), Map::new());
        for column in &columns {
            let cell = column.cell(item, exact).await.unwrap_or_else(|error| {
                warn(format!("cannot read '{}' of '{}': {error}", column.name(), item.name));
                is_whole = false;
                None
            });
            let cell = cell.unwrap_or_else(Column::absent);
            if let Some(json) = form.json.filter(|_| column.name() != "name") {
                properties.insert(column.name().into(), property(json, &cell));
            }
            row.push(cell.text);
        }
        match form.json {
            Some(json) => {
                let mut object = item.json(json);
                object.insert("properties".into(), Value::Object(properties));
                datasets.insert(item.name.clone(), Value::Object(object));
            }
            None => table.row(row),
        }
    }
    let text = match form.json {
        Some(_) => document("zfs list", [("datasets", Value::Object(datasets))]),
        None if items.is_empty() => String::new(),
        None => table.text(form.is_scripted),
    };
    Ok(Listed { text, is_whole })
}

/// Properties of datasets, one per row (`zfs get`); all that each has if none are given. `sources`: only values with these sources.
pub async fn get_datasets(
    items: &[Item],
    asked: Option<Vec<Column>>,
    fields: Vec<Field>,
    sources: Option<&[&str]>,
    form: Form,
    warn: Warn<'_>,
) -> Result<Listed, ListError> {
    let is_all = asked.is_none();
    let columns = match asked {
        Some(columns) => columns,
        None => all_shown(items).await?,
    };
    let wants_received = fields.contains(&Field::Received);
    let names = items.iter().map(|item| item.name.as_str());
    let widths = columns.iter().map(|column| (column.name(), column.width()));
    let mut gotten = Gotten::new(fields, form.json, names, widths);
    let mut is_whole = true;
    for item in items {
        let mut values = Vec::new();
        for column in &columns {
            let cell = match dataset_cell(item, column, form.is_exact, wants_received).await {
                Ok(Some(cell)) => cell,
                Ok(None) if is_all => continue,
                Ok(None) => Column::absent(),
                Err(error) => {
                    warn(format!("cannot read '{}' of '{}': {}", column.name(), item.name, chain(&error)));
                    is_whole = false;
                    continue;
                }
            };
            let is_chosen = sources.is_none_or(|sources| sources.contains(&cell.source.word()));
            values.push(Got { property: column.name(), cell, is_fixed: column.is_fixed(form.is_exact), is_chosen });
        }
        gotten.add(&item.name, &item.name, |json| item.json(json), values);
    }
    Ok(Listed { text: gotten.text("zfs get", "datasets", form.is_scripted), is_whole })
}

async fn dataset_cell(
    item: &Item,
    column: &Column,
    is_exact: bool,
    wants_received: bool,
) -> Result<Option<Cell>, ListError> {
    let Some(mut cell) = column.cell(item, is_exact).await? else { return Ok(None) };
    if wants_received {
        cell.received = item.received(column.name(), is_exact).await?;
    }
    Ok(Some(cell))
}

/// Properties of pools, one per row (`zpool get`); all that they have if none are given.
///
/// # Errors
/// The properties of `all` cannot be determined, or the properties of a pool cannot be read at all.
pub async fn get_pools(
    views: &[Facts],
    asked: Option<Vec<PoolColumn>>,
    fields: Vec<Field>,
    form: Form,
    warn: Warn<'_>,
) -> Result<Listed, ListError> {
    let columns = match asked {
        Some(columns) => columns,
        None => all_columns(views).await?,
    };
    let names = views.iter().map(|view| view.pool.name());
    let widths = columns.iter().map(|column| (column.name(), column.width()));
    let mut gotten = Gotten::new(fields, form.json, names, widths);
    let mut is_whole = true;
    for view in views {
        let facts = Values::new(view).await?;
        let mut values = Vec::new();
        for column in &columns {
            let cell = match facts.cell(column, form.is_exact).await {
                Ok(Some(cell)) => cell,
                // A property that this pool does not have (such as another pool's feature) is left out.
                Ok(None) => continue,
                Err(error) => {
                    warn(format!("cannot read '{}' of '{}': {error}", column.name(), view.pool.name()));
                    is_whole = false;
                    Column::absent()
                }
            };
            let is_fixed = column.is_fixed(form.is_exact);
            values.push(Got { property: column.name(), cell, is_fixed, is_chosen: true });
        }
        gotten.add(view.pool.name(), &view.key(form.is_by_guid), |json| view.json(json, true), values);
    }
    Ok(Listed { text: gotten.text("zpool get", "pools", form.is_scripted), is_whole })
}

/// Rows of pools (`zpool list`), with the trees of their vdevs if `trees` gives the form of their names; with the name and all properties if no
/// columns are given. `stamp` is the time, for JSON.
///
/// # Errors
/// The columns of `all` cannot be determined, or the vdevs or properties of a pool cannot be read at all.
pub async fn list_pools(
    views: &[Facts],
    lost: &[LostPool],
    columns: Option<Vec<PoolColumn>>,
    trees: Option<Names>,
    form: Form,
    stamp: Option<&str>,
    warn: Warn<'_>,
) -> Result<Listed, ListError> {
    let columns = match columns {
        Some(columns) => columns,
        None => {
            let name = cenote_props::pool::find("name").map(PoolColumn::Native);
            name.into_iter().chain(all_columns(views).await?).collect()
        }
    };
    let exact = form.is_exact;
    let (mut cells, mut shown, mut is_whole) = (Vec::new(), Vec::new(), true);
    for view in views {
        let values = Values::new(view).await?;
        let mut row: Vec<Cell> = Vec::new();
        for column in &columns {
            let cell = values.cell(column, exact).await.unwrap_or_else(|error| {
                warn(format!("cannot read '{}' of '{}': {error}", column.name(), view.pool.name()));
                is_whole = false;
                None
            });
            row.push(cell.unwrap_or_else(Column::absent));
        }
        cells.push(row);
        shown.push(match trees {
            Some(names) => Some(view.tree(names).await?),
            None => None,
        });
    }
    let of_lost = |pool: &LostPool, column: &PoolColumn| match column.name() {
        "name" => Cell::new(pool.name.clone(), Source::None),
        "health" => Cell::new("UNAVAIL", Source::None),
        "guid" => Cell::new(pool.guid.to_string(), Source::None),
        _ => Column::absent(),
    };
    if let Some(json) = form.json {
        let mut found = Vec::new();
        for pool in lost {
            let shown = columns.iter().filter(|column| column.name() != "name");
            let properties: Map<String, Value> =
                shown.map(|column| (column.name().to_owned(), property(json, &of_lost(pool, column)))).collect();
            let object = json!({
                "name": pool.name, "type": "POOL", "state": "UNAVAIL", "pool_guid": json.number(pool.guid), "properties": properties,
            });
            let key = if form.is_by_guid { pool.guid.to_string() } else { pool.name.clone() };
            found.push((pool.name.as_str(), key, object));
        }
        for ((view, row), tree) in views.iter().zip(&cells).zip(&shown) {
            let values = columns.iter().zip(row).filter(|(column, _)| column.name() != "name");
            let properties: Map<String, Value> =
                values.map(|(column, cell)| (column.name().to_owned(), property(json, cell))).collect();
            let mut object = view.json(json, true);
            object.insert("properties".into(), Value::Object(properties));
            if let Some(tree) = tree {
                object.insert("vdevs".into(), tree.json_rows(json, exact));
            }
            found.push((view.pool.name(), view.key(form.is_by_guid), Value::Object(object)));
        }
        found.sort_by(|a, b| a.0.cmp(b.0));
        let found: Map<String, Value> = found.into_iter().map(|(_, key, object)| (key, object)).collect();
        let time = stamp.iter().map(|stamp| ("time", json.text(stamp)));
        let text = document("zpool list", time.chain([("pools", Value::Object(found))]));
        return Ok(Listed { text, is_whole });
    }
    let mut listed: Vec<_> =
        views.iter().zip(cells).zip(shown).map(|((view, row), tree)| (view.pool.name(), row, tree)).collect();
    for pool in lost {
        listed.push((&pool.name, columns.iter().map(|column| of_lost(pool, column)).collect(), None));
    }
    listed.sort_by(|a, b| a.0.cmp(b.0));
    let mut table = table(
        columns
            .iter()
            .map(|column| (column.heading(), column.is_right_aligned(), column.width(), column.is_fixed(exact))),
    );
    let widest =
        listed.iter().filter_map(|(.., tree)| tree.as_ref()).map(crate::Tree::name_width).max().unwrap_or_default();
    let name_width = widest.max(NAME_WIDTH_MIN);
    if trees.is_some() {
        table.width(0, name_width, true);
    }
    for (_, row, _) in &listed {
        table.row(row.iter().map(|cell| cell.text.clone()));
    }
    let text = table.text(form.is_scripted);
    let mut lines = text.lines();
    let mut out = String::new();
    if !form.is_scripted {
        out.extend([lines.next().unwrap_or_default(), "\n"]);
    }
    for (line, (.., tree)) in lines.zip(&listed) {
        out.extend([line, "\n"]);
        if let Some(tree) = tree {
            tree.rows(&mut out, name_width, form.is_scripted, exact);
        }
    }
    Ok(Listed { text: out, is_whole })
}
