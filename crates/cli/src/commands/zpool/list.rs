//! `zpool list`: pools and their space.

use anyhow::Result;
use cenote_listing::{
    Cell, Column as DatasetColumn, DEDUP, Facts, LOGS, Names, PoolColumn as Column, SPECIAL, Source, Tree, Values,
    Vdev, all_columns,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::outcome::Outcome;
use crate::output::{Align, Json, Table, nicenum, output_version, percent, property};
use crate::pools::{JsonArgs, NameArgs, facts, parse_columns};
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
    let columns = parse_columns(&args.columns)?;
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
            let mut document = output_version("zpool list");
            if let Some(stamp) = &stamp {
                document.insert("time".into(), json.text(stamp));
            }
            let mut found = Map::new();
            for ((view, row), tree) in views.iter().zip(&cells).zip(&trees) {
                let shown = columns.iter().zip(row).filter(|(column, _)| column.name() != "name");
                let properties: Map<String, Value> =
                    shown.map(|(column, cell)| (column.name().to_owned(), property(json, cell))).collect();
                let mut object = view.json(json, true);
                object.insert("properties".into(), Value::Object(properties));
                if let Some(tree) = tree {
                    object.insert("vdevs".into(), json_tree(tree, json, exact));
                }
                found.insert(view.key(args.json.json_pool_key_guid), Value::Object(object));
            }
            document.insert("pools".into(), Value::Object(found));
            context.out(format!("{}\n", json!(document)))?;
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
        name_width = name_width.max(width(tree));
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
            Rows { out: &mut out, name_width, is_scripted: args.scripted, exact }.tree(tree);
        }
    }
    context.out(out)?;
    Ok(Outcome::unless(failed))
}

/// The width that names take with their indentation.
fn width(tree: &Tree) -> usize {
    fn of(vdev: &Vdev, depth: usize) -> usize {
        let below = vdev.children.iter().map(|child| of(child, depth + 2)).max().unwrap_or(0);
        below.max(depth + vdev.name.chars().count())
    }
    let beside = tree.caches.iter().chain(&tree.spares).map(|vdev| of(vdev, 2)).max().unwrap_or(0);
    of(&tree.root, 0).max(beside)
}

/// A vdev's columns: what belongs to its top-level vdev alone is `-` elsewhere.
fn columns(vdev: &Vdev, exact: bool) -> [(&'static str, String, usize); 9] {
    let sizes = &vdev.sizes;
    let is_top = sizes.space != 0;
    let number = |number: u64| if exact { number.to_string() } else { nicenum(number) };
    let dash = || "-".to_owned();
    let known = |number_: u64| if number_ == 0 { dash() } else { number(number_) };
    let size = if sizes.device != 0 { sizes.device } else { sizes.space };
    let capacity = || {
        let parts = u128::from(sizes.allocated) * 10_000 / u128::from(sizes.space.max(1));
        match parts as u64 {
            parts if exact => (parts / 100).to_string(),
            parts @ 0..1_000 => format!("{:1.2}%", parts as f64 / 100.0),
            parts @ 1_000..10_000 => format!("{:2.1}%", parts as f64 / 100.0),
            parts => format!("{:3.0}%", parts as f64 / 100.0),
        }
    };
    let top = |text: String| if is_top { text } else { dash() };
    [
        ("size", known(size), 5),
        ("allocated", top(number(sizes.allocated)), 5),
        ("free", top(number(sizes.space.saturating_sub(sizes.allocated))), 5),
        ("checkpoint", top(known(sizes.checkpoint)), 7),
        ("expandsize", known(sizes.expandable), 8),
        ("fragmentation", top(sizes.fragmentation.map_or_else(dash, |each| percent(each, exact))), 5),
        ("capacity", top(capacity()), 5),
        ("dedupratio", dash(), 5),
        ("health", vdev.state.to_owned(), 8),
    ]
}

struct Rows<'a> {
    out: &'a mut String,
    name_width: usize,
    is_scripted: bool,
    exact: bool,
}

impl Rows<'_> {
    fn tree(&mut self, tree: &Tree) {
        self.below(&tree.root, 0);
        for class in [DEDUP, SPECIAL, LOGS] {
            let members: Vec<&Vdev> =
                tree.root.children.iter().filter(|top| top.heading() == Some(class) && !top.is_placeholder).collect();
            self.group(class, &members);
        }
        self.group("cache", &tree.caches.iter().collect::<Vec<_>>());
        self.group("spare", &tree.spares.iter().collect::<Vec<_>>());
    }

    fn group(&mut self, heading: &str, members: &[&Vdev]) {
        if members.is_empty() {
            return;
        }
        let name_width = self.name_width;
        let dashes = "      -      -      -        -         -      -      -      -         -\n";
        self.out.push_str(&format!("{heading:name_width$}{dashes}"));
        for member in members {
            self.vdev(member, 2);
        }
    }

    fn below(&mut self, vdev: &Vdev, depth: usize) {
        let shown =
            vdev.children.iter().filter(|child| !child.is_placeholder && child.heading().is_none() || depth > 0);
        for child in shown {
            self.vdev(child, depth + 2);
        }
    }

    fn vdev(&mut self, vdev: &Vdev, depth: usize) {
        if self.is_scripted {
            self.out.extend(["\t", &vdev.name]);
        } else {
            let width = self.name_width.saturating_sub(depth);
            self.out.push_str(&format!("{:depth$}{:width$}", "", vdev.name));
        }
        for (_, text, width) in columns(vdev, self.exact) {
            if self.is_scripted {
                self.out.extend(["\t", &text]);
            } else {
                self.out.push_str(&format!("  {text:>width$}"));
            }
        }
        if !self.is_scripted && !vdev.missed.is_empty() {
            self.out.extend(vdev.remark().map(|remark| format!("  {remark}")));
        }
        self.out.push('\n');
        self.below(vdev, depth);
    }
}

fn json_tree(tree: &Tree, json: Json, exact: bool) -> Value {
    let mut map = Map::new();
    let tops = || tree.root.children.iter().filter(|top| !top.is_placeholder);
    for top in tops().filter(|top| top.heading().is_none()) {
        map.insert(top.name.clone(), json_vdev(top, json, exact));
    }
    let mut group = |heading: &str, members: Vec<&Vdev>| {
        if !members.is_empty() {
            let members = members.into_iter().map(|vdev| (vdev.name.clone(), json_vdev(vdev, json, exact)));
            map.insert(heading.to_owned(), Value::Object(members.collect()));
        }
    };
    for class in [DEDUP, SPECIAL, LOGS] {
        group(class, tops().filter(|top| top.heading() == Some(class)).collect());
    }
    group("l2cache", tree.caches.iter().collect());
    group("spares", tree.spares.iter().collect());
    Value::Object(map)
}

fn json_vdev(vdev: &Vdev, json: Json, exact: bool) -> Value {
    let mut object = vdev.json(json);
    let cells =
        columns(vdev, exact).map(|(name, text, _)| (name.to_owned(), property(json, &Cell::new(text, Source::None))));
    object.insert("properties".into(), Value::Object(cells.into_iter().collect()));
    if !vdev.missed.is_empty() {
        object.insert("missed_txgs".into(), json!(vdev.missed.to_string()));
    }
    if !vdev.children.is_empty() {
        let children = vdev.children.iter().map(|child| (child.name.clone(), json_vdev(child, json, exact)));
        object.insert("vdevs".into(), Value::Object(children.collect()));
    }
    Value::Object(object)
}
