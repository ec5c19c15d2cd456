//! `zpool upgrade`.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use cenote_admin::lacking_features;
use cenote_spa::features::FEATURES;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::{Outcome, usage};
use cenote_server::writing::{finish, line, open_for_writing};

/// Enable the features that OpenZFS 2.3 has, or say which pools lack some.
///
/// Without arguments, pools that lack features are listed. A pool's property `compatibility` says which of them it may have.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// List the features.
    #[arg(short = 'v')]
    features: bool,
    /// Upgrade all pools.
    #[arg(short = 'a')]
    all: bool,
    /// The version of the pool's format: only 5000, that of pools with features.
    #[arg(short = 'V', value_name = "VERSION")]
    version: Option<u64>,
    /// The pools to upgrade.
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

const HEAD: &str = "This system supports ZFS pool feature flags.\n\n";

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.features {
        if args.all || !args.pools.is_empty() {
            return Err(usage("-v option is incompatible with other arguments"));
        }
        context.out(list_features())?;
        return Ok(Outcome::Good);
    }
    if let Some(version) = args.version.filter(|version| *version != 5000) {
        bail!("invalid version '{version}': only pools with feature flags (version 5000) are written");
    }
    if args.all && !args.pools.is_empty() {
        return Err(usage("-a option should not be used along with a pool name"));
    }
    if !args.all && args.pools.is_empty() {
        return list_pools(context).await;
    }
    let mut names = args.pools.clone();
    let mut failed = false;
    if args.all {
        let (pools, is_failed) = context.open_pools(&[]).await?;
        failed = is_failed;
        for pool in &pools {
            names.push(pool.name().to_owned());
            pool.close().await;
        }
    }
    context.out(HEAD)?;
    for name in names {
        if let Err(error) = upgrade(context, &name, args.all).await {
            context.err(format!("{error:#}"));
            failed = true;
        }
    }
    Ok(Outcome::unless(failed))
}

async fn upgrade(context: &Context, name: &str, is_all: bool) -> Result<()> {
    let pool = context.open_pool(name).await?;
    let lacking = lacking_features(&pool, &cenote_host::feature_list).await?;
    pool.close().await;
    if lacking.is_empty() {
        if !is_all {
            context.out(format!("Pool '{name}' already has all supported and requested features enabled.\n"))?;
        }
        return Ok(());
    }
    let pool = open_for_writing(context, name).await?;
    let names: Vec<&str> = lacking.iter().map(|feature| feature.name).collect();
    let enabled = pool.enable_features(&names).await?;
    finish(pool, &line(["zpool", "upgrade", name])).await?;
    let mut text = format!("Enabled the following features on '{name}':\n");
    for feature in enabled {
        let _ = writeln!(text, "  {}", feature.name);
    }
    text.push('\n');
    context.out(text)
}

async fn list_pools(context: &Context) -> Result<Outcome> {
    let (pools, failed) = context.open_pools(&[]).await?;
    let mut text = format!("{HEAD}All pools are formatted using feature flags.\n\n");
    let mut rows = String::new();
    for pool in &pools {
        let lacking = lacking_features(pool, &cenote_host::feature_list).await?;
        if lacking.is_empty() {
            continue;
        }
        let _ = writeln!(rows, "{}", pool.name());
        for feature in lacking {
            let _ = writeln!(rows, "      {}", feature.name);
        }
    }
    if rows.is_empty() {
        text.push_str("Every feature flags pool has all supported and requested features enabled.\n");
    } else {
        text.push_str(concat!(
            "Some supported features are not enabled on the following pools. Once a\n",
            "feature is enabled the pool may become incompatible with software\n",
            "that does not support the feature. See zpool-features(7) for details.\n\n",
            "Note that the pool 'compatibility' feature can be used to inhibit\nfeature upgrades.\n\n",
            "POOL  FEATURE\n---------------\n",
        ));
        text.push_str(&rows);
    }
    context.out(text)?;
    Ok(Outcome::unless(failed))
}

fn list_features() -> String {
    let mut text = format!(
        "{HEAD}The following features are supported:\n\nFEAT DESCRIPTION\n{}\n",
        "-------------------------------------------------------------"
    );
    for feature in FEATURES.iter().filter(|feature| !feature.is_newer()) {
        let compatible = if feature.read_only_compatible { " (read-only compatible)" } else { "" };
        let _ = writeln!(text, "{:<37}{compatible}\n     {}", feature.name, feature.description);
    }
    text
}
