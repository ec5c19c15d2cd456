//! `zfs snapshot`.

use anyhow::anyhow;
use cenote_admin::values::{ValueError, check_new_snapshot, check_once, snapshot_setting};
use cenote_admin::{take_snapshots, tree_names};
use cenote_server::writing::{Writing, line};

use crate::prelude::*;

/// Take snapshots: all that are named, in one moment.
///
/// A snapshot has what was written before this command, also where a program has the dataset mounted or served.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also of all datasets below, in the same moment.
    #[arg(short = 'r')]
    recursive: bool,
    /// Set a user property of each.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// The snapshots, as DATASET@NAME.
    #[arg(value_name = "SNAPSHOT", required = true)]
    snapshots: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    check_once(&args.properties)?;
    let none = |reason: &dyn std::fmt::Display| anyhow!("{reason}\nno snapshots were created");
    let cannot = |reason: &dyn std::fmt::Display| none(&format_args!("cannot create snapshots : {reason}"));
    let properties = args.properties.iter().map(|text| snapshot_setting(text)).collect::<Result<Vec<_>, _>>();
    let properties = properties.map_err(|error| match error {
        ValueError::Syntax(_) => error.into(),
        error => cannot(&error),
    })?;
    let first = pool_of(&args.snapshots[0]);
    for name in &args.snapshots {
        if !name.contains('@') {
            return Err(usage(format!("'{name}': missing '@' delimiter in snapshot name")));
        }
        check_new_snapshot(name).map_err(|reason| cannot(&reason))?;
        if pool_of(name) != first {
            return Err(cannot(&"snapshots must all be in the same pool"));
        }
    }
    let pool = Writing::open(context, first).await?;
    let mut names: Vec<String> = Vec::new();
    for name in &args.snapshots {
        let (dataset, snapshot) = name.split_once('@').expect("checked: it has an '@'");
        let of = tree_names(pool.pool(), dataset).await.map_err(|error| usage(error.to_string()))?;
        let of = of.into_iter().take(if args.recursive { usize::MAX } else { 1 });
        // One that is asked for twice is taken once.
        for name in of.map(|dataset| format!("{dataset}@{snapshot}")) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    take_snapshots(pool.pool(), &names, &properties).await.map_err(|error| none(&error))?;
    let options = args.properties.iter().flat_map(|setting| ["-o", setting]);
    let words = ["zfs", "snapshot", if args.recursive { "-r" } else { "" }].into_iter();
    let words = words.chain(options).chain(args.snapshots.iter().map(String::as_str));
    pool.finish(line(words)).await?;
    let datasets: Vec<String> = names.iter().filter_map(|name| name.split('@').next()).map(str::to_owned).collect();
    context.datasets_changed(&datasets).await;
    Ok(Outcome::Good)
}
