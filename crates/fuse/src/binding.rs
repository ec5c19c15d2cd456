//! FUSE's requests answered by a file server.
//!
//! Threads take requests from the kernel, and serve them as far as that waits for nothing: most requests are answered by
//! the thread that took them, with no other thread woken for it. A request that has to wait (for a device, a lock, a txg) becomes a
//! task, which sends the reply, and the thread takes the next one. Work that ends without a reply (a panic, a runtime going away)
//! replies `EIO` when its [`Reply`] is dropped.

mod bound;
mod device;
mod helper;
mod init;
mod mapped;
mod notices;
mod outbox;
mod reply;
mod ring;
mod seek;
mod session;
mod stale;
#[cfg(test)]
mod tests;
mod words;

use std::sync::Arc;
use std::time::Duration;

use cenote_taskq::{Class, Group};
use cenote_zpl::FileKind;
use rustix::fs::OFlags;

use self::notices::Notices;
use self::reply::Reply;
pub(crate) use self::session::mount;
use self::stale::Dropper;
use self::words::{attributes, caller, entry, fsxattr, kind_bits, to_kernel, zpl_time};
use crate::direct::DirectFiles;
use crate::options::{Access, MountOptions};
use crate::server::{
    Caching, DirItem, Entry, Errno, FileServer, NewFile, NodeId, Rename, Seek, SetAttributes, Stat, Writer,
};
use crate::wire::reply as body;
use crate::wire::request::SetAttr;
use crate::wire::{Header, Operation};

/// Requests that may wait at once of those that the kernel makes in the background: it reads ahead, writes back, and transfers directly.
/// Chosen by eye: enough for many disks.
const BACKGROUND_MAX: u16 = 128;
/// How many of them may be direct writes that wait for others. So there is always room for the others.
const WAITING_MAX: u16 = BACKGROUND_MAX / 4 * 3;
/// The largest read or write. The kernel's own limit is 256 pages.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// The largest future of a request.
const FUTURE_MAX_BYTES: usize = 16 << 10;
/// Items of a listing fetched at a time.
const LISTING_BATCH: usize = 64;

/// `FS_IOC_GETFLAGS` and `FS_IOC_FSGETXATTR` (`linux/fs.h`), which have `lsattr` and project ids.
const GET_FLAGS: u32 = 0x8008_6601;
const GET_FLAGS_32: u32 = 0x8004_6601;
const GET_FSXATTR: u32 = 0x801c_581f;
const FLAG_INHERIT_PROJECT: u32 = 0x2000_0000;

/// A write whose writer may not keep set-ids (`FUSE_WRITE_KILL_SUIDGID`).
const WRITE_KILLS_SET_IDS: u32 = 1 << 2;

/// Flags of a reply to an open (`FOPEN_*`).
mod fopen {
    pub(super) const KEEP_CACHE: u32 = 1 << 1;
    pub(super) const CACHE_DIR: u32 = 1 << 3;
    pub(super) const NO_FLUSH: u32 = 1 << 5;
}

/// A server on a kernel connection.
struct Binding<S> {
    server: Arc<S>,
    group: Group,
    caching: Caching,
    /// Whether the kernel goes on without asking when `open` is not implemented.
    skips_open: bool,
    skips_opendir: bool,
    is_writable: bool,
    /// The one user beside root that gets in, where the kernel lets in more.
    only: Option<u32>,
    notices: Notices,
    direct: Arc<DirectFiles>,
    stale: Arc<Dropper>,
}

/// The rights of a caller that changes a file's size or allocation: the kernel says only with writes whether the caller may keep set-ids;
/// only root may.
fn writer_by_user(header: &Header) -> Writer {
    Writer { drops_set_ids: header.uid != 0 }
}

/// True for requests of a descriptor that is to go past the kernel's pages.
fn is_direct(flags: u32) -> bool {
    flags & OFlags::DIRECT.bits() != 0
}

/// How long the client keeps a node's attributes: only a moment where its space is about to change.
fn kept(caching: Caching, stat: &Stat) -> Duration {
    const PASSING: Duration = Duration::from_secs(1);
    if stat.is_passing { caching.found.min(PASSING) } else { caching.found }
}

/// The body that tells of an entry, which the kernel keeps from now on; where it was also opened, with the flags of that.
fn found(caching: Caching, made: Entry, opened: Option<u32>) -> Vec<u8> {
    let told = entry(&made, kept(caching, &made.stat));
    made.pin.keep();
    body::entry(&told, opened)
}

