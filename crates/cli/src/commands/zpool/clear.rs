//! `zpool clear`: devices are back.

use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::prelude::*;

/// How long devices may take to answer what they were asked before.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// Have a suspended pool go on when its devices are back, and forget the errors that were counted.
///
/// A server that has a pool open for writing counts errors, and suspends the pool when too few of its devices take what is
/// written. Writes that the devices may have lost are written to them again first.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The pool.
    pool: String,
    /// The devices: not supported yet, all are cleared.
    devices: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if !args.devices.is_empty() {
        bail!("not supported yet: clearing single devices; 'zpool clear {}' clears all", args.pool);
    }
    let Some(pool) = context.served() else {
        // Nothing is counted from one command to the next.
        context.check_reachable(&args.pool).await?;
        return Ok(Outcome::Good);
    };
    context.check_served(&args.pool)?;
    let cannot = || format!("cannot clear errors for {}", args.pool);
    match context.handle().timeout(ANSWER_TIME_MAX, pool.resume()).await {
        Some(resumed) => resumed.with_context(cannot)?,
        None => bail!("{}: devices have not answered for {} s", cannot(), ANSWER_TIME_MAX.as_secs()),
    }
    Ok(Outcome::Good)
}
