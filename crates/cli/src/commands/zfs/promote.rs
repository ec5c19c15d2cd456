//! `zfs promote`.

use cenote_server::writing::{Writing, line};

use crate::prelude::*;

/// Have a clone and its origin change places, so that the origin can be destroyed.
///
/// The snapshot that the clone began as, and those before it, are the clone's from then on.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The clone.
    dataset: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let pool = Writing::open(context, pool_of(&args.dataset)).await?;
    let dsl = pool.pool().dsl()?;
    let origin = dsl.dataset(&args.dataset).await?.dir.phys.origin;
    let origin = dsl.dataset_name(origin).await.unwrap_or_default();
    cenote_admin::promote(pool.pool(), &args.dataset).await?;
    pool.finish(line(["zfs", "promote", &args.dataset])).await?;
    let origin = origin.split('@').next().unwrap_or_default().to_owned();
    context.datasets_changed(&[args.dataset, origin]).await;
    Ok(Outcome::Good)
}
