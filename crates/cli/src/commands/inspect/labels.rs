//! `cenote inspect labels`.

use std::path::Path;

use cenote_server::no_label;

use super::report::{Common, context_of};
use crate::prelude::*;

/// The four labels of a file or device, or of each device of a pool: which hold, which agree, what they say.
///
/// Needs no more than one readable label; what fails its checksum is shown too, as such.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Every slot of the uberblock rings, not only a summary.
    #[arg(short = 'u', long)]
    pub(crate) uberblocks: bool,
    /// A file or device, or a pool's name or guid.
    #[arg(value_name = "FILE|POOL")]
    pub(crate) source: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let context = context_of(context, &args.common);
    let mut report = args.common.report();
    let mut devices = Vec::new();
    for labels in context.label_reports(&args.source).await? {
        devices.push(cenote_inspect::labels_of(&mut report, &labels, args.uberblocks));
        if labels.good_labels() == 0 {
            report.problem(no_label(context.handle(), Path::new(&**labels.disk.path())).await);
        }
    }
    if devices.is_empty() {
        report.problem(format_args!("'{}' has no device that can be found", args.source));
    }
    report.put("devices", devices);
    report.finish(&context)
}
