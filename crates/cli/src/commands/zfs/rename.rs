//! `zfs rename`.

use cenote_admin::RenameRequest;

use crate::prelude::*;

/// Give a file system, a volume or a snapshot another name.
///
/// A file system or volume can move below another one of its pool, with all that is below it. Of a snapshot the new name may
/// be given from the `@` on.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Make the file systems that are missing above the new name.
    #[arg(short = 'p')]
    parents: bool,
    /// Snapshots of this name of all datasets below.
    #[arg(short = 'r')]
    recursive: bool,
    /// Nothing is mounted here, so nothing has to be unmounted.
    #[arg(short = 'f')]
    force: bool,
    /// Nothing is mounted here, so nothing has to be mounted again.
    #[arg(short = 'u')]
    unmounted: bool,
    /// The dataset to rename.
    #[arg(value_name = "DATASET")]
    from: String,
    /// Its new name.
    #[arg(value_name = "NAME")]
    to: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let request = RenameRequest {
        from: args.from,
        to: args.to,
        recursive: args.recursive,
        parents: args.parents,
        owner: context.owner(),
        is_forced: args.force,
        keeps_unmounted: args.unmounted,
    };
    context.carry_out(&request).await?;
    Ok(Outcome::Good)
}
