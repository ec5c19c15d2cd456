//! `zfs clone`.

use cenote_admin::CloneRequest;

use crate::prelude::*;

/// Make a file system or volume that begins as a snapshot, and shares its blocks.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Make what is missing above it too.
    #[arg(short = 'p')]
    parents: bool,
    /// Accepted for the sake of scripts: nothing is mounted by this.
    #[arg(short = 'u')]
    keep_unmounted: bool,
    /// Set a property.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// The snapshot.
    snapshot: String,
    /// The new file system or volume.
    dataset: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Args { parents, properties, snapshot, dataset: name, .. } = args;
    context.carry_out(&CloneRequest { snapshot, name, properties, parents, owner: context.owner() }).await?;
    Ok(Outcome::Good)
}
