//! FUSE's messages, by way of the crate `fuser`: the only place that has its types.
//!
//! `fuser`'s threads take requests from the kernel, and serve them as far as that waits for nothing: most requests are answered by
//! the thread that read them, with no other thread woken for it. A request that has to wait (for a device, a lock, a txg) becomes a
//! task, which sends the reply, and the thread reads the next one. Work that ends without a reply (a panic, a runtime going away)
//! replies `EIO` when its reply object is dropped.

mod words;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use cenote_taskq::{Class, Group, Handle};
use cenote_zpl::{AccessTimes, FileKind};
use fuser::{
    AccessFlags, BsdFileFlags, Config, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, MountOption, Notifier, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};

use rustix::fs::OFlags;

use self::words::{attr, caller, code, entry_attr, file_type, fsxattr, no_attr, node, to_kernel, zpl_time};

use crate::direct::DirectFiles;
use crate::kernel_mount;
use crate::mount::{Unmount, unmount};
use crate::options::{Access, MountOptions};
use crate::server::{
    Caching, Client, DirItem, Entry, Errno, FileServer, NewFile, NodeId, Rename, Seek, SetAttributes, Stat, Writer,
};

/// Requests of the kernel's own reading ahead that may wait at once. Chosen by eye: enough for many disks.
const BACKGROUND_MAX: u16 = 128;
/// The largest read. The kernel's own limit is 256 pages.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// Items of a listing fetched at a time.
const LISTING_BATCH: usize = 64;

/// `FS_IOC_GETFLAGS` and `FS_IOC_FSGETXATTR` (`linux/fs.h`), which have `lsattr` and project ids.
const GET_FLAGS: u32 = 0x8008_6601;
const GET_FLAGS_32: u32 = 0x8004_6601;
const GET_FSXATTR: u32 = 0x801c_581f;
const FLAG_INHERIT_PROJECT: u32 = 0x2000_0000;

/// A server on a kernel connection.
struct Binding<S> {
    server: Arc<S>,
    handle: Handle,
    group: Group,
    caching: Caching,
    /// Whether the kernel goes on without asking when `open` is not implemented.
    skips_open: AtomicBool,
    skips_opendir: AtomicBool,
    is_writable: bool,
    notices: Notices,
    direct: Arc<DirectFiles>,
}

/// What the kernel is told without having asked. There is a way to it once it has shaken hands, before the first request is read.
#[derive(Clone, Default)]
struct Notices(Arc<OnceLock<Notifier>>);

impl Notices {
    /// Has the kernel ask for a node's attributes before it uses them again; its data stays. From within a request for that node this
    /// waits for nothing: it takes no lock of the node.
    fn attributes_changed(&self, ino: INodeNo) {
        const NO_DATA: i64 = -1;
        if let Some(notifier) = self.0.get() {
            // An error is that the kernel does not know the node, and so has none of its attributes.
            let _ = notifier.inval_inode(ino, NO_DATA, 0);
        }
    }
}

impl Client for Notices {
    fn forget_name(&self, parent: NodeId, name: &[u8]) {
        if let Some(notifier) = self.0.get() {
            // An error is that the kernel does not know the directory, and so has no names in it.
            let _ = notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name));
        }
    }

    fn forget_content(&self, node: NodeId) {
        if let Some(notifier) = self.0.get() {
            let _ = notifier.inval_inode(INodeNo(node.0), 0, 0);
        }
    }
}

/// A mounted session, before its loop runs.
pub(crate) struct Mounted<S: FileServer>(Session<Binding<S>>);

/// Mounts. Blocks until the kernel has shaken hands. Requests become tasks of `group`.
pub(crate) fn mount<S: FileServer>(
    handle: Handle,
    server: Arc<S>,
    group: Group,
    mountpoint: &Path,
    name: &str,
    options: &MountOptions,
) -> io::Result<Mounted<S>> {
    let (caching, is_writable) = (server.caching(), server.is_writable());
    let (skips_open, skips_opendir) = (AtomicBool::new(false), AtomicBool::new(false));
    let (notices, direct) = (Notices::default(), Arc::default());
    let told = notices.clone();
    server.connected(Arc::new(notices.clone()));
    let binding = Binding { server, handle, group, caching, skips_open, skips_opendir, is_writable, notices, direct };
    let config = config(name, options, is_writable);
    let session = match kernel_mount::mount(mountpoint, name, options, is_writable)? {
        Some(device) => {
            let acl = config.acl;
            let session = Session::from_fd(binding, device, acl, config);
            // Nobody else ends a mount whose session did not begin.
            session.inspect_err(|_| drop(unmount(mountpoint, Unmount::Detach)))?
        }
        None => Session::new(binding, mountpoint, &config)?,
    };
    let _ = told.0.set(session.notifier());
    Ok(Mounted(session))
}

