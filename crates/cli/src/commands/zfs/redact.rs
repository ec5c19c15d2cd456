//! `zfs redact`.

use cenote_admin::RedactRequest;

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
    let Args { snapshot, redaction_bookmark: bookmark, redaction_snapshot: by } = args;
    context.carry_out(&RedactRequest { snapshot, bookmark, by }).await?;
    Ok(Outcome::Good)
}
