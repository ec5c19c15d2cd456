//! `zfs create`.

use anyhow::anyhow;
use cenote_admin::values::Types;
use cenote_admin::values::{When, check_new_dataset, check_once, dataset_settings, full_name, stored_of_datasets};
use cenote_admin::{
    NewVolume, Setting, VolumeShape, create_filesystem_of, create_volume_of, new_properties, outermost_new, plan_volume,
};
use cenote_server::writing::{Writing, line};

use crate::args::parse_size;
use crate::prelude::*;

/// Make a file system, or with -V a volume.
///
/// The root directory of a new file system belongs to the user and group of the process that runs this command. For a volume as much is reserved as it takes when all of it is written, unless -s is given.
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
    /// Make nothing; with -v or -P say what would be made.
    #[arg(short = 'n')]
    dry_run: bool,
    /// Say what is made, with its properties.
    #[arg(short = 'v')]
    verbose: bool,
    /// Say it for scripts: words between tabs.
    #[arg(short = 'P')]
    parsable: bool,
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
    let doing = if args.dry_run { "verify" } else { "create" };
    // Before `-p` makes the missing datasets above it.
    check_new_dataset(name).map_err(|reason| anyhow!("cannot {doing} '{name}': {reason}"))?;
    check_once(&args.properties)?;
    // `-o volblocksize=` sets the same size as `-b`.
    let (blocks, others): (Vec<&String>, Vec<&String>) = args.properties.iter().partition(|text| {
        let name = text.split_once('=').map(|(name, _)| full_name(name));
        args.volume.is_some() && name == Some("volblocksize")
    });
    let block_size = args.block_size.as_deref().or(blocks.last().and_then(|text| text.split('=').nth(1)));
    let types = if args.volume.is_some() { Types::VOLUME } else { Types::FILESYSTEM };
    let settings = dataset_settings(others, When::Creation, types);
    let settings = settings.map_err(|error| anyhow!("cannot {doing} '{name}': {error}"))?;
    let notes = stored_of_datasets(&settings);
    let shape = args.volume.as_deref().map(|size| VolumeShape::parse(size, block_size, args.sparse)).transpose()?;
    let pool = Writing::open(context, pool_of(name)).await?;
    if args.dry_run || args.verbose || args.parsable {
        report(context, &args, &pool, shape, &settings).await?;
    }
    if args.dry_run {
        pool.leave().await?;
        return Ok(Outcome::Good);
    }
    let outermost = outermost_new(pool.pool(), name).await?;
    match shape {
        Some(shape) => create_volume_of(pool.pool(), name, shape, settings, args.parents, context.owner()).await?,
        None => create_filesystem_of(pool.pool(), name, settings, args.parents, context.owner()).await?,
    };
    let options = args.properties.iter().flat_map(|setting| ["-o", setting]);
    let flag = |is_given: bool, flag| if is_given { flag } else { "" };
    let volume = args.volume.iter().flat_map(|size| ["-V", size]);
    let words = ["zfs", "create", flag(args.parents, "-p"), flag(args.sparse, "-s")].into_iter();
    let words = words.chain(args.block_size.iter().flat_map(|size| ["-b", size])).chain(options).chain(volume);
    let words = words.chain([name.as_str()]);
    pool.finish(line(words)).await?;
    context.datasets_changed(&[outermost]).await;
    notes.iter().for_each(|note| context.err(note));
    Ok(Outcome::Good)
}

/// Says what is made, or would be; nothing where `-p` finds it there.
async fn report(
    context: &Context,
    args: &Args,
    pool: &Writing,
    shape: Option<VolumeShape>,
    settings: &[Setting],
) -> Result<()> {
    let name = &args.dataset;
    let plan = match shape {
        Some(shape) => Some(plan_volume(pool.pool(), name, shape, settings.to_vec()).await?),
        None => None,
    };
    let is_there = args.parents && pool.pool().dsl()?.find_dir(name).await?.is_some();
    if is_there || !(args.verbose || args.parsable) {
        return Ok(());
    }
    let words = |made: &str, text: &str| match (args.parsable, args.dry_run) {
        (true, _) => format!("{made}\t{name}\n"),
        (false, true) => format!("would {text} {name}\n"),
        (false, false) => format!("{text} {name}\n"),
    };
    let mut told = String::new();
    if args.parents {
        told.push_str(&words("create_ancestors", "create ancestors of"));
    }
    told.push_str(&words("create", "create"));
    let asked = NewVolume {
        asked_bytes: args.volume.as_deref().and_then(|size| parse_size(size).ok()),
        names_blocks: args.block_size.is_some(),
        is_sparse: args.sparse,
    };
    for (property, value) in new_properties(&args.properties, &asked, plan.as_ref()) {
        told.push_str(&match args.parsable {
            true => format!("property\t{property}\t{value}\n"),
            false => format!("\t{property}={value}\n"),
        });
    }
    context.out(told)
}
