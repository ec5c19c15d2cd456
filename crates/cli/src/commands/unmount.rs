//! `cenote unmount`.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::Outcome;
use crate::unmounting;

/// Unmount what `mount`, `serve` or `zfs mount` shows, and return when all that was written there is on disk.
///
/// The system's `umount` returns earlier: the process that served the mount then still writes what it has in memory.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also where it is in use: its users get errors.
    #[arg(short = 'f', long)]
    force: bool,
    /// Folders, or the datasets that are mounted.
    #[arg(required = true, value_name = "FOLDER|DATASET")]
    targets: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let mut failed = false;
    for target in &args.targets {
        if let Err(error) = unmounting::unmount(context, target, args.force).await {
            context.err(format!("{error:#}"));
            failed = true;
        }
    }
    Ok(Outcome::unless(failed))
}
