//! `cenote inspect uberblocks`.

use cenote_inspect::dmu_of_labels;

use super::report::{Common, context_of};
use crate::prelude::*;

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
    let context = context_of(context, &args.common);
    let mut report = args.common.report();
    let devices = context.label_reports(&args.source).await?;
    let mut reader = None;
    if args.check {
        // A way to blocks that needs labels alone.
        let opened = match context.devices_of(&args.source).await {
            Ok(found) => {
                dmu_of_labels(context.handle(), &found, context.import_options().cache_bytes).map_err(Into::into)
            }
            Err(error) => Err(anyhow::Error::from(error)),
        };
        reader = report.take("the devices", opened);
    }
    cenote_inspect::uberblocks(&mut report, &devices, reader.as_ref(), args.verbose).await;
    if devices.iter().all(|device| device.uberblocks.is_empty()) {
        report.problem(format_args!("'{}' holds no valid uberblock", args.source));
    }
    report.finish(&context)
}
