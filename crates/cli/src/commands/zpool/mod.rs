//! `cenote zpool …`: pools, in OpenZFS's grammar.

mod export;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::args::Search;
use crate::context::Context;
use crate::outcome::Outcome;

/// Pools: import, list, status, properties, history.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    #[command(subcommand)]
    command: Zpool,
}

crate::args::commands! {
    /// What to do with pools.
    enum Zpool {
        Export => export,
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    args.command.run(&context.with(&args.search)).await
}
