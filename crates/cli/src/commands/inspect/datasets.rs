//! `cenote inspect datasets`.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::open;
use super::report::Common;
use crate::context::Context;
use crate::outcome::Outcome;

/// Every dataset and snapshot, hidden and unnamed ones too: found as objects of the MOS, named by the tree of directories.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The pool's name or guid, or a device of it.
    pub(crate) pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.pool).await?;
    cenote_inspect::datasets(&mut report, &pool).await;
    report.finish(&context)
}
