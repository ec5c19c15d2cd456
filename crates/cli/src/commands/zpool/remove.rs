//! `zpool remove`.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use cenote_format::ids::Guid;
use cenote_host::CacheFile;
use cenote_spa::View;
use cenote_vdev::config::{VdevConfig, VdevKind};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::{Outcome, usage};
use cenote_server::writing::{Writing, line};

/// Remove log devices, hot spares and cache devices from a pool.
///
/// DEVICE is a path, the name of a mirror of log devices as `zpool status` shows it, or a guid. Vdevs with blocks of datasets are not removed
/// yet.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Only show the memory that the mapping of a removed vdev would take: none, for these devices.
    #[arg(short = 'n')]
    dry_run: bool,
    /// With -n: the number alone.
    #[arg(short = 'p')]
    parsable: bool,
    /// Stop a removal that is under way: there is none that takes time.
    #[arg(short = 's')]
    stop: bool,
    /// Wait until the removal is done, which it is when the command ends.
    #[arg(short = 'w')]
    wait: bool,
    /// The pool.
    pool: String,
    /// The devices.
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
    /// The folder in which the command was given: a server works in another one.
    #[arg(skip = std::env::current_dir().unwrap_or_default())]
    folder: PathBuf,
}

/// A device of the pool.
struct Device {
    guid: Guid,
    /// Paths of its leaves, as they are noted elsewhere.
    paths: Vec<PathBuf>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.stop {
        if args.dry_run {
            context.err("stop request ignored");
            return Ok(Outcome::Good);
        }
        if args.wait {
            return Err(usage("-w cannot be used with -s"));
        }
        if !args.devices.is_empty() {
            return Err(usage("too many arguments"));
        }
        bail!("cannot cancel removal: there are no removals in progress");
    }
    if args.devices.is_empty() {
        return Err(usage("missing device"));
    }
    // The pool is opened to be written only where there is something to remove.
    let pool = context.open_pool(&args.pool).await?;
    let mut devices = Vec::new();
    let mut is_good = true;
    for name in &args.devices {
        match find(&pool, &args.folder, name).await? {
            Some(device) => devices.push((name.clone(), device)),
            None => {
                context.err(format!("cannot remove {name}: no such device in pool"));
                is_good = false;
            }
        }
    }
    pool.close().await;
    if args.dry_run {
        for (name, _) in &devices {
            context.out(match args.parsable {
                true => format!("{name} 0\n"),
                false => format!("Memory that will be used after removing {name}: 0\n"),
            })?;
        }
    } else if !devices.is_empty() {
        is_good &= remove(context, &args, devices).await?;
    }
    Ok(if is_good { Outcome::Good } else { Outcome::Failed })
}

/// Removes them, one after the other. Whether all could be.
async fn remove(context: &Context, args: &Args, devices: Vec<(String, Device)>) -> Result<bool> {
    let writing = Writing::open(context, &args.pool).await?;
    let (mut gone, mut is_good) = (Vec::new(), true);
    for (name, device) in devices {
        match writing.pool().remove_vdev(device.guid).await {
            Ok(_) => gone.push((name, device)),
            Err(error) => {
                context.err(format!("cannot remove {name}: {error}"));
                is_good = false;
            }
        }
    }
    let paths: Vec<PathBuf> = gone.iter().flat_map(|(_, device)| device.paths.clone()).collect();
    context.devices_removed(&paths);
    let words = ["zpool", "remove", &args.pool].into_iter().chain(gone.iter().map(|(name, _)| name.as_str()));
    match gone.is_empty() {
        // Nothing is noted of a command that has done nothing.
        true => writing.leave().await?,
        false => writing.finish(line(words)).await?,
    }
    CacheFile::of_user()?.update(|pools| {
        if let Some(entry) = pools.get_mut(&args.pool) {
            entry.paths.retain(|path| !paths.contains(path));
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(is_good)
}

/// The device of a pool that a word names: a path, as it is noted in the pool or as it is reached from here; a name as `zpool status` shows it;
/// a guid.
async fn find(pool: &View, folder: &Path, word: &str) -> Result<Option<Device>> {
    let given = folder.join(word);
    let given = given.canonicalize().unwrap_or(given);
    let is_named = |vdev: &VdevConfig| {
        let is_at = |path: &str| {
            let path = Path::new(path);
            path == Path::new(word)
                || path.file_name().is_some_and(|name| name == word)
                || path.canonicalize().is_ok_and(|path| path == given)
        };
        word == vdev.guid.0.to_string() || word == vdev.display_name() || vdev.path.as_deref().is_some_and(is_at)
    };
    let mut found: Vec<VdevConfig> = Vec::new();
    for top in &pool.vdevs().children {
        top.walk(&mut |vdev| {
            if vdev.kind != VdevKind::Hole && is_named(vdev) {
                found.push(vdev.clone());
            }
        });
    }
    found.extend(pool.spares().await?.into_iter().filter(|vdev| is_named(vdev)));
    found.extend(pool.cache_devices().await?.into_iter().filter(|vdev| is_named(vdev)));
    // A spare that is in use is in the tree and in the list.
    found.sort_by_key(|vdev| vdev.guid);
    found.dedup_by_key(|vdev| vdev.guid);
    if found.len() > 1 {
        return Err(anyhow!("cannot remove {word}: several devices of '{}' have this name: use a guid", pool.name()));
    }
    Ok(found.pop().map(|vdev| Device {
        guid: vdev.guid,
        paths: vdev.leaves().iter().filter_map(|leaf| leaf.path.as_deref()).map(PathBuf::from).collect(),
    }))
}
