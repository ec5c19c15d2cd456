//! Why a pool cannot be opened: it is not there, or a process has it.

use cenote_host::Holder;

/// Whether an error says that no pool has the name that was given.
pub(crate) fn is_no_such_pool(error: &anyhow::Error) -> bool {
    error.is::<NoSuchPool>()
}

/// No pool of this name was found.
#[derive(Debug)]
pub(crate) struct NoSuchPool {
    pub(crate) name: String,
    /// Why that may be, a line each.
    pub(crate) hints: Vec<String>,
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
pub(crate) struct Gone(pub(crate) String);

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.0;
        write!(f, "cannot open '{name}': none of its devices is where it was; 'zpool export {name}' forgets it")
    }
}

impl std::error::Error for Gone {}

/// A process that has a pool which is read meanwhile.
pub(crate) struct User {
    pub(crate) holder: Holder,
    /// It has written what it had in memory.
    pub(crate) is_synced: bool,
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unseen = if self.is_synced { "" } else { ", without what that has in memory" };
        write!(f, "{}{unseen}", self.holder)
    }
}
