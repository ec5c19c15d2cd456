//! `zfs rename`.

use anyhow::{Result, bail};
use cenote_admin::tree_names;
use cenote_dsl::name::check_new_snapshot;
use cenote_spa::Syncer;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use cenote_server::writing::{Writing, line};

/// Give a file system, a volume or a snapshot another name.
///
/// A file system or volume can move below another one of its pool, with all that is below it. Of a snapshot the new name may
/// be given from the `@` on.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Make what is missing above the new name.
    #[arg(short = 'p')]
    parents: bool,
    /// Snapshots of this name of all datasets below.
    #[arg(short = 'r')]
    recursive: bool,
    /// Nothing is mounted here, so nothing has to be unmounted.
    #[arg(short = 'f')]
    force: bool,
    /// Nothing is mounted here, so nothing has to be mounted again.
    #[arg(short = 'u')]
    unmounted: bool,
    /// What is renamed.
    #[arg(value_name = "DATASET")]
    from: String,
    /// Its new name.
    #[arg(value_name = "NAME")]
    to: String,
}

impl Args {
    fn line(&self) -> String {
        let flags = [(self.recursive, "-r"), (self.force, "-f"), (self.unmounted, "-u")];
        let flags = flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag));
        line(["zfs", "rename"].into_iter().chain(flags).chain([self.from.as_str(), self.to.as_str()]))
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    for (is_both, options) in
        [(args.recursive && args.parents, "-p and -r"), (args.unmounted && args.parents, "-u and -p")]
    {
        if is_both {
            return Err(usage(format!("{options} options are mutually exclusive")));
        }
    }
    if args.recursive && !args.from.contains('@') {
        return Err(usage("source dataset for recursive rename must be a snapshot"));
    }
    if args.parents {
        bail!("not supported yet: -p");
    }
    let name = pool_of(&args.from).to_owned();
    let pool = Writing::open(context, &name).await?;
    if let Some((dataset, snapshot)) = args.from.split_once('@')
        && pool.pool().dsl()?.find_dir(&args.from).await?.is_none()
    {
        return rename_snapshot(context, &args, dataset, snapshot, pool).await;
    }
    let to = args.to.clone();
    let from = args.from.clone();
    let volumes = context.served_volumes().cloned();
    let rename = async move |writer: &mut Syncer| {
        writer.rename_dataset(&from, &to).await?;
        if let Some(volumes) = volumes {
            volumes.names_changed();
        }
        Ok::<_, anyhow::Error>(())
    };
    pool.step(move |writer| Box::pin(async move { rename(writer).await })).await?;
    pool.finish(args.line()).await?;
    context.datasets_changed(&[args.from, args.to]).await;
    Ok(Outcome::Good)
}

/// The new name may be given in full, from the '@' on, or behind it.
async fn rename_snapshot(
    context: &Context,
    args: &Args,
    dataset: &str,
    snapshot: &str,
    pool: Writing,
) -> Result<Outcome> {
    if args.unmounted {
        bail!("cannot open '{}': snapshot delimiter '@' is not expected here", args.from);
    }
    let found = pool.pool().dsl()?.dataset(&args.from).await?;
    let new = match args.to.split_once('@') {
        None => &args.to,
        Some((head, new)) if head.is_empty() || head == dataset => new,
        Some(_) => bail!("cannot rename to '{}': snapshots must be part of same dataset", args.to),
    };
    if args.to == args.from {
        return Ok(Outcome::Good);
    }
    if let Err(reason) = check_new_snapshot(&format!("{dataset}@{new}")) {
        bail!("cannot rename to '{}': {reason}", args.to);
    }
    debug_assert!(found.is_snapshot(), "a name with an '@' that is no directory's is a snapshot's");
    pool.pool().rename_snapshots(dataset, snapshot, new, args.recursive).await?;
    if let Some(volumes) = context.served_volumes() {
        volumes.names_changed();
    }
    let datasets = match args.recursive {
        true => tree_names(pool.pool(), dataset).await?,
        false => vec![dataset.to_owned()],
    };
    pool.finish(args.line()).await?;
    context.datasets_changed(&datasets).await;
    Ok(Outcome::Good)
}
