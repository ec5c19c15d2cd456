//! `cenote zpool …`: pools, in OpenZFS's grammar.

mod add;
mod clear;
mod create;
mod destroy;
mod export;
mod get;
mod history;
mod import;
mod labelclear;
mod list;
mod remove;
mod set;
mod status;
mod sync;
mod upgrade;
mod version;

use crate::prelude::*;

/// Pools: create, add, remove, clear, upgrade, destroy, import, list, status, properties, history.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    #[command(subcommand)]
    command: Zpool,
}

crate::table::commands! {
    /// The commands for pools.
    enum Zpool {
        Add => add,
        Clear => clear,
        Create => create,
        Destroy => destroy,
        Export => export,
        Get => get,
        History => history,
        Import => import,
        Labelclear => labelclear,
        List => list,
        Remove => remove,
        Set => set,
        Status => status,
        Sync => sync,
        Upgrade => upgrade,
        Version => version,
    }
}

impl Args {
    /// Whether the server that has the pool can do it.
    pub(crate) const fn is_for_server(&self) -> bool {
        matches!(
            self.command,
            Zpool::Add(_)
                | Zpool::Clear(_)
                | Zpool::Export(_)
                | Zpool::Get(_)
                | Zpool::History(_)
                | Zpool::List(_)
                | Zpool::Remove(_)
                | Zpool::Set(_)
                | Zpool::Status(_)
                | Zpool::Sync(_)
        )
    }

    /// Whether it can be done while the pool's devices fail.
    pub(crate) const fn is_for_suspended(&self) -> bool {
        matches!(self.command, Zpool::Clear(_) | Zpool::Export(_) | Zpool::Status(_))
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    args.command.run(&context.with(&args.search)).await
}

/// Refuses the interval (and count) at which OpenZFS's commands repeat their output: a pool that is opened read-only does
/// not change under the command. Numbers that are too large for an interval may be a pool's guid.
fn refuse_interval(arguments: &[String]) -> Result<()> {
    const INTERVAL_MAX: f64 = 1e6;
    match arguments.last().and_then(|last| last.parse::<f64>().ok()) {
        Some(seconds) if seconds < INTERVAL_MAX => anyhow::bail!("not supported yet: repeating at an interval"),
        _ => Ok(()),
    }
}

/// Refuses lists of imported pools other than the user's own.
fn check_cachefile(value: &str) -> Result<()> {
    match value {
        "none" | "" => Ok(()),
        _ => anyhow::bail!(
            "not supported yet: cachefile={value}: imported pools are noted in one list; 'none' has a pool forgotten when the system is \
             started anew, and the variable CENOTE_CACHE names another list"
        ),
    }
}
