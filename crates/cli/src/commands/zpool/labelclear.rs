//! `zpool labelclear`.

use std::io;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use cenote_spa::{LOCK_PATIENCE, PoolState};
use cenote_taskq::OpenOptions;
use cenote_vdev::commit::clear;
use cenote_vdev::disk::Disk;
use cenote_vdev::leaf::probe;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::Outcome;
use cenote_host::inuse::refuse_kernels;

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
    let name = args.device.display();
    let device = context.handle().open(&args.device, OpenOptions::default()).await;
    let device = device.with_context(|| format!("failed to open {name}"))?;
    refuse_kernels(context.handle(), &args.device, &probe(&Disk::whole(device)).await).await?;
    let device = match context.handle().open_alone(&args.device, LOCK_PATIENCE).await {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => bail!("cannot clear '{name}': {error}"),
        opened => opened.with_context(|| format!("failed to open {name}"))?,
    };
    let disk = Disk::whole(device);
    let report = probe(&disk).await;
    let Some(config) = report.best_config() else { bail!("failed to check state for {name}: no label found") };
    let state = PoolState::from_number(config.u64("state").unwrap_or(0));
    let what = match state {
        PoolState::Destroyed => None,
        PoolState::Active => Some("a member (ACTIVE) of"),
        PoolState::Exported => Some("a member of exported"),
        PoolState::Spare => Some("a reserved hot spare of"),
        PoolState::L2Cache => Some("a cache device of"),
        PoolState::Other(_) => Some("in an unknown way part of"),
    };
    if let (Some(what), false) = (what, args.force) {
        let pool = config.str("name").unwrap_or("?");
        bail!("use '-f' to override the following error:\n{name} is {what} pool \"{pool}\"");
    }
    clear(&disk).await.with_context(|| format!("failed to clear label for {name}"))?;
    Ok(Outcome::Good)
}
