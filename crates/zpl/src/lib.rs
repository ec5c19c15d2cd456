//! Files and directories of a dataset.
//!
//! # Theory
//!
//! **Need.** Programs want paths, attributes, names and bytes; a dataset has objects, ZAPs and system attributes. This crate maps one to
//! the other, with POSIX semantics and independent of any front end: FUSE, `ls`, `cp`, `tar` and `manifest` are thin callers. Many
//! programs change a dataset at the same time, and each sees the others' changes immediately. Each change is atomic: it becomes durable
//! with its txg. An open file stays usable after its name is removed.
//!
//! **On disk.** An objset of type ZPL has a *master node* (object 1, a ZAP) that names the root directory, the version,
//! the table of system attributes, the delete queue and the case and normalisation rules. A directory is a ZAP from name
//! to (type, object number). A file's attributes lie in its dnode's bonus and spill as *system attributes* (version 5)
//! or as an old *znode* (before). Extended attributes are an XDR nvlist in one system attribute, or files in a hidden
//! directory, or both. POSIX ACLs are extended attributes; NFSv4 ACLs are a system attribute. The delete queue (OpenZFS's unlinked set)
//! is a ZAP with the numbers of objects that have no name any more and are to be freed.
//!
//! **In memory.**
//! ```text
//! FileSystem   objset and what its master node names              of a snapshot, a view, a pool opened read-only; or
//!              + source of txgs, nodes, garbage, options          of a head dataset that is changed
//!   Node       one object: attributes                             frozen: made for each use, no lock
//!              + locks, range locks, handles                      in use: once in memory, for as long as it is used
//!   File       a handle: its node is not freed before it is closed
//! bulk         fills a file system, one caller alone              same master node, records and tables
//! ```
//! A file system that is open to be read lacks a source of txgs, so what would change it is refused with `EROFS`
//! ([`ZplError::ReadOnly`]); all else is the same code. This crate caches no blocks: dirty blocks are in the objset's layers, all others
//! in the ARC. A node (OpenZFS's znode) of an open file system is kept while it is in use, and a directory's node for a while longer;
//! after that its attributes are read again. ZAPs of directories that were changed lately stay open (`dir::kept`).
//!
//! **Life of a look-up.** directory object -> ZAP look-up -> object number -> node -> [`Attributes`].
//!
//! **Life of a read.** The node's kind and size, then the object's range. Of a frozen file that takes no lock. Of a file in use it
//! takes the object's one short lock, and the file's range lock only if someone writes the file meanwhile (`node::bytes`).
//!
//! **Life of a change** (a new file).
//! 1. The name is checked, the directory locked; the new attributes are put together, and layouts that they need are made.
//! 2. The change is assigned to the open txg, with its worst-case cost ([`cenote_dmu::tx::Cost`]). This may wait (dirty data limit,
//!    space).
//! 3. The object is made, its attributes packed, the entry put into the directory's ZAP, the directory's own attributes
//!    changed in their places.
//! 4. The hold on the txg is released, then the locks.
//!
//! Step 3 can fail only if a block cannot be read. Blocks that it is known to need are read before, in step 1.
//!
//! **Locks**, in the order in which they are taken; a task that holds one takes none of an earlier kind.
//! 1. `renames`, one for each file system: held while a directory is moved to another parent, so that two concurrent moves cannot create
//!    a cycle.
//! 2. Nodes (`NodeInUse::lock`), several in the order of their numbers. Names are looked up without locks, then the locks are taken and
//!    the names are looked up again; if they lead to other nodes now, the operation starts again.
//! 3. Ranges of a file's bytes. Writers of data share the node's lock and hold their ranges exclusively, rounded to blocks,
//!    so that writes to different blocks go on at once. Readers take no node's lock.
//! 4. The delete queue's, the attribute tables'.
//! 5. A txg. Its holder waits for no lock above.
//! 6. `NodeInUse::entries`, for the moment in which a directory's changed blocks are put in place of the old ones.
//!
//! So operations on one node are ordered by its lock and therefore also by txg: no change of an earlier txg follows one of a later txg.
//! `Node::begin_shared` orders writers of data, which share the lock. Both orders are asserted (`dir::remove`, `node::gate`).
//!
//! **Invariants.**
//! 1. Every name handed out is non-empty, has no `/` and no zero byte; an entry that breaks this is reported, not listed.
//! 2. A walk that follows directories is bounded by the caller's depth; this crate never recurses.
//! 3. Errors carry the errno that a file system client expects, chosen here ([`ZplError::errno`]).
//! 4. The changes of one operation are in one txg, except for operations in steps (see below); each step leaves a consistent file
//!    (asserted for its size in `file::size`).
//! 5. A directory's size is 2 plus the number of its entries; its link count is 2 plus the number of its subdirectories (asserted of new
//!    ones, in `record`; what a pool says is not ours to assert).
//! 6. An object with no link is in the delete queue or is freed in the same txg (asserted in `dir::remove`: what stays has a link;
//!    in `delete_queue::reap`: what is freed has none, and no handle).
//! 7. Attributes that we do not know stay as they are.
//! 8. A file of more than one block has blocks whose size is a power of two (asserted where blocks grow, in `file::write`).
//!
//! **Large frees take several txgs.** One txg frees a bounded part of an object, so the memory needed to truncate or remove a file does
//! not depend on the file's size. A truncated file loses its end first, and has the size that is left after each step. A file that
//! loses its name, or its last user, is only put into the delete queue; a task frees it later ([`FileSystem::garbage`],
//! [`FileSystem::reap`]), and only changes that need its space wait for it (`delete_queue`).
//!
//! **Crash.** The file system is as of the last txg on disk. Objects in the delete queue are freed when the file system is
//! opened to be changed ([`FileSystem::reap`]). The intent log is replayed then too (`replay`); a read-only opening shows the last txg, as
//! OpenZFS's does.
//!
//! **Rejected.** *An inode cache where nothing changes*: the block cache holds the same bytes. *One lock for a file system*: simple, and
//! one slow look-up would hold up all. *A lock for each name*, as OpenZFS has: two creations in one directory meet at its ZAP anyway.
//! *Attributes only in the objset* (no copy in the node): every `stat` and every change of a time would have to unpack the SA record.
//! *Separate types for read-only and writable file systems*: everything was implemented twice.
//!
//! **Not here yet.** Changing file systems from before system attributes (ZPL version below 5), or with `casesensitivity` or
//! `normalization` set; inheriting NFSv4 ACLs; enforcing user, group and project quotas.

#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod acl;
mod attributes;
pub mod bulk;
mod delete_queue;
mod diff;
mod dir;
mod error;
mod file;
mod filesystem;
mod names;
mod node;
mod path;
mod path_finder;
mod posix_acl;
mod properties;
mod record;
mod replay;
mod space;
mod xattr;

pub use attributes::{Attributes, FileKind, Flags, Time};
pub use diff::{Change, Changed, Differences, diff};
pub use dir::{Cursor, DirEntry, Listed, NewNode, RenameMode};
pub use error::{Errno, ZplError};
pub use file::{Allocation, File};
pub use filesystem::{AccessTimes, AttributeChange, FileSystem, FileSystemOptions, XattrMode};
pub use names::CaseSensitivity;
pub use path::{path_parts, shown};
pub use path_finder::PathFinder;
pub use properties::{Forbidden, Properties, Snapdir};
pub use space::{SpaceKind, SpaceUse};
pub use xattr::{XATTR_NAMES_MAX, XATTR_VALUE_MAX_BYTES, XATTRS_MAX_BYTES, XattrSet};
