//! `cenote inspect object`.

use anyhow::Result;
use cenote_inspect::{Chosen, ObjectParts, Target};
use serde::{Deserialize, Serialize};

use super::open;
use super::report::Common;
use crate::context::Context;
use crate::outcome::Outcome;

/// Objects of a dataset: dnode, attributes, contents of ZAPs and other metadata, block pointers with -v.
///
/// Without objects all are listed. DATASET may be a file system, volume or snapshot; POOL/$MOS is the MOS, and
/// POOL/objset-NUMBER the dataset that object NUMBER of the MOS describes, whatever its name.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The tree of block pointers of each object.
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// The data itself, as a dump: as many bytes as --limit has entries, times 16.
    #[arg(short = 'x', long)]
    pub(crate) dump: bool,
    /// File system, volume or snapshot; a device of a pool means its root dataset.
    pub(crate) dataset: String,
    /// Objects: a number, a range FROM-TO, or a path that begins with a slash; -1, -2, -3 are the accounts of users, groups
    /// and projects, 0 is the array of dnodes.
    #[arg(value_name = "OBJECT", allow_negative_numbers = true)]
    pub(crate) objects: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.dataset).await?;
    // Of a device alone the pool's name is not known before: its root dataset is meant.
    let dataset = if open::is_file(&args.dataset) { pool.name() } else { args.dataset.as_str() };
    let target = Target::find(&pool, dataset).await?;
    let chosen = args.objects.iter().map(|text| Chosen::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let parts = ObjectParts { pointers: args.verbose, data: args.dump };
    cenote_inspect::objects(&mut report, &target, &chosen, parts).await;
    report.finish(&context)
}
