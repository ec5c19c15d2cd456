//! `zfs hold` and `zfs release`.

use anyhow::{Result, bail};
use cenote_admin::tree_names;
use cenote_dsl::{Dsl, DslError};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use cenote_server::writing::{Writing, line};

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
    let mut failed = 0;
    for name in &held.snapshots {
        // One that fails keeps no other from being done.
        if let Err(error) = change_one(context, &pool, held, name, releases).await {
            context.err(format!("{error:#}"));
            failed += 1;
        }
    }
    if failed == held.snapshots.len() {
        return Ok(Outcome::Failed);
    }
    let verb = if releases { "release" } else { "hold" };
    let words = ["zfs", verb, if held.recursive { "-r" } else { "" }, held.tag.as_str()].into_iter();
    pool.finish(line(words.chain(held.snapshots.iter().map(String::as_str)))).await?;
    Ok(Outcome::unless(failed > 0))
}

/// Changes the holds on one snapshot; with `-r` also those of the same name below, all or none.
async fn change_one(context: &Context, pool: &Writing, held: &Held, name: &str, releases: bool) -> Result<()> {
    let Some((dataset, snapshot)) = name.split_once('@') else { bail!("'{name}' is not a snapshot") };
    if pool_of(dataset) != pool.pool().name() {
        bail!("not supported yet: snapshots of several pools in one command ('{name}')");
    }
    let mut names = vec![name.to_owned()];
    let tree = tree_names(pool.pool(), dataset).await?;
    if held.recursive {
        let (tree, tag, snapshot) = (tree, held.tag.clone(), snapshot.to_owned());
        let look = pool.pool().look(move |syncer| {
            Box::pin(async move { with_snapshot(syncer.dsl(), &tree, &snapshot, releases.then_some(&tag)).await })
        });
        let found = look.await?;
        // Where there is none at all, the first is refused.
        if !found.is_empty() {
            names = found;
        }
    }
    if !releases {
        return Ok(cenote_admin::hold(pool.pool(), &held.tag, &names).await?);
    }
    // Snapshots that are to be destroyed with their last hold.
    context.let_go(|snapshot| names.contains(&snapshot.name())).await?;
    Ok(cenote_admin::release(pool.pool(), &held.tag, &names).await?)
}

/// The snapshots of this name that datasets have; `tag`: those that have a hold of it.
async fn with_snapshot(dsl: &Dsl, datasets: &[String], snapshot: &str, tag: Option<&String>) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for dataset in datasets {
        let name = format!("{dataset}@{snapshot}");
        let there = match dsl.dataset(&name).await {
            Err(DslError::NoSuchDataset(_)) => continue,
            there => there?,
        };
        let is_meant = match tag {
            Some(tag) => dsl.holds(&there).await?.iter().any(|hold| hold.tag == *tag),
            None => true,
        };
        found.extend(is_meant.then_some(name));
    }
    Ok(found)
}
