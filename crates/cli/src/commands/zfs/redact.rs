//! `zfs redact`.

use cenote_admin::{RedactError, RedactRequest};
use cenote_server::writing::{Writing, line};

use crate::outcome::with_status;
use crate::prelude::*;

/// Make a redaction bookmark: the list of blocks of a snapshot that later snapshots no longer have.
///
/// zfs send --redact leaves these blocks out. Blocks are redacted that none of the redaction snapshots has. If it is interrupted, the same
/// command goes on.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The snapshot to be redacted.
    snapshot: String,
    /// The new bookmark of its dataset, without '#'.
    redaction_bookmark: String,
    /// Later snapshots, of clones of the snapshot or of its own dataset, in which what is secret was removed or replaced.
    #[arg(required = true)]
    redaction_snapshot: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let pool = Writing::open(context, pool_of(&args.snapshot)).await?.in_background(context).await;
    let words = ["zfs", "redact", &args.snapshot, &args.redaction_bookmark];
    let noted = line(words.into_iter().chain(args.redaction_snapshot.iter().map(String::as_str)));
    let request =
        RedactRequest { snapshot: args.snapshot, bookmark: args.redaction_bookmark, by: args.redaction_snapshot };
    let made = cenote_admin::redact(pool.pool(), &request).await;
    made.map_err(|error: RedactError| with_status(error.errno(), error.into()))?;
    pool.finish(noted).await?;
    Ok(Outcome::Good)
}
