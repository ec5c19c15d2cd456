//! `zfs snapshot`.

use cenote_admin::SnapshotRequest;

use crate::prelude::*;

/// Take snapshots: all that are named, in one moment.
///
/// A snapshot has what was written before this command, also where a program has the dataset mounted or served.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also of all datasets below, in the same moment.
    #[arg(short = 'r')]
    recursive: bool,
    /// Set a user property of each.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// The snapshots, as DATASET@NAME.
    #[arg(value_name = "SNAPSHOT", required = true)]
    snapshots: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Args { recursive, properties, snapshots } = args;
    context.carry_out(&SnapshotRequest { snapshots, recursive, properties }).await?;
    Ok(Outcome::Good)
}
