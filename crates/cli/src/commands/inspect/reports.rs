//! The inspections of an opened pool, as one table: for each its options, and the function of crate `inspect` that fills the report.

use cenote_inspect::{Chosen, InspectError, IntentLogs, ObjectParts, SpaceMaps, Target};
use cenote_server::looking::{dataset_of, is_file};

use super::report::{Common, opened};
use crate::commands::verify::verify_with_progress;
use crate::prelude::*;

/// Defines inspections: a module for each, with its `Args` (a field of which says what is opened) and `run`.
macro_rules! inspections {
    ($(
        $(#[doc = $about:literal])*
        $module:ident($of:ident) { $($(#[$meta:meta])* $field:ident: $type:ty,)* }
        |$context:ident, $report:ident, $pool:ident, $args:ident| $body:expr;
    )*) => {
        $(
            pub(crate) mod $module {
                use super::*;

                $(#[doc = $about])*
                #[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
                pub(crate) struct Args {
                    #[command(flatten)]
                    pub(crate) common: Common,
                    $($(#[$meta])* pub(crate) $field: $type,)*
                }

                pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
                    let (context, mut report, pool) = opened(context, &args.common, &args.$of).await?;
                    let ($context, $report, $pool, $args) = (&context, &mut *report, &pool, &args);
                    $body;
                    report.finish(&context)
                }
            }
        )*
    };
}

inspections! {
    /// Count all blocks by type, as `zdb -b` does, and account for every allocated byte.
    ///
    /// Reads what leads to data, not the data; `cenote verify` reads all.
    blocks(pool) {
        /// By level too.
        #[arg(short = 'v', long)]
        verbose: bool,
        /// Do not load space maps: no account of leaks.
        #[arg(short = 'L', long)]
        no_space: bool,
        /// The pool's name or guid, or a device of it.
        pool: String,
    }
    |context, report, pool, args| {
        let (found, _) = verify_with_progress(context, pool, false, !args.no_space).await?;
        cenote_inspect::blocks(report, pool, &found, args.verbose);
    };

    /// Lists of block pointers: those of the pool (deferred frees, blocks to free, obsolete mappings), or given objects of
    /// the MOS, with the lists below them.
    bpobj(pool) {
        /// The pool's name or guid, or a device of it.
        pool: String,
        /// Objects of the MOS.
        #[arg(value_name = "OBJECT")]
        objects: Vec<u64>,
    }
    |_context, report, pool, args| cenote_inspect::bpobj(report, pool, &args.objects).await;

    /// Every dataset and snapshot, hidden and unnamed ones too: found as objects of the MOS, named by the tree of directories.
    datasets(pool) {
        /// The pool's name or guid, or a device of it.
        pool: String,
    }
    |_context, report, pool, _args| cenote_inspect::datasets(report, pool).await;

    /// Deadlists: for each dataset, the blocks that its previous snapshot has and it has no more; and the livelists of clones.
    deadlists(source) {
        /// The ranges of births of each, with their lists.
        #[arg(short = 'v', long)]
        verbose: bool,
        /// A pool (its name, guid, or a device of it), or one dataset or snapshot.
        #[arg(value_name = "POOL|DATASET")]
        source: String,
    }
    |_context, report, pool, args| cenote_inspect::deadlists(report, pool, dataset_of(&args.source), args.verbose).await;

    /// Blocks that are shared: the dedup tables' statistics, and the block reference tables of cloned files.
    dedup(pool) {
        /// The entries of the block reference tables.
        #[arg(short = 'v', long)]
        verbose: bool,
        /// The pool's name or guid, or a device of it.
        pool: String,
    }
    |_context, report, pool, args| cenote_inspect::dedup(report, pool, args.verbose).await;

    /// Feature flags with their reference counts, and the version.
    features(pool) {
        /// Those that are disabled too.
        #[arg(short = 'a', long)]
        all: bool,
        /// The pool's name or guid, or a device of it.
        pool: String,
    }
    |_context, report, pool, args| cenote_inspect::features(report, pool, args.all).await;

    /// The pool's history: the newest --limit records of commands and events, oldest first.
    history(pool) {
        /// Every field of each record.
        #[arg(short = 'v', long)]
        verbose: bool,
        /// The pool's name or guid, or a device of it.
        pool: String,
    }
    |_context, report, pool, args| cenote_inspect::history(report, pool, args.verbose).await;

    /// The meta objset: its directory of objects, and the type and size of every object in it.
    mos(pool) {
        /// The pool's name or guid, or a device of it.
        pool: String,
    }
    |_context, report, pool, _args| cenote_inspect::mos(report, pool).await;

    /// Objects of a dataset: dnode, attributes, contents of ZAPs and other metadata, block pointers with -v.
    ///
    /// Without objects all are listed. DATASET may be a file system, volume or snapshot; POOL/$MOS is the MOS, and
    /// POOL/objset-NUMBER the dataset that object NUMBER of the MOS describes, whatever its name.
    object(dataset) {
        /// The tree of block pointers of each object.
        #[arg(short = 'v', long)]
        verbose: bool,
        /// The data itself, as a dump: as many bytes as --limit has entries, times 16.
        #[arg(short = 'x', long)]
        dump: bool,
        /// File system, volume or snapshot; a device of a pool means its root dataset.
        dataset: String,
        /// Objects: a number, a range FROM-TO, or a path that begins with a slash; -1, -2, -3 are the accounts of users, groups
        /// and projects, 0 is the array of dnodes.
        #[arg(value_name = "OBJECT", allow_negative_numbers = true)]
        objects: Vec<String>,
    }
    |_context, report, pool, args| {
        // Of a device alone the pool's name is not known before: its root dataset is meant.
        let dataset = if is_file(&args.dataset) { pool.name() } else { args.dataset.as_str() };
        let target = Target::find(pool, dataset).await?;
        let chosen = args.objects.iter().map(|text| Chosen::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let parts = ObjectParts { pointers: args.verbose, data: args.dump };
        cenote_inspect::objects(report, &target, &chosen, parts).await;
    };

    /// Space: each vdev's metaslabs and their space maps, and the log space maps.
    spacemaps(pool) {
        /// Histograms of free runs too: how many there are of each power of two of sectors.
        #[arg(short = 'v', long)]
        verbose: bool,
        /// The entries of one metaslab's space map.
        #[arg(long, value_name = "VDEV:METASLAB")]
        entries: Option<String>,
        /// The pool's name or guid, or a device of it.
        pool: String,
        /// Only this top-level vdev.
        vdev: Option<u32>,
        /// Only these metaslabs of it.
        #[arg(value_name = "METASLAB")]
        metaslabs: Vec<usize>,
    }
    |_context, report, pool, args| {
        let entries = args.entries.as_deref().map(metaslab).transpose()?;
        let metaslabs = args.metaslabs.clone();
        let wanted = SpaceMaps { histograms: args.verbose, entries, vdev: args.vdev, metaslabs };
        match cenote_inspect::spacemaps(report, pool, &wanted).await {
            Err(InspectError::NotThere(what)) => return Err(usage(what)),
            found => found?,
        }
    };

    /// Intent logs: what was promised to be durable and is in no transaction group yet.
    ///
    /// A log ends where the next block is not there: that is no damage. Only heads are shown: what a snapshot's header
    /// says of a log is history.
    zil(source) {
        /// The records of each log.
        #[arg(short = 'v', long)]
        verbose: bool,
        /// Logs that are empty too.
        #[arg(short = 'a', long)]
        all: bool,
        /// A pool (its name, guid, or a device of it), or one dataset.
        #[arg(value_name = "POOL|DATASET")]
        source: String,
    }
    |_context, report, pool, args| {
        let only = dataset_of(&args.source).filter(|name| name.contains('/'));
        let wanted = IntentLogs { only, records: args.verbose, empty: args.all };
        cenote_inspect::zil(report, pool, &wanted).await;
    };
}

fn metaslab(text: &str) -> Result<(u32, usize)> {
    let parsed = text.split_once(':').and_then(|(vdev, metaslab)| Some((vdev.parse().ok()?, metaslab.parse().ok()?)));
    parsed.ok_or_else(|| usage(format!("'{text}' is not VDEV:METASLAB")))
}
