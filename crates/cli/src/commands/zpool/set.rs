//! `zpool set`.

use anyhow::{anyhow, bail};
use cenote_admin::values::{pool_setting, stored_of_pool};
use cenote_server::writing::{Writing, line};

use crate::prelude::*;

/// Set a property of a pool: autoexpand, autoreplace, autotrim, bootfs, cachefile, comment, delegation, failmode,
/// listsnapshots, multihost, or one with a colon in its name; or enable a feature: feature@NAME=enabled.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The property and its value.
    #[arg(value_name = "PROPERTY=VALUE")]
    setting: String,
    /// The pool.
    pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if let Some((feature, value)) = args.setting.strip_prefix("feature@").and_then(|rest| rest.split_once('=')) {
        if value != "enabled" {
            bail!("cannot set property for '{}': property 'feature@{feature}' can only be set to 'enabled'", args.pool);
        }
        let pool = Writing::open(context, &args.pool).await?;
        pool.pool().enable_features(&[feature]).await?;
        pool.finish_config(context, line(["zpool", "set", &args.setting, &args.pool])).await?;
        return Ok(Outcome::Good);
    }
    // Of the list of imported pools, not of the pool itself.
    if let Some(value) = args.setting.strip_prefix("cachefile=") {
        context.set_cachefile(&args.pool, value).await?;
        return Ok(Outcome::Good);
    }
    let (name, value) =
        pool_setting(&args.setting).map_err(|error| anyhow!("cannot set property for '{}': {error:#}", args.pool))?;
    let pool = Writing::open(context, &args.pool).await?;
    pool.pool().set_pool_property(&name, value.as_ref()).await?;
    pool.finish_config(context, line(["zpool", "set", &args.setting, &args.pool])).await?;
    stored_of_pool(&name, value.as_ref()).iter().for_each(|note| context.err(note));
    Ok(Outcome::Good)
}
