//! `zpool remove`.

use std::path::PathBuf;

use anyhow::bail;
use cenote_admin::CancelRemovalRequest;
use cenote_server::ServerError;
use cenote_server::verbs::{find_devices, mapping_bytes, remove_devices};

use crate::output::nicenum;
use crate::prelude::*;

/// Remove vdevs, log devices, hot spares and cache devices from a pool.
///
/// DEVICE is a path, the name of a mirror as `zpool status` shows it, or a guid. The blocks of a vdev with blocks of datasets are copied to the others first: in a
/// pool that a mount or a server has this goes on in the background, and 'zpool status' shows how far it is; otherwise this command does it. It may be interrupted, and
/// goes on when the pool is next used. Pools with raidz or draid vdevs, or with sectors of several sizes, cannot lose such a vdev.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Only show the memory that the mapping of a removed vdev would take.
    #[arg(short = 'n')]
    dry_run: bool,
    /// With -n: the number alone.
    #[arg(short = 'p')]
    parsable: bool,
    /// Stop a removal that is under way: the vdev is used again.
    #[arg(short = 's')]
    stop: bool,
    /// Wait until the removal is done.
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
        return match context.carry_out(&CancelRemovalRequest(args.pool)).await {
            Ok(()) => Ok(Outcome::Good),
            Err(error @ ServerError::Owned(_)) => Err(error.into()),
            Err(error) => bail!("cannot cancel removal: {error}"),
        };
    }
    if args.devices.is_empty() {
        return Err(usage("missing device"));
    }
    let (devices, mut is_good) = find_devices(context, "remove", &args.pool, &args.folder, &args.devices).await?;
    if args.dry_run {
        for device in &devices {
            let (name, bytes) = (&device.word, mapping_bytes(context, &args.pool, device).await?);
            context.out(match args.parsable {
                true => format!("{name} {bytes}\n"),
                false => format!("Memory that will be used after removing {name}: {}\n", nicenum(bytes)),
            })?;
        }
    } else if !devices.is_empty() {
        is_good &= remove_devices(context, &args.pool, devices, args.wait).await?;
    }
    Ok(Outcome::unless(!is_good))
}
