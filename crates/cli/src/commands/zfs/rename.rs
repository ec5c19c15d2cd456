//! `zfs rename`.

use anyhow::{Result, bail};
use cenote_spa::Syncer;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use crate::writing::{Writing, line};

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

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.parents || args.recursive {
        bail!("not supported yet: -p and -r");
    }
    let name = pool_of(&args.from).to_owned();
    let to = match (args.from.split_once('@'), args.to.strip_prefix('@')) {
        (Some((head, _)), Some(snapshot)) => format!("{head}@{snapshot}"),
        (Some((head, _)), None) if !args.to.contains('@') => {
            return Err(usage(format!("a snapshot's new name is '@NAME' or '{head}@NAME'")));
        }
        _ => args.to.clone(),
    };
    let pool = Writing::open(context, &name).await?;
    let from = args.from.clone();
    let volumes = context.served_volumes().cloned();
    let rename = async move |writer: &mut Syncer| {
        writer.rename_dataset(&from, &to).await?;
        if let Some(volumes) = volumes {
            volumes.names_changed();
        }
        Ok(())
    };
    pool.step(move |writer| Box::pin(async move { rename(writer).await })).await?;
    let flags =
        [(args.force, "-f"), (args.unmounted, "-u")].into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag));
    let words = ["zfs", "rename"].into_iter().chain(flags).chain([args.from.as_str(), args.to.as_str()]);
    pool.finish(line(words)).await?;
    context.datasets_changed(&[args.from, args.to]).await;
    Ok(Outcome::Good)
}
