//! `zpool create`.

use std::path::Path;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::args::parse_size;
use crate::cachefile::{CacheFile, Entry};
use crate::context::Context;
use crate::newpool::{NewPool, Wish};
use crate::outcome::Outcome;
use crate::vdevspec::parse_layout;

/// Make a pool.
///
/// VDEV is a file or device, or `mirror`, `raidz1` to `raidz3`, or `draid` (as in OpenZFS: `draid2:4d:11c`) and the files or
/// devices after it. The pool is exported when the command ends, so that any system can import it.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Use devices that are part of another pool.
    #[arg(short = 'f')]
    force: bool,
    /// Only say what would be made.
    #[arg(short = 'n')]
    dry_run: bool,
    /// Set a property of the pool: ashift, feature@NAME.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Set a property of the root file system.
    #[arg(short = 'O', value_name = "PROPERTY=VALUE")]
    dataset_properties: Vec<String>,
    /// Make files that do not exist, of this size.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Draw guids and salts from this number, so that the same command makes the same pool; the time of everything is that
    /// of SOURCE_DATE_EPOCH if it is set.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The pool's name.
    pool: String,
    /// The vdevs.
    #[arg(required = true, value_name = "VDEV")]
    vdevs: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let layout = parse_layout(&args.vdevs)?;
    if args.dry_run {
        context.out(format!("would create '{}' with the following layout:\n\n\t{}\n", args.pool, args.pool))?;
        for top in &layout.tops {
            context.out(top.describe())?;
        }
        return Ok(Outcome::Good);
    }
    let cache = CacheFile::of_user()?;
    if cache.pools()?.contains_key(&args.pool) {
        bail!("cannot create '{}': pool already exists", args.pool);
    }
    let wish = Wish {
        name: &args.pool,
        layout: &layout,
        pool: &args.properties,
        dataset: &args.dataset_properties,
        size: args.size,
        seed: args.seed,
        force: args.force,
        command: format!("zpool create {} {}", args.pool, args.vdevs.join(" ")),
    };
    let (mut new, made) = NewPool::make(context, &wish).await?;
    new.pool.sync().await?;
    made.keep();
    let guid = new.pool.guid().0;
    new.pool.export().await?;
    let paths = layout.paths().map(Path::to_owned).collect();
    cache.update(|pools| {
        pools.insert(args.pool.clone(), Entry { guid, paths, ..Entry::default() });
        Ok(())
    })?;
    Ok(Outcome::Good)
}
