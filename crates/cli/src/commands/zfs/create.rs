//! `zfs create`.

use anyhow::{Result, anyhow, bail};
use cenote_dmu::zap::Zap;
use cenote_dsl::Dsl;
use cenote_format::zpl::{MASTER_NODE, master_node};
use cenote_spa::write::PoolWriter;
use cenote_zpl::write::{FileSystemMut, MODE_DIR, NodeSpec};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::Outcome;
use crate::writing::{dataset_setting, finish, line, open_for_writing};

/// Make a file system.
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
    /// Make a volume of this size.
    #[arg(short = 'V', value_name = "SIZE")]
    volume: Option<String>,
    /// The file system.
    filesystem: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let name = &args.filesystem;
    if args.volume.is_some() {
        bail!("not supported yet: making volumes");
    }
    let settings = args.properties.iter().map(|text| dataset_setting(text)).collect::<Result<Vec<_>>>();
    let settings = settings.map_err(|error| anyhow!("cannot create '{name}': {error:#}"))?;
    let mut pool = open_for_writing(context, pool_of(name)).await?;
    let view = pool.view().await?;
    if args.parents {
        if view.dir(name).await.is_ok() {
            return Ok(Outcome::Good);
        }
        for (at, _) in name.match_indices('/') {
            if view.dir(&name[..at]).await.is_err() {
                make(&mut pool, &name[..at]).await?;
                // The next one is looked for among what is on disk.
                pool.sync().await?;
            }
        }
    }
    make(&mut pool, name).await?;
    if !settings.is_empty() {
        pool.sync().await?;
    }
    for (property, value) in &settings {
        pool.change_property(name, property, Some(value)).await?;
    }
    let options = args.properties.iter().flat_map(|setting| ["-o", setting]);
    let words =
        ["zfs", "create", if args.parents { "-p" } else { "" }].into_iter().chain(options).chain([name.as_str()]);
    finish(pool, &line(words)).await?;
    Ok(Outcome::Good)
}

/// Makes an empty file system.
async fn make(pool: &mut PoolWriter, name: &str) -> Result<()> {
    if let Some((above, _)) = name.rsplit_once('/') {
        check_names(&pool.view().await?, above).await?;
    }
    let head = pool.create_dataset(name).await?;
    let now = [pool.time_s(), 0];
    let node =
        NodeSpec { mode: MODE_DIR | 0o755, atime: now, mtime: now, ctime: now, crtime: now, ..NodeSpec::default() };
    FileSystemMut::create(&head.objset, pool.txg(), &node).await?;
    Ok(())
}

/// How names are compared is inherited at creation; only the usual way is written yet.
async fn check_names(view: &Dsl, above: &str) -> Result<()> {
    let Ok(dataset) = view.dataset(above).await else { return Ok(()) };
    let Some(objset) = view.open(&dataset).await? else { return Ok(()) };
    let master = Zap::open(objset.object(MASTER_NODE).await?).await?;
    for name in [master_node::NORMALIZATION, master_node::UTF8_ONLY, master_node::CASE_SENSITIVITY] {
        if master.find_u64(name).await?.unwrap_or(0) != 0 {
            bail!("not supported yet: file systems below one with the property '{name}' ('{above}')");
        }
    }
    Ok(())
}