impl<S: FileServer> Mounted<S> {
    /// Serves until the file system is unmounted or the connection is aborted. Blocks.
    pub(crate) fn serve(self) -> io::Result<()> {
        self.0.run()
    }
}

fn config(name: &str, options: &MountOptions, is_writable: bool) -> Config {
    let mut config = Config::default();
    // Commas and backslashes would end the option.
    let name: String = name.chars().map(|c| if matches!(c, ',' | '\\') { '_' } else { c }).collect();
    config.mount_options = vec![
        if is_writable { MountOption::RW } else { MountOption::RO },
        MountOption::FSName(name),
        MountOption::Subtype("cenote".to_owned()),
    ];
    if !is_writable || options.access_times == Some(AccessTimes::Never) {
        config.mount_options.push(MountOption::NoAtime);
    }
    let choose = |set, yes, no| if set { yes } else { no };
    config.mount_options.push(choose(options.dev, MountOption::Dev, MountOption::NoDev));
    config.mount_options.push(choose(options.suid, MountOption::Suid, MountOption::NoSuid));
    config.mount_options.push(choose(options.exec, MountOption::Exec, MountOption::NoExec));
    if options.default_permissions {
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    if options.auto_unmount {
        config.mount_options.push(MountOption::AutoUnmount);
    }
    config.acl = match options.access {
        Access::Owner => SessionACL::Owner,
        Access::RootAndOwner => SessionACL::RootAndOwner,
        Access::All => SessionACL::All,
    };
    config.n_threads = Some(options.threads.max(1));
    // A descriptor for each thread needs the device itself, which a mount by way of fusermount3 may not have shown us.
    config.clone_fd = options.threads > 1 && std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    config
}

impl<S: FileServer> Binding<S> {
    /// Serves a request here, and as a task from the first wait on. Once the group is closed the request is dropped, which replies
    /// `EIO`.
    fn spawn<F>(&self, work: impl FnOnce(Arc<S>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let _ = self.group.begin(Class::Issue, work(Arc::clone(&self.server)));
    }
}

impl<S: FileServer> Binding<S> {
    fn make(&self, parent: INodeNo, name: &OsStr, new: NewFile, reply: ReplyEntry) {
        let (name, caching) = (name.as_bytes().to_vec(), self.caching);
        self.spawn(|server| async move {
            reply_entry(reply, caching, server.create(node(parent), &name, &new, false).await);
        });
    }
}

/// As what somebody changes a file's size or room: the kernel says only with writes whether the caller may keep set-ids, and root is
/// who may.
fn writer_by_user(request: &Request) -> Writer {
    Writer { drops_set_ids: request.uid() != 0 }
}

/// The kernel's pages of a file that is written directly.
struct Pages {
    ino: INodeNo,
    direct: Arc<DirectFiles>,
    notices: Notices,
    handle: Handle,
}

impl Pages {
    /// Has those dropped that a write, which is done, has made stale. The kernel waits for requests that fill some of them, so this
    /// waits where no request does.
    async fn drop_stale(self) {
        let node = node(self.ino);
        let Some(stale) = self.direct.written(node) else { return };
        let (ino, notices) = (self.ino, self.notices);
        let told = self
            .handle
            .spawn_blocking(move || notices.0.get().is_some_and(|notifier| notifier.inval_inode(ino, 0, 0).is_ok()));
        // Where the kernel could not be told, because the mount is going, nobody reads them either.
        if told.await.unwrap_or(false) {
            self.direct.dropped(node, stale);
        }
    }
}

impl<S: FileServer> Binding<S> {
    fn pages(&self, ino: INodeNo) -> Pages {
        let (direct, notices) = (Arc::clone(&self.direct), self.notices.clone());
        Pages { ino, direct, notices, handle: self.handle.clone() }
    }
}

/// True for requests of a descriptor that is to go past the kernel's pages.
fn is_direct(flags: OpenFlags) -> bool {
    flags.0.cast_unsigned() & OFlags::DIRECT.bits() != 0
}

/// How long the client keeps a node's attributes: only a moment where its space is about to change.
fn kept(caching: Caching, stat: &Stat) -> Duration {
    const PASSING: Duration = Duration::from_secs(1);
    if stat.is_passing { caching.found.min(PASSING) } else { caching.found }
}

fn reply_entry(reply: ReplyEntry, caching: Caching, made: Result<Entry, Errno>) {
    match made {
        Ok(entry) => {
            let (attr, kept) = (entry_attr(&entry), kept(caching, &entry.stat));
            entry.pin.keep();
            reply.entry(&kept, &attr, Generation(entry.generation));
        }
        Err(errno) => reply.error(code(errno)),
    }
}

fn reply_done(reply: ReplyEmpty, done: Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(code(errno)),
    }
}

/// Replies with a value of unknown size: the size if none was asked for, the value if it fits.
fn reply_sized(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, Errno>) {
    match value {
        Err(errno) => reply.error(code(errno)),
        Ok(value) => match u32::try_from(value.len()) {
            Err(_) => reply.error(fuser::Errno::E2BIG),
            Ok(len) if size == 0 => reply.size(len),
            Ok(len) if len > size => reply.error(fuser::Errno::ERANGE),
            Ok(_) => reply.data(&value),
        },
    }
}

impl<S: FileServer> Filesystem for Binding<S> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            // File handles lead to nodes that the kernel has forgotten: it looks `.` up in them.
            InitFlags::FUSE_EXPORT_SUPPORT,
        ];
        for flag in wanted {
            // A kernel without it does without.
            let _ = config.add_capabilities(flag);
        }
        if self.is_writable {
            // Who makes the file knows whether an access control list takes the mask's place.
            let _ = config.add_capabilities(InitFlags::FUSE_DONT_MASK);
            // Set-ids are taken away here where a write or a new owner takes them. Else the kernel asks before every write whether
            // the file has any right to lose, which is a second request.
            let _ = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        }
        let capabilities = config.capabilities();
        // A file that is changed is held while it is open; nothing is held for a directory.
        let skips_open = self.caching.is_immutable && capabilities.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.skips_open = AtomicBool::new(skips_open);
        self.skips_opendir = AtomicBool::new(capabilities.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT));
        // Out-of-range values come back as the nearest one that is in range.
        if let Err(nearest) = config.set_max_write(TRANSFER_MAX_BYTES) {
            let _ = config.set_max_write(nearest);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (name, caching) = (name.as_bytes().to_vec(), self.caching);
        self.spawn(|server| async move {
            match server.lookup(node(parent), &name).await {
                Ok(entry) => {
                    let (attr, kept) = (entry_attr(&entry), kept(caching, &entry.stat));
                    entry.pin.keep();
                    reply.entry(&kept, &attr, Generation(entry.generation));
                }
                Err(Errno::NOENT) if !caching.absent.is_zero() && server.keeps_absent(node(parent)) => {
                    reply.entry(&caching.absent, &no_attr(), Generation(0));
                }
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.direct.forgotten(node(ino));
        self.server.forget(node(ino), count);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let caching = self.caching;
        self.spawn(|server| async move {
            match server.getattr(node(ino)).await {
                Ok(stat) => reply.attr(&kept(caching, &stat), &attr(&stat)),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        self.spawn(|server| async move {
            match server.readlink(node(ino)).await {
                Ok(target) => reply.data(&target),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.skips_open.load(Ordering::Relaxed) {
            // "Not implemented": from now on the kernel opens files by itself and keeps their pages.
            return reply.error(fuser::Errno::ENOSYS);
        }
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let direct = is_direct(flags).then(|| Arc::clone(&self.direct));
        self.spawn(|server| async move {
            let opened = server.open(node(ino), write).await;
            if let (Some(direct), Ok(_)) = (direct, &opened) {
                direct.opened(node(ino));
            }
            match opened {
                Ok(opened) => {
                    let mut flags = FopenFlags::FOPEN_NOFLUSH;
                    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keeps_pages);
                    reply.opened(FileHandle(0), flags);
                }
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if !is_direct(flags) {
            self.direct.buffered(node(ino));
        }
        self.spawn(|server| async move {
            match server.read(node(ino), offset, size).await {
                Ok(block) => reply.data(&block),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if !self.is_writable {
            return reply.ok();
        }
        if is_direct(flags) {
            self.direct.released(node(ino));
        }
        self.spawn(|server| async move {
            server.release(node(ino)).await;
            reply.ok();
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let device = ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00));
        self.make(parent, name, NewFile { mode, umask, caller: caller(request), device, target: None }, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let mode = mode & 0o7777 | FileKind::Directory.mode_bits();
        let new = NewFile { mode, umask, caller: caller(request), device: (0, 0), target: None };
        self.make(parent, name, new, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let mode = 0o777 | FileKind::Symlink.mode_bits();
        let target = Some(target.as_os_str().as_bytes().to_vec());
        self.make(parent, name, NewFile { mode, umask: 0, caller: caller(request), device: (0, 0), target }, reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mode = mode & 0o7777 | FileKind::File.mode_bits();
        let new = NewFile { mode, umask, caller: caller(request), device: (0, 0), target: None };
        let (name, caching) = (name.as_bytes().to_vec(), self.caching);
        let direct = is_direct(OpenFlags(flags)).then(|| Arc::clone(&self.direct));
        self.spawn(|server| async move {
            match server.create(node(parent), &name, &new, true).await {
                Ok(entry) => {
                    if let Some(direct) = direct {
                        direct.opened(entry.node);
                    }
                    let (attr, generation) = (entry_attr(&entry), Generation(entry.generation));
                    let kept = kept(caching, &entry.stat);
                    entry.pin.keep();
                    let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
                    reply.created(&kept, &attr, generation, FileHandle(0), flags);
                }
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn link(&self, _request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (name, caching) = (name.as_bytes().to_vec(), self.caching);
        self.spawn(|server| async move {
            reply_entry(reply, caching, server.link(node(ino), node(parent), &name).await);
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.spawn(|server| async move { reply_done(reply, server.remove(node(parent), &name, false).await) });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.spawn(|server| async move { reply_done(reply, server.remove(node(parent), &name, true).await) });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        to: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let how = if flags.is_empty() {
            Rename::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            Rename::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            Rename::Exchange
        } else {
            return reply.error(fuser::Errno::EINVAL);
        };
        let (name, to_name) = (name.as_bytes().to_vec(), to_name.as_bytes().to_vec());
        self.spawn(|server| async move {
            reply_done(reply, server.rename((node(parent), &name), (node(to), &to_name), how).await);
        });
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if !is_direct(flags) {
            self.direct.buffered(node(ino));
        }
        let pages = is_direct(flags).then(|| self.pages(ino));
        // The buffer is the session's.
        let data = data.to_vec();
        let writer = Writer { drops_set_ids: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) };
        let notices = self.notices.clone();
        self.spawn(|server| async move {
            let written = server.write(node(ino), offset, &data, writer).await;
            if let Some(pages) = pages {
                pages.drop_stale().await;
            }
            match written {
                Ok(beside) => {
                    // Before the writer goes on: it may run the file next, by the mode that the kernel has.
                    if beside.mode {
                        notices.attributes_changed(ino);
                    }
                    reply.written(data.len() as u32);
                }
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _flags_changed: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let time = |time: TimeOrNow| match time {
            TimeOrNow::Now => None,
            TimeOrNow::SpecificTime(time) => Some(zpl_time(time)),
        };
        let set = SetAttributes {
            permissions: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size_bytes: size,
            accessed: accessed.map(time),
            modified: modified.map(time),
            drops_set_ids: writer_by_user(request).drops_set_ids,
        };
        let caching = self.caching;
        self.spawn(|server| async move {
            match server.setattr(node(ino), &set).await {
                Ok(stat) => reply.attr(&kept(caching, &stat), &attr(&stat)),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value, caller) = (name.as_bytes().to_vec(), value.to_vec(), caller(request));
        self.spawn(|server| async move {
            reply_done(reply, server.setxattr(node(ino), &name, &value, flags, caller).await);
        });
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.spawn(|server| async move { reply_done(reply, server.removexattr(node(ino), &name).await) });
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (writer, notices) = (writer_by_user(request), self.notices.clone());
        self.spawn(|server| async move {
            let allocated = server.fallocate(node(ino), offset, length, mode, writer).await;
            if allocated.is_ok_and(|beside| beside.mode) {
                notices.attributes_changed(ino);
            }
            reply_done(reply, allocated.map(drop));
        });
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, _data: bool, reply: ReplyEmpty) {
        self.spawn(|server| async move { reply_done(reply, server.fsync(node(ino)).await) });
    }

    fn fsyncdir(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, _data: bool, reply: ReplyEmpty) {
        self.spawn(|server| async move { reply_done(reply, server.fsync(node(ino)).await) });
    }

    fn flush(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        // "Not implemented": the kernel does not ask again.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn opendir(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.skips_opendir.load(Ordering::Relaxed) {
            return reply.error(fuser::Errno::ENOSYS);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
    }

    fn readdir(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.spawn(|server| async move {
            let add = |item: DirItem| {
                // What is of no known kind is shown as a file; looking it up says what is wrong with it.
                let kind = file_type(item.kind.unwrap_or(FileKind::File));
                reply.add(INodeNo(item.ino), item.next, kind, OsString::from_vec(item.name))
            };
            match list(&*server, node(ino), offset, false, add).await {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let caching = self.caching;
        self.spawn(|server| async move {
            let add = |item: DirItem| {
                let name = OsString::from_vec(item.name);
                let (attr, generation, pin, ttl) = match item.entry {
                    Some(entry) => {
                        let kept = kept(caching, &entry.stat);
                        (entry_attr(&entry), entry.generation, entry.pin, kept)
                    }
                    // A place-holder of the right number and type, good for no time at all: the kernel asks again
                    // before it uses it. (Without a number there would be no entry: `fuser` has one for both.)
                    None => {
                        let kind = file_type(item.kind.unwrap_or(FileKind::File));
                        let attr = FileAttr { ino: INodeNo(item.ino), kind, ..no_attr() };
                        (attr, 0, item.pin, Duration::ZERO)
                    }
                };
                let is_full = reply.add(INodeNo(item.ino), item.next, name, &ttl, &attr, Generation(generation));
                if !is_full {
                    pin.keep();
                }
                is_full
            };
            match list(&*server, node(ino), offset, true, add).await {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn releasedir(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.spawn(|server| async move {
            match server.statfs(node(ino)).await {
                Ok(space) => reply.statfs(
                    space.blocks,
                    space.blocks_free,
                    space.blocks_free,
                    space.files,
                    space.files_free,
                    space.block_size_bytes,
                    space.name_max_bytes,
                    space.block_size_bytes,
                ),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (name, caller) = (name.as_bytes().to_vec(), caller(request));
        self.spawn(|server| async move {
            reply_sized(reply, size, server.getxattr(node(ino), &name, caller).await);
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = caller(request);
        self.spawn(|server| async move {
            reply_sized(reply, size, server.listxattr(node(ino), caller).await);
        });
    }

    fn access(&self, _request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        self.spawn(|server| async move {
            match server.access(node(ino), mask.bits().cast_unsigned()).await {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn ioctl(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        _input: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        if !matches!(command, GET_FLAGS | GET_FLAGS_32 | GET_FSXATTR) {
            return reply.error(fuser::Errno::ENOTTY);
        }
        self.spawn(|server| async move {
            match server.inode_flags(node(ino)).await {
                Ok(flags) if command == GET_FSXATTR => reply_bytes(reply, &fsxattr(flags), out_size),
                Ok(flags) => {
                    let inherit = if flags.inherits_project { FLAG_INHERIT_PROJECT } else { 0 };
                    reply_bytes(reply, &to_kernel(flags.bits | inherit), out_size);
                }
                Err(errno) => reply.error(code(errno)),
            }
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        // Numbers of Linux's `lseek`; all other ways the kernel does itself.
        let to = match whence {
            3 => Seek::Data,
            4 => Seek::Hole,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(fuser::Errno::ENXIO) };
        self.spawn(|server| async move {
            match server.seek(node(ino), offset, to).await.map(i64::try_from) {
                Ok(Ok(at)) => reply.offset(at),
                Ok(Err(_)) => reply.error(fuser::Errno::EOVERFLOW),
                Err(errno) => reply.error(code(errno)),
            }
        });
    }
}

/// Replies to an ioctl with as many bytes as were asked for.
fn reply_bytes(reply: ReplyIoctl, bytes: &[u8], out_size: u32) {
    let mut out = bytes.to_vec();
    out.resize((out_size as usize).min(64), 0);
    reply.ioctl(0, &out);
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
            // What was listed so far is delivered; the error meets the next request.
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
