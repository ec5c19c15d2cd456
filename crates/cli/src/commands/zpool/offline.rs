//! `zpool offline`.

use std::path::PathBuf;

use cenote_admin::{NamedDevice, OfflineRequest};
use cenote_server::verbs::find_devices;

use crate::prelude::*;

/// Take devices out of use. The pool is written without them, and knows what they lack when they are online again.
///
/// DEVICE is a path, the name that `zpool status` shows, or a guid. A device is refused that alone has something of the pool.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// As if the devices had failed.
    #[arg(short = 'f')]
    fault: bool,
    /// Until the pool is exported: the next import uses them.
    #[arg(short = 't')]
    temporary: bool,
    /// Switch off the slot of the device: not supported yet.
    #[arg(long)]
    power: bool,
    /// The pool.
    pool: String,
    /// The devices.
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<String>,
    /// The folder in which the command was given: a server works in another one.
    #[arg(skip = std::env::current_dir().unwrap_or_default())]
    folder: PathBuf,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.power {
        anyhow::bail!("not supported yet: --power; switch the slot off after 'zpool offline'");
    }
    let (devices, is_found) = find_devices(context, "offline", &args.pool, &args.folder, &args.devices).await?;
    if devices.is_empty() {
        return Ok(Outcome::unless(!is_found));
    }
    let request = OfflineRequest {
        pool: args.pool,
        devices: devices.into_iter().map(NamedDevice::from).collect(),
        is_fault: args.fault,
        is_temporary: args.temporary,
    };
    let changed = context.carry_out(&request).await?;
    Ok(Outcome::unless(!is_found || !changed.is_all))
}
