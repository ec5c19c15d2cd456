//! `zfs rename`.

use cenote_server::verbs::{self, RenameRequest};
use cenote_server::writing::Writing;

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
    for (is_both, options) in
        [(args.recursive && args.parents, "-p and -r"), (args.unmounted && args.parents, "-u and -p")]
    {
        if is_both {
            return Err(usage(format!("{options} options are mutually exclusive")));
        }
    }
    if args.recursive && !args.from.contains('@') {
        return Err(usage("source dataset for recursive rename must be a snapshot"));
    }
    let pool = Writing::open(context, pool_of(&args.from)).await?;
    let flags = [(args.force, "-f"), (args.unmounted, "-u")];
    let flags = flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag)).collect();
    let request =
        RenameRequest { from: args.from, to: args.to, recursive: args.recursive, parents: args.parents, flags };
    verbs::rename(context, pool, &request).await?;
    Ok(Outcome::Good)
}
