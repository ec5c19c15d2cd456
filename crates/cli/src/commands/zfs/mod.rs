//! `cenote zfs …`: datasets, in OpenZFS's grammar.

mod get;
mod holds;
mod list;
mod mount;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::args::Search;
use crate::context::Context;
use crate::outcome::Outcome;

/// Datasets: list, properties, holds, differences, space.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    #[command(subcommand)]
    command: Zfs,
}

crate::args::commands! {
    /// What to do with datasets.
    enum Zfs {
        Get => get,
        Holds => holds,
        List => list,
        Mount => mount,
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    args.command.run(&context.with(&args.search)).await
}
