//! `zfs list`: datasets and some of their properties.

use cenote_admin::values::Types;
use cenote_listing::{Column, Selection, SortKey, list_datasets, parse_columns, parse_types};

use super::listing::Listing;
use crate::args::SortKeys;
use crate::datasets::select;
use crate::prelude::*;

/// The columns that are shown unless others are asked for.
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
    let form = args.listing.form()?;
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
    let listed = list_datasets(&items, columns, form, &mut |text| context.err(text)).await?;
    failed |= !listed.is_whole;
    if !(args.listing.json && failed) {
        context.out(listed.text)?;
    }
    if items.is_empty() && !failed && !args.listing.scripted {
        context.err("no datasets available");
    }
    Ok(Outcome::unless(failed))
}
