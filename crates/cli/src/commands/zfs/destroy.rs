//! `zfs destroy`.

use std::io;

use cenote_admin::{DestroyCaller, DestroyRequest, Reach};

use crate::output::nicebytes;
use crate::prelude::*;

/// Destroy a file system or volume, snapshots, or a bookmark. Data that only they hold is gone.
///
/// Snapshots are named as DATASET@NAME, several with commas, a range as FIRST%LAST; a range may be open at either end.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Of snapshots: those with holds or clones go with the last of them.
    #[arg(short = 'd')]
    deferred: bool,
    /// Accepted for the sake of scripts: nothing is mounted.
    #[arg(short = 'f')]
    force: bool,
    /// Only say what would be destroyed.
    #[arg(short = 'n')]
    dry_run: bool,
    /// Say it for scripts.
    #[arg(short = 'p')]
    parsable: bool,
    /// Also snapshots and datasets below; of snapshots, those of the same name below.
    #[arg(short = 'r')]
    recursive: bool,
    /// Also clones of the snapshots.
    #[arg(short = 'R')]
    with_clones: bool,
    /// Say what is destroyed.
    #[arg(short = 'v')]
    verbose: bool,
    /// The dataset, the snapshots, or the bookmark.
    dataset: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let caller = Caller { context, parsable: args.parsable, dry_run: args.dry_run };
    let request = DestroyRequest {
        name: args.dataset,
        is_deferred: args.deferred,
        is_dry: args.dry_run,
        reach: Reach { recursive: args.recursive, clones: args.with_clones },
        tells_names: args.verbose,
        caller: &caller,
    };
    context.carry_out(&request).await?;
    Ok(Outcome::Good)
}

/// Says what goes.
struct Caller<'a> {
    context: &'a Context,
    parsable: bool,
    dry_run: bool,
}

impl Caller<'_> {
    fn say(&self, verb: &str, exact: &str, text: &str) -> io::Result<()> {
        self.context.output().out(match (self.parsable, self.dry_run) {
            (true, _) => format!("{verb}\t{exact}\n"),
            (false, true) => format!("would {verb} {text}\n"),
            (false, false) => format!("will {verb} {text}\n"),
        })
    }
}

impl DestroyCaller for Caller<'_> {
    fn goes(&self, name: &str) -> io::Result<()> {
        self.say("destroy", name, name)
    }

    fn frees(&self, bytes: u64) -> io::Result<()> {
        self.say("reclaim", &bytes.to_string(), &nicebytes(bytes))
    }

    fn begins(&self, count: u64) -> Box<dyn Fn(u64) + Send + Sync> {
        let progress = self.context.items("destroying", count);
        Box::new(move |more| progress.advance(more))
    }
}
