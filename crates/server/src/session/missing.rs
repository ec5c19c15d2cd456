//! The reasons why a pool cannot be opened: it is missing, or a process has it.

use std::path::PathBuf;

use cenote_host::Holder;
use cenote_spa::{FoundPool, View};

use crate::error::ServerError;
use crate::protocol::Owned;

/// No pool with this name was found.
#[derive(Debug)]
pub struct NoSuchPool {
    /// The name.
    pub name: String,
    /// Possible reasons, one line each.
    pub hints: Vec<String>,
}

impl std::fmt::Display for NoSuchPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot open '{}': no such pool", self.name)?;
        if let Some(at) = self.name.find(['/', '@', '#']) {
            write!(f, "\nthat is the name of a dataset, of the pool '{}'", &self.name[..at])?;
        }
        self.hints.iter().try_for_each(|hint| write!(f, "\n{hint}"))
    }
}

impl std::error::Error for NoSuchPool {}

/// An imported pool no longer exists, or this user may not read it.
#[derive(Debug)]
pub struct Gone {
    /// Its name.
    pub name: String,
    /// A device of it that this user may not open.
    pub denied: Option<PathBuf>,
}

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.name;
        match &self.denied {
            Some(path) => write!(f, "cannot open '{name}': permission denied to open its device '{}'", path.display()),
            None => {
                write!(f, "cannot open '{name}': none of its devices is where it was; 'zpool export {name}' forgets it")
            }
        }
    }
}

impl std::error::Error for Gone {}

/// A pool that is imported but cannot be opened.
#[derive(Debug)]
pub struct Lost {
    /// Its name here.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// The devices that it was imported from.
    pub paths: Vec<PathBuf>,
    /// The devices of it that exist, with the data about the others in their labels.
    pub found: Option<FoundPool>,
    /// The reason.
    pub error: ServerError,
}

/// A pool to be shown, by the way in which it can be.
pub enum Shown {
    /// It is open.
    Open(View),
    /// It is imported but cannot be opened.
    Lost(Lost),
    /// A process has it, which knows more about it.
    Owned(Owned),
}

impl Shown {
    /// The pool's name here.
    pub fn name(&self) -> &str {
        match self {
            Self::Open(view) => view.name(),
            Self::Lost(lost) => &lost.name,
            Self::Owned(owned) => &owned.pool,
        }
    }
}

/// A process that has a pool while it is read.
pub(super) struct User {
    /// The process.
    pub(super) holder: Holder,
    /// It has written everything that it had in memory.
    pub(super) is_synced: bool,
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unseen = if self.is_synced { "" } else { ", without what that has in memory" };
        write!(f, "{}{unseen}", self.holder)
    }
}
