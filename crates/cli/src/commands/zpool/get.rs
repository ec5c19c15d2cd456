//! `zpool get`: properties of pools.

use anyhow::bail;
use cenote_listing::{Field, get_pools, parse_fields, parse_pool_columns};
use cenote_server::ServerError;

use crate::pools::{JsonArgs, facts_of_several};
use crate::prelude::*;

/// Show properties of pools.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Tabs in place of columns, no heading.
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers.
    #[arg(short = 'p')]
    exact: bool,
    #[command(flatten)]
    json: JsonArgs,
    /// The columns, separated by commas: name, property, value, source, all.
    #[arg(short = 'o', value_name = "FIELDS", default_value = "name,property,value,source")]
    fields: String,
    /// The properties, separated by commas; `all` for all.
    #[arg(value_name = "PROPERTIES")]
    properties: String,
    /// The pools.
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let form = args.json.form(args.scripted, args.exact)?;
    let fields = parse_fields(&args.fields, &Field::OF_POOLS)?;
    let mut views = Vec::new();
    let mut failed = false;
    if let Some((first, rest)) = args.pools.split_first() {
        // No one server has them all.
        let several = args.pools.len() > 1;
        let opening = if several { context.without_sending() } else { context.clone() };
        for name in &args.pools {
            match opening.open_pool(name).await {
                Ok(pool) => views.push(facts_of_several(context, pool)),
                Err(ServerError::NoSuchPool(_)) => {
                    if name != first && views.len() == 1 {
                        bail!("not supported yet: properties of vdevs ('{}')", rest.join("', '"));
                    }
                    bail!("Cannot get properties of {name}: no such pool available.");
                }
                // A server is asked for what is its pool's alone.
                Err(error @ ServerError::Owned(_)) if args.pools.len() == 1 => return Err(error.into()),
                Err(error) => {
                    context.err(error.chain());
                    failed = true;
                }
            }
        }
    }
    let asked = parse_pool_columns(&args.properties)?;
    if args.pools.is_empty() {
        let (pools, is_failed) = context.open_pools(&[]).await?;
        failed = is_failed;
        views.extend(pools.into_iter().map(|pool| facts_of_several(context, pool)));
    }
    let listed = get_pools(&views, asked, fields, form, &mut |text| context.err(text)).await?;
    failed |= !listed.is_whole;
    if !(args.json.json && failed) {
        context.out(listed.text)?;
    }
    if views.is_empty() && args.pools.is_empty() && !failed && !args.json.json && !args.scripted {
        return Err(usage("no pools available"));
    }
    Ok(Outcome::unless(failed))
}
