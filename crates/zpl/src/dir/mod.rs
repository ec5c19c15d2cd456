//! Directories: entries, looking names up, and changing them.

mod create;
mod entry;
mod look;
mod open_zaps;
mod remove;
mod rename;

pub use create::NewNode;
pub(crate) use entry::{entry_value, word};
pub use look::{Cursor, DirEntry, Listed};
pub(crate) use open_zaps::OpenZaps;
pub use rename::RenameMode;
