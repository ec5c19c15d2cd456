//! `zpool upgrade`.

use anyhow::bail;
use cenote_admin::{UpgradeRequest, lacking_features};
use cenote_listing::{UPGRADE_HEAD, enabled_text, features_text, lacking_text};

use crate::prelude::*;

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

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.features {
        if args.all || !args.pools.is_empty() {
            return Err(usage("-v option is incompatible with other arguments"));
        }
        context.out(features_text())?;
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
    context.out(UPGRADE_HEAD)?;
    for name in names {
        if let Err(error) = upgrade(context, &name, args.all).await {
            context.err(causes(&error));
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
    let features = lacking.iter().map(|feature| feature.name).collect();
    let enabled = context.carry_out(&UpgradeRequest { pool: name.to_owned(), features }).await?;
    context.out(enabled_text(name, &enabled))
}

async fn list_pools(context: &Context) -> Result<Outcome> {
    let (pools, failed) = context.open_pools(&[]).await?;
    let mut found = Vec::new();
    for pool in &pools {
        found.push((pool.name().to_owned(), lacking_features(pool, &cenote_host::feature_list).await?));
    }
    context.out(lacking_text(&found))?;
    Ok(Outcome::unless(failed))
}
