//! `cenote inspect spacemaps`.

use anyhow::Result;
use cenote_inspect::{InspectError, SpaceMaps};
use serde::{Deserialize, Serialize};

use super::open;
use super::report::Common;
use crate::context::Context;
use crate::outcome::{Outcome, usage};

/// Space: each vdev's metaslabs and their space maps, and the log space maps.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Histograms of free runs too: how many there are of each power of two of sectors.
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// The entries of one metaslab's space map.
    #[arg(long, value_name = "VDEV:METASLAB")]
    pub(crate) entries: Option<String>,
    /// The pool's name or guid, or a device of it.
    pub(crate) pool: String,
    /// Only this top-level vdev.
    pub(crate) vdev: Option<u32>,
    /// Only these metaslabs of it.
    #[arg(value_name = "METASLAB")]
    pub(crate) metaslabs: Vec<usize>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.pool).await?;
    let entries = args.entries.as_deref().map(metaslab).transpose()?;
    let wanted = SpaceMaps { histograms: args.verbose, entries, vdev: args.vdev, metaslabs: args.metaslabs };
    match cenote_inspect::spacemaps(&mut report, &pool, &wanted).await {
        Err(InspectError::NotThere(what)) => return Err(usage(what)),
        found => found?,
    }
    report.finish(&context)
}

fn metaslab(text: &str) -> Result<(u32, usize)> {
    let parsed = text.split_once(':').and_then(|(vdev, metaslab)| Some((vdev.parse().ok()?, metaslab.parse().ok()?)));
    parsed.ok_or_else(|| usage(format!("'{text}' is not VDEV:METASLAB")))
}
