//! `cenote unmount`.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::Outcome;
use crate::unmounting;

/// Unmount what `mount`, `serve` or `zfs mount` shows, and return when everything written there is on disk.
///
/// The system's `umount` returns earlier, while the process that served the mount still writes data from its memory.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also if it is in use: programs that use it get errors.
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
