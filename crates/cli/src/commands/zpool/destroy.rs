//! `zpool destroy`.

use cenote_host::CacheFile;
use cenote_server::writing::open_for_writing;

use crate::prelude::*;

/// Destroy a pool: its labels say so, and its devices can be used for others. Until then `zpool import -D` has it back.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Accepted for the sake of scripts: nothing is mounted.
    #[arg(short = 'f')]
    force: bool,
    /// The pool.
    pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    open_for_writing(context, &args.pool).await?.destroy().await?;
    CacheFile::of_user()?.update(|pools| {
        pools.remove(&args.pool);
        anyhow::Ok(())
    })?;
    Ok(Outcome::Good)
}
