//! `zfs set`.

use anyhow::{Result, anyhow};
use cenote_admin::{check_together, set_properties};
use cenote_props::{Types, dataset, effect};
use cenote_spa::PropertyValue;
use serde::{Deserialize, Serialize};

use crate::commands::zfs::volume;
use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use cenote_admin::values::{When, check_once};
use cenote_admin::values::{dataset_setting, stored_only};
use cenote_server::writing::{Writing, line};

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
    check_once(settings.iter().copied())?;
    let parsed = settings.iter().filter_map(|text| dataset_setting(text, When::Later, Types::DATASET).transpose());
    let parsed = parsed.collect::<Result<Vec<_>, _>>();
    let parsed = parsed.map_err(|error| anyhow!("cannot set property for '{first}': {error}"))?;
    let shown = parsed.clone();
    let changed: Vec<String> = datasets.iter().map(|dataset| (*dataset).clone()).collect();
    let names: Vec<String> = parsed.iter().map(|(name, _)| name.clone()).collect();
    check_together(datasets.len(), &parsed).map_err(|error| usage(error.to_string()))?;
    let mut pool = Writing::open(context, pool_of(first)).await?;
    let size = match &parsed[..] {
        [(name, PropertyValue::Number(bytes))] if name == "volsize" => Some(*bytes),
        _ => None,
    };
    match (size, context.served_volumes()) {
        (Some(bytes), Some(volumes)) => volume::resize_served(&mut pool, volumes, first, bytes).await?,
        _ => set_properties(pool.pool(), &changed, &parsed).await?,
    }
    let words = ["zfs", "set"].into_iter().chain(args.arguments.iter().map(String::as_str));
    pool.finish(line(words)).await?;
    let set = shown.iter().map(|(name, value)| (name.as_str(), value));
    stored_only(effect::of_dataset, dataset::PROPERTIES, set).iter().for_each(|note| context.err(note));
    context.properties_changed(&names, &changed).await;
    Ok(Outcome::Good)
}
