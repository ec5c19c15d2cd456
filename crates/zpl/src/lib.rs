//! Files and directories of a dataset.
//!
//! # Theory
//!
//! **Need.** Programs want paths, attributes, names and bytes; a dataset has objects, ZAPs and system attributes. This
//! crate is the translation, in the terms of POSIX and independent of any front end: FUSE, `ls`, `cp`, `tar` and
//! `manifest` are thin callers.
//!
//! **On disk.** An objset of type ZPL has a *master node* (object 1, a ZAP) that names the root directory, the version,
//! the table of system attributes, the delete queue and the case and normalisation rules. A directory is a ZAP from name
//! to (type, object number). A file's attributes lie in its dnode's bonus and spill as *system attributes* (version 5)
//! or as an old *znode* (before). Extended attributes are an XDR nvlist in one system attribute, or files in a hidden
//! directory, or both. POSIX ACLs are extended attributes; NFSv4 ACLs are a system attribute.
//!
//! **In memory.** [`FileSystem`] is an opened dataset: an objset and the few numbers of its master node. It holds no
//! table of open files: an inode is a dnode, and the block cache makes finding one cheap.
//!
//! **Life of a look-up.** directory object -> ZAP look-up -> object number -> dnode -> [`Attributes`].
//!
//! **Invariants.**
//! 1. Every name handed out is non-empty, has no `/` and no zero byte; an entry that breaks this is reported, not listed.
//! 2. A walk that follows directories is bounded by the caller's depth; this crate never recurses.
//! 3. Errors carry the errno that a file system client expects, chosen here ([`ZplError::errno`]).
//!
//! **Crash.** Reading leaves nothing; the intent log of a dataset that was not unmounted cleanly is *not* replayed by a
//! read-only opening, just as OpenZFS does not: the view is that of the last txg.
//!
//! **Rejected.** An inode cache (the block cache holds the same bytes; a second copy needs invalidation later).

mod acl;
mod attributes;
mod directory;
mod error;
mod file;
mod filesystem;
pub mod live;
mod names;
mod record;
mod space;
pub mod write;
mod xattr;

pub use attributes::{Attributes, FileKind, Flags, Time};
pub use directory::{Cursor, DirEntry};
pub use error::{Errno, ZplError};
pub use file::File;
pub use filesystem::{CaseSensitivity, FileSystem};
pub use space::{SpaceKind, SpaceUse};
pub use xattr::{XATTR_NAMES_MAX, XATTR_VALUE_MAX_BYTES, XATTRS_MAX_BYTES};
