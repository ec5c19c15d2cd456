//! `zfs get`: properties of datasets, and where they come from.

use cenote_admin::values::Types;
use cenote_listing::{Field, Selection, check_sources, get_datasets, parse_columns, parse_fields, parse_types};

use super::listing::Listing;
use crate::datasets::select;
use crate::prelude::*;

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
    let form = args.listing.form()?;
    let fields = parse_fields(&args.fields, &Field::OF_DATASETS)?;
    let sources = args.sources.as_deref().map(check_sources).transpose()?;
    let depth = args.listing.depth(types, !args.datasets.is_empty());
    let asked = parse_columns(&args.properties)?;
    let selection = Selection { names: args.datasets, types, may_list_snapshots: false, depth };
    let (items, mut failed) = select(context, selection, &[]).await?;
    let warn = &mut |text| context.err(text);
    let listed = get_datasets(&items, asked, fields, sources.as_deref(), form, warn).await?;
    failed |= !listed.is_whole;
    if !(args.listing.json && failed) {
        context.out(listed.text)?;
    }
    Ok(Outcome::unless(failed))
}
