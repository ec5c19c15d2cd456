//! `zpool labelclear`.

use std::path::PathBuf;

use cenote_host::clear_labels;

use crate::prelude::*;

/// Remove the labels of a device, so that it belongs to no pool.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also if the device is part of a pool that is not destroyed.
    #[arg(short = 'f')]
    force: bool,
    /// The device or file.
    device: PathBuf,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    clear_labels(context.handle(), &args.device, args.force).await?;
    Ok(Outcome::Good)
}
