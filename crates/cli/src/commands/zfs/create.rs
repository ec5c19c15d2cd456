//! `zfs create`.

use anyhow::{Result, anyhow};
use cenote_admin::{VolumeShape, create_filesystem, create_volume};
use cenote_dsl::DslError;
use cenote_dsl::name::check_new_dataset;
use cenote_props::{Types, dataset, effect};
use cenote_spa::Pool;
use serde::{Deserialize, Serialize};

use crate::args::parse_size;
use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use cenote_admin::values::{When, check_once};
use cenote_admin::values::{dataset_setting, stored_only};
use cenote_server::writing::{Writing, line};

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
    /// Not yet: only say what would be made.
    #[arg(short = 'n', hide = true)]
    dry_run: bool,
    /// Not yet: say what is made.
    #[arg(short = 'v', hide = true)]
    verbose: bool,
    /// Not yet: say it for scripts.
    #[arg(short = 'P', hide = true)]
    parsable: bool,
    /// The file system or volume.
    dataset: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let name = &args.dataset;
    if args.dry_run || args.verbose || args.parsable {
        return Err(usage("not supported yet: -n, -v and -P"));
    }
    if args.volume.is_none() && (args.sparse || args.block_size.is_some()) {
        return Err(usage("'-s' and '-b' can only be used when creating a volume"));
    }
    if args.volume.is_some() && args.keep_unmounted {
        return Err(usage("'-u' can only be used when creating a filesystem"));
    }
    // Before `-p` makes the missing datasets above it.
    check_new_dataset(name).map_err(|reason| anyhow!("cannot create '{name}': {reason}"))?;
    check_once(&args.properties)?;
    // What `-o volblocksize=` says is `-b`'s.
    let (blocks, others): (Vec<&String>, Vec<&String>) =
        args.properties.iter().partition(|text| args.volume.is_some() && text.starts_with("volblocksize="));
    let block_size = args.block_size.as_deref().or(blocks.last().and_then(|text| text.split('=').nth(1)));
    let types = if args.volume.is_some() { Types::VOLUME } else { Types::FILESYSTEM };
    let settings = others.iter().filter_map(|text| dataset_setting(text, When::Creation, types).transpose());
    let settings = settings.collect::<Result<Vec<_>, _>>();
    let settings = settings.map_err(|error| anyhow!("cannot create '{name}': {error}"))?;
    let shown = settings.clone();
    let shape = args.volume.as_deref().map(|size| shape(size, block_size, args.sparse)).transpose()?;
    let pool = Writing::open(context, pool_of(name)).await?;
    let outermost = outermost_new(pool.pool(), name).await?;
    match shape {
        Some(shape) => create_volume(pool.pool(), name, shape, settings, args.parents).await?,
        None => create_filesystem(pool.pool(), name, settings, args.parents).await?,
    };
    let options = args.properties.iter().flat_map(|setting| ["-o", setting]);
    let flag = |is_given: bool, flag| if is_given { flag } else { "" };
    let volume = args.volume.iter().flat_map(|size| ["-V", size]);
    let words = ["zfs", "create", flag(args.parents, "-p"), flag(args.sparse, "-s")].into_iter();
    let words = words.chain(args.block_size.iter().flat_map(|size| ["-b", size])).chain(options).chain(volume);
    let words = words.chain([name.as_str()]);
    pool.finish(line(words)).await?;
    context.datasets_changed(&[outermost]).await;
    let set = shown.iter().map(|(name, value)| (name.as_str(), value));
    stored_only(effect::of_dataset, dataset::PROPERTIES, set).iter().for_each(|note| context.err(note));
    Ok(Outcome::Good)
}

/// The outermost dataset on the way to a new one that is not there yet.
async fn outermost_new(pool: &Pool, name: &str) -> Result<String> {
    let dsl = pool.dsl()?;
    let mut outermost = name;
    while let Some((above, _)) = outermost.rsplit_once('/') {
        match dsl.dir(above).await {
            Err(DslError::NoSuchDataset(_)) => outermost = above,
            Ok(_) | Err(_) => break,
        }
    }
    Ok(outermost.to_owned())
}

fn shape(size: &str, block_size: Option<&str>, sparse: bool) -> Result<VolumeShape> {
    let size_bytes = parse_size(size).map_err(|_| anyhow!("bad volume size '{size}'"))?;
    let block_bytes = block_size.map(|text| parse_size(text).map_err(|_| anyhow!("bad volume block size '{text}'")));
    Ok(VolumeShape { size_bytes, block_bytes: block_bytes.transpose()?, sparse })
}
