//! `cenote unmount`.

use std::ffi::OsString;
use std::path::Path;

use anyhow::ensure;
use cenote_server::ServedPool;
use cenote_server::unmounting;

use crate::prelude::*;

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
    targets: Vec<OsString>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if let Some(of) = context.served_pool() {
        return forced(of, &args).await;
    }
    let mut failed = false;
    for target in &args.targets {
        if let Err(error) = unmounting::unmount(context, target, args.force).await {
            context.err(error.chain());
            failed = true;
        }
    }
    Ok(Outcome::unless(failed))
}

/// In the process that serves mounts: ends them, whoever uses them. All others are unmounted by the command's own process.
async fn forced(of: &ServedPool, args: &Args) -> Result<Outcome> {
    ensure!(args.force, "a server of a pool does not do this");
    for target in &args.targets {
        let shown = target.display();
        ensure!(of.mounts.detach_at(Path::new(target)).await, "cannot unmount '{shown}': not currently mounted");
    }
    Ok(Outcome::Good)
}
