//! The commands: a module and a line in the table each, in alphabetical order.

mod bench;
mod build;
mod cat;
mod completions;
mod cp;
mod demo;
mod inspect;
mod kstat;
mod ls;
mod man;
mod manifest;
mod mount;
mod put;
mod receive;
mod send;
mod serve;
mod tar;
mod tunables;
mod unmount;
mod verify;
mod version;
mod zdb;
mod zfs;
mod zpool;
mod zstream;

use crate::args::{GoesOn, Repeats};

crate::table::commands! {
    /// The commands.
    enum Command {
        Bench => bench,
        Build => build,
        Cat => cat,
        Completions => completions,
        Cp => cp,
        Demo => demo,
        Inspect => inspect,
        Kstat => kstat,
        Ls => ls,
        Man => man,
        Manifest => manifest,
        Mount => mount,
        Put => put,
        Receive => receive,
        Send => send,
        Serve => serve,
        Tar => tar,
        Tunables => tunables,
        #[command(visible_alias = "umount")]
        Unmount => unmount,
        Verify => verify,
        Version => version,
        Zdb => zdb,
        Zfs => zfs,
        Zpool => zpool,
        Zstream => zstream,
    }
}

impl Command {
    /// The commands that make up this one, where it is for several pools.
    pub(crate) fn of_pools(&self) -> Vec<Self> {
        match self {
            Self::Zfs(args) => args.of_pools().into_iter().map(Self::Zfs).collect(),
            Self::Zpool(args) => args.of_pools().into_iter().map(Self::Zpool).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the server that has a pool can do it.
    pub(crate) fn is_for_server(&self) -> bool {
        match self {
            Self::Inspect(args) => args.is_of_server(),
            Self::Kstat(_) | Self::Unmount(_) => true,
            Self::Tunables(args) => args.is_for_server(),
            Self::Mount(args) => args.is_for_server(),
            Self::Zfs(args) => args.is_for_server(),
            Self::Zpool(args) => args.is_for_server(),
            _ => false,
        }
    }

    /// Whether it reads standard input, which a server that does it then gets.
    pub(crate) const fn takes_input(&self) -> bool {
        match self {
            Self::Zfs(args) => args.takes_input(),
            _ => false,
        }
    }

    /// The options of a command that goes on until it is ended; none of another.
    pub(crate) fn goes_on(&self) -> Option<&GoesOn> {
        match self {
            Self::Mount(args) if args.is_remount() => None,
            Self::Mount(args) => Some(args.goes_on()),
            Self::Serve(args) => Some(args.goes_on()),
            Self::Zfs(args) => args.goes_on(),
            _ => None,
        }
    }

    /// Whether the server can do it while the pool's devices fail.
    pub(crate) fn is_for_suspended(&self) -> bool {
        match self {
            Self::Inspect(_) | Self::Kstat(_) | Self::Unmount(_) => true,
            Self::Zpool(args) => args.is_for_suspended(),
            _ => false,
        }
    }

    /// Whether it shows the health of pools.
    pub(crate) const fn shows_health(&self) -> bool {
        matches!(self, Self::Zpool(args) if args.is_status())
    }

    /// How often it is done, and after how long again, where its line says so; its words are then without that.
    pub(crate) fn repeats(&mut self) -> anyhow::Result<Option<Repeats>> {
        match self {
            Self::Zpool(args) => args.repeats(),
            _ => Ok(None),
        }
    }

    /// From now on it is done again.
    pub(crate) fn go_on(&mut self) {
        if let Self::Zpool(args) = self {
            args.go_on();
        }
    }

    /// Whether it is one of OpenZFS's tools, in whose place scripts use it.
    pub(crate) const fn is_of_openzfs(&self) -> bool {
        matches!(self, Self::Zdb(_) | Self::Zfs(_) | Self::Zpool(_) | Self::Zstream(_))
    }
}
