//! `zpool attach`.

use std::path::PathBuf;

use cenote_server::verbs::Attaching;

use crate::prelude::*;

/// Put a new device next to one of a pool, so that both have the same: a disk becomes a mirror, and a mirror gets a further leg. Or expand a raidz by a
/// further device.
///
/// DEVICE is a path, the name that `zpool status` shows (`raidz1-0` of a raidz), or a guid. What the new device held is lost.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Use the new device though it seems to be in use.
    #[arg(short = 'f')]
    force: bool,
    /// Copy to the new device in the order of the vdev, without checksums, and scrub the pool then: for mirrors and draid.
    #[arg(short = 's')]
    sequential: bool,
    /// Wait until the new device has everything, or until the expansion has ended.
    #[arg(short = 'w')]
    wait: bool,
    /// Set a property of the new device: ashift.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// The pool.
    pool: String,
    /// The device that is there, or the raidz.
    #[arg(value_name = "DEVICE")]
    old: String,
    /// The new device.
    #[arg(value_name = "NEW-DEVICE")]
    new: String,
    /// The folder in which the command was given: a server works in another one.
    #[arg(skip = std::env::current_dir().unwrap_or_default())]
    folder: PathBuf,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let attaching = Attaching {
        pool: args.pool,
        old: args.old,
        new: Some(args.new),
        is_replacing: false,
        is_sequential: args.sequential,
        folder: args.folder,
        properties: args.properties,
        force: args.force,
        waits: args.wait,
    };
    attaching.carry_out(context).await?;
    Ok(Outcome::Good)
}