/// The body with a value of unknown size: the size if none was asked for, the value if it fits.
fn sized(size: u32, value: Vec<u8>) -> Result<Vec<u8>, Errno> {
    match u32::try_from(value.len()) {
        Err(_) => Err(Errno::TOOBIG),
        Ok(len) if size == 0 => Ok(body::size(len)),
        Ok(len) if len > size => Err(Errno::RANGE),
        Ok(_) => Ok(value),
    }
}

fn set_attributes(set: &SetAttr, header: &Header) -> SetAttributes {
    SetAttributes {
        permissions: set.mode.map(|mode| mode & 0o7777),
        uid: set.uid,
        gid: set.gid,
        size_bytes: set.size,
        accessed: set.accessed.map(|time| time.map(zpl_time)),
        modified: set.modified.map(|time| time.map(zpl_time)),
        drops_set_ids: writer_by_user(header).drops_set_ids,
    }
}

impl<S: FileServer> Binding<S> {
    /// A server on a connection whose kernel offers what INIT's flags say.
    fn new(server: Arc<S>, group: Group, notices: Notices, offered: u64, options: &MountOptions) -> Self {
        let (caching, is_writable, direct) = (server.caching(), server.is_writable(), Arc::default());
        Self {
            server,
            group,
            caching,
            // A file that is changed is held while it is open; nothing is held for a directory.
            skips_open: caching.is_immutable && offered & init::NO_OPEN_SUPPORT != 0,
            // By opening the root directory fusermount3 finds out whether there is a server still.
            skips_opendir: offered & init::NO_OPENDIR_SUPPORT != 0 && !options.auto_unmount,
            is_writable,
            only: (options.access == Access::RootAndOwner).then(|| rustix::process::geteuid().as_raw()),
            stale: Arc::new(Dropper::new(Arc::clone(&direct), notices.clone(), usize::from(WAITING_MAX))),
            notices,
            direct,
        }
    }

