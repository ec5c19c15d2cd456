//! `cenote inspect uberblocks`.

use anyhow::Result;
use cenote_dmu::Dmu;
use serde::{Deserialize, Serialize};

use super::open;
use super::report::Common;
use crate::context::Context;
use crate::outcome::Outcome;

/// The uberblocks of a file or device, or of all devices of a pool, newest first.
///
/// Each is a state that the pool was in. With --check it is tried whether its root can still be read: if so
/// `--at-txg` may open the pool as it was then.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// With block pointers of the roots.
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// Try to read the root of each.
    #[arg(long)]
    pub(crate) check: bool,
    /// A file or device, or a pool's name or guid.
    #[arg(value_name = "FILE|POOL")]
    pub(crate) source: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let context = open::context_of(context, &args.common);
    let mut report = args.common.report();
    let devices = open::label_reports(&context, &args.source).await?;
    let reader = if args.check { report.take("the devices", reader(&context, &args.source).await) } else { None };
    cenote_inspect::uberblocks(&mut report, &devices, reader.as_ref(), args.verbose).await;
    if devices.iter().all(|device| device.uberblocks.is_empty()) {
        report.problem(format_args!("'{}' holds no valid uberblock", args.source));
    }
    report.finish(&context)
}

/// A way to blocks that needs labels alone.
async fn reader(context: &Context, source: &str) -> Result<Dmu> {
    let found = open::found_pool(context, source).await?;
    open::dmu_of_labels(context, &found)
}
