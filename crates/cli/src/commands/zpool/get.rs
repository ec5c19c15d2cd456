//! `zpool get`: properties of pools.

use anyhow::{Result, bail};
use cenote_listing::{Column as DatasetColumn, Values, all_columns};
use cenote_server::Owned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::outcome::{Outcome, usage};
use crate::output::{output_version, property};
use crate::pools::{JsonArgs, facts, parse_columns};
use crate::properties::{Field, GetTable, parse_fields};

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
    let json = args.json.check()?;
    let exact = args.exact || args.json.json_int;
    let fields = parse_fields(&args.fields, &Field::OF_POOLS)?;
    let mut views = Vec::new();
    let mut failed = false;
    if let Some((first, rest)) = args.pools.split_first() {
        for name in &args.pools {
            match context.open_pool(name).await {
                Ok(pool) => views.push(facts(context, pool)),
                Err(error) if crate::missingpool::is_no_such_pool(&error) => {
                    if name != first && views.len() == 1 {
                        bail!("not supported yet: properties of vdevs ('{}')", rest.join("', '"));
                    }
                    bail!("Cannot get properties of {name}: no such pool available.");
                }
                // A server is asked for what is its pool's alone.
                Err(error) if error.is::<Owned>() && args.pools.len() == 1 => return Err(error),
                Err(error) => {
                    context.err(format!("{error:#}"));
                    failed = true;
                }
            }
        }
    }
    let asked = parse_columns(&args.properties)?;
    if args.pools.is_empty() {
        let (pools, is_failed) = context.open_pools(&[]).await?;
        failed = is_failed;
        views.extend(pools.into_iter().map(|pool| facts(context, pool)));
    }
    let columns = match asked {
        Some(columns) => columns,
        None => all_columns(&views).await?,
    };
    let mut table = GetTable::new(fields);
    for view in &views {
        table.name(view.pool.name());
    }
    for column in &columns {
        table.property(column.name(), column.width());
    }
    let mut found = Map::new();
    for view in &views {
        let values = Values::new(view).await?;
        let mut properties = Map::new();
        for column in &columns {
            let cell = match values.cell(column, exact).await {
                Ok(Some(cell)) => cell,
                // What a pool cannot have (a feature of another) is left out.
                Ok(None) => continue,
                Err(error) => {
                    context.err(format!("cannot read '{}' of '{}': {error:#}", column.name(), view.pool.name()));
                    failed = true;
                    DatasetColumn::absent()
                }
            };
            if !column.is_fixed(exact) {
                table.value(&cell);
            }
            if args.json.json {
                properties.insert(column.name().into(), property(json, &cell));
            } else {
                table.row(view.pool.name(), column.name(), cell);
            }
        }
        if !properties.is_empty() {
            let mut object = view.json(json, true);
            object.insert("properties".into(), Value::Object(properties));
            found.insert(view.key(args.json.json_pool_key_guid), Value::Object(object));
        }
    }
    if args.json.json {
        if !failed {
            let mut document = output_version("zpool get");
            document.insert("pools".into(), Value::Object(found));
            context.out(format!("{}\n", json!(document)))?;
        }
    } else {
        context.out(table.text(args.scripted))?;
    }
    if views.is_empty() && args.pools.is_empty() && !failed && !args.json.json && !args.scripted {
        return Err(usage("no pools available"));
    }
    Ok(Outcome::unless(failed))
}
