//! Directories: entries, looking names up, and changing them.

mod create;
mod entry;
mod kept;
mod look;
mod remove;
mod rename;

pub use create::NewNode;
pub(crate) use create::Origin;
pub(crate) use entry::{entry_value, word};
pub(crate) use kept::KeptZaps;
pub use look::{Cursor, DirEntry};
pub use rename::RenameMode;
