//! `cenote inspect txgs`.

use anyhow::bail;
use cenote_inspect::{TxgText, txgs_text};

use super::report::{Common, context_of};
use crate::prelude::*;

/// The contents of the last txgs of a pool that a server has, where the time of their sync went, and their changes of space.
///
/// `cenote serve --rw` remembers the last hundred. SYNC is all of a txg's sync, SERIAL the part of it that one
/// task did alone; then come its phases: datasets, writing the pool's own objects in the first pass,
/// entering its changes into space maps and logs (SPACE), further passes with theirs, waiting for devices, uberblock and labels.
/// CHANGE is yes where the pool itself was changed.
///
/// Of space: bytes allocated and freed; how many metaslabs were allocated from, loaded, unloaded, flushed by appending to
/// their own maps, or condensed; bytes written to metaslabs' maps and to the txg's log; how many logs
/// there were then, and their blocks. Loads and unloads count with the txg that was written next.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// A row for each metaslab that was worked on too: at most 64 a txg, those with most work; +N says how many more there were.
    #[arg(short = 'v')]
    verbose: bool,
    /// Tabs between fields and no headings, for scripts: a row a txg, times and then space; with -v only rows of metaslabs.
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers: bytes and nanoseconds.
    #[arg(short = 'p')]
    parsable: bool,
    /// The pool's name or guid.
    pool: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Some(pool) = context.served() else {
        let context = context_of(context, &args.common);
        // A server that has it is asked.
        context.check_server(&context.locate(&args.pool).await?.0)?;
        bail!(
            "no server has the pool '{0}': how its txgs went is known to 'cenote serve --rw' alone, while it runs; \
             'cenote inspect uberblocks {0}' shows those that are on disk",
            args.pool
        );
    };
    context.check_served(&args.pool)?;
    let records = pool.history();
    if args.common.json {
        let mut report = args.common.report();
        report.put("pool", pool.name());
        cenote_inspect::txgs(&mut report, &records, args.verbose);
        return report.finish(context);
    }
    let form = TxgText { metaslabs: args.verbose, is_scripted: args.scripted, is_exact: args.parsable };
    context.out(txgs_text(&records, form))?;
    Ok(Outcome::Good)
}
