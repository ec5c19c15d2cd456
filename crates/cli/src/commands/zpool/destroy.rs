//! `zpool destroy`.

use cenote_host::CacheFile;
use cenote_server::exporting;
use cenote_server::writing::open_for_writing;

use crate::prelude::*;

/// Destroy a pool: its labels say so, and its devices can be used for others. Until then `zpool import -D` has it back.
///
/// A pool that is imported with readonly=on is exported.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also if a read-only mount of it is in use, whose users get errors.
    #[arg(short = 'f')]
    force: bool,
    /// The pool.
    pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if CacheFile::of_user()?.pools()?.get(&args.pool).is_some_and(|entry| entry.readonly) {
        // As in OpenZFS: nothing is written, and the pool is only not imported any more.
        exporting::export_named(context, &args.pool, args.force).await?;
        context.advise(format!(
            "'{0}' was imported with readonly=on: its devices are as they were, and 'zpool import' has it back",
            args.pool
        ));
        return Ok(Outcome::Good);
    }
    let pool = open_for_writing(context, &args.pool).await?;
    let guid = pool.guid();
    if let Err(error) = exporting::end_readers(context, "destroy", &args.pool, guid, args.force).await {
        // As it was.
        pool.export().await?;
        return Err(error.into());
    }
    pool.destroy().await?;
    // It may be noted under another name.
    exporting::forget_guid(guid)?;
    Ok(Outcome::Good)
}
