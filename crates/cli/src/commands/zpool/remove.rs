//! `zpool remove`.

use std::path::PathBuf;

use anyhow::bail;
use cenote_server::verbs::{find_devices, remove_devices};

use crate::prelude::*;

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
    let (devices, mut is_good) = find_devices(context, "remove", &args.pool, &args.folder, &args.devices).await?;
    if args.dry_run {
        for name in devices.iter().map(|device| &device.word) {
            context.out(match args.parsable {
                true => format!("{name} 0\n"),
                false => format!("Memory that will be used after removing {name}: 0\n"),
            })?;
        }
    } else if !devices.is_empty() {
        is_good &= remove_devices(context, &args.pool, devices).await?;
    }
    Ok(Outcome::unless(!is_good))
}
