//! `cenote inspect config`.

use super::report::{Common, context_of, open};
use crate::prelude::*;

/// The pool's configuration, from the MOS; from the newest label where the MOS cannot be read.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// A file or device, or a pool's name or guid.
    #[arg(value_name = "FILE|POOL")]
    pub(crate) source: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let context = context_of(context, &args.common);
    let mut report = args.common.report();
    match open(&context, &mut report, &args.source).await {
        Ok(pool) => {
            report.put("source", format!("MOS at txg {}", pool.txg()));
            report.put("config", cenote_inspect::nvlist(pool.config()));
        }
        Err(error) => {
            let found = context.devices_of(&args.source).await?;
            report.problem(causes(&error));
            if let Some(leaf) = found.newest() {
                report.put("source", format!("label of {} at txg {}", leaf.disk.path(), leaf.txg));
                report.put("config", cenote_inspect::nvlist(&leaf.config));
            }
        }
    }
    report.finish(&context)
}
