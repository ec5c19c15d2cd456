//! `cenote zfs …`: datasets, in OpenZFS's grammar.

mod create;
mod destroy;
mod diff;
mod get;
mod holds;
mod inherit;
mod list;
mod listing;
mod mount;
mod rename;
mod send;
mod set;
mod space;
mod unmount;
mod version;
mod volume;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use space::{groupspace, projectspace, userspace};

use crate::args::Search;
use crate::background::GoesOn;
use crate::context::Context;
use crate::outcome::Outcome;

/// Datasets: create, destroy, list, properties, holds, differences, streams, space.
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
        Create => create,
        Destroy => destroy,
        Diff => diff,
        Get => get,
        Groupspace => groupspace,
        Holds => holds,
        Inherit => inherit,
        List => list,
        Mount => mount,
        Projectspace => projectspace,
        Rename => rename,
        Send => send,
        Set => set,
        #[command(visible_alias = "umount")]
        Unmount => unmount,
        Userspace => userspace,
        Version => version,
    }
}

impl Args {
    /// The options of a verb that goes on until it is ended; none of another.
    pub(crate) fn goes_on(&self) -> Option<&GoesOn> {
        match &self.command {
            Zfs::Mount(args) => Some(args.goes_on()),
            _ => None,
        }
    }

    /// Whether the server that has the pool can do it.
    pub(crate) const fn is_for_server(&self) -> bool {
        matches!(
            self.command,
            Zfs::Create(_)
                | Zfs::Destroy(_)
                | Zfs::Get(_)
                | Zfs::Inherit(_)
                | Zfs::List(_)
                | Zfs::Rename(_)
                | Zfs::Set(_)
        )
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    args.command.run(&context.with(&args.search)).await
}
