//! `zpool destroy`.

use cenote_host::CacheFile;
use cenote_server::shown::check_unshown;
use cenote_server::writing::open_for_writing;

use crate::prelude::*;

/// Destroy a pool: its labels say so, and its devices can be used for others. Until then `zpool import -D` has it back.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also where it is mounted read-only: what reads there gets errors.
    #[arg(short = 'f')]
    force: bool,
    /// The pool.
    pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if !args.force {
        check_unshown(context, std::slice::from_ref(&args.pool), "destroy").await?;
    }
    open_for_writing(context, &args.pool).await?.destroy().await?;
    CacheFile::of_user()?.update(|pools| {
        pools.remove(&args.pool);
        anyhow::Ok(())
    })?;
    Ok(Outcome::Good)
}
