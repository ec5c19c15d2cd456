//! A dataset as a FUSE file system.
//!
//! # Theory
//!
//! **Need.** Programs want a pool as files: `ls`, `tar`, `rsync`, a web server, a restore of last week's snapshot. FUSE
//! carries their system calls to this process. One process serves a whole pool: datasets, snapshots, many clients at
//! once; as root or, through `fusermount3`, as anybody.
//!
//! **Shape.**
//! ```text
//! kernel ── device or ring ── wire (messages) ── binding (its threads never wait) ── a task for a request that waits
//!                                                                               │
//!                                             server::FileServer  ◄─────────────┘   our own terms, no kernel needed
//!                                                     │
//!                         tree: node numbers ─► slot ─► zfsvfs (FileSystem + properties) ─► zpl ─► dmu ─► cache
//! ```
//! **One mount for the whole tree.** Mounting a dataset shows, in one FUSE mount, the dataset, those below it where their `mountpoint` puts
//! them ([`Layout`]), and `.zfs/snapshot/NAME` of each. The alternative, a mount for each dataset as the kernel module has it, gives each
//! its own device number, but needs root for every nested mount (fusermount3 refuses to mount on a read-only directory), a mount per
//! snapshot when it is first looked at (which a FUSE server can only fake), and an order of unmounting. The price is one device number
//! for all; so inode numbers are unique in the whole mount instead (the module `node`), and (device, inode) still identifies a file. A
//! dataset or snapshot mounted by itself has exactly OpenZFS's inode numbers; both forms can be had at once, in one process.
//!
//! **In memory.** A node number encodes its dataset and object, so there is no table of nodes. There are only *slots*, which number the
//! datasets (bounded), opened file systems (bounded), files being read (bounded), and *grafts*, the places of nested datasets. Data in
//! flight has a budget in bytes; the ARC bounds prefetched data. The mounted dataset needs no look-up: its node numbers are its object
//! numbers.
//!
//! **Life of a read.** The kernel asks for up to 1 MiB of a node. A thread of the binding finds the file (kept open by node), takes its
//! share of the budget, and reads the blocks concurrently through the ARC, with prefetch for sequential reads. If the cache has the
//! blocks the same thread sends the reply. If not the request goes on as a task, and the thread reads the next one.
//!
//! **One thread for a request.** To hand a request to another thread and to wake that costs more than most requests do. So the
//! thread that reads a request polls its future once; a future that is ready then was served without another thread.
//!
//! **Device and ring.** Requests are read from `/dev/fuse`, or come by FUSE over io_uring: a queue for each CPU, with a thread on it, where
//! a reply and the wait for the next request are one system call. Both ways lead to the same binding; what differs is where a request's
//! three parts lie (the module `wire`) and where its reply goes. Forgetting, interrupting and notices use the device in any case. The
//! ring serves where root has switched it on in the kernel, unless an option says not to. Where the kernel does not offer one, or takes its
//! offer back, the device serves; and with `auto_unmount`, since the kernel ends the connection of a killed process too late there for fusermount3 to see it.
//!
//! **No request waits for another one.** Requests have bounded places in the kernel: a ring's queue has few entries, and what the kernel
//! does in the background (it reads ahead, writes back, transfers directly) has a bound too. One kind of request does wait for others: a
//! direct write waits until the kernel has dropped the stale pages, and the kernel may be filling such a page with a read that needs a
//! place itself. So fewer direct writes may wait than there are places (the binding's module `stale`).
//!
//! **Caching in the kernel.** A pool that is open read-only does not change. So the kernel may cache names, negative entries, attributes,
//! links, listings and data without a timeout and opens files without a request, and a second `find` or `grep` does not reach this
//! process.
//!
//! **Changing.** Of a pool in use ([`Tree::open_live`]) the slots of heads are *live*: their file systems are opened to be changed, each in
//! one mount at a time. Snapshots are not opened through a view, since a view pins its txg, and no block that is freed during the mount
//! could be reused. Between datasets there are no links and renames (`EXDEV`), as between mounts, and where one stands
//! the name is in use (`EBUSY`). All changes of files come through the mount, so the kernel may cache without a timeout here too, and
//! updates its cache itself when it sends a change. Commands of this process create, destroy and move datasets, and call
//! [`Tree::refresh`]; then the kernel is told to forget the names concerned. A dataset that is to be destroyed is taken out of the mount
//! first, unless it is in use ([`Tree::release_datasets`]). Open files are held by node, so that they outlive their names; directories
//! and special files that lost their last name are held until the kernel forgets them. `fsync` waits for the intent log; `statfs` reports
//! the space as of the last synced txg. Direct writes have the kernel drop the pages that they make stale (the module `direct`). Not here
//! yet: setting flags. A head is suspended while it is rolled back ([`Tree::suspend`]). `docs/SEMANTICS.md` lists what a mount promises.
//!
//! **File handles.** A node's number and generation are those of its object, so they are good for ever. Where the kernel has
//! forgotten the node of a handle it looks `.` up in it, which succeeds as long as the file has a name. In a mount with nested datasets,
//! only handles of the mounted dataset itself stay valid for ever.
//!
//! **Set-ids.** A write or a change of owner by an unprivileged user clears the file's set-user-id and set-group-id bits. The
//! server does that (negotiated `FUSE_HANDLE_KILLPRIV_V2`): else the kernel asks before each write whether the file has any such
//! right, which doubles the messages. The kernel goes on with the mode that it has, so it is told to forget that before the write is
//! answered. File capabilities the kernel removes itself.
//!
//! **Permissions.** The kernel checks bits and POSIX ACLs (`default_permissions`, negotiated `FUSE_POSIX_ACL`), by the
//! attributes `system.posix_acl_*` that the server hands out where the dataset has `acltype=posix`. Devices and set-user-id are off unless
//! asked for: a pool may come from an untrusted source.
//!
//! **Invariants.**
//! 1. A thread of the binding never waits for I/O or for a lock held across I/O.
//! 2. No two files of a mount have the same inode number.
//! 3. A slot is given to another dataset only when the kernel has forgotten every node in it.
//! 4. Every request gets one reply, a panic's `EIO` included.
//! 5. A listing ends: a directory whose positions do not increase is refused as corrupt.
//! 6. A head has only one file system object that changes it, however many mounts show it: two would have two sets of locks.
//!
//! **Crash.** Changes up to the last txg, and those in the intent log, are kept. A killed process leaves a mount that answers `ENOTCONN`;
//! mounting there says how to remove it.
//!
//! **Rejected.** A table of inodes (its memory grows with each inode that is looked up, and the node numbers already say where an object
//! is); *A server for frozen datasets and one for live ones*: everything except changes was implemented twice, and only one of them had
//! snapshots and nested datasets. *A timeout on the kernel's cached names*, so that it notices created and destroyed datasets: it would ask
//! all the time, and be wrong in between. `fuse3` and other async bindings (they bring a runtime of their own); opening files by handle
//! (messages for nothing while nothing can change). *The kernel's writeback cache*: writes would return sooner, but what they wrote would
//! stay in the kernel for half a minute before any txg could have it, where now a killed process loses some seconds; and the kernel would
//! send each change of a file's times as a request of its own. *Direct requests one after the other* (no `FUSE_ASYNC_DIO`), after which
//! the kernel drops stale pages itself: a large request would be split into pieces that are sent one after the other. *Polling a
//! request's future for a moment longer* on the thread that read it: a request that waits here waits for a device or for a txg, which
//! takes longer than waking a worker.

mod binding;
mod direct;
mod files;
mod grafts;
mod groups;
mod kernel_mount;
mod layout;
mod listing;
mod live;
mod mount;
mod node;
mod options;
mod raw;
pub mod server;
mod slots;
mod source;
mod space;
mod top_mount;
mod tree;
mod wire;
mod zfsvfs;

pub use cenote_inuse::{OpenError, Report};
pub use layout::Layout;
pub use mount::{MountError, MountHandle, Unmount, Unmounted, change_mount, mount, mount_tree, remount, unmount};
pub use node::is_nested_root;
pub use options::{Access, MountOptions, Transport};
pub use tree::{SuspendedFs, Tree, TreeOptions};
