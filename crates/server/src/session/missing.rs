//! Why a pool cannot be opened: it is not there, or a process has it.

use cenote_host::Holder;

/// No pool of this name was found.
#[derive(Debug)]
pub struct NoSuchPool {
    /// The name.
    pub name: String,
    /// Why that may be, a line each.
    pub hints: Vec<String>,
}

impl std::fmt::Display for NoSuchPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot open '{}': no such pool", self.name)?;
        self.hints.iter().try_for_each(|hint| write!(f, "\n{hint}"))
    }
}

impl std::error::Error for NoSuchPool {}

/// A pool that was imported is not there any more.
#[derive(Debug)]
pub struct Gone(
    /// Its name.
    pub String,
);

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.0;
        write!(f, "cannot open '{name}': none of its devices is where it was; 'zpool export {name}' forgets it")
    }
}

impl std::error::Error for Gone {}

/// A process that has a pool which is read meanwhile.
pub(super) struct User {
    /// The process.
    pub(super) holder: Holder,
    /// It has written what it had in memory.
    pub(super) is_synced: bool,
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unseen = if self.is_synced { "" } else { ", without what that has in memory" };
        write!(f, "{}{unseen}", self.holder)
    }
}
