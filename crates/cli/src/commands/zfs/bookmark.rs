//! `zfs bookmark`.

use cenote_admin::BookmarkRequest;

use crate::prelude::*;

/// Make a bookmark of a snapshot, or of another bookmark.
///
/// An incremental stream can begin at a bookmark when its snapshot is gone. One of both names may be given from the '@' or '#' on.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also of the snapshots of this name of all datasets below.
    #[arg(short = 'r')]
    recursive: bool,
    /// The snapshot or bookmark.
    source: String,
    /// The new bookmark.
    bookmark: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    context.carry_out(&BookmarkRequest::parse(&args.source, &args.bookmark, args.recursive)?).await?;
    Ok(Outcome::Good)
}
