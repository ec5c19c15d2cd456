//! `zpool detach`.

use std::path::PathBuf;

use cenote_server::verbs::{detach_device, find_devices};

use crate::prelude::*;

/// Take a leg of a mirror, or a side of a replacement or of a spare in use, out of a pool. Its device is free then, or a spare again.
///
/// DEVICE is a path, the name that `zpool status` shows, or a guid. A device is refused that alone has something of the pool.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The pool.
    pool: String,
    /// The device.
    device: String,
    /// The folder in which the command was given: a server works in another one.
    #[arg(skip = std::env::current_dir().unwrap_or_default())]
    folder: PathBuf,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (mut devices, _) = find_devices(context, "detach", &args.pool, &args.folder, &[args.device]).await?;
    match devices.pop() {
        Some(device) => {
            detach_device(context, &args.pool, device).await?;
            Ok(Outcome::Good)
        }
        None => Ok(Outcome::unless(true)),
    }
}
