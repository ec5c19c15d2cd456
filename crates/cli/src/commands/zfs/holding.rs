//! `zfs hold` and `zfs release`.

use anyhow::{Result, bail};
use cenote_admin::tree_names;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use crate::writing::{Writing, line};

/// The snapshots, and the tag.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Also snapshots of the same name of all datasets below.
    #[arg(short = 'r')]
    recursive: bool,
    /// The tag.
    tag: String,
    /// The snapshots.
    #[arg(value_name = "SNAPSHOT", required = true)]
    snapshots: Vec<String>,
}

/// The verb that keeps snapshots.
pub(super) mod hold {
    use super::*;

    /// Keep snapshots from being destroyed, until all holds on them are released.
    #[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
    pub(crate) struct Args {
        #[command(flatten)]
        held: Held,
    }

    pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
        change(context, &args.held, false).await
    }
}

/// The verb that lets go of them.
pub(super) mod release {
    use super::*;

    /// Take holds off snapshots.
    #[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
    pub(crate) struct Args {
        #[command(flatten)]
        held: Held,
    }

    pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
        change(context, &args.held, true).await
    }
}

async fn change(context: &Context, held: &Held, releases: bool) -> Result<Outcome> {
    if !releases && held.tag.starts_with('.') {
        return Err(usage("tag may not start with '.'"));
    }
    let pool = Writing::open(context, pool_of(&held.snapshots[0])).await?;
    let dsl = pool.pool().dsl()?;
    let mut names = Vec::new();
    for name in &held.snapshots {
        let Some((dataset, snapshot)) = name.split_once('@') else { bail!("'{name}' is not a snapshot") };
        dsl.dataset(name).await?;
        names.push(name.clone());
        if held.recursive {
            for below in tree_names(pool.pool(), dataset).await?.into_iter().skip(1) {
                let below = format!("{below}@{snapshot}");
                if dsl.dataset(&below).await.is_ok() {
                    names.push(below);
                }
            }
        }
    }
    match releases {
        true => cenote_admin::release(pool.pool(), &held.tag, &names).await?,
        false => cenote_admin::hold(pool.pool(), &held.tag, &names).await?,
    }
    let verb = if releases { "release" } else { "hold" };
    let words = ["zfs", verb, if held.recursive { "-r" } else { "" }, held.tag.as_str()].into_iter();
    pool.finish(line(words.chain(held.snapshots.iter().map(String::as_str)))).await?;
    Ok(Outcome::Good)
}
