//! `zpool scrub`.

use cenote_admin::{ScrubAction, ScrubRequest};
use cenote_host::CacheFile;
use cenote_server::{ServerError, exporting};

use super::only_pool;
use crate::commands::verify;
use crate::outcome::usage;
use crate::prelude::*;
use crate::time;

/// Read all blocks of a pool in all their copies, and write bad copies again.
///
/// A pool that is imported with readonly=on is only read: what is bad is reported, and stays as it is.
///
/// In a pool that a mount or a server has the scrub goes on in the background: 'zpool status' shows how far it is. Otherwise this command does it; it may be
/// interrupted, and goes on with the next 'zpool scrub', or when the pool is served. OpenZFS goes on with it, too, and Cenote with OpenZFS's.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// Give the scrub up. A resilver is not given up.
    #[arg(short = 's', conflicts_with_all = ["pause", "wait"])]
    stop: bool,
    /// Have the scrub wait, until 'zpool scrub' has it go on.
    #[arg(short = 'p', conflicts_with = "wait")]
    pause: bool,
    /// Wait until the scrub has ended.
    #[arg(short = 'w')]
    wait: bool,
    /// Only the blocks that the error log names ('zpool status -v'). Those that are well are taken off it.
    #[arg(short = 'e', conflicts_with_all = ["stop", "pause", "continued"])]
    errors: bool,
    /// Only what is newer than the last scrub (property 'last_scrubbed_txg').
    #[arg(short = 'C', conflicts_with_all = ["stop", "pause"])]
    continued: bool,
    /// Only what was written from a date on: 2026-11-30, or '2026-11-30 13:50', of local time. The pool needs OpenZFS 2.4's log of its txgs' times.
    #[arg(short = 'S', value_name = "DATE", conflicts_with_all = ["stop", "pause", "errors", "continued"])]
    start_date: Option<String>,
    /// Only what was written up to a date, that day or minute included.
    #[arg(short = 'E', value_name = "DATE", conflicts_with_all = ["stop", "pause", "errors", "continued"])]
    end_date: Option<String>,
    /// All pools that are imported.
    #[arg(short = 'a')]
    all: bool,
    /// The pools.
    #[arg(value_name = "POOL", required_unless_present = "all")]
    pools: Vec<String>,
}

impl Args {
    /// One for each pool.
    pub(crate) fn of_pools(&self) -> Vec<Self> {
        let mut pools = self.pools.clone();
        if self.all {
            pools.extend(exporting::names_of_all().unwrap_or_default());
        }
        let part = |pool| Self { pools: vec![pool], all: false, ..self.clone() };
        pools.into_iter().map(part).collect()
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let time_of = |date: &Option<String>, is_end| date.as_deref().map(|date| time::of_date(date, is_end)).transpose();
    let (start_s, end_s) = (time_of(&args.start_date, false)?, time_of(&args.end_date, true)?);
    if start_s.zip(end_s).is_some_and(|(start_s, end_s)| start_s > end_s) {
        return Err(usage("invalid arguments: end date has to be later than start date"));
    }
    if args.all && args.pools.is_empty() {
        // All of them are parts of this command, and there are none.
        exporting::names_of_all()?;
        context.err("no pools available");
        return Ok(Outcome::Good);
    }
    args.pools.iter().try_for_each(|pool| only_pool(pool))?;
    let action = if args.stop {
        ScrubAction::Stop
    } else if args.pause {
        ScrubAction::Pause
    } else if args.errors {
        ScrubAction::StartErrors
    } else if args.continued {
        ScrubAction::StartSinceLast
    } else if start_s.is_some() || end_s.is_some() {
        ScrubAction::StartBetween { start_s, end_s }
    } else {
        ScrubAction::Start
    };
    let mut failed = false;
    for pool in args.pools {
        let reads =
            matches!(action, ScrubAction::Start | ScrubAction::StartSinceLast | ScrubAction::StartBetween { .. });
        if reads && CacheFile::of_user()?.pools()?.get(&pool).is_some_and(|entry| entry.readonly) {
            let part = if action == ScrubAction::Start { "" } else { "; the whole pool is read" };
            context.advise(format!(
                "pool '{pool}' is imported with readonly=on: what is bad is reported, and stays as it is{part}"
            ));
            let reads = verify::run(context, verify::Args::of(pool, true, false));
            failed |= Box::pin(reads).await? != Outcome::Good;
            continue;
        }
        let request = ScrubRequest { pool: pool.clone(), action, waits: args.wait };
        if let Err(error) = context.carry_out(&request).await {
            // The process that has the pool does it.
            if matches!(error, ServerError::Owned(_)) {
                return Err(error.into());
            }
            let verb = match action {
                ScrubAction::Start | ScrubAction::StartSinceLast | ScrubAction::StartBetween { .. } => "scrub",
                ScrubAction::StartErrors => "error scrub",
                ScrubAction::Pause => "pause scrubbing",
                ScrubAction::Stop => "cancel scrubbing",
            };
            context.err(match error {
                ServerError::NoSuchPool(_) => error.to_string(),
                error => format!("cannot {verb} {pool}: {error}"),
            });
            failed = true;
        }
    }
    Ok(Outcome::unless(failed))
}
