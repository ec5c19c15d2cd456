//! `zfs bookmark`.

use anyhow::Result;
use cenote_admin::{bookmarks_below, create_bookmarks};
use cenote_spa::NewBookmark;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files::pool_of;
use crate::outcome::{Outcome, usage};
use cenote_server::writing::{Writing, line};

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

/// Both names in full.
fn full_names(source: &str, bookmark: &str) -> Result<(String, String)> {
    let Some(at) = source.find(['@', '#']) else {
        return Err(usage(format!("invalid source name '{source}': must contain a '@' or '#'")));
    };
    let Some(pound) = bookmark.find('#') else {
        return Err(usage(format!("invalid bookmark name '{bookmark}': must contain a '#'")));
    };
    match (at, pound) {
        (0, 0) => Err(usage("either source or bookmark must be specified as full dataset paths")),
        (0, _) => Ok((format!("{}{source}", &bookmark[..pound]), bookmark.to_owned())),
        (_, 0) => Ok((source.to_owned(), format!("{}{bookmark}", &source[..at]))),
        _ => Ok((source.to_owned(), bookmark.to_owned())),
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (source, name) = full_names(&args.source, &args.bookmark)?;
    let snapshot = source.split_once('@').filter(|(dataset, _)| !dataset.contains('#'));
    if args.recursive && snapshot.is_none() {
        return Err(usage("recursive bookmarks (-r) can only be created from a snapshot source"));
    }
    let pool = Writing::open(context, pool_of(&source)).await?;
    let dsl = pool.pool().dsl()?;
    let is_there = match snapshot {
        Some(_) => dsl.dataset(&source).await.is_ok_and(|found| found.is_snapshot()),
        None => {
            let (of, short) = source.split_once('#').expect("a full name without '@' has a '#'");
            match dsl.dataset(of).await {
                Ok(head) => dsl.bookmark(&head, short).await?.is_some(),
                Err(_) => false,
            }
        }
    };
    if !is_there {
        return Err(usage(format!("cannot open '{source}': dataset does not exist")));
    }
    let bookmarks = match (snapshot, args.recursive) {
        (Some((dataset, snapshot)), true) => {
            let short = name.split_once('#').map_or("", |(_, short)| short);
            bookmarks_below(pool.pool(), dataset, snapshot, short).await?
        }
        _ => vec![NewBookmark { name, source }],
    };
    create_bookmarks(pool.pool(), bookmarks).await?;
    let words = ["zfs", "bookmark", if args.recursive { "-r" } else { "" }, &args.source, &args.bookmark];
    pool.finish(line(words)).await?;
    Ok(Outcome::Good)
}
