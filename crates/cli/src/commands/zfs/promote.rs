//! `zfs promote`.

use cenote_admin::PromoteRequest;

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
    context.carry_out(&PromoteRequest(args.dataset)).await?;
    Ok(Outcome::Good)
}
