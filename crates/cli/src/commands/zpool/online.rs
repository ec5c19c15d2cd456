//! `zpool online`.

use std::path::PathBuf;

use anyhow::bail;
use cenote_admin::{NamedDevice, OnlineRequest};
use cenote_server::verbs::find_devices;

use crate::prelude::*;

/// Take devices into use again that are offline, or that were not there.
///
/// DEVICE is a path, the name that `zpool status` shows, or a guid. The device is looked for at its recorded path, and at the path that was
/// given.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Use all of a device that has grown.
    #[arg(short = 'e')]
    expand: bool,
    /// Switch on the slot of the device: not supported yet.
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
        bail!("not supported yet: --power; switch the slot on before 'zpool online'");
    }
    let (devices, is_found) = find_devices(context, "online", &args.pool, &args.folder, &args.devices).await?;
    if devices.is_empty() {
        return Ok(Outcome::unless(!is_found));
    }
    let devices = devices.into_iter().map(NamedDevice::from).collect();
    let changed = context.carry_out(&OnlineRequest { pool: args.pool, devices, expands: args.expand }).await?;
    Ok(Outcome::unless(!is_found || !changed.is_all))
}
