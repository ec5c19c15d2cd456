//! `zfs set`.

use anyhow::anyhow;
use cenote_admin::check_together;
use cenote_admin::values::Types;
use cenote_admin::values::{When, check_once, dataset_settings, stored_of_datasets};
use cenote_server::verbs::set_properties;
use cenote_server::writing::{Writing, line};

use super::by_pool;
use crate::prelude::*;

/// Set properties of datasets.
///
/// A property of how blocks are written applies to blocks that are written from then on.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Accepted for the sake of scripts: nothing is mounted by this.
    #[arg(short = 'u')]
    keep_mounts: bool,
    /// Settings, then datasets.
    #[arg(required = true, value_name = "PROPERTY=VALUE… DATASET…")]
    arguments: Vec<String>,
}

impl Args {
    /// The same for each pool alone.
    pub(crate) fn of_pools(&self) -> Vec<Self> {
        let (settings, datasets): (Vec<String>, Vec<String>) =
            self.arguments.iter().cloned().partition(|text| text.contains('='));
        // A fault of the line is told once.
        if settings.is_empty() {
            return Vec::new();
        }
        let of_pool = |own: Vec<String>| Self { arguments: [settings.clone(), own].concat(), ..self.clone() };
        by_pool(&datasets).into_iter().map(of_pool).collect()
    }
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
    let parsed = dataset_settings(settings.iter().copied(), When::Later, Types::DATASET);
    let parsed = parsed.map_err(|error| anyhow!("cannot set property for '{first}': {error}"))?;
    check_together(datasets.len(), &parsed).map_err(|error| usage(error.to_string()))?;
    let changed: Vec<String> = datasets.iter().map(|dataset| (*dataset).clone()).collect();
    let names: Vec<String> = parsed.iter().map(|(name, _)| name.clone()).collect();
    let pool = Writing::open(context, pool_of(first)).await?;
    let words = ["zfs", "set"].into_iter().chain(args.arguments.iter().map(String::as_str));
    set_properties(context, pool, &changed, &parsed, line(words)).await?;
    stored_of_datasets(&parsed).iter().for_each(|note| context.err(note));
    context.properties_changed(&names, &changed).await;
    Ok(Outcome::Good)
}
