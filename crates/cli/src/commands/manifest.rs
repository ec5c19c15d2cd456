//! `cenote manifest`.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::args::Search;
use crate::context::Context;
use crate::outcome::Outcome;

/// Print what a pool contains, as JSON: every file's metadata and hash.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// The pool's name or guid.
    pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    // Only looks: a pool that some system has left open is described as it lies there.
    let context = context.with(&Search { force: true, ..args.search });
    let pool = context.open_pool(&args.pool).await?;
    let value = crate::manifest::manifest(context.handle(), &pool).await?;
    context.out(format!("{value}\n"))?;
    Ok(Outcome::Good)
}
