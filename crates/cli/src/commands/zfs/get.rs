//! `zfs get`: properties of datasets, and where they come from.

use anyhow::Result;
use cenote_listing::{
    Cell, Column, Field, Got, Gotten, Item, Selection, all_shown, check_sources, parse_columns, parse_fields,
    parse_types,
};
use cenote_props::Types;
use serde::{Deserialize, Serialize};

use super::listing::Listing;
use crate::context::Context;
use crate::datasets::select;
use crate::outcome::Outcome;

/// Show properties of datasets.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    listing: Listing,
    /// The columns, separated by commas: name, property, value, received, source, all.
    #[arg(short = 'o', value_name = "FIELDS", default_value = "name,property,value,source")]
    fields: String,
    /// Only values from these sources, separated by commas: local, default, inherited, temporary, received, none.
    #[arg(short = 's', value_name = "SOURCES")]
    sources: Option<String>,
    /// Only datasets of these types, separated by commas: filesystem, volume, snapshot, bookmark, all.
    #[arg(short = 't', value_name = "TYPES")]
    types: Option<String>,
    /// The properties, separated by commas; `all` for all.
    #[arg(value_name = "PROPERTIES")]
    properties: String,
    /// Datasets, or paths in mounted ones.
    #[arg(value_name = "DATASET|PATH")]
    datasets: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let mut types = Types::DATASET | Types::BOOKMARK;
    if let Some(list) = &args.types {
        types = parse_types(list)?;
    }
    let json = args.listing.json()?;
    let fields = parse_fields(&args.fields, &Field::OF_DATASETS)?;
    let sources = args.sources.as_deref().map(check_sources).transpose()?;
    let depth = args.listing.depth(types, !args.datasets.is_empty());
    let asked = parse_columns(&args.properties)?;
    let selection = Selection { names: args.datasets, types, may_list_snapshots: false, depth };
    let (items, mut failed) = select(context, selection, &[]).await?;
    let is_all = asked.is_none();
    let columns = match asked {
        Some(columns) => columns,
        None => all_shown(&items).await?,
    };

    let exact = args.listing.is_exact();
    let wants_received = fields.contains(&Field::Received);
    let mut gotten = Gotten::new(
        fields,
        args.listing.json.then_some(json),
        items.iter().map(|item| item.name.as_str()),
        columns.iter().map(|column| (column.name(), column.width())),
    );
    for item in &items {
        let mut values = Vec::new();
        for column in &columns {
            let cell = match cell(item, column, exact, wants_received).await {
                Ok(Some(cell)) => cell,
                Ok(None) if is_all => continue,
                Ok(None) => Column::absent(),
                Err(error) => {
                    context.err(format!("cannot read '{}' of '{}': {error:#}", column.name(), item.name));
                    failed = true;
                    continue;
                }
            };
            let is_chosen = sources.as_ref().is_none_or(|sources| sources.contains(&cell.source.word()));
            values.push(Got { property: column.name(), cell, is_fixed: column.is_fixed(exact), is_chosen });
        }
        gotten.add(&item.name, &item.name, |json| item.json(json), values);
    }
    if !(args.listing.json && failed) {
        context.out(gotten.text("zfs get", "datasets", args.listing.scripted))?;
    }
    Ok(Outcome::unless(failed))
}

async fn cell(item: &Item, column: &Column, is_exact: bool, wants_received: bool) -> Result<Option<Cell>> {
    let Some(mut cell) = column.cell(item, is_exact).await? else { return Ok(None) };
    if wants_received {
        cell.received = item.received(column.name(), is_exact).await?;
    }
    Ok(Some(cell))
}
