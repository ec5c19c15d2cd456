//! `zpool list`: pools and their space.

use anyhow::Result;
use cenote_listing::{
    Cell, Column as DatasetColumn, Facts, Names, PoolColumn as Column, Values, all_columns, document,
    parse_pool_columns, property,
};
use cenote_props::{Align, Table};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::context::Context;
use crate::outcome::Outcome;
use crate::pools::{JsonArgs, NameArgs, facts};
use crate::time;

/// What is shown where nothing else is asked for.
const COLUMNS: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";
/// The least width of names beside a tree.
const NAME_WIDTH_MIN: usize = 9;

/// List pools.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also the vdevs.
    #[arg(short = 'v')]
    verbose: bool,
    /// Tabs in place of columns, no heading.
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers.
    #[arg(short = 'p')]
    exact: bool,
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    json: JsonArgs,
    /// Show the time first: u in seconds since 1970, d as a date.
    #[arg(short = 'T', value_name = "u|d")]
    timestamp: Option<String>,
    /// The properties to show, separated by commas; `all` for all.
    #[arg(short = 'o', value_name = "PROPERTIES", default_value = COLUMNS)]
    columns: String,
    /// The pools.
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let json = args.json.check()?;
    let exact = args.exact || args.json.json_int;
    let stamp = args.timestamp.as_deref().map(|how| time::stamp(context.handle(), how)).transpose()?;
    super::refuse_interval(&args.pools)?;
    let columns = parse_pool_columns(&args.columns)?;
    let (pools, mut failed) = context.open_pools(&args.pools).await?;
    let views: Vec<Facts> = pools.into_iter().map(|pool| facts(context, pool)).collect();
    let columns = match columns {
        Some(columns) => columns,
        None => {
            let name = cenote_props::pool::find("name").map(Column::Native);
            name.into_iter().chain(all_columns(&views).await?).collect()
        }
    };
    let names = Names::from(args.names);
    let (mut cells, mut trees) = (Vec::new(), Vec::new());
    for view in &views {
        let values = Values::new(view).await?;
        let mut row: Vec<Cell> = Vec::new();
        for column in &columns {
            let cell = values.cell(column, exact).await.unwrap_or_else(|error| {
                context.err(format!("cannot read '{}' of '{}': {error:#}", column.name(), view.pool.name()));
                failed = true;
                None
            });
            row.push(cell.unwrap_or_else(DatasetColumn::absent));
        }
        cells.push(row);
        trees.push(if args.verbose { Some(view.tree(names).await?) } else { None });
    }
    if args.json.json {
        if !failed && !views.is_empty() {
            let mut found = Map::new();
            for ((view, row), tree) in views.iter().zip(&cells).zip(&trees) {
                let shown = columns.iter().zip(row).filter(|(column, _)| column.name() != "name");
                let properties: Map<String, Value> =
                    shown.map(|(column, cell)| (column.name().to_owned(), property(json, cell))).collect();
                let mut object = view.json(json, true);
                object.insert("properties".into(), Value::Object(properties));
                if let Some(tree) = tree {
                    object.insert("vdevs".into(), tree.json_rows(json, exact));
                }
                found.insert(view.key(args.json.json_pool_key_guid), Value::Object(object));
            }
            let time = stamp.iter().map(|stamp| ("time", json.text(stamp)));
            context.out(document("zpool list", time.chain([("pools", Value::Object(found))])))?;
        }
        return Ok(Outcome::unless(failed));
    }
    if let Some(stamp) = stamp {
        context.out(format!("{stamp}\n"))?;
    }
    if views.is_empty() {
        if args.pools.is_empty() && !args.scripted && !failed {
            context.out("no pools available\n")?;
        }
        return Ok(Outcome::unless(failed));
    }
    let mut table = Table::new(columns.iter().map(|column| {
        let align = if column.is_right_aligned() { Align::Right } else { Align::Left };
        (column.heading(), align)
    }));
    for (index, column) in columns.iter().enumerate() {
        table.width(index, column.width(), column.is_fixed(exact));
    }
    let mut name_width = NAME_WIDTH_MIN;
    for tree in trees.iter().flatten() {
        name_width = name_width.max(tree.name_width());
    }
    if args.verbose {
        table.width(0, name_width, true);
    }
    for row in &cells {
        table.row(row.iter().map(|cell| cell.text.clone()));
    }
    let text = table.text(args.scripted);
    let mut lines = text.lines();
    let mut out = String::new();
    if !args.scripted {
        out.extend([lines.next().unwrap_or_default(), "\n"]);
    }
    for (line, tree) in lines.zip(&trees) {
        out.extend([line, "\n"]);
        if let Some(tree) = tree {
            tree.rows(&mut out, name_width, args.scripted, exact);
        }
    }
    context.out(out)?;
    Ok(Outcome::unless(failed))
}
