//! `zfs set`.

use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use crate::writing::{dataset_setting, finish, line, open_for_writing};

/// Set properties of datasets.
///
/// What says how blocks are written is obeyed by what is written from then on.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Accepted for the sake of scripts: nothing is mounted by this.
    #[arg(short = 'u')]
    keep_mounts: bool,
    /// Settings, then datasets of one pool.
    #[arg(required = true, value_name = "PROPERTY=VALUE… DATASET…")]
    arguments: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (settings, datasets): (Vec<&String>, Vec<&String>) = args.arguments.iter().partition(|text| text.contains('='));
    if settings.is_empty() {
        return Err(usage("missing property=value argument"));
    }
    let Some(first) = datasets.first() else { return Err(usage("missing dataset name")) };
    if datasets.iter().any(|dataset| pool_of(dataset) != pool_of(first)) {
        return Err(usage("not supported yet: datasets of several pools in one command"));
    }
    let parsed = settings.iter().map(|text| dataset_setting(text)).collect::<Result<Vec<_>>>();
    let parsed = parsed.map_err(|error| anyhow!("cannot set property for '{first}': {error:#}"))?;
    let mut pool = open_for_writing(context, pool_of(first)).await?;
    for dataset in &datasets {
        for (name, value) in &parsed {
            pool.change_property(dataset, name, Some(value)).await?;
        }
    }
    let words = ["zfs", "set"].into_iter().chain(args.arguments.iter().map(String::as_str));
    finish(pool, &line(words)).await?;
    Ok(Outcome::Good)
}
