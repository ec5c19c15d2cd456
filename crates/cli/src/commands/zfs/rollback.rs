//! `zfs rollback`.

use cenote_admin::RollbackRequest;

use crate::prelude::*;

/// Have a file system or volume be as it was when its last snapshot was taken. Changes since then are lost.
///
/// If Cenote has the dataset mounted or serves it, its users wait for a moment and then see the state of the snapshot. Operations on open
/// files that the snapshot does not have fail.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Destroy snapshots that are newer.
    #[arg(short = 'r')]
    destroys_newer: bool,
    /// Destroy clones of those too, with all that is below them and depends on them.
    #[arg(short = 'R')]
    destroys_clones: bool,
    /// Accepted for the sake of scripts: nothing is unmounted.
    #[arg(short = 'f')]
    force: bool,
    /// The snapshot.
    snapshot: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Args { destroys_newer, destroys_clones, snapshot, .. } = args;
    context.carry_out(&RollbackRequest { snapshot, destroys_newer, destroys_clones }).await?;
    Ok(Outcome::Good)
}
