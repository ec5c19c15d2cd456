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

use cenote_server::ServerError;

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
    /// The commands for datasets.
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

/// Names of datasets by their pools, in the order of the first of each.
fn by_pool(names: &[String]) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    for name in names {
        match found.iter_mut().find(|known| pool_of(&known[0]) == pool_of(name)) {
            Some(known) => known.push(name.clone()),
            None => found.push(vec![name.clone()]),
        }
    }
    found
}

impl Args {
    /// The commands that make up this one, each for one pool, where it is for several: whoever has a pool does its part.
    pub(crate) fn of_pools(&self) -> Vec<Self> {
        let parts: Vec<Zfs> = match &self.command {
            Zfs::Set(args) => args.of_pools().into_iter().map(Zfs::Set).collect(),
            Zfs::Inherit(args) => args.of_pools().into_iter().map(Zfs::Inherit).collect(),
            _ => Vec::new(),
        };
        parts.into_iter().map(|command| Self { command, search: self.search.clone() }).collect()
    }

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

/// The first word of a command that names a dataset of a pool.
fn named(words: &serde_json::Value, pool: &str) -> Option<String> {
    match words {
        serde_json::Value::String(word) if pool_of(word) == pool => Some(word.clone()),
        serde_json::Value::Array(words) => words.iter().find_map(|words| named(words, pool)),
        serde_json::Value::Object(words) => words.values().find_map(|words| named(words, pool)),
        _ => None,
    }
}

/// OpenZFS's `zfs` tells of the dataset where there is no pool.
fn of_dataset(error: anyhow::Error, command: &Zfs) -> anyhow::Error {
    let Some(ServerError::NoSuchPool(missing)) = error.downcast_ref() else { return error };
    let words = serde_json::to_value(command).unwrap_or_default();
    let Some(name) = named(&words, &missing.name) else { return error };
    let hints = missing.hints.iter().map(|hint| format!("\n{hint}")).collect::<String>();
    match command {
        Zfs::Create(_) => anyhow::anyhow!("cannot create '{name}': no such pool '{}'{hints}", missing.name),
        _ => {
            let name = name.split('@').next().unwrap_or(&name);
            anyhow::anyhow!("cannot open '{name}': dataset does not exist{hints}")
        }
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let command = args.command.clone();
    let done = args.command.run(&context.with(&args.search)).await;
    done.map_err(|error| of_dataset(error, &command))
}
