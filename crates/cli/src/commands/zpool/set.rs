//! `zpool set`.

use anyhow::{Result, anyhow, bail};
use cenote_props::{effect, pool};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::Outcome;
use cenote_admin::values::{pool_setting, stored_only};
use cenote_server::writing::{Writing, line};

/// Set a property of a pool: autoexpand, autoreplace, autotrim, comment, delegation, failmode, listsnapshots,
/// multihost, or one with a colon in its name; or enable a feature: feature@NAME=enabled.
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
        let feature = feature.to_owned();
        pool.step(move |writer| {
            Box::pin(
                async move { Ok::<_, anyhow::Error>(writer.enable_features(&[feature.as_str()]).await.map(drop)?) },
            )
        })
        .await?;
        pool.finish(line(["zpool", "set", &args.setting, &args.pool])).await?;
        return Ok(Outcome::Good);
    }
    let (name, value) =
        pool_setting(&args.setting).map_err(|error| anyhow!("cannot set property for '{}': {error:#}", args.pool))?;
    let shown = (name.clone(), value.clone());
    let pool = Writing::open(context, &args.pool).await?;
    pool.step(move |writer| {
        Box::pin(async move { Ok::<_, anyhow::Error>(writer.set_pool_property(&name, value.as_ref()).await?) })
    })
    .await?;
    pool.finish(line(["zpool", "set", &args.setting, &args.pool])).await?;
    let set = shown.1.iter().map(|value| (shown.0.as_str(), value));
    stored_only(effect::of_pool, pool::PROPERTIES, set).iter().for_each(|note| context.err(note));
    Ok(Outcome::Good)
}
