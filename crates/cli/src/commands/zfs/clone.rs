//! `zfs clone`.

use anyhow::{anyhow, bail};
use cenote_admin::values::{When, check_new_dataset, check_once, dataset_settings, stored_of_datasets};
use cenote_admin::{clone_dataset, create_filesystem_of};
use cenote_listing::type_of;
use cenote_server::writing::{Writing, line};

use crate::prelude::*;

/// Make a file system or volume that begins as a snapshot, and shares its blocks.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Make what is missing above it too.
    #[arg(short = 'p')]
    parents: bool,
    /// Accepted for the sake of scripts: nothing is mounted by this.
    #[arg(short = 'u')]
    keep_unmounted: bool,
    /// Set a property.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// The snapshot.
    snapshot: String,
    /// The new file system or volume.
    dataset: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let name = &args.dataset;
    check_once(&args.properties)?;
    if !args.snapshot.contains('@') {
        bail!("cannot open '{}': missing '@' delimiter in snapshot name", args.snapshot);
    }
    check_new_dataset(name).map_err(|reason| anyhow!("cannot create '{name}': {reason}"))?;
    if pool_of(name) != pool_of(&args.snapshot) {
        bail!("cannot create '{name}': source and target pools differ");
    }
    let pool = Writing::open(context, pool_of(&args.snapshot)).await?;
    let dsl = pool.pool().dsl()?;
    let kind = dsl.kind(&dsl.dataset(&args.snapshot).await?).await?;
    if args.parents && dsl.find_dir(name).await?.is_some() {
        pool.leave().await?;
        return Ok(Outcome::Good);
    }
    let settings = dataset_settings(&args.properties, When::Cloning, type_of(kind)?);
    let settings = settings.map_err(|error| anyhow!("cannot create '{name}': {error}"))?;
    let notes = stored_of_datasets(&settings);
    if args.parents
        && let Some((above, _)) = name.rsplit_once('/')
        && above.contains('/')
    {
        create_filesystem_of(pool.pool(), above, Vec::new(), true, context.owner()).await?;
    }
    clone_dataset(pool.pool(), &args.snapshot, name, settings).await?;
    let options = args.properties.iter().flat_map(|setting| ["-o", setting]);
    let words = ["zfs", "clone", if args.parents { "-p" } else { "" }].into_iter().chain(options);
    pool.finish(line(words.chain([args.snapshot.as_str(), name]))).await?;
    context.datasets_changed(std::slice::from_ref(name)).await;
    notes.iter().for_each(|note| context.err(note));
    Ok(Outcome::Good)
}
