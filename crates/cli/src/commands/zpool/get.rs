//! `zpool get`: properties of pools.

use anyhow::bail;
use cenote_listing::{Facts, Field, Form, Names, get_pools, get_vdevs, parse_fields, parse_pool_columns};
use cenote_server::{Owned, ServerError};

use crate::pools::{JsonArgs, facts_of_several};
use crate::prelude::*;

/// Show properties of pools, or of the vdevs of a pool.
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
    /// The pools; or a pool and its vdevs, as 'zpool status' shows them: 'all-vdevs' for all of them, 'root-0' for what is above them.
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

/// Properties of vdevs of a pool. The process that has it knows what they do.
async fn of_vdevs(
    context: &Context,
    args: &Args,
    facts: Facts,
    vdevs: &[String],
    fields: Vec<Field>,
    form: Form,
) -> Result<Outcome> {
    if let Some(socket) = context.owner_of(&facts.pool) {
        let pool = facts.pool.name().to_owned();
        return Err(ServerError::Owned(Owned { pool, socket }).into());
    }
    let counted = context.served().map(|pool| pool.leaf_io());
    let listed = get_vdevs(&facts, Names::default(), vdevs, &args.properties, fields, form, counted).await?;
    context.out(listed.text)?;
    Ok(Outcome::Good)
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
        // A server is sent a line about its pool alone: the other words are vdevs.
        if context.served().is_some() && several {
            let facts = facts_of_several(context, opening.open_pool(first).await?);
            return of_vdevs(context, &args, facts, rest, fields, form).await;
        }
        for name in &args.pools {
            match opening.open_pool(name).await {
                Ok(pool) => views.push(facts_of_several(context, pool)),
                Err(ServerError::NoSuchPool(_)) => {
                    if name != first && views.len() == 1 {
                        return of_vdevs(context, &args, views.remove(0), rest, fields, form).await;
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
