//! `zpool sync`.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::outcome::Outcome;

/// Have everything of pools on disk: of all that are imported, or of those named.
///
/// What a command here changes is on disk when it ends, so this only finds out that the pools are there. A server that has a
/// pool open for writing keeps what its clients asked to have kept.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The pools.
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    for name in &args.pools {
        context.locate(name).await?;
    }
    Ok(Outcome::Good)
}
