//! `cenote inspect features`.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::open;
use super::report::Common;
use crate::context::Context;
use crate::outcome::Outcome;

/// Feature flags with their reference counts, and the version.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Those that are disabled too.
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// The pool's name or guid, or a device of it.
    pub(crate) pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.pool).await?;
    cenote_inspect::features(&mut report, &pool, args.all).await;
    report.finish(&context)
}
