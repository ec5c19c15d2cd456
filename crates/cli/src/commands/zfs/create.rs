//! `zfs create`.

use anyhow::{Result, anyhow, bail};
use cenote_dmu::zap::Zap;
use cenote_dsl::Dsl;
use cenote_format::enums::ObjsetType;
use cenote_format::zpl::{MASTER_NODE, master_node};
use cenote_spa::write::PoolWriter;
use cenote_zpl::write::{FileSystemMut, MODE_DIR, NodeSpec};
use serde::{Deserialize, Serialize};

use crate::commands::zfs::volume;
use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use crate::writing::{dataset_setting, finish, line, open_for_writing, volume_setting};

/// Make a file system, or with -V a volume.
///
/// For a volume as much is reserved as it takes when all of it is written, unless -s is given.
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
    /// Make a volume of this size; up to whole blocks.
    #[arg(short = 'V', value_name = "SIZE")]
    volume: Option<String>,
    /// The volume's block size; 16K where nothing speaks for more.
    #[arg(short = 'b', value_name = "BLOCKSIZE")]
    block_size: Option<String>,
    /// Reserve nothing for the volume.
    #[arg(short = 's')]
    sparse: bool,
    /// The file system or volume.
    dataset: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let name = &args.dataset;
    if args.volume.is_none() && (args.sparse || args.block_size.is_some()) {
        return Err(usage("'-s' and '-b' can only be used when creating a volume"));
    }
    if args.volume.is_some() && args.keep_unmounted {
        return Err(usage("'-u' can only be used when creating a filesystem"));
    }
    // What `-o volblocksize=` says is `-b`'s.
    let (blocks, others): (Vec<&String>, Vec<&String>) =
        args.properties.iter().partition(|text| args.volume.is_some() && text.starts_with("volblocksize="));
    let block_size = args.block_size.as_deref().or(blocks.last().and_then(|text| text.split('=').nth(1)));
    let parse = if args.volume.is_some() { volume_setting } else { dataset_setting };
    let settings = others.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>();
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
    if let Some(size) = &args.volume {
        let settings = &settings[..];
        let wish = volume::Wish { size, block_size, sparse: args.sparse, settings };
        volume::make(&mut pool, name, &wish).await?;
    } else {
        make(&mut pool, name).await?;
        if !settings.is_empty() {
            pool.sync().await?;
        }
        for (property, value) in &settings {
            pool.change_property(name, property, Some(value)).await?;
        }
    }
    let options = args.properties.iter().flat_map(|setting| ["-o", setting]);
    let flag = |is_given: bool, flag| if is_given { flag } else { "" };
    let volume = args.volume.iter().flat_map(|size| ["-V", size]);
    let words = ["zfs", "create", flag(args.parents, "-p"), flag(args.sparse, "-s")].into_iter();
    let words = words.chain(args.block_size.iter().flat_map(|size| ["-b", size])).chain(options).chain(volume);
    let words = words.chain([name.as_str()]);
    finish(pool, &line(words)).await?;
    Ok(Outcome::Good)
}

/// Makes an empty file system.
async fn make(pool: &mut PoolWriter, name: &str) -> Result<()> {
    if let Some((above, _)) = name.rsplit_once('/') {
        check_names(&pool.view().await?, above).await?;
    }
    let head = pool.create_dataset(name, ObjsetType::Zfs).await?;
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
