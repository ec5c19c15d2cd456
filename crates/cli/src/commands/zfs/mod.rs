//! `cenote zfs …`: datasets, in OpenZFS's grammar.

mod bookmark;
mod clone;
mod create;
mod destroy;
mod diff;
mod get;
mod holding;
mod holds;
mod inherit;
mod list;
mod listing;
mod mount;
mod promote;
mod receive;
mod redact;
mod rename;
mod rollback;
mod send;
mod set;
mod snapshot;
mod space;
mod unmount;
mod version;

use crate::args::GoesOn;
use crate::prelude::*;
use holding::{hold, release};
use space::{groupspace, projectspace, userspace};

/// Datasets: create, destroy, snapshots, bookmarks, clones, list, properties, holds, differences, streams, space.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    #[command(subcommand)]
    command: Zfs,
}

crate::table::commands! {
    /// What to do with datasets.
    enum Zfs {
        Bookmark => bookmark,
        Clone => clone,
        Create => create,
        Destroy => destroy,
        Diff => diff,
        Get => get,
        Groupspace => groupspace,
        Hold => hold,
        Holds => holds,
        Inherit => inherit,
        List => list,
        Mount => mount,
        Projectspace => projectspace,
        Promote => promote,
        #[command(visible_alias = "recv")]
        Receive => receive,
        Redact => redact,
        Release => release,
        Rename => rename,
        Rollback => rollback,
        Send => send,
        Set => set,
        #[command(visible_alias = "snap")]
        Snapshot => snapshot,
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

    /// Whether it reads standard input, which a server that does it then gets.
    pub(crate) const fn takes_input(&self) -> bool {
        matches!(self.command, Zfs::Receive(_))
    }

    /// Whether the server that has the pool can do it.
    pub(crate) const fn is_for_server(&self) -> bool {
        matches!(
            self.command,
            Zfs::Bookmark(_)
                | Zfs::Clone(_)
                | Zfs::Create(_)
                | Zfs::Destroy(_)
                | Zfs::Get(_)
                | Zfs::Hold(_)
                | Zfs::Inherit(_)
                | Zfs::List(_)
                | Zfs::Promote(_)
                | Zfs::Receive(_)
                | Zfs::Redact(_)
                | Zfs::Release(_)
                | Zfs::Rename(_)
                | Zfs::Rollback(_)
                | Zfs::Set(_)
                | Zfs::Snapshot(_)
        )
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    args.command.run(&context.with(&args.search)).await
}