    /// Serves a request here, and as a task from the first wait on. Once the group is closed the request is dropped, which replies
    /// `EIO`.
    ///
    /// A request's future is moved to the heap whole, so it is to be small. (And with frames of more than ten pages rustc 1.95 lost the
    /// server's reference: the loop that touches the pages of the stack used the register that had it.)
    fn begin<F>(&self, work: impl FnOnce(Arc<S>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        const { assert!(size_of::<F>() <= FUTURE_MAX_BYTES, "what is seldom needed of a request is boxed") };
        let _ = self.group.begin(Class::Issue, work(Arc::clone(&self.server)));
    }

    /// Serves a request whose reply has a body. (The server's future is made within, so that room for it is there once.)
    fn answer<F, B>(&self, reply: Reply, work: impl FnOnce(Arc<S>) -> F + Send + 'static)
    where
        F: Future<Output = Result<B, Errno>> + Send,
        B: AsRef<[u8]>,
    {
        self.begin(move |server| async move { reply.result(work(server).await) });
    }

    /// As [`Binding::answer`], of what has nothing to say but that it is done.
    fn done<F>(&self, reply: Reply, work: impl FnOnce(Arc<S>) -> F + Send + 'static)
    where
        F: Future<Output = Result<(), Errno>> + Send,
    {
        self.answer(reply, move |server| async move { work(server).await.map(|()| []) });
    }

    /// Serves one request.
    fn serve(&self, header: &Header, operation: Operation, reply: Reply) {
        if !self.lets_in(header, &operation) {
            return reply.error(Errno::ACCESS);
        }
        let (node, caching) = (NodeId(header.node), self.caching);
        match operation {
            Operation::Lookup { name } => self.answer(reply, move |server| async move {
                match server.lookup(node, &name).await {
                    Ok(entry) => Ok(found(caching, entry, None)),
                    Err(Errno::NOENT) if !caching.absent.is_zero() && server.keeps_absent(node) => {
                        let kept = caching.absent;
                        Ok(body::entry(&body::Entry { kept, ..body::Entry::default() }, None))
                    }
                    Err(errno) => Err(errno),
                }
            }),
            Operation::Forget { count } => {
                self.forget(node, count);
                reply.none();
            }
            Operation::BatchForget(nodes) => {
                nodes.into_iter().for_each(|(node, count)| self.forget(NodeId(node), count));
                reply.none();
            }
            Operation::GetAttr => self.answer(reply, move |server| async move {
                let stat = server.getattr(node).await?;
                Ok(body::attributes(kept(caching, &stat), &attributes(&stat)))
            }),
            Operation::SetAttr(set) => {
                let set = set_attributes(&set, header);
                self.answer(reply, move |server| async move {
                    let stat = server.setattr(node, &set).await?;
                    Ok(body::attributes(kept(caching, &stat), &attributes(&stat)))
                });
            }
            Operation::ReadLink => self.answer(reply, move |server| async move { server.readlink(node).await }),
            Operation::Open { flags } => self.open(node, flags, reply),
            Operation::Read { offset, size, flags } => {
                if !is_direct(flags) {
                    self.direct.buffered(node);
                }
                self.answer(reply, move |server| async move { server.read(node, offset, size).await });
            }
            Operation::Release { flags } => self.release(node, flags, reply),
            Operation::OpenDir { .. } if self.skips_opendir => reply.error(Errno::NOSYS),
            Operation::OpenDir { .. } => reply.body(&body::open(fopen::KEEP_CACHE | fopen::CACHE_DIR)),
            Operation::ReadDir { offset, size, with_entries } => self.answer(reply, move |server| async move {
                let mut listing = body::Listing::new(size.min(TRANSFER_MAX_BYTES));
                let add = |item| add(&mut listing, caching, with_entries, item);
                list(&*server, node, offset, with_entries, add).await?;
                Ok(listing.finish())
            }),
            Operation::StatFs => self.answer(reply, move |server| async move {
                let space = server.statfs(node).await?;
                let (blocks, files) = ((space.blocks, space.blocks_free), (space.files, space.files_free));
                Ok(body::statfs(blocks, files, space.block_size_bytes, space.name_max_bytes))
            }),
            Operation::GetXattr { name, size } => {
                let caller = caller(header);
                self.answer(
                    reply,
                    move |server| async move { sized(size, server.getxattr(node, &name, caller).await?) },
                );
            }
            Operation::ListXattr { size } => {
                let caller = caller(header);
                self.answer(reply, move |server| async move { sized(size, server.listxattr(node, caller).await?) });
            }
            Operation::Access { mask } => {
                self.done(reply, move |server| async move { server.access(node, mask).await })
            }
            Operation::Ioctl { command, out_size, .. } => self.ioctl(node, command, out_size, reply),
            Operation::Lseek { offset, whence } => self.seek(node, offset, whence, reply),
            Operation::ReleaseDir | Operation::Destroy => reply.done(),
            // "Not implemented": the kernel does not ask again.
            Operation::Flush | Operation::Interrupt { .. } => reply.error(Errno::NOSYS),
            Operation::Init { .. } => reply.error(Errno::IO),
            operation => self.change(header, operation, reply),
        }
    }

    /// Serves a request that changes something.
    fn change(&self, header: &Header, operation: Operation, reply: Reply) {
        let (node, caching) = (NodeId(header.node), self.caching);
        let new = |mode, umask| NewFile { mode, umask, caller: caller(header), device: (0, 0), target: None };
        match operation {
            Operation::Write { offset, write_flags, flags, data } => {
                let writer = Writer { drops_set_ids: write_flags & WRITE_KILLS_SET_IDS != 0 };
                self.write(node, offset, data, flags, writer, reply);
            }
            Operation::Mknod { mode, umask, device: packed, name } => {
                let device = ((packed >> 8) & 0xfff, (packed & 0xff) | ((packed >> 12) & 0xf_ff00));
                self.make(node, name, NewFile { device, ..new(mode, umask) }, reply);
            }
            Operation::Mkdir { mode, umask, name } => {
                self.make(node, name, new(mode & 0o7777 | FileKind::Directory.mode_bits(), umask), reply);
            }
            Operation::Symlink { name, target } => {
                let mode = 0o777 | FileKind::Symlink.mode_bits();
                self.make(node, name, NewFile { target: Some(target), ..new(mode, 0) }, reply);
            }
            Operation::Create { flags, mode, umask, name } => {
                let new = new(mode & 0o7777 | FileKind::File.mode_bits(), umask);
                let direct = is_direct(flags).then(|| Arc::clone(&self.direct));
                let mapped = Arc::clone(self.notices.mapped());
                self.answer(reply, move |server| async move {
                    let entry = server.create(node, &name, &new, true).await?;
                    mapped.opened(entry.node, flags);
                    if let Some(direct) = direct {
                        direct.opened(entry.node);
                    }
                    Ok(found(caching, entry, Some(fopen::KEEP_CACHE | fopen::NO_FLUSH)))
                });
            }
            Operation::Link { node: linked, name } => self.answer(reply, move |server| async move {
                Ok(found(caching, server.link(NodeId(linked), node, &name).await?, None))
            }),
            Operation::Unlink { name } => {
                let caller = caller(header);
                self.done(reply, move |server| async move { server.remove(node, &name, false, caller).await });
            }
            Operation::Rmdir { name } => {
                let caller = caller(header);
                self.done(reply, move |server| async move { server.remove(node, &name, true, caller).await });
            }
            Operation::Rename { name, to, to_name, flags } => {
                // Linux's RENAME_NOREPLACE and RENAME_EXCHANGE.
                let how = match flags {
                    0 => Rename::Replace,
                    1 => Rename::NoReplace,
                    2 => Rename::Exchange,
                    _ => return reply.error(Errno::INVAL),
                };
                let caller = caller(header);
                self.done(reply, move |server| async move {
                    server.rename((node, &name), (NodeId(to), &to_name), how, caller).await
                });
            }
            Operation::SetXattr { name, value, flags } => {
                let caller = caller(header);
                self.done(reply, move |server| async move {
                    server.setxattr(node, &name, &value, flags.cast_signed(), caller).await
                });
            }
            Operation::RemoveXattr { name } => {
                self.done(reply, move |server| async move { server.removexattr(node, &name).await });
            }
            Operation::Fallocate { offset, len, mode } => {
                let (writer, notices) = (writer_by_user(header), self.notices.clone());
                self.done(reply, move |server| async move {
                    let changed = server.fallocate(node, offset, len, mode.cast_signed(), writer).await?;
                    if changed.mode {
                        notices.attributes_changed(node);
                    }
                    Ok(())
                });
            }
            Operation::Fsync | Operation::FsyncDir => {
                self.done(reply, move |server| async move { server.fsync(node).await });
            }
            _ => reply.error(Errno::NOSYS),
        }
    }

    /// Whether the caller may use the mount. Open files stay usable, and the kernel's own requests count as root's.
    fn lets_in(&self, header: &Header, operation: &Operation) -> bool {
        let Some(owner) = self.only else { return true };
        header.uid == 0
            || header.uid == owner
            || matches!(
                operation,
                Operation::Forget { .. }
                    | Operation::BatchForget(_)
                    | Operation::Read { .. }
                    | Operation::ReadDir { .. }
                    | Operation::Write { .. }
                    | Operation::Fsync
                    | Operation::FsyncDir
                    | Operation::Release { .. }
                    | Operation::ReleaseDir
                    | Operation::Interrupt { .. }
                    | Operation::Destroy
            )
    }

    fn forget(&self, node: NodeId, count: u64) {
        self.direct.forgotten(node);
        self.server.forget(node, count);
    }

    fn make(&self, parent: NodeId, name: Vec<u8>, new: NewFile, reply: Reply) {
        let caching = self.caching;
        self.answer(reply, move |server| async move {
            Ok(found(caching, server.create(parent, &name, &new, false).await?, None))
        });
    }

    fn open(&self, node: NodeId, flags: u32, reply: Reply) {
        if self.skips_open {
            // "Not implemented": from now on the kernel opens files by itself and keeps their pages.
            return reply.error(Errno::NOSYS);
        }
        let write = flags & OFlags::ACCMODE.bits() != OFlags::RDONLY.bits();
        let direct = is_direct(flags).then(|| Arc::clone(&self.direct));
        let mapped = write.then(|| Arc::clone(self.notices.mapped()));
        let notices = self.notices.clone();
        self.answer(reply, move |server| async move {
            let opened = server.open(node, write).await?;
            if let Some(mapped) = mapped {
                mapped.opened(node, flags);
            }
            if let Some(direct) = direct {
                direct.opened(node);
            }
            if opened.is_access {
                notices.attributes_changed(node);
            }
            Ok(body::open(fopen::NO_FLUSH | if opened.keeps_pages { fopen::KEEP_CACHE } else { 0 }))
        });
    }

    fn release(&self, node: NodeId, flags: u32, reply: Reply) {
        if !self.is_writable {
            return reply.done();
        }
        if is_direct(flags) {
            self.direct.released(node);
        }
        self.notices.mapped().released(node, flags);
        self.done(reply, move |server| async move {
            server.release(node).await;
            Ok(())
        });
    }

    fn write(&self, node: NodeId, offset: u64, data: Vec<u8>, flags: u32, writer: Writer, reply: Reply) {
        let stale = is_direct(flags).then(|| Arc::clone(&self.stale));
        if stale.is_none() {
            self.direct.buffered(node);
        }
        let notices = self.notices.clone();
        self.begin(move |server| async move {
            let written = server.write(node, offset, &data, writer).await;
            let len = data.len() as u32;
            let queue = stale.as_ref().and_then(|_| reply.waiting());
            let answer = move || {
                // Before the writer goes on: it may run the file next, by the mode that the kernel has.
                if written.is_ok_and(|changed| changed.mode) {
                    notices.attributes_changed(node);
                }
                reply.result(written.map(|_| body::size(len)));
            };
            match stale {
                Some(stale) => stale.written(node, queue.as_ref(), answer),
                None => answer(),
            }
        });
    }

    fn ioctl(&self, node: NodeId, command: u32, out_size: u32, reply: Reply) {
        if !matches!(command, GET_FLAGS | GET_FLAGS_32 | GET_FSXATTR) {
            return reply.error(Errno::NOTTY);
        }
        self.answer(reply, move |server| async move {
            let flags = server.inode_flags(node).await?;
            let inherit = if flags.inherits_project { FLAG_INHERIT_PROJECT } else { 0 };
            let mut out = match command {
                GET_FSXATTR => fsxattr(flags).to_vec(),
                _ => to_kernel(flags.bits | inherit).to_vec(),
            };
            // As many bytes as were asked for.
            out.resize((out_size as usize).min(64), 0);
            Ok(body::ioctl(&out))
        });
    }

    fn seek(&self, node: NodeId, offset: u64, whence: u32, reply: Reply) {
        // Numbers of Linux's `lseek`; all other ways the kernel does itself.
        let to = match whence {
            3 => Seek::Data,
            4 => Seek::Hole,
            _ => return reply.error(Errno::INVAL),
        };
        if i64::try_from(offset).is_err() {
            return reply.error(Errno::NXIO);
        }
        let dropper = self.notices.mapped().may_be_dirty(node).then(|| (Arc::clone(&self.stale), reply.waiting()));
        self.answer(reply, move |server| async move {
            let at = match dropper {
                None => server.seek(node, offset, to).await?,
                Some((dropper, queue)) => seek::seek(&*server, &dropper, queue, (node, offset), to).await?,
            };
            if i64::try_from(at).is_ok() { Ok(body::offset(at)) } else { Err(Errno::OVERFLOW) }
        });
    }
}

/// Adds an item to a listing; true where that was full before.
fn add(listing: &mut body::Listing, caching: Caching, with_entries: bool, item: DirItem) -> bool {
    // An entry of no known kind is shown as a file; looking it up says why.
    let mode = kind_bits(item.kind.unwrap_or(FileKind::File));
    if !with_entries {
        return !listing.add(item.ino, item.next, mode, &item.name, None);
    }
    // Without an entry the kernel has the name only, and no node to forget: it asks for the rest before it uses it.
    let Some(found) = item.entry else {
        return !listing.add(item.ino, item.next, mode, &item.name, Some(&body::Entry::default()));
    };
    let (told, mode) = (entry(&found, kept(caching, &found.stat)), kind_bits(found.stat.kind));
    let has_room = listing.add(found.node.0, item.next, mode, &item.name, Some(&told));
    if has_room {
        found.pin.keep();
    }
    !has_room
}

/// Feeds a listing to `add` until that says that it is full, or the directory ends.
async fn list<S: FileServer>(
    server: &S,
    directory: NodeId,
    mut position: u64,
    with_entries: bool,
    mut add: impl FnMut(DirItem) -> bool,
) -> Result<(), Errno> {
    let mut is_first = true;
    loop {
        let items = match server.readdir(directory, position, with_entries, LISTING_BATCH).await {
            Ok(items) => items,
            // The entries listed so far are delivered; the error meets the next request.
            Err(_) if !is_first => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let Some(last) = items.last() else { return Ok(()) };
        position = last.next;
        for item in items {
            if add(item) {
                return Ok(());
            }
            is_first = false;
        }
    }
}
