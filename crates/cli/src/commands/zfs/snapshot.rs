//! `zfs snapshot`.

use anyhow::{Result, anyhow, bail};
use cenote_admin::{take_snapshots, tree_names};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use crate::writing::{Writing, line};

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
    let mut properties = Vec::new();
    for text in &args.properties {
        let Some((name, value)) = text.split_once('=') else {
            return Err(usage(format!("missing '=' for property=value argument: '{text}'")));
        };
        if !name.contains(':') {
            bail!("cannot create snapshot '{}': '{name}' does not apply to datasets of this type", args.snapshots[0]);
        }
        properties.push((name.to_owned(), value.to_owned()));
    }
    let first = pool_of(&args.snapshots[0]);
    for name in &args.snapshots {
        cenote_dsl::name::check_new_snapshot(name)
            .map_err(|reason| anyhow!("cannot create snapshot '{name}': {reason}"))?;
        if pool_of(name) != first {
            bail!("cannot create snapshots : snapshots must all be in the same pool");
        }
    }
    let pool = Writing::open(context, first).await?;
    let mut names = Vec::new();
    for name in &args.snapshots {
        let (dataset, snapshot) = name.split_once('@').expect("checked: it has an '@'");
        let of = match args.recursive {
            true => tree_names(pool.pool(), dataset).await?,
            false => vec![dataset.to_owned()],
        };
        names.extend(of.into_iter().map(|dataset| format!("{dataset}@{snapshot}")));
    }
    take_snapshots(pool.pool(), &names, &properties).await?;
    let options = args.properties.iter().flat_map(|setting| ["-o", setting]);
    let words = ["zfs", "snapshot", if args.recursive { "-r" } else { "" }].into_iter();
    let words = words.chain(options).chain(args.snapshots.iter().map(String::as_str));
    pool.finish(line(words)).await?;
    let datasets: Vec<String> = names.iter().filter_map(|name| name.split('@').next()).map(str::to_owned).collect();
    context.datasets_changed(&datasets).await;
    Ok(Outcome::Good)
}
