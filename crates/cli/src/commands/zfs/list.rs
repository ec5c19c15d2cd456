//! `zfs list`: datasets and some of their properties.

use anyhow::Result;
use cenote_listing::{Column, Selection, SortKey, all_listed, document, parse_columns, parse_types, property};
use cenote_props::{Align, Table, Types};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::listing::Listing;
use crate::args::SortKeys;
use crate::context::Context;
use crate::datasets::select;
use crate::outcome::{Outcome, usage};

/// What is shown where nothing else is asked for.
const COLUMNS: &str = "name,used,available,referenced,mountpoint";

/// List datasets.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    listing: Listing,
    /// The properties to show, separated by commas; `space` stands for those about space, `all` for all.
    #[arg(short = 'o', value_name = "PROPERTIES", default_value = COLUMNS)]
    columns: String,
    #[command(flatten)]
    sort: SortKeys,
    /// The types to show, separated by commas: filesystem, volume, snapshot, bookmark, all.
    #[arg(short = 't', value_name = "TYPES")]
    types: Option<String>,
    /// Datasets, or paths in mounted ones.
    #[arg(value_name = "DATASET|PATH")]
    datasets: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let mut types = Types::DATASET;
    if let Some(list) = &args.types {
        types = parse_types(list)?;
    }
    let json = args.listing.json()?;
    let may_list_snapshots = args.types.is_none();
    if args.columns == "space" && may_list_snapshots {
        types -= Types::SNAPSHOT;
    }
    let depth = args.listing.depth(types, !args.datasets.is_empty());
    let columns = parse_columns(&args.columns)?;
    let mut keys = Vec::new();
    for (name, is_descending) in &args.sort.keys {
        let column = match Column::find(name) {
            Some(column @ (Column::Native(_) | Column::User(_))) => column,
            _ => return Err(usage(format!("invalid property '{name}'"))),
        };
        keys.push(SortKey { column, is_descending: *is_descending });
    }
    let selection = Selection { names: args.datasets, types, may_list_snapshots, depth };
    let (items, mut failed) = select(context, selection, &keys).await?;
    let columns = match columns {
        Some(columns) => columns,
        None => all_listed(&items).await?,
    };

    let exact = args.listing.is_exact();
    let mut table = Table::new(columns.iter().map(|column| {
        let align = if column.is_right_aligned() { Align::Right } else { Align::Left };
        (column.heading(), align)
    }));
    for (index, column) in columns.iter().enumerate() {
        table.width(index, column.width(), column.is_fixed(exact));
    }
    let mut datasets = Map::new();
    for item in &items {
        let (mut row, mut properties) = (Vec::new(), Map::new());
        for column in &columns {
            let cell = column.cell(item, exact).await.unwrap_or_else(|error| {
                context.err(format!("cannot read '{}' of '{}': {error:#}", column.name(), item.name));
                failed = true;
                None
            });
            let cell = cell.unwrap_or_else(Column::absent);
            if args.listing.json && column.name() != "name" {
                properties.insert(column.name().into(), property(json, &cell));
            }
            row.push(cell.text);
        }
        if args.listing.json {
            let mut object = item.json(json);
            object.insert("properties".into(), Value::Object(properties));
            datasets.insert(item.name.clone(), Value::Object(object));
        } else {
            table.row(row);
        }
    }
    if args.listing.json {
        if !failed {
            context.out(document("zfs list", [("datasets", Value::Object(datasets))]))?;
        }
    } else if !items.is_empty() {
        context.out(table.text(args.listing.scripted))?;
    }
    if items.is_empty() && !failed && !args.listing.scripted {
        context.err("no datasets available");
    }
    Ok(Outcome::unless(failed))
}
