//! `cenote inspect bpobj`.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::open;
use super::report::Common;
use crate::context::Context;
use crate::outcome::Outcome;

/// Lists of block pointers: those of the pool (deferred frees, blocks to free, obsolete mappings), or given objects of
/// the MOS, with the lists below them.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The pool's name or guid, or a device of it.
    pub(crate) pool: String,
    /// Objects of the MOS.
    #[arg(value_name = "OBJECT")]
    pub(crate) objects: Vec<u64>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.pool).await?;
    cenote_inspect::bpobj(&mut report, &pool, &args.objects).await;
    report.finish(&context)
}
