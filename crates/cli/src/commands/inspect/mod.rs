//! `cenote inspect`: looking inside a pool, however damaged.
//!
//! # Theory
//!
//! **Need.** Someone with a pool that misbehaves, or who wants to see how one works, looks at it piece by piece: labels,
//! roots, objects, pointers, maps. A program that gives up at the first bad block is of no use to them.
//!
//! **Shape.** The commands that need an opened pool are one table ([`reports`]); the others have a file each, and open what they need and
//! no more. Each has crate `inspect` gather a report and prints it ([`report`]): text or JSON of the same tree. A structure that cannot be
//! read becomes a problem with its place in the report, and the command goes on behind it. `cenote zdb` is a grammar over the same
//! functions.
//!
//! **Invariants.**
//! 1. Lists are bounded, and a list that was cut says so.
//! 2. A problem makes the exit status 1, and never ends the report where there is more to show.
//! 3. Numbers from the disk are added and shifted with checks: a hostile pool can make a report wrong, not a panic.
//!
//! **Rejected.** The text of `zdb`, letter by letter: scripts have JSON here, and people units.

pub(crate) mod bp;
pub(crate) mod config;
pub(crate) mod labels;
pub(crate) mod report;
pub(crate) mod reports;
mod txgs;
pub(crate) mod uberblocks;

use crate::prelude::*;
use reports::{blocks, bpobj, datasets, deadlists, dedup, features, history, mos, object, spacemaps, zil};

/// Look inside a pool: labels, roots, objects, block pointers, space maps.
///
/// Works on damaged pools, as far as that is possible at all: what cannot be read is reported, and the exit status is 1.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

crate::table::commands! {
    /// The parts of a pool that can be inspected.
    enum What {
        Blocks => blocks,
        Bp => bp,
        Bpobj => bpobj,
        Config => config,
        Datasets => datasets,
        Deadlists => deadlists,
        Dedup => dedup,
        Features => features,
        History => history,
        Labels => labels,
        Mos => mos,
        Object => object,
        Spacemaps => spacemaps,
        Txgs => txgs,
        Uberblocks => uberblocks,
        Zil => zil,
    }
}

impl Args {
    /// Whether it is about what only a server knows.
    pub(crate) const fn is_of_server(&self) -> bool {
        matches!(self.what, What::Txgs(_))
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    args.what.run(context).await
}
