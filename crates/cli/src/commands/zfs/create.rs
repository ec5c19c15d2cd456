//! `zfs create`.

use anyhow::{Result, anyhow, bail};
use cenote_dmu::Zap;
use cenote_dsl::Dsl;
use cenote_dsl::name::check_new_dataset;
use cenote_format::enums::ObjsetType;
use cenote_format::zpl::{MASTER_NODE, master_node};
use cenote_props::{Types, dataset, effect};
use cenote_spa::{PropertyValue, Syncer};
use cenote_zpl::bulk::{BulkWriter, MODE_DIR, NodeSpec};
use serde::{Deserialize, Serialize};

use crate::commands::zfs::volume;
use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use crate::values::{When, dataset_setting, note_stored};
use crate::writing::{Writing, line};

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
    // Before `-p` makes the missing datasets above it.
    check_new_dataset(name).map_err(|reason| anyhow!("cannot create '{name}': {reason}"))?;
    // What `-o volblocksize=` says is `-b`'s.
    let (blocks, others): (Vec<&String>, Vec<&String>) =
        args.properties.iter().partition(|text| args.volume.is_some() && text.starts_with("volblocksize="));
    let block_size = args.block_size.as_deref().or(blocks.last().and_then(|text| text.split('=').nth(1)));
    let types = if args.volume.is_some() { Types::VOLUME } else { Types::FILESYSTEM };
    let settings = others.iter().filter_map(|text| dataset_setting(text, When::Creation, types).transpose());
    let settings = settings.collect::<Result<Vec<_>>>();
    let settings = settings.map_err(|error| anyhow!("cannot create '{name}': {error:#}"))?;
    let shown: Vec<_> = settings.clone();
    let pool = Writing::open(context, pool_of(name)).await?;
    let (wanted, is_volume) = ((name.clone(), settings.clone()), args.volume.is_some());
    pool.look(move |writer| Box::pin(async move { check(writer, &wanted.0, &wanted.1, is_volume).await })).await?;
    if args.parents {
        let wanted = name.clone();
        let missing = pool.look(move |writer| Box::pin(async move { missing(writer, &wanted).await })).await?;
        let Some(missing) = missing else { return Ok(Outcome::Good) };
        for above in missing {
            pool.step(move |writer| Box::pin(async move { make(writer, &above).await })).await?;
        }
    }
    let wanted = name.clone();
    if let Some(size) = args.volume.clone() {
        let (block_size, sparse) = (block_size.map(str::to_owned), args.sparse);
        let made = async move |writer: &mut Syncer| {
            let wish = volume::Wish { size: &size, block_size: block_size.as_deref(), sparse, settings: &settings };
            volume::make(writer, &wanted, &wish).await
        };
        pool.step(move |writer| Box::pin(async move { made(writer).await })).await?;
    } else {
        // One step: it is there with all its properties or not at all.
        let made = async move |writer: &mut Syncer| {
            check(writer, &wanted, &settings, false).await?;
            make(writer, &wanted).await?;
            for (property, value) in &settings {
                writer.change_property(&wanted, property, Some(value)).await?;
            }
            Ok(())
        };
        pool.step(move |writer| Box::pin(async move { made(writer).await })).await?;
    }
    let options = args.properties.iter().flat_map(|setting| ["-o", setting]);
    let flag = |is_given: bool, flag| if is_given { flag } else { "" };
    let volume = args.volume.iter().flat_map(|size| ["-V", size]);
    let words = ["zfs", "create", flag(args.parents, "-p"), flag(args.sparse, "-s")].into_iter();
    let words = words.chain(args.block_size.iter().flat_map(|size| ["-b", size])).chain(options).chain(volume);
    let words = words.chain([name.as_str()]);
    pool.finish(line(words)).await?;
    let set = shown.iter().map(|(name, value)| (name.as_str(), value));
    note_stored(context, effect::of_dataset, dataset::PROPERTIES, set);
    Ok(Outcome::Good)
}

/// Whether a dataset of this name can have these properties: all that would be refused once it is half made.
async fn check(pool: &Syncer, name: &str, settings: &[(String, PropertyValue)], is_volume: bool) -> Result<()> {
    for (property, value) in settings {
        let checked = pool.check_property(property, value);
        checked.map_err(|error| anyhow!("cannot create '{name}': {error}"))?;
        // A volume's depends on its size.
        if let ("refreservation", PropertyValue::Number(bytes), false) = (property.as_str(), value, is_volume) {
            let view = pool.dsl().clone();
            let above = name.rsplit_once('/').map(|(above, _)| above);
            if let Some(above) = above
                && let Ok(dir) = view.dir(above).await
                && *bytes > pool.available_bytes(&view, &dir).await?
            {
                bail!("cannot create '{name}': out of space");
            }
        }
    }
    Ok(())
}

/// Names above this one that are missing, from the top down; nothing if it is there itself.
async fn missing(pool: &Syncer, name: &str) -> Result<Option<Vec<String>>> {
    let view = pool.dsl().clone();
    if view.dir(name).await.is_ok() {
        return Ok(None);
    }
    let mut missing = Vec::new();
    for (at, _) in name.match_indices('/') {
        if view.dir(&name[..at]).await.is_err() {
            missing.push(name[..at].to_owned());
        }
    }
    Ok(Some(missing))
}

/// Makes an empty file system.
async fn make(pool: &mut Syncer, name: &str) -> Result<()> {
    if let Some((above, _)) = name.rsplit_once('/') {
        check_names(&pool.dsl().clone(), above).await?;
    }
    let head = pool.create_dataset(name, ObjsetType::Zfs).await?;
    let now = [pool.time_s(), 0];
    let node =
        NodeSpec { mode: MODE_DIR | 0o755, atime: now, mtime: now, ctime: now, crtime: now, ..NodeSpec::default() };
    BulkWriter::create(&head.objset, pool.txg(), &node).await?;
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
