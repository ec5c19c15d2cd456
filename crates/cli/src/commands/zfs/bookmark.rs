//! `zfs bookmark`.

use cenote_admin::{BookmarkRequest, create_bookmarks};
use cenote_server::writing::{Writing, line};

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
    let request = BookmarkRequest::parse(&args.source, &args.bookmark, args.recursive)?;
    let pool = Writing::open(context, pool_of(request.source())).await?;
    let Some(bookmarks) = request.all(pool.pool()).await? else {
        return Err(usage(format!("cannot open '{}': dataset does not exist", request.source())));
    };
    create_bookmarks(pool.pool(), bookmarks).await?;
    let words = ["zfs", "bookmark", if args.recursive { "-r" } else { "" }, &args.source, &args.bookmark];
    pool.finish(line(words)).await?;
    Ok(Outcome::Good)
}
