//! `zfs create`.

use anyhow::anyhow;
use cenote_admin::values::Types;
use cenote_admin::values::{When, check_new_dataset, check_once, dataset_settings, stored_of_datasets};
use cenote_admin::{Setting, VolumePlan, VolumeShape, create_filesystem, create_volume, outermost_new, plan_volume};
use cenote_server::writing::{Writing, line};

use crate::args::parse_size;
use crate::prelude::*;

/// The size of a volume's blocks that OpenZFS does not name where nothing speaks for another.
const USUAL_BLOCK_BYTES: u64 = 16 << 10;

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
    // What `-o volblocksize=` says is `-b`'s.
    let (blocks, others): (Vec<&String>, Vec<&String>) =
        args.properties.iter().partition(|text| args.volume.is_some() && text.starts_with("volblocksize="));
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
    for (property, value) in listed(args, plan.as_ref()) {
        told.push_str(&match args.parsable {
            true => format!("property\t{property}\t{value}\n"),
            false => format!("\t{property}={value}\n"),
        });
    }
    context.out(told)
}

/// The properties of a new dataset that the command gives or that follow from it, in the order in which OpenZFS lists them: numbers that it
/// works out stand last.
fn listed(args: &Args, plan: Option<&VolumePlan>) -> Vec<(String, String)> {
    let given = args.properties.iter().filter_map(|text| text.split_once('='));
    let given: Vec<(String, String)> = given.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let Some(plan) = plan else { return given };
    let is_given = |name: &str| given.iter().any(|(other, _)| other == name);
    let (size, block) = (plan.size_bytes.to_string(), plan.block_bytes.to_string());
    let is_whole = parse_size(args.volume.as_deref().unwrap_or_default()).is_ok_and(|bytes| bytes == plan.size_bytes);
    let is_usual = plan.block_bytes == USUAL_BLOCK_BYTES;
    let (mut first, mut last) = (Vec::new(), Vec::new());
    match args.block_size.is_some() {
        true if is_usual => first.push(("volblocksize".to_owned(), block)),
        false if is_usual || is_given("volblocksize") => {}
        _ => last.push(("volblocksize".to_owned(), block)),
    }
    let place = if is_whole { &mut first } else { &mut last };
    place.insert(if is_whole { 0 } else { place.len() }, ("volsize".to_owned(), size));
    if !args.sparse && !is_given("refreservation") {
        last.push(("refreservation".to_owned(), plan.reserved_bytes.to_string()));
    }
    first.into_iter().chain(given).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn properties_are_listed_in_openzfs_order() {
        let list = |line: &str, size_bytes, block_bytes| {
            let args = Line::parse_from(line.split(' ')).args;
            let plan = VolumePlan { size_bytes, block_bytes, reserved_bytes: 7 };
            let listed = listed(&args, Some(&plan)).into_iter();
            listed.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        let usual = 16 << 10;
        assert_eq!(list("create -V 1M p/v", 1 << 20, usual), "volsize=1048576 refreservation=7");
        assert_eq!(list("create -s -V 1M -b 16k p/v", 1 << 20, usual), "volsize=1048576 volblocksize=16384");
        assert_eq!(
            list("create -V 1M -b 8k -o exec=off p/v", 1 << 20, 8192),
            "volsize=1048576 exec=off volblocksize=8192 refreservation=7"
        );
        assert_eq!(
            list("create -V 1000 -o volblocksize=8k -o refreservation=none p/v", 8192, 8192),
            "volblocksize=8k refreservation=none volsize=8192"
        );
    }
}
