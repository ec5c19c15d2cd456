//! `zfs holds`: user references of snapshots.

use crate::output::{Align, Table};
use crate::prelude::*;
use crate::time;

/// List the user references of snapshots.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Tabs in place of columns, no heading.
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers.
    #[arg(short = 'p')]
    exact: bool,
    /// Also the snapshots of the same name of all datasets below.
    #[arg(short = 'r')]
    recursive: bool,
    /// The snapshots.
    #[arg(value_name = "SNAPSHOT", required = true)]
    snapshots: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let mut table = Table::new([("NAME", Align::Left), ("TAG", Align::Left), ("TIMESTAMP", Align::Left)]);
    let mut failed = false;
    for name in &args.snapshots {
        let Some((dir, snapshot)) = name.split_once('@') else {
            context.err(format!("'{name}' is not a snapshot"));
            failed = true;
            continue;
        };
        let pool = context.open_pool(dir.split('/').next().unwrap_or(dir)).await?;
        let dsl = pool.dsl();
        let dataset = dsl.dataset(name).await?;
        let mut datasets = vec![dataset.clone()];
        if args.recursive {
            for dir in dsl.tree(dataset.dir.clone(), false).await?.into_iter().skip(1) {
                datasets.extend(dsl.dataset(&format!("{}@{snapshot}", dir.name)).await.ok());
            }
        }
        for dataset in datasets {
            for hold in dsl.holds(&dataset).await? {
                let time = if args.exact { hold.time_s.to_string() } else { time::long(hold.time_s) };
                table.row([dataset.name(), hold.tag, time]);
            }
        }
    }
    if !table.is_empty() || !args.scripted {
        context.out(table.text(args.scripted))?;
    }
    Ok(Outcome::unless(failed))
}
