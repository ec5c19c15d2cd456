//! `zpool scrub`.

use cenote_admin::{ScrubAction, ScrubRequest};
use cenote_server::ServerError;

use crate::prelude::*;

/// Read all blocks of a pool in all their copies, and write bad copies again.
///
/// In a pool that a mount or a server has the scrub goes on in the background: 'zpool status' shows how far it is. Otherwise this command does it; it may be
/// interrupted, and goes on with the next 'zpool scrub', or when the pool is served. OpenZFS goes on with it, too, and Cenote with OpenZFS's.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// Give the scrub up.
    #[arg(short = 's', conflicts_with_all = ["pause", "wait"])]
    stop: bool,
    /// Have the scrub wait, until 'zpool scrub' has it go on.
    #[arg(short = 'p', conflicts_with = "wait")]
    pause: bool,
    /// Wait until the scrub has ended.
    #[arg(short = 'w')]
    wait: bool,
    /// Only blocks with known errors: not supported yet.
    #[arg(short = 'e')]
    errors: bool,
    /// Only what is newer than the last scrub: not supported yet.
    #[arg(short = 'C')]
    continued: bool,
    /// The pools.
    #[arg(value_name = "POOL", required = true)]
    pools: Vec<String>,
}

impl Args {
    /// One for each pool.
    pub(crate) fn of_pools(&self) -> Vec<Self> {
        self.pools.iter().map(|pool| Self { pools: vec![pool.clone()], ..self.clone() }).collect()
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.errors || args.continued {
        let flag = if args.errors { "-e" } else { "-C" };
        anyhow::bail!("not supported yet: zpool scrub {flag}; 'zpool scrub' without it covers the whole pool");
    }
    let action = match (args.stop, args.pause) {
        (true, _) => ScrubAction::Stop,
        (_, true) => ScrubAction::Pause,
        _ => ScrubAction::Start,
    };
    let mut failed = false;
    for pool in args.pools {
        let request = ScrubRequest { pool: pool.clone(), action, waits: args.wait };
        if let Err(error) = context.carry_out(&request).await {
            // The process that has the pool does it.
            if matches!(error, ServerError::Owned(_)) {
                return Err(error.into());
            }
            let verb = match action {
                ScrubAction::Start => "scrub",
                ScrubAction::Pause => "pause scrubbing",
                ScrubAction::Stop => "cancel scrubbing",
            };
            context.err(format!("cannot {verb} {pool}: {error}"));
            failed = true;
        }
    }
    Ok(Outcome::unless(failed))
}
