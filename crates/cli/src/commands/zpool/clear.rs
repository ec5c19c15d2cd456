//! `zpool clear`: devices are back, or bad blocks are well.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use cenote_admin::{ClearDevicesRequest, ClearRequest, NamedDevice};
use cenote_host::CacheFile;
use cenote_server::verbs::find_devices;

use crate::prelude::*;

/// How long devices may take to answer what they were asked before.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// Have a suspended pool go on when its devices are back, and forget the errors that were counted.
///
/// A server that has a pool open for writing counts errors, and suspends the pool when too few of its devices take what is
/// written. Writes that the devices may have lost are written to them again first.
///
/// Blocks that could not be read stand in the pool's error log ('zpool status -v'). They are read again: an entry goes whose block can be
/// read, or is gone. Those that cannot be read stay.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The pool.
    pool: String,
    /// The devices; all if none is named.
    devices: Vec<String>,
    /// The folder in which the command was given: a server works in another one.
    #[arg(skip = std::env::current_dir().unwrap_or_default())]
    folder: PathBuf,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if !args.devices.is_empty() {
        let verb = "clear errors for";
        let (devices, is_found) = find_devices(context, verb, &args.pool, &args.folder, &args.devices).await?;
        if devices.is_empty() {
            return Ok(Outcome::unless(!is_found));
        }
        let devices = devices.into_iter().map(NamedDevice::from).collect();
        let changed = context.carry_out(&ClearDevicesRequest { pool: args.pool, devices }).await?;
        return Ok(Outcome::unless(!is_found || !changed.is_all));
    }
    let Some(pool) = context.served() else {
        // Nothing is counted from one command to the next but what the error log has.
        context.check_reachable(&args.pool).await?;
        if CacheFile::of_user()?.pools()?.get(&args.pool).is_some_and(|entry| entry.readonly) {
            bail!("cannot clear errors for {}: pool is read-only", args.pool);
        }
        let view = context.open_pool(&args.pool).await?;
        // And what a process that had the pool has recorded of its devices.
        let is_ailing = view.vdevs().leaves().iter().any(|leaf| leaf.state.degraded || leaf.state.faulted);
        let has_errors = is_ailing || view.has_logged_errors().await?;
        view.close().await;
        drop(view);
        if has_errors {
            context.carry_out(&ClearRequest(args.pool)).await?;
        }
        return Ok(Outcome::Good);
    };
    context.check_served(&args.pool)?;
    let cannot = || format!("cannot clear errors for {}", args.pool);
    match context.handle().timeout(ANSWER_TIME_MAX, pool.resume()).await {
        Some(resumed) => resumed.with_context(cannot)?,
        None => bail!("{}: devices have not answered for {} s", cannot(), ANSWER_TIME_MAX.as_secs()),
    }
    match context.carry_out(&ClearRequest(args.pool.clone())).await {
        // A pool that was to be closed went on to that.
        Err(_) if pool.is_closing() => {}
        cleared => cleared.with_context(cannot)?,
    }
    Ok(Outcome::Good)
}
